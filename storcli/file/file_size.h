/*
 * file_size.h - the size of the file: as readers see it, as storages and exportd have it.
 *
 * Private to storcli/file. Written by file_size.c only. Thread: the env's.
 */
#ifndef ROZO_STORCLI_FILE_FILE_SIZE_H
#define ROZO_STORCLI_FILE_FILE_SIZE_H

#include "storcli/file.h"

struct file_size {
    uint64_t now;         /* as our readers see it: grows when a write is accepted */
    uint64_t meta;        /* as exportd knows it */
    uint64_t acked_end;   /* end of acknowledged or reserved bytes */
    uint64_t through_end; /* least size by a flush or O_SYNC write, whatever lies below */
    uint64_t
        reported_end;   /* largest size reported since the last durable report; 0: none */
    uint64_t fresh_end; /* end of acknowledged bytes since then */
    uint32_t epoch;     /* epoch of the write, or else, that set the size; 0: not ours */
    bool has_data;
    bool is_unsure;     /* exportd may have forgotten `meta` */
    bool is_unreported; /* a failed write beyond the end may have left bytes */
};

void size_init(struct file *f, uint64_t size);
/** Adopts the size in an answer of exportd. */
void size_adopt(struct file *f, const struct file_attr *attr);

/** Records that bytes up to end were accepted. */
void size_grows(struct file *f, uint64_t end);
/** Records that storages acknowledged bytes up to end, written with this epoch. */
void size_acked(struct file *f, uint64_t end, uint32_t epoch);
/** Records that the file was made longer by a reservation. */
void size_allocated(struct file *f, uint64_t end);
/** Records our own truncate. */
void size_truncated(struct file *f, uint64_t size);
/** Takes a size of exportd that is smaller than ours: others have cut the file. */
void size_cut(struct file *f, uint64_t size);
/** Records that exportd may have lost all that was acknowledged: only its size counts. */
void size_lost(struct file *f);
/** Computes the size again after a failed write. */
void file_size_recount(struct file *f);
/** Forgets what is known of acknowledged bytes beyond size. */
void file_forget_beyond(struct file *f, uint64_t size);

/** Records whether storages may have data of the file. */
void size_set_has_data(struct file *f, bool has_data);
/** Records that storages may have bytes of ours beyond the reported size. */
void size_set_unreported(struct file *f);

/** Returns the size for a report, 0: none; sync: the report will be durable. */
uint64_t size_to_report(const struct file *f, bool sync);
/**
 * Records a report of this size. is_same: no truncate happened since it was sent;
 * durable: exportd has made it so.
 */
void size_reported(struct file *f, uint64_t size, bool is_same, bool durable);
/** Records that acknowledged bytes up to end need a report, or a durable one. */
void size_is_fresh(struct file *f, uint64_t end);
/** Records that all that is acknowledged is durable at exportd. */
void size_nothing_fresh(struct file *f);
/**
 * Records that all bytes up to end that were accepted before some moment are
 * acknowledged: reports it now.
 */
void file_is_through(struct file *f, uint64_t end);
/** Records that exportd may have forgotten the size. */
void size_unsure(struct file *f);
/** Ends the doubt about the size; size_known() takes exportd's. */
void size_sure(struct file *f);
void size_known(struct file *f, uint64_t size);

#endif
