/* pairs.c - sums of the transfers of each pair of workers: an array that is searched, because a
 * host has few pairs and transfers take milliseconds. */
#include "pairs.h"

#include "util/buf.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pair {
	char from[PAIRS_NAME_MAX], to[PAIRS_NAME_MAX];
	uint64_t transfers, bytes, tail_us, last; /* last: number of its last transfer among all */
};

struct pairs {
	struct pair of[PAIRS_MAX];
	uint32_t n;
	uint64_t transfers;
};

struct pairs *pairs_new(void)
{
	return mem_zalloc(sizeof(struct pairs));
}

void pairs_destroy(struct pairs **p)
{
	free(*p);
	*p = NULL;
}

static struct pair *pair_for(struct pairs *p, const char *from, const char *to)
{
	struct pair *oldest = &p->of[0];
	for (uint32_t i = 0; i < p->n; i++) {
		struct pair *is = &p->of[i];
		if (strcmp(is->from, from) == 0 && strcmp(is->to, to) == 0)
			return is;
		oldest = is->last < oldest->last ? is : oldest;
	}
	struct pair *fresh = p->n < PAIRS_MAX ? &p->of[p->n++] : oldest;
	*fresh = (struct pair){0};
	snprintf(fresh->from, sizeof fresh->from, "%s", from);
	snprintf(fresh->to, sizeof fresh->to, "%s", to);
	return fresh;
}

void pairs_add(struct pairs *p, const char *from, const char *to, uint64_t bytes, uint64_t tail_us)
{
	struct pair *of = pair_for(p, from, to);
	of->transfers++;
	of->bytes += bytes;
	of->tail_us += tail_us;
	of->last = ++p->transfers;
}

void pairs_json(const struct pairs *p, struct buf *out)
{
	buf_addc(out, '[');
	for (uint32_t i = 0; i < p->n; i++) {
		const struct pair *of = &p->of[i];
		buf_printf(out, "%s{\"from\":", i ? "," : "");
		buf_add_json(out, of->from, strlen(of->from));
		buf_adds(out, ",\"to\":");
		buf_add_json(out, of->to, strlen(of->to));
		buf_printf(out, ",\"transfers\":%llu,\"bytes\":%llu,\"tail_us\":%llu}",
		           (unsigned long long)of->transfers, (unsigned long long)of->bytes,
		           (unsigned long long)of->tail_us);
	}
	buf_addc(out, ']');
}
