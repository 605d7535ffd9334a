/* run.c - see run.h.
 *
 * Open loop: request i is due at a time that does not depend on answers, and is measured from then
 * even if it was sent late. Closed loop: a free slot takes the next request at once. A request
 * fails on its own (status, invalid stream, fewer tokens than requested, timeout) and is recorded;
 * nothing that a server sends ends the run. */
#include "run.h"

#include "arrive.h"
#include "client.h"
#include "flight.h"
#include "live.h"
#include "util/clock.h"
#include "util/mem.h"

#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define TICK_US 50000
/* closed loop: pause of a slot whose request failed without a token, so that a server that refuses
 * requests at once is not flooded */
#define REST_US 20000u
#define FILES_SPARE 32u

struct bench_run {
	const struct bench_options *o;
	struct result *res;
	struct event_base *base;
	struct bench_client *clients[URLS_MAX];
	unsigned n_clients, next_client;
	struct work *work;
	struct arrive arrive;
	struct draw draw;
	struct live live;
	struct event *arrival, *tick, *stop[2];
	struct list flights;      /* in the order of sending */
	struct list pauses;       /* conversations between two rounds, and resting slots */
	struct bench_turn *ready; /* prepared in advance, so that its preparation delays no request */
	struct buf ready_text;
	uint64_t begun_us, due_us; /* due_us: of `ready`, since the run began; UINT64_MAX: none */
	uint64_t issued, measured, done, failed;
	unsigned in_flight, waiting, thinking, in_flight_max;
	int closed, no_more, window_open, late; /* late: 1: a due request waits for in_flight_max */
};

/* A conversation between two rounds, or a resting slot of the closed loop. Both occupy a slot. */
struct pause {
	struct list node;
	struct bench_run *run;
	struct bench_turn *turn; /* NULL: a resting slot */
	struct event *timer;
	uint64_t due_us;
};

static void fill(struct bench_run *r);
static void issue_due(struct bench_run *r);

static uint64_t since(const struct bench_run *r, uint64_t now_us)
{
	return now_us > r->begun_us ? now_us - r->begun_us : 0;
}

static void start_timer(struct event *timer, uint64_t us)
{
	struct timeval wait = {.tv_sec = (time_t)(us / 1000000),
	                       .tv_usec = (suseconds_t)(us % 1000000)};
	event_add(timer, &wait);
}

/* --- end of sending ------------------------------------------------------ */

static void stop_sending(struct bench_run *r, uint64_t at_us)
{
	if (r->no_more)
		return;
	r->no_more = 1;
	r->res->full_end_us = at_us;
}

/* Is a request due at this time past the warm-up? The first one opens the measured window. */
static int is_measured(struct bench_run *r, uint64_t due_us)
{
	const struct span *w = &r->o->warmup;
	if (r->issued < w->count || due_us < w->us)
		return 0;
	if (!r->window_open) {
		r->window_open = 1;
		r->res->window_begin_us = w->us ? w->us : due_us;
	}
	return 1;
}

static int is_past_end(const struct bench_run *r, uint64_t due_us)
{
	if (r->o->number && r->measured >= r->o->number)
		return 1;
	return r->o->duration_us && r->window_open &&
	       due_us >= r->res->window_begin_us + r->o->duration_us;
}

static void maybe_end(struct bench_run *r)
{
	if (r->in_flight == 0 && r->thinking == 0 && (r->no_more || (!r->ready && !r->closed)))
		event_base_loopbreak(r->base);
}

/* --- sending ------------------------------------------------------------- */

static void make_ready(struct bench_run *r)
{
	if (r->ready || r->no_more || !(r->ready = work_next(r->work)))
		return;
	buf_init(&r->ready_text, 0);
	work_request(r->work, &r->o->urls[r->next_client], r->ready, &r->ready_text);
}

