/* bench_path.c - how fast KV goes from one messager's pool to another's over TCP data connections:
 * two processes on one host, each with a pool of its own, leases one after another with two open
 * at once. The receiver may be in another network namespace (-n: its file) at an address there
 * (-a). What the two tell each other (PATH, LEASE_OPEN, LEASE_REVOKE) goes over a socket pair, so
 * without the link's delay.
 *
 *   bench_path [-e] [-v] [-n file] [-a address] [-b blocks of a lease] [-c connections]
 *              [-s seconds] [-f frame KiB] [-w window MiB] [-t turn KiB]
 *
 * Prints "path MB/s SENDER-CPU RECEIVER-CPU RESTARTS REPEATED-MB" (CPU in seconds per GB); ends
 * with 1 if something did not work. With -v the receiver compares each lease's bytes with what the
 * sender's pool has, which takes CPU time of its own. */
#include "daemons/messager/path/tcp.h"
#include "tests/unit/pool_memory.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"

#include <event2/event.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* LEASE_BLOCKS: 1,024 tokens of a model with 32 layers and 8 KV heads of 128, 128 MiB */
enum { LAYERS = 32, LEASE_BLOCKS = 16, LEASES = 2 };

enum kind { SAY, OPEN, OPENED, CLOSE, USED };
struct message {
	enum kind kind;
	uint32_t lease, bytes;
	double cpu_s;
	unsigned char body[PATH_SAY_MAX];
};

struct end;
struct lease {
	struct end *e;
	uint32_t number, layers, blocks[LEASE_BLOCKS]; /* the first e->lease_blocks of them */
	uint64_t generations[LEASE_BLOCKS], delivered;
	struct outgoing *out;
	struct incoming *in;
};

struct end {
	struct event_base *base;
	int sock, is_sender, verifies;
	uint32_t lease_blocks;
	const char *address, *namespace; /* the receiver's; namespace may be NULL */
	struct tcp_transport *transport;
	struct kv_layout layout;
	struct pool_memory own;
	struct kv_region pool;
	struct path *path;
	struct intake *intake;
	struct lease lease[LEASES];
	uint64_t bytes, begun_us, until_us;
	unsigned running;
	double cpu_s, peer_begun_s, peer_cpu_s;
};

