/* test_handover.c - the hand-over of a worker's memory: what is believed of a hello and of an
 * answer, and when attach says `on` and `gone`.
 *
 * The peer of the attach tests is a forked process; it ends when the test tells it to, or with
 * the test. */
#include "daemons/worker/links/attach.h"
#include "kv/handover.h"
#include "pool_memory.h"
#include "kv/ring.h"
#include "svc/svc_int.h"
#include "util/clock.h"
#include "util/sock.h"
#include "skip.h"
#include "tempdir.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 8u
#define SLOTS 2u
#define LAYERS 2u
#define WORKER_EPOCH 77u

static struct kv_layout layout;
static struct pool_memory shared;
static struct ring *ring;
static struct handover_hello hello;
static int pair[2];
static char dir[TEST_FOLDER_BYTES], path[96];

static void setup(void)
{
	struct err e = {0};
	ck_assert_int_eq(kv_layout_uniform(&layout, LAYERS, 1, 4, 4, KV_F32), 0);
	ck_assert_msg(pool_memory_new(&shared, &layout, BLOCKS, &e) == 0, "%s", e.text);
	ck_assert_msg(ring_create(SLOTS, LAYERS, WORKER_EPOCH, &ring, &e) == 0, "%s", e.text);
	handover_hello_init(&hello, "prefill-1", WORKER_EPOCH, &layout, BLOCKS, "cpu");
	hello.parts = hello.stages = 1;
	hello.ring_slots = SLOTS;
	hello.ring_layers = LAYERS;
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	test_folder(dir, "handover");
	snprintf(path, sizeof path, "%s/m.sock", dir);
}

static void teardown(void)
{
	char lock[128];
	snprintf(lock, sizeof lock, "%s.lock", path);
	unlink(path);
	unlink(lock);
	rmdir(dir);
	close(pair[0]);
	close(pair[1]);
	ring_destroy(&ring);
	pool_memory_fini(&shared);
}

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* --- the two messages ---------------------------------------------------- */

TEST_CASE("messages", .setup = setup, .teardown = teardown);

TEST(both_ways)
{
	struct handover_hello h;
	struct kv_layout l;
	struct pool_memory mapped;
	struct ring *r2;
	struct handover_reply reply;
	struct err e = {0};
	struct handover_fds fds;
	int bell = eventfd(0, EFD_NONBLOCK), theirs;
	ck_assert_int_eq(pool_memory_offer(&shared, pair[0], &hello, ring_fd(ring), &e), 0);
	ck_assert_msg(handover_receive(pair[1], &h, &l, &fds, &e) == 0, "%s", e.text);
	ck_assert_str_eq(h.name, "prefill-1");
	ck_assert_uint_eq(h.epoch, WORKER_EPOCH);
	ck_assert_uint_eq(l.block_bytes, layout.block_bytes);
	ck_assert_msg(pool_memory_map(&mapped, &l, h.blocks, fds.control, fds.data.fd[0], &e) == 0,
	              "%s", e.text);
	ck_assert_msg(ring_map(fds.ring, h.ring_slots, h.ring_layers, h.epoch, &r2, &e) == 0, "%s",
	              e.text);
	mapped.data[17] = 42;
	ck_assert_uint_eq(shared.data[17], 42); /* the same memory */
	ck_assert_int_eq(handover_answer(pair[1], 5, 0, "", "m@tcp://10.0.0.1:7003", bell), 0);
	ck_assert_int_eq(handover_result(pair[0], &reply, &theirs, &e), 0);
	ck_assert_uint_eq(reply.epoch, 5);
	ck_assert_int_eq(reply.code, 0);
	ck_assert_str_eq(reply.remote, "m@tcp://10.0.0.1:7003");
	uint64_t one = 1;
	ck_assert_int_eq(write(theirs, &one, sizeof one), sizeof one);
	ck_assert_int_eq(read(bell, &one, sizeof one), sizeof one);
	close(theirs);
	close(bell);
	ring_destroy(&r2);
	pool_memory_fini(&mapped);
}

