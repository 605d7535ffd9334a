/* caller.h - the caller of a request: the holder of its access key, or its address if no key is
 * needed. Callers take turns (util/fair.h) for text threads and for places at workers. A caller
 * exists while it has requests. The event loop's, but for `text`. */
#ifndef ROUTER_CALLER_H
#define ROUTER_CALLER_H

#include "daemons/router/attempt/attempt.h"
#include "textpool.h"

#include <stdint.h>

struct map;

struct caller {
	const void *key;   /* struct tenant, or struct http_client */
	uint32_t requests; /* that are running */
	uint32_t answers;  /* its part of router.n_answers */
	struct text_caller text;
	struct attempt_caller places;
};

/* Gets or creates the caller of one more request. callers: by key. id: as in attempt_caller. */
struct caller *caller_get(struct map *callers, const void *key, uint64_t id);
void caller_put(struct map *callers, struct caller *c); /* the request has ended */

#endif
