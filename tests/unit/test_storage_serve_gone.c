/* test_storage_serve_gone.c - workers that die, lose their link, give up, come again under the
 * same name, or are none: what of theirs is under way, and their memory. */
#include "tests/unit/serve_world.h"
#include "util/descriptors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

TEST_CASE("gone", .timeout_s = 60, .setup = set_up, .teardown = tear_down);

/* The memory stays mapped while a copy runs; what had not begun is dropped; nobody is answered. */
TEST(test_worker_dies)
{
	static const uint32_t names[] = {1, 2, 3, 4}, blocks[] = {0, 1, 2, 3}, to[] = {4, 5, 6, 7};
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, names, blocks, 4), "oooo");
	forget_said();
	atomic_store(&gate.closed, 1);
	ask(W, MSG_STORE_GET, 2, names, to, 4);
	wait_inside(2);
	peers[0].up = 0;
	close(sock);
	sock = -1;
	for (int i = 0; i < 20; i++)
		loop();
	ck_assert_uint_eq(attached_workers(st.attached), 0);
	ck_assert_uint_eq(n_clients(), 1);
	atomic_store(&gate.closed, 0);
	for (int i = 0; i < 150000 && n_clients(); i++, usleep(200))
		loop();
	ck_assert_uint_eq(n_clients(), 0);
	ck_assert_uint_eq(n_said, 0);
}

/* It dies with a batch open, and the daemon stops before the loop hears of the batch's end. */
TEST(test_worker_dies_at_the_stop)
{
	static const uint32_t names[] = {1, 2}, blocks[] = {0, 1}, to[] = {4, 5};
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, names, blocks, 2), "oo");
	atomic_store(&gate.closed, 1);
	ask(W, MSG_STORE_GET, 2, names, to, 2);
	wait_inside(2);
	close(sock);
	sock = -1;
	for (int i = 0; i < 20; i++)
		loop();
	ck_assert_uint_eq(n_clients(), 1);
	atomic_store(&gate.closed, 0);
	copier_destroy(&st.copier);
	ck_assert_uint_eq(n_posts, 1);
	n_posts = 0;
	serve_forget(&st);
	clients_stop(&st);
	ck_assert_uint_eq(n_clients(), 0);
}

/* The link is down, the socket is not: what is under way ends, also without a fence; one that
 * comes when the link is up again is answered. */
TEST_LOOP(test_link_down, 0, 2)
{
	static const uint32_t names[] = {1, 2, 3, 4}, blocks[] = {0, 1, 2, 3}, to[] = {4, 5, 6, 7};
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, names, blocks, 4), "oooo");
	forget_said();
	atomic_store(&gate.closed, 1);
	ask(W, MSG_STORE_GET, 2, names, to, 4);
	wait_inside(2);
	peers[0].up = 0;
	serve_down(NULL, W, "silence");
	peers[0].up = 1;
	if (_i)
		fence(W, 2);
	ck_assert_uint_eq(n_said, 0);
	atomic_store(&gate.closed, 0);
	loop_until_said(1 + (unsigned)_i);
	ck_assert_uint_eq(n_said, 1 + (unsigned)_i);
	ck_assert_str_eq(codes_of(0, 2), "oocc");
	if (_i)
		ck_assert_int_eq(said[1].type, MSG_STORE_FENCED);
}

/* A fence of another worker, or of another life of this one, is for no batch of this one. */
TEST_LOOP(test_fence_of_another, 0, 2)
{
	static const uint32_t names[] = {1, 2, 3, 4}, blocks[] = {0, 1, 2, 3}, to[] = {4, 5, 6, 7};
	struct peer other = *W;
	if (_i)
		other.epoch++;
	else
		snprintf(other.name, sizeof other.name, "worker-9");
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, names, blocks, 4), "oooo");
	forget_said();
	atomic_store(&gate.closed, 1);
	ask(W, MSG_STORE_GET, 2, names, to, 4);
	wait_inside(2);
	fence(&other, 2);
	ck_assert_uint_eq(n_said, 1);
	ck_assert_int_eq(said[0].type, MSG_STORE_FENCED);
	ck_assert_ptr_eq(said[0].to, &other);
	forget_said();
	atomic_store(&gate.closed, 0);
	loop_until_said(1);
	ck_assert_str_eq(codes_of(0, 2), "oooo");
}

