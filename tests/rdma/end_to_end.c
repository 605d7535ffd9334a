/* end_to_end.c - two processes with a path over RDMA between them, on a real device (in the guest
 * of run.sh: rdma_rxe). The parent receives and checks every byte; the child sends. A socket pair
 * stands for the control link.
 *
 *   end_to_end DEVICE windows|none     prints one line for each thing shown; exit status 0: all
 * hold
 */
#include "daemons/messager/path/rdma.h"
#include "util/clock.h"
#include "util/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	BLOCKS = 128,
	LIST_MAX = 64, /* blocks of a lease */
	LEASES = 64,
	WAIT_S = 20, /* for anything */
	GUARD = 0xcc
};

/* A message of the socket pair: a kind, then its bytes. */
enum { KIND_SAY = 'S', KIND_OPEN = 'O', KIND_DELIVERED = 'K', KIND_FAILED = 'F' };

struct open_msg {
	uint32_t lease, n, slow;
	uint32_t dst[LIST_MAX];
	unsigned char handle[PATH_HANDLE_MAX];
	size_t handle_bytes;
};

struct end {
	struct event_base *base;
	struct rdma *rdma;
	struct kv_layout layout;
	struct kern_pool pool;
	struct kv_region region;
	int fd;
	struct event *on_fd;
	int up;
};

static struct end end;
static const struct path_ops *const ops = &rdma_path_ops;

static void fail(const char *what)
{
	printf("FAIL %s\n", what);
	fflush(stdout);
	_exit(1);
}

static unsigned char pattern(uint32_t lease, uint32_t layer, uint32_t i, size_t at)
{
	return (unsigned char)((lease * 31 + layer * 17 + i * 7 + at * 3 + at / 251) % 199 + 1);
}

static unsigned char *piece(uint32_t layer, uint32_t block)
{
	return end.pool.host + kv_piece_offset(&end.layout, BLOCKS, layer, block);
}

static int send_msg(char kind, const void *bytes, size_t n)
{
	char out[1 + PATH_SAY_MAX];
	out[0] = kind;
	memcpy(out + 1, bytes, n);
	return send(end.fd, out, n + 1, MSG_NOSIGNAL) == (ssize_t)n + 1 ? 0 : ERR_CLOSED;
}

static int on_say(void *arg, const void *bytes, size_t n)
{
	(void)arg;
	return send_msg(KIND_SAY, bytes, n);
}

static void on_up(void *arg, int up, const char *why)
{
	(void)arg;
	(void)why;
	end.up = up;
}

static void end_init(const char *device, int windows, int fd, event_callback_fn on_fd)
{
	struct err err = {0};
	const struct verbs *v = verbs_load(&err);
	struct rdma_opts o = RDMA_OPTS_DEFAULT;
	memset(&end, 0, sizeof end);
	end.fd = fd;
	end.base = event_base_new();
	end.on_fd = event_new(end.base, fd, EV_READ | EV_PERSIST, on_fd, NULL);
	event_add(end.on_fd, NULL);
	o.device = device;
	o.no_windows = !windows;
	if (!v || rdma_transport_new(end.base, v, &o, &end.rdma, &err) < 0)
		fail(err.text);
	if (kv_layout_uniform(&end.layout, 4, 4, 64, 64, KV_BF16) < 0)
		fail("layout");
	end.pool.by = &kern_host_copies;
	end.pool.bytes = end.layout.block_bytes * BLOCKS;
	if (posix_memalign((void **)&end.pool.host, 4096, end.pool.bytes))
		fail("out of memory");
	memset(end.pool.host, GUARD, end.pool.bytes);
	end.region.blocks = BLOCKS;
	end.region.pool = &end.pool;
	end.region.generations = calloc(BLOCKS, sizeof *end.region.generations);
	if (rdma_pool_add(end.rdma, &end.region, &err) < 0)
		fail(err.text);
}

/* --- the sender: a process of its own ------------------------------------------ */

struct sending {
	struct outgoing *out;
	uint32_t lease, n, sent; /* sent: of a slow one, pieces */
	uint64_t left;
	struct event *slow;
};

