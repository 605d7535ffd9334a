/* chan.h - all message links of a daemon: one bound ROUTER socket, and one DEALER socket for each
 * peer that it connects to. Callers pass and get protobuf-c bodies; ZeroMQ is hidden here. All
 * functions run on one thread, the event loop's.
 *
 * A link joins two daemons, each identified by name and epoch. The connecting side sends HELLO, the
 * bound side answers WELCOME (or refuses). Messages with MSG_NUMBERED are numbered, acknowledged
 * cumulatively, kept in a bounded window until acknowledged, and resent after a reconnect: the
 * receiver gets each once and in order as long as both processes live. When either side has a new
 * epoch the link restarts: the window is dropped, and `down` then `up` are called. The owner then
 * re-establishes its state from what it knows (requests, leases), not from messages. A peer is down
 * when it says goodbye, when its process ends (pidfd, same host), when it was silent for
 * `silence_us` (twice that on a watched link without work, five times between watched processes of
 * which neither is a router), or when it sends but acknowledges nothing.
 *
 * Nothing that a peer sends ends the daemon: a message that does not decode, has an unknown type,
 * or lacks a request id is counted, logged (rate-limited) and dropped. A HELLO of another protocol
 * version is refused with both version numbers.
 *
 * Links on one host are ipc. The kernel identifies the process at the other end: a HELLO is refused
 * if it names another process or if a living process has its name, and each message of a link must
 * come from the process that said HELLO. Links between hosts are tcp with CURVE: each end has a key
 * that the other knows (keys.h) and that is bound to a name and a role; everything is encrypted. A
 * connection without a known key gets no further than its handshake.
 *
 * A body longer than MSG_PART_BYTES is sent in parts and joined by the receiver, so the bytes that
 * wait in sockets are bounded: SOCKET_MESSAGES (chan.c) times MSG_PART_BYTES per connection and
 * direction. This bounds daemons, not attackers: libzmq counts messages, so a process that may open
 * the socket (own user and its group) can send endless multipart messages. */
#ifndef MSG_CHAN_H
#define MSG_CHAN_H

#include "msg/keys.h"
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
	struct reqid req; /* 0, 0: not about a request */
	uint32_t attempt;
	/* local monotonic clock, 0: none. Sent as the time that remains */
	uint64_t deadline_us;
};

struct chan_asked;
#define CHAN_LATER 1
#define CHAN_ASKED_MAX 64u /* unanswered questions of pdctl; further ones are refused */

struct chan_hooks {
	void *arg;
	/* Fills w, what this daemon reports about itself in a HELLO; called before each. w is zeroed;
	 * its strings may point to the daemon's own. Returns 1 if w is filled. NULL: not a worker. */
	int (*describe)(void *arg, Pds__WorkerInfo *w);
	/* A peer says HELLO. 0 admits it; otherwise reason (a sentence with both values) is sent back
	 * and the peer is refused. NULL: admit all. */
	int (*admit)(void *arg, const char *name, uint64_t epoch, const Pds__Hello *hello, char *reason,
	             size_t reason_len);
	void (*up)(void *arg, struct peer *p);
	/* A peer that connected to us is freed after the event loop's current callback; one that we
	 * connected to stays and may come up again. */
	void (*down)(void *arg, struct peer *p, const char *why);
	void (*message)(void *arg, struct peer *p, enum msg_type type, const struct msg_head *head,
	                const ProtobufCMessage *body);
	/* fills hb; NULL: heartbeats are empty */
	void (*heartbeat)(void *arg, struct peer *p, Pds__Heartbeat *hb);
	/* A question of pdctl; `who` is the process that runs it. Puts the answer (JSON) or an error
	 * sentence as a malloc'd string into *ret_text and returns 0 or ERR_*. Or returns CHAN_LATER
	 * and calls chan_answer with `asked` later; until then the hook owns `asked`. */
	int (*ctl)(void *arg, struct chan_asked *asked, const struct process_origin *who,
	           const char *command, char *const *args, size_t n_args, char **ret_text);
};

struct chan_opts {
	const char *program, *name;
	uint64_t epoch;
	const char *bind; /* "ipc:///run/pdserve/decode-1.ipc"; NULL: binds nothing */
	/* interval between routers and workers at work; five times that otherwise; never more than a
	 * quarter of the silence that the peer tolerates */
	uint64_t heartbeat_us;
	uint64_t silence_us;
	/* limits on a link's unacknowledged messages; beyond them chan_send returns ERR_FULL */
	uint32_t window_messages;
	size_t window_bytes;
	/* "tcp://ADDRESS:PORT" where daemons of other hosts connect if their keys are known; NULL or
	 * "": none. Needs `keys` */
	const char *listen;
	/* for all links to and from other hosts; the caller's. NULL: no such links */
	struct keys *keys;
	const char *dns_servers;  /* resolve_start; NULL or "": those of /etc/resolv.conf */
	uint32_t peers_max;       /* those that connected to us plus those that we connect to */
	size_t message_bytes_max; /* of a whole body, in one part or several */
	/* a message is resent if it is not acknowledged within this time; acknowledgements are delayed
	 * by at most a quarter of it; 0: 400 ms */
	uint64_t resend_us;
};

int chan_new(struct event_base *base, const struct chan_opts *opts, const struct chan_hooks *hooks,
             struct chan **ret_c, struct err *err);
