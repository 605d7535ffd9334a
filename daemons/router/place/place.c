/* place.c - see place.h. Rules that hold for every policy are here; policy.c compares the workers
 * that are left.
 *
 * A prefill worker is chosen only together with a decode worker whose model, numerics and layout
 * are equal, because the decode worker must be able to use its KV bit for bit, and that it can
 * hand KV over to (worker_reaches) if the sequence is not too long for that. Among equal
 * candidates, those of its own site come first. Mixed workers do it all. For an embedding or a
 * single token any of them is enough. Without a usable pair, or when all prefill and mixed workers
 * are stuck or broken, decode workers do it all too. Whatever the policy is, workers with one of
 * these are chosen last, the first being the worst: an open breaker, stuck, failed the last try,
 * other numerics than the last try. A new attempt waits rather than go to a worker that has enough
 * to start with, or to one worse than that; and when its caller has nearly all seats where others
 * are about. A prefill worker counts as stuck, broken or busy if all
 * its decode workers are. An attempt whose hand-overs have failed goes to a worker that does it
 * all, if there is one. A decode worker that is stuck or whose breaker is open is a candidate only
 * when there is no other. */
#include "place.h"
#include "util/err.h"
#include "util/fair.h"
#include "util/least.h"
#include "util/log.h"

#include <stdio.h>
#include <string.h>

#define WAIT_MAX_US 300000000u

/* attempts that a worker may always have to start with; a prefill worker has as many more for each
 * decode worker, since one without room holds up its attempts there */
#define STARTING_MIN 4u
#define STARTING_STEPS 2u /* that it has tokens for: the one that runs, and the next */

enum class {
	CLASS_NUMERICS = 1,
	CLASS_AVOIDED = 2,
	CLASS_BUSY = 4,
	CLASS_STUCK = 8,
	CLASS_BROKEN = 16,
	CLASS_NONE = 32 /* not a worker for it */
};

/* Has w a free sequence slot and enough free blocks, by its last heartbeat and what was placed
 * there since? */
static int has_room(const struct worker_record *w, uint32_t tokens)
{
	uint64_t need = w->block_tokens ? tokens / w->block_tokens + 1 : 0;
	if (w->max_sequences && w->requests + w->other_sequences >= w->max_sequences)
		return 0;
	return !w->has_heartbeat || !w->blocks || w->beat.blocks_free >= w->promised_blocks + need;
}

/* Has w enough to start with? More would only wait there, first in, first out. What it has yet to
 * compute keeps prompts waiting, and no sequence that is handed over to it. */
static int is_busy(const struct registry *g, const struct worker_record *w, enum place_stage stage,
                   const struct place_wish *wish)
{
	int prefills = w->role == ROLE_PREFILL;
	uint32_t least_n = STARTING_MIN * (1 + (prefills ? g->n_decode : 0));
	if (!wish->in_turn || w->starting < least(least_n, w->window))
		return 0;
	return w->starting >= w->window || (!prefills && !has_room(w, wish->tokens)) ||
	       (stage == PLACE_PREFILL && w->step_tokens &&
	        w->backlog_tokens >= (uint64_t)STARTING_STEPS * w->step_tokens);
}

/* May its caller have one more sequence where others want some too? Sequences that the workers have
 * slots for are counted, whichever of them it would go to. */
static int has_share(const struct registry *g, const struct place_wish *wish)
{
	uint64_t seats = 0, taken = 0;
	if (!wish->in_turn || wish->prefill_only || !wish->seats)
		return 1;
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		if (w->role == ROLE_PREFILL || !worker_is_up(w) || worker_drains(w))
			continue;
		seats += w->max_sequences;
		taken += least(w->requests + w->other_sequences, w->max_sequences);
	}
	return !seats || fair_share(wish->seats, seats - taken);
}

/* May w take over an attempt that leaves another worker? */
static int takes_over(const struct registry *g, const struct worker_record *w,
                      const struct place_wish *wish)
{
	if (w == wish->leaves || worker_is_stuck(g, w, wish->now_us) ||
	    !breaker_takes(&w->breaker, &g->breaker, wish->now_us))
		return 0;
	return !wish->wants_room || w->role == ROLE_PREFILL || has_room(w, wish->tokens);
}

