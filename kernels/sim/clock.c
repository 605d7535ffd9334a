/* clock.c - the simulated device's time: adding it up and sleeping until it is over.
 *
 * Durations are added up on the device's own clock, never measured, and the device sleeps until an
 * absolute time, so the error of one sleep does not carry over to the next. The host does its
 * bookkeeping while the device "works", so its time is hidden as with a real device. From the end
 * of its work until the host starts the next step the device is idle, whatever the host did
 * meanwhile. One thing is not counted: how late a busy machine woke the host from a wait for all
 * work. Nothing here fails or spins. */
#include "kernels/sim/sim.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#define NEVER_NS (1ull << 62)

enum {
	NEAR_NS = 50 * 1000,            /* too short to sleep: left to the next wait */
	FORGIVEN_NS = 20 * 1000 * 1000, /* most lateness of a wake-up that is compensated */
	/* a host that takes longer between two steps was idle */
	PROMPT_NS = 2 * 1000 * 1000,
};

uint64_t sim_clock_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Reduces the thread's timer slack, by default 50 us. */
static void exact_timers(void)
{
	static _Thread_local int done;
	if (!done)
		prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
	done = 1;
}

static void sleep_until(uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
	exact_timers();
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* A step starts when the host submits it, but not before the previous one is done; earlier by
 * late_ns if the host continued promptly after it woke. */
void sim_clock_begin(struct kern_device *dev, uint64_t now)
{
	struct sim_clock *c = &dev->clock;
	c->previous_ns = c->done_ns;
	if (now - c->woke_ns > PROMPT_NS)
		c->late_ns = 0;
	if (c->done_ns < now - c->late_ns)
		c->done_ns = now - c->late_ns;
	c->late_ns = 0;
	if (++dev->step == dev->opt.hang_step)
		c->done_ns = NEVER_NS; /* like a device that no longer responds */
	sim_clock_charge(dev, dev->opt.step_us * 1e3);
}

void sim_clock_charge(struct kern_device *dev, double ns)
{
	struct sim_clock *c = &dev->clock;
	double exact = ns * dev->opt.time_scale + c->rest_ns;
	uint64_t whole = (uint64_t)exact;
	c->rest_ns = exact - (double)whole;
	c->done_ns += whole;
	atomic_fetch_add_explicit(&dev->busy_ns, whole, memory_order_relaxed);
}

/* Returns how late it woke; 0 if it did not sleep. */
static uint64_t wait_until(uint64_t ns)
{
	if (ns <= sim_clock_now() + NEAR_NS)
		return 0;
	sleep_until(ns);
	return sim_clock_now() - ns;
}

void sim_clock_wait(struct kern_device *dev)
{
	wait_until(dev->clock.done_ns);
}

void sim_clock_end(struct kern_device *dev)
{
	struct sim_clock *c = &dev->clock;
	uint64_t late = wait_until(c->done_ns);
	c->woke_ns = sim_clock_now();
	c->late_ns = late > FORGIVEN_NS ? FORGIVEN_NS : late;
}

/* The latest step goes on meanwhile: if the host wakes so late that it is over, a real device is
 * idle, too. */
void sim_clock_end_previous(struct kern_device *dev)
{
	dev->clock.late_ns = 0;
	wait_until(dev->clock.previous_ns);
}
