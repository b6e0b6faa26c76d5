/*
 * goals.h - what the codec has promised, held against what was measured.
 */
#ifndef ROZO_BENCH_GOALS_H
#define ROZO_BENCH_GOALS_H

#include "deploy/bench/bench_codec.h"

/**
 * Measure what the goals need and print each with what was reached.
 * @return 0 when all are met; 1 when one is missed or could not be measured; -errno.
 */
int goals_check(unsigned n_rounds, bench_tick_cb *tick, void *arg, struct err *err);

#endif
