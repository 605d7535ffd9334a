/* revoked.h - the leases that their decode worker has revoked: final for this life of the messager,
 * even if the revocation overtook the answer to our question (model, m17).
 *
 * Bounds. An entry is of use only while a LEASE_OPENED for its lease can still arrive or a transfer
 * with it can still be published. It goes when D's epoch is gone; when it is REVOKED_LIFE_US old
 * (no request lives that long); and, the oldest first, when there are REVOKED_MAX: a link delivers
 * in order and has far fewer messages under way, so an answer older than that many revocations
 * has come or never will. D itself refuses a lease that it has revoked: the table is the second
 * guard, not the only one. */
#ifndef MESSAGER_REVOKED_H
#define MESSAGER_REVOKED_H

#include "util/log.h"

#include <stdint.h>

#define REVOKED_MAX 65536u
#define REVOKED_LIFE_US (600ull * 1000000u)
#define REVOKED_NAME_MAX 48

/* A lease's full name: D's, its epoch, and what D says of it. Compared as bytes: made by
 * lease_key_of alone. */
struct lease_key {
	uint64_t id, epoch, generation;
	char decode[REVOKED_NAME_MAX]; /* padded with zeros */
};
struct lease_key lease_key_of(const char *decode, uint64_t id, uint64_t epoch, uint64_t generation);

struct revoked_lease {
	struct lease_key lease;
	struct reqid req;
	uint32_t attempt;
	int owed; /* the answer could not be sent yet */
	uint64_t at_us;
};

struct revoked;
struct revoked *revoked_new(uint32_t max);
void revoked_destroy(struct revoked **r);
/* The entry of this lease, made if it is new. Old ones make room. */
struct revoked_lease *revoked_add(struct revoked *r, const struct lease_key *lease,
                                  uint64_t now_us);
int revoked_has(const struct revoked *r, const struct lease_key *lease);
/* That life of D is over. */
void revoked_forget(struct revoked *r, const char *decode, uint64_t epoch);
/* Calls fn for each; 0 from fn ends the walk. */
void revoked_each(struct revoked *r, int (*fn)(struct revoked_lease *e, void *arg), void *arg);
uint32_t revoked_count(const struct revoked *r);

#endif