/* Says goodbye to all peers, waits up to 300 ms for their answers, then up to 1 s until the sockets
 * have sent what they hold. */
void chan_destroy(struct chan **c);

/* Connects in the background, and reconnects until chan_disconnect. tag is stored for the owner.
 * endpoint: ipc://PATH, tcp://HOST:PORT, or NAME@tcp://HOST:PORT. HOST is an address, [IPv6], or a
 * name: DNS is asked now and again whenever the link is down (chan_name.c). For tcp the peer's name
 * must be given, there or as expected_name: it selects the key that the peer must have. Otherwise
 * expected_name may be NULL. Returns NULL and logs the reason if the limit on peers (peers_max) is
 * reached, the system has no descriptors left, or there is no such key. */
struct peer *chan_connect(struct chan *c, const char *endpoint, const char *expected_name, int tag);
/* Would chan_connect find the keys that this endpoint needs? ipc needs none. If the peer's key is
 * not known the folder is read again, at most once a second. Logs nothing. */
int chan_has_keys_for(struct chan *c, const char *endpoint, const char *expected_name);
/* chan_opts.keys */
struct keys *chan_keys(const struct chan *c);
/* Reads the folder of known keys again. Peers whose key was removed are down at once; a peer that
 * we connect to and whose name has another key now is connected to with that one. Returns 1 if the
 * known keys have changed. */
int chan_keys_reload(struct chan *c);
/* p must not be used after the hook or the event loop callback that called this has returned. */
void chan_disconnect(struct chan *c, struct peer *p);
/* The peer of this name that is up, or NULL. Two processes that connect to each other are two peers
 * of each: what the one asks for by its connection is answered on that connection. */
struct peer *chan_find(struct chan *c, const char *name, int tag);
/* iterates over all peers: start with NULL */
struct peer *chan_next(struct chan *c, struct peer *after);

/* Packs body before it returns. Numbered types: kept until acknowledged, also while the peer is
 * reconnecting; ERR_FULL if the window is full or memory is out; ERR_CLOSED if the peer is not up.
 * Other types: sent if that is possible now, else dropped (returns 0 in both cases). ERR_INVALID,
 * logged: the peer would refuse the message, because of its size (message_bytes_max; for types not
 * numbered MSG_PART_BYTES) or by msg_validate. */
int chan_send(struct chan *c, struct peer *p, enum msg_type type, const struct msg_head *head,
              const ProtobufCMessage *body);

/* After ERR_FULL, if the peer would wait for what it was not sent: the link restarts, so that both
 * ends give up what they have to do with each other. `down` comes from the event loop. */
void chan_restart(struct chan *c, struct peer *p);

const char *peer_name(const struct peer *p); /* "?" before HELLO or WELCOME */
uint64_t peer_epoch(const struct peer *p);
/* within `down`: 1 if the peer's process lives but had lost its link to us; `up` follows at once */
int peer_link_restarts(const struct peer *p);
/* the expected_name of chan_connect; "" for none */
const char *peer_expected(const struct peer *p);
int peer_said_goodbye(const struct peer *p); /* within `down`: the peer shuts down in order */
/* the endpoint of chan_connect; "" for peers that connected to us */
const char *peer_endpoint(const struct peer *p);
/* the same, with the address that its host's name has at present */
const char *peer_address(const struct peer *p);
int peer_is_up(const struct peer *p);
/* why a peer that we connected to and we have no link: what either refused; NULL: none did */
const char *peer_refusal(const struct peer *p);
/* Has it acknowledged all messages of this type that were sent to it? */
int peer_has_all(const struct peer *p, enum msg_type type);
int peer_tag(const struct peer *p); /* 0 for peers that connected to us */
const char *peer_program(const struct peer *p);
/* from its HELLO; NULL if it is not a worker, or if we connected to it */
const Pds__WorkerInfo *peer_worker(const struct peer *p);
const struct process_origin *peer_origin(const struct peer *p);
uint64_t peer_heard_us(const struct peer *p);
void *peer_data(const struct peer *p);
void peer_set_data(struct peer *p, void *data); /* for the owner; set to NULL after `down` */

struct chan_counts {
	uint64_t sent, received, resent, duplicates, bad, dropped;
	uint64_t keys_refused; /* connections from other hosts with an unknown key */
	uint64_t hellos_refused;
	uint32_t peers_up;
};
void chan_counts(const struct chan *c, struct chan_counts *ret);

/* Answers a question of pdctl and frees `asked`. Questions still open when the chan is destroyed
 * get no answer. */
void chan_answer(struct chan *c, struct chan_asked *asked, int code, const char *text);

/* pdctl's side: sends one question and waits for the answer, up to timeout_us. keys: for an
 * endpoint NAME@tcp://HOST:PORT, else NULL. *ret_text must be NULL; it becomes the answer's text
 * (malloc'd), also if that is an error, and stays NULL without an answer. Returns the code of the
 * reply, or ERR_TIMEOUT, ERR_CLOSED, ERR_CORRUPT, ERR_INVALID (keys). */
int chan_ask(const char *endpoint, const struct keys *keys, const char *command, char *const *args,
             size_t n_args, uint64_t timeout_us, char **ret_text, struct err *err);

#endif
