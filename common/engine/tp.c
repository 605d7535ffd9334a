/* tp.c - see tp.h.
 *
 * A stage's barrier is a counter of ranks that have arrived, and a generation that the last one
 * increments; a waiting rank spins briefly, then sleeps on the generation. Orders have a sequence
 * number of the same kind. All these words are in the shared mapping, so the futexes are shared
 * ones. Rank 0 has a socket to each rank; its end of file tells either side that the other process
 * is gone. A thread of rank 0 watches the sockets (so the waits of a step need not), and a thread
 * of each other rank exits at once. Rows pass from stage to stage through a ring of stream sockets
 * between the stages' first ranks. bridge.c writes what another host's rank 0 sends into
 * the mapping; everything else in it is from processes of this host. */
#include "engine/bridge.h"
#include "engine/tp_impl.h"
#include "kernels/group.h"
#include "util/child.h"
#include "util/clock.h"
#include "util/mem.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	SPIN_NS = 50000,
	TURNS_PER_CLOCK = 32,
	STATUS_MS = 200, /* for the status of a rank that has ended; the group fails then without it */
	END_MS = 1000,
	LOOK_MS = 50 /* between looks at whether the group has failed */
};
/* What a rank is told before the caller's hello. */
struct hello_head {
	uint32_t rank, ranks, stages;
	uint64_t bytes;
};

struct tp_share tp_share_of(uint32_t total, uint32_t unit, unsigned rank, unsigned ranks)
{
	uint32_t begin = kern_share(total, unit, rank, ranks);
	return (struct tp_share){begin, kern_share(total, unit, rank + 1, ranks) - begin, total, unit};
}

static void close_fds(int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

/* --- the mapping --------------------------------------------------------- */

static size_t pages(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	return (bytes + page - 1) & ~(page - 1);
}

static size_t head_bytes(void)
{
	return pages(sizeof(struct tp_shared));
}

void *tp_shared_bytes(const struct tp *tp, size_t *ret_bytes)
{
	*ret_bytes = tp->sh->bytes - head_bytes();
	return (unsigned char *)tp->sh + head_bytes();
}

const uint32_t *tp_failed_word(const struct tp *tp)
{
	return (const uint32_t *)(const void *)&tp->sh->failed;
}

static int map(struct tp *tp, int fd, size_t bytes, struct err *err)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return err_set(err, ERR_NOMEM, "cannot map %zu bytes of the ranks' shared memory: %s",
		               bytes, strerror(errno));
	madvise(p, bytes, MADV_HUGEPAGE);
	tp->sh = p;
	return 0;
}

int tp_map_new(struct tp *tp, size_t shared, struct err *err)
{
	size_t bytes = head_bytes() + pages(shared);
	int fd = memfd_create("pdserve-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return err_set(err, ERR_IO, "cannot create the ranks' shared memory: %s", strerror(errno));
	int rc = ftruncate(fd, (off_t)bytes) < 0
	             ? err_set(err, ERR_NOMEM, "cannot reserve %zu bytes for the ranks: %s", bytes,
	                       strerror(errno))
	             : 0;
	if (!rc)
		rc = map(tp, fd, bytes, err);
	if (rc) {
		close(fd);
		return rc;
	}
	memset(tp->sh, 0, bytes); /* touch the pages now, not in the first steps */
	tp->sh->magic = TP_MAGIC;
	tp->sh->bytes = bytes;
	tp->sh->stages = tp->stages;
	tp->sh->ranks = tp->ranks;
	return fd;
}

/* --- waiting ------------------------------------------------------------- */

static void sleep_on(atomic_uint *word, unsigned seen, const struct timespec *limit)
{
	syscall(SYS_futex, word, FUTEX_WAIT, seen, limit, NULL, 0);
}

static void wake_all(atomic_uint *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, TP_RANKS_MAX, NULL, NULL, 0);
}

/* Spins until *word is no longer `seen` or SPIN_NS have passed; returns the word. */
static unsigned spin_while(const atomic_uint *word, unsigned seen)
{
	uint64_t until = 0;
	unsigned v;
	for (unsigned turn = 1; (v = atomic_load_explicit(word, memory_order_acquire)) == seen;
	     turn++) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
		if (turn % TURNS_PER_CLOCK)
			continue;
		uint64_t now = clock_ns();
		until = until ? until : now + SPIN_NS;
		if (now >= until)
			break;
	}
	return v;
}

