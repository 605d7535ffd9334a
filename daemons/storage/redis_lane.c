/* redis_lane.c - see redis_lane.h.
 *
 * What always holds on the lane's thread: each command sent has a slot, in order; a work's `owed` counts its slots; a work is in exactly one of the
 * lists `waiting` (not begun), `running` (begun, or over and owed replies) and `room` (begun, wants to send a value). While it is not ready
 * the queue is empty: who asks then is told at once, on its own thread. Works are ended and released without the lock.
 *
 * A connection that is lost is logged once, and so is its return; attempts in between are not. Nothing here ends the process but bugs. */
#include "redis_lane.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <hiredis/hiredis.h>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PAUSE_FIRST_US 100000u
#define PAUSE_MAX_US 5000000u
#define STEADY_US 10000000u         /* a connection that was of use, or ready for so long: when it is lost the next attempt is made at once */
#define TIMEOUTS_MAX 3u
#define ROOM_BYTES ((size_t)256 << 10)   /* less than this unsent: the next value may be copied */

struct slot {
	struct redis_work *work;   /* NULL: nobody wants the reply */
	uint32_t tag;
	uint64_t sent_us;
};

struct redis_lane {
	struct redis_lane_opts o;
	pthread_t thread;
	int wake;                          /* eventfd: something is in the inbox, or stop */
	_Atomic uint64_t oldest_us;

	pthread_mutex_t lock;              /* of what follows */
	struct list inbox;
	uint64_t queued;                   /* inbox and waiting */
	int ready, stop;
	char why[80];

	/* the thread's */
	struct redis_conn *conn;
	struct redis_work hello;
	struct list waiting, running, room;
	uint32_t n_running;
	size_t weight;                     /* of those that run */
	struct slot *slot;                 /* ring of slots_size, a power of two */
	uint32_t slots_size, slot_first, slots;
	uint64_t moved_us;                 /* when the connection last got anything through, or the first reply was owed */
	uint64_t heard_us;                 /* when anything last came */
	uint64_t ready_us, retry_us, pause_us, beat_at_us;
	unsigned timeouts;                 /* in a row */
	int useful;                        /* something that was submitted got its end over this connection */
	char broken[80];                   /* why the connection is to be given up */
};

/* --- what a server says, fit for a log line and a state --- */

