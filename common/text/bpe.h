/* bpe.h - byte-pair merging of the symbols (token ids) of one piece: the lowest rank first, the
 * leftmost pair first at equal rank. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

enum { BPE_NONE = UINT32_MAX };

struct bpe;
struct quota;

struct bpe *bpe_new(size_t merges);
void bpe_destroy(struct bpe **b);
/* If the same pair is added twice, the later rank counts. May be called at most `merges` times
 * (bpe_new). */
void bpe_add_merge(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

/* Working memory, 48 bytes per symbol of the longest piece. Initialise it with zeros. */
struct bpe_scratch {
	struct quota *quota; /* accounts for the memory; NULL: no limit */
	struct bpe_symbol *symbols;
	uint64_t *heap;
	size_t symbols_size, heap_size;
	uint32_t *ids;
	size_t ids_size;
};
void bpe_scratch_fini(struct bpe_scratch *s);

/* Returns s->ids with space for n (< 2^31) symbols, for the caller to fill in; the old contents are
 * lost. NULL: out of memory. */
uint32_t *bpe_room(struct bpe_scratch *s, size_t n);
#define BPE_NO_MEMORY SIZE_MAX
/* Merges the first n symbols of s->ids in place and returns how many remain, or BPE_NO_MEMORY.
 * s->ids is valid until the next call. O(n log n). */
size_t bpe_merge(const struct bpe *b, struct bpe_scratch *s, size_t n);

#endif