/* Of another life nothing is copied: that memory is not its own. */
TEST(test_batch_of_another_life)
{
	static const uint32_t names[] = {1}, blocks[] = {0};
	struct peer other = *W;
	other.epoch++;
	ck_assert_str_eq(ask_wait(&other, MSG_STORE_PUT, 1, names, blocks, 1), "e");
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, names, blocks, 1), "o");
}

/* Puts whose bytes are copied do not wait for the tier when they are given up: the answer and the
 * fence come at once, and the worker's memory may go while the tier still has them. */
TEST(test_put_given_up)
{
	static const uint32_t names[] = {1, 2, 3, 4}, blocks[] = {0, 1, 2, 3};
	for (unsigned i = 0; i < 4; i++)
		block_fill(i, names[i]);
	atomic_store(&gate.closed, 1);
	forget_said();
	ask(W, MSG_STORE_PUT, 1, names, blocks, 4);
	wait_inside(2);
	fence(W, 1);
	loop_until_said(2);
	ck_assert_uint_eq(n_said, 2);
	ck_assert_str_eq(codes_of(0, 1), "cccc");
	ck_assert_int_eq(said[1].type, MSG_STORE_FENCED);
	ask(W, MSG_STORE_PUT, 2, names, blocks, 4); /* one more of each thread waits for the gate */
	close(sock);
	sock = -1;
	for (int i = 0; i < 150000 && n_clients(); i++, usleep(200))
		loop();
	ck_assert_uint_eq(n_clients(), 0);
	atomic_store(&gate.closed, 0);
}

/* A tier that takes its time: it has operations and has not begun them. */
#define PARKED_MAX 16u
static struct tier_op *parked[PARKED_MAX];
static atomic_uint n_parked;
static void park(struct tier *t, struct tier_op *op)
{
	(void)t;
	unsigned i = atomic_load(&n_parked);
	ck_assert_uint_lt(i, PARKED_MAX);
	parked[i] = op;
	atomic_store(&n_parked, i + 1); /* one copy thread at a time: see below */
}

static void release(void (*to)(struct tier *t, struct tier_op *op))
{
	for (unsigned i = 0; i < atomic_load(&n_parked); i++) {
		ck_assert(tier_op_unwanted(parked[i]));
		to(gate.inner, parked[i]);
	}
	atomic_store(&n_parked, 0);
}

TEST_CASE("one", .timeout_s = 60, .setup = set_up_one, .teardown = tear_down);

/* What such a tier has is given up at once, by a fence, by the link's end or by the end of the
 * worker; what it does later touches the worker's memory no more, also when that is gone, and
 * stores nothing. */
TEST_LOOP(test_slow_tier, 0, 6)
{
	static const uint32_t names[] = {1, 2, 3}, blocks[] = {0, 1, 2}, to[] = {4, 5, 6};
	int put = _i % 2, how = _i / 2;
	struct tier_ops slow = gate_ops;
	slow.put = slow.get = park;
	for (unsigned i = 0; i < 3; i++)
		block_fill(i, names[i]);
	if (!put)
		ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, names, blocks, 3), "ooo");
	gate.tier.ops = &slow;
	forget_said();
	ask(W, put ? MSG_STORE_PUT : MSG_STORE_GET, 2, names, put ? blocks : to, 3);
	for (int i = 0; i < 150000 && atomic_load(&n_parked) < 3; i++)
		usleep(200);
	ck_assert_uint_eq(atomic_load(&n_parked), 3);
	if (how == 0)
		fence(W, 2);
	else if (how == 1)
		serve_down(NULL, W, "silence");
	else
		close(sock);
	if (how < 2) {
		loop_until_said(how == 0 ? 2 : 1);
		ck_assert_str_eq(codes_of(0, 2), "ccc");
	} else {
		sock = -1;
		for (int i = 0; i < 150000 && n_clients(); i++, usleep(200))
			loop();
		ck_assert_uint_eq(n_clients(), 0);
	}
	gate.tier.ops = &gate_ops;
	release(put ? gate.inner->ops->put : gate.inner->ops->get);
	ck_assert(block_zero(4) && block_zero(5) && block_zero(6));
	if (put) {
		struct tier_stat t;
		gate.inner->ops->stat(gate.inner, &t);
		ck_assert_uint_eq(t.blocks, 0);
	}
}

