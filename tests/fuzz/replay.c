/*
 * replay.c - main() of a fuzz target in builds without libFuzzer.
 *
 * In:     folders of corpus files on the command line.
 * Out:    runs the target on every file, and again on the file cut at every 7th byte and
 *         with a bit flipped there: a small corpus gives many inputs.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

enum { INPUT_MAX = 1 << 16 };

/* Runs the target on a copy of exactly this size: sanitizers see reads after its end. */
static void run_exact(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size == 0 ? 1 : size);

    if (copy == NULL)
        abort();
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static int run_file(const char *path)
{
    static uint8_t data[INPUT_MAX];
    FILE *file = fopen(path, "rb");
    size_t size;

    if (file == NULL) {
        perror(path);
        return 1;
    }
    size = fread(data, 1, sizeof(data), file);
    fclose(file);
    run_exact(data, size);
    for (size_t i = 0; i < size; i += 7) {
        run_exact(data, i);
        data[i] ^= (uint8_t)(1u << i % 8);
        run_exact(data, size);
        data[i] ^= (uint8_t)(1u << i % 8);
    }
    return 0;
}

int main(int argc, char **argv)
{
    unsigned n = 0;
    int rc = 0;

    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        struct dirent *entry;

        if (dir == NULL) {
            perror(argv[i]);
            return 1;
        }
        while ((entry = readdir(dir)) != NULL) {
            char path[4096];

            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
            rc |= run_file(path);
            n++;
        }
        closedir(dir);
    }
    printf("%u inputs\n", n);
    return n == 0 ? 1 : rc; /* an empty corpus fails */
}
