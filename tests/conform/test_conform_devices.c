/* test_conform_devices.c - what is not arithmetic: memory of every kind, shared between devices and processes; what is refused; words of progress; runs that follow each
 * other without the host; groups of ranks. */
#include "tests/conform/conform.h"
#include "tests/unit/skip.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Every target once: rounded activations (kern_config.activations) change nothing here. */
#define EACH_TARGET(dev, threads) \
	for (unsigned t_ = 0; t_ < conform_target_count; t_++) \
		for (struct device *dev = conform_targets[t_].activations == KERN_F32 ? device_get(&conform_targets[t_], threads) : NULL; \
		     dev && (conform_about(0, "%s", dev->target->name), true); dev = NULL)

/* --- memory ------------------------------------------------------------------------------------------------------------------------------ */

CONFORM_TEST(memory_is_zeroed_and_aligned)
{
	static const size_t sizes[] = {1, 100, 4096, 5 << 20};
	static const enum kern_memory kinds[] = {KERN_MEM_DEVICE, KERN_MEM_PINNED, KERN_MEM_SHARED};
	EACH_TARGET(dev, 2)
		for (size_t i = 0; i < LEN(sizes) * LEN(kinds); i++) {
			size_t n = sizes[i / LEN(kinds)], mark = conform_mark();
			struct kern_mem m = mem_get(dev, kinds[i % LEN(kinds)], n), none = {0};
			unsigned char *in = conform_alloc(n, 1), *out = conform_alloc(n, 1);
			EXPECT(m.kind == kinds[i % LEN(kinds)] && m.bytes >= n, "memory of kind %d and %zu bytes, want %zu", (int)m.kind, m.bytes, n);
			EXPECT(kinds[i % LEN(kinds)] != KERN_MEM_PINNED || m.host, "pinned memory that the host cannot address");
			mem_take(dev, out, m.dev, n);
			EXPECT(!memcmp(in, out, n), "memory of kind %d and %zu bytes is not zero", (int)m.kind, n);
			memset(in, 0xa7, n);
			mem_put(dev, m.dev, in, n);
			mem_take(dev, out, m.dev, n);
			EXPECT(!memcmp(in, out, n), "memory of kind %d and %zu bytes reads back otherwise", (int)m.kind, n);
			EXPECT(!m.host || !memcmp(m.host, in, n), "the host sees other bytes than the device");
			dev->ops->mem_free(dev->d, &m);
			EXPECT(!m.dev.v && !m.host && !m.bytes, "mem_free leaves an address");
			dev->ops->mem_free(dev->d, &m);
			dev->ops->mem_free(dev->d, &none);
			conform_release(mark);
		}
}

/* A device of a second descriptor's: what one writes the other reads. */
static void shared_between(const struct device *a, const struct device *b, int fd, size_t n, kern_ptr of_a)
{
	struct kern_mem m;
	unsigned char *in = conform_alloc(n, 1), *out = conform_alloc(n, 1);
	device_ok(b, b->ops->mem_map(b->d, fd, n, &m), "mem_map");
	EXPECT(m.kind == KERN_MEM_SHARED && m.bytes == n && m.dev.v, "a mapping of kind %d and %zu bytes", (int)m.kind, m.bytes);
	for (int turn = 0; turn < 2; turn++) {
		for (size_t i = 0; i < n; i++)
			in[i] = (unsigned char)rand_bits();
		mem_put(turn ? b : a, turn ? m.dev : of_a, in, n);
		mem_take(turn ? a : b, out, turn ? of_a : m.dev, n);
		EXPECT(!memcmp(in, out, n), "a mapping does not show what the %s wrote", turn ? "other one" : "first one");
	}
	b->ops->mem_free(b->d, &m);
	mem_take(a, out, of_a, n);
	EXPECT(!memcmp(in, out, n), "the memory changed when a mapping of it was freed");
}

CONFORM_TEST(memory_is_shared_between_devices)
{
	enum { N = 70000 };
	EACH_TARGET(dev, 1) {
		struct device *other = device_get(&conform_targets[t_], 2);
		struct kern_mem m = mem_get(dev, KERN_MEM_SHARED, N), d = mem_get(dev, KERN_MEM_DEVICE, N);
		int fd = -1;
		EXPECT(dev->ops->mem_share(dev->d, &d, &fd) < 0 && fd == -1, "memory of kind DEVICE was shared");
		device_ok(dev, dev->ops->mem_share(dev->d, &m, &fd), "mem_share");
		shared_between(dev, other, fd, N, m.dev);
		shared_between(dev, dev, fd, N, m.dev);
		close(fd);
		dev->ops->mem_free(dev->d, &m);
		dev->ops->mem_free(dev->d, &d);
	}
}

static void fd_send(int to, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec io = {&byte, 1};
	struct msghdr msg = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	EXPECT(sendmsg(to, &msg, 0) == 1, "sendmsg: %m");
}

static int fd_take(int from)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec io = {&byte, 1};
	struct msghdr msg = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd = -1;
	if (recvmsg(from, &msg, 0) == 1 && CMSG_FIRSTHDR(&msg))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof fd);
	return fd;
}

enum { SHARED_BYTES = 5000 };

