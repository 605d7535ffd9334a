/* bpe.h - byte-pair merging of the symbols (token ids) of one piece: lowest rank first, leftmost
 * first at equal rank. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

enum { BPE_NONE = UINT32_MAX };

struct bpe;
struct quota;

struct bpe *bpe_new(size_t merges);
void bpe_destroy(struct bpe **b);
/* Of one pair given twice the later rank holds. At most as many calls as bpe_new was told. */
void bpe_add_merge(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

/* What merging needs besides, 48 bytes for each symbol of the longest piece; zeroed to begin
 * with. */
struct bpe_scratch {
	struct quota *quota; /* that it is taken from; NULL: none */
	struct bpe_symbol *symbols;
	uint64_t *heap;
	size_t symbols_size, heap_size;
	uint32_t *ids;
	size_t ids_size;
};
void bpe_scratch_fini(struct bpe_scratch *s);

/* Room for n (< 2^31) symbols in s->ids, where the caller writes what a piece begins as; what
 * was there is lost. NULL: no memory. */
uint32_t *bpe_room(struct bpe_scratch *s, size_t n);
#define BPE_NO_MEMORY SIZE_MAX
/* Merges the first n of them; the result is in s->ids until the next call, its number is
 * returned, or BPE_NO_MEMORY. O(n log n). */
size_t bpe_merge(const struct bpe *b, struct bpe_scratch *s, size_t n);

#endif