TEST(without_a_ring)
{
	struct handover_hello h;
	struct handover_reply reply;
	struct kv_layout l;
	struct err e = {0};
	struct handover_fds fds;
	int bell = 0;
	hello.ring_slots = hello.ring_layers = 0;
	ck_assert_int_eq(pool_memory_offer(&shared, pair[0], &hello, -1, &e), 0);
	ck_assert_int_eq(handover_receive(pair[1], &h, &l, &fds, &e), 0);
	ck_assert_int_eq(fds.ring, -1);
	handover_fds_close(&fds);
	ck_assert_int_eq(
		handover_answer(pair[1], 5, ERR_EXISTS, "a second one", "m@tcp://10.0.0.1:7003", -1), 0);
	ck_assert_int_eq(handover_result(pair[0], &reply, &bell, &e), 0);
	ck_assert_int_eq(reply.code, ERR_EXISTS);
	ck_assert_str_eq(reply.text, "a second one");
	ck_assert_str_eq(reply.remote, ""); /* none with a refusal */
	ck_assert_int_eq(bell, -1);
	struct pool_memory none = shared;
	none.region.data.parts = 0;
	ck_assert_int_eq(pool_memory_offer(&none, pair[0], &hello, -1, &e), ERR_UNSUPPORTED);
}

#define H(f) offsetof(struct handover_hello, f)
static const struct {
	const char *what;
	size_t offset;
	uint32_t value;
	size_t n; /* bytes of the value; of them, 0: as it is */
	unsigned fds;
	int want;
	const char *says; /* a part of the message; NULL: any */
} hellos[] = {
	{"magic", H(magic), 1, 4, 3, ERR_CORRUPT, NULL},
	{"version", H(version), HANDOVER_VERSION - 1, 4, 3, ERR_UNSUPPORTED, NULL},
	{"no name", H(name), 0, 1, 3, ERR_INVALID, NULL},
	{"name with a slash", H(name), '/', 1, 3, ERR_INVALID, NULL},
	{"name with a line break", H(name) + 2, '\n', 1, 3, ERR_INVALID, NULL},
	{"no backend", H(backend), 0, 1, 3, ERR_INVALID, NULL},
	{"backend with a slash", H(backend), '/', 1, 3, ERR_INVALID, NULL},
	{"backend without an end", H(backend), 0x61616161, 16, 3, ERR_INVALID, NULL},
	{"a device below 0", H(device), UINT32_MAX, 4, 3, ERR_INVALID,
     "part 0 of the pool is on device -1, the least is 0"},
	{"no epoch", H(epoch), 0, 4, 3, ERR_INVALID, NULL},
	{"an epoch above INT64_MAX", H(epoch) + 4, 1u << 31, 4, 3, ERR_INVALID, NULL},
	{"no blocks", H(blocks), 0, 4, 3, ERR_INVALID, NULL},
	{"blocks without end", H(blocks), UINT32_MAX, 4, 3, ERR_INVALID, NULL},
	{"ring too long", H(ring_slots), RING_SLOTS_MAX + 1, 4, 3, ERR_INVALID, NULL},
	{"ring of other layers", H(ring_layers), 3, 4, 3, ERR_INVALID, NULL},
	{"no layers", H(layers), 0, 4, 3, ERR_INVALID, NULL},
	{"too many layers", H(layers), KV_LAYERS_MAX + 1, 4, 3, ERR_INVALID, NULL},
	{"no tokens in a block", H(block_tokens), 0, 4, 3, ERR_INVALID, NULL},
	{"a block of 16 GiB", H(block_tokens), 1u << 28, 4, 3, ERR_INVALID, NULL},
	{"unknown type", H(kv_type), 9, 4, 3, ERR_INVALID, NULL},
	{"a layer without heads", H(layer) + sizeof(struct kv_layer), 0, 4, 3, ERR_INVALID, NULL},
	{"no descriptors", 0, 0, 0, 0, ERR_INVALID, NULL},
	{"no ring descriptor", 0, 0, 0, 2, ERR_INVALID, NULL},
	{"a ring descriptor without a ring", H(ring_slots), 0, 4, 3, ERR_INVALID, NULL},
	{"more descriptors", 0, 0, 0, 5, ERR_INVALID, NULL},
	{"no parts", H(parts), 0, 4, 3, ERR_INVALID, "a pool of 0 parts, the limits are 1 and 16"},
	{"more parts than descriptors", H(parts), 2, 4, 3, ERR_INVALID, NULL},
	{"too many parts", H(parts), KERN_PARTS_MAX + 1, 4, 3, ERR_INVALID,
     "hand-over of prefill-1: a pool of 17 parts, the limits are 1 and 16"},
	{"parts without end", H(parts), UINT32_MAX, 4, 3, ERR_INVALID,
     "a pool of 4294967295 parts, the limits are 1 and 16"},
	{"parts that two heads do not divide", H(parts), 3, 4, 5, ERR_INVALID,
     "a pool of 3 parts in 1 stages, but 2 layers of 2 KV heads"},
	{"no stages", H(stages), 0, 4, 3, ERR_INVALID, "a pool of 1 parts in 0 stages"},
	{"more stages than parts", H(stages), 2, 4, 3, ERR_INVALID,
     "a pool of 1 parts in 2 stages, expected a divisor"},
	{"more stages than layers", H(parts), 3, 8, 5, ERR_INVALID,
     "a pool of 3 parts in 3 stages, but 2 layers of 2 KV heads"},
};

