/* block.c - see memory.h: copying a block's bytes in and out. */
#include "memory.h"
#include "spans.h"
#include "sum.h"

#include "kernels/stream.h"
#include "util/check.h"

#include <stdlib.h>

struct alone {
	struct storage_block b; /* first */
	struct tier_span span;
	_Alignas(64) unsigned char bytes[];
};

struct storage_block *block_new(const struct tier_key *key, size_t bytes)
{
	struct alone *a = aligned_alloc(64, (sizeof *a + bytes + 63) / 64 * 64);
	if (!a)
		return NULL;
	a->span = (struct tier_span){a->bytes, bytes};
	a->b = (struct storage_block){.key = *key, .bytes = bytes, .held = 1, .n = 1, .span = &a->span};
	return &a->b;
}

void block_release(struct storage_block *b)
{
	if (b->memory)
		memory_release(b);
	else
		free(b);
}

/* Copies between two span lists of equal length; s hashes the bytes. */
static void spans_copy(const struct tier_span *to, unsigned n_to, const struct tier_span *from,
                       unsigned n_from, struct sum_state *s)
{
	struct span_walk a = {to, n_to, 0}, b = {from, n_from, 0};
	for (size_t left_to, left_from; (left_to = span_left(&a)) && (left_from = span_left(&b));) {
		size_t n = left_to < left_from ? left_to : left_from;
		sum_add_copy(s, span_take(&a, n), span_take(&b, n), n);
	}
	CHECK(!span_left(&a) && !span_left(&b));
	stream_end();
}

void block_write(struct storage_block *b, const struct tier_span *span, unsigned n)
{
	struct sum_state s;
	sum_begin(&s);
	spans_copy(b->span, b->n, span, n, &s);
	b->sum = sum_end(&s);
}

int block_read(const struct storage_block *b, const struct tier_span *span, unsigned n)
{
	struct sum_state s;
	sum_begin(&s);
	spans_copy(span, n, b->span, b->n, &s);
	return sum_equal(sum_end(&s), b->sum) ? 0 : ERR_CORRUPT;
}
