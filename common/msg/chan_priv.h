/* chan_priv.h - shared by chan.c (sockets, sending), chan_in.c (incoming messages), chan_tick.c
 * (timers), chan_name.c (names of hosts), chan_ctl.c (pdctl), chan_bye.c (shutdown) and
 * chan_ask.c. Private to them. */
#ifndef MSG_CHAN_PRIV_H
#define MSG_CHAN_PRIV_H

#include "msg/chan.h"
#include "msg/codec.h"
#include "msg/link.h"
#include "util/list.h"
#include "util/once.h"

#include <event2/event.h>
#include <stdatomic.h>
#include <zmq.h>

#define RID_MAX 16u
#define HELLO_RETRY_US 300000u
/* default of chan_opts.resend_us; struct chan_timers has the times derived from it */
#define RESEND_US 400000u
/* a peer that has something to acknowledge and does not for STUCK_WAITS * resend_us (10 s by
 * default), or 5 * silence_us if that is longer, is down */
#define STUCK_WAITS 25u
/* messages resent, from the oldest on, when an acknowledgement is overdue */
#define RESEND_BATCH 64u
#define ACTIVE_US 1000000u /* how long a daemon counts as at work after a numbered message */
/* peers that are down are freed at the next tick, this much later at most */
#define GRAVE_US 50000u
/* Links come before all other events, so they rest between two turns while others wait: the
 * messages that one turn takes from a socket, the time for them, and the rest. */
#define DRAIN_MAX 256
#define DRAIN_US 2000u
#define REST_US 4000u

enum peer_state { PEER_HELLO, PEER_UP, PEER_REFUSED, PEER_DEAD };

struct sock { /* one ZeroMQ socket on the loop */
	struct chan *c;
	struct peer *peer; /* DEALER: the peer it connects to; NULL: the bound ROUTER */
	void *z;
	struct event *ev;
	/* makes the loop look at the socket once more: ZeroMQ's descriptor is edge-triggered */
	struct event *again;
	int takes; /* in chan_take, which looks again by itself */
	int rests; /* ev is off until `again` comes, as a timer at the latest */
};

/* A body of which some parts are still missing. */
struct chan_parts {
	unsigned char *bytes; /* NULL: none */
	size_t len, size;
	int lost; /* too long, or out of memory: drop the rest up to the last part */
};

struct peer {
	struct list node;
	struct chan *c;
	enum peer_state state;
	struct sock *dealer;        /* NULL: it connected to us */
	struct sock *accepted;      /* then: through which bound socket */
	struct chan_name *resolver; /* dealer to a host's name; else NULL */
	unsigned char rid[RID_MAX];
	size_t rid_len;
	char name[MSG_NAME_MAX + 1], expected[MSG_NAME_MAX + 1], endpoint[256];
	uint64_t epoch;
	int tag, watched;
	char server_key[KEY_PRINT_BYTES]; /* dealer to another host: fingerprint of the peer's key */
	int self;                         /* the peer is in this very process */
	/* the socket did not take our HELLO: send it as soon as the connection is up */
	int hello_waits;
	int restarting;               /* within `down`: the link restarts, `up` follows */
	int overrun;                  /* chan_restart was called: down at the next tick */
	struct process_origin origin; /* of its HELLO or WELCOME; all its messages must match it */
	struct chan_parts parts;
	int bye;       /* within `down`: it said goodbye */
	int bye_waits; /* chan_destroy: it has not yet answered our goodbye */
	void *data;
	Pds__Hello *hello; /* theirs, if they connected to us */
	char program[32];
	int pidfd;
	struct event *pid_ev;
	uint64_t heard_us, hello_us, beat_us; /* last message received; last HELLO, heartbeat sent */
	uint64_t hello_wait_us;               /* until the next HELLO; doubles while none is answered */
	/* busy: last numbered message, or heartbeat from it with news; stir: when that began after an
	 * idle time */
	uint64_t busy_us, busy_since_us;
	uint64_t ack_due_us; /* when to send an acknowledgement; 0: nothing to acknowledge */
	/* when to send from the window again, nothing before; 0: the socket has taken all of it */
	uint64_t resend_at_us;
	int resend_all;       /* at that time: 1: the whole window, 0: what the socket has not taken */
	uint64_t progress_us; /* when the window last became filled, or shorter */
	uint64_t resend_wait_us; /* timeout of an acknowledgement; doubles with each resend */
	uint64_t gap_us;         /* when we last reported a gap */
	/* peer connected to us: of the last HELLO accepted; we connected: of the last one sent */
	uint64_t hello_nth;
	uint64_t link_id; /* Hello.nth of the HELLO that began this link; 0: none */
	uint32_t their_silence_ms;
	uint64_t sent_beat_hash, heard_beat_hash; /* hash of the last heartbeat sent, received */
	char refusal[200];
	struct msg_link link;
};