/* In a process that has no device yet: adds 1 to each byte of what it is sent. Returns its exit status. */
static int other_process(struct target *t, int sock)
{
	int fd = fd_take(sock);
	struct device *dev = fd < 0 ? NULL : device_get(t, 1);
	struct kern_mem m;
	unsigned char b[SHARED_BYTES];
	if (!dev || dev->ops->mem_map(dev->d, fd, sizeof b, &m) || dev->ops->download(dev->s, b, m.dev, sizeof b) || dev->ops->sync(dev->s))
		return 1;
	for (size_t i = 0; i < sizeof b; i++)
		b[i]++;
	return dev->ops->upload(dev->s, m.dev, b, sizeof b) || dev->ops->sync(dev->s) || write(sock, "d", 1) != 1;
}

CONFORM_TEST(memory_is_shared_between_processes)
{
	for (unsigned t = 0; t < conform_target_count; t++) {
		if (conform_targets[t].activations != KERN_F32)
			continue;
		int sock[2], fd, status;
		char byte;
		unsigned char b[SHARED_BYTES];
		EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, sock) == 0, "socketpair: %m");
		pid_t pid = fork();                    /* before this process opens a device of the target */
		if (pid == 0) {
			close(sock[0]);
			_exit(other_process(&conform_targets[t], sock[1]));
		}
		close(sock[1]);
		struct device *dev = device_get(&conform_targets[t], 1);
		if (dev) {
			conform_about(0, "%s", dev->target->name);
			struct kern_mem m = mem_get(dev, KERN_MEM_SHARED, sizeof b);
			memset(b, 41, sizeof b);
			mem_put(dev, m.dev, b, sizeof b);
			device_ok(dev, dev->ops->mem_share(dev->d, &m, &fd), "mem_share");
			fd_send(sock[0], fd);
			close(fd);
			EXPECT(read(sock[0], &byte, 1) == 1, "the other process could not map the memory");
			mem_take(dev, b, m.dev, sizeof b);
			for (size_t i = 0; i < sizeof b; i++)
				EXPECT(b[i] == 42, "byte %zu is %u, want 42 from the other process", i, b[i]);
			dev->ops->mem_free(dev->d, &m);
		}
		close(sock[0]);
		EXPECT(waitpid(pid, &status, 0) == pid && (!dev || status == 0), "the other process ended with %#x", (unsigned)status);
	}
}

/* --- small programs ------------------------------------------------------------------------------------------------------------------------ */

static struct kern_program *program_get(const struct device *dev, const struct kern_op *op, size_t n, const struct kern_limits *limits)
{
	struct kern_program *p = NULL;
	device_ok(dev, dev->ops->program_new(dev->d, op, n, limits, &p), "program_new");
	EXPECT(p, "program_new returned no program");
	return p;
}

static struct kern_mem batch_get(const struct device *dev, const struct world *w, const struct step *st, const struct kern_progress *progress)
{
	struct kern_mem m = mem_get(dev, KERN_MEM_PINNED, batch_bytes(w));
	batch_write(w, st, 0, progress, m.host);
	return m;
}

static struct world *world_get(const struct sequence *seq)
{
	struct world *w = conform_alloc(1, sizeof *w);
	world_init(w, seq, SEQUENCES, 16, 97);
	return w;
}

static struct kern_op op_scale(kern_ptr y, kern_ptr x, float factor, uint32_t dim)
{
	struct kern_op op = {.kind = KERN_OP_SCALE};
	op.scale.y = (struct kern_tensor){y, dim, KERN_F32};
	op.scale.x = (struct kern_tensor){x, dim, KERN_F32};
	op.scale.factor = factor;
	op.scale.dim = dim;
	return op;
}

/* Memory of the host's own is read and written in place. */
CONFORM_TEST(memory_of_the_host_is_pinned)
{
	enum { ROWS = 5, DIM = 64, BYTES = ROWS * DIM * 4 };
	static const struct sequence seq[SEQUENCES] = {{0, ROWS}};
	struct world *w = world_get(seq);
	struct schedule s = schedule_make(w, ORDER_WHOLE, 0, false);
	struct kern_limits limits = world_limits(w);
	EACH_TARGET(dev, 2) {
		float *host = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		struct kern_mem m, batch = batch_get(dev, w, &s.step[0], NULL);
		for (int i = 0; i < ROWS * DIM; i++)
			host[i] = (float)i;
		device_ok(dev, dev->ops->mem_pin(dev->d, host, 2 * BYTES, &m), "mem_pin");
		struct kern_op op = op_scale(kern_at(m.dev, BYTES), m.dev, 2, DIM);
		struct kern_program *p = program_get(dev, &op, 1, &limits);
		device_ok(dev, dev->ops->run(dev->s, p, &batch), "run");
		device_ok(dev, dev->ops->sync(dev->s), "sync");
		for (int i = 0; i < ROWS * DIM; i++)
			EXPECT(host[ROWS * DIM + i] == (float)(2 * i), "the host reads %g at %d, want %d", (double)host[ROWS * DIM + i], i, 2 * i);
		dev->ops->program_destroy(&p);
		EXPECT(!p, "program_destroy leaves a pointer");
		dev->ops->mem_free(dev->d, &m);
		dev->ops->mem_free(dev->d, &batch);
		EXPECT(host[1] == 1, "the host's memory changed when it was no longer pinned");
		munmap(host, 2 * BYTES);
	}
}

