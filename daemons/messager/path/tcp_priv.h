/* tcp_priv.h - what the files of the TCP transport share: tcp.c (transport, listener, hooks),
 * tcp_send.c (path, outgoing) on tcp_out.c (its connections), tcp_recv.c (intake, incoming) on
 * tcp_in.c (its connections). */
#ifndef MESSAGER_TCP_PRIV_H
#define MESSAGER_TCP_PRIV_H

#include "tcp.h"
#include "tcp_frame.h"
#include "util/list.h"
#include "util/map.h"

#include <event2/dns.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <endian.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
	TCP_IOV_MAX = 64,
	TCP_READ_MAX = 256 << 10, /* bytes per receive: they are still in the cache for the tag */
	TCP_CANARY_BYTES = 64 << 10,
	TCP_INCOMING_MAX = 4096, /* open leases of an intake */
	TCP_TICK_US = 250000
};

#define TCP_HANDLE_MAGIC 0x31504354u /* "TCP1"; then number and generation of the lease */

/* --- hooks --------------------------------------------------------------- */

/* Something to tell by a hook, from the loop and not within a call. `run` calls one hook at most;
 * its object may be gone afterwards. */
struct notice {
	struct list node; /* in tcp_transport.notices */
	void (*run)(struct notice *n);
};

/* What a path and an intake have in common: the other end, counters, and what is to be told. */
struct tcp_side {
	struct notice notice;
	struct tcp_transport *t;
	struct path_peer peer;
	struct path_hooks hooks;
	struct path_state state; /* without `up` and `via` */
	unsigned n_up;           /* connections that are UP */
	int up_told, say_due;    /* say_due: SETUP or ASK is to be said */
	int warned;              /* an error was logged as a warning */
	char why[160];           /* why it is not up */
};

struct tcp_transport {
	struct event_base *base;
	struct tcp_opts opts; /* without `address`, which listening alone needs */
	struct evconnlistener *listener;
	struct evdns_base *dns; /* NULL: no name had to be resolved */
	unsigned n_lookups;     /* of dns, in progress */
	struct event *ev_notice, *ev_tick;
	struct list notices, notices_end; /* notices_end: of those of the present call */
	struct list paths, intakes, strangers;
	struct map *pairs; /* pair -> struct tcp_intake */
	unsigned n_strangers;
	uint16_t port;
	int aes;
	uint64_t refused, refusal_logged_us; /* connections of nobody we know */
	unsigned char *scratch;              /* (TCP_READ_MAX) bytes that go nowhere */
	unsigned char *canary;               /* (TCP_CANARY_BYTES) */
};

void tcp_notice(struct tcp_transport *t, struct notice *n);
/* There is something with a limit: the tick runs until there is nothing more. */
void tcp_start_tick(struct tcp_transport *t);
void tcp_side_init(struct tcp_side *s, struct tcp_transport *t, const struct path_peer *peer,
                   const struct path_hooks *hooks, void (*run)(struct notice *n));
