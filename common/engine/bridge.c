/* bridge.c - see bridge.h. Each end has three threads: take_wire receives from the other host,
 * pass_sockets from the sockets of this one, and pass_orders (pass_done at the stage) waits for the
 * mapping. The group determines the size of every message; another size fails the group. */
#include "engine/bridge.h"
#include "engine/tp_impl.h"
#include "util/clock.h"
#include "util/mem.h"
#include "util/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	ROWS_BYTES = 65536,
	LOOK_MS = 100, /* between looks at whether the group has failed */
	ALIVE_US = 1000000,
	LAST_S = 2 /* for the other end to take the last message */
};

enum message { HELLO = 1, ORDER, DONE, EXCHANGE, ROWS, FAILED, ALIVE };

/* Numbers are those of the processes: both ends are of the same build (pipeline.h). */
struct bridge_hello {
	uint32_t stage, stages, ranks, reserved;
	uint64_t shared_bytes;
};
struct order_head {
	uint32_t order, at, bytes;
	unsigned char data[TP_ORDER_BYTES];
};

struct bridge {
	struct tp *tp;
	struct wire *wire;
	int at_stage; /* the end on the stage's host */
	unsigned stage, first, each;
	char name[48];
	int rank_fd
		[TP_RANKS_MAX];    /* (each) of the stage's ranks, or the ends that stand for rank 0's */
	int rows_in, rows_out; /* rows of this host for the other one, and the other way */
	/* An exchange is one message each way, as each rank's part of the next one comes after the
	 * reply to this one. At the stage: exchange_fd is pass_sockets' while no reply is expected,
	 * else take_wire's. */
	atomic_int exchange_expected;
	unsigned exchanged; /* ranks whose part of the exchange has been received */
	union {
		struct tp_exchange_mine mine[TP_RANKS_MAX]; /* (each); to rank 0's host */
		struct tp_exchange_all all;                 /* from there: tp_exchange_size */
	} exchange;
	int exchange_fd[TP_RANKS_MAX]; /* at the stage, (each) */
	atomic_int stopping, closed;   /* closed: by the other end, and the group has failed for it */
	pthread_t thread[3];
	unsigned threads;
	unsigned char *in; /* a message from the wire */
	size_t in_bytes;
};

/* --- failure ------------------------------------------------------------- */

/* Fails the group, which ends its processes on this host. rc: ERR_CLOSED if the other end has ended
 * the connection. */
static void give_up(struct bridge *b, int rc, const char *why)
{
	char text[TP_WHY_BYTES];
	if (rc == ERR_CLOSED && !tp_why(b->tp))
		atomic_store(&b->closed, 1);
	if (b->at_stage)
		snprintf(text, sizeof text, "the worker %s", why);
	else
		snprintf(text, sizeof text, "stage %u (%s) %s", b->stage, b->name, why);
	tp_fail(b->tp, text);
	if (!b->at_stage)
		wire_end(b->wire);
}

/* The other end may take nothing for as long as a stage may compute: it passes rows on to a rank
 * before it reads further. */
static int send_message(struct bridge *b, enum message type, const void *data, size_t bytes)
{
	int rc = wire_send(b->wire, type, data, bytes, TP_STAGE_LIMIT_S);
	if (rc)
		give_up(b, rc,
		        rc == ERR_TIMEOUT ? "has taken nothing for 300 s" : "has ended its connection");
	return rc;
}

/* The stage's host: the last message of this end. Waits until the other one has ended the
 * connection, as closing it here may drop what is on the way. */
static void send_failed(struct wire *w, const char *why)
{
	struct pollfd p = {.fd = wire_fd(w), .events = POLLRDHUP};
	if (!wire_send(w, FAILED, why, strlen(why), LAST_S))
		poll(&p, 1, LAST_S * 1000);
}

static void send_alive(struct bridge *b, uint64_t *last_us)
{
	if (clock_us() - *last_us < ALIVE_US)
		return;
	*last_us = clock_us();
	send_message(b, ALIVE, NULL, 0);
}

/* --- from this host to the other one ------------------------------------- */

/* The next rank's part of an exchange, or rank 0's reply to that rank, in the order in which rank 0
 * takes and sends them. The last one completes the message: replies are all the same. 0, or
 * ERR_CLOSED: the rank has ended, or the group has, and whose end it is says so by itself. */