static void send_turn(struct bench_run *r, struct bench_turn *t, struct buf *text, uint64_t due_us)
{
	uint64_t now = since(r, clock_us());
	size_t at = r->res->n;
	struct bench_record *rec = result_record(r->res);
	rec->due_us = due_us < now ? due_us : now;
	rec->sent_us = now;
	rec->measured = (uint8_t)is_measured(r, rec->due_us);
	rec->number = t->number;
	rec->conversation = t->conversation;
	rec->round = t->round;
	rec->input_tokens = t->input_tokens;
	rec->max_tokens = t->output_tokens;
	struct flight *f = flight_new(t, at, r);
	if (r->o->abort_fraction > 0 && draw_unit(&r->draw) <= r->o->abort_fraction)
		f->leave_at = (int64_t)draw_below(&r->draw, t->output_tokens);
	list_push_back(&r->flights, &f->node);
	r->issued++;
	r->measured += rec->measured;
	r->in_flight++;
	r->waiting++;
	if (r->in_flight > r->res->in_flight_most)
		r->res->in_flight_most = r->in_flight;
	timeline_at(&r->res->timeline, now)->arrived++;
	f->call = client_call(r->clients[r->next_client], text, &flight_hooks, f);
	r->next_client = (r->next_client + 1) % r->n_clients;
	if (r->o->number && r->measured >= r->o->number)
		stop_sending(r, now);
}

static void send_ready(struct bench_run *r, uint64_t due_us)
{
	struct bench_turn *t = r->ready;
	r->ready = NULL;
	send_turn(r, t, &r->ready_text, due_us);
	make_ready(r);
}

static void drop_ready(struct bench_run *r)
{
	if (!r->ready)
		return;
	work_drop(r->work, r->ready);
	buf_fini(&r->ready_text);
	r->ready = NULL;
}

/* --- closed loop --------------------------------------------------------- */

static unsigned slots_now(const struct bench_run *r, uint64_t now)
{
	if (now >= r->o->ramp_us)
		return r->o->concurrency;
	return 1 + (unsigned)((double)(r->o->concurrency - 1) * (double)now / (double)r->o->ramp_us);
}

static void fill(struct bench_run *r)
{
	uint64_t now = since(r, clock_us());
	unsigned slots = slots_now(r, now);
	while (!r->no_more && r->in_flight + r->thinking < slots) {
		if (is_past_end(r, now) || !r->ready) {
			stop_sending(r, now);
			break;
		}
		send_ready(r, now);
		now = since(r, clock_us());
	}
}

/* --- open loop ----------------------------------------------------------- */

static void next_due(struct bench_run *r)
{
	if (!r->ready || r->no_more)
		r->due_us = UINT64_MAX;
	else
		r->due_us = r->o->arrivals == ARRIVE_TRACE ? r->ready->at_us : arrive_next(&r->arrive);
}

static void wait_until_due(struct bench_run *r)
{
	if (r->due_us == UINT64_MAX)
		return;
	uint64_t now = since(r, clock_us());
	start_timer(r->arrival, r->due_us > now ? r->due_us - now : 0);
}

/* Sends the requests that are due; above in_flight_max it stops until one ends. */
static void issue_due(struct bench_run *r)
{
	r->late = 0;
	while (r->due_us <= since(r, clock_us())) {
		if (is_past_end(r, r->due_us)) {
			stop_sending(r, r->due_us);
			r->due_us = UINT64_MAX;
			break;
		}
		if (r->in_flight >= r->in_flight_max) {
			r->late = 1;
			return;
		}
		send_ready(r, r->due_us);
		next_due(r);
	}
	if (!r->ready)
		stop_sending(r, since(r, clock_us()));
	wait_until_due(r);
	maybe_end(r);
}

static void on_arrival(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	issue_due(arg);
}

/* --- conversations ------------------------------------------------------- */

static void pause_free(struct pause *p)
{
	p->run->thinking--;
	list_remove(&p->node);
	event_free(p->timer);
	free(p);
}

static void next_round(struct bench_run *r, struct bench_turn *t, uint64_t due_us)
{
	struct buf text;
	if (r->no_more || is_past_end(r, due_us)) {
		stop_sending(r, due_us);
		work_drop(r->work, t);
		return;
	}
	buf_init(&text, 0);
	work_request(r->work, &r->o->urls[r->next_client], t, &text);
	send_turn(r, t, &text, due_us);
}