/* Uploads, runs of two programs over different batches, and downloads, all before the one sync: each sees what those before it left. */
CONFORM_TEST(work_of_a_stream_is_in_order)
{
	enum { DIM = 48, ROUNDS = 12 };
	static const struct sequence seq[SEQUENCES] = {{0, 19}, {0, 3}};
	struct world *w = world_get(seq);
	struct schedule s[2] = {schedule_make(w, ORDER_WHOLE, 0, false), schedule_make(w, ORDER_CHUNKS, 2, false)};
	struct kern_limits limits = world_limits(w);
	EACH_TARGET(dev, 2) {
		uint32_t rows = limits.rows, n = rows * DIM;
		struct kern_mem m = mem_get(dev, KERN_MEM_DEVICE, n * 4), batch[2] = {batch_get(dev, w, &s[0].step[0], NULL), batch_get(dev, w, &s[1].step[0], NULL)};
		struct kern_op op[2] = {op_scale(m.dev, m.dev, 2, DIM), op_scale(m.dev, m.dev, -0.5f, DIM)};
		struct kern_program *p[2] = {program_get(dev, &op[0], 1, &limits), program_get(dev, &op[1], 1, &limits)};
		uint32_t live[2] = {world_rows(w), 4};
		float *in[ROUNDS], *out[ROUNDS];
		for (uint32_t i = 0; i < ROUNDS; i++) {
			in[i] = rand_floats(n, 1);
			out[i] = conform_alloc(n, sizeof(float));
			if (i % 4 == 0)                /* else what the last round left */
				device_ok(dev, dev->ops->upload(dev->s, m.dev, in[i], n * 4), "upload");
			device_ok(dev, dev->ops->run(dev->s, p[i % 2], &batch[i % 3 == 1]), "run");
			device_ok(dev, dev->ops->run(dev->s, p[0], &batch[i % 3 == 2]), "run");
			device_ok(dev, dev->ops->download(dev->s, out[i], m.dev, n * 4), "download");
		}
		device_ok(dev, dev->ops->sync(dev->s), "sync");
		for (uint32_t i = 0; i < ROUNDS; i++)
			for (uint32_t e = 0; e < n; e++) {
				float x = (i % 4 ? out[i - 1] : in[i])[e];
				x *= e / DIM < live[i % 3 == 1] ? (i % 2 ? -0.5f : 2) : 1;
				x *= e / DIM < live[i % 3 == 2] ? 2 : 1;
				EXPECT(out[i][e] == x, "round %u: row %u, column %u is %g, want %g", i, e / DIM, e % DIM, (double)out[i][e], (double)x);
			}
		for (int i = 0; i < 2; i++) {
			dev->ops->program_destroy(&p[i]);
			dev->ops->mem_free(dev->d, &batch[i]);
		}
		dev->ops->mem_free(dev->d, &m);
	}
}

/* --- what is refused ------------------------------------------------------------------------------------------------------------------------ */

CONFORM_TEST(weights_that_cannot_be)
{
	static const struct { enum kern_dtype type; uint32_t n, k; const char *text; } cases[] = {
		{KERN_Q8_0, 3, 33, "q8_0"}, {KERN_Q6_K, 3, 32, "q6_k"}, {KERN_DTYPE_COUNT, 3, 32, ""}, {KERN_I8, 3, 32, "int8"}, {KERN_F8, 3, 32, "fp8"}, {KERN_F32, 0, 32, "f32"},
		{KERN_F32, 3, 0, "f32"},
	};
	unsigned char data[3 * 33 * 4] = {0};
	EACH_TARGET(dev, 1)
		for (size_t i = 0; i < LEN(cases); i++) {
			struct kern_weight *w = NULL;
			int rc = dev->ops->weight_new(dev->d, cases[i].type, cases[i].n, cases[i].k, data, 0, &w);
			EXPECT((rc == KERN_EINVAL || rc == KERN_ENOTSUP) && !w, "case %zu returned %d", i, rc);
			EXPECT(strstr(dev->ops->last_error(dev->d), cases[i].text), "case %zu: \"%s\" lacks \"%s\"", i, dev->ops->last_error(dev->d), cases[i].text);
		}
}

/* What operations of these tests work on. */
struct things { struct kern_mem mem; struct kern_weight *w64, *w32; struct kern_kv_layer kv; struct kern_tensor x; };

static struct things things_new(const struct device *dev)
{
	float *data = rand_floats(3 * 64, 1);
	struct things t = {.mem = mem_get(dev, KERN_MEM_DEVICE, 1 << 20)};
	t.x = (struct kern_tensor){t.mem.dev, 64, KERN_F32};
	t.kv = (struct kern_kv_layer){.base = kern_at(t.mem.dev, 1 << 19), .block_stride_bytes = 4096, .kv_heads = 2, .head_dim = 8, .block_tokens = 16, .dtype = KERN_F32};
	device_ok(dev, dev->ops->weight_new(dev->d, KERN_F32, 3, 64, data, 0, &t.w64), "weight_new");
	device_ok(dev, dev->ops->weight_new(dev->d, KERN_F32, 3, 32, data, 0, &t.w32), "weight_new");
	return t;
}

static void things_free(const struct device *dev, struct things *t)
{
	dev->ops->weight_destroy(dev->d, &t->w64);
	dev->ops->weight_destroy(dev->d, &t->w32);
	EXPECT(!t->w64 && !t->w32, "weight_destroy leaves a pointer");
	dev->ops->mem_free(dev->d, &t->mem);
}

