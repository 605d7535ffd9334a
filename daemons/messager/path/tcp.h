/* tcp.h - paths to other messagers over TCP data connections of our own (path.h).
 *
 * Set up, over the control link:   receiver: SETUP(port, pair, secret, cipher, frame limit)
 *                                  sender: ASK, to which the receiver answers SETUP again
 * Then the sender makes `connections` connections to the host of its control link and that port:
 *
 *   sender                                               receiver
 *   HELLO(pair, connection, cipher, nonce, MAC)  ──▶
 *                                                ◀──  WELCOME(nonce, MAC)
 *   PROOF(MAC)                                   ──▶
 *   DATA(lease, layer, first, n) and its bytes   ══▶
 *   CANARY and its bytes                         ══▶
 *                                                ◀──  ACK(frames that arrived), REFUSE(lease, why)
 *
 * All MACs are keyed with the pair's secret or with keys that are derived from it and both nonces.
 * Every frame's header has a MAC and a number, so nothing can be forged, replayed or left out. The
 * bytes, encrypted or not, have an authentication tag. ACK is cumulative for its connection. What
 * was not acknowledged when a connection is cut is sent again on any of them.
 *
 * Everything, hooks included, runs on the event loop's thread. A hook may call every function of
 * path.h, but `say` may not end its path or intake; tcp_transport_destroy only with all paths and
 * intakes gone, and not from a hook. */
#ifndef MESSAGER_TCP_H
#define MESSAGER_TCP_H

#include "path.h"

#define TCP_CONNECTIONS_MAX 8u

struct event_base;
struct tcp_transport;

/* 0 or NULL: the default */
struct tcp_opts {
	const char *address;   /* to listen at, numeric; default: every one */
	uint16_t port;         /* default: any free one */
	uint32_t connections;  /* of each pair, as the sender wants them; default 2 */
	int encrypt;           /* 1: encrypted, also if only one end wants it */
	uint32_t frame_bytes;  /* payload of a frame unless one piece is larger; default 1 MiB */
	uint64_t window_bytes; /* unacknowledged bytes of a lease; default 32 MiB */
	uint64_t backoff_us, backoff_max_us; /* before the next attempt; default 100 ms, 5 s */
	uint64_t canary_us;                  /* between two canaries; default 5 s, UINT64_MAX: none */
	uint64_t handshake_us;               /* limit of resolving and of a handshake; default 3 s */
	uint64_t stall_us;  /* without an acknowledgement; then the connection is cut; default 5 s */
	uint32_t strangers; /* connections that have not authenticated yet; default 512 */
	/* this process has lost a device: every write to its pools would fail; may be NULL */
	void (*lost)(const char *why);
	uint32_t turn_bytes; /* per callback of a connection; default 1 MiB */
};

extern const struct path_ops tcp_path_ops; /* transport: struct tcp_transport */

/* opts is copied. ERR_INVALID (address, a value), ERR_IO (cannot listen). */
int tcp_transport_new(struct event_base *base, const struct tcp_opts *opts,
                      struct tcp_transport **ret, struct err *err);
void tcp_transport_destroy(struct tcp_transport **t);
uint16_t tcp_transport_port(const struct tcp_transport *t);

#endif
