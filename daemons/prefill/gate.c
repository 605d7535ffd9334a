/* gate.c - benchmark-only: two designs that this one is measured against, built of the same parts,
 * so that only their order of things differs.
 *
 * bench_prepare = serial     Preparation is not split from scheduling. One thread does both:
 *                            between two steps it prepares one request - hash, match, reservation
 *                            at D, own blocks, transfer to the messager - and waits until the
 * messager
 *                            has said that it has seen the transfer; then it computes a step with
 * what
 *                            is prepared. Requests are prepared strictly one after the other.
 * bench_scheduler = shared   One scheduler with one waiting queue for prefill and its preparation,
 *                            as an aggregated engine has it: between two steps, in order of
 *                            arrival, the head of the queue is reserved at D and given blocks, then
 *                            the next, until the step's token budget is spoken for. No
 *                            acknowledgement.
 *
 * The work itself is the product's own (prepare threads, messages, pool, ring; events, no sleeps),
 * and costs the same. The schedule thread is held while a preparation is under way. It is not held
 * while the head waits for room at D (D has said QUEUED) or here (BLOCKED), or for blocks that are
 * being computed (SHARE): it computes what runs, and nobody behind the head is prepared meanwhile.
 * So neither baseline is slowed by anything but its design.
 *
 * What is shared between the loop and the schedule thread is under prefill.lock; prefill.wake is
 * signalled at each change. */
#include "prefill.h"
#include "gate.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

struct gate {
	int serial;          /* else shared */
	struct list waiting; /* jobs in NEW, by arrival; the loop's */
	struct job *now;     /* being prepared; the loop's */
	uint64_t run_us;     /* it was published then, 0: not yet */
	/* under prefill.lock */
	uint32_t n_waiting;
	int active, stalled; /* `now` is there; it waits for room */
	int between;         /* the schedule thread stands between two steps */
	int round_done;      /* no further preparation before the next step */
	int64_t budget;      /* tokens of the next step that nobody has yet */
};

int gate_init(struct prefill *s, struct err *err)
{
	struct conf *c = svc_conf(s->w->svc);
	int serial = strcmp(conf_str(c, "bench_prepare"), "serial") == 0,
		shared = strcmp(conf_str(c, "bench_scheduler"), "shared") == 0;
	if (serial && shared)
		return err_set(err, ERR_INVALID,
		               "bench_prepare = serial and bench_scheduler = shared exclude each other");
	if (!serial && !shared)
		return 0;
	s->gate = mem_zalloc(sizeof *s->gate);
	s->gate->serial = serial;
	list_init(&s->gate->waiting);
	log_warn("benchmark_mode", "mode=%s why=\"a baseline to measure against: not for service\"",
	         serial ? "serial" : "shared");
	return 0;
}

void gate_fini(struct prefill *s)
{
	free(s->gate);
	s->gate = NULL;
}

int gate_wants_seen(const struct prefill *s)
{
	return s->gate && s->gate->serial;
}

/* --- on the loop --------------------------------------------------------- */

int gate_admit(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	struct gate *g = s->gate;
	if (!g)
		return 0;
	list_push_back(&g->waiting, &j->wait);
	pthread_mutex_lock(&s->lock);
	g->n_waiting++;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	stage_soon(s, SOON_GATE);
	return 1;
}

static void set(struct prefill *s, int active, int stalled, int round_done)
{
	struct gate *g = s->gate;
	pthread_mutex_lock(&s->lock);
	g->active = active;
	g->stalled = stalled;
	g->round_done |= round_done;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	stage_soon(s, SOON_GATE);
}

/* `now` is prepared, or will not be. */
static void next(struct prefill *s, uint32_t tokens)
{
	struct gate *g = s->gate;
	g->now = NULL;
	pthread_mutex_lock(&s->lock);
	g->budget -= tokens;
	int done = tokens && (g->serial || g->budget <= 0);
	pthread_mutex_unlock(&s->lock);
	set(s, 0, 0, done);
}

/* First, or a step would begin with it that should be held. */
void gate_ready(struct job *j)
{
	struct gate *g = prefill_of(j->w)->gate;
	if (g && g->now == j)
		set(prefill_of(j->w), 1, 0, 0);
}

void gate_run(struct job *j)
{
	struct gate *g = prefill_of(j->w)->gate;
	if (!g || g->now != j)
		return;
	g->run_us = clock_us();
	if (!g->serial)
		next(prefill_of(j->w), j->req.n_tokens - j->computed);
}

void gate_seen(struct job *j)
{
	struct gate *g = prefill_of(j->w)->gate;
	if (g && g->now == j && g->run_us)
		next(prefill_of(j->w), j->req.n_tokens);
}

void gate_stalled(struct job *j)
{
	struct gate *g = prefill_of(j->w)->gate;
	if (g && g->now == j)
		set(prefill_of(j->w), 1, 1, 0);
}

void gate_gone(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	struct gate *g = s->gate;
	if (!g)
		return;
	if (g->now == j) {
		next(s, 0);
	} else if (j->state == JOB_NEW) {
		list_remove(&j->wait);
		pthread_mutex_lock(&s->lock);
		g->n_waiting--;
		pthread_cond_signal(&s->wake);
		pthread_mutex_unlock(&s->lock);
	}
}

void gate_turn(struct prefill *s)
{
	struct gate *g = s->gate;
	if (!g || g->now || list_empty(&g->waiting))
		return;
	pthread_mutex_lock(&s->lock);
	int turn = g->between && !g->round_done;
	if (turn) {
		g->n_waiting--;
		g->active = 1;
		g->stalled = 0;
	}
	pthread_mutex_unlock(&s->lock);
	if (!turn)
		return;
	g->now = list_entry(g->waiting.next, struct job, wait);
	g->run_us = 0;
	list_remove(&g->now->wait);
	job_begin(g->now);
}

void gate_check(struct prefill *s, uint64_t now_us)
{
	struct gate *g = s->gate;
	if (g && g->now && g->run_us && now_us - g->run_us > s->stall_us)
		job_fail(g->now, PDS__FAULT__FAULT_STALLED, 1,
		         "the messager does not say that it has seen the transfer");
}

/* --- on the schedule thread ---------------------------------------------- */

int gate_may_wake(const struct prefill *s)
{
	const struct gate *g = s->gate;
	return g && (g->active ? !g->stalled : g->n_waiting > 0 && !g->round_done);
}

void gate_hold(struct prefill *s)
{
	struct gate *g = s->gate;
	if (!g)
		return;
	g->between = 1;
	g->round_done = 0;
	g->budget = s->w->max_batched_tokens;
	for (int i = 0; i < 2; i++) {
		struct list *l = i ? &s->inbox : &s->running;
		list_each(it, l) {
			const struct job *j = list_entry(it, struct job, run);
			g->budget -= j->req.n_tokens - j->computed;
		}
	}
	g->round_done = g->budget <= 0 && !g->serial;
	if (gate_may_wake(s))
		stage_soon(s, SOON_GATE);
	while (gate_may_wake(s) && !s->stop)
		pthread_cond_wait(&s->wake, &s->lock);
	g->between = 0;
}
