/* tell.h - what this worker tells others when it changes: itself to the routers (WORKER_UPDATE),
 * and the messagers of other hosts to its own (PEERS).
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
	struct event *again;
	unsigned changes;                     /* of this worker's description, since the start */
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
/* A messager was attached, or is gone: changes the description if its address does. */
void tell_attached(struct worker *w);
/* A router's link came up: our HELLO may have been sent before the last change. */
void tell_router_up(struct worker *w);
/* The link of the messager came up, or the lists of the routers have changed. */
void tell_messager(struct worker *w, int link_is_new);

#endif