const char *tp_why(const struct tp *tp)
{
	return atomic_load_explicit(&tp->sh->failed, memory_order_acquire) ? tp->sh->why : NULL;
}

static void fail(struct tp_shared *sh, const char *why)
{
	if (atomic_exchange(&sh->failing, 1))
		return;
	snprintf(sh->why, sizeof sh->why, "%s", why);
	atomic_store_explicit(&sh->failed, 1, memory_order_release);
	for (unsigned s = 0; s < sh->stages; s++) {
		atomic_fetch_add(&sh->stage[s].generation, 1);
		wake_all(&sh->stage[s].generation);
	}
	atomic_fetch_add(&sh->done, 1);
	wake_all(&sh->done);
}

void tp_fail(struct tp *tp, const char *why)
{
	fail(tp->sh, why);
	if (tp->broken && !atomic_exchange(&tp->told, 1))
		tp->broken(tp->broken_arg, tp_why(tp) ? tp_why(tp) : why);
}

/* Fails the group, naming a rank that did not reach barrier number n. */
static void fail_late(struct tp *tp, unsigned n, unsigned limit_s)
{
	char why[160];
	unsigned each = tp->ranks / tp->stages, first = tp_stage_of(tp, tp->rank) * each;
	for (unsigned r = first; r < first + each; r++)
		if (atomic_load(&tp->sh->at[r].met) != n) {
			snprintf(why, sizeof why, "rank %u did not reach the barrier within %u s", r, limit_s);
			tp_fail(tp, why);
			return;
		}
}

int tp_barrier(struct tp *tp, unsigned limit_s)
{
	unsigned stage = tp_stage_of(tp, tp->rank);
	atomic_uint *generation = &tp->sh->stage[stage].generation,
				*arrived = &tp->sh->stage[stage].arrived;
	unsigned gen = atomic_load_explicit(generation, memory_order_acquire),
			 n = atomic_fetch_add(&tp->sh->at[tp->rank].met, 1) + 1;
	if (tp_why(tp))
		return ERR_IO;
	if (atomic_fetch_add_explicit(arrived, 1, memory_order_acq_rel) + 1 == tp->ranks / tp->stages) {
		atomic_store_explicit(arrived, 0, memory_order_relaxed);
		atomic_fetch_add_explicit(generation, 1, memory_order_seq_cst);
		wake_all(generation);
		return 0;
	}
	uint64_t deadline = clock_us() + (uint64_t)limit_s * 1000000u;
	while (spin_while(generation, gen) == gen) {
		uint64_t left = clock_left_us(deadline);
		if (!left) {
			fail_late(tp, n, limit_s);
			break;
		}
		struct timespec ts = {(time_t)(left / 1000000u), (long)(left % 1000000u * 1000u)};
		sleep_on(generation, gen, &ts);
	}
	return tp_why(tp) ? ERR_IO : 0;
}

void tp_order(struct tp *tp, enum tp_order order, const void *data, size_t bytes, size_t shared_at,
              size_t shared_bytes)
{
	struct tp_shared *sh = tp->sh;
	unsigned at = (atomic_load(&sh->order_seq) + 1) % TP_ORDERS;
	sh->order[at].order = order;
	sh->order[at].at = (uint32_t)shared_at;
	sh->order[at].bytes = (uint32_t)shared_bytes;
	if (bytes)
		memcpy(sh->order[at].data, data, bytes < TP_ORDER_BYTES ? bytes : TP_ORDER_BYTES);
	atomic_fetch_add_explicit(&sh->order_seq, 1, memory_order_seq_cst);
	wake_all(&sh->order_seq);
}

int tp_await(struct tp *tp, unsigned limit_us, enum tp_order *ret_order, void *data, size_t bytes)
{
	struct tp_shared *sh = tp->sh;
	uint64_t deadline = limit_us ? clock_us() + limit_us : 0;
	while (spin_while(&sh->order_seq, tp->order_seen) == tp->order_seen) {
		uint64_t left = deadline ? clock_left_us(deadline) : 0;
		if (deadline && !left)
			return ERR_TIMEOUT;
		struct timespec ts = {(time_t)(left / 1000000u), (long)(left % 1000000u * 1000u)};
		sleep_on(&sh->order_seq, tp->order_seen, deadline ? &ts : NULL);
	}
	unsigned at = ++tp->order_seen % TP_ORDERS;
	*ret_order = sh->order[at].order;
	memcpy(data, sh->order[at].data, bytes < TP_ORDER_BYTES ? bytes : TP_ORDER_BYTES);
	return 0;
}