/* A prefill worker holds the prompt alone. */
static int fits(const struct worker_record *w, const struct place_wish *wish)
{
	uint32_t n = w->role == ROLE_PREFILL ? wish->tokens : wish->total_tokens,
			 longest = worker_longest(w);
	return (!longest || n <= longest) &&
	       (!w->context_tokens || wish->total_tokens <= w->context_tokens);
}

static int usable(const struct registry *g, const struct worker_record *w,
                  const struct place_wish *wish)
{
	if (wish->leaves && !takes_over(g, w, wish))
		return 0;
	return worker_is_up(w) && !worker_drains(w) && fits(w, wish);
}

static int compatible(const struct worker_record *p, const struct worker_record *d)
{
	return memcmp(&p->prefix.hash, &d->prefix.hash, sizeof p->prefix.hash) == 0;
}

static unsigned class_of(const struct registry *g, const struct worker_record *w,
                         enum place_stage stage, const struct place_wish *wish, uint64_t now_us)
{
	unsigned c = breaker_takes(&w->breaker, &g->breaker, now_us) ? 0 : CLASS_BROKEN;
	if (worker_is_stuck(g, w, now_us))
		c |= CLASS_STUCK;
	if (is_busy(g, w, stage, wish))
		c |= CLASS_BUSY;
	if (wish->avoid && strcmp(w->name, wish->avoid) == 0)
		c |= CLASS_AVOIDED;
	if (wish->numerics && strcmp(w->numerics, wish->numerics) != 0)
		c |= CLASS_NUMERICS;
	return c;
}

/* The position of w in the pinned list; -1: not in it. 0 if there is no list. */
static int pinned_decode(const struct place_pin *pin, const struct worker_record *w)
{
	if (!pin || !pin->n_decode)
		return 0;
	for (unsigned i = 0; i < pin->n_decode; i++)
		if (strcmp(pin->decode[i], w->name) == 0)
			return (int)i;
	return -1;
}

/* Is the sequence, so far, short enough to be handed over by w or to it? */
static int may_hand_over(const struct worker_record *w, const struct place_wish *wish)
{
	return !w->handover_tokens || wish->tokens <= w->handover_tokens;
}

static int decodes_for(const struct registry *g, const struct worker_record *p,
                       const struct worker_record *d, const struct place_wish *wish,
                       uint64_t now_us)
{
	return d->role == ROLE_DECODE && usable(g, d, wish) && compatible(p, d) &&
	       worker_reaches(p, d) && may_hand_over(p, wish) && may_hand_over(d, wish) &&
	       pinned_decode(wish->pin, d) >= 0 &&
	       (wish->pin || registry_handover_takes(g, p, d, now_us));
}

/* The lowest class of the decode workers for p; CLASS_NONE: there is none. */
static unsigned decoder_class(const struct registry *g, const struct worker_record *p,
                              const struct place_wish *wish, uint64_t now_us)
{
	unsigned r = CLASS_NONE;
	list_each(it, &g->workers) {
		const struct worker_record *d = list_entry(it, struct worker_record, node);
		if (r && decodes_for(g, p, d, wish, now_us))
			r = (unsigned)least(r, class_of(g, d, PLACE_DECODE, wish, now_us));
	}
	return r;
}

/* The class of w as the worker that gets Submit; CLASS_NONE: it may not. A prefill worker is as
 * busy, stuck or broken as the best decode worker for it. roles: bits, 1 << role */
static unsigned class_as_first(const struct registry *g, unsigned roles,
                               const struct worker_record *w, const struct place_wish *wish,
                               uint64_t now_us)
{
	const struct place_pin *pin = wish->pin;
	if (!(roles & 1u << w->role) || !usable(g, w, wish) ||
	    (wish->hidden && w->hidden != wish->hidden))
		return CLASS_NONE;
	if (pin && *pin->prefill && strcmp(pin->prefill, w->name) != 0)
		return CLASS_NONE;
	if (pin && pin->n_decode && w->role != ROLE_PREFILL &&
	    (*pin->prefill || pinned_decode(pin, w) < 0))
		return CLASS_NONE;
	unsigned own = class_of(g, w, PLACE_PREFILL, wish, now_us), best;
	if (w->role != ROLE_PREFILL || wish->prefill_only)
		return own;
	best = decoder_class(g, w, wish, now_us);
	return best == CLASS_NONE ? best : own | (best & (CLASS_BUSY | CLASS_STUCK | CLASS_BROKEN));
}

/* How much of the prompt the worker is known to hold. The last token is always computed. Only
 * prefill workers read from storage. */