static void printable(char *out, size_t size, const char *text, size_t bytes)
{
	size_t n = bytes < size - 1 ? bytes : size - 1;
	for (size_t i = 0; i < n; i++)
		out[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
	out[n] = 0;
}

__attribute__((format(printf, 2, 3))) static void lane_break(struct redis_lane *l, const char *fmt, ...)
{
	if (l->broken[0])
		return;   /* the first reason counts */
	char text[128];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	printable(l->broken, sizeof l->broken, text, strlen(text));
}

void redis_lane_distrust(struct redis_lane *l, const char *why)
{
	lane_break(l, "%s", why);
}

/* --- works --- */

static void work_release(struct redis_lane *l, struct redis_work *w)
{
	if (w->begun_us) {
		l->n_running--;
		l->weight -= w->weight;
	}
	list_remove(&w->link);
	if (w->ops->release)
		w->ops->release(w);
	else
		free(w);
}

/* Ended by the lane; its memory stays while replies are owed. */
static void work_end(struct redis_lane *l, struct redis_work *w, int code)
{
	w->over = 1;
	w->ops->end(w, code);
	if (w->owed) {
		list_remove(&w->link);
		list_push_back(&l->running, &w->link);
	} else {
		work_release(l, w);
	}
}

void redis_work_over(struct redis_lane *l, struct redis_work *w)
{
	w->over = 1;
	l->timeouts = 0;
	l->useful |= w->submitted;
	if (!w->owed)
		work_release(l, w);
}

void redis_lane_begin(struct redis_lane *l, struct redis_work *w)
{
	w->begun_us = clock_us();
	list_push_back(&l->running, &w->link);
	l->n_running++;
	l->weight += w->weight;
	w->ops->begin(l, w);
}

void redis_lane_wait_room(struct redis_lane *l, struct redis_work *w)
{
	list_remove(&w->link);
	list_push_back(&l->room, &w->link);
}

/* --- commands and replies --- */

static void slot_push(struct redis_lane *l, struct redis_work *w, uint32_t tag)
{
	if (l->slots == l->slots_size) {
		uint32_t size = l->slots_size ? 2 * l->slots_size : 64;
		struct slot *s = mem_array(size, sizeof *s);
		for (uint32_t i = 0; i < l->slots; i++)
			s[i] = l->slot[(l->slot_first + i) & (l->slots_size - 1)];
		free(l->slot);
		l->slot = s;
		l->slots_size = size;
		l->slot_first = 0;
	}
	uint64_t now = clock_us();
	if (!l->slots)
		l->moved_us = now;
	l->slot[(l->slot_first + l->slots++) & (l->slots_size - 1)] = (struct slot){.work = w, .tag = tag, .sent_us = now};
	if (w)
		w->owed++;
}

void redis_lane_command(struct redis_lane *l, struct redis_work *w, uint32_t tag, unsigned n, const struct redis_arg *arg)
{
	slot_push(l, w, tag);
	redis_conn_command(l->conn, n, arg);
}

void redis_lane_command_value(struct redis_lane *l, struct redis_work *w, uint32_t tag, unsigned n, const struct redis_arg *arg, unsigned at,
                              const void *value, void (*release)(void *value))
{
	slot_push(l, w, tag);
	redis_conn_command_value(l->conn, n, arg, at, value, release);
}

void redis_lane_allow(struct redis_lane *l, size_t bytes)
{
	redis_conn_allow(l->conn, bytes);
}

static void on_item(void *user, const struct redis_item *it)
{
	struct redis_lane *l = user;
	if (l->broken[0])
		return;
	if (!l->slots) {
		redis_lane_distrust(l, "the server answered what nobody had asked");
		return;
	}
	struct slot s = l->slot[l->slot_first];
	struct redis_work *w = s.work;
	if (it->depth == 0) {
		l->slot_first = (l->slot_first + 1) & (l->slots_size - 1);
		l->slots--;
		if (w)
			w->owed--;
	}
	if (w && !w->over)
		w->ops->item(l, w, s.tag, it);
	else if (w && !w->owed)
		work_release(l, w);
}

/* --- ready and lost --- */

static void lane_ready(struct redis_lane *l)
{
	pthread_mutex_lock(&l->lock);
	l->ready = 1;
	pthread_mutex_unlock(&l->lock);
	l->ready_us = l->beat_at_us = clock_us();
	log_info("redis_ready", "lane=%s", l->o.name);
}

static void end_all(struct redis_lane *l, struct list *of, int code)
{
	while (!list_empty(of)) {
		struct redis_work *w = list_entry(of->next, struct redis_work, link);
		w->owed = 0;   /* the slots are gone */
		if (w->over)
			work_release(l, w);
		else
			work_end(l, w, code);
	}
}

/* Nobody is let in any more, and all who are inside are told. */
static void lane_empty(struct redis_lane *l, const char *why, int code)
{
	struct list all = LIST_INIT(all);
	pthread_mutex_lock(&l->lock);
	l->ready = 0;
	snprintf(l->why, sizeof l->why, "%s", why);
	while (!list_empty(&l->inbox)) {
		struct list *it = l->inbox.next;
		list_remove(it);
		list_push_back(&l->waiting, it);
	}
	l->queued = 0;
	pthread_mutex_unlock(&l->lock);
	redis_conn_destroy(&l->conn);
	l->slots = 0;
	end_all(l, &l->running, code);
	end_all(l, &l->room, code);
	end_all(l, &l->waiting, code);
}

static void lane_lost(struct redis_lane *l)
{
	uint64_t now = clock_us();
	int was_ready = l->ready_us != 0, idle = l->slots == 0;
	if (l->useful || (was_ready && now - l->ready_us > STEADY_US))
		l->pause_us = 0;
	l->useful = 0;
	char why[sizeof l->broken];
	memcpy(why, l->broken, sizeof why);
	l->broken[0] = 0;
	l->ready_us = 0;
	lane_empty(l, why, ERR_CLOSED);
	if (was_ready)
		log_warn("redis_away", "lane=%s idle=%d reason=%s", l->o.name, idle, log_quote(why));
	l->retry_us = now + l->pause_us;
	l->pause_us = l->pause_us ? 2 * l->pause_us : PAUSE_FIRST_US;
	if (l->pause_us > PAUSE_MAX_US)
		l->pause_us = PAUSE_MAX_US;
	l->timeouts = 0;
}

/* --- who we are: a work like others, but begun before the lane is ready --- */

enum { HELLO_AUTH, HELLO_SELECT, HELLO_KEY };
static const char *const hello_name[] = {"AUTH", "SELECT", "EXISTS"};

static struct redis_arg arg_of(const char *text)
{
	return (struct redis_arg){text, strlen(text)};
}

static void hello_begin(struct redis_lane *l, struct redis_work *w)
{
	const struct redis_lane_opts *o = &l->o;
	if (o->password) {
		struct redis_arg auth[3] = {arg_of("AUTH"), arg_of(o->username ? o->username : o->password), arg_of(o->password)};
		redis_lane_command(l, w, HELLO_AUTH, o->username ? 3 : 2, auth);
	}
	if (o->db) {
		char db[16];
		snprintf(db, sizeof db, "%u", o->db);
		redis_lane_command(l, w, HELLO_SELECT, 2, (struct redis_arg[]){arg_of("SELECT"), arg_of(db)});
	}
	redis_lane_command(l, w, HELLO_KEY, 2, (struct redis_arg[]){arg_of("EXISTS"), arg_of(o->prefix)});   /* may we, and is it there for others than replicas? */
}

static void hello_item(struct redis_lane *l, struct redis_work *w, uint32_t tag, const struct redis_item *it)
{
	if (it->type == REDIS_REPLY_ERROR)
		lane_break(l, "%s: %.*s", hello_name[tag], (int)(it->bytes < 100 ? it->bytes : 100), it->text);
	else if (it->depth > 0 ||   /* a number in an array is none */
	         it->type != (tag == HELLO_KEY ? REDIS_REPLY_INTEGER : REDIS_REPLY_STATUS))
		lane_break(l, "%s: the answer is not one of Redis", hello_name[tag]);
	else if (tag == HELLO_KEY) {
		redis_work_over(l, w);
		lane_ready(l);
	}
}

static void hello_end(struct redis_work *w, int code)
{
	struct redis_lane *l = (struct redis_lane *)((char *)w - offsetof(struct redis_lane, hello));
	if (code == ERR_TIMEOUT)
		lane_break(l, "no answer within %llu ms of connecting", (unsigned long long)(l->o.timeout_us / 1000));
}

static void hello_release(struct redis_work *w)
{
	(void)w;
}

static const struct redis_work_ops hello_ops = {.begin = hello_begin, .item = hello_item, .end = hello_end, .release = hello_release};

static void lane_connect(struct redis_lane *l)
{
	struct err err = {0};
	l->conn = redis_conn_new(&l->o.address, on_item, l, &err);
	if (!l->conn) {
		lane_break(l, "%s", err.text);
		return;
	}
	l->hello = (struct redis_work){.ops = &hello_ops, .deadline_us = clock_us() + l->o.timeout_us};
	list_init(&l->hello.link);
	redis_lane_begin(l, &l->hello);
}

/* --- the thread --- */

/* Moves what was submitted to the thread's own list; 0: the lane is to end. */
static int lane_take(struct redis_lane *l)
{
	pthread_mutex_lock(&l->lock);
	while (!list_empty(&l->inbox)) {
		struct list *it = l->inbox.next;
		list_remove(it);
		list_push_back(&l->waiting, it);
	}
	int go_on = !l->stop;
	pthread_mutex_unlock(&l->lock);
	return go_on;
}

static void unqueue(struct redis_lane *l)
{
	pthread_mutex_lock(&l->lock);
	l->queued--;
	pthread_mutex_unlock(&l->lock);
}

static void lane_start(struct redis_lane *l)
{
	while (!list_empty(&l->waiting) && l->n_running < l->o.depth && !l->broken[0]) {
		struct redis_work *w = list_entry(l->waiting.next, struct redis_work, link);
		if (l->o.window_bytes && l->weight && l->weight + w->weight > l->o.window_bytes)
			return;
		list_remove(&w->link);
		unqueue(l);
		redis_lane_begin(l, w);
	}
}

/* Sends what goes; values are copied only when those before them have nearly left, so that few buffers are in use. */
static void lane_write(struct redis_lane *l)
{
	do {
		while (!list_empty(&l->room) && redis_conn_unsent(l->conn) < ROOM_BYTES) {
			struct redis_work *w = list_entry(l->room.next, struct redis_work, link);
			list_remove(&w->link);
			list_push_back(&l->running, &w->link);
			w->ops->proceed(l, w);
		}
		struct err err;
		size_t n;
		if (redis_conn_write(l->conn, &n, &err) != 0)
			lane_break(l, "%s", err.text);
		if (n)
			l->moved_us = clock_us();
	} while (!list_empty(&l->room) && redis_conn_unsent(l->conn) < ROOM_BYTES && !l->broken[0]);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Ends what is late; the next deadline of the rest. */
static uint64_t expire(struct redis_lane *l, struct list *in, uint64_t now, uint64_t *oldest)
{
	uint64_t next = UINT64_MAX;
	list_each_safe(it, nx, in) {
		struct redis_work *w = list_entry(it, struct redis_work, link);
		if (w->over)
			continue;
		if (w->deadline_us > now) {
			next = earlier(next, w->deadline_us);
			if (w->begun_us)
				*oldest = earlier(*oldest, w->begun_us);
			continue;
		}
		if (!w->begun_us)
			unqueue(l);
		else if (!w->short_limit)
			l->timeouts++;
		work_end(l, w, ERR_TIMEOUT);
	}
	return next;
}

/* Is the server there? Returns when to look again. */
static uint64_t health(struct redis_lane *l, uint64_t now)
{
	if (!l->slots)
		return UINT64_MAX;
	uint64_t asked = l->slot[l->slot_first].sent_us;
	uint64_t silent = l->moved_us + l->o.timeout_us, late = asked + TIMEOUTS_MAX * l->o.timeout_us;
	int slow = now >= late || l->timeouts >= TIMEOUTS_MAX;
	if (now >= silent || (slow && l->heard_us < asked))
		lane_break(l, "no answer for %llu ms", (unsigned long long)((now - asked) / 1000));
	else if (slow)
		lane_break(l, "too slow: answers take more than %llu ms", (unsigned long long)(l->o.timeout_us / 1000));
	return earlier(silent, late);
}

static uint64_t beat(struct redis_lane *l, uint64_t now)
{
	if (!l->o.beat_us || !l->ready_us)
		return UINT64_MAX;
	if (now >= l->beat_at_us) {
		l->beat_at_us = now + l->o.beat_us;
		l->o.beat(l->o.user, l);
	}
	return l->beat_at_us;
}

/* All that time brings; when to come back. */
static uint64_t lane_clock(struct redis_lane *l)
{
	uint64_t now = clock_us(), oldest = UINT64_MAX, next = UINT64_MAX;
	struct list *lists[] = {&l->running, &l->room, &l->waiting};
	for (int i = 0; i < 3; i++)
		next = earlier(next, expire(l, lists[i], now, &oldest));
	atomic_store_explicit(&l->oldest_us, oldest == UINT64_MAX ? 0 : oldest, memory_order_relaxed);
	next = earlier(next, health(l, now));
	return l->conn ? next : earlier(next, l->retry_us);
}

static int until_ms(uint64_t when_us)
{
	if (when_us == UINT64_MAX)
		return -1;
	uint64_t ms = (clock_left_us(when_us) + 999) / 1000;
	return ms > 60000 ? 60000 : (int)ms;
}

static void lane_wait(struct redis_lane *l, uint64_t until_us)
{
	struct pollfd p[2] = {{.fd = l->wake, .events = POLLIN}, {.fd = -1}};
	if (l->conn)
		p[1] = (struct pollfd){.fd = redis_conn_fd(l->conn), .events = (short)(POLLIN | (redis_conn_unsent(l->conn) ? POLLOUT : 0))};
	poll(p, 2, until_ms(until_us));
	uint64_t n;
	if (p[0].revents && read(l->wake, &n, sizeof n) < 0)
		return;   /* woken for nothing */
	if (!l->conn || !(p[1].revents & (POLLIN | POLLERR | POLLHUP)))
		return;
	struct err err;
	size_t got;
	if (redis_conn_read(l->conn, &got, &err) != 0)
		lane_break(l, "%s", err.text);
	if (got)
		l->moved_us = l->heard_us = clock_us();
}

static void *lane_main(void *arg)
{
	struct redis_lane *l = arg;
	char name[16];
	snprintf(name, sizeof name, "redis-%s", l->o.name);
	pthread_setname_np(pthread_self(), name);
	while (lane_take(l)) {
		if (!l->conn && clock_us() >= l->retry_us)
			lane_connect(l);
		uint64_t until = beat(l, clock_us());
		if (l->conn && !l->broken[0]) {
			lane_start(l);
			lane_write(l);
		}
		until = earlier(until, lane_clock(l));
		if (l->broken[0])
			lane_lost(l);
		else
			lane_wait(l, until);
	}
	lane_empty(l, "ending", ERR_CANCELLED);
	return NULL;
}

/* --- for other threads --- */

static void lane_wake(struct redis_lane *l)
{
	uint64_t one = 1;
	if (write(l->wake, &one, sizeof one) < 0)
		return;   /* full: it is awake */
}

int redis_lane_submit(struct redis_lane *l, struct redis_work *w)
{
	int r = 0, first = 0;
	pthread_mutex_lock(&l->lock);
	if (!l->ready || l->stop)
		r = ERR_CLOSED;
	else if (l->queued >= REDIS_QUEUE_MAX)
		r = ERR_FULL;
	if (r == 0) {
		w->submitted = 1;
		first = list_empty(&l->inbox);
		list_push_back(&l->inbox, &w->link);
		l->queued++;
	}
	pthread_mutex_unlock(&l->lock);
	if (first)
		lane_wake(l);
	return r;
}

int redis_lane_ready(struct redis_lane *l)
{
	pthread_mutex_lock(&l->lock);
	int r = l->ready;
	pthread_mutex_unlock(&l->lock);
	return r;
}

void redis_lane_stat(struct redis_lane *l, struct redis_lane_stat *ret)
{
	pthread_mutex_lock(&l->lock);
	ret->ready = l->ready;
	ret->queued = l->queued;
	snprintf(ret->why, sizeof ret->why, "%s", l->why);
	pthread_mutex_unlock(&l->lock);
	ret->oldest_us = atomic_load_explicit(&l->oldest_us, memory_order_relaxed);
}

/* The thread takes no signals: those are the event loop's. */
static int start_thread(struct redis_lane *l)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int r = pthread_create(&l->thread, NULL, lane_main, l);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

static void lane_free(struct redis_lane *l)
{
	if (l->wake >= 0)
		close(l->wake);
	pthread_mutex_destroy(&l->lock);
	free(l->slot);
	free(l);
}

int redis_lane_new(const struct redis_lane_opts *o, struct redis_lane **ret, struct err *err)
{
	struct redis_lane *l = mem_zalloc(sizeof *l);
	l->o = *o;
	pthread_mutex_init(&l->lock, NULL);
	list_init(&l->inbox);
	list_init(&l->waiting);
	list_init(&l->running);
	list_init(&l->room);
	snprintf(l->why, sizeof l->why, "connecting");
	l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int r = l->wake < 0 ? -1 : start_thread(l);
	if (r != 0) {
		lane_free(l);
		return err_set(err, ERR_NOMEM, "redis: no thread for the connection \"%s\"", o->name);
	}
	*ret = l;
	return 0;
}

void redis_lane_destroy(struct redis_lane **pl)
{
	struct redis_lane *l = *pl;
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->stop = 1;
	pthread_mutex_unlock(&l->lock);
	lane_wake(l);
	pthread_join(l->thread, NULL);
	lane_free(l);
	*pl = NULL;
}
