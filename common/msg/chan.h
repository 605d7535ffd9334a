/* chan.h - all of a daemon's message links: one bound ROUTER socket, one DEALER socket for each
 * peer that it connects to. protobuf-c bodies go in and come out; ZeroMQ stops here. One thread:
 * the event loop's.
 *
 * A link joins two daemons' lives (name, epoch each). The connecting side says HELLO, the bound
 * side WELCOME (or refuses). Messages with MSG_NUMBERED are numbered, acknowledged cumulatively,
 * kept in a bounded window until acknowledged, and sent again after a reconnect: the receiver gets
 * each once and in order for as long as both lives last. When either side has a new epoch the link
 * restarts, what was in the window is dropped and `down` then `up` are called: the owner
 * re-establishes its state from what it knows (requests, leases), not from messages. A peer is down
 * when it says goodbye, when its process ends (pidfd, same host), when it was silent for
 * `silence_us` (twice that on a watched link without work, five times between watched processes of
 * which neither is a router), or when it talks but acknowledges nothing.
 *
 * Nothing that a peer sends ends the daemon: what does not decode, has an unknown type, or lacks a
 * request id is counted, logged (rate-limited) and dropped. A HELLO of another protocol version is
 * refused with both numbers.
 *
 * Links are local (ipc). The process at the other end is known from the kernel: a HELLO that names
 * another process, or a name that a living process has, is refused, and each message of a link must
 * come from the process that said HELLO.
 *
 * A body longer than MSG_PART_BYTES travels in parts and is put together again, so what waits in
 * sockets is bounded by bytes: SOCKET_MESSAGES (chan.c) times MSG_PART_BYTES for each connection
 * and direction. That bounds daemons, not attackers: libzmq counts messages, so a process that
 * may open the socket (own user and its group) can send endless multipart messages. */
#ifndef MSG_CHAN_H
#define MSG_CHAN_H

#include "msg/process.h"
#include "msg/types.h"
#include "util/err.h"
#include "util/log.h"

#include <stddef.h>
#include <stdint.h>

struct chan;
struct peer;
struct event_base;

struct msg_head {
	struct reqid req; /* 0, 0: about no request */
	uint32_t attempt;
	/* local monotonic clock, 0: none. Travels as the time that remains */
	uint64_t deadline_us;
};

struct chan_asked;
#define CHAN_LATER 1
#define CHAN_ASKED_MAX 64u /* questions that are not answered yet; the next ones are refused */

struct chan_hooks {
	void *arg;
	/* Fills what this daemon says of itself to this peer in HELLO/WELCOME; called before each. w
	 * is zeroed, its strings may point to the daemon's own. NULL: no worker. */
	int (*describe)(void *arg, Pds__WorkerInfo *w); /* 1: w is filled */
	/* A peer says HELLO: 0 admits it; else reason (a sentence with both values) is sent back and
	 * the peer is refused. NULL: admit all. */
	int (*admit)(void *arg, const char *name, uint64_t epoch, const Pds__Hello *hello, char *reason,
	             size_t reason_len);
	void (*up)(void *arg, struct peer *p);
	/* its pointer stays valid until the next up or destroy */
	void (*down)(void *arg, struct peer *p, const char *why);
	void (*message)(void *arg, struct peer *p, enum msg_type type, const struct msg_head *head,
	                const ProtobufCMessage *body);
	void (*heartbeat)(void *arg, struct peer *p, Pds__Heartbeat *hb); /* fill; NULL: empty ones */
	/* pdctl, which process who runs: the answer (JSON), or an error sentence, as a malloc'd string
	 * in *ret_text; 0 or ERR_*. Or CHAN_LATER: chan_answer follows, with `asked`, which is the
	 * hook's until then if it says so. */
	int (*ctl)(void *arg, struct chan_asked *asked, const struct process_origin *who,
	           const char *command, char *const *args, size_t n_args, char **ret_text);
};

