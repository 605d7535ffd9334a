/* fuzz_bridge.c - what the other end of a bridge (engine/bridge.h) sends, as messages that a wire
 * has checked for nothing but their origin: at rank 0's host and at the stage's, in any order. What
 * does not fit is refused, and nothing waits for a process of this host that does not read. */
#include "engine/bridge.c"
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>

enum { STAGES = 2, RANKS = 4, EACH = RANKS / STAGES, SHARED = 8192 };

/* One end, without threads and connection: messages go to take(). */
struct end {
	struct tp *tp;
	struct bridge *b;
	int rows[2];         /* what the bridge passes on, and who reads it */
	int rank_fd[EACH];   /* the processes' ends of the bridge's sockets */
	unsigned char *room; /* of b->in; a message has memory of its own size */
	int refused;
};

static struct end end_new(int at_stage)
{
	struct end e = {.tp = tp_new(STAGES, RANKS)};
	struct err err;
	int memory = tp_map_new(e.tp, SHARED, &err);
	must(memory >= 0);
	close(memory);
	e.b = bridge_new(e.tp, NULL, 1, at_stage);
	e.room = e.b->in;
	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, e.rows) == 0);
	e.b->rows_out = e.rows[0];
	for (unsigned i = 0; i < EACH; i++) {
		int pair[2];
		must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
		e.b->rank_fd[i] = pair[0];
		e.rank_fd[i] = pair[1];
	}
	return e;
}

static void end_free(struct end *e)
{
	for (unsigned i = 0; i < EACH; i++) {
		close(e->b->rank_fd[i]);
		close(e->rank_fd[i]);
		if (e->b->exchange_fd[i] >= 0)
			close(e->b->exchange_fd[i]);
	}
	close(e->rows[0]);
	close(e->rows[1]);
	free(e->room);
	free(e->b);
	munmap(e->tp->sh, e->tp->sh->bytes);
	free(e->tp);
}

/* The processes read: how many had a message of an exchange. */
static unsigned drain(struct end *e)
{
	static unsigned char bytes[ROWS_BYTES];
	unsigned n = 0, fds;
	while (recv(e->rows[1], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
		;
	for (unsigned i = 0; i < EACH; i++)
		while (poll(&(struct pollfd){.fd = e->rank_fd[i], .events = POLLIN}, 1, 0) > 0) {
			int fd[SOCK_FDS_MAX];
			must(sock_recv(e->rank_fd[i], bytes, sizeof bytes, fd, SOCK_FDS_MAX, &fds) > 0);
			for (unsigned f = 0; f < fds; f++)
				close(fd[f]);
			n++;
		}
	return n;
}

/* This end's processes have done their part, so a message of an exchange may come; at the stage
 * with descriptors. */
static void step_ask(struct end *e, int with)
{
	for (unsigned i = 0; e->b->at_stage && !e->b->exchange_expected && i < EACH; i++)
		e->b->exchange_fd[i] = with ? dup(e->rows[0]) : -1;
	e->b->exchange_expected = 1;
}

static void step_message(struct end *e, uint32_t type, const uint8_t *data, size_t n)
{
	int expected = e->b->exchange_expected;
	unsigned char *in = mem_alloc(n + !n);
	if (type == FAILED && !e->b->at_stage)
		return free(in); /* text, which ends the connection */
	memcpy(in, data, n);
	e->b->in = in;
	int rc = take(e->b, type, n);
	free(in);
	must(rc == 0 || rc == ERR_CORRUPT);
	unsigned got = drain(e);
	must(got == (type == EXCHANGE && !rc ? EACH : 0) && (!got || expected));
	e->refused = rc != 0;
	if (!rc && type != ALIVE)
		fuzz_accepted();
}

FUZZ(bridge, 1 << 14)
{
	struct fuzz_input in = {data, data + size};
	struct end end[] = {end_new(0), end_new(1)};
	while (in.at < in.end) {
		unsigned what = (unsigned)fuzz_take(&in, 1);
		struct end *e = &end[what & 1];
		size_t n = what & 2 ? 0 : fuzz_take(&in, 2), left = (size_t)(in.end - in.at);
		if (e->refused)
			break; /* the wire ends */
		if (what & 2)
			step_ask(e, what >> 2 & 1);
		else {
			n = n < left ? n : left;
			step_message(e, what >> 2 & 7, in.at, n);
			in.at += n;
		}
	}
	end_free(&end[0]);
	end_free(&end[1]);
	return 0;
}
