/* rates.h - how fast this worker reads blocks from each tier of storage and how fast it computes
 * them: read or recompute?
 *
 * A read of n bytes from a tier takes begin_us + bytes * us_per_byte, a line fitted to the reads
 * that were seen, those of late weighing most; computing takes tokens * us_per_token. A prefix is
 * worth reading up to the block where reading has gained most over computing. What is not known
 * is read, to learn it; a tier that does not pay is tried again by one read each RATES_RETRY_US,
 * because it may have recovered. All functions may be called from any thread and never wait. */
#ifndef WORKER_RATES_H
#define WORKER_RATES_H

#include "client.h"

#include <pthread.h>
#include <stdint.h>

#define RATES_RETRY_US 10000000u

enum rates_mode { RATES_AUTO, RATES_ALWAYS, RATES_NEVER }; /* setting storage_read */

/* Weighted sums over the measurements: x bytes or tokens, y microseconds. weight 0: none yet. */
struct rates_line {
	double weight, x, y, xx, xy;
};

struct rates {
	pthread_mutex_t lock;
	enum rates_mode mode;
	uint32_t block_tokens;
	uint64_t block_bytes, retry_us;
	struct rates_line read[STORE_TIERS], compute, write;
	uint64_t noted_us[STORE_TIERS];       /* last read from the tier, or attempt */
	uint64_t chosen_read, chosen_compute; /* blocks, over all decisions */
};

void rates_init(struct rates *r, enum rates_mode mode, uint32_t block_tokens, uint64_t block_bytes);
void rates_fini(struct rates *r);

/* `bytes` arrived within `us`; 0 bytes: nothing arrived in that time. */
void rates_note_read(struct rates *r, unsigned tier, uint64_t bytes, uint64_t us);
/* A read has ended; blocks: how many each tier delivered; expected: the slowest tier that should
 * have delivered some, charged if nothing arrived. */
void rates_note_blocks(struct rates *r, const uint32_t blocks[STORE_TIERS], unsigned expected,
                       uint64_t us);
/* The same from a completed get. */
void rates_note_got(struct rates *r, const struct store_completion *c, unsigned expected);
/* `blocks` were written within `us`; only for display. */
void rates_note_write(struct rates *r, uint32_t blocks, uint64_t us);
/* A step that computed `tokens` prompt tokens. */
void rates_note_compute(struct rates *r, uint64_t tokens, uint64_t us);

/* How many leading blocks are faster to read than to compute. tiers[i] is where block i is (enum
 * store_tier; NONE counts as memory). */
uint32_t rates_worth_reading(struct rates *r, const unsigned char *tiers, uint32_t n_blocks);

/* Storage was asked elapsed_us ago to prefetch these blocks into its memory: tiers[i] becomes
 * MEMORY for those that should be there by now. */
void rates_brought_up(struct rates *r, unsigned char *tiers, uint32_t n_blocks,
                      uint64_t elapsed_us);

/* Current estimates; 0: not known. */
struct rates_view {
	/* bytes_us: bytes per microsecond, that is MB/s */
	double read_begin_us[STORE_TIERS], read_bytes_us[STORE_TIERS];
	double compute_tokens_us, read_tokens_us[STORE_TIERS]; /* tokens per microsecond */
	double write_bytes_us;
	/* smallest prefix, in blocks, worth reading from the tier; UINT32_MAX: none */
	uint32_t break_even_blocks[STORE_TIERS];
	uint64_t chosen_read, chosen_compute;
};
void rates_view(struct rates *r, struct rates_view *ret);

#endif
