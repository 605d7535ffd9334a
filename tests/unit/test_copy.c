/* test_copy.c - copying between pools without an engine: a pool of a device in another process,
 * lists of pieces against a model, and what is refused. */
#include "kernels/copy.h"
#include "kernels/device.h"
#include "kernels/host_memory.h"
#include "kernels/sim/options.h"
#include "skip.h"
#include "tempdir.h"
#include "util/sock.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 100001 }; /* no whole pages: a pool has the bytes that its blocks need */

static char why[256];

/* --- a pool of another process ------------------------------------------- */

struct memory {
	unsigned char *at;
	int fd;
	struct kern_pool *pool;
};

static struct memory memory_new(unsigned char fill)
{
	struct memory m;
	void *at;
	ck_assert_msg(host_shared_new(BYTES, &at, &m.fd, why, sizeof why) == 0, "%s", why);
	m.at = memset(at, fill, BYTES);
	ck_assert_msg(kern_pool_open("cpu", 0, m.fd, BYTES, &m.pool, why, sizeof why) == 0, "%s", why);
	return m;
}

static void memory_free(struct memory *m)
{
	kern_pool_close(&m->pool);
	ck_assert_ptr_null(m->pool);
	munmap(m->at, BYTES);
	close(m->fd);
}

static int copy(const struct kern_copy *c)
{
	struct kern_ticket t;
	int rc = kern_copy(c, &t, why, sizeof why);
	return rc ? rc : kern_wait(&t, why, sizeof why);
}

/* Gets a descriptor by a socket, writes "there" into what it is of, copies it on, and ends. */
static void other_process(int sock, const char *backend)
{
	char c, text[] = "there";
	int fd = -1;
	unsigned fds = 0;
	struct kern_pool *pool;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (sock_recv(sock, &c, 1, &fd, 1, &fds) != 1 || fds != 1 ||
	    kern_pool_open(backend, 0, fd, BYTES, &pool, why, sizeof why))
		_exit(1);
	close(fd); /* it stays mapped */
	const struct kern_piece in = {BYTES - 5, (uintptr_t)text, 5}, on = {11, BYTES - 5, 5};
	if (copy(&(struct kern_copy){.to = pool, .piece = &in, .n = 1}) ||
	    copy(&(struct kern_copy){.to = pool, .from = pool, .piece = &on, .n = 1}))
		_exit(2);
	_exit(0);
}

static const struct sim_options sim_options = {
	.tp = 1, .flops = 1, .bandwidth = 1, .link_bandwidth = 1};

TEST_CASE("copy", .timeout_s = 120);

