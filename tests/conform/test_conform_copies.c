/* test_conform_copies.c - copies of a pool's bytes without the engine (kernels/copy.h), against
 * what the device itself sees of the pool. */
#include "kernels/copy.h"
#include "tests/conform/conform.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* No whole pages: a pool has the bytes that its blocks need. */
enum { BYTES = 100001, ROOM = 25 << 12, PIECES = 40, ROUNDS = 30 };

struct pool {
	struct kern_mem mem;
	struct kern_pool *pool;
	unsigned char *image;
};

static char why[256];

static struct pool pool_new(const struct device *dev)
{
	struct pool p = {.mem = mem_get(dev, KERN_MEM_SHARED, BYTES), .image = conform_alloc(BYTES, 1)};
	int fd;
	device_ok(dev, dev->ops->mem_share(dev->d, &p.mem, &fd), "mem_share");
	int rc = kern_pool_open(dev->target->backend, 0, fd, BYTES, &p.pool, why, sizeof why);
	EXPECT(rc == 0, "kern_pool_open returned %d: %s", rc, why);
	close(fd); /* it stays open */
	for (uint32_t i = 0; i < BYTES; i++)
		p.image[i] = (unsigned char)rand_bits();
	mem_put(dev, p.mem.dev, p.image, BYTES);
	return p;
}

static void pool_free(const struct device *dev, struct pool *p)
{
	kern_pool_close(&p->pool);
	EXPECT(!p->pool, "kern_pool_close leaves a pointer");
	dev->ops->mem_free(dev->d, &p->mem);
}

static void pool_check(const struct device *dev, const struct pool *p, const char *what)
{
	unsigned char *seen = conform_alloc(BYTES, 1);
	mem_take(dev, seen, p->mem.dev, BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		EXPECT(seen[i] == p->image[i], "%s: byte %u is %u, want %u", what, i, seen[i], p->image[i]);
}

struct seen {
	const unsigned char *next, *end;
};

static void see(void *arg, const void *at, size_t bytes)
{
	struct seen *s = arg;
	EXPECT(bytes <= (size_t)(s->end - s->next) && !memcmp(at, s->next, bytes),
	       "what is shown of a copy is not what was copied");
	s->next += bytes;
}

/* Odd places and lengths; some go on where the one before ends. The image of what is written
 * changes as the copy should change it; `shown` takes the bytes in order. */
static size_t pieces_make(struct kern_piece *piece, const unsigned char *from, unsigned char *to,
                          unsigned char *shown)
{
	size_t n = 1 + rand_below(PIECES), at = 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t bytes = rand_below(rand_below(8) ? 300 : 20000);
		struct kern_piece *p = &piece[i];
		*p = (struct kern_piece){rand_below((uint32_t)(BYTES - bytes)),
		                         rand_below((uint32_t)(BYTES - bytes)), bytes};
		if (i && rand_below(2) && p[-1].to + p[-1].bytes + bytes <= BYTES &&
		    p[-1].from + p[-1].bytes + bytes <= BYTES)
			*p = (struct kern_piece){p[-1].to + p[-1].bytes, p[-1].from + p[-1].bytes, bytes};
		memcpy(to + p->to, from + p->from, bytes);
		memcpy(shown + at, from + p->from, bytes);
		at += bytes;
	}
	return n;
}

static size_t bytes_of(const struct kern_piece *p, size_t n)
{
	size_t bytes = 0;
	while (n--)
		bytes += p[n].bytes;
	return bytes;
}

