/* peer_lists.h - the other workers, as this worker's routers name them (PEERS): the last list of
 * each router, and their union.
 *
 * Routers share no state, so their lists may differ for a moment. The union has each name once: of
 * its latest life (epoch), and of one life the entry that has a messager. A router that is down
 * keeps its list until it sends another one. On the loop's thread. */
#ifndef WORKER_LINKS_PEER_LISTS_H
#define WORKER_LINKS_PEER_LISTS_H

#include "control.pb-c.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define PEER_LISTS_MAX 32u /* as many as `routers` may name, and DNS (ROUTERS_MAX) */

struct peer;

struct peer_lists {
	struct peer_list {
		const struct peer *router;
		Pds__Peers *peers;
	} list[PEER_LISTS_MAX];
	unsigned n;
};

/* Replaces the router's list by a copy of m. 0, or ERR_FULL: there are lists of too many
 * routers. */
int peer_lists_take(struct peer_lists *l, const struct peer *router, const Pds__Peers *m);
/* The router is not one of this worker's any more. */
void peer_lists_drop(struct peer_lists *l, const struct peer *router);
/* The union, or of it the peers that have a messager. Its entries are those of the lists, valid
 * until the next peer_lists_take or _drop; ret->peers is the caller's to free. */
void peer_lists_union(const struct peer_lists *l, int with_messager, Pds__Peers *ret);
void peer_lists_fini(struct peer_lists *l);

#endif
