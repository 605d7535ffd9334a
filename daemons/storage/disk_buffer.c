/* disk_buffer.c - slabs of whole huge pages, each cut into buffers of one size.
 *
 * The most recently used buffer is taken first because it is in the cache. A slab without taken
 * buffers is unmapped when its room is needed for another size. Without huge pages everything
 * works, but slower. */
#include "disk_buffer.h"

#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)
/* minimum per slab for buffers smaller than a huge page, to limit the unused remainder */
#define SLAB_BUFFERS 4u

struct disk_slab {
	struct list link;
	unsigned char *at;
	size_t bytes, each;
	/* buffers: capacity, cut so far, taken */
	unsigned n, cut, taken;
	/* list of returned buffers; each starts with the next one's address */
	void *idle;
};

void disk_buffers_init(struct disk_buffers *b, unsigned depth, unsigned ahead, uint64_t max_bytes,
                       uint64_t ahead_bytes)
{
	*b = (struct disk_buffers){
		.max = depth + ahead, .depth = depth, .max_bytes = max_bytes, .ahead_bytes = ahead_bytes};
	list_init(&b->slabs);
}

static size_t slab_bytes(size_t each)
{
	size_t bytes = each < HUGE_BYTES ? each * SLAB_BUFFERS : each;
	return (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

/* Aligned to huge pages; NULL: out of memory. */
static unsigned char *map_aligned(size_t bytes)
{
	unsigned char *p = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE,
	                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	size_t head = (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
	if (head)
		munmap(p, head);
	if (HUGE_BYTES - head)
		munmap(p + head + bytes, HUGE_BYTES - head);
	madvise(p + head, bytes, MADV_HUGEPAGE);
	return p + head;
}

static struct disk_slab *slab_new(struct disk_buffers *b, size_t each)
{
	unsigned char *at = map_aligned(slab_bytes(each));
	if (!at)
		return NULL;
	struct disk_slab *s = mem_zalloc(sizeof *s);
	s->at = at;
	s->bytes = slab_bytes(each);
	s->each = each;
	s->n = (unsigned)(s->bytes / each);
	list_push_front(&b->slabs, &s->link);
	b->mapped_bytes += s->bytes;
	return s;
}

static void slab_free(struct disk_buffers *b, struct disk_slab *s)
{
	list_remove(&s->link);
	b->mapped_bytes -= s->bytes;
	munmap(s->at, s->bytes);
	free(s);
}

static void free_untaken(struct disk_buffers *b)
{
	list_each_safe(it, nx, &b->slabs) {
		struct disk_slab *s = list_entry(it, struct disk_slab, link);
		if (s->taken == 0)
			slab_free(b, s);
	}
}

void disk_buffers_fini(struct disk_buffers *b)
{
	free_untaken(b);
	CHECK(list_empty(&b->slabs));
}

static struct disk_slab *slab_with(struct disk_buffers *b, size_t each)
{
	list_each(it, &b->slabs) {
		struct disk_slab *s = list_entry(it, struct disk_slab, link);
		if (s->each == each && s->taken < s->n)
			return s;
	}
	if (b->mapped_bytes + slab_bytes(each) > b->max_bytes)
		free_untaken(b);
	return b->mapped_bytes + slab_bytes(each) > b->max_bytes ? NULL : slab_new(b, each);
}

int disk_buffer_take(struct disk_buffers *b, size_t bytes, struct disk_buffer *ret)
{
	ret->at = NULL;
	if (b->taken >= b->max || (b->taken >= b->depth && b->taken_bytes + bytes > b->ahead_bytes))
		return 0;
	struct disk_slab *s = slab_with(b, bytes);
	if (!s)
		return 0;
	ret->slab = s;
	if (s->idle) {
		ret->at = s->idle;
		s->idle = *(void **)s->idle;
	} else {
		ret->at = s->at + s->each * s->cut++;
	}
	s->taken++;
	b->taken++;
	b->taken_bytes += bytes;
	return 1;
}

void disk_buffer_give(struct disk_buffers *b, struct disk_buffer *buf)
{
	struct disk_slab *s = buf->slab;
	if (!buf->at)
		return;
	*(void **)buf->at = s->idle;
	s->idle = buf->at;
	buf->at = NULL;
	s->taken--;
	b->taken--;
	b->taken_bytes -= s->each;
	list_remove(&s->link);
	list_push_front(&b->slabs, &s->link);
}