TEST_CASE("gone");

TEST(test_names)
{
	int code, other;
	struct pool_memory r2;
	struct err err = {0};
	ck_assert_int_eq(pool_memory_new(&r2, &layout, 2, &err), 0);
	hand_over("worker-0", 101, &layout, &r2, &code);
	ck_assert_int_eq(code, ERR_EXISTS); /* the first one's socket lives */
	other = hand_over("worker-1", 101, &layout, &r2, &code);
	ck_assert_int_eq(code, 0);
	hand_over("worker-2", 102, &layout, &r2, &code);
	ck_assert_int_eq(code, ERR_FULL); /* one process has half of workers_max, which is 4 */
	close(sock);
	/* its next life, at the same moment */
	sock = hand_over("worker-0", 150, &layout, &shared, &code);
	ck_assert_int_eq(code, 0);
	ck_assert_uint_eq(attached_workers(st.attached), 2);
	close(other);
	pool_memory_fini(&r2);
}

TEST(test_unknown_backend)
{
	int code;
	ck_assert_int_eq(hand_over_of("none", "worker-1", 101, &layout, &shared, &code), -1);
	ck_assert_int_eq(code, ERR_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(reply.text, "blocks on device 0 of backend none cannot be copied: "
	                                         "backend: found none, expected cpu, sim or an"));
	ck_assert_uint_eq(attached_workers(st.attached), 1);
	int s = hand_over_of("sim", "worker-1", 101, &layout, &shared, &code);
	ck_assert_int_eq(code, 0);
	close(s);
}

/* The next life's hello is read before the last one's end of file, which is there: it counts. */
TEST(test_next_life)
{
	char path[128];
	struct handover_hello h;
	struct err err = {0};
	int bell;
	svc_sock_path(NULL, "storage", path, sizeof path);
	int s = sock_connect(path, &err);
	loop();
	handover_hello_init(&h, "worker-0", 150, &layout, BLOCKS, "cpu");
	W->epoch = 150;
	ck_assert_int_eq(pool_memory_offer(&shared, s, &h, -1, &err), 0);
	close(sock);
	sock = s;
	for (int i = 0; i < 5; i++)
		loop();
	ck_assert_int_eq(handover_result(s, &reply, &bell, &err), 0);
	ck_assert_int_eq(reply.code, 0);
	ck_assert_uint_eq(attached_workers(st.attached), 1);
}

/* Something after the hello, and something that is no hello: the connection ends, the daemon
 * does not. */
TEST(test_bad_connections)
{
	char path[128];
	struct err err = {0};
	ck_assert_int_eq(sock_send(sock, "x", 1, NULL, 0), 0);
	for (int i = 0; i < 5; i++)
		loop();
	ck_assert_uint_eq(attached_workers(st.attached), 0);
	svc_sock_path(NULL, "storage", path, sizeof path);
	for (unsigned i = 0; i < 20; i++) {
		unsigned char junk[300];
		for (unsigned k = 0; k < sizeof junk; k++)
			junk[k] = (unsigned char)(i * 7 + k * 13);
		int s = sock_connect(path, &err), fd = dup(shared.region.data.fd[0]);
		ck_assert_int_ge(s, 0);
		if (i)
			sock_send(s, junk, 1 + i * 14, &fd, 1);
		close(s);
		close(fd);
		for (int k = 0; k < 5; k++)
			loop();
	}
	ck_assert_uint_eq(attached_workers(st.attached), 0);
}

