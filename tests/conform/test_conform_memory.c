/* test_conform_memory.c - memory of every kind: zeroed, shared between devices and processes, of
 * the host's own. */
#include "tests/conform/conform.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

CONFORM_TEST(memory_is_zeroed_and_aligned)
{
	static const size_t sizes[] = {1, 100, 4096, 5 << 20};
	static const enum kern_memory kinds[] = {KERN_MEM_DEVICE, KERN_MEM_PINNED, KERN_MEM_SHARED};
	EACH_TARGET(dev, 2)
	for (size_t i = 0; i < LEN(sizes) * LEN(kinds); i++) {
		size_t n = sizes[i / LEN(kinds)], mark = conform_mark();
		struct kern_mem m = mem_get(dev, kinds[i % LEN(kinds)], n), none = {0};
		unsigned char *in = conform_alloc(n, 1), *out = conform_alloc(n, 1);
		EXPECT(m.kind == kinds[i % LEN(kinds)] && m.bytes >= n,
		       "memory of kind %d and %zu bytes, want %zu", (int)m.kind, m.bytes, n);
		EXPECT(kinds[i % LEN(kinds)] != KERN_MEM_PINNED || m.host,
		       "pinned memory that the host cannot address");
		mem_take(dev, out, m.dev, n);
		EXPECT(!memcmp(in, out, n), "memory of kind %d and %zu bytes is not zero", (int)m.kind, n);
		memset(in, 0xa7, n);
		mem_put(dev, m.dev, in, n);
		mem_take(dev, out, m.dev, n);
		EXPECT(!memcmp(in, out, n), "memory of kind %d and %zu bytes reads back otherwise",
		       (int)m.kind, n);
		EXPECT(!m.host || !memcmp(m.host, in, n), "the host sees other bytes than the device");
		dev->ops->mem_free(dev->d, &m);
		EXPECT(!m.dev.v && !m.host && !m.bytes, "mem_free leaves an address");
		dev->ops->mem_free(dev->d, &m);
		dev->ops->mem_free(dev->d, &none);
		conform_release(mark);
	}
}

/* A device of a second descriptor's: what one writes the other reads. */
static void shared_between(const struct device *a, const struct device *b, int fd, size_t n,
                           kern_ptr of_a)
{
	struct kern_mem m;
	unsigned char *in = conform_alloc(n, 1), *out = conform_alloc(n, 1);
	device_ok(b, b->ops->mem_map(b->d, fd, n, &m), "mem_map");
	EXPECT(m.kind == KERN_MEM_SHARED && m.bytes == n && m.dev.v,
	       "a mapping of kind %d and %zu bytes", (int)m.kind, m.bytes);
	for (int turn = 0; turn < 2; turn++) {
		for (size_t i = 0; i < n; i++)
			in[i] = (unsigned char)rand_bits();
		mem_put(turn ? b : a, turn ? m.dev : of_a, in, n);
		mem_take(turn ? a : b, out, turn ? of_a : m.dev, n);
		EXPECT(!memcmp(in, out, n), "a mapping does not show what the %s wrote",
		       turn ? "other one" : "first one");
	}
	b->ops->mem_free(b->d, &m);
	mem_take(a, out, of_a, n);
	EXPECT(!memcmp(in, out, n), "the memory changed when a mapping of it was freed");
}

CONFORM_TEST(memory_is_shared_between_devices)
{
	enum { N = 70000 };
	EACH_TARGET(dev, 1)
	{
		struct device *other = device_get(&conform_targets[t_], ANOTHER);
		struct kern_mem m = mem_get(dev, KERN_MEM_SHARED, N), d = mem_get(dev, KERN_MEM_DEVICE, N);
		int fd = -1;
		EXPECT(dev->ops->mem_share(dev->d, &d, &fd) < 0 && fd == -1,
		       "memory of kind DEVICE was shared");
		device_ok(dev, dev->ops->mem_share(dev->d, &m, &fd), "mem_share");
		shared_between(dev, other, fd, N, m.dev);
		shared_between(dev, dev, fd, N, m.dev);
		struct kern_mem none = {0};
		for (int i = 0; i < 3; i++) {
			int rc = dev->ops->mem_map(dev->d, i ? fd : -1, i == 1 ? N + 1 : N - 1, &none);
			EXPECT(rc < 0 && !none.dev.v && strlen(dev->ops->last_error(dev->d)) > 10,
			       "case %d: mem_map returned %d: \"%s\"", i, rc, dev->ops->last_error(dev->d));
		}
		close(fd);
		dev->ops->mem_free(dev->d, &m);
		dev->ops->mem_free(dev->d, &d);
	}
}