static double cpu_s(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void tell(struct end *e, enum kind kind, uint32_t lease, const void *body, size_t n)
{
	struct message m = {.kind = kind, .lease = lease, .bytes = (uint32_t)n, .cpu_s = cpu_s()};
	memcpy(m.body, body, n);
	if (send(e->sock, &m, sizeof m, MSG_NOSIGNAL) != (ssize_t)sizeof m)
		check_fatal("the other process is gone");
}

static int on_say(void *arg, const void *bytes, size_t n)
{
	tell(arg, SAY, 0, bytes, n);
	return 0;
}

static uint64_t lease_bytes(const struct lease *l)
{
	const struct kv_layout *layout = &l->e->layout;
	return l->e->lease_blocks * (layout->before_bytes[l->layers - 1] + layout->piece_bytes[0]);
}

static void on_delivered(void *arg, uint64_t bytes)
{
	struct lease *l = arg;
	l->delivered += bytes;
	l->e->bytes += bytes;
	if (l->delivered == lease_bytes(l)) {
		tcp_path_ops.outgoing_end(&l->out);
		l->layers = LAYERS;
		tell(l->e, CLOSE, l->number, "", 0);
	}
}

static void on_failed(void *arg, int code, const char *why)
{
	(void)arg;
	check_fatal("a lease failed: %s: %s", err_name(code), why);
}

static void open_lease(struct end *e, uint32_t i)
{
	e->lease[i].delivered = 0;
	tell(e, OPEN, i, "", 0);
}

static void on_up(void *arg, int up, const char *why)
{
	struct end *e = arg;
	(void)why;
	if (!up || !e->is_sender || e->begun_us)
		return;
	e->begun_us = clock_us();
	e->cpu_s = cpu_s();
	e->until_us += e->begun_us;
	for (uint32_t i = 0; i < LEASES; i++, e->running++)
		open_lease(e, i);
}

static void send_lease(struct end *e, const struct message *m)
{
	struct lease *l = &e->lease[m->lease];
	struct err err;
	const struct outgoing_opts o = {.handle = m->body,
	                                .handle_bytes = m->bytes,
	                                .layout = &e->layout,
	                                .from = &e->pool,
	                                .src = l->blocks,
	                                .dst = l->blocks,
	                                .blocks = e->lease_blocks,
	                                .to_blocks = e->lease_blocks * LEASES,
	                                .arg = l,
	                                .delivered = on_delivered,
	                                .failed = on_failed};
	if (tcp_path_ops.outgoing_new(e->path, &o, &l->out, &err) < 0)
		check_fatal("%s", err.text);
	for (uint32_t layer = 0; layer < l->layers; layer++)
		tcp_path_ops.outgoing_send(l->out, layer, 0, e->lease_blocks);
}

static void receive_lease(struct end *e, uint32_t number)
{
	struct lease *l = &e->lease[number];
	struct err err;
	unsigned char handle[PATH_HANDLE_MAX];
	size_t n;
	const struct incoming_opts o = {.layout = &e->layout,
	                                .to = &e->pool,
	                                .dst = l->blocks,
	                                .generations = l->generations,
	                                .blocks = e->lease_blocks,
	                                .arg = l};
	if (tcp_path_ops.incoming_new(e->intake, &o, &l->in, handle, &n, &err) < 0)
		check_fatal("%s", err.text);
	tell(e, OPENED, number, handle, n);
}

/* Each word of the sender's pool says where in the pool it is. */
static uint64_t word_at(uint64_t at)
{
	return at * 0x9e3779b97f4a7c15u + 1;
}

/* Compares what has arrived with the sender's bytes, and destroys it for the next lease. */
static void verify(struct end *e, const struct lease *l)
{
	for (uint32_t layer = 0; layer < l->layers; layer++)
		for (uint32_t b = 0; b < e->lease_blocks; b++) {
			const uint64_t at = kv_piece_offset(&e->layout, e->lease_blocks * LEASES, layer,
			                                    l->blocks[b]) /
			                    sizeof(uint64_t);
			uint64_t *word = (uint64_t *)e->pool.pool->host + at;
			for (uint64_t i = 0; i < e->layout.piece_bytes[layer] / sizeof *word; i++) {
				if (word[i] != word_at(at + i))
					check_fatal("layer %u, block %u: wrong bytes at %llu", layer, l->blocks[b],
					            (unsigned long long)(i * sizeof *word));
				word[i] = 0;
			}
		}
}

static void close_lease(struct end *e, uint32_t number)
{
	struct lease *l = &e->lease[number];
	if (!tcp_path_ops.incoming_close(l->in))
		check_fatal("a lease is not closed");
	tcp_path_ops.incoming_free(&l->in);
	if (e->verifies)
		verify(e, l);
	tell(e, USED, number, "", 0);
}

static void on_message(evutil_socket_t fd, short what, void *arg)
{
	struct end *e = arg;
	struct message m;
	struct err err;
	(void)what;
	if (recv(fd, &m, sizeof m, 0) != (ssize_t)sizeof m) {
		event_base_loopbreak(e->base);
		return;
	}
	if (m.kind == SAY &&
	    (e->is_sender ? tcp_path_ops.path_said(e->path, m.body, m.bytes, &err)
	                  : tcp_path_ops.intake_said(e->intake, m.body, m.bytes, &err)) < 0)
		check_fatal("%s", err.text);
	if (m.kind == OPENED && !e->peer_begun_s)
		e->peer_begun_s = m.cpu_s;
	if (m.kind == OPEN)
		receive_lease(e, m.lease);
	else if (m.kind == OPENED)
		send_lease(e, &m);
	else if (m.kind == CLOSE)
		close_lease(e, m.lease);
	else if (m.kind == USED) {
		e->peer_cpu_s = m.cpu_s;
		if (clock_us() < e->until_us)
			open_lease(e, m.lease);
		else if (--e->running == 0)
			event_base_loopbreak(e->base);
	}
}

static void enter_namespace(const char *file)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
		check_fatal("cannot enter the network namespace %s", file);
	close(fd);
}

