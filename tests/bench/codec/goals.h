/*
 * goals.h - goals of the codec, compared with measurements.
 */
#ifndef ROZO_BENCH_GOALS_H
#define ROZO_BENCH_GOALS_H

#include "deploy/bench/bench_codec.h"

/**
 * Measures the cases of the goals and prints each goal with its result.
 * @return 0: all are met; 1: one is missed or could not be measured; -errno.
 */
int goals_check(unsigned n_rounds, bench_tick_cb *tick, void *arg, struct err *err);

#endif