struct chan_opts {
	const char *program, *name;
	uint64_t epoch;
	const char *bind; /* "ipc:///run/pdserve/decode-1.ipc"; NULL: binds nothing */
	/* interval between routers and workers at work; else 5 to 10 times that, never more than a
	 * quarter of what the peer bears */
	uint64_t heartbeat_us;
	uint64_t silence_us;
	/* unacknowledged messages of a link; past it chan_send says ERR_FULL */
	uint32_t window_messages;
	size_t window_bytes;
	uint32_t peers_max;       /* that connected to us and that we connect to */
	size_t message_bytes_max; /* of a whole body, in one part or several */
	/* what is not acknowledged by then is sent again; acknowledgements take a quarter of it; 0:
	 * 400 ms */
	uint64_t resend_us;
	/* for tests: loses, repeats, delays messages, as fault.h says; NULL or "": none */
	const char *fault;
};

int chan_new(struct event_base *base, const struct chan_opts *opts, const struct chan_hooks *hooks,
             struct chan **ret_c, struct err *err);
/* says goodbye to all, waits at most 300 ms for their answers, then at most 1 s for what must
 * leave */
void chan_destroy(struct chan **c);

/* Connects (in the background, again and again until chan_disconnect). tag is kept for the owner.
 * expected_name may be NULL. NULL, after a line in the log: the limit on peers (peers_max) is
 * reached, or the system has no descriptors left. */
struct peer *chan_connect(struct chan *c, const char *endpoint, const char *expected_name, int tag);
/* p is not to be used any more after the hook, or the call of the loop, that this was called
 * from. */
void chan_disconnect(struct chan *c, struct peer *p);
struct peer *chan_find(struct chan *c, const char *name); /* an up peer, or NULL */
/* iterate over all peers, NULL first */
struct peer *chan_next(struct chan *c, struct peer *after);

/* body is packed before the return. Numbered: kept until acknowledged, also while the peer is
 * reconnecting; ERR_FULL when the window or the memory is full; ERR_CLOSED when the peer is not
 * up. Not numbered: sent if that is possible now, else dropped (0 all the same). ERR_INVALID,
 * after a line in the log: the peer would refuse it, for its size (message_bytes_max; not
 * numbered: MSG_PART_BYTES) or for what msg_validate says. */
int chan_send(struct chan *c, struct peer *p, enum msg_type type, const struct msg_head *head,
              const ProtobufCMessage *body);

const char *peer_name(const struct peer *p); /* "?" before hello */
uint64_t peer_epoch(const struct peer *p);
/* within `down`: its process lives, it had lost sight of us, and it is up again next */
int peer_link_restarts(const struct peer *p);
/* the name that chan_connect was given; "" for none */
const char *peer_expected(const struct peer *p);
int peer_said_goodbye(const struct peer *p); /* within `down`: it ends in order */
/* what chan_connect was given; "" for those that connected to us */
const char *peer_endpoint(const struct peer *p);
int peer_is_up(const struct peer *p);
int peer_tag(const struct peer *p); /* 0 for those that connected to us */
const char *peer_program(const struct peer *p);
/* from its HELLO; NULL if it is no worker, or if we connected to it */
const Pds__WorkerInfo *peer_worker(const struct peer *p);
uint64_t peer_heard_us(const struct peer *p);
void *peer_data(const struct peer *p);
void peer_set_data(struct peer *p, void *data); /* the owner's; cleared after down */

struct chan_counts {
	uint64_t sent, received, resent, duplicates, bad, dropped;
	uint64_t faults; /* messages that the fault layer touched */
	uint32_t peers_up;
};
void chan_counts(const struct chan *c, struct chan_counts *ret);

/* Answers a question of pdctl; `asked` is freed. What is not answered when the chan ends never
 * is. */
void chan_answer(struct chan *c, struct chan_asked *asked, int code, const char *text);

/* pdctl's side: one question, one answer, blocking, with a bound. *ret_text (NULL before) is
 * malloc'd: what was answered, also with an error; it stays NULL without an answer. Returns the
 * reply's code, or ERR_TIMEOUT ... */
int chan_ask(const char *endpoint, const char *command, char *const *args, size_t n_args,
             uint64_t timeout_us, char **ret_text, struct err *err);

#endif
