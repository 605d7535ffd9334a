/* policy.h - compares the workers that may take an attempt: one table of policies, chosen
 * separately for prefill and decode.
 *
 * A policy only computes costs; place.c decides which workers may be chosen. kv_aware's costs are
 * in tokens:
 *
 *   kv_aware, prefill:  uncached + memory weight * in memory + disk weight * on disk +
 *                       kv_load_weight * backlog
 *       uncached: tokens of this prompt that neither the worker nor its host's storage has; in
 *       memory, on disk: tokens that only storage has, weighted by the time to read a token divided
 *       by the time to compute it, as measured by the worker (policy_read_weight); backlog: the
 *       same sum over the prompts that were sent there and are not computed yet. A mixed worker's
 *       decode load (context + KV_SEQUENCE_TOKENS * sequences) is added to its backlog.
 *   kv_aware, decode:   kv_transfer_weight * missing + context + (tokens + KV_SEQUENCE_TOKENS) *
 *                       sequences + KV_ROOM_WEIGHT * lacking
 *       missing counts twice for a worker of another site: its blocks go over the network. So a
 *       worker of the same site is preferred unless it has much more to do.
 *       A step reads the context of every sequence in it. In units of the time that one token of
 *       context adds to one sequence's step, `context` is the delay by the others, and tokens *
 *       sequences the delay of the others. missing: tokens whose blocks must be sent; context,
 *       sequences: ours as placed there, and those of other routers by its last heartbeat; lacking:
 *       tokens without a free block, by its last heartbeat and what was placed since.
 *   least_tokens: fewest tokens in flight. least_requests: fewest requests. power_of_two: draws two
 *   workers and takes the one with fewer tokens in flight. round_robin: the one chosen longest ago.
 *   random: any.
 *   session_affinity: rendezvous hashing of the session's key over the workers' names, so that a
 *       worker that comes or goes moves only its own sessions. kv_aware is used for requests
 *       without a key, and when that worker has more tokens in flight than twice the larger of the
 *       workers' mean (this request included) and this request.
 *
 * Among equal costs, a decode worker of the prefill worker's site is taken, and of several the
 * one chosen longest ago. Random numbers come from one generator. */
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
	/* tokens of the prompt that the worker is expected to have */
	uint32_t hit_tokens;
	/* the part of hit_tokens that it would read from its host's storage */
	uint32_t memory_tokens, disk_tokens;
	int is_far;  /* to decode: of another site than the prefill worker */
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

/* Cost of a sequence at a decode worker, in tokens, on top of its context and the new one's: a
 * step's time has a part that is the sequence's, however short it is. */
#define KV_SEQUENCE_TOKENS 256u

/* POLICY_* are in the order of the choices. */
struct policy_opts {
	unsigned policy[PLACE_STAGES], session_fallback; /* POLICY_* */
	double kv_load_weight, kv_transfer_weight, session_overload;
	uint64_t kv_predict_us;
};

/* One placement, for the policies. */
struct policy_case {
	const struct policy_opts *opts;
	uint64_t *draw; /* state of the generator */
	enum place_stage stage;
	uint32_t tokens;          /* prompt and answer so far */
	uint64_t session;         /* 0: none */
	enum place_reason reason; /* in: CHOSEN; out: the reason for the choice */
};

const char *place_reason_name(enum place_reason reason);
int policy_uses_prefixes(const struct policy_opts *o);
/* Time to read a token from tier 1 (memory) or 2 (disk) divided by the time to compute one: by the
 * rates in the worker's heartbeats, at most 1; a constant while it has not measured both.
 * *ret_measured, if asked for: whether it has. */
double policy_read_weight(const struct worker_record *w, unsigned tier, int *ret_measured);
uint64_t policy_draw(uint64_t *state);
/* hash of a session or a name; never 0; the same in every process */
uint64_t policy_key(const char *text, size_t len);

#endif
