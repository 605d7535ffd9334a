/* wire.c - see wire.h. The descriptor does not block; each call waits in poll until its deadline. A
 * wire that has ended stays so: its descriptor is shut down, which ends the calls of other
 * threads. */
#include "util/wire.h"
#include "util/clock.h"
#include "util/mem.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEAL_BYTES crypto_secretstream_xchacha20poly1305_ABYTES
#define STREAM_BYTES crypto_secretstream_xchacha20poly1305_HEADERBYTES
#define KEY_BYTES_ crypto_secretstream_xchacha20poly1305_KEYBYTES
enum { RECORD_BYTES = 65536, ID_END = 16, WELCOME_BYTES = STREAM_BYTES + SEAL_BYTES };
_Static_assert(ID_END + WELCOME_BYTES == WIRE_HELLO_BYTES, "HELLO: magic, id, stream, MAC");

static const unsigned char magic[8] = "PDSTAGE1";

/* In front of each record's data, little-endian; authenticated with it. */
struct record {
	uint32_t type, total, bytes; /* total: of the message */
};

struct wire {
	int fd;
	atomic_int ended;
	pthread_mutex_t sending; /* a message's records are next to each other */
	crypto_secretstream_xchacha20poly1305_state out, in;
	unsigned char out_bytes[sizeof(struct record) + RECORD_BYTES + SEAL_BYTES];
	unsigned char in_bytes[RECORD_BYTES + SEAL_BYTES];
};

/* --- bytes --------------------------------------------------------------- */

/* Waits for `events`. 0, ERR_TIMEOUT, or ERR_CLOSED. deadline_us 0: without limit. */
static int await(int fd, short events, uint64_t deadline_us)
{
	struct pollfd p = {.fd = fd, .events = events};
	for (;;) {
		uint64_t left = deadline_us ? clock_left_us(deadline_us) : 0;
		int n = poll(&p, 1, deadline_us ? (int)((left + 999) / 1000) : -1);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return ERR_CLOSED;
		if (deadline_us && !clock_left_us(deadline_us))
			return ERR_TIMEOUT;
	}
}

static int put(int fd, const unsigned char *at, size_t n, uint64_t deadline_us)
{
	while (n) {
		ssize_t done = send(fd, at, n, MSG_NOSIGNAL);
		if (done > 0) {
			at += done;
			n -= (size_t)done;
		} else if (errno == EAGAIN || errno == EWOULDBLOCK) {
			int rc = await(fd, POLLOUT, deadline_us);
			if (rc)
				return rc;
		} else if (errno != EINTR) {
			return ERR_CLOSED;
		}
	}
	return 0;
}

static int get(int fd, unsigned char *at, size_t n, uint64_t deadline_us)
{
	while (n) {
		ssize_t done = recv(fd, at, n, 0);
		if (done > 0) {
			at += done;
			n -= (size_t)done;
		} else if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			int rc = await(fd, POLLIN, deadline_us);
			if (rc)
				return rc;
		} else if (done == 0 || errno != EINTR) {
			return ERR_CLOSED;
		}
	}
	return 0;
}

/* --- tickets and handshake ----------------------------------------------- */

void wire_ticket_make(struct wire_ticket *ret)
{
	do
		randombytes_buf(ret, sizeof *ret);
	while (!ret->id);
}

enum direction { TO_LISTENER, TO_ASKER };

static void key_of(const struct wire_ticket *t, enum direction d, unsigned char *key)
{
	unsigned char text[] = {'p', 'd', 's', 't', 'a', 'g', 'e', (unsigned char)('0' + d)};
	crypto_generichash(key, KEY_BYTES_, text, sizeof text, t->secret, sizeof t->secret);
}

/* A stream's beginning: (STREAM_BYTES), and the MAC of `said`. */
static void begin_out(struct wire *w, const struct wire_ticket *t, enum direction d,
                      const unsigned char *said, size_t n, unsigned char out[WELCOME_BYTES])
{
	unsigned char key[KEY_BYTES_];
	key_of(t, d, key);
	crypto_secretstream_xchacha20poly1305_init_push(&w->out, out, key);
	crypto_secretstream_xchacha20poly1305_push(&w->out, out + STREAM_BYTES, NULL, NULL, 0, said, n,
	                                           0);
	sodium_memzero(key, sizeof key);
}

