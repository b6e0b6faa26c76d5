/*
 * file_meta_report.h - what exportd must learn of the file, and the report on its way.
 *
 * Private to storcli/file. Written by file_meta_report.c only. Thread: the env's.
 */
#ifndef ROZO_STORCLI_FILE_FILE_META_REPORT_H
#define ROZO_STORCLI_FILE_FILE_META_REPORT_H

#include "storcli/file/file_queue.h"

/* Report after the one on its way, or once reports are not held any more. */
enum report_next {
    NEXT_NONE,
    NEXT_REPORT,
    NEXT_DURABLE,
};

/* Report on its way. */
struct report_sent {
    uint64_t size, change, n_truncates, unsure_no, fresh_end;
    uint64_t least_size; /* size at exportd, at least, after the report */
    int64_t mtime_ns;
    bool left, resent; /* see file_inline.h: ends the move; has its data */
    bool has_data, sync;
    bool again; /* the size was reported before */
};

struct file_report {
    uint64_t change; /* counts changes that exportd must learn */
    uint64_t reported_change, durable_change;
    int64_t mtime_ns; /* last unreported write; 0: none */
    bool has_data_reported;
    uint64_t unsure_no; /* times that exportd may have forgotten what was reported */
    bool busy;
    enum report_next next;
    struct report_sent sent;
    struct file_meta_call call;
    uint64_t no;        /* reports begun */
    uint64_t failed_no; /* the newest that failed */
    uint64_t lost_no;   /* the newest whose data was abandoned */
    int rc;             /* result of the last one */
    struct env_timer timer;
    struct waitlist waiters;
};

void report_init(struct file *f);
/** Stops the timer. */
void report_free(struct file *f);

/** Records a change that exportd must learn, at the latest after report_delay_ms. */
void file_changed(struct file *f);
/** Records a change that somebody reports soon: starts no timer. */
void report_count_change(struct file *f);
/** Records a write at this moment, for the time of the file. */
void report_touch(struct file *f);
/** Records whether exportd knows that storages have data. */
void report_set_data_reported(struct file *f, bool is_reported);
/**
 * Records that storages acknowledged bytes up to end; reports it if exportd does not
 * know.
 */
void file_acked(struct file *f, uint64_t end);
/**
 * Returns true if accepted writes change nothing at exportd but the time: it knows of
 * data and the size.
 */
bool file_changes_only_time(const struct file *f);
/**
 * Makes the time durable beside the writes of a sync, if nothing else must be reported.
 * True: done so; *change is then the number for file_report(), as long as only the time
 * changes.
 */
bool file_report_early(struct file *f, uint64_t *change);
/**
 * Makes sure that exportd has all changes up to `change` (durably, with sync).
 * @param since failures of reports begun up to this number do not count.
 * @return 1: it has; 0: wait for report.waiters; -errno: the report failed.
 */
int file_report(struct file *f, uint64_t change, bool sync, uint64_t since);
/** Records a report that failed before it was sent; it will be tried again. */
void file_report_failed(struct file *f, int rc);
/**
 * Drops all unreported changes: the file is as exportd knows it. No report may be under
 * way.
 */
void file_forget_report(struct file *f, int rc);
/** Sends the reports that waited while they were held. */
void file_report_released(struct file *f);
/** Records that exportd has this time: a later write stays unreported. */
void report_time_taken(struct file *f, int64_t mtime_ns);
/** Records that exportd has all up to this change, with the data, by other means. */
void report_changes_taken(struct file *f, uint64_t change, bool durable);

#endif
