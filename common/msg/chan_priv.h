/* chan_priv.h - shared by chan.c (sockets, sending), chan_in.c (what arrives), chan_tick.c (what
 * goes by the clock), chan_ctl.c (pdctl), chan_bye.c (the end), chan_fault.c (faults on purpose)
 * and chan_ask.c. Nobody else includes it. */
#ifndef MSG_CHAN_PRIV_H
#define MSG_CHAN_PRIV_H

#include "msg/chan.h"
#include "msg/codec.h"
#include "msg/fault.h"
#include "msg/link.h"
#include "util/list.h"

#include <event2/event.h>
#include <stdatomic.h>
#include <zmq.h>

#define RID_MAX 16u
#define HELLO_RETRY_US 300000u
/* unless chan_opts says otherwise; struct pace has what follows from it */
#define RESEND_US 400000u
/* times resend_us (10 s), and 5 times silence_us: who acknowledges nothing for so long, with
 * something to acknowledge, is down */
#define STUCK_WAITS 25u
/* of the window's oldest, when only the clock says that something is missing */
#define RESEND_BATCH 64u
#define ACTIVE_US 1000000u /* after the last numbered message a daemon counts as at work */
/* those that are down stay that long, for their owners to look at */
#define GRAVE_US 50000u
#define DRAIN_MAX 256 /* messages taken from one socket before the loop gets its turn */

enum peer_state { PEER_NEW, PEER_HELLO, PEER_UP, PEER_REFUSED, PEER_DEAD };

struct sock { /* one ZeroMQ socket on the loop */
	struct chan *c;
	struct peer *peer; /* DEALER: the peer it connects to; NULL: the bound ROUTER */
	void *z;
	struct event *ev;
	/* looks at the socket once more: ZeroMQ's descriptor is edge-triggered */
	struct event *again;
};

/* Fault layer: what waits on one link in one direction. What comes now waits behind it. */
struct line {
	uint64_t until_us;
	uint32_t n;
};

/* A body of which not all parts are there. */
struct parts {
	unsigned char *bytes; /* NULL: none */
	size_t len, size;
	int lost; /* it grew too long: dropped until its last part has come */
};

struct peer {
	struct list node;
	struct chan *c;
	enum peer_state state;
	struct sock *dealer; /* NULL: it connected to us */
	unsigned char rid[RID_MAX];
	size_t rid_len;
	char name[MSG_NAME_MAX + 1], expected[MSG_NAME_MAX + 1], endpoint[256];
	uint64_t epoch;
	int tag, watched;
	int self; /* it lives in this very process */
	/* the socket did not take our HELLO: again as soon as it is connected */
	int hello_waits;
	int restarting;               /* it is down only for its link to restart */
	struct process_origin origin; /* of its HELLO or WELCOME: all its messages come from there */
	struct parts parts;
	int bye;       /* it is down because it said goodbye */
	int bye_waits; /* chan_destroy: it has not yet answered our goodbye */
	void *data;
	Pds__Hello *hello; /* theirs, if they connected to us */
	char program[32];
	int pidfd;
	struct event *pid_ev;
	uint64_t heard_us, hello_us, beat_us;
	/* last numbered message or news from it; when that began after an idle time */
	uint64_t busy_us, stir_us;
	uint64_t ack_due_us; /* 0: nothing to acknowledge */
	/* the window is sent again then, and nothing before; 0: all of it was given to the socket */
	uint64_t resend_at_us;
	int resend_all;          /* then: all of it. 0: from the first that the socket has not taken */
	uint64_t progress_us;    /* the window became filled, or shorter */
	uint64_t resend_wait_us; /* how long the clock waits for an acknowledgement */
	uint64_t gap_us;         /* when a gap was last told */
	/* they connected: of the last HELLO taken; we connected: of the last one sent */
	uint64_t hello_nth;
	uint64_t link_id; /* Hello.nth of the one that began this link; 0: none */
	uint32_t their_silence_ms;
	uint64_t beat_sum, heard_sum; /* of the last heartbeat sent, taken */
	struct line lines[2];         /* fault layer, by direction */
	char refusal[200];
	struct link link;
};

struct incoming {
	struct sock *s;
	unsigned char rid[RID_MAX];
	size_t rid_len;
	struct process_origin origin;
	uint64_t late_us; /* fault layer: its handler hears of it that much later */
	struct msg_in m;  /* its body is decoded when it is known whose it is */
	const unsigned char *bytes;
	size_t len;         /* the body as it came */
	unsigned char *own; /* bytes, where they outlive ZeroMQ's frame; else NULL */
};

/* Times of a link, all from chan_opts.resend_us. */
struct pace {
	uint64_t resend_us; /* sent, not acknowledged: again after this, then after twice, ... */
	uint64_t resend_max_us;
	/* what has arrived is acknowledged after this, if nothing was sent that could carry it */
	uint64_t ack_us;
	uint64_t retry_us; /* the socket took nothing more: the rest after this */
	/* at least, between two times that a gap is told, or the window is sent again for one */
	uint64_t gap_us;
	uint64_t hello_us; /* HELLO again; at the earliest a sixth of it */
};

