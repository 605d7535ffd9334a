/* run.h - the load itself: when each request is sent, what comes back, what is noted. Runs its
 * own event loop. */
#ifndef PDBENCH_RUN_H
#define PDBENCH_RUN_H

#include "figures.h"
#include "options.h"
#include "work.h"

/* 0 with the result; ERR_*: the run could not begin. ret is to be freed in either case. o: its
 * addresses are resolved. */
int run_load(const struct options *o, const struct server_says *says, struct result *ret,
             struct err *err);

/* Asks GET /v1/models of the first address. 0 (also when the server does not know it: then *ret is
 * empty and err has the reason), or ERR_CLOSED: nobody is there, or it refuses us. */
int probe_server(const struct options *o, struct server_says *ret, struct err *err);

#endif