struct incoming {
	struct sock *s;
	unsigned char rid[RID_MAX];
	size_t rid_len;
	struct process_origin origin;
	struct msg_in m; /* the body is decoded only once the peer is known */
	const unsigned char *bytes;
	size_t len;         /* of the undecoded body */
	unsigned char *own; /* bytes, if they must outlive ZeroMQ's frame; else NULL */
};

/* Timers of a link, all derived from chan_opts.resend_us. */
struct chan_timers {
	uint64_t resend_us; /* first timeout of an acknowledgement; doubles up to resend_max_us */
	uint64_t resend_max_us;
	/* delay of an acknowledgement if no other message is sent that can carry it */
	uint64_t ack_us;
	uint64_t retry_us; /* the socket is full: wait this long before sending the rest */
	/* shortest time between two reports of a gap, or two resends because of one */
	uint64_t gap_us;
	/* repeat HELLO after this, then twice as late, up to hello_max_us; when asked by WHO, after a
	 * sixth of it */
	uint64_t hello_us, hello_max_us;
};

struct chan {
	struct event_base *base;
	struct chan_hooks hooks;
	struct chan_opts opts;
	struct chan_timers timers;
	char *name, *program;
	void *ctx;
	struct sock *bound, *net; /* ROUTERs: for this host; for others, NULL: none */
	struct zap *zap;          /* NULL: no keys */
	struct list peers;
	struct list graveyard; /* peers that are down; freed at the next tick, owners may still look */
	uint32_t n_peers;
	unsigned n_rests; /* sockets that rest */
	/* comes, as it has the loop's default priority, after all events that waited when links had
	 * their turn; others_wait: it has not come yet */
	struct event *others;
	int others_wait;
	struct event *tick;
	uint64_t tick_at_us; /* when `tick` is due; UINT64_MAX: not armed */
	uint64_t active_us;  /* last numbered message of any link, or heartbeat with news */
	uint64_t hello_n;    /* number of HELLOs sent by this process */
	int ending;          /* chan_destroy: all messages but goodbyes are dropped */
	struct chan_counts counts;
	struct once bad, refused; /* messages; HELLOs, and links that could not be made */
	struct list asked;        /* pdctl's questions that are not answered yet */
	unsigned n_asked;
	/* bytes of pdctl's answers not yet written out; ZeroMQ's thread subtracts */
	_Atomic size_t answers_bytes;
	void *fault; /* of chan_faults; NULL: there is none */
};

/* Between the links and the sockets of a test: loses, repeats and delays messages. Called only if
 * start has set chan.fault. */
struct chan_faults {
	int (*start)(struct chan *c, struct err *err);
	void (*stop)(struct chan *c);
	/* chan_transmit */
	int (*out)(struct chan *c, struct peer *p, struct sock *s, const void *rid, size_t rid_len,
	           const Pds__Envelope *env, const void *body, size_t len);
	/* instead of chan_dispatch */
	void (*in)(struct chan *c, struct incoming *in);
	/* 1: the handler is called later; in is empty then */
	int (*late)(struct chan *c, struct peer *p, struct incoming *in);
	/* drops delayed messages to and from the peer */
	void (*forget)(struct chan *c, const struct peer *p);
};
/* tests/fault/ sets it. NULL in every program that is installed. */
extern const struct chan_faults *chan_faults;

static inline struct sock *peer_sock(const struct peer *p)
{
	return p->dealer ? p->dealer : p->accepted;
}

/* chan.c */
/* Sends one message. p: the receiver, if known. 0;
 * ERR_FULL: the connection to rid takes nothing more now; ERR_CLOSED: there is no such connection,
 * or the socket does not take it now. */
int chan_transmit(struct chan *c, struct peer *p, struct sock *s, const void *rid, size_t rid_len,
                  const Pds__Envelope *env, const void *body, size_t len);
/* The same, of bytes. chan_put_msg takes over body if it succeeds. */
int chan_put_msg(struct sock *s, const void *rid, size_t rid_len, const void *head, size_t head_len,
                 zmq_msg_t *body);
int chan_put(struct sock *s, const void *rid, size_t rid_len, const void *head, size_t head_len,
             const void *body, size_t len);
