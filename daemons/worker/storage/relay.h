/* relay.h - passes on to each router what this host's storage says of its tiers (KV_EVENTS of tiers
 * 1 and 2). Nothing is kept here but, for each router and tier, whether it has heard the beginning
 * of a list: what a router's link does not take makes that void, and storage is asked for its lists
 * again (STORE_LIST), at growing intervals. A router hears of a tier's changes only after a list's
 * beginning, and an empty list of each when storage goes away.
 *
 * Storage is asked while somebody here would read from it and a router is there; and, whoever is
 * there, each time that its link comes up, if this worker goes by what storage has when it
 * chooses what to write. On the loop's thread; all functions take NULL. */
#ifndef WORKER_RELAY_H
#define WORKER_RELAY_H

#include "svc/svc.h"

struct relay;

struct relay_stats {
	uint64_t hashes, asked, cut, bad;
};

struct relay *relay_new(struct svc *s, struct relay_stats *stats); /* counts in *stats */
void relay_destroy(struct relay **r);
void relay_router_up(struct relay *r, struct peer *router);
void relay_router_down(struct relay *r, struct peer *router);
void relay_storage_up(struct relay *r, struct peer *storage);
void relay_storage_down(struct relay *r, const struct peer *storage); /* another peer: nothing */
/* 1: what storage has is read here, so that it is worth telling. At first: 0. */
void relay_reads(struct relay *r, int reads);
/* 1: blocks that storage has are not written to it. At first: 0. */
void relay_writes(struct relay *r, int writes);
void relay_events(struct relay *r, const struct peer *from, const Pds__KvEvents *m);

#endif
