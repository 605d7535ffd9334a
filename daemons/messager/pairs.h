/* pairs.h - what has been moved from which worker to which, since this messager started.
 *
 * Bound: PAIRS_MAX pairs. A new pair replaces the one whose last transfer is the oldest. */
#ifndef MESSAGER_PAIRS_H
#define MESSAGER_PAIRS_H

#include <stdint.h>

#define PAIRS_MAX 256u
#define PAIRS_NAME_MAX 48

struct buf;
struct pairs;

struct pairs *pairs_new(void);
void pairs_destroy(struct pairs **p);
/* A transfer has delivered everything. tail_us: from the last layer computed until then. */
void pairs_add(struct pairs *p, const char *from, const char *to, uint64_t bytes, uint64_t tail_us);
/* [{"from", "to", "transfers", "bytes", "tail_us"}]: sums */
void pairs_json(const struct pairs *p, struct buf *out);

#endif
