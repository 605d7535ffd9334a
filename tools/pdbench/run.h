/* run.h - generates the load: when each request is sent, and what is recorded about its answer.
 * Runs its own event loop. */
#ifndef PDBENCH_RUN_H
#define PDBENCH_RUN_H

#include "figures.h"
#include "options.h"
#include "work.h"

/* Returns 0 with the result, or ERR_*: the run could not begin. Call result_fini(ret) in both
 * cases. The addresses in o must be resolved. */
int run_load(const struct bench_options *o, const struct server_info *server, struct result *ret,
             struct err *err);

#endif