void tp_done_by(struct tp *tp, unsigned rank, unsigned order)
{
	atomic_store_explicit(&tp->sh->at[rank].done, order, memory_order_release);
	atomic_fetch_add_explicit(&tp->sh->done, 1, memory_order_seq_cst);
	wake_all(&tp->sh->done);
}

void tp_sleep_on_done(struct tp *tp, unsigned seen, unsigned ms)
{
	const struct timespec limit = {0, ms * 1000000l};
	if (spin_while(&tp->sh->done, seen) == seen)
		sleep_on(&tp->sh->done, seen, &limit);
}

void tp_done(struct tp *tp)
{
	tp_done_by(tp, tp->rank, tp->order_seen);
}

/* A rank that has not done the latest order; 0: all have. */
static unsigned busy_rank(const struct tp *tp)
{
	unsigned latest = atomic_load(&tp->sh->order_seq);
	for (unsigned r = 1; r < tp->ranks; r++)
		if (atomic_load_explicit(&tp->sh->at[r].done, memory_order_acquire) != latest)
			return r;
	return 0;
}

int tp_await_done(struct tp *tp, unsigned limit_s)
{
	uint64_t deadline = clock_us() + (uint64_t)limit_s * 1000000u;
	for (;;) {
		unsigned seen = atomic_load_explicit(&tp->sh->done, memory_order_acquire),
				 late = busy_rank(tp);
		if (!late || tp_why(tp))
			break;
		if (!clock_left_us(deadline)) {
			char why[160];
			snprintf(why, sizeof why, "rank %u did not do its part of a step within %u s", late,
			         limit_s);
			tp_fail(tp, why);
		} else {
			atomic_fetch_add(&tp->waits, 1);
			tp_sleep_on_done(tp, seen, LOOK_MS);
		}
	}
	return tp_why(tp) ? ERR_IO : 0;
}

uint64_t tp_waits(const struct tp *tp)
{
	return atomic_load(&tp->waits);
}

/* --- rows between stages ------------------------------------------------- */

/* The other end is gone: if its process has ended, the watcher says how. */
static void fail_gone(struct tp *tp, const char *why)
{
	for (unsigned ms = 0; !tp_why(tp) && ms < END_MS; ms++)
		usleep(1000);
	tp_fail(tp, why);
}

/* Moves as many bytes as the socket has, or has room for; fails the group if it is at its end. */
static size_t move_some(struct tp *tp, unsigned char *at, size_t bytes, int sends)
{
	ssize_t n = sends ? send(tp->to_next, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
	                  : recv(tp->from_previous, at, bytes, MSG_DONTWAIT);
	if (n > 0)
		return (size_t)n;
	if (!n || (errno != EAGAIN && errno != EINTR))
		fail_gone(tp, sends ? "the next stage takes no rows any more"
		                    : "the previous stage passes no rows any more");
	return 0;
}

static int move(struct tp *tp, unsigned char *at, size_t bytes, unsigned limit_s, int sends)
{
	struct pollfd p = {.fd = sends ? tp->to_next : tp->from_previous,
	                   .events = sends ? POLLOUT : POLLIN};
	uint64_t deadline = clock_us() + (uint64_t)limit_s * 1000000u;
	while (bytes && !tp_why(tp)) {
		size_t n = move_some(tp, at, bytes, sends);
		at += n;
		bytes -= n;
		if (n || tp_why(tp))
			continue;
		if (clock_left_us(deadline)) {
			atomic_fetch_add(&tp->waits, 1);
			poll(&p, 1, LOOK_MS);
			continue;
		}
		char why[160];
		unsigned stage = tp_stage_of(tp, tp->rank),
				 peer = (stage + (sends ? 1 : tp->stages - 1)) % tp->stages;
		snprintf(why, sizeof why, "stage %u %s stage %u within %u s", peer,
		         sends ? "took no rows of" : "passed no rows to", stage, limit_s);
		tp_fail(tp, why);
	}
	return tp_why(tp) ? ERR_IO : 0;
}

int tp_send(struct tp *tp, const void *data, size_t bytes, unsigned limit_s)
{
	return move(tp, (unsigned char *)(uintptr_t)data, bytes, limit_s, 1);
}

int tp_recv(struct tp *tp, void *ret, size_t bytes, unsigned limit_s)
{
	return move(tp, ret, bytes, limit_s, 0);
}

/* --- rank 0: the processes of the other ranks ---------------------------- */

/* Finds pdrank beside this program, or in ../bin of it (tests, benchmarks). A stage's process is
 * pdrank itself: its ranks must be of the same build, also after another one was installed. */
static int find_program(char *path, size_t size, struct err *err)
{
	static const char *const from[] = {"pdrank", "../bin/pdrank"};
	char self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	char *slash = n > 0 ? (self[n] = 0, strrchr(self, '/')) : NULL;
	if (!slash)
		return err_set(err, ERR_IO, "cannot find the path of this program: %s", strerror(errno));
	if (strncmp(slash + 1, "pdrank", 6) == 0) {
		snprintf(path, size, "/proc/self/exe");
		return 0;
	}
	slash[1] = 0;
	for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
		snprintf(path, size, "%s%s", self, from[i]);
		if (access(path, X_OK) == 0)
			return 0;
	}
	return err_set(err, ERR_NOTFOUND,
	               "%.300spdrank: not found; tensor_parallel and pipeline_parallel need it", self);
}

