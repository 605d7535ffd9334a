/* breaker.c - see breaker.h. */
#include "breaker.h"

static uint64_t slice_at(const struct breaker_opts *o, uint64_t now_us)
{
	uint64_t each = o->window_us / BREAKER_SLICES;
	return now_us / (each ? each : 1);
}

enum breaker_state breaker_state(const struct breaker *b, uint64_t now_us)
{
	return !b->open ? BREAKER_CLOSED : now_us < b->until_us ? BREAKER_OPEN : BREAKER_HALF_OPEN;
}

const char *breaker_state_name(enum breaker_state s)
{
	static const char *const names[] = {"closed", "open", "half_open"};
	return names[s];
}

int breaker_takes(const struct breaker *b, const struct breaker_opts *o, uint64_t now_us)
{
	enum breaker_state s = breaker_state(b, now_us);
	return s == BREAKER_CLOSED ||
	       (s == BREAKER_HALF_OPEN && (!b->trial_us || now_us - b->trial_us > o->open_us));
}

void breaker_placed(struct breaker *b, uint64_t now_us)
{
	if (breaker_state(b, now_us) == BREAKER_HALF_OPEN)
		b->trial_us = now_us;
}

static void open_for(struct breaker *b, const struct breaker_opts *o, uint64_t now_us)
{
	b->times = !b->times                           ? 1
	           : b->times < BREAKER_OPEN_TIMES_MAX ? b->times * 2
	                                               : BREAKER_OPEN_TIMES_MAX;
	b->open = 1;
	b->until_us = now_us + b->times * o->open_us;
	b->trial_us = 0;
}

/* Did at least error_pct percent of the outcomes within the window fail? */
static int exceeds_limit(const struct breaker *b, const struct breaker_opts *o, uint64_t now_us)
{
	uint64_t now = slice_at(o, now_us), good = 0, bad = 0;
	for (unsigned i = 0; i < BREAKER_SLICES; i++)
		if (now - b->slices[i].slice < BREAKER_SLICES) {
			good += b->slices[i].good;
			bad += b->slices[i].bad;
		}
	return o->error_pct && good + bad >= o->min_requests &&
	       bad * 100 >= (good + bad) * o->error_pct;
}

int breaker_outcome(struct breaker *b, const struct breaker_opts *o, int good, uint64_t now_us)
{
	switch (breaker_state(b, now_us)) {
	case BREAKER_OPEN: /* a request from before it opened */ return 0;
	case BREAKER_HALF_OPEN:
		if (!b->trial_us)
			return 0;
		if (good)
			*b = (struct breaker){.crashes = b->crashes};
		else
			open_for(b, o, now_us);
		return 1;
	case BREAKER_CLOSED: break;
	}
	uint64_t slice = slice_at(o, now_us);
	unsigned i = (unsigned)(slice % BREAKER_SLICES);
	if (b->slices[i].slice != slice) {
		b->slices[i].slice = slice;
		b->slices[i].good = b->slices[i].bad = 0;
	}
	if (good)
		b->slices[i].good++;
	else
		b->slices[i].bad++;
	if (good || !exceeds_limit(b, o, now_us))
		return 0;
	open_for(b, o, now_us);
	return 1;
}

void breaker_restart(struct breaker *b, uint64_t now_us)
{
	if (b->open)
		b->until_us = now_us;
	b->trial_us = 0;
	b->crashes = 0;
}

void breaker_crashed(struct breaker *b, const struct breaker_opts *o, uint64_t lived_us,
                     uint64_t now_us)
{
	if (!o->error_pct)
		return;
	b->crashes = lived_us < BREAKER_CRASH_WINDOWS * o->window_us ? b->crashes + 1 : 1;
	unsigned doubled = b->crashes > 1 ? b->crashes - 2 : 0;
	uint64_t times = doubled < 5 ? 1u << doubled : BREAKER_OPEN_TIMES_MAX;
	uint64_t until = b->crashes == 1 ? now_us : now_us + times * o->open_us;
	b->open = 1;
	b->trial_us = 0;
	b->until_us = b->until_us > until ? b->until_us : until;
}
