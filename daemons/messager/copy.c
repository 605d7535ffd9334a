/* copy.c - see copy.h. The innermost place of the messager: here bytes move. The block numbers come
 * from other processes; they were checked when the task was found, and are checked again here,
 * where an address is made of them.
 *
 * The generations are the second guard of D's blocks: the first is that a lease is revoked, and the
 * revocation answered, before D reuses one. What remains is a block that D reuses without a
 * revocation, between the look at its generation and the end of its copy. */
#include "copy.h"

#include "util/check.h"
#include "util/err.h"

#include <string.h>

uint32_t copy_run(const uint32_t *src, const uint32_t *dst, uint32_t n)
{
	uint32_t i = 1;
	while (i < n && src[i] == src[i - 1] + 1 && dst[i] == dst[i - 1] + 1)
		i++;
	return i;
}

/* How many of the leading blocks still have their generation. */
static uint32_t still_leased(const struct copy_pools *p, const uint32_t *dst, const uint64_t *gen,
                             uint32_t n)
{
	uint32_t i = 0;
	while (i < n &&
	       atomic_load_explicit(&p->to_generations[dst[i]], memory_order_acquire) == gen[i])
		i++;
	return i;
}

int copy_layer(const struct copy_pools *p, uint32_t layer, const struct copy_list *list,
               size_t limit_bytes, uint32_t *ret_n, uint32_t *ret_runs)
{
	const size_t piece = p->layout->piece_bytes[layer];
	size_t most = limit_bytes / piece;
	uint32_t n = most == 0 ? 1 : most < list->n ? (uint32_t)most : list->n, done = 0;
	while (done < n) {
		const uint32_t *src = list->src + done, *dst = list->dst + done;
		uint32_t want = copy_run(src, dst, n - done);
		CHECK(want <= p->from_blocks && *src <= p->from_blocks - want);
		CHECK(want <= p->to_blocks && *dst <= p->to_blocks - want);
		uint32_t run = still_leased(p, dst, list->dst_gen + done, want);
		if (run) {
			memcpy(p->to + kv_piece_offset(p->layout, p->to_blocks, layer, *dst),
			       p->from + kv_piece_offset(p->layout, p->from_blocks, layer, *src),
			       run * piece);
			++*ret_runs;
		}
		done += run;
		if (run < want)
			break;
	}
	*ret_n = done;
	return done < n ? ERR_STALE : 0;
}
