/* place.c - see place.h. Rules that hold for every policy are here; policy.c compares the workers
 * that are left.
 *
 * A prefill worker is chosen only together with a decode worker whose model, numerics and layout
 * are equal, because the decode worker must be able to use its KV bit for bit, and to which it can
 * hand KV over (worker_reaches) if the sequence is not too long for that. Among equal
 * candidates, those of its own site come first. Mixed workers do it all. For an embedding or a
 * single token any of them is enough. Without a usable pair, or when all prefill and mixed workers
 * are stuck or broken, decode workers do it all too. Whatever the policy is, workers with one of
 * these are chosen last, the first being the worst: an open breaker, stuck, busy, failed the last
 * try, other numerics than the last try. A new attempt waits rather than go to a worker that has
 * enough to start with or is worse than that, and while its caller has its share of the seats that
 * other callers want too. A prefill worker counts as stuck, broken or busy if all its decode
 * workers are. An attempt whose hand-overs have failed goes to a worker that does it all, if there
 * is one. A decode worker that is stuck or whose breaker is open is a candidate only
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

/* Has w a free sequence slot and enough free blocks, after its last heartbeat and the placements
 * since? */
static int worker_has_room(const struct worker_record *w, uint32_t tokens)
{
	uint64_t need = w->block_tokens ? tokens / w->block_tokens + 1 : 0;
	if (w->max_sequences && w->requests + w->other_sequences >= w->max_sequences)
		return 0;
	return !w->has_heartbeat || !w->blocks || w->beat.blocks_free >= w->promised_blocks + need;
}

/* Has w enough attempts that have not started? More would only wait there, first in, first out. Its
 * backlog delays prompts, but no sequence that is handed over to it. */
static int is_busy(const struct registry *g, const struct worker_record *w, enum place_stage stage,
                   const struct place_query *query)
{
	int prefills = w->role == ROLE_PREFILL;
	uint32_t least_n = STARTING_MIN * (1 + (prefills ? g->n_decode : 0));
	if (!query->in_turn || w->starting < least(least_n, w->window))
		return 0;
	return w->starting >= w->window || (!prefills && !worker_has_room(w, query->tokens)) ||
	       (stage == PLACE_PREFILL && w->step_tokens &&
	        w->backlog_tokens >= (uint64_t)STARTING_STEPS * w->step_tokens);
}

/* May its caller have one more sequence, if other callers want some too? The share is one of all
 * workers' sequence slots, whichever worker the attempt would go to. */
static int has_share(const struct registry *g, const struct place_query *query)
{
	uint64_t seats = 0, taken = 0;
	if (!query->in_turn || query->prefill_only || !query->seats)
		return 1;
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		if (w->role == ROLE_PREFILL || !worker_is_up(w) || worker_drains(w))
			continue;
		seats += w->max_sequences;
		taken += least(w->requests + w->other_sequences, w->max_sequences);
	}
	return !seats || fair_share(query->seats, seats - taken);
}

/* A prefill worker holds only the prompt; another one holds the answer, too. */
static int fits(const struct worker_record *w, const struct place_query *query)
{
	uint32_t n = w->role == ROLE_PREFILL ? query->tokens : query->total_tokens,
			 longest = worker_longest(w);
	return (!longest || n <= longest) &&
	       (!w->context_tokens || query->total_tokens <= w->context_tokens);
}

static int usable(const struct registry *g, const struct worker_record *w,
                  const struct place_query *query)
{
	if (!worker_is_up(w) || worker_drains(w) || !fits(w, query))
		return 0;
	if (!query->leaves)
		return 1;
	if (w == query->leaves || worker_is_stuck(g, w, query->now_us) ||
	    !breaker_takes(&w->breaker, &g->breaker, query->now_us))
		return 0;
	return !query->wants_room || w->role == ROLE_PREFILL || worker_has_room(w, query->tokens);
}