TEST_LOOP(hello_is_checked, 0, sizeof hellos / sizeof *hellos)
{
	struct handover_hello h = hello, got;
	struct kv_layout l;
	struct err e = {0};
	struct handover_fds out = {-1, -1, {0}};
	int fds[5] = {shared.region.control_fd, shared.region.data.fd[0], ring_fd(ring)};
	fds[3] = fds[4] = pair[0];
	for (size_t i = 0; i < hellos[_i].n; i += 4)
		memcpy((char *)&h + hellos[_i].offset + i, &hellos[_i].value,
		       hellos[_i].n < 4 ? hellos[_i].n : 4);
	if (H(epoch) == hellos[_i].offset)
		h.epoch = 0;
	for (uint32_t i = 0; h.parts == 3 && i < h.layers; i++)
		h.layer[i].heads = 2;
	int before = open_fds();
	ck_assert_int_eq(sock_send(pair[0], &h, sizeof h, fds, hellos[_i].fds), 0);
	ck_assert_msg(handover_receive(pair[1], &got, &l, &out, &e) == hellos[_i].want, "%s: %s",
	              hellos[_i].what, e.text);
	ck_assert_msg(!hellos[_i].says || strstr(e.text, hellos[_i].says), "%s: %s", hellos[_i].what,
	              e.text);
	handover_fds_close(&out);
	ck_assert_int_eq(open_fds(), before); /* refused ones are closed */
}

/* With a descriptor and a device for each: they come in their places. */
TEST(the_most_parts)
{
	struct handover_hello h, got;
	struct kv_layout l;
	struct err e = {0};
	struct handover_fds in = {shared.region.control_fd, ring_fd(ring), {.parts = KERN_PARTS_MAX}},
						out;
	for (uint32_t i = 0; i < KERN_PARTS_MAX; i++) {
		in.data.fd[i] = eventfd(1 + i, 0);
		in.data.device[i] = (int32_t)(40 + i);
	}
	ck_assert_int_eq(kv_layout_uniform(&l, LAYERS, KERN_PARTS_MAX, 4, 4, KV_F32), 0);
	handover_hello_init(&h, "prefill-1", WORKER_EPOCH, &l, BLOCKS, "cpu");
	h.ring_slots = SLOTS;
	h.ring_layers = LAYERS;
	ck_assert_int_eq(handover_offer(pair[0], &h, &in, &e), 0);
	ck_assert_msg(handover_receive(pair[1], &got, &l, &out, &e) == 0, "%s", e.text);
	ck_assert_uint_eq(out.data.parts, KERN_PARTS_MAX);
	for (uint32_t i = 0; i < KERN_PARTS_MAX; i++) {
		eventfd_t is;
		ck_assert_int_eq(eventfd_read(out.data.fd[i], &is), 0);
		ck_assert_uint_eq(is, 1 + i);
		ck_assert_int_eq(out.data.device[i], 40 + (int32_t)i);
	}
	handover_fds_close(&out);
	kv_data_close(&in.data);
}