int tp_start_rank(struct tp *tp, unsigned rank, int memory, const struct tp_ring *ring,
                  const void *hello, size_t bytes, struct err *err)
{
	char program[600], text[16];
	char *argv[] = {(char *)"pdrank", text, NULL};
	unsigned stage = tp_stage_of(tp, rank);
	int fds[] = {memory, ring->to_next[stage], ring->from_previous[stage]},
		passes_rows = tp->stages > 1 && rank % (tp->ranks / tp->stages) == 0,
		rc = find_program(program, sizeof program, err);
	snprintf(text, sizeof text, "%u", rank);
	if (rc < 0 ||
	    (rc = child_start(program, argv, &tp->child[rank].pid, &tp->child[rank].fd, err)) < 0)
		return rc;
	struct hello_head head = {
		.rank = rank, .ranks = tp->ranks, .stages = tp->stages, .bytes = tp->sh->bytes};
	unsigned char *msg = mem_alloc(sizeof head + bytes);
	memcpy(msg, &head, sizeof head);
	memcpy(msg + sizeof head, hello, bytes);
	rc = sock_send(tp->child[rank].fd, msg, sizeof head + bytes, fds, passes_rows ? 3 : 1);
	free(msg);
	return rc ? err_set(err, ERR_IO, "rank %u ended before it started", rank) : 0;
}

/* Waits until deadline_us for a rank's process to end, and describes how it did. A process that is
 * still in the kernel (it frees a device's memory, or cannot be interrupted) keeps its pid. */
static void reap(struct tp_child *c, uint64_t deadline_us, char *out, size_t size)
{
	int status = 0;
	pid_t got = 0;
	while ((got = waitpid(c->pid, &status, WNOHANG)) == 0 && clock_left_us(deadline_us))
		usleep(2000);
	if (got)
		c->pid = 0;
	if (got <= 0)
		snprintf(out, size, "ended");
	else if (WIFSIGNALED(status))
		snprintf(out, size, "ended by signal %d", WTERMSIG(status));
	else
		snprintf(out, size, "ended with status %d", WEXITSTATUS(status));
}

/* Waits until any rank ends, which fails the group. */
static void *watch(void *arg)
{
	struct tp *tp = arg;
	struct pollfd p[TP_RANKS_MAX] = {{.fd = tp->stop_fd, .events = POLLIN}};
	for (unsigned r = 1; r < tp->ranks; r++)
		p[r] = (struct pollfd){.fd = tp->child[r].pid ? tp->child[r].fd : -1};
	while (poll(p, tp->ranks, -1) < 0 && errno == EINTR)
		;
	for (unsigned r = 1; !p[0].revents && r < tp->ranks; r++)
		if (p[r].revents) {
			char how[64], why[160];
			int pid = (int)tp->child[r].pid;
			reap(&tp->child[r], clock_us() + STATUS_MS * 1000u, how, sizeof how);
			snprintf(why, sizeof why, "rank %u (process %d) %s", r, pid, how);
			tp_fail(tp, why);
			break;
		}
	return NULL;
}