struct chan {
	struct event_base *base;
	struct chan_hooks hooks;
	struct chan_opts opts;
	struct pace pace;
	char *name, *program;
	void *ctx;
	struct sock *bound;
	struct list peers;
	struct list graveyard; /* down, freed at the next tick: their owners may still look */
	uint32_t n_peers;
	struct event *tick;
	uint64_t tick_at_us;   /* armed for */
	uint64_t active_us;    /* last numbered message of any link, last load to report */
	uint64_t hello_n;      /* HELLOs said in this life */
	struct line strangers; /* fault layer: of what comes from peers not known yet */
	int ending;            /* chan_destroy: only goodbyes count */
	struct chan_counts counts;
	uint64_t bad_logged_us, refused_logged_us;
	struct list asked; /* control questions that are not answered yet */
	unsigned n_asked;
	/* control answers not yet written out; ZeroMQ's thread lowers it */
	_Atomic size_t answers_bytes;
	struct fault *fault; /* NULL: messages pass as they are */
	struct list held;    /* fault layer: struct held, by time */
	size_t n_held, held_bytes;
	struct event *held_ev;
};

/* chan.c */
/* Both: 0, or ERR_CLOSED when the socket does not take it now. p: whom it is for, if known. put
 * is what is left below the fault layer. */
int chan_transmit(struct chan *c, struct peer *p, struct sock *s, const void *rid, size_t rid_len,
                  const Pds__Envelope *env, const void *body, size_t len);
/* body is taken when it is sent. */
int chan_put_msg(struct sock *s, const void *rid, size_t rid_len, const void *head, size_t head_len,
                 zmq_msg_t *body);
int chan_put(struct sock *s, const void *rid, size_t rid_len, const void *head, size_t head_len,
             const void *body, size_t len);
void chan_envelope(struct chan *c, struct peer *p, enum msg_type type, Pds__Envelope *env);
int chan_send_link(struct chan *c, struct peer *p, enum msg_type type,
                   const ProtobufCMessage *body);
int chan_send_rid(struct chan *c, const void *rid, size_t rid_len, enum msg_type type,
                  const ProtobufCMessage *body);
/* Sends the first `most` of the window again. */
void chan_resend(struct chan *c, struct peer *p, uint32_t most);
/* Sends what of the window the socket has not taken yet. */
void chan_send_rest(struct chan *c, struct peer *p);
void chan_acked(struct chan *c, struct peer *p, uint64_t ack);
void chan_hello(struct chan *c, struct peer *p);
void chan_welcome(struct chan *c, struct peer *p, int resumed);
struct peer *chan_peer_new(struct chan *c);
void chan_peer_up(struct chan *c, struct peer *p);
/* up -> not up: tells the owner, forgets the link's state. A peer that connected to us is freed
 * soon after. */
void chan_peer_down(struct chan *c, struct peer *p, const char *why, enum peer_state next);
void chan_peer_watch(struct chan *c, struct peer *p, const Pds__Process *proc);
void chan_peer_free(struct peer *p);
/* chan_in.c */
void chan_take(struct sock *s);
void incoming_fini(struct incoming *in);
void parts_drop(struct parts *j);
struct peer *chan_find_rid(struct chan *c, const void *rid, size_t n);
void chan_dispatch(struct chan *c, struct incoming *in); /* may take in->m's parts */
void chan_hand_up(struct chan *c, struct peer *p, struct incoming *in);
/* chan_ctl.c */
void chan_ctl(struct chan *c, const struct incoming *in);
void chan_ctl_forget(struct chan *c); /* at the end: what is not answered */
/* chan_tick.c */
/* the timer looks at all peers by then */
void chan_tick_soon(struct chan *c, uint64_t at_us);
void chan_worked(struct chan *c, struct peer *p); /* a numbered message went or came */
void chan_beat_taken(struct chan *c, struct peer *p, const Pds__Heartbeat *hb);
void chan_owe_ack(struct chan *c, struct peer *p);
void chan_tick(evutil_socket_t fd, short what, void *arg);
/* chan_bye.c */
void chan_say_goodbye(struct chan *c);
void chan_goodbye_taken(struct chan *c, struct peer *p, const struct incoming *in);
/* chan_fault.c: called only when c->fault is set, but for start and stop */
int chan_fault_start(struct chan *c, const char *text, struct err *err);
void chan_fault_stop(struct chan *c);
int chan_fault_out(struct chan *c, struct peer *p, struct sock *s, const void *rid, size_t rid_len,
                   const Pds__Envelope *env, const void *body, size_t len);
void chan_fault_in(struct chan *c, struct incoming *in);
void chan_fault_late(struct chan *c, struct peer *p, struct incoming *in);
/* what waits for or from it is lost */
void chan_fault_forget(struct chan *c, const struct peer *p);

#endif