/* One operation of each kind that can be; cases change one thing. */
static struct kern_op op_good(const struct things *t, enum kern_op_kind kind)
{
	struct kern_op op = {.kind = kind};
	switch (kind) {
	case KERN_OP_EMBED: op.embed.y = t->x, op.embed.w = t->w64; break;
	case KERN_OP_MATMUL:
		op.matmul.x = t->x;
		op.matmul.products = 1;
		op.matmul.p[0] = op.matmul.p[1] = (struct kern_product){t->w64, {0}, {kern_at(t->mem.dev, 1 << 18), 3, KERN_F32}};
		break;
	case KERN_OP_ROPE:
		op.rope.x = t->x;
		op.rope.heads = 2;
		op.rope.head_dim = 32;
		op.rope.rope = (struct kern_rope){KERN_ROPE_HALF, 32, 1, kern_at(t->mem.dev, 1 << 18)};
		break;
	case KERN_OP_KV_WRITE: op.kv_write.kv = t->kv, op.kv_write.k = op.kv_write.v = t->x; break;
	case KERN_OP_ATTENTION:
		op.attention.kv = t->kv;
		op.attention.q = t->x;
		op.attention.out = (struct kern_tensor){kern_at(t->mem.dev, 1 << 18), 64, KERN_F32};
		op.attention.heads = 4;
		op.attention.scale = 1;
		break;
	case KERN_OP_ROUTE:
		op.route.router = (struct kern_router){KERN_SCORE_SOFTMAX, 8, 2, 0, 0, {0}, 0, 0, 0, 1};
		op.route.logits = t->x;
		op.route.ids = op.route.weights = kern_at(t->mem.dev, 1 << 18);
		break;
	default: break;
	}
	return op;
}

static void expect_refused(const struct device *dev, const struct kern_op *op, const struct kern_limits *limits, const char *what)
{
	struct kern_program *p = NULL;
	int rc = dev->ops->program_new(dev->d, op, 1, limits, &p);
	const char *text = dev->ops->last_error(dev->d);
	EXPECT((rc == KERN_EINVAL || rc == KERN_ENOTSUP) && !p, "%s: program_new returned %d", what, rc);
	EXPECT(op->kind >= KERN_OPS || strstr(text, kern_op_name(op->kind)), "%s: \"%s\" does not name %s", what, text, kern_op_name(op->kind));
}

static const struct kern_limits small = {.rows = 4, .tail_rows = 4, .spans = 2, .positions = 64, .batch_bytes = 4096};

#define REFUSED(KIND, CHANGE) do { struct kern_op op = op_good(&t, KIND); CHANGE; expect_refused(dev, &op, &small, #KIND ", " #CHANGE); } while (0)

static void refuse_rows_and_products(const struct device *dev, const struct things *of)
{
	struct things t = *of;
	REFUSED(KERN_OP_MATMUL, (op.matmul.products = 2, op.matmul.p[1].w = t.w32));
	REFUSED(KERN_OP_MATMUL, op.matmul.products = 0);
	REFUSED(KERN_OP_MATMUL, op.matmul.products = KERN_PRODUCTS_MAX + 1);
	REFUSED(KERN_OP_MATMUL, op.matmul.x.type = KERN_Q8_0);
	REFUSED(KERN_OP_MATMUL, op.matmul.p[0].y.type = KERN_I8);
	REFUSED(KERN_OP_MATMUL, op.matmul.p[0].y.ld = 2);
	REFUSED(KERN_OP_EMBED, op.embed.y.ld = 63);
	REFUSED(KERN_OP_ROPE, op.rope.rope.dims = 31);
	REFUSED(KERN_OP_ROPE, op.rope.rope.dims = 34);
	REFUSED(KERN_OP_ROPE, op.rope.head_dim = 1 << 20);
}

static void refuse_kv(const struct device *dev, const struct things *of)
{
	struct things t = *of;
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.head_dim = 6);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.head_dim = 0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.block_tokens = 0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.kv_heads = 0);
	REFUSED(KERN_OP_KV_WRITE, op.kv_write.kv.dtype = KERN_Q8_0);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.dtype = KERN_Q4_0);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.latent = 12);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.latent = 6);
	REFUSED(KERN_OP_ATTENTION, op.attention.heads = 3);
	REFUSED(KERN_OP_ATTENTION, op.attention.heads = 0);
	REFUSED(KERN_OP_ATTENTION, op.attention.kv.head_dim = 1 << 20);
}

static void refuse_experts(const struct device *dev, const struct things *of)
{
	struct things t = *of;
	REFUSED(KERN_OP_ROUTE, op.route.router.experts = 0);
	REFUSED(KERN_OP_ROUTE, op.route.router.experts = KERN_EXPERTS_MAX + 1);
	REFUSED(KERN_OP_ROUTE, op.route.router.used = 0);
	REFUSED(KERN_OP_ROUTE, op.route.router.used = 9);
	REFUSED(KERN_OP_ROUTE, (op.route.router.experts = 128, op.route.router.used = KERN_EXPERTS_USED_MAX + 1));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 3, op.route.router.groups_used = 2));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 8, op.route.router.groups_used = 4));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 4, op.route.router.groups_used = 2, op.route.router.used = 5));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 4, op.route.router.groups_used = 0));
	REFUSED(KERN_OP_ROUTE, (op.route.router.groups = 4, op.route.router.groups_used = 5));
	REFUSED(KERN_OP_EXPERTS_ACT, op.experts_act.used = 1);
	REFUSED(KERN_OP_EXPERTS_DOWN, op.experts_down.used = KERN_EXPERTS_USED_MAX + 1);
	REFUSED(KERN_OPS, op.rows = KERN_ROWS_ALL);
}