static void on_pause_end(evutil_socket_t fd, short what, void *arg)
{
	struct pause *p = arg;
	struct bench_run *r = p->run;
	struct bench_turn *t = p->turn;
	uint64_t due = p->due_us, now = since(r, clock_us());
	(void)fd;
	(void)what;
	if (now < due) { /* the loop's clock is coarse */
		start_timer(p->timer, due - now);
		return;
	}
	pause_free(p);
	if (t)
		next_round(r, t, due);
	else
		fill(r);
	maybe_end(r);
}

static void pause_for(struct bench_run *r, struct bench_turn *t, uint64_t now, uint64_t us)
{
	struct pause *p = mem_zalloc(sizeof *p);
	*p = (struct pause){
		.run = r, .turn = t, .due_us = now + us, .timer = evtimer_new(r->base, on_pause_end, p)};
	list_push_back(&r->pauses, &p->node);
	r->thinking++;
	start_timer(p->timer, us);
}

/* --- answers ------------------------------------------------------------- */

struct bench_record *run_record(struct bench_run *r, const struct flight *f)
{
	return &r->res->records[f->record];
}

const struct bench_options *run_options(const struct bench_run *r)
{
	return r->o;
}

int run_wants_answer(const struct bench_run *r, const struct flight *f)
{
	return work_wants_answer(r->work, f->turn);
}

static int in_window(const struct bench_run *r, uint64_t at)
{
	return r->window_open && at >= r->res->window_begin_us &&
	       (!r->o->duration_us || at < r->res->window_begin_us + r->o->duration_us);
}

void run_tokens(struct bench_run *r, struct flight *f, uint32_t n, uint64_t now_us)
{
	struct bench_record *rec = run_record(r, f);
	uint64_t at = since(r, now_us);
	int counts = in_window(r, at);
	if (!rec->first_us) {
		rec->first_us = at;
		r->waiting--;
		hist_add(&r->live.ttft, at - rec->due_us);
		r->res->window_input += counts ? rec->input_tokens : 0;
	} else {
		uint64_t gap = at - rec->last_us;
		if (rec->measured)
			hist_add(&r->res->gaps, gap);
		if (gap > rec->longest_gap_us)
			rec->longest_gap_us = gap;
	}
	rec->last_us = at;
	rec->output_tokens += n;
	r->res->tokens += n;
	r->res->events++;
	r->res->window_tokens += counts ? n : 0;
	r->res->full_tokens += counts && !r->no_more ? n : 0;
	timeline_at(&r->res->timeline, at)->tokens += n;
}

static void go_on(struct bench_run *r, struct flight *f, int ok, uint64_t now)
{
	struct bench_turn *next = NULL;
	if (ok && !r->no_more)
		next = work_follow(r->work, f->turn, f->answer.data ? f->answer.data : "", f->answer.len,
		                   run_record(r, f)->output_tokens);
	else
		work_drop(r->work, f->turn);
	if (next)
		pause_for(r, next, now, work_think_us(r->work, next));
}

void run_ended(struct bench_run *r, struct flight *f, enum outcome outcome, const char *why,
               uint64_t now_us)
{
	struct bench_record *rec = run_record(r, f);
	uint64_t now = since(r, now_us);
	rec->outcome = (uint8_t)outcome;
	rec->end_us = now;
	r->in_flight--;
	r->waiting -= !rec->first_us;
	r->done++;
	timeline_at(&r->res->timeline, now)->done++;
	if (outcome == OUTCOME_FAILED) {
		r->failed++;
		rec->error = (int16_t)result_error(r->res, rec->status, why);
		if (r->closed && !rec->first_us && !r->no_more)
			pause_for(r, NULL, now, REST_US);
	}
	go_on(r, f, outcome == OUTCOME_OK, now);
	flight_free(f);
	if (r->closed)
		fill(r);
	else if (r->late)
		event_active(r->arrival, EV_TIMEOUT, 0);
	maybe_end(r);
}