TEST_LOOP(a_devices_pool_in_another_process, 0, 2)
{
	const struct kern_ops *ops = _i ? &kern_sim_ops : &kern_cpu_ops;
	struct kern_config conf = {.variant = _i ? NULL : "plain",
	                           .threads = 1,
	                           .options = _i ? &sim_options : NULL};
	struct kern_device *dev;
	struct kern_mem mem, again;
	int fd, pair[2], status;
	ck_assert_msg(ops->open(&conf, &dev, why, sizeof why) == 0, "%s", why);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	pid_t pid = fork();
	if (pid == 0)
		other_process(pair[1], ops->name);
	ck_assert_int_eq(ops->mem_new(dev, KERN_MEM_SHARED, BYTES, &mem), 0);
	ck_assert_int_eq(ops->mem_share(dev, &mem, &fd), 0);
	ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	ck_assert_int_lt(ftruncate(fd, 1), 0); /* it has its size for ever */
	ck_assert_int_lt(ftruncate(fd, 2 * BYTES), 0);
	ck_assert_int_eq(sock_send(pair[0], "", 1, &fd, 1), 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_mem_eq((char *)mem.host + 11, "there", 5);
	ck_assert_int_eq(ops->mem_map(dev, fd, BYTES, &again), 0); /* as another rank does */
	ck_assert_mem_eq((char *)again.host + BYTES - 5, "there", 5);
	ck_assert_int_eq(ops->mem_share(dev, &again, &status), KERN_EINVAL);
	ck_assert_int_eq(ops->mem_map(dev, fd, BYTES - 1, &again), KERN_EINVAL);
	close(fd);
	ops->mem_free(dev, &again);
	ops->mem_free(dev, &mem);
	ops->close(&dev);
	close(pair[0]);
	close(pair[1]);
}

/* --- lists --------------------------------------------------------------- */

static unsigned char want[BYTES], host[BYTES], saw[4 * BYTES];
static size_t n_saw;

static void see(void *arg, const void *at, size_t bytes)
{
	ck_assert_ptr_eq(arg, saw);
	ck_assert_uint_le(n_saw + bytes, sizeof saw);
	memcpy(saw + n_saw, at, bytes);
	n_saw += bytes;
}

/* Odd places and lengths, some of which go on where the one before ends, or begin within it;
 * destinations may be written twice. */
static size_t some_pieces(struct kern_piece *p, size_t max, unsigned *seed)
{
	size_t n = 1 + (size_t)rand_r(seed) % max;
	for (size_t i = 0; i < n; i++) {
		unsigned kind = i ? (unsigned)rand_r(seed) % 3 : 0;
		uint64_t bytes = (unsigned)rand_r(seed) % (rand_r(seed) % 8 ? 300 : 20000);
		p[i] = (struct kern_piece){(unsigned)rand_r(seed) % (BYTES - bytes),
		                           (unsigned)rand_r(seed) % (BYTES - bytes), bytes};
		uint64_t into = kind == 1                     ? p[i - 1].bytes
		                : kind == 2 && p[i - 1].bytes ? (unsigned)rand_r(seed) % p[i - 1].bytes
		                                              : 0;
		if (kind && p[i - 1].to + into + bytes <= BYTES && p[i - 1].from + into + bytes <= BYTES)
			p[i] = (struct kern_piece){p[i - 1].to + into, p[i - 1].from + into, bytes};
	}
	return n;
}

enum { POOL_TO_POOL, POOL_TO_HOST, POOL_TO_HOST_SEEN, HOST_TO_POOL, WAYS };

TEST_LOOP(lists_against_a_model, 0, WAYS)
{
	unsigned seed = 7 + (unsigned)_i;
	struct memory a = memory_new(0), b = memory_new(0);
	for (int turn = 0; turn < 150; turn++) {
		struct kern_piece piece[200];
		struct kern_copy c = {.piece = piece, .n = some_pieces(piece, 200, &seed)};
		unsigned char *from = _i == HOST_TO_POOL ? host : a.at,
					  *to = _i == POOL_TO_POOL || _i == HOST_TO_POOL ? b.at : host;
		size_t all = 0, at = 0;
		for (size_t i = 0; i < BYTES; i++)
			from[i] = (unsigned char)rand_r(&seed);
		memcpy(want, to, BYTES);
		for (size_t i = 0; i < c.n; all += piece[i++].bytes)
			memcpy(want + piece[i].to, from + piece[i].from, piece[i].bytes);
		if (_i == POOL_TO_HOST_SEEN && all > sizeof saw)
			continue;
		static unsigned char in_order[sizeof saw];
		for (size_t i = 0; _i == POOL_TO_HOST_SEEN && i < c.n; at += piece[i++].bytes)
			memcpy(in_order + at, from + piece[i].from, piece[i].bytes);
		for (size_t i = 0; i < c.n; i++) {
			piece[i].from += _i == HOST_TO_POOL ? (uintptr_t)host : 0;
			piece[i].to += to == host ? (uintptr_t)host : 0;
		}
		c.from = _i == HOST_TO_POOL ? NULL : a.pool;
		c.to = to == host ? NULL : b.pool;
		n_saw = 0;
		if (_i == POOL_TO_HOST_SEEN)
			c.seen = see, c.seen_arg = saw;
		ck_assert_msg(copy(&c) == 0, "%s", why);
		ck_assert_mem_eq(to, want, BYTES);
		if (_i == POOL_TO_HOST_SEEN) {
			ck_assert_uint_eq(n_saw, all);
			ck_assert_int_eq(memcmp(saw, in_order, all), 0);
		}
	}
	memory_free(&a);
	memory_free(&b);
}

/* Pieces that continue each other within a pool, where the second reads what the first has
 * written. */
TEST(pieces_within_a_pool)
{
	struct memory m = memory_new(0);
	const struct kern_piece piece[] = {{100, 0, 60}, {160, 60, 60}};
	for (unsigned i = 0; i < 300; i++)
		m.at[i] = want[i] = (unsigned char)i;
	for (int i = 0; i < 2; i++)
		memcpy(want + piece[i].to, want + piece[i].from, 60);
	ck_assert_int_eq(
		copy(&(struct kern_copy){.to = m.pool, .from = m.pool, .piece = piece, .n = 2}), 0);
	ck_assert_mem_eq(m.at, want, 300);
	memory_free(&m);
}

/* A backend that only writes down what it is given. */
static struct kern_piece given[512];
static size_t n_given, calls, waits;

static int note_copy(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen)
{
	(void)errbuf, (void)errlen;
	ck_assert_uint_le(n_given + c->n, sizeof given / sizeof *given);
	memcpy(given + n_given, c->piece, c->n * sizeof *given);
	n_given += c->n;
	*ret_number = ++calls;
	return 0;
}

static int note_wait(struct kern_pool *pool, uint64_t number, char *errbuf, size_t errlen)
{
	(void)pool;
	waits++;
	ck_assert_uint_eq(number, calls); /* the last one's is enough */
	snprintf(errbuf, errlen, "waited");
	return KERN_EDEVICE;
}

static const struct kern_copies noting = {KERN_COPIES_ABI, "noting",  NULL, NULL,
                                          note_copy,       note_wait, NULL, NULL};

static const struct {
	const char *what;
	struct kern_piece in[4];
	size_t n;
	int seen;
	struct kern_piece out[4];
	size_t n_out;
} joins[] = {
	{"neighbours", {{10, 50, 5}, {15, 55, 5}, {20, 60, 1}}, 3, 0, {{10, 50, 11}}, 1},
	{"neighbours that somebody sees", {{10, 50, 5}, {15, 55, 5}}, 2, 1, {{10, 50, 10}}, 1},
	{"a gap", {{10, 50, 5}, {16, 56, 5}}, 2, 0, {{10, 50, 5}, {16, 56, 5}}, 2},
	{"neighbours on one side",
     {{10, 50, 5}, {15, 56, 5}, {25, 61, 5}},
     3,
     0,
     {{10, 50, 5}, {15, 56, 5}, {25, 61, 5}},
     3},
	{"an overlap", {{10, 50, 5}, {13, 53, 9}}, 2, 0, {{10, 50, 12}}, 1},
	{"one within the other", {{10, 50, 50}, {13, 53, 9}, {60, 100, 2}}, 3, 0, {{10, 50, 52}}, 1},
	{"an overlap of one side", {{10, 50, 5}, {13, 60, 9}}, 2, 0, {{10, 50, 5}, {13, 60, 9}}, 2},
	{"an overlap that somebody sees",
     {{10, 50, 5}, {13, 53, 9}},
     2,
     1,
     {{10, 50, 5}, {13, 53, 9}},
     2},
	{"one before the other", {{10, 50, 5}, {5, 45, 5}}, 2, 0, {{10, 50, 5}, {5, 45, 5}}, 2},
};

TEST_LOOP(neighbours_are_one_copy, 0, sizeof joins / sizeof *joins)
{
	struct kern_pool a = {&noting, 1000, NULL, 0}, b = {&noting, 1000, NULL, 0};
	const struct kern_copy c = {.to = joins[_i].seen ? NULL : &a,
	                            .from = &b,
	                            .piece = joins[_i].in,
	                            .n = joins[_i].n,
	                            .seen = joins[_i].seen ? see : NULL};
	ck_assert_int_eq(copy(&c), KERN_EDEVICE); /* what wait says comes back */
	ck_assert_str_eq(why, "waited");
	ck_assert_msg(n_given == joins[_i].n_out, "%s: %zu copies", joins[_i].what, n_given);
	ck_assert_msg(memcmp(given, joins[_i].out, n_given * sizeof *given) == 0,
	              "%s: %llu from %llu to %llu", joins[_i].what, (unsigned long long)given[0].bytes,
	              (unsigned long long)given[0].from, (unsigned long long)given[0].to);
}

static int fail_late(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen)
{
	if (calls < 3)
		return note_copy(c, ret_number, errbuf, errlen);
	snprintf(errbuf, errlen, "no more");
	return KERN_ENOMEM;
}

/* What was begun of a list that fails later has ended when the failure is told. */
TEST(a_list_that_fails_halfway)
{
	struct kern_copies failing = noting;
	struct kern_pool a = {&failing, 1000, NULL, 0}, b = {&failing, 1000, NULL, 0};
	struct kern_piece piece[300];
	failing.copy = fail_late;
	for (uint64_t i = 0; i < 300; i++)
		piece[i] = (struct kern_piece){999 - 2 * i, i, 1};
	struct kern_copy c = {.to = &a, .from = &b, .piece = piece, .n = 300};
	ck_assert_int_eq(copy(&c), KERN_ENOMEM);
	ck_assert_str_eq(why, "no more");
	ck_assert_uint_eq(waits, 1);
}

TEST(long_lists_and_empty_ones)
{
	struct kern_pool a = {&noting, 1000, NULL, 0}, b = {&noting, 1000, NULL, 0};
	struct kern_piece piece[300];
	for (uint64_t i = 0; i < 300; i++)
		piece[i] = (struct kern_piece){999 - 2 * (i % 400), i, 1};
	ck_assert_int_eq(copy(&(struct kern_copy){.to = &a, .from = &b, .piece = piece, .n = 300}),
	                 KERN_EDEVICE);
	ck_assert_uint_eq(n_given, 300);
	ck_assert_int_eq(memcmp(given, piece, sizeof piece), 0);
	struct memory m = memory_new(1);
	ck_assert_int_eq(copy(&(struct kern_copy){.to = m.pool, .piece = piece, .n = 0}), 0);
	ck_assert_int_eq(kern_wait(&(struct kern_ticket){0}, why, sizeof why), 0);
	memory_free(&m);
}

/* --- what is refused ----------------------------------------------------- */

static const struct kern_piece far_ones[] = {
	{BYTES, 0, 1},          {0, BYTES, 1},          {BYTES - 1, 0, 2},  {0, BYTES - 1, 2},
	{0, 0, BYTES + 1},      {UINT64_MAX, 0, 1},     {0, UINT64_MAX, 1}, {2, 0, UINT64_MAX},
	{0, 2, UINT64_MAX - 1}, {UINT64_MAX - 3, 0, 4},
};

TEST_LOOP(pieces_beyond_a_pool, 0, sizeof far_ones / sizeof *far_ones)
{
	struct memory a = memory_new(1), b = memory_new(2);
	const struct kern_piece piece[] = {{0, 0, 10}, far_ones[_i]};
	ck_assert_int_eq(copy(
						 &(struct kern_copy){.to = b.pool, .from = a.pool, .piece = piece, .n = 2}),
	                 KERN_EINVAL);
	ck_assert_ptr_nonnull(strstr(why, "the pools have 100001 and 100001 bytes"));
	ck_assert_uint_eq(b.at[0], 2); /* nor what stands before it */
	memory_free(&a);
	memory_free(&b);
}

TEST(copies_that_cannot_be)
{
	struct memory a = memory_new(1);
	struct kern_pool other = {&noting, 1000, NULL, 0};
	const struct kern_piece piece = {0, 0, 1};
	ck_assert_int_eq(
		copy(&(struct kern_copy){.to = &other, .from = a.pool, .piece = &piece, .n = 1}),
		KERN_EINVAL);
	ck_assert_str_eq(why, "a copy from memory of backend cpu to memory of backend noting");
	ck_assert_int_eq(copy(&(struct kern_copy){.piece = &piece, .n = 1}), KERN_EINVAL);
	ck_assert_int_eq(copy(&(struct kern_copy){
						 .to = a.pool, .from = a.pool, .piece = &piece, .n = 1, .seen = see}),
	                 KERN_EINVAL);
	ck_assert_str_eq(why, "a copy with a reader to a pool: only possible to host memory");
	memory_free(&a);
}

static int sealed(size_t bytes, int seals)
{
	int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

TEST(descriptors_that_are_no_pool)
{
	const struct {
		int fd;
		const char *text;
	} t[] = {
		{sealed(BYTES - 1, F_SEAL_SHRINK | F_SEAL_GROW), "has 100000 bytes, 100001 were announced"},
		{sealed(BYTES + 1, F_SEAL_SHRINK | F_SEAL_GROW), "has 100002 bytes, 100001 were announced"},
		{sealed(BYTES, F_SEAL_GROW), "not sealed"},
		{sealed(BYTES, F_SEAL_SHRINK), "not sealed"},
		{open("/proc/self/exe", O_RDONLY | O_CLOEXEC), "not sealed"},
		{-1, "not sealed"},
	};
	struct kern_pool *pool = NULL;
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		ck_assert_int_eq(kern_pool_open("cpu", 0, t[i].fd, BYTES, &pool, why, sizeof why),
		                 KERN_EINVAL);
		ck_assert_msg(strstr(why, t[i].text) != NULL, "%s", why);
		ck_assert_ptr_null(pool);
	}
}

/* A shared object with a table of that ABI, whose pools cannot be opened. */
static int make_object(const char *folder, unsigned abi)
{
	char command[512], path[128];
	snprintf(path, sizeof path, "%s/it.c", folder);
	FILE *f = fopen(path, "w");
	fprintf(f,
	        "#include \"kernels/copy.h\"\n#include <stdio.h>\n"
	        "static int no(int d, int fd, size_t n, struct kern_pool **p, char *e, size_t l)\n"
	        "{ snprintf(e, l, \"device %%d is not there\", d); return KERN_EDEVICE; }\n"
	        "const struct kern_copies kern_backend_copies = {.abi = %uu, .name = \"test\", .open = "
	        "no};\n",
	        abi);
	fclose(f);
	snprintf(command, sizeof command,
	         "cc -shared -fPIC -w -I. -o %s/pdserve-test%u.so %s/it.c 2>/dev/null", folder, abi,
	         folder);
	return system(command) == 0;
}

TEST(backends_by_name)
{
	char folder[TEST_FOLDER_BYTES], name[64];
	struct kern_pool *pool = NULL;
	struct memory m = memory_new(1);
	ck_assert_int_eq(kern_pool_open("sim", 0, m.fd, BYTES, &pool, why, sizeof why), 0);
	kern_pool_close(&pool);
	memory_free(&m);
	test_folder(folder, "copies");
	setenv("PDSERVE_BACKENDS", folder, 1);
	ck_assert_int_eq(kern_pool_open("../cuda", 0, m.fd, BYTES, &pool, why, sizeof why),
	                 KERN_ENOTSUP);
	ck_assert_int_eq(kern_pool_open("cuda", 0, m.fd, BYTES, &pool, why, sizeof why), KERN_ENOTSUP);
	ck_assert_ptr_nonnull(strstr(why, "/pdserve-cuda.so"));
	if (!make_object(folder, KERN_COPIES_ABI) || !make_object(folder, 77))
		SKIP("no C compiler for a shared object");
	ck_assert_int_eq(kern_pool_open("test77", 5, m.fd, BYTES, &pool, why, sizeof why),
	                 KERN_ENOTSUP);
	snprintf(name, sizeof name, "has ABI 77, this program has %u", KERN_COPIES_ABI);
	ck_assert_ptr_nonnull(strstr(why, name));
	snprintf(name, sizeof name, "test%u", KERN_COPIES_ABI);
	ck_assert_int_eq(kern_pool_open(name, 5, m.fd, BYTES, &pool, why, sizeof why), KERN_EDEVICE);
	ck_assert_str_eq(why, "device 5 is not there");
	ck_assert_ptr_null(pool);
}