static int begin_in(struct wire *w, const struct wire_ticket *t, enum direction d,
                    const unsigned char *said, size_t n, const unsigned char in[WELCOME_BYTES])
{
	unsigned char key[KEY_BYTES_], none[1];
	key_of(t, d, key);
	int bad = crypto_secretstream_xchacha20poly1305_init_pull(&w->in, in, key) ||
	          crypto_secretstream_xchacha20poly1305_pull(&w->in, none, NULL, NULL,
	                                                     in + STREAM_BYTES, SEAL_BYTES, said, n);
	sodium_memzero(key, sizeof key);
	return bad ? ERR_CORRUPT : 0;
}

static struct wire *wire_new(int fd)
{
	struct wire *w = mem_zalloc(sizeof *w);
	int on = 1, idle_s = WIRE_GONE_S / 2, every_s = 1, times = WIRE_GONE_S / 2;
	w->fd = fd;
	pthread_mutex_init(&w->sending, NULL);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
	return w;
}

static void wire_free(struct wire *w)
{
	pthread_mutex_destroy(&w->sending);
	sodium_memzero(w, sizeof *w);
	free(w);
}

void wire_destroy(struct wire **wp)
{
	struct wire *w = *wp;
	if (!w)
		return;
	close(w->fd);
	wire_free(w);
	*wp = NULL;
}

uint64_t wire_hello_id(const unsigned char *hello)
{
	uint64_t id;
	memcpy(&id, hello + sizeof magic, sizeof id);
	return memcmp(hello, magic, sizeof magic) == 0 ? le64toh(id) : 0;
}

int wire_accept(int fd, const unsigned char *hello, const struct wire_ticket *t,
                struct wire **ret_w)
{
	unsigned char welcome[WELCOME_BYTES];
	struct wire *w = wire_new(fd);
	int rc = begin_in(w, t, TO_LISTENER, hello, ID_END, hello + ID_END);
	if (!rc) {
		begin_out(w, t, TO_ASKER, hello, WIRE_HELLO_BYTES, welcome);
		rc = put(fd, welcome, sizeof welcome, clock_us()); /* a new socket has room for it */
		rc = rc ? ERR_CLOSED : 0;
	}
	if (rc)
		wire_free(w);
	else
		*ret_w = w;
	return rc;
}

/* A socket that is connected to HOST:PORT. */
static int dial(const char *host, uint16_t port, uint64_t deadline_us, struct err *err)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
	                               .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
	struct addrinfo *a;
	char text[8];
	int failed = 0;
	socklen_t size = sizeof failed;
	snprintf(text, sizeof text, "%u", port);
	if (getaddrinfo(host, text, &hints, &a))
		return err_set(err, ERR_INVALID, "%.100s is no address", host);
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc = 0;
	if (fd < 0 || (connect(fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS))
		failed = errno;
	freeaddrinfo(a);
	if (!failed && !(rc = await(fd, POLLOUT, deadline_us)))
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size);
	if (!failed && !rc)
		return fd;
	if (fd >= 0)
		close(fd);
	return rc ? err_set(err, rc, "%.100s, port %u: no answer within %d s", host, port,
	                    WIRE_HELLO_LIMIT_S)
	          : err_set(err, ERR_IO, "cannot connect to %.100s, port %u: %s", host, port,
	                    strerror(failed));
}

int wire_connect(const char *host, uint16_t port, const struct wire_ticket *t, struct wire **ret_w,
                 struct err *err)
{
	uint64_t deadline_us = clock_us() + WIRE_HELLO_LIMIT_S * 1000000u, id = htole64(t->id);
	unsigned char hello[WIRE_HELLO_BYTES], welcome[WELCOME_BYTES];
	int fd = dial(host, port, deadline_us, err);
	if (fd < 0)
		return fd;
	struct wire *w = wire_new(fd);
	memcpy(hello, magic, sizeof magic);
	memcpy(hello + sizeof magic, &id, sizeof id);
	begin_out(w, t, TO_LISTENER, hello, ID_END, hello + ID_END);
	int rc = put(fd, hello, sizeof hello, deadline_us);
	if (!rc)
		rc = get(fd, welcome, sizeof welcome, deadline_us);
	if (rc)
		err_set(err, rc, "%.100s, port %u: %s", host, port,
		        rc == ERR_CLOSED ? "it did not accept this stage" : "no answer to the handshake");
	else if ((rc = begin_in(w, t, TO_ASKER, hello, sizeof hello, welcome)))
		err_set(err, rc, "%.100s, port %u is not the worker that took this stage", host, port);
	if (rc)
		wire_destroy(&w);
	else
		*ret_w = w;
	return rc;
}

