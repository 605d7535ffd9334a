/* main.c - pdprefilld_baseline: pdprefilld in two other orders of things, to measure ours against.
 * PREFILL_BASELINE in the environment says which:
 *
 * serial   Preparation is not split from scheduling: between two steps one request is prepared -
 *          hash, match, reservation at D, own blocks, transfer to the messager - and then a step is
 *          computed with what is prepared. Strictly one request after the other.
 * shared   One scheduler with one waiting queue for prefill and its preparation, as an aggregated
 *          engine has it: between two steps, in order of arrival, the head of the queue is reserved
 *          at D and given blocks, then the next one, until the token budget of a step is used up.
 *
 * The work itself is the product's (prepare threads, messages, pool, ring; events, no sleeps) and
 * costs the same. The schedule thread is held while a request is prepared. It is not held while the
 * head waits for room at D or here, or for blocks that are being computed: then steps go on, and no
 * request behind the head is prepared. Nobody waits for the messager to take up the transfer, which
 * such a design might have to do: `serial` is a little faster than that, and comparisons with it
 * are conservative. So neither baseline is slowed by anything but its design. */
#include "daemons/prefill/prefill.h"
#include "util/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
	int serial; /* else shared */
	/* the loop's */
	struct prefill *s;
	struct list waiting; /* jobs in NEW, by arrival */
	struct job *now;     /* being prepared; NULL: none */
	/* under schedule.lock; schedule.wake is signalled at each change */
	uint32_t n_waiting;
	int active, stalled; /* `now` is there; it waits for room */
	int between;         /* the schedule thread stands between two steps */
	int round_done;      /* no further preparation before the next step */
	int64_t budget;      /* tokens of the next step that no job has yet */
	int posted;          /* `turn` is on its way to the loop */
} base;

static int may_prepare(void)
{
	return base.active ? !base.stalled : base.n_waiting > 0 && !base.round_done;
}

static void lock(void)
{
	pthread_mutex_lock(&base.s->schedule.lock);
}

/* Begins the next preparation if the schedule thread stands between two steps. */
static void turn(struct svc *svc, void *arg)
{
	(void)svc;
	(void)arg;
	lock();
	base.posted = 0;
	int begins = !base.now && !list_empty(&base.waiting) && base.between && !base.round_done;
	if (begins) {
		base.active = 1;
		base.stalled = 0;
	}
	pthread_mutex_unlock(&base.s->schedule.lock);
	if (!begins)
		return;
	base.now = list_entry(base.waiting.next, struct job, wait);
	job_step(base.now, JE_BEGIN);
}

static void post_turn(void)
{
	if (!base.posted)
		svc_post(base.s->w->svc, turn, NULL);
	base.posted = 1;
}

static void changed(void)
{
	pthread_cond_signal(&base.s->schedule.wake);
	post_turn();
	pthread_mutex_unlock(&base.s->schedule.lock);
}

static int holds(struct job *j)
{
	list_push_back(&base.waiting, &j->wait);
	lock();
	base.n_waiting++;
	changed();
	return 1;
}

/* `now` is prepared and has this many tokens to compute, or will not be: 0. */
static void prepared(uint32_t tokens)
{
	base.now = NULL;
	lock();
	base.active = base.stalled = 0;
	base.budget -= tokens;
	base.round_done |= tokens && (base.serial || base.budget <= 0);
	changed();
}

static int waits_for_room(const struct job *j)
{
	switch (j->state) {
	case JOB_PARKED:
	case JOB_BLOCKED:
	case JOB_SLOT:
	case JOB_SHARE: return 1;
	case JOB_ASKED: return j->reserve.queued_us != 0;
	default: return 0;
	}
}

static void stepped(struct job *j, enum job_state was)
{
	if (was == JOB_NEW && j->state != JOB_NEW) {
		lock();
		base.n_waiting--;
		changed();
	}
	if (base.now != j)
		return;
	if (j->state == JOB_RUN) {
		prepared(j->req.n_tokens - j->start_tokens);
	} else if (j->state == JOB_DROPPED || j->state == JOB_END) {
		prepared(0);
	} else if (base.stalled != waits_for_room(j)) {
		lock();
		base.stalled =
			!base.stalled; /* before it runs: a step that should be held must not begin */
		changed();
	}
}

/* On the schedule thread, with the lock held: returns when preparation has had its turn. */
static void before_step(struct schedule *s)
{
	struct list *const lists[] = {&s->running, &s->inbox};
	base.between = 1;
	base.budget = s->w->max_batched_tokens;
	for (int i = 0; i < 2; i++)
		list_each(it, lists[i]) {
			const struct job_run *r = list_entry(it, struct job_run, node);
			base.budget -= r->req->n_tokens - r->shared->computed;
		}
	base.round_done = base.budget <= 0 && !base.serial;
	if (may_prepare())
		post_turn();
	while (may_prepare() && !s->stop)
		pthread_cond_wait(&s->wake, &s->lock);
	base.between = 0;
}

static void start(struct prefill *s)
{
	base.s = s;
	list_init(&base.waiting);
	s->schedule.before_step = before_step;
	log_warn("benchmark_mode", "mode=%s why=\"a baseline to measure against: not for service\"",
	         base.serial ? "serial" : "shared");
}

static const struct prefill_baseline baseline = {.start = start,
                                                 .holds = holds,
                                                 .stepped = stepped};

int main(int argc, char **argv)
{
	const char *mode = getenv("PREFILL_BASELINE");
	base.serial = mode && strcmp(mode, "serial") == 0;
	if (!base.serial && (!mode || strcmp(mode, "shared") != 0)) {
		fprintf(stderr, "PREFILL_BASELINE is \"%s\"; set it to serial or shared\n",
		        mode ? mode : "");
		return 1;
	}
	prefill_baseline = &baseline;
	return worker_main(argc, argv, "pdprefilld", "prefill", ROLE_PREFILL);
}
