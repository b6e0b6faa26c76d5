/*
 * fuzz_identity.c - the text files of a data directory: storage.id and
 * storage.generations.
 *
 * Goal: any text is read or refused with an error text; a text that is read prints the
 * same again.
 */
#include <assert.h>
#include <string.h>

#include "storaged/format/generation.h"
#include "storaged/format/identity.h"
#include "tests/fuzz/fuzz.h"

static void try_identity(const char *text, size_t len)
{
    char again[IDENTITY_TEXT_MAX];
    struct identity id;
    struct err err = { 0 };

    memset(&id, 0, sizeof(id));
    if (identity_parse(text, len, &id, &err) != 0) {
        assert(err.text[0] != '\0');
        return;
    }
    assert(identity_print(again, id.incarnation, id.cluster_id, identity_storage_id(&id),
                          identity_is_rebuilt(&id)) == len);
    assert(memcmp(again, text, len) == 0);
}

static void try_generations(const char *text, size_t len)
{
    char again[GENERATIONS_TEXT_MAX];
    struct generations_file f, second;
    struct err err = { 0 };

    if (generations_parse(text, len, &f, &err) != 0) {
        assert(err.text[0] != '\0');
        return;
    }
    len = generations_print(again, &f); /* numbers may have had leading zeros */
    assert(generations_parse(again, len, &second, &err) == 0);
    assert(second.boot == f.boot && second.stable == f.stable && second.last == f.last);
    assert(second.n_lost == f.n_lost &&
           memcmp(second.lost, f.lost, f.n_lost * sizeof(f.lost[0])) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_identity((const char *)data, size);
    try_generations((const char *)data, size);
    return 0;
}
