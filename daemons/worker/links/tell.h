/* tell.h - what this worker tells others when it changes: itself to the routers (WORKER_UPDATE),
 * and the messagers of other hosts to its own (PEERS).
 *
 * The messager counts as there while it has our memory, its link is up and something was heard from
 * it lately. Its site and its address are told for as long, and for a moment after: a messager that
 * restarts at once changes nothing.
 *
 * The last message of a kind counts, so one that a full link did not take is repeated 50 ms later,
 * with what is true then. On the loop's thread. */
#ifndef WORKER_LINKS_TELL_H
#define WORKER_LINKS_TELL_H

#include "kv/handover.h"

#include <stddef.h>
#include <stdint.h>

struct event;
struct worker;

struct tell_state {
	struct event *again, *look;
	unsigned changes;   /* of this worker's description, since the start */
	uint64_t silent_us; /* a messager that was not heard for so long is stopped, or hangs */
	uint64_t lost_us;   /* since when the messager is not there; 0: it is */
	int has_messager;   /* as it was described last */
	char messager[HANDOVER_REMOTE_BYTES]; /* WorkerInfo.messager as it was described last */
	int routers_untold, messager_untold;
	/* what the messager was told last, packed; NULL: nothing since its link came up */
	unsigned char *peers;
	size_t peers_len;
	int peers_told; /* any messager was told of anybody, since the start */
};

void tell_init(struct worker *w);
void tell_fini(struct worker *w);
/* What worker_describe says has changed. */
void tell_changed(struct worker *w);
/* The worker has begun to look for its messager, which is described as if it were there for a
 * moment. */
void tell_messager_awaited(struct worker *w);
/* A messager was attached or is gone, or its link came up or went down: changes the description if
 * it has changed. Called by itself when time alone changes it. */
void tell_messager_seen(struct worker *w);
/* Can KV be handed over by the messager, as the routers were told? */
static inline int tell_has_messager(const struct tell_state *t)
{
	return t->has_messager;
}
/* A router's link came up: our HELLO may have been sent before the last change. */
void tell_router_up(struct worker *w);
/* The link of the messager came up, or the lists of the routers have changed. */
void tell_messager(struct worker *w, int link_is_new);

#endif