CONFORM_TEST(programs_that_cannot_be)
{
	static const enum kern_op_kind good[] = {KERN_OP_EMBED, KERN_OP_MATMUL, KERN_OP_ROPE, KERN_OP_KV_WRITE, KERN_OP_ATTENTION, KERN_OP_ROUTE};
	EACH_TARGET(dev, 1) {
		struct things t = things_new(dev);
		for (size_t i = 0; i < LEN(good); i++) {
			struct kern_op op = op_good(&t, good[i]);
			struct kern_program *p = program_get(dev, &op, 1, &small);
			dev->ops->program_destroy(&p);
		}
		refuse_rows_and_products(dev, &t);
		refuse_kv(dev, &t);
		refuse_experts(dev, &t);
		struct kern_limits none = small;
		struct kern_op op = op_good(&t, KERN_OP_MATMUL);
		struct kern_program *p = NULL;
		none.rows = 0;
		EXPECT(dev->ops->program_new(dev->d, &op, 1, &none, &p) == KERN_EINVAL && !p, "a program for no rows was made");
		things_free(dev, &t);
	}
}

/* Every batch beyond the limits is refused, and then nothing has run: neither KV nor rows were written. */
CONFORM_TEST(batches_beyond_the_limits)
{
	enum { DIM = 16 };
	static const struct sequence seq[SEQUENCES] = {{0, 5}, {9, 2}};
	struct world *w = world_get(seq);
	struct schedule s = schedule_make(w, ORDER_WHOLE, 0, false);
	struct kern_limits exact = {.rows = 7, .tail_rows = 4, .spans = 2, .positions = 11, .batch_bytes = batch_bytes(w)};
	EACH_TARGET(dev, 2) {
		struct kern_mem m = mem_get(dev, KERN_MEM_DEVICE, 4096), batch = batch_get(dev, w, &s.step[0], NULL);
		struct kern_op op = op_scale(m.dev, m.dev, 2, DIM);
		struct kern_batch *b = batch.host, whole = *b;
		float before[7 * DIM], after[7 * DIM];
		EXPECT(b->rows == 7 && b->tail_rows == 4 && b->spans == 2, "the batch has %u rows, %u of the tail, %u spans", b->rows, b->tail_rows, b->spans);
		for (int i = 0; i < 7; i++) {
			struct kern_limits l = exact;
			*(i == 1 ? &l.rows : i == 2 ? &l.tail_rows : i == 3 ? &l.spans : i == 4 ? &l.positions : &l.tail_rows) -= i > 0 && i < 5;
			l.batch_bytes = i == 5 ? whole.words * 4 - 4 : l.batch_bytes;
			*b = whole;
			b->rows = i == 6 ? 0 : whole.rows;
			struct kern_program *p = program_get(dev, &op, 1, &l);
			memset(before, 0x3f, sizeof before);
			mem_put(dev, m.dev, before, sizeof before);
			int rc = dev->ops->run(dev->s, p, &batch);
			device_ok(dev, dev->ops->sync(dev->s), "sync");
			mem_take(dev, after, m.dev, sizeof after);
			EXPECT(rc == (i ? KERN_EINVAL : 0), "case %d: run returned %d", i, rc);
			EXPECT(!i == (memcmp(before, after, sizeof after) != 0), "case %d: rows were%s written", i, i ? "" : " not");
			dev->ops->program_destroy(&p);
		}
		dev->ops->mem_free(dev->d, &batch);
		dev->ops->mem_free(dev->d, &m);
	}
}

CONFORM_TEST(backends_that_are_not_there)
{
	static const char *const names[] = {"no_such", "", "../cpu"};
	for (size_t i = 0; i < 2 * LEN(names); i++) {
		char err[200] = "";
		EXPECT(!kern_backend(names[i / 2], i % 2 ? "/nonexistent" : NULL, err, sizeof err) && strlen(err) > 10, "backend \"%s\": \"%s\"", names[i / 2], err);
	}
	for (unsigned t = 0; t < conform_target_count; t++)
		EXPECT(conform_targets[t].ops->abi == KERN_ABI && !strcmp(conform_targets[t].ops->name, conform_targets[t].backend), "%s: ABI %u, name %s", conform_targets[t].name,
		       conform_targets[t].ops->abi, conform_targets[t].ops->name);
}

/* --- progress -------------------------------------------------------------------------------------------------------------------------------- */

enum { LAYERS = 24, KV_DIM = 16, WORDS = 3 * LAYERS + 40, SEEN_ENOUGH = 20, SECONDS_MOST = 60, WIDE = 128 };

/* A program of many layers, each of which writes KV, tells, and computes a product, which takes a while; three sequences, the third tells nobody. */
struct told {
	const struct device *dev;
	struct world *w;
	struct kern_mem k, wide, pool, board, batch;
	struct kern_weight *w_wide;
	struct kern_kv_layer layer[LAYERS];
	struct kern_program *p;
	struct kern_progress progress[3];
	atomic_ulong run, done;        /* what the watcher waits for, and has seen the last layer of */
	atomic_uint between;           /* how often it saw a run that had told of some layers, but not of all */
	atomic_bool stop;
	char wrong[200];
};

