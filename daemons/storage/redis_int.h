/* redis_int.h - shared by the parts of the Redis tier.
 *
 *  redis.c         options, the tier's calls, figures
 *  redis_work.c    operations on the server: puts, gets, look-ups, removal, flush, figures
 *  redis_link.c    three connections on one thread, their queues and time limits
 *  redis_value.c   format of a stored block
 *
 * hiredis (asynchronous, on libevent) connects, sends commands and reads replies. An operation is a
 * `redis_work`: it waits in the queue of one line, starts on the link's thread (sending commands on
 * any line), receives each reply there, and ends with redis_over. The link ends a work at its
 * deadline or when a connection is lost; its memory is released after the last reply still owed to
 * it.
 *
 * The server is not trusted: an unrequested or oversized reply closes the connections; it costs no
 * memory. */
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

/* The connections: look-ups do not queue behind blocks, nor blocks behind those of the other
 * direction. */
enum redis_line { REDIS_ASK, REDIS_GET, REDIS_PUT, REDIS_LINES };

#define REDIS_PREFIX_MAX 64u
#define REDIS_QUEUE_MAX 1024u /* waiting works per line */

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
	uint32_t depth; /* works in progress per line */
	uint64_t timeout_us, lookup_us, ttl_ms;
	/* flushes started; the answer to a work submitted before a flush is void */
	atomic_uint flushes;

	pthread_mutex_t lock; /* protects everything below and the link's queue */
	unsigned flushing;    /* flushes in progress */
	struct tier_stat stat;
	uint64_t read_mark_us, write_mark_us; /* end of the last successful block */
	/* the server refuses writes: no put is tried until then */
	uint64_t puts_pause_until_us;
	int puts_pause_code;
	const char *puts_pause_text; /* NULL: the last put was accepted */
	uint64_t refused_logged_us, evictions_seen;
	uint64_t keys_most, evictions_told; /* since `changed` last reported lost blocks */
	void (*changed)(void *arg, const struct tier_key *key, int stored); /* or NULL */
	void *changed_arg;
};

extern const char redis_flush_text[]; /* "the redis tier is being flushed" */

/* Maps an error reply to a code and static text; logs at a limited rate. is_put: the error may
 * apply to all puts, which then pause. */
int redis_refusal(struct redis_tier *t, const redisReply *r, int is_put, const char **ret_text);
/* Reports to `changed` that blocks may be gone, for tiers above that keep blocks stored here as
 * evictable. Call without the lock. */
void redis_tell_gone(struct redis_tier *t);

/* --- redis_work.c: from any thread --- */

/* flushes: the count read before the caller checked that no flush is in progress. */
void redis_put_block(struct redis_tier *t, struct tier_op *op, unsigned flushes);
void redis_get_block(struct redis_tier *t, struct tier_op *op, unsigned flushes);
void redis_find(struct redis_tier *t, struct tier_find *f, unsigned flushes);
/* 0: started, or ERR_NOTFOUND */
int redis_remove_key(struct redis_tier *t, const struct tier_key *key);
void redis_flush_all(struct redis_tier *t, struct tier_flush *f);
/* On the link's thread: asks for the server's size and evictions. */
void redis_ask_figures(struct redis_tier *t);

/* --- redis_link.c --- */

struct redis_work;

struct redis_work_ops {
	/* Sends the first commands. */
	void (*begin)(struct redis_work *w);
	/* After redis_wait_turn: the work may send its value. */
	void (*turn)(struct redis_work *w);
	/* A string in the receive buffer, valid only during the call. Unless the work is over, `reply`
	 * follows with an empty string. NULL: `reply` gets the string. */
	void (*value)(struct redis_work *w, const char *bytes, size_t n);
	/* The replies to its commands, in order per line. Not called after the work is over. */
	void (*reply)(struct redis_work *w, const redisReply *r);
	/* The link ends the work, without redis_over: ERR_TIMEOUT, ERR_CLOSED (connection lost) or
	 * ERR_CANCELLED (the tier is being destroyed). */
	void (*end)(struct redis_work *w, int code);
	void (*release)(struct redis_work *w); /* last call; NULL: free(w) */
};

/* First member of a work; zeroed; the creator sets t, ops, line and deadline_us. */
struct redis_work {
	struct list link, turn; /* the link's: queued or in progress; waiting to send */
	struct redis_tier *t;
	const struct redis_work_ops *ops;
	enum redis_line line; /* its queue and limits */
	uint64_t deadline_us; /* monotonic */
	struct event timer;
	uint64_t begun_us; /* 0: still queued */
	uint32_t owed;     /* replies outstanding */
	size_t weight;     /* bytes requested */
	int over, submitted;
	int alone; /* runs while no other work of its line is in progress */
};

/* ERR_NOMEM: no thread could be started */
int redis_link_new(struct redis_tier *t, struct redis_link **ret, struct err *err);
/* ends all works with ERR_CANCELLED, and the thread */
void redis_link_destroy(struct redis_link **l);
/* Any thread. 0: the link owns the work; ERR_CLOSED: server away; ERR_FULL: REDIS_QUEUE_MAX works
 * wait. */
int redis_submit(struct redis_link *l, struct redis_work *w);
/* Adds queued and oldest_us; returns 1 if ready, else 0 and the reason. Call with the tier's lock
 * held. */
int redis_link_stat(const struct redis_link *l, struct tier_stat *ret, const char **ret_why);

/* For works, on the link's thread. A command in redisCommand format, or as arguments; w NULL: the
 * reply is discarded. */
void redis_begin(struct redis_work *w); /* bypasses the queue */
void redis_ask(struct redis_link *l, enum redis_line line, struct redis_work *w, const char *format,
               ...);
void redis_ask_argv(struct redis_link *l, enum redis_line line, struct redis_work *w, int n,
                    const char **arg, const size_t *bytes);
/* On the put line: `turn` is called when no other value is being sent, and calls redis_send_value
 * with the RESP text before and after the value, which must stay valid until w is released. */
void redis_wait_turn(struct redis_work *w);
void redis_send_value(struct redis_work *w, const char *before, const void *value, size_t bytes,
                      const char *after);
/* allows replies of this many more bytes */
void redis_allow(struct redis_link *l, size_t bytes);
void redis_deadline(struct redis_work *w, uint64_t in_us); /* replaces the deadline */
void redis_over(struct redis_work *w);                     /* the work is complete */
/* The server sent an impossible reply: closes the connections (soon). why: static. */
void redis_distrust(struct redis_work *w, const char *why);

#endif
