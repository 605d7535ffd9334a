/* watch.c - see watch.h. */
#include "worker.h"
#include "util/clock.h"

#include <stdio.h>
#include <unistd.h>

#define AWAY_US 1000000u    /* this long between two looks: the loop did not run */
#define GIVE_UP_US 5000000u /* without progress, once the process was told to end */
#define JOIN_S 3            /* for the last step; svc allows 4 s for the whole end */

/* Grows with every layer, and at the begin and the end of each step. */
static uint64_t pulse(const struct worker *w)
{
	return w->watch.begun + w->watch.ended + engine_pulse(w->engine);
}

static int is_running(const struct watch *t)
{
	return t->begun != t->ended;
}

void watch_look(struct worker *w)
{
	struct watch *t = &w->watch;
	uint64_t now = clock_us(), at = pulse(w), since = now - t->looked_us;
	t->looked_us = now;
	if (!is_running(t) || at != t->seen)
		t->still_us = 0;
	else if (since < AWAY_US)
		t->still_us += since;
	t->seen = at;
	if (!w->conf.step_timeout_us || t->still_us < w->conf.step_timeout_us)
		return;
	char why[160];
	snprintf(why, sizeof why, "step %llu makes no progress for %llu ms (step_timeout_ms %llu)",
	         (unsigned long long)t->ended + 1, (unsigned long long)t->still_us / 1000,
	         (unsigned long long)w->conf.step_timeout_us / 1000);
	svc_leave(why);
}

uint64_t watch_still_us(const struct worker *w)
{
	const struct watch *t = &w->watch;
	return is_running(t) && pulse(w) == t->seen ? t->still_us : 0;
}

int watch_gives_up(const struct worker *w)
{
	return watch_still_us(w) >= GIVE_UP_US;
}

void watch_join(pthread_t thread)
{
	uint64_t until = clock_us() + JOIN_S * 1000000ull;
	int busy;
	while ((busy = pthread_tryjoin_np(thread, NULL)) != 0 && clock_us() < until)
		usleep(1000);
	if (busy)
		svc_leave("told to end, and the running step does not end");
}