static uint64_t told_word(const struct told *t, unsigned seq, unsigned layer)
{
	size_t at = seq == 0 ? layer : (size_t)LAYERS + 8 + 2 * layer;
	return __atomic_load_n((uint64_t *)t->board.host + at, __ATOMIC_ACQUIRE);
}

/* KV of a layer and sequence 0 or 1 as the host sees it: every element must be of this run. */
static bool told_kv(const struct told *t, unsigned seq, unsigned layer, float want)
{
	const struct kern_kv_layer *kv = &t->layer[layer];
	for (uint32_t p = 0; p < t->w->seq[seq].rows; p++) {
		size_t at = kv->base.v - t->pool.dev.v + t->w->table[seq][p / 16] * kv->block_stride_bytes + (size_t)(p % 16) * KV_DIM * 4;
		const float *k = (const float *)(const void *)((const unsigned char *)t->pool.host + at);
		for (uint32_t d = 0; d < KV_DIM; d++)
			if (k[d] != want)
				return false;
	}
	return true;
}

/* Words of the host's memory are looked at while the program runs. The next run begins when this one has been seen to its end. */
static void *told_watch(void *arg)
{
	struct told *t = arg;
	for (unsigned long run = 1; !t->stop; run++) {
		while (atomic_load(&t->run) < run && !t->stop)
			sched_yield();
		for (unsigned layer = 0; layer < LAYERS && !t->stop;) {
			unsigned seq = layer % 2;
			if (told_word(t, seq, layer) != 1000 * run + seq) {
				atomic_fetch_add(&t->between, layer > 0);
				sched_yield();
				continue;
			}
			if (!told_kv(t, seq, layer, (float)run) && !t->wrong[0])
				snprintf(t->wrong, sizeof t->wrong, "run %lu: layer %u was told before its KV was there", run, layer);
			layer++;
		}
		atomic_store(&t->done, run);
	}
	return NULL;
}

static void told_new(struct told *t, const struct device *dev)
{
	static const struct sequence seq[SEQUENCES] = {{0, 20}, {0, 3}, {0, 9}};
	*t = (struct told){.dev = dev, .w = world_get(seq)};
	size_t plane = 16 * KV_DIM * 4, stride = LAYERS * plane;
	struct kern_op op[3 * LAYERS] = {0};
	struct kern_limits limits = world_limits(t->w);
	t->k = mem_get(dev, KERN_MEM_DEVICE, limits.rows * KV_DIM * 4);
	t->wide = mem_get(dev, KERN_MEM_DEVICE, 2 * limits.rows * WIDE * 4);
	device_ok(dev, dev->ops->weight_new(dev->d, KERN_F32, WIDE, WIDE, rand_floats(WIDE * WIDE, 1), 0, &t->w_wide), "weight_new");
	t->pool = mem_get(dev, KERN_MEM_SHARED, t->w->blocks * stride);
	t->board = mem_get(dev, KERN_MEM_SHARED, WORDS * 8);
	for (unsigned i = 0; i < LAYERS; i++) {
		t->layer[i] = (struct kern_kv_layer){kern_at(t->pool.dev, i * plane), stride, 1, KV_DIM, 16, KERN_F32, i, KV_DIM};
		op[3 * i].kind = KERN_OP_KV_WRITE;
		op[3 * i].kv_write.kv = t->layer[i];
		op[3 * i].kv_write.k = (struct kern_tensor){t->k.dev, KV_DIM, KERN_F32};
		op[3 * i + 1].kind = KERN_OP_PROGRESS;
		op[3 * i + 1].progress.layer = i;
		op[3 * i + 2].kind = KERN_OP_MATMUL;
		op[3 * i + 2].matmul.x = (struct kern_tensor){t->wide.dev, WIDE, KERN_F32};
		op[3 * i + 2].matmul.products = 1;
		op[3 * i + 2].matmul.p[0] = (struct kern_product){t->w_wide, {0}, {kern_at(t->wide.dev, limits.rows * WIDE * 4), WIDE, KERN_F32}};
	}
	t->p = program_get(dev, op, LEN(op), &limits);
	t->progress[0] = (struct kern_progress){t->board.dev, 0, 1};
	t->progress[1] = (struct kern_progress){kern_at(t->board.dev, 8 * (LAYERS + 8)), 0, 2};
}

static void told_free(struct told *t)
{
	const struct kern_ops *k = t->dev->ops;
	k->program_destroy(&t->p);
	k->weight_destroy(t->dev->d, &t->w_wide);
	k->mem_free(t->dev->d, &t->k);
	k->mem_free(t->dev->d, &t->wide);
	k->mem_free(t->dev->d, &t->pool);
	k->mem_free(t->dev->d, &t->board);
	k->mem_free(t->dev->d, &t->batch);
}

static void told_run(struct told *t, const struct step *st, unsigned long run)
{
	float *k = conform_alloc(t->k.bytes, 1);
	for (size_t i = 0; i < t->k.bytes / 4; i++)
		k[i] = (float)run;
	t->progress[0].value = 1000 * run;
	t->progress[1].value = 1000 * run + 1;
	mem_put(t->dev, t->k.dev, k, t->k.bytes);
	if (!t->batch.bytes)
		t->batch = mem_get(t->dev, KERN_MEM_PINNED, batch_bytes(t->w));
	batch_write(t->w, st, (uint32_t)run, t->progress, t->batch.host);
	atomic_store(&t->run, run);
	device_ok(t->dev, t->dev->ops->run(t->dev->s, t->p, &t->batch), "run");
	device_ok(t->dev, t->dev->ops->sync(t->dev->s), "sync");
}