static unsigned descriptors(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");
	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* A hello cut short, one without its descriptors, and none; then the end of file. Nothing of
 * them stays open. */
TEST(test_half_a_hello)
{
	unsigned before_all = descriptors();
	char path[128];
	struct handover_hello h;
	struct err err = {0};
	int code;
	svc_sock_path(NULL, "storage", path, sizeof path);
	handover_hello_init(&h, "worker-1", 101, &layout, BLOCKS, "cpu");
	for (int i = 0; i < 3; i++) {
		int s = sock_connect(path, &err);
		ck_assert_int_ge(s, 0);
		loop();
		if (i < 2)
			ck_assert_int_eq(sock_send(s, &h, i ? sizeof h : sizeof h / 2, NULL, 0), 0);
		close(s);
		for (int k = 0; k < 5; k++)
			loop();
		ck_assert_uint_eq(n_clients(), 1);
		ck_assert_uint_eq(descriptors(), before_all);
	}
	int s = hand_over("worker-1", 101, &layout, &shared, &code);
	ck_assert_int_eq(code, 0);
	close(s);
}

static void on_time(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	*(int *)arg = 1;
}

/* How often the loop wakes within that time. */
static unsigned wake_ups(int ms)
{
	unsigned n = 0;
	int over = 0;
	struct event *timer = event_new(base, -1, 0, on_time, &over);
	event_add(timer, &(struct timeval){.tv_usec = ms * 1000});
	for (; !over; n++)
		event_base_loop(base, EVLOOP_ONCE);
	event_free(timer);
	return n;
}

/* From now on this process's accept4 says ENOMEM. */
static void no_memory(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_accept4, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof code / sizeof *code, code};
	ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static struct rlimit before;
static void no_descriptors(void)
{
	struct rlimit none;
	int lowest = dup(0);
	close(lowest);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = before;
	none.rlim_cur = (rlim_t)lowest;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	/* also has the program's own accept4 linked under the sanitizers */
	ck_assert_uint_eq(descriptors_limit(), (unsigned)lowest);
}

static unsigned lines_with(const char *path, const char *what)
{
	char line[1024];
	unsigned n = 0;
	FILE *f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof line, f))
		n += strstr(line, what) != NULL;
	fclose(f);
	return n;
}

/* A connection that accept does not take: the loop rests, one line says why, and it is taken
 * when it can be. */
TEST_LOOP(test_accept_fails, 0, 2)
{
	char path[128], log[128];
	struct handover_hello h;
	struct err err = {0};
	int bell, memory = _i;
	struct pollfd answered = {.events = POLLIN};
	snprintf(log, sizeof log, "%s/log", dir);
	int out = open(log, O_CREAT | O_WRONLY | O_APPEND, 0600);
	ck_assert_int_ge(dup2(out, STDERR_FILENO), 0);
	close(out);
	svc_sock_path(NULL, "storage", path, sizeof path);
	answered.fd = sock_connect(path, &err);
	handover_hello_init(&h, "worker-1", 101, &layout, BLOCKS, "cpu");
	ck_assert_int_eq(pool_memory_offer(&shared, answered.fd, &h, -1, &err), 0);
	if (memory)
		no_memory();
	else
		no_descriptors();
	unsigned n = wake_ups(400);
	if (!memory) {
		ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
		for (int i = 0; i < 30000 && poll(&answered, 1, 1) == 0; i++)
			loop();
		ck_assert_int_eq(handover_result(answered.fd, &reply, &bell, &err), 0);
		ck_assert_int_eq(reply.code, 0);
	}
	ck_assert_uint_le(n, 20);
	ck_assert_uint_eq(
		lines_with(log, memory ? "event=accept_failed" : "event=descriptors_exhausted"), 1);
	close(answered.fd);
	unlink(log);
}
