/* tcp_out.h - one data connection of a path, at the sender.
 *
 *   WAITING -> RESOLVING, CONNECTING, CLOSED   waits: jitter at first, a backoff after a failure
 *   RESOLVING -> CONNECTING, WAITING, CLOSED   a name, of which the address is asked for
 *   CONNECTING -> GREETING, WAITING, CLOSED
 *   GREETING -> UP, WAITING, CLOSED            HELLO is sent, waits for WELCOME
 *   UP -> WAITING, CLOSED                      PROOF is sent; frames go out, ACK and REFUSE come in
 *   CLOSED                                     its path ends; freed
 *
 * When a connection that was UP is cut, all frames that were not acknowledged go back to their
 * outgoings. A frame that has begun is sent to its end on its connection, whatever becomes of its
 * outgoing: else the receiver could not tell where the next one begins. */
#ifndef MESSAGER_TCP_OUT_H
#define MESSAGER_TCP_OUT_H

#include <stdint.h>

struct tcp_path;
struct tcp_outgoing;
struct tcp_out;

#define TCP_OUT_STATES(X)       \
	X(WAITING, "waiting")       \
	X(RESOLVING, "resolving")   \
	X(CONNECTING, "connecting") \
	X(GREETING, "greeting") X(UP, "up") X(CLOSED, "closed")
enum tcp_out_state {
#define X(name, text) TCP_OUT_##name,
	TCP_OUT_STATES(X)
#undef X
		TCP_OUT_STATE_COUNT
};

struct tcp_out *tcp_out_new(struct tcp_path *p, uint32_t number);
void tcp_out_destroy(struct tcp_out **c);
/* The canary that is due, or pieces, may be sent. 1: it was idle and is awake now. */
int tcp_out_wake(struct tcp_out *c);
/* Nothing of o is read or touched any more. */
void tcp_out_forget(struct tcp_out *c, const struct tcp_outgoing *o);
void tcp_out_tick(struct tcp_out *c);
/* For the tests: its socket, or -1. */
int tcp_out_fd(const struct tcp_out *c);

#endif