static void look_up(struct option *o, const struct place_wish *wish, uint64_t now_us)
{
	uint32_t bt = o->w->prefix.block_tokens;
	size_t n, most = wish->tokens && bt ? (wish->tokens - 1) / bt : 0;
	const uint64_t *hashes = prefixes_find(wish->prefixes, &o->w->prefix, &n);
	struct kv_match m = {0};
	if (hashes && o->w->index)
		kv_index_match(o->w->index, hashes, n < most ? n : most, now_us, &m);
	o->hit_tokens = m.device * bt;
	if (o->w->role != ROLE_PREFILL)
		return;
	o->memory_tokens = m.memory * bt;
	o->disk_tokens = m.disk * bt;
	o->hit_tokens = m.blocks * bt;
}

static unsigned all_first(struct registry *g, unsigned roles, const struct place_wish *wish,
                          uint64_t now_us)
{
	unsigned n = 0;
	list_each(it, &g->workers) {
		struct worker_record *w = list_entry(it, struct worker_record, node);
		unsigned class = class_as_first(g, roles, w, wish, now_us);
		if (class != CLASS_NONE)
			g->options[n++] = (struct option){.w = w, .class = class};
	}
	return n;
}

static unsigned all_decoders(struct registry *g, const struct worker_record *p,
                             const struct place_wish *wish, uint64_t now_us)
{
	unsigned n = 0;
	list_each(it, &g->workers) {
		struct worker_record *d = list_entry(it, struct worker_record, node);
		if (decodes_for(g, p, d, wish, now_us))
			g->options[n++] = (struct option){.w = d,
			                                  .class = class_of(g, d, PLACE_DECODE, wish, now_us),
			                                  .is_far = !worker_is_near(p, d)};
	}
	return n;
}

static unsigned lowest_class(const struct option *o, unsigned n)
{
	unsigned least = o[0].class;
	for (unsigned i = 1; i < n; i++)
		least = o[i].class < least ? o[i].class : least;
	return least;
}

/* Moves options of the lowest class to the front; returns how many. */
static unsigned best_class(struct option *o, unsigned n)
{
	unsigned least = lowest_class(o, n), k = 0;
	for (unsigned i = 0; i < n; i++)
		if (o[i].class == least) {
			struct option had = o[k];
			o[k++] = o[i];
			o[i] = had;
		}
	return k;
}

static int cheaper(const struct option *a, const struct option *b)
{
	if (a->cost != b->cost)
		return a->cost < b->cost;
	return a->is_far != b->is_far ? a->is_far < b->is_far : a->w->placed_seq < b->w->placed_seq;
}

/* Sorts the m best of o[0..n) to the front. */
static void order(struct option *o, unsigned n, unsigned m)
{
	for (unsigned i = 0; i < m && i < n; i++)
		for (unsigned k = i + 1; k < n; k++)
			if (cheaper(&o[k], &o[i])) {
				struct option had = o[i];
				o[i] = o[k];
				o[k] = had;
			}
}

static void log_options(const struct place_wish *wish, const struct policy_case *c,
                        const struct option *o, unsigned n)
{
	static const char *const stages[] = {"prefill", "decode"};
	char text[512] = "";
	size_t at = 0;
	if (log_threshold() > LOG_DEBUG || !wish->id)
		return;
	for (unsigned i = 0; i < n && at + 1 < sizeof text; i++) {
		int k = snprintf(text + at, sizeof text - at, "%s%s:%.0f/%u", i ? "," : "", o[i].w->name,
		                 o[i].cost, o[i].hit_tokens);
		at += k > 0 ? (size_t)k : 0;
	}
	log_req(LOG_DEBUG, wish->id, "placed", "stage=%s policy=%s reason=%s worker=%s cost_hits=%s",
	        stages[c->stage], policies[c->opts->policy[c->stage]].name,
	        place_reason_name(c->reason), o[0].w->name, text);
}

/* Sorts the m best of g->options[0..n) to the front, one class after the other; returns how many.
 * Prefixes are looked up for these classes alone. The first class's reason is counted. */