void chan_envelope(struct chan *c, struct peer *p, enum msg_type type, Pds__Envelope *env);
int chan_send_link(struct chan *c, struct peer *p, enum msg_type type,
                   const ProtobufCMessage *body);
int chan_send_rid(struct chan *c, struct sock *s, const void *rid, size_t rid_len,
                  enum msg_type type, const ProtobufCMessage *body);
/* Resends the first `most` messages of the window. */
void chan_resend(struct chan *c, struct peer *p, uint32_t most);
/* Sends the part of the window that the socket has not taken yet. */
void chan_send_rest(struct chan *c, struct peer *p);
void chan_acked(struct chan *c, struct peer *p, uint64_t ack);
/* Says HELLO; the next one follows after timers.hello_us. */
void chan_hello(struct chan *c, struct peer *p);
void chan_welcome(struct chan *c, struct peer *p, int resumed);
struct peer *chan_peer_new(struct chan *c);
void chan_peer_up(struct chan *c, struct peer *p);
/* Takes a peer down: calls `down` if it was up, and resets the link. With next PEER_DEAD the peer
 * is freed at the next tick. */
void chan_peer_down(struct chan *c, struct peer *p, const char *why, enum peer_state next);
void chan_peer_watch(struct chan *c, struct peer *p, const Pds__Process *proc);
void chan_peer_free(struct peer *p);
/* chan_in.c */
/* Handles messages for a while. Returns 0 if there are no more, else reads on in a later round. */
int chan_take(struct sock *s);
int chan_events(struct sock *s); /* ZMQ_POLLIN, ZMQ_POLLOUT */
/* Handles one message: env is its envelope, `in` the rest. Frees what `in` holds. */
void chan_arrived(struct incoming *in, const void *env, size_t env_len);
void incoming_fini(struct incoming *in);
void parts_drop(struct chan_parts *j);
struct peer *chan_find_rid(const struct sock *s, const void *rid, size_t n);
void chan_dispatch(struct chan *c, struct incoming *in); /* may take over the contents of in->m */
void chan_hand_up(struct chan *c, struct peer *p, struct incoming *in);
/* chan_ask.c */
/* The address of NAME@tcp://HOST:PORT, whose name goes to name (MSG_NAME_MAX + 1 bytes); of any
 * other endpoint itself, and name is "". */
const char *chan_endpoint_address(const char *endpoint, char *name);
/* chan_zap.c */
int chan_zap_start(struct chan *c, struct err *err);
void chan_zap_stop(struct chan *c);
void chan_curve_server(const struct chan *c, void *z);
/* 0, or ERR_INVALID: there are no keys, or none of that name */
int chan_curve_client(const struct keys *keys, void *z, const char *name, struct err *err);
/* Whether a connection may speak as this daemon. 0, or ERR_INVALID with a sentence in why. */
int chan_origin_check(const struct chan *c, const struct process_origin *o, const char *name,
                      const char *program, const Pds__Process *p, char *why, size_t size);
/* chan_name.c */
/* zmq_connect, also to [IPv6] */
int chan_zmq_connect(void *z, const char *address);
/* Connects p's dealer, now or when the name in the address is resolved. -1: see errno */
int chan_name_connect(struct peer *p, const char *address);
/* What libzmq is connected to, of a peer that we connect to; "": nothing, its name is not resolved
 * yet. */
const char *chan_name_address(const struct peer *p);
void chan_name_up(struct peer *p);
/* when chan_name_tick has something to do for a peer that is not up; UINT64_MAX: never */
uint64_t chan_name_due(const struct peer *p);
void chan_name_tick(struct peer *p, uint64_t now);
void chan_name_free(struct peer *p);
/* chan_ctl.c */
/* why: the question is refused without looking at its body; NULL: it is not */
void chan_ctl(struct chan *c, const struct incoming *in, const char *why);
void chan_ctl_forget(struct chan *c); /* chan_destroy: frees unanswered questions */
/* chan_tick.c */
/* makes the timer check all peers at that time at the latest */
void chan_tick_soon(struct chan *c, uint64_t at_us);
void chan_worked(struct chan *c, struct peer *p); /* a numbered message was sent or received */
void chan_beat_taken(struct chan *c, struct peer *p, const Pds__Heartbeat *hb);
void chan_owe_ack(struct chan *c, struct peer *p);
void chan_tick(evutil_socket_t fd, short what, void *arg);
/* chan_bye.c */
void chan_say_goodbye(struct chan *c);
void chan_goodbye_taken(struct chan *c, struct peer *p, const struct incoming *in);

#endif