static struct path *path;
static struct sending sendings[LEASES];

static void on_delivered(void *arg, uint64_t bytes)
{
	struct sending *s = arg;
	s->left -= bytes;
	if (s->left > 0)
		return;
	ops->outgoing_end(&s->out);
	send_msg(KIND_DELIVERED, &s->lease, sizeof s->lease);
}

static void on_failed(void *arg, int code, const char *why)
{
	struct sending *s = arg;
	(void)code;
	(void)why;
	ops->outgoing_end(&s->out);
	send_msg(KIND_FAILED, &s->lease, sizeof s->lease);
}

static void on_slow(evutil_socket_t fd, short what, void *arg)
{
	struct sending *s = arg;
	(void)fd;
	(void)what;
	if (!s->out || s->sent == s->n * end.layout.layers) {
		event_del(s->slow);
		return;
	}
	ops->outgoing_send(s->out, s->sent / s->n, s->sent % s->n, 1);
	s->sent++;
}

static void sender_open(const struct open_msg *m)
{
	static uint32_t next; /* source blocks are taken in turn */
	struct sending *s = &sendings[m->lease % LEASES];
	uint32_t src[LIST_MAX];
	struct err err = {0};
	for (uint32_t i = 0; i < m->n; i++) {
		src[i] = next++ % BLOCKS;
		for (uint32_t k = 0; k < end.layout.layers; k++)
			for (size_t at = 0; at < end.layout.piece_bytes[k]; at++)
				piece(k, src[i])[at] = pattern(m->lease, k, i, at);
	}
	*s = (struct sending){.lease = m->lease,
	                      .n = m->n,
	                      .left = (uint64_t)m->n * end.layout.block_bytes};
	const struct outgoing_opts o = {.handle = m->handle,
	                                .handle_bytes = m->handle_bytes,
	                                .layout = &end.layout,
	                                .from = &end.region,
	                                .src = src,
	                                .dst = m->dst,
	                                .blocks = m->n,
	                                .to_blocks = BLOCKS,
	                                .arg = s,
	                                .delivered = on_delivered,
	                                .failed = on_failed};
	if (ops->outgoing_new(path, &o, &s->out, &err) < 0)
		fail(err.text);
	for (uint32_t k = 0; !m->slow && k < end.layout.layers; k++)
		ops->outgoing_send(s->out, k, 0, m->n);
	if (!m->slow)
		return;
	const struct timeval ms = {0, 1000};
	s->slow = event_new(end.base, -1, EV_PERSIST, on_slow, s);
	event_add(s->slow, &ms);
}

static void sender_hears(evutil_socket_t fd, short what, void *arg)
{
	char in[1 + PATH_SAY_MAX];
	struct err err = {0};
	(void)what;
	(void)arg;
	ssize_t n = recv(fd, in, sizeof in, 0);
	if (n <= 0)
		_exit(0);
	if (in[0] == KIND_OPEN)
		sender_open((const struct open_msg *)(in + 1));
	else if (ops->path_said(path, in + 1, (size_t)n - 1, &err) < 0)
		fail(err.text);
}

static void sender(const char *device, int windows, int fd)
{
	const struct path_peer peer = {.name = "receiver"};
	const struct path_hooks hooks = {NULL, on_say, on_up};
	end_init(device, windows, fd, sender_hears);
	path = ops->path_new(end.rdma, &peer, &hooks);
	event_base_dispatch(end.base);
	_exit(0);
}

/* --- the receiver ------------------------------------------------------------------ */

struct receiving {
	struct incoming *in;
	uint32_t lease, n, dst[LIST_MAX];
	int delivered, failed, closed;
};

static struct intake *intake;
static struct receiving receivings[LEASES];
static uint32_t leases; /* numbers given; 0 is none */
static pid_t child;

static void on_closed(void *arg)
{
	((struct receiving *)arg)->closed = 1;
}

