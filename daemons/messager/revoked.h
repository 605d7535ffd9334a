/* revoked.h - the leases that their decode worker has revoked. A revocation is final while this
 * process lives, even if it overtook the answer to LEASE_OPEN (model, m17).
 *
 * Bounds. An entry is needed only while a LEASE_OPENED for its lease can still arrive or a transfer
 * with that lease can still be published. It is dropped when D's epoch ends; when it is
 * REVOKED_LIFE_US old (no request lives that long); and, oldest first, when there are REVOKED_MAX:
 * a link delivers in order and has far fewer messages under way, so an answer older than that many
 * revocations has arrived or never will. The table is the second guard: D itself refuses a lease
 * that it has revoked. */
#ifndef MESSAGER_REVOKED_H
#define MESSAGER_REVOKED_H

#include "util/log.h"

#include <stdint.h>

#define REVOKED_MAX 65536u
#define REVOKED_LIFE_US (600ull * 1000000u)
#define REVOKED_NAME_MAX 48

/* Identifies a lease: D's name and epoch, and the lease's numbers. Compared as bytes, so only
 * lease_key_of makes one. */
struct lease_key {
	uint64_t id, epoch, generation;
	char decode[REVOKED_NAME_MAX]; /* padded with zeros */
};
struct lease_key lease_key_of(const char *decode, uint64_t id, uint64_t epoch, uint64_t generation);

struct revoked_lease {
	struct lease_key lease;
	struct reqid req;
	uint32_t attempt;
	int in_order; /* LEASE_REVOKE says DRAINING */
	int owed;     /* LEASE_REVOKED could not be sent yet */
	uint64_t at_us;
};

struct revoked;
struct revoked *revoked_new(uint32_t max);
void revoked_destroy(struct revoked **r);
/* The entry of this lease, created if it is new. Drops old ones to make room. */
struct revoked_lease *revoked_add(struct revoked *r, const struct lease_key *lease,
                                  uint64_t now_us);
/* NULL: it is not revoked. */
struct revoked_lease *revoked_find(const struct revoked *r, const struct lease_key *lease);
int revoked_has(const struct revoked *r, const struct lease_key *lease);
/* This epoch of D has ended: drops its leases. */
void revoked_forget(struct revoked *r, const char *decode, uint64_t epoch);
/* Calls fn for each; 0 from fn ends the walk. */
void revoked_each(struct revoked *r, int (*fn)(struct revoked_lease *e, void *arg), void *arg);
uint32_t revoked_count(const struct revoked *r);

#endif
