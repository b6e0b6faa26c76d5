/*
 * acl.h - POSIX ACLs in the kernel's binary form (the value of system.posix_acl_access and
 * system.posix_acl_default): checked, compared with mode bits, inherited.
 *
 * The form: u32 2, then entries of u16 tag, u16 permissions, u32 id, all little-endian, in the
 * order owner, users, group, groups, mask, other. Rules: acl(5), IEEE 1003.1e draft 17.
 */
#ifndef ROZO_EXPORTD_NAMESPACE_ACL_H
#define ROZO_EXPORTD_NAMESPACE_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ACL_NAME_ACCESS  "system.posix_acl_access"
#define ACL_NAME_DEFAULT "system.posix_acl_default"

/** 0, or -EINVAL: not a valid ACL. Any bytes are safe. An ACL without entries is not valid. */
int acl_check(const uint8_t *acl, size_t len);
/** True for a well-formed value without entries: setting it means to remove. */
bool acl_is_empty(const uint8_t *acl, size_t len);

/* The rest wants an ACL that acl_check() liked. */

/** The nine permission bits it stands for; *exact when mode bits alone say the same. */
uint32_t acl_mode(const uint8_t *acl, size_t len, bool *exact);
/** chmod: put the bits of mode into the entries they belong to. */
void acl_chmod(uint8_t *acl, size_t len, uint32_t mode);
/**
 * What a new file inherits: acl starts as the parent's default ACL and becomes the file's access
 * ACL. Returns mode with its permission bits limited by the ACL; *exact as above.
 */
uint32_t acl_create(uint8_t *acl, size_t len, uint32_t mode, bool *exact);

#endif