/* --- periodic work ------------------------------------------------------- */

/* Ends requests that timed out. The list is in the order of sending, so the oldest come first;
 * ending one only appends new ones. */
static void end_old(struct bench_run *r, uint64_t now_us)
{
	list_each_safe(it, nx, &r->flights) {
		struct flight *f = list_entry(it, struct flight, node);
		char why[80];
		if (since(r, now_us) - run_record(r, f)->sent_us < r->o->timeout_us)
			return;
		snprintf(why, sizeof why, "no complete answer within %g s (--timeout)",
		         (double)r->o->timeout_us / 1e6);
		call_drop(f->call);
		run_ended(r, f, OUTCOME_FAILED, why, now_us);
	}
}

/* --abort: ends requests that leave before their first token. */
static void end_impatient(struct bench_run *r, uint64_t now_us)
{
	list_each_safe(it, nx, &r->flights) {
		struct flight *f = list_entry(it, struct flight, node);
		if (f->leave_at != 0)
			continue;
		call_drop(f->call);
		run_ended(r, f, OUTCOME_LEFT, "", now_us);
	}
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct bench_run *r = arg;
	uint64_t now_us = clock_us(), now = since(r, now_us);
	struct slot *s = timeline_at(&r->res->timeline, now);
	(void)fd;
	(void)what;
	s->in_flight += r->in_flight;
	s->waiting += r->waiting;
	s->samples++;
	end_old(r, now_us);
	if (r->o->abort_fraction > 0)
		end_impatient(r, now_us);
	if (r->closed)
		fill(r);
	else if (!r->no_more && r->window_open && r->o->duration_us && is_past_end(r, now))
		stop_sending(r, now);
	maybe_end(r);
	live_show(&r->live, &(struct live_now){.since_us = now,
	                                       .sent = r->issued,
	                                       .done = r->done,
	                                       .failed = r->failed,
	                                       .tokens = r->res->tokens,
	                                       .in_flight = r->in_flight,
	                                       .waiting = r->waiting,
	                                       .phase = r->no_more       ? "(last answers)"
	                                                : r->window_open ? ""
	                                                                 : "(warm-up)"});
}

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
	struct bench_run *r = arg;
	uint64_t now_us = clock_us();
	(void)fd;
	(void)what;
	r->res->interrupted = 1;
	stop_sending(r, since(r, now_us));
	while (!list_empty(&r->flights)) {
		struct flight *f = list_entry(r->flights.next, struct flight, node);
		call_drop(f->call);
		run_ended(r, f, OUTCOME_CUT, "", now_us);
	}
	event_base_loopbreak(r->base);
}

/* --- the whole run ------------------------------------------------------- */

static int raise_files(struct bench_run *r, struct err *err)
{
	struct rlimit l;
	unsigned want = r->closed ? r->o->concurrency : r->o->in_flight_max;
	if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
		l.rlim_cur = l.rlim_max;
		setrlimit(RLIMIT_NOFILE, &l);
	}
	getrlimit(RLIMIT_NOFILE, &l);
	r->in_flight_max = want;
	if (l.rlim_cur >= want + FILES_SPARE)
		return 0;
	if (r->closed || l.rlim_cur <= FILES_SPARE)
		return err_set(
			err, ERR_INVALID,
			"--concurrency %u needs %u open files, the limit is %llu: raise it with ulimit -n",
			want, want + FILES_SPARE, (unsigned long long)l.rlim_cur);
	r->in_flight_max = (unsigned)l.rlim_cur - FILES_SPARE;
	return 0;
}

