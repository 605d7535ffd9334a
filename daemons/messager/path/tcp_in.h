/* tcp_in.h - one data connection of an intake, at the receiver, from accept on.
 *
 *   STRANGER -> PROVING, CLOSED   waits for HELLO
 *   PROVING -> UP, CLOSED         WELCOME is sent, waits for PROOF
 *   UP -> CLOSED                  frames come in, ACK and REFUSE go out
 *   CLOSED                        freed
 *
 * Until it is UP a connection has a limited time, and there is a limited number of them in all; a
 * new one then takes the place of the oldest. The receiver never makes a connection again: that is
 * up to the sender, and its new connection of the same number takes the place of the old one.
 *
 * A frame that names no open lease, or whose lease is closed while it arrives, is read to its end
 * into memory that nobody looks at, and refused. A header that is not authentic, a wrong number, a
 * wrong tag closes the connection. */
#ifndef MESSAGER_TCP_IN_H
#define MESSAGER_TCP_IN_H

#include "tcp_frame.h"
#include "util/list.h"

#include <stdint.h>
#include <sys/socket.h>

struct tcp_incoming;
struct tcp_in;
struct tcp_transport;

#define TCP_IN_STATES(X)    \
	X(STRANGER, "stranger") \
	X(PROVING, "proving") X(UP, "up") X(CLOSED, "closed")
enum tcp_in_state {
#define X(name, text) TCP_IN_##name,
	TCP_IN_STATES(X)
#undef X
		TCP_IN_STATE_COUNT
};

/* Takes the descriptor over, which is non-blocking. */
void tcp_in_accept(struct tcp_transport *t, int fd, const struct sockaddr *from, socklen_t bytes);
/* Of nodes in intake.conns and in tcp_transport.strangers. */
struct tcp_in *tcp_in_of(struct list *node);
struct tcp_in *tcp_in_of_stranger(struct list *node);
/* Checks the limits of a connection that is not UP; it may be freed. */
void tcp_in_tick(struct tcp_in *c, uint64_t now_us);
void tcp_in_close(struct tcp_in *c);
/* Nothing is written for n any more. */
void tcp_in_forget(struct tcp_in *c, const struct tcp_incoming *n);
int tcp_in_is_up(const struct tcp_in *c);
const char *tcp_in_from(const struct tcp_in *c);
enum cipher tcp_in_cipher(const struct tcp_in *c);
/* For the tests: its socket. */
int tcp_in_fd(const struct tcp_in *c);

#endif