/* Host to pool, pool to pool, pool to host. */
static void copies_round(struct pool *a, struct pool *b, unsigned char *in, unsigned char *out,
                         int shows)
{
	size_t mark = conform_mark();
	unsigned char *want = conform_alloc(BYTES, 1), *shown = conform_alloc(20001 * PIECES, 1);
	struct kern_piece piece[3][PIECES];
	struct kern_ticket t = {0};
	for (uint32_t i = 0; i < BYTES; i++)
		in[i] = (unsigned char)rand_bits();
	memcpy(want, out, BYTES);
	size_t n[3] = {pieces_make(piece[0], in, a->image, shown),
	               pieces_make(piece[1], a->image, b->image, shown),
	               pieces_make(piece[2], b->image, want, shown)};
	for (size_t i = 0; i < n[0]; i++)
		piece[0][i].from += (uintptr_t)in;
	for (size_t i = 0; i < n[2]; i++)
		piece[2][i].to += (uintptr_t)out;
	struct seen s = {shown, shown + bytes_of(piece[2], n[2])};
	const struct kern_copy copy[3] = {
		{.to = a->pool, .piece = piece[0], .n = n[0]},
		{.to = b->pool, .from = a->pool, .piece = piece[1], .n = n[1]},
		{.from = b->pool, .piece = piece[2], .n = n[2], .seen = shows ? see : NULL, .seen_arg = &s},
	};
	for (int i = 0; i < 3; i++) {
		EXPECT(kern_copy(&copy[i], &t, why, sizeof why) == 0, "copy %d: %s", i, why);
		/* what a copy reads must be there: only copies to one pool, or from
		 * one to the host, are in order */
		EXPECT(kern_wait(&t, why, sizeof why) == 0, "copy %d: %s", i, why);
	}
	EXPECT(!shows || s.next == s.end, "%td bytes of a copy were not shown", s.end - s.next);
	EXPECT(!memcmp(out, want, BYTES), "the host has other bytes than were copied");
	conform_release(mark);
}

/* With ordinary memory, then with what is read from pinned, then also what is written to; both lie
 * apart, in an area of their own. */
