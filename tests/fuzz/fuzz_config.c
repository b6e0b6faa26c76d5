/*
 * fuzz_config.c - config files.
 *
 * Goal: any text is loaded or refused with an error text; a loaded config obeys its
 * schema.
 */
#include <assert.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/unit/common/config_sample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sample *s = NULL;
    struct err err = { 0 };
    int rc = config_parse("fuzz", data, size, &sample_schema, (void **)&s, &err);

    if (rc != 0) {
        assert(s == NULL && err.text[0] != '\0');
        return 0;
    }
    assert(s->name != NULL && strlen(s->name) <= 16);
    assert(s->listen_count >= 1 && s->listen_count <= 4);
    config_free(&sample_schema, s);
    return 0;
}