static unsigned class_of(const struct registry *g, const struct worker_record *w,
                         enum place_stage stage, const struct place_query *query, uint64_t now_us)
{
	unsigned c = breaker_takes(&w->breaker, &g->breaker, now_us) ? 0 : CLASS_BROKEN;
	if (worker_is_stuck(g, w, now_us))
		c |= CLASS_STUCK;
	if (is_busy(g, w, stage, query))
		c |= CLASS_BUSY;
	if (query->avoid && strcmp(w->name, query->avoid) == 0)
		c |= CLASS_AVOIDED;
	if (query->numerics && strcmp(w->numerics, query->numerics) != 0)
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
static int may_hand_over(const struct worker_record *w, const struct place_query *query)
{
	return !w->handover_tokens || query->tokens <= w->handover_tokens;
}

static int decodes_for(const struct registry *g, const struct worker_record *p,
                       const struct worker_record *d, const struct place_query *query,
                       uint64_t now_us)
{
	return d->role == ROLE_DECODE && usable(g, d, query) &&
	       memcmp(&p->prefix.hash, &d->prefix.hash, sizeof p->prefix.hash) == 0 &&
	       worker_reaches(p, d) && may_hand_over(p, query) && may_hand_over(d, query) &&
	       pinned_decode(query->pin, d) >= 0 &&
	       (query->pin || registry_handover_takes(g, p, d, now_us));
}

/* The class of w as the worker that gets Submit; CLASS_NONE: it may not. A prefill worker is as
 * busy, stuck or broken as the best decode worker for it. roles: bits, 1 << role */
static unsigned class_as_first(const struct registry *g, unsigned roles,
                               const struct worker_record *w, const struct place_query *query,
                               uint64_t now_us)
{
	const struct place_pin *pin = query->pin;
	if (!(roles & 1u << w->role) || !usable(g, w, query) ||
	    (query->hidden && w->hidden != query->hidden))
		return CLASS_NONE;
	if (pin && *pin->prefill && strcmp(pin->prefill, w->name) != 0)
		return CLASS_NONE;
	if (pin && pin->n_decode && w->role != ROLE_PREFILL &&
	    (*pin->prefill || pinned_decode(pin, w) < 0))
		return CLASS_NONE;
	unsigned own = class_of(g, w, PLACE_PREFILL, query, now_us), best = CLASS_NONE;
	if (w->role != ROLE_PREFILL || query->prefill_only)
		return own;
	list_each(it, &g->workers) {
		const struct worker_record *d = list_entry(it, struct worker_record, node);
		if (best && decodes_for(g, w, d, query, now_us))
			best = (unsigned)least(best, class_of(g, d, PLACE_DECODE, query, now_us));
	}
	return best == CLASS_NONE ? best : own | (best & (CLASS_BUSY | CLASS_STUCK | CLASS_BROKEN));
}

/* Sets how much of the prompt the worker has, as far as is known. The last token is always
 * computed. Only prefill workers read from storage. */
static void look_up(struct option *o, const struct place_query *query, uint64_t now_us)
{
	uint32_t bt = o->w->prefix.block_tokens;
	size_t n, most = query->tokens && bt ? (query->tokens - 1) / bt : 0;
	const uint64_t *hashes = prefixes_find(query->prefixes, &o->w->prefix, &n);
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

static unsigned all_first(struct registry *g, unsigned roles, const struct place_query *query,
                          uint64_t now_us)
{
	unsigned n = 0;
	list_each(it, &g->workers) {
		struct worker_record *w = list_entry(it, struct worker_record, node);
		unsigned class = class_as_first(g, roles, w, query, now_us);
		if (class != CLASS_NONE)
			g->options[n++] = (struct option){.w = w, .class = class};
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
static void sort_best(struct option *o, unsigned n, unsigned m)
{
	for (unsigned i = 0; i < m && i < n; i++)
		for (unsigned k = i + 1; k < n; k++)
			if (cheaper(&o[k], &o[i])) {
				struct option had = o[i];
				o[i] = o[k];
				o[k] = had;
			}
}

static void log_options(const struct place_query *query, const struct policy_case *c,
                        const struct option *o, unsigned n)
{
	static const char *const stages[] = {"prefill", "decode"};
	char text[512] = "";
	size_t at = 0;
	if (log_threshold() > LOG_DEBUG || !query->id)
		return;
	for (unsigned i = 0; i < n && at + 1 < sizeof text; i++) {
		int k = snprintf(text + at, sizeof text - at, "%s%s:%.0f/%u", i ? "," : "", o[i].w->name,
		                 o[i].cost, o[i].hit_tokens);
		at += k > 0 ? (size_t)k : 0;
	}
	log_req(LOG_DEBUG, query->id, "placed", "stage=%s policy=%s reason=%s worker=%s cost_hits=%s",
	        stages[c->stage], policies[c->opts->policy[c->stage]].name,
	        place_reason_name(c->reason), o[0].w->name, text);
}

/* Sorts the m best of g->options[0..n) to the front, one class after the other; returns how many.
 * Prefixes are looked up for these classes alone. The first class's reason is counted. */
static unsigned rank(struct registry *g, enum place_stage stage, const struct place_query *query,
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
		                        .tokens = query->tokens,
		                        .session = query->session};
		if (done && o[0].class & (CLASS_BROKEN | CLASS_STUCK))
			break;
		for (unsigned i = 0; query->prefixes && i < k; i++)
			look_up(&o[i], query, now_us);
		if (stage == PLACE_PREFILL && query->pin && *query->pin->prefill)
			c.reason = PLACE_PINNED;
		else if (k == 1)
			c.reason = PLACE_ONLY;
		else
			policies[g->policy.policy[stage]].fn(&c, o, k);
		sort_best(o, k, m - done);
		if (!done)
			first = c;
		done += k;
	}
	g->placed[stage][g->policy.policy[stage]][first.reason]++;
	log_options(query, &first, g->options, done < 8 ? done : 8);
	return done < m ? done : m;
}

/* The answers of a request share its prompt: the worker that computes it for the first answer has
 * it for the others, so it is chosen whatever the policy is. Only prefill workers: a worker that
 * also decodes would be slower with many answers. */
static void prefer_beside(struct registry *g, const struct place_query *query, unsigned n)
{
	struct option *o = g->options;
	for (unsigned i = 1; query->beside && i < n; i++) {
		if (o[i].w->role != ROLE_PREFILL || o[i].class != o[0].class ||
		    strcmp(o[i].w->name, query->beside) != 0)
			continue;
		struct option had = o[0];
		o[0] = o[i];
		o[i] = had;
		return;
	}
}

/* Writes the decode workers for p, best first, to out; returns how many. Pinned ones keep the
 * order of their list. */
static unsigned choose_decoders(struct registry *g, const struct worker_record *p,
                                const struct place_query *query, uint64_t now_us,
                                struct worker_record **out)
{
	unsigned n = 0;
	list_each(it, &g->workers) {
		struct worker_record *d = list_entry(it, struct worker_record, node);
		if (decodes_for(g, p, d, query, now_us))
			g->options[n++] = (struct option){.w = d,
			                                  .class = class_of(g, d, PLACE_DECODE, query, now_us),
			                                  .is_far = !worker_is_near(p, d)};
	}
	if (query->pin && query->pin->n_decode) {
		for (unsigned i = 0; i < n; i++)
			g->options[i].cost = pinned_decode(query->pin, g->options[i].w);
		sort_best(g->options, n, n);
		g->placed[PLACE_DECODE][g->policy.policy[PLACE_DECODE]][PLACE_PINNED]++;
	} else {
		n = rank(g, PLACE_DECODE, query, n, PLACE_CANDIDATES_MAX, now_us);
	}
	for (unsigned i = 0; i < n; i++)
		out[i] = g->options[i].w;
	return n;
}

/* Records the placement at w: it will soon hold the prompt's blocks, which counts for prompts
 * with the same prefix. wait_us: time until w starts on them. keeps: w decodes */
static void remember(struct registry *g, struct worker_record *w, const struct place_query *query,
                     int keeps, uint64_t wait_us, uint64_t now_us)
{
	size_t n;
	const uint64_t *hashes = prefixes_find(query->prefixes, &w->prefix, &n);
	w->placed_seq = ++g->place_seq;
	breaker_placed(&w->breaker, now_us);
	if (hashes && w->index && g->policy.kv_predict_us)
		kv_index_expect(w->index, hashes, n, now_us + wait_us + g->policy.kv_predict_us);
	if (keeps && w->block_tokens)
		w->promised_blocks += query->tokens / w->block_tokens + 1;
}

static const unsigned first_roles[] = {1u << ROLE_PREFILL | 1u << ROLE_MIXED, 1u << ROLE_DECODE};
#define ROLES_ALONE (1u << ROLE_MIXED | 1u << ROLE_DECODE)

int place_possible(const struct registry *g, const struct place_query *query)
{
	for (unsigned i = 0; i < 2; i++)
		list_each(it, &g->workers)
			if (class_as_first(g, first_roles[i], list_entry(it, struct worker_record, node), query,
			                   query->now_us) != CLASS_NONE)
				return 1;
	return 0;
}

int place_may_return(const struct registry *g, const struct place_query *query, uint64_t within_us)
{
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		int restarts = worker_is_up(w) ? w->beat.ending : query->now_us - w->down_us < within_us;
		if (within_us && restarts && !w->drained && fits(w, query) && !query->pin &&
		    (!query->hidden || w->hidden == query->hidden) &&
		    (query->prefill_only || w->role != ROLE_PREFILL))
			return 1;
	}
	return 0;
}

int place_is_restricted(const struct registry *g, const struct place_query *query)
{
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		int hands_over = w->role != ROLE_MIXED && !query->prefill_only;
		if (!worker_is_up(w) || worker_drains(w))
			continue;
		if (!fits(w, query) || (query->hidden && w->hidden != query->hidden) ||
		    (hands_over && !may_hand_over(w, query)))
			return 1;
	}
	return query->pin != NULL || !has_share(g, query);
}

