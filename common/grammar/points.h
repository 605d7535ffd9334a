/* points.h - code points of Unicode: sets of them, one at a time as UTF-8. Internal to grammar. */
#ifndef GRAMMAR_POINTS_H
#define GRAMMAR_POINTS_H

#include "nfa.h"

#define POINT_LAST 0x10ffffu
#define POINT_BYTES_MAX 4u
#define POINTS_RANGES_MAX 512u

struct point_range {
	uint32_t lo, hi;
};

struct point_set {                               /* n 0: none */
	struct point_range r[POINTS_RANGES_MAX + 1]; /* negating may add one */
	uint32_t n;
};

int points_add(struct point_set *s, uint32_t lo, uint32_t hi); /* -1: full */
void points_merge(struct point_set *s);  /* then sorted, disjoint, not adjacent */
void points_negate(struct point_set *s); /* after points_merge */
/* s becomes what is in both; after points_merge of both. -1: full */
int points_intersect(struct point_set *s, const struct point_set *with);
/* One character of the n ranges; json: inside a JSON string, escaped where that is needed. 0, with
 * f->err set, if they hold surrogates alone. */
uint32_t points_build(struct nfa *f, const struct point_range *r, uint32_t n, int json,
                      uint32_t next);

/* The number of bytes that the point takes; 0: no valid UTF-8. */
unsigned point_take(const char *s, size_t len, uint32_t *ret);
unsigned point_put(uint32_t point, unsigned char out[POINT_BYTES_MAX]);

#endif