/* Closes the sockets, at which the other ranks exit; kills those that have not after END_MS. One
 * that has not ended END_MS later is reaped by init, when this process ends. */
static void end_ranks(struct tp *tp)
{
	char how[64];
	for (unsigned r = 1; r < tp->ranks; r++)
		if (tp->child[r].fd >= 0)
			close(tp->child[r].fd);
	for (int killed = 0; killed < 2; killed++) {
		uint64_t deadline_us = clock_us() + END_MS * 1000u;
		for (unsigned r = 1; r < tp->ranks; r++) {
			if (tp->child[r].pid)
				reap(&tp->child[r], deadline_us, how, sizeof how);
			if (tp->child[r].pid)
				kill(tp->child[r].pid, SIGKILL);
		}
	}
}

static int ring_make(struct tp_ring *g, unsigned stages, struct err *err)
{
	int pair[2];
	memset(g, 0xff, sizeof *g); /* -1 */
	for (unsigned s = 0; stages > 1 && s < stages; s++) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
			return err_set(err, ERR_IO, "cannot make a socket for stage %u: %s", s,
			               strerror(errno));
		g->to_next[s] = pair[0];
		g->from_previous[(s + 1) % stages] = pair[1];
	}
	return 0;
}

/* Stages on other hosts are the last ones. */
static int start_ranks(struct tp *tp, int memory, const struct tp_start *o, struct err *err)
{
	struct tp_ring g;
	unsigned here = tp->ranks - o->n_remote * (tp->ranks / tp->stages);
	int rc = ring_make(&g, tp->stages, err);
	for (unsigned r = 1; !rc && r < here; r++)
		rc = tp_start_rank(tp, r, memory, &g, o->hello, o->hello_bytes, err);
	for (unsigned i = 0; !rc && i < o->n_remote; i++)
		rc = bridge_start(tp, tp->stages - o->n_remote + i, &o->remote[i], &g, o->hello,
		                  o->hello_bytes, err);
	tp->to_next = g.to_next[0];
	tp->from_previous = g.from_previous[0];
	g.to_next[0] = g.from_previous[0] = -1;
	close_fds(g.to_next, tp->stages);
	close_fds(g.from_previous, tp->stages);
	return rc;
}

struct tp *tp_new(unsigned stages, unsigned ranks)
{
	struct tp *tp = mem_zalloc(sizeof *tp);
	tp->stages = stages;
	tp->ranks = ranks;
	tp->fd = tp->stop_fd = tp->to_next = tp->from_previous = -1;
	for (unsigned r = 0; r < TP_RANKS_MAX; r++)
		tp->child[r].fd = -1;
	return tp;
}

int tp_watch(struct tp *tp, struct err *err)
{
	if ((tp->stop_fd = eventfd(0, EFD_CLOEXEC)) < 0 ||
	    pthread_create(&tp->watcher, NULL, watch, tp))
		return err_set(err, ERR_IO, "cannot watch the ranks: %s", strerror(errno));
	tp->watching = 1;
	return 0;
}

int tp_start(const struct tp_start *o, struct tp **ret_tp, struct err *err)
{
	if (o->ranks < 2 || o->ranks > TP_RANKS_MAX)
		return err_set(err, ERR_INVALID, "%u ranks, limits are 2 and %d", o->ranks, TP_RANKS_MAX);
	if (!o->stages || o->ranks % o->stages || o->n_remote >= o->stages)
		return err_set(err, ERR_INVALID,
		               "%u ranks in %u stages, %u of them on other hosts: expected a divisor, and "
		               "fewer",
		               o->ranks, o->stages, o->n_remote);
	struct tp *tp = tp_new(o->stages, o->ranks);
	tp->broken = o->broken;
	tp->broken_arg = o->broken_arg;
	int memory = tp_map_new(tp, o->bytes, err), rc = memory < 0 ? memory : 0;
	if (!rc)
		rc = start_ranks(tp, memory, o, err);
	if (memory >= 0)
		close(memory);
	if (!rc)
		rc = tp_watch(tp, err);
	if (rc)
		tp_destroy(&tp);
	else
		*ret_tp = tp;
	return rc;
}