static int pass_exchange(struct bridge *b)
{
	unsigned i = b->exchanged, n_fds = 0;
	size_t want = b->at_stage ? sizeof *b->exchange.mine : tp_exchange_size(b->tp);
	void *to = b->at_stage ? (void *)&b->exchange.mine[i] : &b->exchange.all;
	int fd = -1;
	if (atomic_load(&b->exchange_expected) ||
	    sock_recv(b->rank_fd[i], to, want, &fd, 1, &n_fds) != (ssize_t)want) {
		if (n_fds)
			close(fd);
		return ERR_CLOSED;
	}
	if (b->at_stage) {
		b->exchange.mine[i].has_fd = n_fds;
		b->exchange_fd[i] = n_fds ? fd : -1;
	}
	if (++b->exchanged < b->each)
		return 0;
	b->exchanged = 0;
	atomic_store(&b->exchange_expected, 1);
	return send_message(b, EXCHANGE, &b->exchange, b->at_stage ? b->each * want : want);
}

/* As pass_exchange. */
static int pass_rows(struct bridge *b, unsigned char *bytes)
{
	ssize_t n = recv(b->rows_in, bytes, ROWS_BYTES, MSG_DONTWAIT);
	if (n > 0)
		return send_message(b, ROWS, bytes, (size_t)n);
	return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : ERR_CLOSED;
}

static void *pass_sockets(void *arg)
{
	struct bridge *b = arg;
	struct pollfd p[] = {{.events = POLLIN}, {.fd = b->rows_in, .events = POLLIN}};
	unsigned char *bytes = mem_alloc(ROWS_BYTES);
	int ended = 0;
	while (!atomic_load(&b->stopping) && !tp_why(b->tp)) {
		p[0].fd = ended ? -1 : b->rank_fd[b->exchanged];
		if (poll(p, 2, LOOK_MS) <= 0)
			continue;
		if (p[0].revents)
			ended = pass_exchange(b);
		if (p[1].revents && pass_rows(b, bytes))
			p[1].fd = -1;
	}
	free(bytes);
	return NULL;
}

/* Rank 0's host: as one of the stage's ranks. */
static void *pass_orders(void *arg)
{
	struct bridge *b = arg;
	struct tp rank = {.sh = b->tp->sh, .rank = b->first, .ranks = b->tp->ranks};
	uint64_t alive_us = 0;
	size_t shared;
	const unsigned char *bytes = tp_shared_bytes(b->tp, &shared);
	struct order_head head;
	unsigned char *m = mem_alloc(sizeof head + shared);
	while (!atomic_load(&b->stopping) && !tp_why(b->tp)) {
		enum tp_order order;
		send_alive(b, &alive_us);
		if (tp_await(&rank, LOOK_MS * 1000, &order, head.data, sizeof head.data))
			continue;
		unsigned slot = rank.order_seen % TP_ORDERS;
		head.order = order;
		head.at = b->tp->sh->order[slot].at;
		head.bytes = b->tp->sh->order[slot].bytes;
		memcpy(m, &head, sizeof head);
		memcpy(m + sizeof head, bytes + head.at, head.bytes);
		send_message(b, ORDER, m, sizeof head + head.bytes);
	}
	free(m);
	return NULL;
}

/* The latest order that all ranks of this stage have done. */
static unsigned done_by_all(const struct bridge *b, unsigned before)
{
	unsigned latest = atomic_load(&b->tp->sh->order_seq);
	for (unsigned i = 0; i < b->each; i++)
		if (atomic_load_explicit(&b->tp->sh->at[b->first + i].done, memory_order_acquire) != latest)
			return before;
	return latest;
}

/* The stage's host, until the group has failed. */
static void pass_done(struct bridge *b)
{
	uint64_t alive_us = 0;
	uint32_t done = 0;
	while (!tp_why(b->tp)) {
		unsigned seen = atomic_load(&b->tp->sh->done), now = done_by_all(b, done);
		send_alive(b, &alive_us);
		if (now != done) {
			done = now;
			send_message(b, DONE, &done, sizeof done);
		} else {
			tp_sleep_on_done(b->tp, seen, LOOK_MS);
		}
	}
}

/* --- from the other host ------------------------------------------------- */