static void told_words_check(const struct told *t, unsigned long run)
{
	uint64_t word[WORDS], want[WORDS] = {0};
	for (unsigned i = 0; i < LAYERS; i++) {
		want[i] = 1000 * run;
		want[LAYERS + 8 + 2 * i] = 1000 * run + 1;
	}
	mem_take(t->dev, word, t->board.dev, sizeof word);
	for (unsigned i = 0; i < WORDS; i++)
		EXPECT(word[i] == want[i], "run %lu: word %u is %llu, want %llu", run, i, (unsigned long long)word[i], (unsigned long long)want[i]);
}

CONFORM_TEST(progress_is_told_after_the_kv)
{
	EACH_TARGET(dev, 2) {
		struct told t;
		struct kern_counters first, last;
		pthread_t watcher;
		told_new(&t, dev);
		struct schedule s = schedule_make(t.w, ORDER_WHOLE, 0, false);
		dev->ops->counters(dev->d, &first);
		bool watched = t.board.host && t.pool.host;
		if (!watched)
			SKIP_PART("%s: the host cannot look at shared memory", dev->target->name);
		else
			EXPECT(pthread_create(&watcher, NULL, told_watch, &t) == 0, "no thread");
		unsigned long run = 0;
		time_t begun = time(NULL);
		while (run < 3 || (watched && atomic_load(&t.between) < SEEN_ENOUGH && time(NULL) - begun < SECONDS_MOST)) {
			size_t mark = conform_mark();
			told_run(&t, &s.step[0], ++run);
			while (watched && atomic_load(&t.done) < run)
				sched_yield();
			conform_release(mark);
			EXPECT(!t.wrong[0], "%s", t.wrong);
		}
		t.stop = true;
		if (watched)
			pthread_join(watcher, NULL);
		told_words_check(&t, run);
		EXPECT(!watched || atomic_load(&t.between) > 0, "in %lu runs no word was seen before the last layer", run);
		dev->ops->counters(dev->d, &last);
		EXPECT(last.pulse >= first.pulse + run, "the pulse went from %llu to %llu in %lu runs", (unsigned long long)first.pulse, (unsigned long long)last.pulse, run);
		told_free(&t);
	}
}

/* --- groups of ranks ---------------------------------------------------------------------------------------------------------------------------- */

enum { RANKS = 2, RANK_DIM = 96, RANK_ROWS = 9, RANK_RUNS = 5 };

struct group {
	struct target *target;
	struct world *w;
	struct schedule s;
	pthread_barrier_t barrier;
	unsigned meetings, broken_at;          /* 0: never */
	float *weight, *x, *w_norm, *out[RANKS];
	int fd, rc[RANKS];
	uint64_t word;
};

struct rank { struct group *g; unsigned rank; };

