/* redis_lane.h - one connection to Redis with its own thread and queue. The Redis tier has a few, so that a look-up does not wait behind blocks.
 *
 * What is to be done is a `redis_work`: it waits in the lane's queue, is begun on the lane's thread (it then sends commands), gets the replies
 * there, and ends by redis_work_over. A work that is not over by its deadline, or when the connection is lost, is ended by the lane; replies
 * that are still owed to it are then read and dropped, and its memory is released after the last of them.
 *
 * The lane connects by itself, says who it is (AUTH, SELECT) and asks for one key before it calls itself ready. It tries again at once when the last
 * connection was of use, then after 100 ms, then twice that, up to 5 s. Work is taken only while it is ready. A connection is given up when it breaks, when the server says what cannot be a
 * reply, when replies are owed and nothing moves for timeout_us, and when three works in a row ran past their deadline. */
#ifndef STORAGE_REDIS_LANE_H
#define STORAGE_REDIS_LANE_H

#include "redis_conn.h"

#include "util/list.h"

#include <stdint.h>

struct redis_lane;
struct redis_work;

struct redis_work_ops {
	/* Sends the first commands. It may be over when this returns. */
	void (*begin)(struct redis_lane *l, struct redis_work *w);
	/* There is room to send a value: after redis_lane_wait_room. */
	void (*proceed)(struct redis_lane *l, struct redis_work *w);
	/* A part of a reply (depth > 0) or a whole one to the command that was sent with this tag. Not called any more when it is over. */
	void (*item)(struct redis_lane *l, struct redis_work *w, uint32_t tag, const struct redis_item *it);
	/* Ended by the lane, without redis_work_over: ERR_TIMEOUT, ERR_CLOSED (connection lost) or ERR_CANCELLED (the lane ends). */
	void (*end)(struct redis_work *w, int code);
	void (*release)(struct redis_work *w);   /* last call; NULL: free(w) */
};

/* The first member of a work; zeroed, then ops and deadline_us set by who makes it. */
struct redis_work {
	struct list link;            /* the lane's: in its queue, then under way or waiting for room */
	const struct redis_work_ops *ops;
	uint64_t deadline_us;        /* monotonic */
	uint64_t begun_us;           /* 0: it still waits */
	uint32_t owed;               /* replies */
	size_t weight;               /* bytes that it asks for */
	int over, submitted;
	int short_limit;             /* its deadline says nothing about the server's health */
};

struct redis_lane_opts {
	const char *name;                      /* in log lines; static */
	struct redis_address address;
	const char *username, *password;       /* NULL: none; live as long as the lane, as does prefix */
	const char *prefix;
	unsigned db;
	uint64_t timeout_us;
	uint32_t depth;                        /* works under way at a time, */
	size_t window_bytes;                   /* and of their weight, but for one; 0: any */
	uint64_t beat_us;                      /* 0: none */
	void (*beat)(void *user, struct redis_lane *l);   /* at once when ready, then every beat_us; on the lane's thread */
	void *user;
};

#define REDIS_QUEUE_MAX 1024u   /* works that wait */

/* ERR_NOMEM when no thread can be had. */
int redis_lane_new(const struct redis_lane_opts *o, struct redis_lane **ret, struct err *err);
/* Ends all its works with ERR_CANCELLED and the thread. */
void redis_lane_destroy(struct redis_lane **l);

/* Any thread. 0: the work is the lane's; ERR_CLOSED: it is not ready; ERR_FULL: REDIS_QUEUE_MAX wait. */
int redis_lane_submit(struct redis_lane *l, struct redis_work *w);
int redis_lane_ready(struct redis_lane *l);

struct redis_lane_stat {
	int ready;
	char why[80];         /* it is not */
	uint64_t queued, oldest_us;
};
void redis_lane_stat(struct redis_lane *l, struct redis_lane_stat *ret);

/* --- for works, on the lane's thread --- */

/* Begins a work that waits in no queue. */
void redis_lane_begin(struct redis_lane *l, struct redis_work *w);
/* The reply will come with this tag. w NULL: whatever it is, it is dropped. */
void redis_lane_command(struct redis_lane *l, struct redis_work *w, uint32_t tag, unsigned n, const struct redis_arg *arg);
void redis_lane_command_value(struct redis_lane *l, struct redis_work *w, uint32_t tag, unsigned n, const struct redis_arg *arg, unsigned at,
                              const void *value, void (*release)(void *value));
void redis_lane_allow(struct redis_lane *l, size_t bytes);   /* as redis_conn_allow */
/* proceed is called when little is left to be sent, in the order of these calls. */
void redis_lane_wait_room(struct redis_lane *l, struct redis_work *w);
/* It has its end. w must not be used after it: it may be gone. */
void redis_work_over(struct redis_lane *l, struct redis_work *w);
/* The server said what it cannot have meant: the connection is given up (soon). why: static. */
void redis_lane_distrust(struct redis_lane *l, const char *why);

#endif