static int take_order(struct bridge *b, size_t n)
{
	struct order_head head;
	size_t shared;
	unsigned char *bytes = tp_shared_bytes(b->tp, &shared);
	memcpy(&head, b->in, n < sizeof head ? n : sizeof head);
	if (!b->at_stage || n < sizeof head || head.bytes != n - sizeof head || head.bytes > shared ||
	    head.at > shared - head.bytes || head.order > TP_ROOM)
		return ERR_CORRUPT;
	memcpy(bytes + head.at, b->in + sizeof head, head.bytes);
	tp_order(b->tp, (enum tp_order)head.order, head.data, sizeof head.data, head.at, head.bytes);
	return 0;
}

/* The stage's host: rank 0's reply to all ranks, with the descriptors that have stayed here. The
 * first rank that has it may begin the next exchange. A rank that has ended is reported by who
 * watches it. */
static void reply(struct bridge *b, size_t n)
{
	const struct tp_exchange_all *all = (const void *)b->in;
	int fd[TP_RANKS_MAX];
	memcpy(fd, b->exchange_fd, sizeof fd);
	memset(b->exchange_fd, 0xff, sizeof b->exchange_fd);
	atomic_store(&b->exchange_expected, 0);
	for (unsigned r = 0; r < b->each; r++) {
		int given[SOCK_FDS_MAX];
		unsigned n_fds = 0;
		for (unsigned i = 0; i < b->each && n_fds < SOCK_FDS_MAX; i++)
			if (fd[i] >= 0 && tp_passes(b->tp, all, b->first + i, b->first + r))
				given[n_fds++] = fd[i];
		sock_send(b->rank_fd[r], all, n, given, n_fds);
	}
	for (unsigned i = 0; i < b->each; i++)
		if (fd[i] >= 0)
			close(fd[i]);
}

/* One that nobody has asked for is refused, so sock_send never waits for a rank that does not
 * read. */
static int take_exchange(struct bridge *b, size_t n)
{
	size_t mine = sizeof(struct tp_exchange_mine);
	if (n != (b->at_stage ? tp_exchange_size(b->tp) : b->each * mine) ||
	    !atomic_load(&b->exchange_expected))
		return ERR_CORRUPT;
	if (b->at_stage) {
		reply(b, n);
		return 0;
	}
	atomic_store(&b->exchange_expected, 0);
	for (unsigned i = 0; i < b->each; i++)
		sock_send(b->rank_fd[i], b->in + i * mine, mine, NULL, 0);
	return 0;
}

