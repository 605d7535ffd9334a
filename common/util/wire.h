/* wire.h - messages between two processes on different hosts, over one TCP connection.
 *
 * Both ends have a ticket, which one of them has made and the other has got over a link that
 * authenticates and encrypts. A ticket is good for one connection. What goes over the connection is
 * encrypted and authenticated (XChaCha20-Poly1305, libsodium's secretstream); a record that was
 * changed, left out, repeated or moved ends the wire.
 *
 *   asking end                                          listening end
 *   HELLO(id, stream, MAC of both)                ──▶
 *                                                 ◀──   WELCOME(stream, MAC of it and of HELLO)
 *   records: type, bytes of the message, bytes of the record, its data  ◀═▶
 *
 * A message has a type, which the caller defines, and as many bytes as the receiver has room for.
 * The memory of a wire is fixed: nothing that the other end sends makes it larger. The end of the
 * other process is noticed at once, and a host that vanishes after WIRE_GONE_S if nothing is on the
 * way to it. How long the other end may take to read is up to the caller's limits.
 *
 * One thread may receive while others send. */
#ifndef UTIL_WIRE_H
#define UTIL_WIRE_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define WIRE_SECRET_BYTES 32u
#define WIRE_HELLO_BYTES 57u
enum {
	WIRE_HELLO_LIMIT_S = 5, /* for a handshake */
	WIRE_GONE_S = 10        /* a host that does not answer TCP's keepalive is gone */
};

struct wire_ticket {
	uint64_t id; /* not 0 */
	unsigned char secret[WIRE_SECRET_BYTES];
};

struct wire;

/* Random ones. */
void wire_ticket_make(struct wire_ticket *ret);

/* The asking end: connects to a numeric address. 0; ERR_INVALID (host), ERR_IO, ERR_TIMEOUT,
 * ERR_CLOSED (it does not know the ticket), ERR_CORRUPT (it does not have the secret). */
int wire_connect(const char *host, uint16_t port, const struct wire_ticket *t, struct wire **ret_w,
                 struct err *err);
/* The listening end: the id in a HELLO of WIRE_HELLO_BYTES; 0: it is none. */
uint64_t wire_hello_id(const unsigned char *hello);
/* Answers a HELLO that has arrived on `fd`, which becomes the wire's. 0, ERR_CORRUPT (the sender
 * does not have the secret) or ERR_CLOSED; then fd stays the caller's. */
int wire_accept(int fd, const unsigned char *hello, const struct wire_ticket *t,
                struct wire **ret_w);
void wire_destroy(struct wire **w);
/* Ends it: calls of other threads return ERR_CLOSED. */
void wire_end(struct wire *w);

/* Readable when something has arrived, or the wire has ended. */
int wire_fd(const struct wire *w);
/* 0, ERR_TIMEOUT (the other end takes nothing), ERR_CLOSED. After an error the wire has ended. */
int wire_send(struct wire *w, uint32_t type, const void *data, size_t bytes, unsigned limit_s);
/* Waits until a message has arrived whole: limit_s at most until it begins and then for each record
 * (0: without limit, then WIRE_GONE_S). 0; ERR_TIMEOUT: nothing has arrived, the wire goes on.
 * Otherwise it has ended: ERR_CLOSED, or ERR_CORRUPT (a message of more than `size` bytes, a record
 * that is not the other end's next one, a message that stops in the middle). */
int wire_recv(struct wire *w, unsigned limit_s, uint32_t *ret_type, void *data, size_t size,
              size_t *ret_bytes);

#endif