void tp_destroy(struct tp **tpp)
{
	struct tp *tp = *tpp;
	if (!tp)
		return;
	if (tp->watching) {
		uint64_t one = 1;
		while (write(tp->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
			;
		pthread_join(tp->watcher, NULL);
	}
	if (tp->stop_fd >= 0)
		close(tp->stop_fd);
	for (unsigned i = 0; i < tp->bridges; i++)
		bridge_end(&tp->bridge[i]); /* what they notice from now on is the end */
	if (tp->fd < 0)
		end_ranks(tp);
	int own[] = {tp->fd, tp->to_next, tp->from_previous};
	close_fds(own, sizeof own / sizeof *own);
	if (tp->sh)
		munmap(tp->sh, tp->sh->bytes);
	free(tp);
	*tpp = NULL;
}

/* --- the other ranks ----------------------------------------------------- */

/* Exits when rank 0 is gone or has closed the group: nothing is left to do, and no one to report
 * to. */
static void *lifeline(void *arg)
{
	const struct tp *tp = arg;
	struct pollfd p = {.fd = tp->fd};
	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
	_exit(0);
}

static int take_hello(struct tp *tp, void *hello, size_t hello_bytes, struct err *err)
{
	struct hello_head head;
	size_t size = sizeof head + hello_bytes;
	unsigned char *msg = mem_alloc(size + 1);
	int fds[3] = {-1, -1, -1}; /* the mapping, ends of the ring */
	unsigned n_fds = 0;
	ssize_t n = sock_recv(tp->fd, msg, size + 1, fds, 3, &n_fds);
	struct stat st;
	int rc = 0;
	if (n != (ssize_t)size || (n_fds != 1 && n_fds != 3))
		rc = err_set(err, ERR_INVALID,
		             "a hello of %zd bytes and %u descriptors, expected %zu, and 1 or 3", n, n_fds,
		             size);
	else {
		memcpy(&head, msg, sizeof head);
		memcpy(hello, msg + sizeof head, hello_bytes);
		if (head.ranks < 2 || head.ranks > TP_RANKS_MAX || !head.rank || head.rank >= head.ranks ||
		    !head.stages || head.ranks % head.stages)
			rc = err_set(err, ERR_INVALID, "rank %u of %u in %u stages, limits are 1 and %d",
			             head.rank, head.ranks, head.stages, TP_RANKS_MAX - 1);
		else if (fstat(fds[0], &st) < 0 || (uint64_t)st.st_size != head.bytes ||
		         head.bytes < head_bytes())
			rc = err_set(err, ERR_INVALID,
			             "the shared memory does not have the announced size of %llu bytes",
			             (unsigned long long)head.bytes);
	}
	free(msg);
	if (!rc) {
		tp->rank = head.rank;
		tp->ranks = head.ranks;
		tp->stages = head.stages;
		rc = map(tp, fds[0], head.bytes, err);
	}
	close_fds(fds, 1);
	tp->to_next = fds[1];
	tp->from_previous = fds[2];
	if (!rc && (tp->sh->magic != TP_MAGIC || tp->sh->ranks != tp->ranks ||
	            tp->sh->stages != tp->stages || tp->sh->bytes != head.bytes))
		rc = err_set(err, ERR_CORRUPT, "the shared memory is not that of a group of ranks");
	return rc;
}

int tp_join(int fd, void *hello, size_t hello_bytes, struct tp **ret_tp, struct err *err)
{
	struct tp *tp = mem_zalloc(sizeof *tp);
	pthread_t thread;
	tp->fd = fd;
	tp->stop_fd = tp->to_next = tp->from_previous = -1;
	/* the kernel kills us when the thread that started us ends: also if we are stopped, and would
	 * not see the end of file */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	int rc = take_hello(tp, hello, hello_bytes, err);
	if (!rc && pthread_create(&thread, NULL, lifeline, tp))
		rc = err_set(err, ERR_IO, "cannot start a thread");
	if (!rc)
		pthread_detach(thread);
	if (rc)
		tp_destroy(&tp);
	else
		*ret_tp = tp;
	return rc;
}

/* --- exchanges ----------------------------------------------------------- */

/* Receives a message of exactly `size` bytes from rank `from`, or fails the group. The limit is for
 * what rank 0 waits for, which knows who is late; the others wait for as long as rank 0 does. */
static int exchange_take(struct tp *tp, unsigned from, void *msg, size_t size, int *fds,
                         unsigned max, unsigned *n_fds)
{
	char why[120];
	struct pollfd p = {.fd = from ? tp->child[from].fd : tp->fd, .events = POLLIN};
	uint64_t deadline = clock_us() + TP_OPEN_LIMIT_S * 1000000ull;
	int ready = 0;
	while (!tp_why(tp) && ready <= 0 && (!from || clock_left_us(deadline)))
		ready = poll(&p, 1, LOOK_MS);
	if (tp_why(tp))
		return ERR_IO;
	if (ready > 0 && sock_recv(p.fd, msg, size, fds, max, n_fds) == (ssize_t)size)
		return 0;
	snprintf(why, sizeof why,
	         ready > 0 ? "rank %u left an exchange" : "rank %u did not answer within %d s", from,
	         TP_OPEN_LIMIT_S);
	if (ready > 0)
		fail_gone(tp, why);
	else
		tp_fail(tp, why);
	return ERR_IO;
}

/* Rank 0's part: gathers, then distributes. */
static int exchange_gather(struct tp *tp, struct tp_exchange_all *all, int fd, int *fds)
{
	size_t size = tp_exchange_size(tp);
	int rc = 0;
	for (unsigned r = 1; !rc && r < tp->ranks; r++) {
		struct tp_exchange_mine m;
		unsigned n = 0;
		if ((rc = exchange_take(tp, r, &m, sizeof m, &fds[r], 1, &n)))
			break;
		memcpy(all->data[r], m.data, sizeof m.data);
		/* one of another host's rank stays there */
		all->has_fd |= (uint64_t)(n > 0 || (m.has_fd && !tp->child[r].pid)) << r;
	}
	for (unsigned r = 1; !rc && r < tp->ranks; r++) {
		int given[SOCK_FDS_MAX];
		unsigned n = 0;
		for (unsigned i = 0; i < tp->ranks && n < SOCK_FDS_MAX; i++)
			if (tp_passes(tp, all, i, r) && (!i || fds[i] >= 0))
				given[n++] = i ? fds[i] : fd;
		if (sock_send(tp->child[r].fd, all, size, given, n)) {
			tp_fail(tp, "a rank left an exchange");
			rc = ERR_IO;
		}
	}
	return rc;
}

/* Another rank's part. */
static int exchange_pass(struct tp *tp, struct tp_exchange_all *all,
                         const struct tp_exchange_mine *m, int fd, int *fds)
{
	size_t size = tp_exchange_size(tp);
	int taken[SOCK_FDS_MAX];
	unsigned n = 0, at = 0, due = 0;
	if (sock_send(tp->fd, m, sizeof *m, &fd, m->has_fd) ||
	    exchange_take(tp, 0, all, size, taken, SOCK_FDS_MAX, &n))
		return ERR_IO;
	for (unsigned r = 0; r < tp->ranks; r++)
		if (tp_passes(tp, all, r, tp->rank)) {
			due++;
			fds[r] = at < n ? taken[at++] : -1;
		}
	if (n == due)
		return 0;
	char why[120];
	close_fds(taken + at, n - at);
	snprintf(why, sizeof why, "rank %u got %u descriptors in an exchange, expected %u", tp->rank, n,
	         due);
	tp_fail(tp, why);
	return ERR_IO;
}

int tp_exchange(struct tp *tp, const void *mine, size_t bytes, int fd, void *ret_all, int *fds)
{
	struct tp_exchange_all *all = mem_zalloc(sizeof *all);
	struct tp_exchange_mine m = {.has_fd = fd >= 0};
	if (bytes)
		memcpy(m.data, mine, bytes);
	for (unsigned r = 0; r < tp->ranks; r++)
		fds[r] = -1;
	memcpy(all->data[0], m.data, sizeof m.data);
	all->has_fd = m.has_fd;
	int rc = tp->rank ? exchange_pass(tp, all, &m, fd, fds) : exchange_gather(tp, all, fd, fds);
	for (unsigned r = 0; r < tp->ranks && bytes; r++)
		memcpy((unsigned char *)ret_all + r * bytes, all->data[r], bytes);
	if (rc)
		close_fds(fds, tp->ranks);
	free(all);
	return rc;
}

unsigned tp_rank(const struct tp *tp)
{
	return tp->rank;
}

unsigned tp_ranks(const struct tp *tp)
{
	return tp->ranks;
}

unsigned tp_stages(const struct tp *tp)
{
	return tp->stages;
}