static void receiver_hears(evutil_socket_t fd, short what, void *arg)
{
	char in[1 + PATH_SAY_MAX];
	struct err err = {0};
	(void)what;
	(void)arg;
	ssize_t n = recv(fd, in, sizeof in, 0);
	uint32_t lease;
	if (n <= 0) {
		event_del(end.on_fd);
		return;
	}
	memcpy(&lease, in + 1, sizeof lease);
	if (in[0] == KIND_DELIVERED)
		receivings[lease % LEASES].delivered = 1;
	else if (in[0] == KIND_FAILED)
		receivings[lease % LEASES].failed = 1;
	else if (ops->intake_said(intake, in + 1, (size_t)n - 1, &err) < 0)
		fail(err.text);
}

static void wait_for(const int *what, const char *name)
{
	uint64_t until = clock_us() + WAIT_S * 1000000ull;
	while (!*what && clock_us() < until) {
		const struct timeval tv = {0, 10000};
		event_base_loopexit(end.base, &tv);
		event_base_loop(end.base, EVLOOP_ONCE);
	}
	if (!*what)
		fail(name);
}

static void wait_ms(unsigned ms)
{
	const struct timeval tv = {ms / 1000, (ms % 1000) * 1000};
	event_base_loopexit(end.base, &tv);
	event_base_dispatch(end.base);
}

/* A sender with its own device context; then the link is up. */
static void pair_up(const char *device, int windows, int first)
{
	const struct path_peer peer = {.name = "sender"};
	const struct path_hooks hooks = {NULL, on_say, on_up};
	int fds[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		fail("socketpair");
	fflush(stdout);
	child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0) {
		char fd[16], mode[16];
		snprintf(fd, sizeof fd, "%d", dup(fds[1]));
		snprintf(mode, sizeof mode, "%s", windows ? "windows" : "none");
		execl("/proc/self/exe", "end_to_end", device, mode, fd, (char *)NULL);
		_exit(1);
	}
	close(fds[1]);
	if (first) {
		end_init(device, windows, fds[0], receiver_hears);
	} else {
		event_free(end.on_fd);
		close(end.fd);
		end.fd = fds[0];
		end.on_fd = event_new(end.base, end.fd, EV_READ | EV_PERSIST, receiver_hears, NULL);
		event_add(end.on_fd, NULL);
		end.up = 0;
	}
	intake = ops->intake_new(end.rdma, &peer, &hooks);
	wait_for(&end.up, "the queue pairs do not come up");
}

static void fill(const struct receiving *r, int mark)
{
	for (uint32_t i = 0; i < r->n; i++)
		for (uint32_t k = 0; k < end.layout.layers; k++)
			memset(piece(k, r->dst[i]), mark, end.layout.piece_bytes[k]);
}

/* Opens a lease of n blocks, every second from `from` on. */
static struct receiving *receive(uint32_t from, uint32_t n, int slow)
{
	uint32_t lease = ++leases;
	struct receiving *r = &receivings[lease % LEASES];
	struct open_msg m = {.lease = lease, .n = n, .slow = (uint32_t)slow};
	uint64_t generations[LIST_MAX];
	struct err err = {0};
	*r = (struct receiving){.lease = lease, .n = n};
	for (uint32_t i = 0; i < n; i++) {
		m.dst[i] = r->dst[i] = (from + (slow ? i * 2 : i)) % BLOCKS;
		generations[i] = end.region.generations[r->dst[i]];
	}
	fill(r, GUARD);
	const struct incoming_opts o = {&end.layout, &end.region, r->dst, generations, n, r, on_closed};
	if (ops->incoming_new(intake, &o, &r->in, m.handle, &m.handle_bytes, &err) < 0)
		fail(err.text);
	send_msg(KIND_OPEN, &m, sizeof m);
	return r;
}

static void check_bytes(const struct receiving *r)
{
	for (uint32_t i = 0; i < r->n; i++)
		for (uint32_t k = 0; k < end.layout.layers; k++)
			for (size_t at = 0; at < end.layout.piece_bytes[k]; at++)
				if (piece(k, r->dst[i])[at] != pattern(r->lease, k, i, at))
					fail("wrong bytes");
}