/* --- messages ------------------------------------------------------------ */

int wire_fd(const struct wire *w)
{
	return w->fd;
}

void wire_end(struct wire *w)
{
	atomic_store(&w->ended, 1);
	shutdown(w->fd, SHUT_RDWR);
}

static int end(struct wire *w, int rc)
{
	wire_end(w);
	return rc;
}

static int send_record(struct wire *w, struct record head, const unsigned char *data,
                       uint64_t deadline_us)
{
	const struct record r = {htole32(head.type), htole32(head.total), htole32(head.bytes)};
	memcpy(w->out_bytes, &r, sizeof r);
	crypto_secretstream_xchacha20poly1305_push(&w->out, w->out_bytes + sizeof r, NULL, data,
	                                           head.bytes, w->out_bytes, sizeof r, 0);
	return put(w->fd, w->out_bytes, sizeof r + head.bytes + SEAL_BYTES, deadline_us);
}

int wire_send(struct wire *w, uint32_t type, const void *data, size_t bytes, unsigned limit_s)
{
	uint64_t deadline_us = clock_us() + limit_s * 1000000ull;
	size_t at = 0;
	int rc = bytes > UINT32_MAX ? ERR_INVALID : 0;
	pthread_mutex_lock(&w->sending);
	do {
		size_t n = bytes - at < RECORD_BYTES ? bytes - at : RECORD_BYTES;
		struct record head = {type, (uint32_t)bytes, (uint32_t)n};
		rc = rc ? rc : atomic_load(&w->ended) ? ERR_CLOSED : 0;
		if (!rc)
			rc = send_record(w, head, (const unsigned char *)data + at, deadline_us);
		at += n;
	} while (!rc && at < bytes);
	pthread_mutex_unlock(&w->sending);
	return rc ? end(w, rc) : 0;
}

/* The next record of a message of which `at` bytes have arrived; its data goes to data + at. */
static int recv_record(struct wire *w, uint64_t deadline_us, struct record *head,
                       unsigned char *data, size_t at, size_t size)
{
	struct record r;
	int rc = get(w->fd, (unsigned char *)&r, sizeof r, deadline_us);
	if (rc)
		return rc;
	struct record got = {le32toh(r.type), le32toh(r.total), le32toh(r.bytes)};
	if (got.total > size || got.bytes > RECORD_BYTES || got.bytes > got.total - at ||
	    (at && (got.type != head->type || got.total != head->total)) || (!got.bytes && got.total))
		return ERR_CORRUPT;
	if ((rc = get(w->fd, w->in_bytes, got.bytes + SEAL_BYTES, deadline_us)))
		return rc;
	*head = got;
	return crypto_secretstream_xchacha20poly1305_pull(&w->in, data + at, NULL, NULL, w->in_bytes,
	                                                  got.bytes + SEAL_BYTES,
	                                                  (const unsigned char *)&r, sizeof r)
	           ? ERR_CORRUPT
	           : 0;
}

int wire_recv(struct wire *w, unsigned limit_s, uint32_t *ret_type, void *data, size_t size,
              size_t *ret_bytes)
{
	struct record head = {0};
	size_t at = 0;
	uint64_t each_us = (limit_s ? limit_s : WIRE_GONE_S) * 1000000ull;
	int rc = atomic_load(&w->ended) ? ERR_CLOSED
	                                : await(w->fd, POLLIN, limit_s ? clock_us() + each_us : 0);
	if (rc == ERR_TIMEOUT)
		return rc;
	do {
		rc = rc ? rc : recv_record(w, clock_us() + each_us, &head, data, at, size);
		at += head.bytes;
	} while (!rc && at < head.total);
	if (rc)
		return end(w, rc == ERR_TIMEOUT ? ERR_CORRUPT : rc);
	*ret_type = head.type;
	*ret_bytes = head.total;
	return 0;
}