/* An empty message is no end of file for its descriptors: they are closed. */
TEST(empty_messages)
{
	struct handover_hello h;
	struct handover_reply reply;
	struct kv_layout l;
	struct handover_fds out;
	struct err e = {0};
	int bell = -1;
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} c = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	memcpy(CMSG_DATA(&c.head), &pair[0], sizeof(int));
	struct iovec io = {&c, 0};
	const struct msghdr m = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
	int before = open_fds();
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(sendmsg(pair[0], &m, 0), 0);
		ck_assert_int_eq(i ? handover_result(pair[1], &reply, &bell, &e)
		                   : handover_receive(pair[1], &h, &l, &out, &e),
		                 ERR_CLOSED);
		ck_assert_int_eq(open_fds(), before);
	}
}

TEST(hello_of_another_size)
{
	struct handover_hello got;
	struct kv_layout l;
	struct err e = {0};
	struct handover_fds out;
	_Alignas(struct handover_hello) char big[sizeof hello + 1] = {0};
	memcpy(big, &hello, sizeof hello);
	ck_assert_int_eq(sock_send(pair[0], big, sizeof hello - 1, NULL, 0), 0);
	ck_assert_int_eq(handover_receive(pair[1], &got, &l, &out, &e), ERR_CORRUPT);
	ck_assert_int_eq(sock_send(pair[0], big, sizeof big, NULL, 0), 0);
	ck_assert_int_eq(handover_receive(pair[1], &got, &l, &out, &e), ERR_INVALID);
	((struct handover_hello *)(void *)big)->version--;
	/* a former version's has another size, too */
	ck_assert_int_eq(sock_send(pair[0], big, sizeof hello - 68, NULL, 0), 0);
	ck_assert_int_eq(handover_receive(pair[1], &got, &l, &out, &e), ERR_UNSUPPORTED);
	ck_assert_str_eq(e.text, "hand-over has version 4, this daemon speaks 5");
	memset(hello.name, 'x', sizeof hello.name); /* no end */
	ck_assert_int_eq(sock_send(pair[0], &hello, sizeof hello, NULL, 0), 0);
	ck_assert_int_eq(handover_receive(pair[1], &got, &l, &out, &e), ERR_INVALID);
	fcntl(pair[1], F_SETFL, O_NONBLOCK);
	ck_assert_int_eq(handover_receive(pair[1], &got, &l, &out, &e), ERR_TIMEOUT);
	close(pair[0]);
	ck_assert_int_eq(handover_receive(pair[1], &got, &l, &out, &e), ERR_CLOSED);
	pair[0] = dup(0);
}

/* A valid hello with random bytes changed: it is refused or it is consistent, and nothing leaks. */
TEST(random_hellos)
{
	unsigned seed = 11;
	int before = open_fds(), taken = 0;
	for (int i = 0; i < 3000; i++) {
		struct handover_hello h = hello, got;
		struct kv_layout l;
		struct handover_fds out;
		int fds[3] = {shared.region.control_fd, shared.region.data.fd[0], ring_fd(ring)};
		for (int k = rand_r(&seed) % 4; k >= 0; k--)
			((unsigned char *)&h)[(unsigned)rand_r(&seed) % (i % 2 ? 128 : sizeof h)] ^=
				(unsigned char)(1u << rand_r(&seed) % 8);
		ck_assert_int_eq(sock_send(pair[0], &h, sizeof h, fds, 3), 0);
		if (handover_receive(pair[1], &got, &l, &out, NULL) < 0)
			continue;
		taken++;
		ck_assert(l.layers && l.layers <= KV_LAYERS_MAX && l.block_bytes &&
		          memchr(got.name, 0, sizeof got.name));
		struct pool_memory mapped;
		struct ring *r2;
		if (pool_memory_map(&mapped, &l, got.blocks, out.control, out.data.fd[0], NULL) == 0)
			pool_memory_fini(&mapped);
		if (ring_map(out.ring, got.ring_slots, got.ring_layers, got.epoch, &r2, NULL) == 0)
			ring_destroy(&r2);
	}
	ck_assert_int_gt(taken, 0);
	ck_assert_int_eq(open_fds(), before);
}

