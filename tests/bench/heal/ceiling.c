/*
 * ceiling.c - upper bound of the speed of a rebuild on this machine.
 *
 *     bench_ceiling LAYOUT BLOCK_BYTES WORKERS OUT < sources
 *
 * In:     one line for each lost file: paths of k of its projection files, separated by
 *         blanks.
 * Out:    one file in folder OUT for each; a line of JSON on stdout.
 * Method: each worker takes the next CHUNK of a file, reads it from k sources, computes
 * the lost
 *         projection, writes it and starts its writeback; the worker that ends the last
 *         chunk of a file syncs it. So WORKERS chunks are in flight, and no read waits
 *         for a write. Files are treated as plain rows. The other work of a rebuild
 *         (requests for heads, checksums, transfer between processes) is left out.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "codec/codec.h"

enum { FILES_MAX = 4096, WORKERS_MAX = 64, CHUNK_ROWS = 256 };

struct lost_file {
    int in[CODEC_N_MAX], out; /* in: descriptors of projections 1..k */
    uint64_t size, first_chunk;
    _Atomic uint64_t left; /* chunks that are not written yet */
};

static struct lost_file files[FILES_MAX];
static unsigned n_files, k;
static uint64_t n_chunks, chunk_bytes;
static size_t row_bytes;
static const struct codec *codec;
static struct codec_plan plan;
static _Atomic uint64_t next_chunk;

static void fail(const char *what)
{
    fprintf(stderr, "bench_ceiling: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void files_open(const char *folder)
{
    char *line = NULL, *save;
    size_t room = 0;

    while (n_files < FILES_MAX && getline(&line, &room, stdin) > 0) {
        struct lost_file *f = &files[n_files];
        char path[4096];
        struct stat st;

        for (unsigned i = 1; i <= k; i++) {
            const char *source = strtok_r(i == 1 ? line : NULL, " \n", &save);

            f->in[i] = source == NULL ? -1 : open(source, O_RDONLY | O_CLOEXEC);
            if (f->in[i] < 0 || fstat(f->in[i], &st) != 0)
                fail(source == NULL ? "too few sources" : source);
            f->size =
                i == 1 || (uint64_t)st.st_size < f->size ? (uint64_t)st.st_size : f->size;
        }
        snprintf(path, sizeof(path), "%s/%u", folder, n_files++);
        f->out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (f->out < 0)
            fail(path);
        f->size -= f->size % row_bytes;
        f->first_chunk = n_chunks;
        f->left = (f->size + chunk_bytes - 1) / chunk_bytes;
        n_chunks += f->left;
    }
    free(line);
}

static void chunk_do(struct lost_file *f, uint64_t at, uint8_t *bufs, uint8_t *overhangs)
{
    size_t len = f->size - at < chunk_bytes ? (size_t)(f->size - at) : chunk_bytes;
    const uint8_t *body[CODEC_N_MAX] = { 0 }, *overhang[CODEC_N_MAX] = { 0 };
    uint8_t *out[CODEC_N_MAX] = { 0 }, *out_overhang[CODEC_N_MAX] = { 0 };

    for (unsigned i = 1; i <= k; i++) {
        if (pread(f->in[i], bufs + i * chunk_bytes, len, (off_t)at) != (ssize_t)len)
            fail("read");
        overhang[i] = overhangs;
    }
    out_overhang[0] = overhangs + CODEC_OVERHANG_MAX;
    for (size_t from = 0; from < len; from += row_bytes) {
        for (unsigned i = 1; i <= k; i++)
            body[i] = bufs + i * chunk_bytes + from;
        out[0] = bufs + from;
        codec_repair(&plan, body, overhang, row_bytes, out, out_overhang);
    }
    if (pwrite(f->out, bufs, len, (off_t)at) != (ssize_t)len)
        fail("write");
    sync_file_range(f->out, (off_t)at, (off_t)len, SYNC_FILE_RANGE_WRITE);
    if (atomic_fetch_sub(&f->left, 1) == 1 && fdatasync(f->out) != 0)
        fail("sync");
}

static void *work(void *arg)
{
    uint8_t *bufs, *overhangs;
    unsigned at = 0;
    uint64_t chunk;

    (void)arg;
    bufs = aligned_alloc(4096, (k + 1) * chunk_bytes);
    overhangs = calloc(2, CODEC_OVERHANG_MAX);
    if (bufs == NULL || overhangs == NULL)
        fail("memory");
    while ((chunk = atomic_fetch_add(&next_chunk, 1)) < n_chunks) {
        while (at + 1 < n_files && files[at + 1].first_chunk <= chunk)
            at++;
        chunk_do(&files[at], (chunk - files[at].first_chunk) * chunk_bytes, bufs,
                 overhangs);
    }
    free(bufs);
    free(overhangs);
    return NULL;
}

static double seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    unsigned n_workers = argc == 5 ? (unsigned)atoi(argv[3]) : 0;
    const struct codec_layout *layout =
        argc == 5 ? codec_layout((unsigned)atoi(argv[1])) : NULL;
    pthread_t threads[WORKERS_MAX];
    double began, cpu;
    uint64_t n_bytes = 0;

    if (layout == NULL || n_workers == 0 || n_workers > WORKERS_MAX) {
        fprintf(stderr,
                "usage: bench_ceiling LAYOUT BLOCK_BYTES WORKERS OUT < sources\n");
        return 2;
    }
    codec = codec_get(CODEC_MOJETTE, (unsigned)atoi(argv[1]), (size_t)atoi(argv[2]));
    if (codec == NULL)
        fail("codec");
    k = layout->k;
    row_bytes = codec_row_bytes(codec, codec_block_bytes(codec));
    chunk_bytes = CHUNK_ROWS * row_bytes;
    if (codec_plan(codec, ((1u << k) - 1) << 1, 1, &plan) != 0)
        fail("plan");
    files_open(argv[4]);
    began = seconds(CLOCK_MONOTONIC);
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (unsigned i = 0; i < n_workers; i++) {
        if (pthread_create(&threads[i], NULL, work, NULL) != 0)
            fail("thread");
    }
    for (unsigned i = 0; i < n_workers; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < n_files; i++)
        n_bytes += files[i].size;
    printf("{\"bytes\": %llu, \"seconds\": %.3f, \"cpu_s\": %.3f}\n",
           (unsigned long long)n_bytes, seconds(CLOCK_MONOTONIC) - began,
           seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    return 0;
}
