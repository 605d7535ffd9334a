/* test_watch.c - when a step counts as hung: time goes by in looks of 50 ms, without waiting for
 * it. */
/* run: threads */
#include "daemons/worker/worker.h"
#include "engine/engine_impl.h"
#include "util/clock.h"

#include <check.h>
#include <string.h>

#define LIMIT_US 2000000u
#define LOOK_US 50000u

static struct worker W;
static struct engine E;
static uint64_t pulse;

static void counters(const struct kern_device *dev, struct kern_counters *ret)
{
	(void)dev;
	*ret = (struct kern_counters){.pulse = pulse};
}

static const struct kern_ops ops = {.counters = counters};

static void begin(uint64_t limit_us)
{
	memset(&W, 0, sizeof W);
	memset(&E, 0, sizeof E);
	E.ops = &ops;
	W.engine = &E;
	W.conf.step_timeout_us = limit_us;
	watch_look(&W);
}

/* The loop has not looked for so long. */
static void look_after(uint64_t us)
{
	W.watch.looked_us = clock_us() - us;
	watch_look(&W);
}

static void look_for(uint64_t us)
{
	for (uint64_t t = 0; t < us; t += LOOK_US)
		look_after(LOOK_US);
}

static void no_step(void)
{
}

static void layer(void)
{
	pulse++;
}

static void next_step(void)
{
	watch_end(&W.watch);
	watch_begin(&W.watch);
}

/* Another one is started before the running one ends, and that ends. */
static void overlapping_step(void)
{
	watch_begin(&W.watch);
	watch_end(&W.watch);
}

/* Something happens in time, again and again; or there is no step. */
static const struct {
	int in_step;
	void (*happens)(void);
} fine[] = {{0, no_step}, {1, layer}, {1, next_step}, {1, overlapping_step}};

TEST_LOOP(does_not_hang, 0, 4)
{
	begin(LIMIT_US);
	if (fine[_i].in_step)
		watch_begin(&W.watch);
	for (int i = 0; i < 5; i++) {
		look_for(LIMIT_US - 2 * LOOK_US);
		fine[_i].happens();
	}
}

TEST_EXIT(hangs, 1)
{
	begin(LIMIT_US);
	watch_begin(&W.watch);
	look_after(LOOK_US);
	look_for(LIMIT_US - 2 * LOOK_US);
	ck_assert_uint_ge(watch_still_us(&W), LIMIT_US - 3 * LOOK_US);
	look_for(3 * LOOK_US); /* ends the process */
}

/* While the loop did not run, no more did the step: a stopped process, a suspended machine. */
TEST(time_away_does_not_count)
{
	begin(LIMIT_US);
	watch_begin(&W.watch);
	look_for(LIMIT_US / 2);
	uint64_t still = watch_still_us(&W);
	for (int i = 0; i < 3; i++)
		look_after(10 * LIMIT_US);
	ck_assert_uint_eq(watch_still_us(&W), still);
}

/* step_timeout_ms = 0: it is for the operator to end it, and that does not wait for the step. */
TEST(no_limit)
{
	begin(0);
	watch_begin(&W.watch);
	look_for(4900000);
	ck_assert_int_eq(watch_gives_up(&W), 0);
	look_for(300000);
	ck_assert_int_eq(watch_gives_up(&W), 1);
	pulse++;
	ck_assert_int_eq(watch_gives_up(&W), 0);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
}
