/* redis_link.c - see redis_int.h: three hiredis connections on one thread with one libevent base.
 *
 * Invariants: a work is in its line's list `waiting` (not started) or `running` (started, in
 * order), or it is over and owed replies, when only hiredis refers to it. No work is started and no
 * connection closed from within a reply: `step` does that, once per turn of the loop. While the
 * link is away its queue is empty, and redis_submit fails at once on the caller's thread. Works are
 * ended and released without the lock.
 *
 * The three connections form one link: each authenticates (AUTH, SELECT) and asks for one key
 * before the link is ready, and when one is lost all are closed. The next attempt is immediate if
 * the last link was useful, then after 100 ms, doubling up to 5 s. The link is closed when a
 * connection breaks, when the server sends an invalid reply, when a reply is overdue by twice
 * timeout_ms, or when three consecutive works time out. This is logged once, as is the return;
 * attempts in between are not.
 *
 * Changes to hiredis's behaviour: what a server can make it allocate is bounded (`charge`,
 * `on_readable`), blocks are read in the receive buffer (`on_string`), and sent from the buffer
 * that they were copied into (`send_more`), because hiredis's output buffer would copy each block
 * twice and move the rest at each partial write. */
#include "redis_int.h"

#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <hiredis/async.h>
#include <hiredis/adapters/libevent.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BEAT_US 2000000u
/* most bytes requested at a time: more would only make the server buffer replies */
#define GET_WINDOW_BYTES ((size_t)6 << 20)
#define REPLY_BYTES ((size_t)64 << 10) /* most unparsed bytes of a reply that is not a block */
#define BUILT_BYTES ((size_t)4 << 20)  /* most memory for the objects of one reply */
#define READ_BYTES ((size_t)256 << 10)
#define HIREDIS_READ_BYTES 16384 /* hiredis's read size */
/* when less than this is left of a value, the next may be copied */
#define ROOM_BYTES ((size_t)256 << 10)
#define PAUSE_FIRST_US 100000u
#define PAUSE_MAX_US 5000000u
/* after this time of being ready, the next attempt is immediate */
#define STEADY_US 10000000u
#define LATE_MAX 3u
/* a reply overdue by this many times timeout_ms closes the connections */
#define OWED_TIMEOUTS 2u

/* A value to be sent, and the command text around it. */
struct value {
	struct redis_work *work; /* NULL: none */
	const char *before, *at, *after;
	size_t left;
};

struct redis_conn {
	struct redis_link *link;
	redisAsyncContext *ac;                /* NULL: not connected */
	redisReplyObjectFunctions build, own; /* hiredis's functions, and our wrappers */
	size_t built, allowed;
	struct list waiting, running, turn;
	unsigned n_running; /* works started and not released */
	size_t weight;      /* of these works */
	/* consecutive works that started in time and missed their deadline */
	unsigned late;
	struct redis_work hello;
	struct value now, next; /* being sent; ready to be sent */
};

struct redis_link {
	struct redis_tier *t;
	pthread_t thread;
	struct event_base *base;
	struct event *woken, *step, *retry, *beat;
	int wake; /* eventfd: inbox not empty, or stop */
	_Atomic uint64_t oldest_us;

	/* protected by the tier's lock */
	struct list inbox;
	unsigned queued[REDIS_LINES]; /* in the inbox and in `waiting` */
	int ready, stop;
	char why[80]; /* why it is not ready */

	/* private to the thread */
	struct redis_conn line[REDIS_LINES];
	unsigned n_greeted;
	uint64_t heard_us; /* time of the latest received data */
	uint64_t ready_us, pause_us;
	int end_code; /* for works of a connection being closed */
	/* a submitted work was completed since connecting */
	int useful;
	char broken[80]; /* why the connections must be closed; "": they need not */
	char in[READ_BYTES];
};

static void set_timer(struct event *e, uint64_t us)
{
	struct timeval tv = clock_timeval(us);
	event_add(e, &tv);
}