static int any_takes(const struct registry *g, unsigned roles)
{
	struct place_query query = {.tokens = 1, .total_tokens = 1};
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		if (roles >> w->role & 1 && usable(g, w, &query))
			return 1;
	}
	return 0;
}

const char *place_missing(const struct registry *g, uint64_t now_us)
{
	struct place_query query = {.tokens = 1, .total_tokens = 1, .now_us = now_us};
	if (place_possible(g, &query))
		return NULL;
	if (!g->n_up)
		return "no worker";
	if (!any_takes(g, ~0u))
		return "all workers are draining";
	return any_takes(g, 1u << ROLE_DECODE)
	           ? "no decode worker has the prefill workers' model, numerics and KV layout"
	           : "no decode worker";
}

int place_choose(struct registry *g, const struct place_query *query, uint64_t now_us,
                 struct placement *ret)
{
	struct placement p = {0};
	size_t n_hashes;
	unsigned n = query->alone ? all_first(g, ROLES_ALONE, query, now_us) : 0;
	if (!n) {
		n = all_first(g, first_roles[0], query, now_us);
		if (!n || lowest_class(g->options, n) >= CLASS_STUCK) {
			/* decode workers that are neither stuck nor broken do it all; without such ones the
			 * prefill and mixed workers stay */
			unsigned k = all_first(g, first_roles[1], query, now_us);
			int is_better = k && lowest_class(g->options, k) < CLASS_STUCK;
			n = !n || is_better ? k : all_first(g, first_roles[0], query, now_us);
		}
	}
	if (!n) {
		uint32_t most = query->hidden ? registry_embedding_max(g) : registry_context(g);
		return most && query->total_tokens > most ? ERR_FULL : ERR_NOTFOUND;
	}
	if (lowest_class(g->options, n) & CLASS_BUSY || !has_share(g, query))
		return PLACE_LATER;
	rank(g, PLACE_PREFILL, query, n, 1, now_us);
	prefer_beside(g, query, n);
	struct option o = g->options[0];
	p.first = o.w;
	p.hit_tokens = o.hit_tokens;
	p.stored_tokens = o.memory_tokens + o.disk_tokens;
	p.work_tokens = query->tokens - o.hit_tokens +
	                (uint32_t)(policy_read_weight(o.w, 1, NULL) * o.memory_tokens +
	                           policy_read_weight(o.w, 2, NULL) * o.disk_tokens);
	p.predicted = prefixes_find(query->prefixes, &p.first->prefix, &n_hashes) != NULL;
	if (p.first->role == ROLE_PREFILL && !query->prefill_only)
		p.n_decode = choose_decoders(g, p.first, query, now_us, p.decode);
	/* until the worker has computed its backlog, at its measured rate */
	double us = p.first->prompt_rate > 0
	                ? (double)p.first->backlog_tokens * 1e6 / p.first->prompt_rate
	                : 0;
	uint64_t wait_us = us < WAIT_MAX_US ? (uint64_t)us : WAIT_MAX_US;
	remember(g, p.first, query, p.first->role != ROLE_PREFILL, wait_us, now_us);
	if (p.n_decode) {
		remember(g, p.decode[0], query, 1, wait_us, now_us);
		registry_handover_tried(g, p.first, p.decode[0], now_us);
	}
	*ret = p;
	return 0;
}
