/*
 * acl.h - POSIX ACLs in the kernel's binary form: check, compare with mode bits, inherit.
 *
 * The form is the value of system.posix_acl_access and system.posix_acl_default: u32 2,
 * then entries of u16 tag, u16 permissions, u32 id, all little-endian, in the order
 * owner, users, group, groups, mask, other. Rules: acl(5), IEEE 1003.1e draft 17. All
 * functions but acl_check() and acl_is_empty() need an ACL that acl_check() accepted.
 */
#ifndef ROZO_EXPORTD_NAMESPACE_ACL_H
#define ROZO_EXPORTD_NAMESPACE_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ACL_NAME_ACCESS  "system.posix_acl_access"
#define ACL_NAME_DEFAULT "system.posix_acl_default"

/**
 * Checks a value. Returns 0, or -EINVAL if it is not a valid ACL. Any bytes are safe. An
 * ACL without entries is not valid.
 */
int acl_check(const uint8_t *acl, size_t len);
/**
 * Returns true for a well-formed value without entries: setting it means to remove the
 * ACL.
 */
bool acl_is_empty(const uint8_t *acl, size_t len);

/** Returns the nine permission bits of the ACL. *exact: mode bits alone say the same. */
uint32_t acl_mode(const uint8_t *acl, size_t len, bool *exact);
/** Applies chmod: writes the bits of mode into their entries. */
void acl_chmod(uint8_t *acl, size_t len, uint32_t mode);
/**
 * Applies inheritance: acl holds the parent's default ACL and becomes the access ACL of a
 * new file. Returns mode with its permission bits limited by the ACL. *exact: mode bits
 * alone say the same.
 */
uint32_t acl_create(uint8_t *acl, size_t len, uint32_t mode, bool *exact);

#endif