static int take_rows(struct bridge *b, size_t n)
{
	struct pollfd p = {.fd = b->rows_out, .events = POLLOUT};
	for (size_t at = 0; at < n && !atomic_load(&b->stopping) && !tp_why(b->tp);) {
		ssize_t done = send(b->rows_out, b->in + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (done > 0)
			at += (size_t)done;
		else if (errno == EAGAIN)
			poll(&p, 1, LOOK_MS);
		else if (errno != EINTR)
			break; /* as above */
	}
	return 0;
}

static int take_done(struct bridge *b, size_t n)
{
	uint32_t done;
	if (b->at_stage || n != sizeof done)
		return ERR_CORRUPT;
	memcpy(&done, b->in, sizeof done);
	for (unsigned i = 0; i < b->each; i++)
		tp_done_by(b->tp, b->first + i, done);
	return 0;
}

static int take_failed(struct bridge *b, size_t n)
{
	char why[TP_WHY_BYTES];
	if (b->at_stage)
		return ERR_CORRUPT;
	snprintf(why, sizeof why, "has failed: %.*s", (int)n, (const char *)b->in);
	give_up(b, ERR_IO, why);
	return 0;
}

static int take(struct bridge *b, uint32_t type, size_t n)
{
	switch (type) {
	case ORDER: return take_order(b, n);
	case DONE: return take_done(b, n);
	case EXCHANGE: return take_exchange(b, n);
	case ROWS: return take_rows(b, n);
	case FAILED: return take_failed(b, n);
	case ALIVE: return 0;
	default: return ERR_CORRUPT;
	}
}

/* Until the wire has ended. */
static void *take_wire(void *arg)
{
	struct bridge *b = arg;
	int rc = 0;
	while (!rc && !atomic_load(&b->stopping)) {
		uint32_t type;
		size_t n;
		rc = wire_recv(b->wire, BRIDGE_SILENCE_S, &type, b->in, b->in_bytes, &n);
		if (!rc)
			rc = take(b, type, n);
	}
	if (rc)
		give_up(b, rc,
		        rc == ERR_TIMEOUT  ? "has said nothing for 10 s"
		        : rc == ERR_CLOSED ? "has ended its connection"
		                           : "has sent what is no message of a stage");
	return NULL;
}

/* --- both ends ----------------------------------------------------------- */

static struct bridge *bridge_new(struct tp *tp, struct wire *w, unsigned stage, int at_stage)
{
	struct bridge *b = mem_zalloc(sizeof *b);
	size_t shared, rest = sizeof b->exchange;
	tp_shared_bytes(tp, &shared);
	b->tp = tp;
	b->wire = w;
	b->at_stage = at_stage;
	b->stage = stage;
	b->each = tp->ranks / tp->stages;
	b->first = stage * b->each;
	b->rows_in = b->rows_out = -1;
	b->exchange_expected = !at_stage;
	for (unsigned i = 0; i < TP_RANKS_MAX; i++)
		b->rank_fd[i] = b->exchange_fd[i] = -1;
	rest = rest > ROWS_BYTES ? rest : ROWS_BYTES;
	b->in_bytes = at_stage ? rest + sizeof(struct order_head) + shared : rest;
	b->in = mem_alloc(b->in_bytes);
	return b;
}

static int start_thread(struct bridge *b, void *(*fn)(void *), struct err *err)
{
	if (pthread_create(&b->thread[b->threads], NULL, fn, b))
		return err_set(err, ERR_IO, "cannot start a thread for stage %u", b->stage);
	b->threads++;
	return 0;
}

void bridge_end(struct bridge **bp)
{
	struct bridge *b = *bp;
	atomic_store(&b->stopping, 1);
	wire_end(b->wire);
	for (unsigned i = 0; i < b->threads; i++)
		pthread_join(b->thread[i], NULL);
	for (unsigned i = 0; i < b->each; i++) {
		if (!b->at_stage && b->rank_fd[i] >= 0)
			close(b->rank_fd[i]);
		if (b->exchange_fd[i] >= 0)
			close(b->exchange_fd[i]);
	}
	if (b->rows_in >= 0)
		close(b->rows_in);
	if (b->rows_out >= 0)
		close(b->rows_out);
	wire_destroy(&b->wire);
	free(b->in);
	free(b);
	*bp = NULL;
}

/* --- rank 0's host ------------------------------------------------------- */

static int make_sockets(struct bridge *b, struct err *err)
{
	for (unsigned i = 0; i < b->each; i++) {
		int pair[2];
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
			return err_set(err, ERR_IO, "cannot make a socket for rank %u: %s", b->first + i,
			               strerror(errno));
		b->tp->child[b->first + i].fd = pair[0];
		b->rank_fd[i] = pair[1];
	}
	return 0;
}

static int send_hello(struct bridge *b, const void *hello, size_t hello_bytes, struct err *err)
{
	struct bridge_hello h = {.stage = b->stage, .stages = b->tp->stages, .ranks = b->tp->ranks};
	size_t shared;
	tp_shared_bytes(b->tp, &shared);
	h.shared_bytes = shared;
	unsigned char *m = mem_alloc(sizeof h + hello_bytes);
	memcpy(m, &h, sizeof h);
	memcpy(m + sizeof h, hello, hello_bytes);
	int rc = wire_send(b->wire, HELLO, m, sizeof h + hello_bytes, BRIDGE_SILENCE_S);
	free(m);
	return rc ? err_set(err, ERR_IO, "%s (stage %u) has ended its connection", b->name, b->stage)
	          : 0;
}

int bridge_start(struct tp *tp, unsigned stage, struct tp_remote *remote, struct tp_ring *ring,
                 const void *hello, size_t hello_bytes, struct err *err)
{
	struct bridge *b = bridge_new(tp, remote->wire, stage, 0);
	remote->wire = NULL;
	snprintf(b->name, sizeof b->name, "%s", remote->name);
	b->rows_in = ring->from_previous[stage];
	b->rows_out = ring->to_next[stage];
	ring->from_previous[stage] = ring->to_next[stage] = -1;
	tp->bridge[tp->bridges++] = b; /* tp_destroy ends it */
	int rc = make_sockets(b, err);
	if (!rc)
		rc = send_hello(b, hello, hello_bytes, err);
	if (!rc)
		rc = start_thread(b, take_wire, err);
	if (!rc)
		rc = start_thread(b, pass_sockets, err);
	return rc ? rc : start_thread(b, pass_orders, err);
}

/* --- the stage's host ---------------------------------------------------- */

static int receive_hello(struct wire *w, struct bridge_hello *ret, void *hello, size_t hello_bytes,
                         struct err *err)
{
	uint32_t type;
	size_t n, size = sizeof *ret + hello_bytes;
	unsigned char *m = mem_alloc(size);
	int rc = wire_recv(w, 0, &type, m, size, &n);
	if (rc)
		err_set(err, rc, "the worker has ended the connection before it said what to do");
	else if (type != HELLO || n != size)
		rc = err_set(err, ERR_CORRUPT, "the worker says hello in %zu bytes, expected %zu", n, size);
	else {
		memcpy(ret, m, sizeof *ret);
		memcpy(hello, m + sizeof *ret, hello_bytes);
		if (!ret->stage || ret->stage >= ret->stages || !ret->ranks || ret->ranks > TP_RANKS_MAX ||
		    ret->ranks % ret->stages || ret->shared_bytes > (uint64_t)BRIDGE_SHARED_MB_MAX << 20)
			rc = err_set(err, ERR_INVALID,
			             "stage %u of %u with %u ranks and %llu bytes, limits are %d and %d MiB",
			             ret->stage, ret->stages, ret->ranks, (unsigned long long)ret->shared_bytes,
			             TP_RANKS_MAX, BRIDGE_SHARED_MB_MAX);
	}
	free(m);
	return rc;
}

/* Rank 0's ends of the sockets, and the neighbours' of the ring. */
static int start_ranks(struct bridge *b, int memory, const void *hello, size_t hello_bytes,
                       struct err *err)
{
	struct tp_ring ring;
	int to[2] = {-1, -1}, from[2] = {-1, -1}, rc = 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to) < 0 ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, from) < 0)
		rc = err_set(err, ERR_IO, "cannot make sockets: %s", strerror(errno));
	ring.to_next[b->stage] = to[0];
	ring.from_previous[b->stage] = from[0];
	b->rows_in = to[1];
	b->rows_out = from[1];
	for (unsigned i = 0; !rc && i < b->each; i++) {
		rc = tp_start_rank(b->tp, b->first + i, memory, &ring, hello, hello_bytes, err);
		b->rank_fd[i] = b->tp->child[b->first + i].fd;
	}
	if (to[0] >= 0)
		close(to[0]);
	if (from[0] >= 0)
		close(from[0]);
	return rc ? rc : tp_watch(b->tp, err);
}

