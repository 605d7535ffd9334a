/* copy.c - see copy.h. The messager's inner loop. The block numbers come from other processes; they
 * were checked when the transfer was found, and are checked again here, where they become offsets.
 *
 * The generations are the second guard of D's blocks. The first: D revokes a lease, and waits for
 * the answer, before it reuses a block. One case remains: D reuses a block without a revocation
 * between the check of its generation and the end of its copy. Bursts are short for that reason. */
#include "copy.h"

#include "util/check.h"

#include <string.h>

enum { BURST_RUNS = 16 };

uint32_t copy_run(const uint32_t *src, const uint32_t *dst, uint32_t n)
{
	uint32_t i = 1;
	while (i < n && src[i] == src[i - 1] + 1 && dst[i] == dst[i - 1] + 1)
		i++;
	return i;
}

/* The number of leading blocks that still have their generation. */
static uint32_t still_leased(const struct copy_pools *p, const uint32_t *dst, const uint64_t *gen,
                             uint32_t n)
{
	uint32_t i = 0;
	while (i < n &&
	       atomic_load_explicit(&p->to_generations[dst[i]], memory_order_acquire) == gen[i])
		i++;
	return i;
}

/* Collects the leading blocks into runs: at most BURST_RUNS runs and n blocks. Returns the number
 * of blocks; *ret_end: the next block must not be written. */
static uint32_t gather(const struct copy_pools *p, uint32_t layer, const struct copy_list *list,
                       uint32_t first, uint32_t n, struct kern_piece *piece, size_t *ret_runs,
                       int *ret_end)
{
	const size_t bytes = p->layout->piece_bytes[layer];
	uint32_t done = 0;
	for (*ret_runs = 0, *ret_end = 0; done < n && *ret_runs < BURST_RUNS && !*ret_end;) {
		const uint32_t *src = list->src + first + done, *dst = list->dst + first + done;
		uint32_t want = copy_run(src, dst, n - done);
		CHECK(want <= p->from_blocks && *src <= p->from_blocks - want);
		CHECK(want <= p->to_blocks && *dst <= p->to_blocks - want);
		uint32_t run = still_leased(p, dst, list->dst_gen + first + done, want);
		if (run)
			piece[(*ret_runs)++] = (struct kern_piece){
				kv_piece_offset(p->layout, p->to_blocks, layer, *dst),
				kv_piece_offset(p->layout, p->from_blocks, layer, *src), run * bytes};
		done += run;
		*ret_end = run < want;
	}
	return done;
}

int copy_layer(const struct copy_pools *p, uint32_t layer, const struct copy_list *list,
               size_t limit_bytes, struct copy_sum *sum, uint32_t *ret_n, struct err *err)
{
	size_t most = limit_bytes / p->layout->piece_bytes[layer];
	uint32_t n = most == 0 ? 1 : most < list->n ? (uint32_t)most : list->n, done = 0;
	int end = 0;
	while (done < n && !end) {
		struct kern_piece piece[BURST_RUNS];
		struct kern_copy c = {.to = p->to, .from = p->from, .piece = piece};
		char why[256] = "";
		*ret_n = done;
		uint32_t more = gather(p, layer, list, done, n - done, piece, &c.n, &end);
		int rc = c.n ? kern_copy(&c, &sum->last, why, sizeof why) : KERN_OK;
		if (rc)
			return err_set(err, rc == KERN_ELOST ? ERR_CLOSED : ERR_IO, "cannot copy layer %u: %s",
			               layer, why);
		sum->runs += (uint32_t)c.n;
		done += more;
	}
	*ret_n = done;
	return end ? ERR_STALE : 0;
}

int copy_wait(const struct copy_sum *sum, struct err *err)
{
	char why[256] = "";
	int rc = kern_wait(&sum->last, why, sizeof why);
	return rc ? err_set(err, rc == KERN_ELOST ? ERR_CLOSED : ERR_IO, "copying failed: %s", why) : 0;
}
