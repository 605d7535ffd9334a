/* live.h - the progress line on the terminal. */
#ifndef PDBENCH_LIVE_H
#define PDBENCH_LIVE_H

#include "figures.h"

struct live {
	int on;
	uint64_t shown_us, shown_tokens;
	struct hist ttft; /* of all requests so far */
};

struct live_now {
	uint64_t since_us, sent, done, failed, tokens;
	unsigned in_flight, waiting;
	const char *phase; /* "(warm-up)", "" or "(last answers)" */
};

void live_init(struct live *l, const struct bench_options *o);
void live_fini(struct live *l);                             /* clears the line */
void live_show(struct live *l, const struct live_now *now); /* redraws at most twice a second */

#endif
