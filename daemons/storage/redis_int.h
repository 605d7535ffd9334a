/* redis_int.h - what the parts of the Redis tier share.
 *
 *   redis.c         options, the tier's calls, figures
 *   redis_work.c    what is asked of the server: puts, gets, look-ups, removal, flush, figures
 *   redis_link.c    three connections on one thread, their queues and time limits
 *   redis_value.c   what a stored block looks like
 *
 * hiredis (asynchronous, on libevent) connects, sends commands and reads replies. What is to be
 * done is a `redis_work`: it waits in the queue of one line, is begun on the link's thread (it then
 * sends commands, on any line), is given each reply there, and ends by redis_over. A work that is
 * not over by its deadline, or when a connection is lost, is ended by the link; its memory is
 * released after the last reply that is still owed to it.
 *
 * The server is not trusted: a reply that nobody asked for, or larger than what was asked for,
 * costs the connections, not memory. */
#ifndef STORAGE_REDIS_INT_H
#define STORAGE_REDIS_INT_H

#include "redis.h"
#include "redis_value.h"

#include "util/list.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdatomic.h>

/* The connections: a look-up does not wait behind blocks, nor a block behind those that go the
 * other way. */
enum redis_line { REDIS_ASK, REDIS_GET, REDIS_PUT, REDIS_LINES };

#define REDIS_PREFIX_MAX 64u
#define REDIS_QUEUE_MAX 1024u /* works that wait in each line */

struct redis_address {
	char host[256]; /* or the socket's path */
	int port;       /* 0: a local socket */
};
/* "host:port", "host" (port 6379), "[v6]:port", "unix:/path". 0 or ERR_INVALID. */
int redis_address_parse(struct redis_address *ret, const char *text, struct err *err);

struct redis_link;

struct redis_tier {
	struct tier tier;
	struct redis_link *link;
	struct redis_address address;
	char *username, *password; /* NULL: none */
	char prefix[REDIS_PREFIX_MAX + 1];
	size_t prefix_bytes;
	unsigned db;
	uint32_t depth; /* works under way at a time in each line */
	uint64_t timeout_us, lookup_us, ttl_ms;
	/* begun: what was asked before one and is answered after it is void */
	atomic_uint flushes;

	pthread_mutex_t lock; /* of what follows, and of the link's queue */
	unsigned flushing;    /* under way */
	struct tier_stat stat;
	uint64_t read_mark_us, write_mark_us; /* end of the last block that went through */
	/* the server refuses writes: until then none is tried */
	uint64_t puts_pause_until_us;
	int puts_pause_code;
	const char *puts_pause_text; /* NULL: the last put was taken */
	uint64_t refused_logged_us, evictions_seen;
	uint64_t keys_most, evictions_told; /* since somebody was last told that blocks have gone */
	void (*changed)(void *arg, const struct tier_key *key, int stored); /* or NULL */
	void *changed_arg;
};

extern const char redis_flush_text[]; /* "the redis tier is being flushed" */

/* What an error reply means for the operation: code and static text; logged now and then.
 * is_put: it may hold for all puts, which then pause. */
int redis_refusal(struct redis_tier *t, const redisReply *r, int is_put, const char **ret_text);
/* Who keeps blocks above because they are here hears that they may not be any more. Without the
 * lock. */
void redis_tell_gone(struct redis_tier *t);

/* --- redis_work.c: from any thread --- */

/* flushes: as counted before the caller saw that none is under way. */
void redis_put_block(struct redis_tier *t, struct tier_op *op, unsigned flushes);
void redis_get_block(struct redis_tier *t, struct tier_op *op, unsigned flushes);
void redis_find(struct redis_tier *t, struct tier_find *f, unsigned flushes);
/* 0: begun, or ERR_NOTFOUND */
int redis_remove_key(struct redis_tier *t, const struct tier_key *key);
void redis_flush_all(struct redis_tier *t, struct tier_flush *f);
/* On the link's thread: how much it has, what it has evicted. */
void redis_ask_figures(struct redis_tier *t);

/* --- redis_link.c --- */

struct redis_work;

struct redis_work_ops {
	/* Sends the first commands. */
	void (*begin)(struct redis_work *w);
	/* It is its turn to send a value: after redis_wait_turn. */
	void (*turn)(struct redis_work *w);
	/* A string, where it was received (it moves when this returns). `reply` follows, with an
	 * empty one, if it is not over. NULL: `reply` gets it. */
	void (*value)(struct redis_work *w, const char *bytes, size_t n);
	/* The replies to its commands, in the order in which they were sent on a line. Not called
	 * any more when it is over. */
	void (*reply)(struct redis_work *w, const redisReply *r);
	/* Ended by the link, without redis_over: ERR_TIMEOUT, ERR_CLOSED (connection lost) or
	 * ERR_CANCELLED (the tier ends). */
	void (*end)(struct redis_work *w, int code);
	void (*release)(struct redis_work *w); /* last call; NULL: free(w) */
};

/* The first member of a work; zeroed, then t, ops, line and deadline_us set by who makes it. */
struct redis_work {
	struct list link, turn; /* the link's: in its queue or under way; waits for its turn */
	struct redis_tier *t;
	const struct redis_work_ops *ops;
	enum redis_line line; /* whose queue and limits it is in */
	uint64_t deadline_us; /* monotonic */
	struct event timer;
	uint64_t begun_us; /* 0: it still waits */
	uint32_t owed;     /* replies */
	size_t weight;     /* bytes that it asks for */
	int over, submitted;
	int alone; /* begins when nothing else of its line is under way */
};

/* ERR_NOMEM: no thread */
int redis_link_new(struct redis_tier *t, struct redis_link **ret, struct err *err);
/* ends all works with ERR_CANCELLED, and the thread */
void redis_link_destroy(struct redis_link **l);
/* Any thread. 0: the work is the link's; ERR_CLOSED: it is away; ERR_FULL: REDIS_QUEUE_MAX wait. */
int redis_submit(struct redis_link *l, struct redis_work *w);
/* Adds queued, oldest_us; 1: ready, or why not. With the tier's lock held. */
int redis_link_stat(const struct redis_link *l, struct tier_stat *ret, const char **ret_why);

/* For works, on the link's thread. A command as for redisCommand, or by its arguments; w NULL:
 * whatever the reply is, it is dropped. */
void redis_begin(struct redis_work *w); /* waits in no queue */
void redis_ask(struct redis_link *l, enum redis_line line, struct redis_work *w, const char *format,
               ...);
void redis_ask_argv(struct redis_link *l, enum redis_line line, struct redis_work *w, int n,
                    const char **arg, const size_t *bytes);
/* On the line of puts: `turn` is called when no other value is being sent. There redis_send_value,
 * with the command's text (RESP) before and after the value, which must stay until w is
 * released. */
void redis_wait_turn(struct redis_work *w);
void redis_send_value(struct redis_work *w, const char *before, const void *value, size_t bytes,
                      const char *after);
/* replies of so many bytes are expected from now on */
void redis_allow(struct redis_link *l, size_t bytes);
void redis_deadline(struct redis_work *w, uint64_t in_us); /* another one */
void redis_over(struct redis_work *w);                     /* it has its end */
/* The server said what it cannot have meant: the connections are given up (soon). why: static. */
void redis_distrust(struct redis_work *w, const char *why);

#endif