static void end_new(struct end *e, struct tcp_opts *opts)
{
	const struct path_hooks hooks = {e, on_say, on_up};
	const uint32_t blocks = e->lease_blocks * LEASES;
	struct path_peer peer = {.name = "other", .epoch = 1};
	struct err err;
	snprintf(peer.host, sizeof peer.host, "%s", e->address);
	if (!e->is_sender && e->namespace)
		enter_namespace(e->namespace);
	opts->address = e->is_sender ? "127.0.0.1" : e->address; /* nobody connects to the sender */
	e->base = event_base_new();
	if (tcp_transport_new(e->base, opts, &e->transport, &err) < 0 ||
	    kv_layout_uniform(&e->layout, LAYERS, 8, 128, 64, KV_BF16) < 0 ||
	    pool_memory_new(&e->own, &e->layout, blocks, &err) < 0)
		check_fatal("%s", err.text);
	struct kv_data data = one_part(dup(e->own.region.data.fd[0]));
	if (kv_region_map(&e->pool, &e->layout, blocks, "cpu", dup(e->own.region.control_fd), &data,
	                  &err) < 0)
		check_fatal("%s", err.text);
	memset(e->pool.pool->host, 0, e->own.region.data_bytes); /* maps all pages */
	if (e->is_sender)
		for (uint64_t i = 0; i < e->own.region.data_bytes / sizeof i; i++)
			((uint64_t *)e->pool.pool->host)[i] = word_at(i);
	for (uint32_t i = 0; i < LEASES; i++) {
		e->lease[i].e = e;
		e->lease[i].number = i;
		/* they end at different times: one is under way while another is opened */
		e->lease[i].layers = LAYERS * (i + 1) / LEASES;
		for (uint32_t b = 0; b < e->lease_blocks; b++)
			e->lease[i].blocks[b] = i * e->lease_blocks + b;
	}
	if (e->is_sender)
		e->path = tcp_path_ops.path_new(e->transport, &peer, &hooks);
	else
		e->intake = tcp_path_ops.intake_new(e->transport, &peer, &hooks);
	struct event *ev = event_new(e->base, e->sock, EV_READ | EV_PERSIST, on_message, e);
	event_add(ev, NULL);
	event_base_dispatch(e->base);
	event_free(ev);
}

static void read_options(int argc, char **argv, struct end *e, struct tcp_opts *o)
{
	int c;
	while ((c = getopt(argc, argv, "evn:a:b:c:s:f:w:t:")) >= 0)
		if (c == 'e')
			o->encrypt = 1;
		else if (c == 'v')
			e->verifies = 1;
		else if (c == 'n')
			e->namespace = optarg;
		else if (c == 'a')
			e->address = optarg;
		else if (c == 'b')
			e->lease_blocks = (uint32_t)atoi(optarg);
		else if (c == 'c')
			o->connections = (uint32_t)atoi(optarg);
		else if (c == 's')
			e->until_us = (uint64_t)(atof(optarg) * 1e6);
		else if (c == 'f')
			o->frame_bytes = (uint32_t)atoi(optarg) << 10;
		else if (c == 'w')
			o->window_bytes = (uint64_t)atoi(optarg) << 20;
		else if (c == 't')
			o->turn_bytes = (uint32_t)atoi(optarg) << 10;
		else
			check_fatal("usage: bench_path [-e] [-v] [-n file] [-a address] [-b blocks] "
			            "[-c connections] [-s seconds] [-f KiB] [-w MiB] [-t KiB]");
	if (e->lease_blocks < 1 || e->lease_blocks > LEASE_BLOCKS)
		check_fatal("-b %u: blocks of a lease, 1 to %d", e->lease_blocks, LEASE_BLOCKS);
}

int main(int argc, char **argv)
{
	static struct end e = {.address = "127.0.0.1",
	                       .lease_blocks = LEASE_BLOCKS,
	                       .until_us = 3000000};
	struct tcp_opts o = {.canary_us = UINT64_MAX};
	struct path_state state;
	int sock[2];
	log_set_level("warn");
	read_options(argc, argv, &e, &o);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sock) < 0)
		check_fatal("socketpair failed");
	pid_t child = fork();
	e.is_sender = child != 0;
	e.sock = sock[child == 0];
	close(sock[child != 0]);
	if (child == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	end_new(&e, &o);
	if (child == 0)
		return 0;
	if (!e.begun_us || e.running)
		check_fatal("the receiver has ended before the sender");
	uint64_t us = clock_us() - e.begun_us;
	double gb = (double)e.bytes / 1e9;
	tcp_path_ops.path_state(e.path, &state);
	printf("path %.2f %.3f %.3f %llu %.1f\n", (double)e.bytes / (double)us,
	       (cpu_s() - e.cpu_s) / gb, (e.peer_cpu_s - e.peer_begun_s) / gb,
	       (unsigned long long)state.restarts, (double)state.repeated_bytes / 1e6);
	close(e.sock);
	waitpid(child, NULL, 0);
	return 0;
}
