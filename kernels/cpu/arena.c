/* arena.c - memory of the weights: many matrices in large mappings, so that huge pages cover them
 * and reading a model needs few address translations. A mapping is freed with its last weight.
 * Memory is zeroed; NULL: out of memory. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { CHUNK_FIRST = 256 << 10, CHUNK_GROWTH = 8, CHUNK_MOST = 128 << 20, HUGE_PAGE = 2 << 20 };

struct cpu_chunk {
	struct cpu_chunk *next;
	unsigned char *map, *base; /* base: map rounded up to a huge page */
	size_t map_bytes, bytes, used;
	unsigned weights;
};

static struct cpu_chunk *chunk_new(size_t bytes)
{
	struct cpu_chunk *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->bytes = bytes;
	c->map_bytes = bytes + HUGE_PAGE;
	c->map = mmap(NULL, c->map_bytes, PROT_READ | PROT_WRITE,
	              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->map == MAP_FAILED) {
		free(c);
		return NULL;
	}
	c->base = c->map + (HUGE_PAGE - (uintptr_t)c->map % HUGE_PAGE) % HUGE_PAGE;
	if (bytes >= HUGE_PAGE)
		/* some kernels refuse it: slower, not wrong */
		madvise(c->base, c->bytes, MADV_HUGEPAGE);
	return c;
}

void *cpu_arena_alloc(struct cpu_chunk **arena, size_t bytes, struct cpu_chunk **ret_chunk)
{
	struct cpu_chunk *c = *arena;
	if (bytes > SIZE_MAX / 2)
		return NULL;
	bytes = (bytes + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
	if (!c || c->bytes - c->used < bytes) {
		/* grows, so that a small model uses little memory */
		size_t size = c ? c->bytes * CHUNK_GROWTH : CHUNK_FIRST;
		size = size > CHUNK_MOST ? CHUNK_MOST : size;
		c = chunk_new(bytes > size ? bytes : size);
		if (!c)
			return NULL;
		c->next = *arena;
		*arena = c;
	}
	void *p = c->base + c->used;
	c->used += bytes;
	c->weights++;
	*ret_chunk = c;
	return p;
}

void cpu_arena_release(struct cpu_chunk **arena, struct cpu_chunk *chunk)
{
	if (--chunk->weights)
		return;
	while (*arena != chunk)
		arena = &(*arena)->next;
	*arena = chunk->next;
	munmap(chunk->map, chunk->map_bytes);
	free(chunk);
}