/* Schedules the closing of the connections; keeps the first reason, with unprintable bytes replaced
 * because the server may have sent it. */
__attribute__((format(printf, 2, 3))) static void link_break(struct redis_link *l, const char *fmt,
                                                             ...)
{
	if (l->broken[0])
		return;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(l->broken, sizeof l->broken, fmt, ap);
	va_end(ap);
	for (char *c = l->broken; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	event_active(l->step, EV_TIMEOUT, 0);
}

static void no_answer(struct redis_link *l, uint64_t asked_us)
{
	if (l->heard_us < asked_us)
		link_break(l, "no answer for %llu ms",
		           (unsigned long long)((clock_us() - asked_us) / 1000));
	else
		link_break(l, "too slow: answers take more than %llu ms",
		           (unsigned long long)(l->t->timeout_us / 1000));
}

void redis_distrust(struct redis_work *w, const char *why)
{
	link_break(w->t->link, "%s", why);
}

/* --- works --- */

static struct redis_conn *line_of(const struct redis_work *w)
{
	return &w->t->link->line[w->line];
}

static void note_oldest(struct redis_link *l)
{
	uint64_t oldest = 0;
	for (int i = 0; i < REDIS_LINES; i++) {
		const struct list *running = &l->line[i].running;
		uint64_t begun = list_empty(running)
		                     ? 0
		                     : list_entry(running->next, struct redis_work, link)->begun_us;
		oldest = !oldest || (begun && begun < oldest) ? begun : oldest;
	}
	atomic_store_explicit(&l->oldest_us, oldest, memory_order_relaxed);
}

/* Called after each call of a work's functions: releases it if it is over and owed nothing. */
static void settle(struct redis_work *w)
{
	struct redis_link *l = w->t->link;
	struct redis_conn *n = line_of(w);
	if (!w->over || w->owed)
		return;
	if (n->next.work == w)
		n->next.work = NULL;
	if (w->begun_us) {
		n->n_running--;
		n->weight -= w->weight;
		event_active(l->step, EV_TIMEOUT, 0); /* room for others */
	}
	if (event_initialized(&w->timer))
		event_del(&w->timer);
	if (w->ops->release)
		w->ops->release(w);
	else
		free(w);
}

static void work_over(struct redis_work *w)
{
	w->over = 1;
	list_remove(&w->link);
	list_remove(&w->turn);
	note_oldest(w->t->link);
}

void redis_over(struct redis_work *w)
{
	w->t->link->useful |= w->submitted;
	line_of(w)->late = 0;
	if (w->owed)
		redis_deadline(w, OWED_TIMEOUTS * w->t->timeout_us);
	work_over(w);
}

static void unqueue(struct redis_work *w)
{
	struct redis_link *l = w->t->link;
	pthread_mutex_lock(&l->t->lock);
	l->queued[w->line]--;
	pthread_mutex_unlock(&l->t->lock);
}

/* Ended by the link; its memory stays until no reply is owed. */
static void work_end(struct redis_work *w, int code)
{
	if (!w->begun_us)
		unqueue(w);
	work_over(w);
	w->ops->end(w, code);
	settle(w);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
	struct redis_work *w = arg;
	struct redis_link *l = w->t->link;
	(void)fd, (void)what;
	if (w->over) {
		no_answer(l, w->begun_us); /* an owed reply is overdue */
		return;
	}
	if (w->begun_us && clock_us() - w->begun_us > l->t->timeout_us / 2 &&
	    ++line_of(w)->late == LATE_MAX)
		no_answer(l, w->begun_us);
	if (w->owed)
		redis_deadline(w, (OWED_TIMEOUTS - 1) * l->t->timeout_us);
	work_end(w, ERR_TIMEOUT);
}

void redis_deadline(struct redis_work *w, uint64_t in_us)
{
	if (!event_initialized(&w->timer))
		evtimer_assign(&w->timer, w->t->link->base, on_deadline, w);
	set_timer(&w->timer, in_us);
}

void redis_begin(struct redis_work *w)
{
	struct redis_conn *n = line_of(w);
	w->begun_us = clock_us();
	n->n_running++;
	n->weight += w->weight;
	list_push_back(&n->running, &w->link);
	note_oldest(n->link);
	redis_deadline(w, clock_left_us(w->deadline_us));
	w->ops->begin(w);
	settle(w);
}

static void begin_waiting(struct redis_conn *n)
{
	while (!list_empty(&n->waiting) && n->n_running < n->link->t->depth && !n->link->broken[0]) {
		struct redis_work *w = list_entry(n->waiting.next, struct redis_work, link);
		if ((w->alone && n->n_running) || (n->weight && n->weight + w->weight > GET_WINDOW_BYTES))
			return;
		list_remove(&w->link);
		unqueue(w);
		redis_begin(w);
	}
}

/* --- commands --- */

/* hiredis callback. r NULL: the connection is being closed. */
static void on_reply(redisAsyncContext *ac, void *r, void *arg)
{
	struct redis_work *w = arg;
	struct redis_conn *n = ac->data;
	w->owed--;
	if (n->now.work == w) {
		n->now.work = NULL;
		if (r)
			link_break(n->link, "the server replied before it had the block");
	}
	if (!w->over && r && !n->link->broken[0])
		w->ops->reply(w, r);
	if (!w->over && !w->owed && (!r || n->link->broken[0]))
		work_end(w, n->link->end_code);
	else
		settle(w);
}

static void sent(struct redis_conn *n, struct redis_work *w, int code)
{
	if (code != REDIS_OK)
		link_break(n->link, "the connection accepts no commands");
	else if (w)
		w->owed++;
}

void redis_ask(struct redis_link *l, enum redis_line line, struct redis_work *w, const char *format,
               ...)
{
	struct redis_conn *n = &l->line[line];
	va_list ap;
	va_start(ap, format);
	sent(n, w, redisvAsyncCommand(n->ac, w ? on_reply : NULL, w, format, ap));
	va_end(ap);
}

void redis_ask_argv(struct redis_link *l, enum redis_line line, struct redis_work *w, int n_args,
                    const char **arg, const size_t *bytes)
{
	struct redis_conn *n = &l->line[line];
	sent(n, w, redisAsyncCommandArgv(n->ac, w ? on_reply : NULL, w, n_args, arg, bytes));
}

void redis_allow(struct redis_link *l, size_t bytes)
{
	for (int i = 0; i < REDIS_LINES; i++)
		if (l->line[i].allowed < bytes + REPLY_BYTES)
			l->line[i].allowed = bytes + REPLY_BYTES;
}

/* --- sending values: hiredis sends the text before, we the value, hiredis the text after --- */

static void send_next(struct redis_conn *n)
{
	n->now = n->next;
	n->next.work = NULL;
	if (n->now.work)
		sent(n, n->now.work,
		     redisAsyncFormattedCommand(n->ac, on_reply, n->now.work, n->now.before,
		                                strlen(n->now.before)));
}

/* Copies the next value when little of the current one is left, so that few buffers are in use and
 * the connection is never idle. */
static void next_turn(struct redis_conn *n)
{
	while (!n->next.work && (!n->now.work || n->now.left < ROOM_BYTES) && !list_empty(&n->turn) &&
	       !n->link->broken[0]) {
		struct redis_work *w = list_entry(n->turn.next, struct redis_work, turn);
		list_remove(&w->turn);
		w->ops->turn(w);
		settle(w);
		if (!n->now.work)
			send_next(n);
	}
}

void redis_wait_turn(struct redis_work *w)
{
	struct redis_conn *n = line_of(w);
	list_push_back(&n->turn, &w->turn);
	event_active(n->link->step, EV_TIMEOUT, 0);
}

void redis_send_value(struct redis_work *w, const char *before, const void *value, size_t bytes,
                      const char *after)
{
	line_of(w)->next = (struct value){w, before, value, after, bytes};
}

/* 1: more is to be written. */
static int send_more(struct redis_conn *n)
{
	struct value *v = &n->now;
	while (v->work && !n->link->broken[0]) {
		ssize_t sent = send(n->ac->c.fd, v->at, v->left, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno != EAGAIN)
			link_break(n->link, "%s", strerror(errno));
		if (sent < 0)
			return 1;
		v->at += sent;
		v->left -= (size_t)sent;
		next_turn(n);
		if (v->left)
			continue;
		redisAppendFormattedCommand(&n->ac->c, v->after, strlen(v->after));
		send_next(n);
		next_turn(n);
		return 1;
	}
	return 0;
}

/* hiredis hook: its output buffer is empty. */
static void on_written(void *events)
{
	struct redis_conn *n = ((redisLibeventEvents *)events)->context->data;
	if (send_more(n))
		redisLibeventAddWrite(events);
	else
		redisLibeventDelWrite(events);
}

/* --- receiving replies --- */

/* Returns the line if the reply was requested and `bytes` more are within the bound, else NULL. */
static struct redis_conn *charge(const redisReadTask *task, size_t bytes)
{
	struct redis_conn *n = task->privdata;
	if (!task->parent) {
		n->built = 0;
		if (!n->ac || !n->ac->replies.head) {
			link_break(n->link, "the server sent an unrequested reply");
			return NULL;
		}
	}
	n->built += bytes + sizeof(redisReply);
	if (n->built <= BUILT_BYTES)
		return n;
	link_break(n->link, "a reply of more than %zu bytes", BUILT_BYTES);
	return NULL;
}

/* Passes a block to its work; hiredis keeps only an empty string. */
static void *on_string(const redisReadTask *task, char *text, size_t bytes)
{
	struct redis_conn *n = task->privdata;
	int whole = !task->parent && task->type == REDIS_REPLY_STRING && n->ac && n->ac->replies.head &&
	            n->ac->replies.head->fn;
	struct redis_work *w = whole ? n->ac->replies.head->privdata : NULL;
	if (w && w->ops->value) {
		if (!w->over && !n->link->broken[0])
			w->ops->value(w, text, bytes);
		bytes = 0;
	}
	return charge(task, bytes) ? n->build.createString(task, text, bytes) : NULL;
}

static void *on_array(const redisReadTask *task, int elements)
{
	struct redis_conn *n = charge(task, (size_t)(elements > 0 ? elements : 0) * sizeof(void *));
	return n ? n->build.createArray(task, elements) : NULL;
}

static void *on_integer(const redisReadTask *task, long long number)
{
	struct redis_conn *n = charge(task, 0);
	return n ? n->build.createInteger(task, number) : NULL;
}

static void *on_nil(const redisReadTask *task)
{
	struct redis_conn *n = charge(task, 0);
	return n ? n->build.createNil(task) : NULL;
}

/* hiredis reads small pieces: reads all but the last byte here. */
static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct redis_conn *n = arg;
	struct redis_link *l = n->link;
	int there = 0;
	(void)what;
	if (ioctl(fd, FIONREAD, &there) == 0 && there > HIREDIS_READ_BYTES) {
		ssize_t got = recv(fd, l->in,
		                   (size_t)there <= sizeof l->in ? (size_t)there - 1 : sizeof l->in,
		                   MSG_DONTWAIT);
		if (got > 0)
			redisReaderFeed(n->ac->c.reader, l->in, (size_t)got);
	}
	redisAsyncHandleRead(n->ac);
	if (n->ac && n->ac->c.reader->len - n->ac->c.reader->pos > n->allowed)
		link_break(l, "a reply of more than the %zu bytes requested", n->allowed);
	l->heard_us = clock_us();
}