TEST(answer_is_checked)
{
	const struct handover_reply good = {HANDOVER_MAGIC, HANDOVER_VERSION, 5, 0, "", ""};
	struct handover_reply a[11], got;
	const int want[11] = {ERR_CORRUPT, ERR_UNSUPPORTED, ERR_INVALID, ERR_INVALID, ERR_CORRUPT, 0,
	                      ERR_INVALID, ERR_INVALID,     ERR_INVALID, ERR_INVALID, ERR_CORRUPT};
	struct err e = {0};
	for (int i = 0; i < 11; i++)
		a[i] = good;
	a[0].magic = 0;
	a[1].version = 9;
	a[2].epoch = 0;
	a[3].code = 1;
	memset(a[4].text, 'x', sizeof a[4].text);
	a[5].code = ERR_FULL;
	memset(a[6].remote, 'x', sizeof a[6].remote);
	strcpy(a[7].remote, "tcp://10.0.0.1:7003");
	strcpy(a[8].remote, "m@tcp://0.0.0.0:7003");
	memset(a[9].remote, '1', sizeof a[9].remote - 1); /* terminated, and too long */
	memcpy(a[9].remote, "m@tcp://", 8);
	memcpy(a[9].remote + sizeof a[9].remote - 4, ":70", 4);
	a[10].magic = 0; /* then its version says nothing */
	a[10].version = 9;
	int before = open_fds();
	for (int i = 0; i < 11; i++) {
		int bell = -2;
		ck_assert_int_eq(sock_send(pair[0], &a[i], sizeof a[i], &shared.region.data.fd[0], 1), 0);
		ck_assert_int_eq(handover_result(pair[1], &got, &bell, &e), want[i]);
		ck_assert_int_eq(open_fds(), before); /* a refusal brings no doorbell */
		ck_assert_int_eq(bell, want[i] ? -2 : -1);
	}
	ck_assert_int_eq(sock_send(pair[0], &good, sizeof good - 1, NULL, 0), 0);
	ck_assert_int_eq(handover_result(pair[1], &got, &before, &e), ERR_CORRUPT);
	/* the reply of version 2 was shorter */
	ck_assert_int_eq(sock_send(pair[0], &a[1], 256, NULL, 0), 0);
	ck_assert_int_eq(handover_result(pair[1], &got, &before, &e), ERR_UNSUPPORTED);
}

/* --- attach -------------------------------------------------------------- */

static struct svc svc;
static struct attach *attach;
static unsigned n_on, n_gone;
static uint64_t on_epoch, gone_epoch;
static int on_bell;

static void note_on(void *arg, uint64_t epoch, int bell)
{
	(void)arg;
	n_on++;
	on_epoch = epoch;
	if (on_bell >= 0)
		close(on_bell);
	on_bell = bell;
}

static void note_gone(void *arg, uint64_t epoch)
{
	(void)arg;
	n_gone++;
	gone_epoch = epoch;
}

static void attach_setup(void)
{
	static const struct attach_hooks hooks = {NULL, note_on, note_gone};
	setup();
	memset(&svc, 0, sizeof svc);
	svc.base = event_base_new();
	n_on = n_gone = 0;
	on_bell = -1;
	const struct handover_fds fds = {shared.region.control_fd, ring_fd(ring), shared.region.data};
	attach = attach_new(&svc, "messager", path, &hello, &fds, &hooks);
}

static void attach_teardown(void)
{
	attach_destroy(&attach);
	event_base_free(svc.base);
	if (on_bell >= 0)
		close(on_bell);
	teardown();
}

static void stop_loop(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	event_base_loopbreak(arg);
}

static void loop_ms(unsigned ms)
{
	const struct timeval tv = {ms / 1000, (suseconds_t)(ms % 1000) * 1000};
	event_base_once(svc.base, -1, EV_TIMEOUT, stop_loop, svc.base, &tv);
	event_base_dispatch(svc.base);
}