static unsigned rank(struct registry *g, enum place_stage stage, const struct place_wish *wish,
                     unsigned n, unsigned m, uint64_t now_us)
{
	struct policy_case first = {0};
	unsigned done = 0;
	while (done < n && done < m) {
		struct option *o = g->options + done;
		unsigned k = best_class(o, n - done);
		struct policy_case c = {.opts = &g->policy,
		                        .draw = &g->draw,
		                        .stage = stage,
		                        .tokens = wish->tokens,
		                        .session = wish->session};
		if (done && o[0].class & (CLASS_BROKEN | CLASS_STUCK))
			break;
		for (unsigned i = 0; wish->prefixes && i < k; i++)
			look_up(&o[i], wish, now_us);
		if (stage == PLACE_PREFILL && wish->pin && *wish->pin->prefill)
			c.reason = PLACE_PINNED;
		else if (k == 1)
			c.reason = PLACE_ONLY;
		else
			policies[g->policy.policy[stage]].fn(&c, o, k);
		order(o, k, m - done);
		if (!done)
			first = c;
		done += k;
	}
	g->placed[stage][g->policy.policy[stage]][first.reason]++;
	log_options(wish, &first, g->options, done < 8 ? done : 8);
	return done < m ? done : m;
}

/* The answers of a request share its prompt: the worker that computes it for the first answer has
 * it for the others, so it is chosen whatever the policy is. Only prefill workers: a worker that
 * also decodes would be slower with many answers. */
static void prefer_beside(struct registry *g, const struct place_wish *wish, unsigned n)
{
	struct option *o = g->options;
	for (unsigned i = 1; wish->beside && i < n; i++) {
		if (o[i].w->role != ROLE_PREFILL || o[i].class != o[0].class ||
		    strcmp(o[i].w->name, wish->beside) != 0)
			continue;
		struct option had = o[0];
		o[0] = o[i];
		o[i] = had;
		return;
	}
}

/* Sorts pinned workers by the order of the list. */
static void rank_pinned(struct registry *g, const struct place_pin *pin, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		g->options[i].cost = pinned_decode(pin, g->options[i].w);
	order(g->options, n, n);
	g->placed[PLACE_DECODE][g->policy.policy[PLACE_DECODE]][PLACE_PINNED]++;
}

/* The decode workers for p, best first. */
static unsigned decoders(struct registry *g, const struct worker_record *p,
                         const struct place_wish *wish, uint64_t now_us, struct worker_record **out)
{
	unsigned n = all_decoders(g, p, wish, now_us);
	if (wish->pin && wish->pin->n_decode)
		rank_pinned(g, wish->pin, n);
	else
		n = rank(g, PLACE_DECODE, wish, n, PLACE_CANDIDATES_MAX, now_us);
	for (unsigned i = 0; i < n; i++)
		out[i] = g->options[i].w;
	return n;
}

/* w will hold these blocks soon, which counts for prompts with the same beginning. wait_us: time
 * until w begins with them. keeps: w decodes */
static void remember(struct registry *g, struct worker_record *w, const struct place_wish *wish,
                     int keeps, uint64_t wait_us, uint64_t now_us)
{
	size_t n;
	const uint64_t *hashes = prefixes_find(wish->prefixes, &w->prefix, &n);
	w->placed_seq = ++g->place_seq;
	breaker_placed(&w->breaker, now_us);
	if (hashes && w->index && g->policy.kv_predict_us)
		kv_index_expect(w->index, hashes, n, now_us + wait_us + g->policy.kv_predict_us);
	if (keeps && w->block_tokens)
		w->promised_blocks += wish->tokens / w->block_tokens + 1;
}

static const unsigned first_roles[] = {1u << ROLE_PREFILL | 1u << ROLE_MIXED, 1u << ROLE_DECODE};
#define ROLES_ALONE (1u << ROLE_MIXED | 1u << ROLE_DECODE)

int place_possible(const struct registry *g, const struct place_wish *wish)
{
	for (unsigned i = 0; i < 2; i++)
		list_each(it, &g->workers)
			if (class_as_first(g, first_roles[i], list_entry(it, struct worker_record, node), wish,
			                   wish->now_us) != CLASS_NONE)
				return 1;
	return 0;
}

int place_may_return(const struct registry *g, const struct place_wish *wish, uint64_t within_us)
{
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		int restarts = worker_is_up(w) ? w->beat.ending : wish->now_us - w->down_us < within_us;
		if (within_us && restarts && !w->drained && fits(w, wish) && !wish->pin &&
		    (!wish->hidden || w->hidden == wish->hidden) &&
		    (wish->prefill_only || w->role != ROLE_PREFILL))
			return 1;
	}
	return 0;
}