static int start_stage(struct bridge *b, int memory, const void *hello, size_t hello_bytes,
                       struct err *err)
{
	int rc = start_ranks(b, memory, hello, hello_bytes, err);
	if (!rc)
		rc = start_thread(b, pass_sockets, err);
	return rc ? rc : start_thread(b, take_wire, err);
}

void bridge_run(struct wire *w, void *hello, size_t hello_bytes,
                void (*adapt)(void *arg, unsigned first, unsigned n), void *arg, struct err *err)
{
	struct bridge_hello h;
	struct tp *tp = NULL;
	struct bridge *b = NULL;
	int memory = -1, rc = receive_hello(w, &h, hello, hello_bytes, err);
	if (!rc) {
		tp = tp_new(h.stages, h.ranks);
		rc = memory = tp_map_new(tp, h.shared_bytes, err);
	}
	if (memory >= 0) {
		b = bridge_new(tp, w, h.stage, 1);
		adapt(arg, b->first, b->each);
		rc = start_stage(b, memory, hello, hello_bytes, err);
		close(memory);
	}
	if (b && !rc) {
		pass_done(b);
		err_set(err, atomic_load(&b->closed) ? ERR_CLOSED : ERR_IO, "%s", tp_why(tp));
	}
	send_failed(w, err->text);
	if (b)
		bridge_end(&b);
	else
		wire_destroy(&w);
	tp_destroy(&tp);
}