/* Runs the loop until *what is want, at most a minute. */
static void loop_until(const unsigned *what, unsigned want)
{
	for (uint64_t end = clock_us() + 60000000; *what != want && clock_us() < end;)
		loop_ms(5);
	ck_assert_uint_eq(*what, want);
}

/* The peer: what it does with the connection, driven by bytes on a pipe; answers each with a
 * byte when done. */
struct peer_process {
	pid_t pid;
	int to, from;
};

static void peer_answer(int sock, uint64_t epoch, int code)
{
	struct handover_hello h;
	struct kv_layout l;
	struct handover_fds fds;
	int bell = eventfd(0, 0);
	if (handover_receive(sock, &h, &l, &fds, NULL) < 0)
		_exit(1);
	handover_fds_close(&fds);
	handover_answer(sock, epoch, code, code ? "no room" : "", "", bell);
	close(bell);
}

static void peer_main(int in, int out, uint64_t epoch)
{
	int listener = -1, sock = -1;
	char c;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(in, &c, 1) == 1) {
		switch (c) {
		case 'l': /* listen */ listener = sock_listen(path, 0600, NULL); break;
		case 'u': /* as another user's process */
		case 'o': /* as our own again */
			if (seteuid(c == 'u' ? 65534 : 0) < 0 || listen(listener, 64) < 0)
				_exit(1);
			break;
		case 'n': /* accept, and be given nothing */
			sock = sock_accept(listener);
			if (sock_recv(sock, &c, 1, NULL, 0, NULL) != 0)
				_exit(1);
			close(sock);
			break;
		case 'a': /* accept and admit */
		case 'r': /* accept and refuse */
			sock = sock_accept(listener);
			peer_answer(sock, epoch, c == 'r' ? ERR_FULL : 0);
			if (c == 'r')
				close(sock);
			break;
		case 'c': /* close the connection, live on */ close(sock); break;
		case 's': /* say something that nobody asked for */
			if (sock_send(sock, "x", 1, NULL, 0) < 0)
				_exit(1);
			break;
		case 'f': /* a child inherits the connection and lives on until the pipe is closed */
			if (fork() == 0) {
				prctl(PR_SET_PDEATHSIG, 0);
				while (read(in, &c, 1) == 1)
					;
				_exit(0);
			}
			break;
		case 'x': _exit(0);
		}
		if (write(out, "", 1) != 1)
			_exit(1);
	}
	_exit(0);
}

static struct peer_process peer_start(uint64_t epoch)
{
	int to[2], from[2];
	ck_assert_int_eq(pipe(to), 0);
	ck_assert_int_eq(pipe(from), 0);
	pid_t pid = fork();
	if (pid == 0) {
		close(to[1]);
		close(from[0]);
		peer_main(to[0], from[1], epoch);
	}
	close(to[0]);
	close(from[1]);
	return (struct peer_process){pid, to[1], from[0]};
}

static void tell(struct peer_process *p, const char *what)
{
	char c;
	for (; *what; what++) {
		ck_assert_int_eq(write(p->to, what, 1), 1);
		struct pollfd answered = {.fd = p->from, .events = POLLIN};
		while ((*what == 'a' || *what == 'r' || *what == 'n') && poll(&answered, 1, 0) == 0)
			loop_ms(5); /* our side of the connection must move too */
		if (*what != 'x')
			ck_assert_int_eq(read(p->from, &c, 1), 1);
	}
}

static void peer_end(struct peer_process *p)
{
	kill(p->pid, SIGKILL);
	waitpid(p->pid, NULL, 0);
}

static void peer_kill(struct peer_process *p)
{
	peer_end(p);
	close(p->to);
	close(p->from);
}

TEST_CASE("attach", .timeout_s = 60, .setup = attach_setup, .teardown = attach_teardown);