/* --- handshake: a work that starts before the link is ready --- */

static void link_ready(struct redis_link *l)
{
	pthread_mutex_lock(&l->t->lock);
	l->ready = 1;
	pthread_mutex_unlock(&l->t->lock);
	l->ready_us = clock_us();
	log_notice("redis_ready", "connections=%d", REDIS_LINES);
	set_timer(l->beat, 0);
}

static void hello_begin(struct redis_work *w)
{
	const struct redis_tier *t = w->t;
	if (t->password && t->username)
		redis_ask(t->link, w->line, w, "AUTH %s %s", t->username, t->password);
	else if (t->password)
		redis_ask(t->link, w->line, w, "AUTH %s", t->password);
	if (t->db)
		redis_ask(t->link, w->line, w, "SELECT %u", t->db);
	/* checks permission, and that the server is not loading or a replica without its master */
	redis_ask(t->link, w->line, w, "EXISTS %s", t->prefix);
}

static void hello_reply(struct redis_work *w, const redisReply *r)
{
	struct redis_link *l = w->t->link;
	const char *to = w->owed == 0 ? "EXISTS" : w->owed == 1 && w->t->db ? "SELECT" : "AUTH";
	if (r->type == REDIS_REPLY_ERROR)
		link_break(l, "%s: %.100s", to, r->str);
	else if (r->type != (w->owed ? REDIS_REPLY_STATUS : REDIS_REPLY_INTEGER))
		link_break(l, "%s: not a Redis reply", to);
	if (l->broken[0] || w->owed)
		return;
	redis_over(w);
	if (++l->n_greeted == REDIS_LINES)
		link_ready(l);
}