static int run_open(struct bench_run *r, const struct server_info *server, struct err *err)
{
	list_init(&r->flights);
	list_init(&r->pauses);
	r->closed = r->o->concurrency > 0;
	r->due_us = UINT64_MAX;
	r->draw.state = draw_mix(r->o->seed ^ 0x6C6F6164u);
	arrive_init(&r->arrive, r->o);
	live_init(&r->live, r->o);
	struct event_config *exact = event_config_new();
	if (exact && (!r->closed || r->o->has_rounds))
		/* the coarse clock is off by 4 ms; costs one clock call per loop iteration */
		event_config_set_flag(exact, EVENT_BASE_FLAG_PRECISE_TIMER);
	r->base = exact ? event_base_new_with_config(exact) : NULL;
	if (exact)
		event_config_free(exact);
	if (!r->base)
		return err_set(err, ERR_IO, "cannot create an event loop");
	for (unsigned i = 0; i < r->o->n_urls; i++)
		r->clients[r->n_clients++] = client_new(r->base, &r->o->urls[i], r->o->tls,
		                                        r->o->fresh_connections);
	r->arrival = evtimer_new(r->base, on_arrival, r);
	r->tick = event_new(r->base, -1, EV_PERSIST, on_tick, r);
	r->stop[0] = evsignal_new(r->base, SIGINT, on_stop, r);
	r->stop[1] = evsignal_new(r->base, SIGTERM, on_stop, r);
	if (raise_files(r, err) < 0 || work_new(r->o, server, &r->work, err) < 0)
		return ERR_INVALID;
	make_ready(r);
	if (!r->ready)
		return err_set(err, ERR_INVALID,
		               "no request fits the server's context of %u tokens: shorten them with "
		               "--max-input, --max-output and --over clip",
		               server->context);
	return 0;
}

static void run_close(struct bench_run *r)
{
	list_each_safe(it, nx, &r->pauses) {
		struct pause *p = list_entry(it, struct pause, node);
		if (p->turn)
			work_drop(r->work, p->turn);
		pause_free(p);
	}
	drop_ready(r);
	live_fini(&r->live);
	for (unsigned i = 0; i < r->n_clients; i++) {
		r->res->connections += client_stats(r->clients[i])->connections;
		client_destroy(&r->clients[i]);
	}
	struct event *events[] = {r->arrival, r->tick, r->stop[0], r->stop[1]};
	for (unsigned i = 0; i < 4; i++)
		if (events[i])
			event_free(events[i]);
	if (r->work) {
		r->res->skipped = work_counts(r->work)->skipped;
		r->res->clipped = work_counts(r->work)->clipped;
		r->res->cut_conversations = work_counts(r->work)->cut_conversations;
	}
	work_destroy(&r->work);
	if (r->base)
		event_base_free(r->base);
}

static uint64_t cpu_us(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000u +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void close_window(struct bench_run *r)
{
	struct result *s = r->res;
	uint64_t last = 0;
	for (size_t i = 0; i < s->n; i++)
		if (s->records[i].measured && s->records[i].end_us > last)
			last = s->records[i].end_us;
	uint64_t time_over = r->window_open && r->o->duration_us
	                         ? s->window_begin_us + r->o->duration_us
	                         : UINT64_MAX;
	/* the window ends at the time limit, or earlier if there were no more requests */
	s->window_end_us = last > time_over || s->full_end_us >= time_over ? time_over : last;
}

static void run_all(struct bench_run *r)
{
	struct timeval tick = {.tv_usec = TICK_US};
	uint64_t cpu = cpu_us();
	r->res->began_unix_us = clock_unix_us();
	r->begun_us = clock_us();
	event_add(r->tick, &tick);
	event_add(r->stop[0], NULL);
	event_add(r->stop[1], NULL);
	if (r->closed) {
		fill(r);
	} else {
		next_due(r);
		wait_until_due(r);
	}
	event_base_dispatch(r->base);
	r->res->wall_us = clock_us() - r->begun_us;
	r->res->cpu_us = cpu_us() - cpu;
	close_window(r);
}

int run_load(const struct bench_options *o, const struct server_info *server, struct result *ret,
             struct err *err)
{
	struct bench_run r = {.o = o, .res = ret};
	result_init(ret);
	int code = run_open(&r, server, err);
	if (code == 0)
		run_all(&r);
	run_close(&r);
	return code;
}