static void fd_send(int to, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec io = {&byte, 1};
	struct msghdr msg = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
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
	struct msghdr msg = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd = -1;
	if (recvmsg(from, &msg, 0) == 1 && CMSG_FIRSTHDR(&msg))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof fd);
	return fd;
}

enum { SHARED_BYTES = 5000 };

/* In a process that has no device yet: adds 1 to each byte of what it is sent. Returns its exit
 * status. */
static int other_process(struct target *t, int sock)
{
	int fd = fd_take(sock);
	struct device *dev = fd < 0 ? NULL : device_get(t, 1);
	struct kern_mem m;
	unsigned char b[SHARED_BYTES];
	if (!dev || dev->ops->mem_map(dev->d, fd, sizeof b, &m) ||
	    dev->ops->download(dev->s, b, m.dev, sizeof b) || dev->ops->sync(dev->s))
		return 1;
	for (size_t i = 0; i < sizeof b; i++)
		b[i]++;
	return dev->ops->upload(dev->s, m.dev, b, sizeof b) || dev->ops->sync(dev->s) ||
	       write(sock, "d", 1) != 1;
}

CONFORM_TEST(groups_of_processes_share_memory)
{
	for (unsigned t = 0; t < conform_target_count; t++) {
		if (conform_targets[t].activations != KERN_F32)
			continue;
		int sock[2], fd, status;
		char byte;
		unsigned char b[SHARED_BYTES];
		EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, sock) == 0, "socketpair: %m");
		/* before this process opens a device of the target */
		pid_t pid = fork();
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
		EXPECT(waitpid(pid, &status, 0) == pid && (!dev || status == 0),
		       "the other process ended with %#x", (unsigned)status);
	}
}

/* Memory of the host's own is read and written in place; a batch may lie there, too. */
CONFORM_TEST(memory_of_the_host_is_pinned)
{
	enum { ROWS = 5, DIM = 64, BYTES = ROWS * DIM * 4 };
	static const struct sequence seq[SEQUENCES] = {{0, ROWS}};
	struct world *w = world_new(seq, 16);
	struct schedule s = schedule_make(w, ORDER_WHOLE, 0, false);
	struct kern_limits limits = world_limits(w);
	EACH_TARGET(dev, 2)
	{
		float *host = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		                   0);
		struct kern_mem m, batch;
		size_t words = (batch_bytes(w) + 4095) / 4096 * 4096;
		void *word = mmap(NULL, words, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		batch_write(w, &s.step[0], 0, NULL, word);
		device_ok(dev, dev->ops->mem_pin(dev->d, word, words, &batch), "mem_pin");
		for (int i = 0; i < ROWS * DIM; i++)
			host[i] = (float)i;
		device_ok(dev, dev->ops->mem_pin(dev->d, host, 2 * BYTES, &m), "mem_pin");
		struct kern_op op = op_scale(kern_at(m.dev, BYTES), m.dev, 2, DIM);
		struct kern_program *p = program_get(dev, &op, 1, &limits);
		device_ok(dev, dev->ops->run(dev->s, p, &batch), "run");
		device_ok(dev, dev->ops->sync(dev->s), "sync");
		for (int i = 0; i < ROWS * DIM; i++)
			EXPECT(host[ROWS * DIM + i] == (float)(2 * i), "the host reads %g at %d, want %d",
			       (double)host[ROWS * DIM + i], i, 2 * i);
		dev->ops->program_destroy(&p);
		EXPECT(!p, "program_destroy leaves a pointer");
		dev->ops->mem_free(dev->d, &m);
		dev->ops->mem_free(dev->d, &batch);
		EXPECT(host[1] == 1, "the host's memory changed when it was no longer pinned");
		munmap(word, words);
		munmap(host, 2 * BYTES);
	}
}