TEST(on_then_gone_then_on_again)
{
	loop_ms(120); /* nobody listens yet */
	ck_assert_uint_eq(n_on, 0);
	struct peer_process a = peer_start(501);
	tell(&a, "la");
	loop_until(&n_on, 1);
	ck_assert_uint_eq(on_epoch, 501);
	ck_assert(attach_is_on(attach, 501));
	ck_assert_int_ge(on_bell, 0);
	peer_kill(&a);
	loop_until(&n_gone, 1);
	ck_assert_uint_eq(gone_epoch, 501);
	ck_assert(!attach_is_on(attach, 501));
	struct peer_process b = peer_start(502);
	tell(&b, "la");
	loop_until(&n_on, 2);
	ck_assert_uint_eq(on_epoch, 502);
	peer_kill(&b);
	loop_until(&n_gone, 2);
}

TEST(end_of_file_alone_is_not_gone)
{
	struct peer_process a = peer_start(501);
	tell(&a, "la");
	loop_until(&n_on, 1);
	tell(&a, "c");
	loop_ms(300);
	ck_assert_uint_eq(n_gone, 0);
	kill(a.pid, SIGSTOP); /* stopped is not dead */
	loop_ms(100);
	ck_assert_uint_eq(n_gone, 0);
	peer_kill(&a);
	loop_until(&n_gone, 1);
	ck_assert_uint_eq(n_on, 1);
}

TEST(a_dead_process_alone_is_not_gone)
{
	struct peer_process a = peer_start(501);
	tell(&a, "la");
	loop_until(&n_on, 1);
	tell(&a, "f");
	peer_end(&a);
	loop_ms(300);
	/* its child still has the connection, and so our memory */
	ck_assert_uint_eq(n_gone, 0);
	close(a.to);
	close(a.from);
	loop_until(&n_gone, 1);
}

TEST(refused_is_tried_again)
{
	struct peer_process a = peer_start(501);
	tell(&a, "lrr");
	ck_assert_uint_eq(n_on, 0);
	tell(&a, "a");
	loop_until(&n_on, 1);
	ck_assert_uint_eq(n_gone, 0);
	peer_kill(&a);
	loop_until(&n_gone, 1);
}

TEST(an_answer_just_before_the_end_counts)
{
	struct peer_process a = peer_start(501);
	char c;
	tell(&a, "l");
	loop_ms(120); /* connected, offered */
	ck_assert_int_eq(write(a.to, "ax", 2), 2);
	ck_assert_int_eq(read(a.from, &c, 1), 1);
	waitpid(a.pid, NULL, 0); /* it has answered, and is dead before we look */
	loop_until(&n_on, 1);
	loop_until(&n_gone, 1);
	ck_assert_uint_eq(gone_epoch, 501);
	close(a.to);
	close(a.from);
}

TEST(what_comes_after_the_answer_is_no_end)
{
	struct peer_process a = peer_start(501);
	tell(&a, "la");
	loop_until(&n_on, 1);
	tell(&a, "s");
	loop_ms(100);
	tell(&a, "s"); /* the connection still stands */
	ck_assert_uint_eq(n_gone, 0);
	peer_kill(&a);
	loop_until(&n_gone, 1);
}

/* The messager's LEASE_OPEN may be handled before its answer, which it sent before. */
TEST(an_answer_is_read_when_it_is_asked_for)
{
	struct peer_process a = peer_start(501);
	char c;
	tell(&a, "l");
	loop_ms(300); /* the offer is made */
	ck_assert(!attach_is_on(attach, 501));
	ck_assert_int_eq(write(a.to, "a", 1), 1);
	ck_assert_int_eq(read(a.from, &c, 1), 1);
	ck_assert(!attach_is_on(attach, 502));
	ck_assert(attach_is_on(attach, 501));
	ck_assert_uint_eq(n_on, 1);
	peer_kill(&a);
	loop_until(&n_gone, 1);
	ck_assert(!attach_is_on(attach, 501));
}

/* Somebody else has made the socket before the messager: memory is for our user's processes. */
TEST(another_user_listens)
{
	if (geteuid() != 0)
		SKIP("needs root, to become another user");
	struct peer_process a = peer_start(501);
	tell(&a, "lunnn");
	ck_assert_uint_eq(n_on, 0);
	tell(&a, "oa");
	loop_until(&n_on, 1);
	peer_kill(&a);
	loop_until(&n_gone, 1);
}

TEST_START(quiet)
{
	log_set_level("error");
}