CONFORM_TEST(copies_between_pools_and_the_host)
{
	unsigned char *area = mmap(NULL, (size_t)3 * ROOM, PROT_READ | PROT_WRITE,
	                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
				  *in = area, *out = area + (size_t)2 * ROOM;
	EXPECT(area != MAP_FAILED, "no memory");
	EACH_TARGET(dev, 1)
	{
		struct pool a = pool_new(dev), b = pool_new(dev);
		const struct kern_copies *by = a.pool->by;
		for (uint32_t round = 0; round < (by->pin ? 3 : 1) * ROUNDS; round++) {
			unsigned char *pin = round == ROUNDS ? in : round == 2 * ROUNDS ? out : NULL;
			int rc = pin ? by->pin(0, pin, ROOM, why, sizeof why) : 0;
			EXPECT(rc == 0, "pinning: %d: %s", rc, why);
			copies_round(&a, &b, in, out, round % 2);
		}
		if (by->pin) {
			by->unpin(in);
			by->unpin(out);
			copies_round(&a, &b, in, out, 1);
		}
		pool_check(dev, &a, "from the host");
		pool_check(dev, &b, "from the other pool");
		pool_free(dev, &a);
		pool_free(dev, &b);
	}
	munmap(area, (size_t)3 * ROOM);
}

/* Of one copy, some pieces are in pinned memory and some are not. */
CONFORM_TEST(copies_of_memory_that_is_pinned_in_part)
{
	unsigned char *area = mmap(NULL, (size_t)3 * ROOM, PROT_READ | PROT_WRITE,
	                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(area != MAP_FAILED, "no memory");
	EACH_TARGET(dev, 1)
	{
		struct pool p = pool_new(dev);
		const struct kern_copies *by = p.pool->by;
		for (int pinned = 0; pinned < 3 && by->pin; pinned += 2) {
			unsigned char *half[2] = {area, area + (size_t)2 * ROOM};
			struct kern_piece in[2], out[2];
			struct kern_ticket t;
			EXPECT(by->pin(0, area + (size_t)pinned * ROOM, ROOM, why, sizeof why) == 0, "%s", why);
			for (int i = 0; i < 2; i++) {
				for (uint32_t k = 0; k < BYTES / 2; k++)
					half[i][k] = p.image[i * (BYTES / 2) + k] = (unsigned char)rand_bits();
				in[i] = (struct kern_piece){i * (BYTES / 2), (uintptr_t)half[i], BYTES / 2};
				out[i] = (struct kern_piece){in[i].from, in[i].to, BYTES / 2};
			}
			struct seen s = {p.image, p.image + 2 * (BYTES / 2)};
			const struct kern_copy there = {.to = p.pool, .piece = in, .n = 2},
								   back = {.from = p.pool,
			                               .piece = out,
			                               .n = 2,
			                               .seen = see,
			                               .seen_arg = &s};
			EXPECT(!kern_copy(&there, &t, why, sizeof why) && !kern_wait(&t, why, sizeof why), "%s",
			       why);
			memset(area, 0, (size_t)3 * ROOM);
			EXPECT(!kern_copy(&back, &t, why, sizeof why) && !kern_wait(&t, why, sizeof why), "%s",
			       why);
			for (int i = 0; i < 2; i++)
				EXPECT(!memcmp(half[i], p.image + i * (BYTES / 2), BYTES / 2), "half %d differs",
				       i);
			EXPECT(s.next == s.end, "%td bytes were not shown", s.end - s.next);
			by->unpin(area + (size_t)pinned * ROOM);
		}
		pool_free(dev, &p);
	}
	munmap(area, (size_t)3 * ROOM);
}

/* The later of two copies to the same bytes stays, and to wait for the last is to wait for all. */
CONFORM_TEST(copies_to_one_pool_are_in_order)
{
	EACH_TARGET(dev, 1)
	{
		struct pool p = pool_new(dev);
		unsigned char *in = conform_alloc(ROUNDS * (size_t)BYTES, 1);
		struct kern_ticket t = {0};
		for (uint32_t i = 0; i < ROUNDS; i++) {
			const struct kern_piece piece = {0, (uintptr_t)(in + i * (size_t)BYTES),
			                                 BYTES - 100 * i};
			memset(in + i * (size_t)BYTES, (int)i + 1, BYTES);
			memset(p.image, (int)i + 1, BYTES - 100 * i);
			EXPECT(kern_copy(&(struct kern_copy){.to = p.pool, .piece = &piece, .n = 1}, &t, why,
			                 sizeof why) == 0,
			       "%s", why);
		}
		EXPECT(kern_wait(&t, why, sizeof why) == 0, "%s", why);
		pool_check(dev, &p, "copies one after the other");
		pool_free(dev, &p);
	}
}

CONFORM_TEST(copies_that_cannot_be)
{
	static const struct kern_piece wrong[] = {{BYTES, 0, 1},      {0, BYTES, 1},
	                                          {BYTES - 1, 0, 2},  {0, BYTES - 1, 2},
	                                          {UINT64_MAX, 0, 2}, {0, UINT64_MAX, 2},
	                                          {1, 0, UINT64_MAX}};
	EACH_TARGET(dev, 1)
	{
		struct pool a = pool_new(dev), b = pool_new(dev);
		struct kern_pool *none = NULL;
		int fd;
		for (size_t i = 0; i < LEN(wrong); i++) {
			const struct kern_piece piece[2] = {{0, 5, 10}, wrong[i]};
			struct kern_ticket t;
			int rc = kern_copy(
				&(struct kern_copy){.to = a.pool, .from = b.pool, .piece = piece, .n = 2}, &t, why,
				sizeof why);
			EXPECT(rc == KERN_EINVAL && strlen(why) > 10, "case %zu: %d: %s", i, rc, why);
		}
		pool_check(dev, &a, "after copies that were refused");
		device_ok(dev, dev->ops->mem_share(dev->d, &a.mem, &fd), "mem_share");
		int rc = kern_pool_open(dev->target->backend, 0, fd, BYTES + 1, &none, why, sizeof why);
		EXPECT(rc == KERN_EINVAL && !none && strlen(why) > 10, "a pool of another size: %d: %s", rc,
		       why);
		rc = kern_pool_open(dev->target->backend, 0, -1, BYTES, &none, why, sizeof why);
		EXPECT(rc == KERN_EINVAL && !none && strlen(why) > 10, "no descriptor: %d: %s", rc, why);
		close(fd);
		pool_free(dev, &a);
		pool_free(dev, &b);
	}
}
