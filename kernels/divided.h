/* divided.h - pools that several devices have a part of each (kern_pool_open_divided), for copy.c.
 * They are copied in parts: each piece is cut where its bytes go on in another device's memory. */
#ifndef KERNELS_DIVIDED_H
#define KERNELS_DIVIDED_H

#include "kernels/copy.h"

#include <stdbool.h>

void divided_close(struct kern_pool **pool);
/* As kern_copies.copy, for checked copies whose `to`, `from` or both are divided. */
int divided_copy(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen);
/* Waits for all copies of the pool that were started before. */
int divided_wait(struct kern_pool *pool, char *errbuf, size_t errlen);

/* copy.c: merges b into a if it continues a on both sides; with `overlaps` also if it begins within
 * a at the same offset on both sides. */
bool pieces_join(struct kern_piece *a, const struct kern_piece *b, bool overlaps);

#endif