int place_is_restricted(const struct registry *g, const struct place_wish *wish)
{
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		int hands_over = w->role != ROLE_MIXED && !wish->prefill_only;
		if (!worker_is_up(w) || worker_drains(w))
			continue;
		if (!fits(w, wish) || (wish->hidden && w->hidden != wish->hidden) ||
		    (hands_over && !may_hand_over(w, wish)))
			return 1;
	}
	return wish->pin != NULL || !has_share(g, wish);
}

static int any_takes(const struct registry *g, unsigned roles)
{
	struct place_wish wish = {.tokens = 1, .total_tokens = 1};
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		if (roles >> w->role & 1 && usable(g, w, &wish))
			return 1;
	}
	return 0;
}

const char *place_missing(const struct registry *g, uint64_t now_us)
{
	struct place_wish wish = {.tokens = 1, .total_tokens = 1, .now_us = now_us};
	if (place_possible(g, &wish))
		return NULL;
	if (!g->n_up)
		return "no worker";
	if (!any_takes(g, ~0u))
		return "all workers are draining";
	return any_takes(g, 1u << ROLE_DECODE)
	           ? "no decode worker has the prefill workers' model, numerics and KV layout"
	           : "no decode worker";
}

/* No prefill or mixed worker can take it, or all n that can are stuck or broken: decode workers
 * that are neither do it all. The options are theirs then; else they stay. Returns how many. */
static unsigned lone_decoders(struct registry *g, const struct place_wish *wish, unsigned n,
                              uint64_t now_us)
{
	unsigned k = all_first(g, first_roles[1], wish, now_us);
	if (!n || (k && lowest_class(g->options, k) < CLASS_STUCK))
		return k;
	return all_first(g, first_roles[0], wish, now_us);
}

/* Time until w has computed its backlog, at its measured rate; bounded. */
static uint64_t backlog_us(const struct worker_record *w)
{
	double us = w->prompt_rate > 0 ? (double)w->backlog_tokens * 1e6 / w->prompt_rate : 0;
	return us < WAIT_MAX_US ? (uint64_t)us : WAIT_MAX_US;
}

/* Is the sequence longer than every worker that is up takes? */
static int too_long_for_all(const struct registry *g, const struct place_wish *wish)
{
	uint32_t most = wish->hidden ? registry_embedding_max(g) : registry_context(g);
	return most && wish->total_tokens > most;
}

static uint32_t work_of(const struct place_wish *wish, const struct option *o)
{
	double reads = policy_read_weight(o->w, 1, NULL) * o->memory_tokens +
	               policy_read_weight(o->w, 2, NULL) * o->disk_tokens;
	return wish->tokens - o->hit_tokens + (uint32_t)reads;
}

int place_choose(struct registry *g, const struct place_wish *wish, uint64_t now_us,
                 struct placement *ret)
{
	struct placement p = {0};
	size_t n_hashes;
	unsigned n = wish->alone ? all_first(g, ROLES_ALONE, wish, now_us) : 0;
	if (!n) {
		n = all_first(g, first_roles[0], wish, now_us);
		if (!n || lowest_class(g->options, n) >= CLASS_STUCK)
			n = lone_decoders(g, wish, n, now_us);
	}
	if (!n)
		return too_long_for_all(g, wish) ? ERR_FULL : ERR_NOTFOUND;
	if (lowest_class(g->options, n) & CLASS_BUSY || !has_share(g, wish))
		return PLACE_LATER;
	rank(g, PLACE_PREFILL, wish, n, 1, now_us);
	prefer_beside(g, wish, n);
	p.first = g->options[0].w;
	p.hit_tokens = g->options[0].hit_tokens;
	p.stored_tokens = g->options[0].memory_tokens + g->options[0].disk_tokens;
	p.work_tokens = work_of(wish, &g->options[0]);
	p.predicted = prefixes_find(wish->prefixes, &p.first->prefix, &n_hashes) != NULL;
	if (p.first->role == ROLE_PREFILL && !wish->prefill_only)
		p.n_decode = decoders(g, p.first, wish, now_us, p.decode);
	uint64_t wait_us = backlog_us(p.first);
	remember(g, p.first, wish, p.first->role != ROLE_PREFILL, wait_us, now_us);
	if (p.n_decode) {
		remember(g, p.decode[0], wish, 1, wait_us, now_us);
		registry_handover_tried(g, p.first, p.decode[0], now_us);
	}
	*ret = p;
	return 0;
}
