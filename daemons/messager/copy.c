/* copy.c - see copy.h. The innermost place of the messager: here bytes move. The block numbers come from another process; they were checked
 * when the task was found, and are checked again here, where an address is made of them. */
#include "copy.h"

#include "util/check.h"

#include <string.h>

uint32_t copy_run(const uint32_t *src, const uint32_t *dst, uint32_t n)
{
	uint32_t i = 1;
	while (i < n && src[i] == src[i - 1] + 1 && dst[i] == dst[i - 1] + 1)
		i++;
	return i;
}

uint32_t copy_layer(const struct copy_pools *p, uint32_t layer, const uint32_t *src, const uint32_t *dst, uint32_t n, size_t limit_bytes, uint32_t *ret_runs)
{
	const size_t piece = p->layout->piece_bytes[layer];
	size_t most = limit_bytes / piece;
	if (most == 0)
		most = 1;
	if (n > most)
		n = (uint32_t)most;
	for (uint32_t done = 0, run; done < n; done += run) {
		run = copy_run(src + done, dst + done, n - done);
		CHECK(run <= p->from_blocks && src[done] <= p->from_blocks - run);
		CHECK(run <= p->to_blocks && dst[done] <= p->to_blocks - run);
		memcpy(p->to + kv_piece_offset(p->layout, p->to_blocks, layer, dst[done]),
		       p->from + kv_piece_offset(p->layout, p->from_blocks, layer, src[done]), run * piece);
		++*ret_runs;
	}
	return n;
}
