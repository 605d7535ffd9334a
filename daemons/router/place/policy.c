/* policy.c - see policy.h. Each policy fills o[0..n).cost, n > 0, for options of one class; nothing
 * fails. */
#include "policy.h"
#include "registry.h"

#include <sodium.h>
#include <string.h>

#define FAR_WEIGHT 2 /* of tokens that are sent to another site */
/* Cost of a token that is read from storage, relative to computing it, until the worker has
 * measured its rates, which takes a few reads: a guess that tries reading. */
#define KV_MEMORY_WEIGHT 0.25
#define KV_DISK_WEIGHT 0.5
/* Cost of a token for which a decode worker has no room, relative to a token of context there: it
 * waits for other sequences to end, or preempts one, whose tokens are computed or read again. */
#define KV_ROOM_WEIGHT 4

/* splitmix64 */
uint64_t policy_draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint64_t policy_key(const char *text, size_t len)
{
	static const unsigned char key[crypto_shorthash_KEYBYTES] = "pdserve session";
	unsigned char out[crypto_shorthash_BYTES];
	uint64_t v;
	crypto_shorthash(out, (const unsigned char *)text, len, key);
	memcpy(&v, out, sizeof v);
	return v ? v : 1;
}

/* --- by load ------------------------------------------------------------- */

static void least_tokens(struct policy_case *c, struct option *o, unsigned n)
{
	(void)c;
	for (unsigned i = 0; i < n; i++)
		o[i].cost = (double)o[i].w->tokens_in_flight;
}

static void least_requests(struct policy_case *c, struct option *o, unsigned n)
{
	(void)c;
	for (unsigned i = 0; i < n; i++)
		o[i].cost = o[i].w->requests;
}

static void round_robin(struct policy_case *c, struct option *o, unsigned n)
{
	(void)c;
	for (unsigned i = 0; i < n; i++)
		o[i].cost = (double)o[i].w->placed_seq;
}

static void random_one(struct policy_case *c, struct option *o, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		o[i].cost = (double)(policy_draw(c->draw) >> 11);
}

/* The two that were drawn come before all others; both groups are sorted by tokens. */
static void power_of_two(struct policy_case *c, struct option *o, unsigned n)
{
	unsigned a = (unsigned)(policy_draw(c->draw) % n),
			 b = n > 1 ? (unsigned)(policy_draw(c->draw) % (n - 1)) : a;
	b += n > 1 && b >= a;
	for (unsigned i = 0; i < n; i++)
		o[i].cost = (double)o[i].w->tokens_in_flight + (i == a || i == b ? 0 : 1e15);
}

/* --- by cached blocks ---------------------------------------------------- */

static double sequences_at(const struct worker_record *w)
{
	return (double)w->requests + (double)w->other_sequences;
}

/* Of each step there: the contexts of our sequences as they are now, and those of other routers by
 * the last heartbeat, and a part for each sequence. */
static double decode_load(const struct worker_record *w)
{
	return (double)(w->tokens_in_flight - w->backlog_tokens) + (double)w->other_tokens +
	       KV_SEQUENCE_TOKENS * sequences_at(w);
}

/* Tokens for which w has no free block. Cached blocks of this prompt count as free until they are
 * matched, so the whole sequence needs room, not only its missing part. */
static double lacking(const struct policy_case *c, const struct worker_record *w)
{
	if (!w->blocks || !w->has_heartbeat)
		return 0;
	double free_tokens = ((double)w->beat.blocks_free - (double)w->promised_blocks) *
	                     w->block_tokens,
		   need = (double)c->tokens + w->block_tokens;
	return need > free_tokens ? need - (free_tokens > 0 ? free_tokens : 0) : 0;
}

double policy_read_weight(const struct worker_record *w, unsigned tier, int *ret_measured)
{
	uint32_t compute = w->beat.compute_tokens_per_s,
			 read = tier == 1 ? w->beat.memory_tokens_per_s : w->beat.disk_tokens_per_s;
	int measured = compute && read;
	if (ret_measured)
		*ret_measured = measured;
	if (!measured)
		return tier == 1 ? KV_MEMORY_WEIGHT : KV_DISK_WEIGHT;
	return compute < read ? (double)compute / read : 1;
}

static void kv_aware(struct policy_case *c, struct option *o, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		const struct worker_record *w = o[i].w;
		double missing = (double)(c->tokens - o[i].hit_tokens);
		if (c->stage == PLACE_PREFILL)
			o[i].cost = missing + policy_read_weight(w, 1, NULL) * o[i].memory_tokens +
			            policy_read_weight(w, 2, NULL) * o[i].disk_tokens +
			            c->opts->kv_load_weight * ((double)w->backlog_tokens +
			                                       (w->role == ROLE_PREFILL ? 0 : decode_load(w)));
		else
			/* A step's time grows with all context that it reads, so this sequence is slowed by the
			 * context there, and each sequence there by the context of this one. */
			o[i].cost = c->opts->kv_transfer_weight * missing * (o[i].is_far ? FAR_WEIGHT : 1) +
			            decode_load(w) + c->tokens * sequences_at(w) +
			            KV_ROOM_WEIGHT * lacking(c, w);
	}
}

/* --- by session ---------------------------------------------------------- */

static int overloaded(const struct policy_case *c, const struct option *o, unsigned n, unsigned at)
{
	double mean = (double)c->tokens / n;
	for (unsigned i = 0; i < n; i++)
		mean += (double)o[i].w->tokens_in_flight / n;
	return n > 1 && (double)o[at].w->tokens_in_flight >
	                    c->opts->session_overload * (mean > c->tokens ? mean : c->tokens);
}

static void session_affinity(struct policy_case *c, struct option *o, unsigned n)
{
	policies[c->opts->session_fallback].fn(c, o, n);
	if (!c->session) {
		c->reason = PLACE_NO_SESSION;
		return;
	}
	unsigned at = 0;
	uint64_t most = 0;
	for (unsigned i = 0; i < n; i++) {
		uint64_t mix = c->session ^ o[i].w->name_key, weight = policy_draw(&mix);
		if (weight >= most) {
			most = weight;
			at = i;
		}
	}
	if (overloaded(c, o, n, at)) {
		c->reason = PLACE_OVERLOADED;
		return;
	}
	c->reason = PLACE_SESSION;
	o[at].cost = -1;
}

const struct policy policies[] = {
	[POLICY_KV_AWARE] = {"kv_aware", kv_aware},
	[POLICY_LEAST_TOKENS] = {"least_tokens", least_tokens},
	[POLICY_LEAST_REQUESTS] = {"least_requests", least_requests},
	[POLICY_POWER_OF_TWO] = {"power_of_two", power_of_two},
	[POLICY_ROUND_ROBIN] = {"round_robin", round_robin},
	[POLICY_RANDOM] = {"random", random_one},
	[POLICY_SESSION] = {"session_affinity", session_affinity},
};

const char *place_reason_name(enum place_reason reason)
{
	static const char *const names[] = {"chosen",  "only",       "pinned",
	                                    "session", "no_session", "overloaded"};
	return names[reason];
}

int policy_uses_prefixes(const struct policy_opts *o)
{
	for (unsigned i = 0; i < PLACE_STAGES; i++)
		if (o->policy[i] == POLICY_KV_AWARE ||
		    (o->policy[i] == POLICY_SESSION && o->session_fallback == POLICY_KV_AWARE))
			return 1;
	return 0;
}