static void hello_end(struct redis_work *w, int code)
{
	if (code == ERR_TIMEOUT)
		link_break(w->t->link, "no answer within %llu ms of connecting",
		           (unsigned long long)(w->t->timeout_us / 1000));
}

static void hello_release(struct redis_work *w)
{
	(void)w;
}

static const struct redis_work_ops hello_ops = {
	.begin = hello_begin, .reply = hello_reply, .end = hello_end, .release = hello_release};

/* --- connected and lost --- */

/* hiredis frees the context after these two. */
static void on_connect(const redisAsyncContext *ac, int status)
{
	struct redis_conn *n = ac->data;
	if (status == REDIS_OK)
		return;
	n->ac = NULL;
	link_break(n->link, "%s", ac->c.errstr);
}

static void on_disconnect(const redisAsyncContext *ac, int status)
{
	struct redis_conn *n = ac->data;
	(void)status;
	n->ac = NULL;
	link_break(n->link, "%s", ac->errstr);
}

static void line_connect(struct redis_conn *n)
{
	struct redis_link *l = n->link;
	const struct redis_address *to = &l->t->address;
	redisAsyncContext *ac = to->port ? redisAsyncConnect(to->host, to->port)
	                                 : redisAsyncConnectUnix(to->host);
	if (!ac || ac->err) {
		link_break(l, "%s", ac ? ac->errstr : "out of memory");
		if (ac)
			redisAsyncFree(ac);
		return;
	}
	fcntl(ac->c.fd, F_SETFD, FD_CLOEXEC);
	if (to->port) /* detects a dead host even without requests, though late */
		setsockopt(ac->c.fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
	n->ac = ac;
	n->allowed = REPLY_BYTES;
	n->build = *ac->c.reader->fn;
	n->own = n->build;
	n->own.createString = on_string;
	n->own.createArray = on_array;
	n->own.createInteger = on_integer;
	n->own.createNil = on_nil;
	ac->c.reader->fn = &n->own;
	ac->c.reader->privdata = n;
	ac->c.reader->maxbuf = 0; /* keep the buffer between blocks */
	ac->data = n;
	redisLibeventAttach(ac, l->base);
	redisLibeventEvents *events = ac->ev.data;
	event_del(events->rev);
	event_assign(events->rev, l->base, ac->c.fd, EV_READ | EV_PERSIST, on_readable, n);
	event_add(events->rev, NULL);
	ac->ev.delWrite = on_written;
	redisAsyncSetConnectCallback(ac, on_connect);
	redisAsyncSetDisconnectCallback(ac, on_disconnect);
	n->hello = (struct redis_work){.t = l->t,
	                               .ops = &hello_ops,
	                               .line = (enum redis_line)(n - l->line),
	                               .deadline_us = clock_us() + l->t->timeout_us};
	list_init(&n->hello.turn);
	redis_begin(&n->hello);
}

static void on_retry(evutil_socket_t fd, short what, void *arg)
{
	struct redis_link *l = arg;
	(void)fd, (void)what;
	l->n_greeted = 0;
	for (int i = 0; i < REDIS_LINES && !l->broken[0]; i++)
		line_connect(&l->line[i]);
}

static void end_all(struct list *of, int code)
{
	while (!list_empty(of))
		work_end(list_entry(of->next, struct redis_work, link), code);
}

static void take_inbox(struct redis_link *l)
{
	pthread_mutex_lock(&l->t->lock);
	while (!list_empty(&l->inbox)) {
		struct redis_work *w = list_entry(l->inbox.next, struct redis_work, link);
		list_remove(&w->link);
		list_push_back(&line_of(w)->waiting, &w->link);
		redis_deadline(w, clock_left_us(w->deadline_us));
	}
	pthread_mutex_unlock(&l->t->lock);
}

/* Rejects new works and ends all present ones. */
static void link_empty(struct redis_link *l, const char *why, int code)
{
	pthread_mutex_lock(&l->t->lock);
	l->ready = 0;
	snprintf(l->why, sizeof l->why, "%s", why);
	pthread_mutex_unlock(&l->t->lock);
	l->end_code = code;
	take_inbox(l);
	for (int i = 0; i < REDIS_LINES; i++) {
		struct redis_conn *n = &l->line[i];
		redisAsyncContext *ac = n->ac;
		n->ac = NULL;
		n->late = 0;
		n->now.work = n->next.work = NULL;
		if (ac)
			redisAsyncFree(ac); /* ends works that are owed replies */
	}
	for (int i = 0; i < REDIS_LINES; i++) {
		end_all(&l->line[i].running, code);
		end_all(&l->line[i].waiting, code);
	}
}

static void link_lost(struct redis_link *l)
{
	char why[sizeof l->broken];
	memcpy(why, l->broken, sizeof why);
	event_del(l->beat);
	if (l->useful || (l->ready_us && clock_us() - l->ready_us > STEADY_US))
		l->pause_us = 0;
	link_empty(l, why, ERR_CLOSED);
	if (l->ready_us)
		log_warn("redis_away", "reason=%s", log_quote(why));
	l->ready_us = 0;
	l->useful = 0;
	l->end_code = ERR_CLOSED;
	l->broken[0] = 0;
	set_timer(l->retry, l->pause_us);
	l->pause_us = !l->pause_us                     ? PAUSE_FIRST_US
	              : l->pause_us < PAUSE_MAX_US / 2 ? 2 * l->pause_us
	                                               : PAUSE_MAX_US;
}

/* --- the thread --- */

static void on_beat(evutil_socket_t fd, short what, void *arg)
{
	struct redis_link *l = arg;
	(void)fd, (void)what;
	set_timer(l->beat, BEAT_US);
	if (!l->broken[0])
		redis_ask_figures(l->t);
}

static void on_step(evutil_socket_t fd, short what, void *arg)
{
	struct redis_link *l = arg;
	(void)fd, (void)what;
	take_inbox(l);
	if (l->broken[0])
		link_lost(l);
	for (int i = 0; i < REDIS_LINES; i++) {
		struct redis_conn *n = &l->line[i];
		begin_waiting(n);
		next_turn(n);
		if (n->ac && sdslen(n->ac->c.obuf))
			redisAsyncHandleWrite(n->ac); /* now, rather than in the loop's next turn */
	}
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
	struct redis_link *l = arg;
	uint64_t n;
	if (read(fd, &n, sizeof n) < 0)
		return; /* spurious wake-up */
	pthread_mutex_lock(&l->t->lock);
	int stop = l->stop;
	pthread_mutex_unlock(&l->t->lock);
	if (stop)
		event_base_loopbreak(l->base);
	else
		on_step(fd, what, arg);
}

static void *link_main(void *arg)
{
	struct redis_link *l = arg;
	pthread_setname_np(pthread_self(), "redis");
	event_base_dispatch(l->base);
	link_empty(l, "ending", ERR_CANCELLED);
	return NULL;
}

/* --- for other threads --- */

static void link_wake(struct redis_link *l)
{
	if (write(l->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0)
		return; /* counter full: already signalled */
}

int redis_submit(struct redis_link *l, struct redis_work *w)
{
	int r = 0, first = 0;
	list_init(&w->turn);
	pthread_mutex_lock(&l->t->lock);
	if (!l->ready || l->stop)
		r = ERR_CLOSED;
	else if (l->queued[w->line] >= REDIS_QUEUE_MAX)
		r = ERR_FULL;
	if (r == 0) {
		w->submitted = 1;
		first = list_empty(&l->inbox);
		list_push_back(&l->inbox, &w->link);
		l->queued[w->line]++;
	}
	pthread_mutex_unlock(&l->t->lock);
	if (first)
		link_wake(l);
	return r;
}

int redis_link_stat(const struct redis_link *l, struct tier_stat *ret, const char **ret_why)
{
	for (int i = 0; i < REDIS_LINES; i++)
		ret->queued += l->queued[i];
	ret->oldest_us = atomic_load_explicit(&l->oldest_us, memory_order_relaxed);
	*ret_why = l->why;
	return l->ready;
}

static void event_end(struct event **e)
{
	if (*e)
		event_free(*e);
	*e = NULL;
}

static void link_free(struct redis_link *l)
{
	event_end(&l->woken);
	event_end(&l->step);
	event_end(&l->retry);
	event_end(&l->beat);
	if (l->base)
		event_base_free(l->base);
	if (l->wake >= 0)
		close(l->wake);
	free(l);
}

static void line_init(struct redis_conn *n, struct redis_link *l)
{
	n->link = l;
	list_init(&n->waiting);
	list_init(&n->running);
	list_init(&n->turn);
}

/* The thread blocks all signals; the event loop handles them. */
static int start_thread(struct redis_link *l)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int r = pthread_create(&l->thread, NULL, link_main, l);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

int redis_link_new(struct redis_tier *t, struct redis_link **ret, struct err *err)
{
	struct redis_link *l = mem_zalloc(sizeof *l);
	l->t = t;
	l->end_code = ERR_CLOSED;
	list_init(&l->inbox);
	snprintf(l->why, sizeof l->why, "connecting");
	l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	l->base = event_base_new();
	if (l->base) {
		l->woken = event_new(l->base, l->wake, EV_READ | EV_PERSIST, on_wake, l);
		l->step = event_new(l->base, -1, 0, on_step, l);
		l->retry = evtimer_new(l->base, on_retry, l);
		l->beat = evtimer_new(l->base, on_beat, l);
		for (int i = 0; i < REDIS_LINES; i++)
			line_init(&l->line[i], l);
		event_add(l->woken, NULL);
		set_timer(l->retry, 0);
	}
	*ret = l;
	t->link = l;
	if (l->wake >= 0 && l->base && start_thread(l) == 0)
		return 0;
	link_free(l);
	*ret = NULL;
	return err_set(err, ERR_NOMEM, "redis: cannot start the connection thread");
}

void redis_link_destroy(struct redis_link **pl)
{
	struct redis_link *l = *pl;
	if (!l)
		return;
	pthread_mutex_lock(&l->t->lock);
	l->stop = 1;
	pthread_mutex_unlock(&l->t->lock);
	link_wake(l);
	pthread_join(l->thread, NULL);
	link_free(l);
	*pl = NULL;
}