static uint64_t close_lease(struct receiving *r)
{
	uint64_t from = clock_us();
	r->closed = ops->incoming_close(r->in);
	wait_for(&r->closed, "a lease does not close");
	ops->incoming_free(&r->in);
	return clock_us() - from;
}

static void check_guard(const struct receiving *r, const char *what)
{
	fill(r, GUARD);
	wait_ms(300);
	for (uint32_t i = 0; i < r->n; i++)
		for (uint32_t k = 0; k < end.layout.layers; k++)
			for (size_t at = 0; at < end.layout.piece_bytes[k]; at++)
				if (piece(k, r->dst[i])[at] != GUARD)
					fail(what);
}

static void show_whole(void)
{
	struct receiving *r[6];
	uint64_t us = 0;
	for (uint32_t k = 0; k < 6; k++)
		r[k] = receive(k * 20, 10, k == 2);
	for (uint32_t k = 0; k < 6; k++) {
		wait_for(&r[k]->delivered, "a lease is not delivered");
		check_bytes(r[k]);
		us += close_lease(r[k]);
	}
	printf("ok whole: 6 leases of 10 blocks, %zu bytes each, exact; closed in %llu us on average\n",
	       10 * end.layout.block_bytes, (unsigned long long)us / 6);
}

static void show_close(void)
{
	struct receiving *slow = receive(0, 16, 1), *other = receive(64, 32, 0);
	wait_ms(20);
	uint64_t us = close_lease(slow);
	check_guard(slow, "a closed lease was written");
	wait_for(&other->delivered, "the other lease is not delivered");
	wait_for(&slow->failed, "the sender was not told");
	check_bytes(other);
	close_lease(other);
	printf("ok close: in %llu us, nothing written afterwards, the other lease exact\n",
	       (unsigned long long)us);
}

/* The sender is killed while it writes; then there is another. */
static void show_kill(const char *device, int windows)
{
	struct receiving *r = receive(0, 16, 1);
	wait_ms(15);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	uint64_t us = close_lease(r);
	check_guard(r, "a lease was written after its sender's death");
	ops->intake_destroy(&intake);
	pair_up(device, windows, 0);
	struct receiving *next = receive(0, 32, 0);
	wait_for(&next->delivered, "a lease of the next sender is not delivered");
	check_bytes(next);
	close_lease(next);
	printf(
		"ok kill: closed in %llu us, nothing written afterwards, the next sender's bytes exact\n",
		(unsigned long long)us);
}

static void show_rate(void)
{
	struct path_state s;
	struct receiving *r[4];
	uint64_t us = 0;
	for (int round = 0; round < 2; round++) {
		/* the sender fills its blocks first; what is timed is from the first byte's arrival */
		for (uint32_t k = 0; k < 2; k++)
			r[k] = receive(k * 64, 64, 0);
		while (piece(0, 0)[0] == GUARD)
			wait_ms(1);
		uint64_t from = clock_us();
		for (uint32_t k = 0; k < 2; k++)
			wait_for(&r[k]->delivered, "a lease is not delivered");
		us = clock_us() - from;
		for (uint32_t k = 0; k < 2; k++)
			close_lease(r[k]);
	}
	ops->intake_state(intake, &s);
	printf("ok rate: %.1f MB/s (128 blocks of 4 pieces of %zu bytes)\n",
	       128.0 * (double)end.layout.block_bytes / (double)us, end.layout.piece_bytes[0]);
	printf("   over %s\n", s.via);
}

int main(int argc, char **argv)
{
	log_set_level(getenv("RDMA_LOG") ? getenv("RDMA_LOG") : "error");
	if (argc < 3)
		fail("arguments: DEVICE windows|none");
	int windows = strcmp(argv[2], "windows") == 0;
	if (argc > 3)
		sender(argv[1], windows, atoi(argv[3]));
	pair_up(argv[1], windows, 1);
	show_whole();
	show_close();
	show_kill(argv[1], windows);
	show_rate();
	close(end.fd);
	waitpid(child, NULL, 0);
	ops->intake_destroy(&intake);
	rdma_transport_destroy(&end.rdma);
	return 0;
}