/* A connection of it came up (1) or ended (-1). */
void tcp_side_count(struct tcp_side *s, int change);
/* Tells the hook if `up` has changed. 1: it did, the side may be gone. */
int tcp_side_tell_up(struct tcp_side *s);
/* Counts and keeps an error; a warning in the log for the first of this side, else a debug line. */
void tcp_side_error(struct tcp_side *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tcp_side_state(const struct tcp_side *s, struct path_state *ret);
/* Options of every data connection, for a dead peer to be noticed. */
void tcp_set_options(const struct tcp_transport *t, int fd);
/* "host:port" */
void tcp_address_text(const struct sockaddr *a, socklen_t bytes, char *out, size_t size);
uint64_t tcp_jitter(uint64_t us); /* uniform in [us / 2, us) */

/* --- sender -------------------------------------------------------------- */

struct tcp_out;

/* behind the struct path of path.h; below likewise outgoing, intake and incoming */
struct tcp_path {
	struct tcp_side side;
	struct list node; /* in tcp_transport.paths */
	int has_setup;
	struct setup setup;
	struct sockaddr_storage to; /* of the last connect */
	struct list outgoings;      /* all */
	struct list ready;          /* those that may send now, in turn */
	unsigned n_outs, turn;      /* turn: where the search for an idle connection starts */
	struct tcp_out *out[TCP_CONNECTIONS_MAX];
	/* canary */
	uint64_t canary_next_us;
	int canary_due, canary_out; /* to be sent; sent and not acknowledged */
};

struct tcp_outgoing {
	struct notice notice;
	struct list node, ready; /* in path.outgoings, path.ready */
	struct tcp_path *p;
	struct outgoing_opts o; /* without handle and dst */
	uint32_t *src;          /* (blocks) */
	uint32_t handle, generation;
	/* pieces to send: a bit for each block of each layer */
	uint64_t *due;                /* (layers, words) */
	uint32_t *due_n, *due_at;     /* (layers) number; no bit is set in a word before this one */
	uint32_t words, n_due, layer; /* layer: no lower one has a piece to send */
	uint64_t unacked_bytes, untold_bytes; /* untold: acknowledged, not yet given to `delivered` */
	int failed, failed_untold;            /* failed: ERR_* or 0 */
	char why[160];
};

enum cipher path_cipher(const struct tcp_path *p);
/* Pieces for one frame, of the outgoing whose turn it is: they are no longer due. NULL: none. */
struct tcp_outgoing *path_take(struct tcp_path *p, uint32_t *ret_layer, uint32_t *ret_first,
                               uint32_t *ret_n);
/* There may be something to send: wakes an idle connection. */
void path_kick(struct tcp_path *p);
/* Their connection was cut. */
void outgoing_again(struct tcp_outgoing *o, uint32_t layer, uint32_t first, uint32_t n);
void outgoing_acked(struct tcp_outgoing *o, uint64_t bytes);
void outgoing_fail(struct tcp_outgoing *o, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void path_refused(struct tcp_path *p, const struct frame *f);
/* Where bytes [at, ...) of these pieces lie in a pool in host memory, as few runs as possible.
 * Returns the number of runs, at most max. */
int outgoing_runs(const struct tcp_outgoing *o, uint32_t layer, uint32_t first, uint32_t n,
                  size_t at, struct iovec *iov, int max);
void path_tick(struct tcp_path *p, uint64_t now_us);

/* --- receiver ------------------------------------------------------------ */

struct tcp_in;

struct tcp_intake {
	struct tcp_side side;
	struct list node; /* in tcp_transport.intakes */
	struct setup setup;
	struct list conns;          /* struct tcp_in, PROVING and UP */
	struct tcp_incoming **slot; /* (n_slots) NULL: free */
	uint32_t *slot_generation;  /* (n_slots) of its next lease */
	uint32_t n_slots, n_open;
	unsigned made; /* a bit for each connection that has been UP */
};

struct tcp_incoming {
	struct tcp_intake *i;
	struct incoming_opts o;
	uint32_t *dst;         /* (blocks) */
	uint64_t *generations; /* (blocks) */
	uint64_t *arrived;     /* a bit for each (layer, block) */
	uint64_t pieces, n_arrived;
	uint32_t handle, generation;
	int open;
};

/* NULL: closed, or never was. */
struct tcp_incoming *intake_find(const struct tcp_intake *i, uint32_t handle, uint32_t generation);
/* May (layer, block) be written? 0; 1: it has arrived already; ERR_STALE. */
int incoming_look(const struct tcp_incoming *n, uint32_t layer, uint32_t block);
/* Counts the pieces that have not arrived before. */
void incoming_arrived(struct tcp_incoming *n, uint32_t layer, uint32_t first, uint32_t n_blocks);
/* Moves a verified payload into the pool. 0, ERR_STALE, or another error of the pool. */
int incoming_write(struct tcp_incoming *n, const struct frame *f, const unsigned char *bytes,
                   struct err *err);

/* of tcp_path_ops */
struct intake *tcp_intake_new(void *transport, const struct path_peer *peer,
                              const struct path_hooks *hooks);
void tcp_intake_destroy(struct intake **i);
int tcp_intake_said(struct intake *i, const void *bytes, size_t n, struct err *err);
void tcp_intake_state(const struct intake *i, struct path_state *ret);
int tcp_incoming_new(struct intake *i, const struct incoming_opts *o, struct incoming **ret,
                     unsigned char *handle, size_t *ret_handle_bytes, struct err *err);
int tcp_incoming_complete(const struct incoming *n);
int tcp_incoming_close(struct incoming *n);
void tcp_incoming_free(struct incoming **n);
void tcp_incoming_drop(struct incoming **n);

#endif
