/* policy.h - how workers that may take a sequence are compared: one table of policies, apart for
 * prefill and for decode.
 *
 * A policy only gives costs; who may be chosen at all is place.c's business. Costs are in tokens
 * where a policy knows what it costs:
 *
 *   kv_aware, prefill:  uncached + memory weight * in memory + disk weight * on disk +
 *                       kv_load_weight * backlog
 *       uncached: tokens of this prompt that neither the worker nor its host's storage has; in
 *       memory, on disk: that only storage has, weighed by the time that reading a token takes
 *       there against computing it, as the worker has measured it (policy_read_weight); backlog:
 *       the same sum of the prompts that were sent there and are not computed yet. A mixed worker's
 *       decode load (context + kv_sequence_tokens * sequences) is added to its backlog.
 *   kv_aware, decode:   kv_transfer_weight * missing + context + (tokens + kv_sequence_tokens) *
 *                       sequences + kv_room_weight * lacking
 *       A step reads the context of every sequence in it: in units of the time that one token of
 *       context adds to one sequence's step, `context` is what those there cost this one, and
 *       tokens * sequences what this one costs them. missing: tokens whose blocks it does not hold
 *       yet, which must be sent; context, sequences: ours as placed there, and those of other
 *       routers by its last heartbeat; lacking: tokens that find no free block by its last
 *       heartbeat and what was placed since.
 *   least_tokens: tokens in flight. least_requests: requests there. power_of_two: the one of two
 *   drawn that has fewer tokens in flight. round_robin: who was chosen longest ago. random: anyone.
 *   session_affinity: the worker of the session's key by rendezvous hashing over the names, so that
 *   a worker that comes or goes moves only its own
 *       sessions; the `session_fallback` policy for requests without a key, and when that worker
 *       has more tokens in flight than session_overload times the larger of the workers' mean (this
 *       request included) and this request.
 *
 * Equal costs go round. Draws come from one generator: equal seeds, equal choices. */
#ifndef ROUTER_POLICY_H
#define ROUTER_POLICY_H

#include "prefixes.h"

#include <stdint.h>

struct worker_record;

enum place_stage { PLACE_PREFILL, PLACE_DECODE, PLACE_STAGES };
enum place_reason {
	PLACE_CHOSEN,
	PLACE_ONLY,
	PLACE_PINNED,
	PLACE_SESSION,
	PLACE_NO_SESSION,
	PLACE_OVERLOADED,
	PLACE_REASONS
};

struct policy_case;
struct option {
	struct worker_record *w;
	unsigned class; /* hard constraints, place.c */
	/* of the sequence, that the worker is thought to hold or to have soon */
	uint32_t hit_tokens;
	/* of them: that it would read back from its host's storage */
	uint32_t memory_tokens, disk_tokens;
	double cost; /* lower is better */
};
typedef void policy_fn(struct policy_case *c, struct option *o, unsigned n);

struct policy {
	const char *name;
	policy_fn *fn;
};
extern const struct policy policies[];
enum {
	POLICY_KV_AWARE,
	POLICY_LEAST_TOKENS,
	POLICY_LEAST_REQUESTS,
	POLICY_POWER_OF_TWO,
	POLICY_ROUND_ROBIN,
	POLICY_RANDOM,
	POLICY_SESSION,
	POLICIES
};
#define POLICY_CHOICES \
	"kv_aware|least_tokens|least_requests|power_of_two|round_robin|random|session_affinity"
#define POLICY_CHOICES_LOAD "kv_aware|least_tokens|least_requests|power_of_two|round_robin|random"

struct policy_opts {
	unsigned policy[PLACE_STAGES], session_fallback; /* POLICY_* */
	double kv_load_weight, kv_restore_weight, kv_disk_weight, kv_transfer_weight, kv_room_weight,
		session_overload;
	uint32_t kv_sequence_tokens;
	uint64_t kv_predict_us;
};

/* What is to be placed now, for the policies. */
struct policy_case {
	const struct policy_opts *opts;
	uint64_t *draw; /* state of the generator */
	enum place_stage stage;
	uint32_t tokens;          /* that the attempt begins with */
	uint64_t session;         /* 0: none */
	enum place_reason reason; /* in: CHOSEN; out: why that one */
};

void policy_defaults(struct policy_opts *o);
const char *place_reason_name(enum place_reason reason);
unsigned policy_find(const char *name); /* a name that is in the table */
int policy_uses_prefixes(const struct policy_opts *o);
/* What a token that this worker would read from tier 1 (memory) or 2 (disk) weighs against one that
 * it computes: by the rates in its heartbeats, at most 1; where it has not measured both yet,
 * kv_restore_weight or kv_disk_weight. ret_measured, if asked for: which of them. */
double policy_read_weight(const struct policy_opts *o, const struct worker_record *w, unsigned tier,
                          int *ret_measured);
uint64_t policy_draw(uint64_t *state);
/* of a session, or of a name; never 0; the same in every process */
uint64_t policy_key(const char *text, size_t len);

#endif