static int rank_meet(void *arg)
{
	struct rank *r = arg;
	if (pthread_barrier_wait(&r->g->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		r->g->meetings++;
	pthread_barrier_wait(&r->g->barrier);
	return r->g->broken_at && r->g->meetings >= r->g->broken_at ? -1 : 0;
}

/* y = W x, of which a rank computes some columns into memory that all share; the norm of a whole row follows. */
static uint32_t rank_ops(struct kern_op *op, const struct kern_weight *w, kern_ptr x, kern_ptr shared, uint32_t column, kern_ptr w_norm, kern_ptr out)
{
	struct kern_tensor y = {shared, RANK_DIM, KERN_F32};
	op[0].kind = KERN_OP_MATMUL;
	op[0].matmul.x = (struct kern_tensor){x, RANK_DIM, KERN_F32};
	op[0].matmul.products = 1;
	op[0].matmul.p[0] = (struct kern_product){w, {0}, {kern_at(shared, 4 * (size_t)column), RANK_DIM, KERN_F32}};
	op[1].kind = KERN_OP_GATHER;
	op[2].kind = KERN_OP_NORM;
	op[2].norm.y = (struct kern_tensor){out, RANK_DIM, KERN_F32};
	op[2].norm.x = y;
	op[2].norm.w = w_norm;
	op[2].norm.dim = RANK_DIM;
	op[2].norm.eps = 1e-5f;
	op[3].kind = KERN_OP_GATHER;           /* before the next run writes */
	return 4;
}

/* Runs on a device of its own; `shared` is NULL for one that is alone. Returns what the last run did. */
static int rank_run(const struct group *g, const struct device *dev, struct kern_mem *shared, unsigned rank, unsigned ranks, float *out)
{
	const struct kern_ops *k = dev->ops;
	uint32_t n = RANK_DIM / ranks;
	struct kern_limits limits = world_limits(g->w);
	struct kern_mem own = {0}, batch = {0}, mem = shared ? *shared : (struct kern_mem){0};
	struct kern_weight *w = NULL;
	struct kern_program *p = NULL;
	struct kern_op op[4] = {0};
	size_t bytes = limits.rows * RANK_DIM * 4;
	int rc = k->mem_new(dev->d, KERN_MEM_DEVICE, 4 * bytes, &own);
	rc = rc ? rc : k->mem_new(dev->d, KERN_MEM_PINNED, batch_bytes(g->w), &batch);
	rc = rc ? rc : k->weight_new(dev->d, KERN_F32, n, RANK_DIM, g->weight + (size_t)rank * n * RANK_DIM, 0, &w);
	rc = rc ? rc : k->upload(dev->s, own.dev, g->x, RANK_ROWS * RANK_DIM * 4);
	rc = rc ? rc : k->upload(dev->s, kern_at(own.dev, bytes), g->w_norm, RANK_DIM * 4);
	if (!rc) {
		batch_write(g->w, &g->s.step[0], 0, NULL, batch.host);
		rank_ops(op, w, own.dev, shared ? mem.dev : kern_at(own.dev, 3 * bytes), rank * n, kern_at(own.dev, bytes), kern_at(own.dev, 2 * bytes));
		rc = k->program_new(dev->d, op, 4, &limits, &p);
	}
	for (int i = 0; i < RANK_RUNS && !rc; i++) {
		rc = k->run(dev->s, p, &batch);
		rc = rc ? rc : k->sync(dev->s);
	}
	rc = rc ? rc : k->download(dev->s, out, kern_at(own.dev, 2 * bytes), RANK_ROWS * RANK_DIM * 4);
	rc = rc ? rc : k->sync(dev->s);
	if (p)
		k->program_destroy(&p);
	k->weight_destroy(dev->d, &w);
	k->mem_free(dev->d, &batch);
	k->mem_free(dev->d, &own);
	return rc;
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct group *g = r->g;
	struct device dev = {.target = g->target, .ops = g->target->ops};
	struct kern_config conf = {.variant = g->target->variant[0] ? g->target->variant : NULL, .threads = 1 + r->rank, .group = {r->rank, RANKS, rank_meet, r}};
	struct kern_mem shared;
	char err[200];
	int rc = dev.ops->open(&conf, &dev.d, err, sizeof err);
	rc = rc ? rc : dev.ops->stream_new(dev.d, &dev.s);
	rc = rc ? rc : dev.ops->mem_map(dev.d, g->fd, world_limits(g->w).rows * RANK_DIM * 4, &shared);
	g->rc[r->rank] = rc ? rc : rank_run(g, &dev, &shared, r->rank, RANKS, g->out[r->rank]);
	if (!rc)
		dev.ops->mem_free(dev.d, &shared);
	dev.ops->stream_destroy(&dev.s);
	dev.ops->close(&dev.d);
	return NULL;
}

static void group_run(struct group *g, struct device *alone, unsigned broken_at)
{
	struct rank rank[RANKS];
	pthread_t thread[RANKS];
	struct kern_mem shared = mem_get(alone, KERN_MEM_SHARED, world_limits(g->w).rows * RANK_DIM * 4);
	device_ok(alone, alone->ops->mem_share(alone->d, &shared, &g->fd), "mem_share");
	g->broken_at = broken_at;
	g->meetings = 0;
	for (unsigned i = 0; i < RANKS; i++) {
		rank[i] = (struct rank){g, i};
		EXPECT(pthread_create(&thread[i], NULL, rank_main, &rank[i]) == 0, "no thread");
	}
	for (unsigned i = 0; i < RANKS; i++)
		pthread_join(thread[i], NULL);
	close(g->fd);
	alone->ops->mem_free(alone->d, &shared);
}

/* Two ranks give the bits of one device; when they no longer meet, a run ends with an error. */
CONFORM_TEST(groups_of_ranks)
{
	static const struct sequence seq[SEQUENCES] = {{0, RANK_ROWS}};
	EACH_TARGET(dev, 2) {
		struct group g = {.target = &conform_targets[t_], .w = world_get(seq)};
		if (dev->ops->ranks_max < RANKS) {
			SKIP_PART("%s: works alone", dev->target->name);
			continue;
		}
		g.s = schedule_make(g.w, ORDER_WHOLE, 0, false);
		g.weight = rand_floats(RANK_DIM * RANK_DIM, 1);
		g.w_norm = rand_floats(RANK_DIM, 1);
		g.x = rand_floats(RANK_ROWS * RANK_DIM, 1);
		float *want = conform_alloc(RANK_ROWS * RANK_DIM, 4);
		pthread_barrier_init(&g.barrier, NULL, RANKS);
		for (unsigned i = 0; i < RANKS; i++)
			g.out[i] = conform_alloc(RANK_ROWS * RANK_DIM, 4);
		device_ok(dev, rank_run(&g, dev, NULL, 0, 1, want), "a device that is alone");
		group_run(&g, dev, 0);
		for (unsigned i = 0; i < RANKS; i++)
			EXPECT(g.rc[i] == 0 && !memcmp(g.out[i], want, RANK_ROWS * RANK_DIM * 4), "rank %u returned %d, or other bits than one device", i, g.rc[i]);
		EXPECT(g.meetings == 2 * RANK_RUNS, "%u meetings in %d runs, want two a run", g.meetings, RANK_RUNS);
		group_run(&g, dev, 3);
		for (unsigned i = 0; i < RANKS; i++)
			EXPECT(g.rc[i] < 0, "rank %u goes on without its group", i);
		pthread_barrier_destroy(&g.barrier);
	}
}
