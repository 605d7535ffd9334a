/* divided.c - see divided.h.
 *
 * What a copy is cut into is collected by the pair of parts that it is copied between, and
 * joined there: blocks that are neighbours in the whole pool are so in each part. Pieces whose
 * order matters (they overlap, or somebody sees the bytes) are copied in that order instead, a
 * pair at a time.
 * Where several parts have the same bytes, a copy writes each of them, and reads the one of the
 * same number among them: parts that are on one device stay there. */
#include "kernels/divided.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct divided_pool {
	struct kern_pool head; /* first */
	kern_locate *locate;
	const void *arg;
	unsigned parts, copies; /* copies: parts that have the same bytes */
	struct kern_pool *part[KERN_PARTS_MAX];
	_Atomic uint64_t latest[KERN_PARTS_MAX]; /* number of the part's latest copy */
};

/* --- open and close ------------------------------------------------------ */

void divided_close(struct kern_pool **pool)
{
	struct divided_pool *d = (struct divided_pool *)*pool;
	for (unsigned i = 0; i < d->parts; i++)
		kern_pool_close(&d->part[i]);
	free(d);
	*pool = NULL;
}

int kern_pool_open_divided(const char *backend, const struct kern_part *part, unsigned parts,
                           unsigned copies, size_t bytes, kern_locate *locate, const void *arg,
                           struct kern_pool **ret_pool, char *errbuf, size_t errlen)
{
	if (!parts || parts > KERN_PARTS_MAX) {
		snprintf(errbuf, errlen, "a pool of %u parts, the limits are 1 and %d", parts,
		         KERN_PARTS_MAX);
		return KERN_EINVAL;
	}
	if (!copies || parts % copies) {
		snprintf(errbuf, errlen, "a pool of %u parts with each byte in %u, expected a divisor",
		         parts, copies);
		return KERN_EINVAL;
	}
	struct divided_pool *d = calloc(1, sizeof *d);
	if (!d) {
		snprintf(errbuf, errlen, "out of memory");
		return KERN_ENOMEM;
	}
	int rc = KERN_OK;
	for (; !rc && d->parts < parts; d->parts += !rc) {
		const struct kern_part *p = &part[d->parts];
		rc = kern_pool_open(backend, p->device, p->fd, p->bytes, &d->part[d->parts], errbuf,
		                    errlen);
	}
	struct kern_pool *pool = &d->head;
	if (rc) {
		divided_close(&pool);
		return rc;
	}
	d->head = (struct kern_pool){.by = d->part[0]->by, .bytes = bytes, .divided = 1};
	d->copies = copies;
	d->locate = locate;
	d->arg = arg;
	*ret_pool = pool;
	return KERN_OK;
}

/* --- copies -------------------------------------------------------------- */

enum { CROSSING_PIECES = 32, PAIRS_MAX = 2 * KERN_PARTS_MAX };

/* Pieces from one part to another; host memory and a whole pool are part 0. */
struct crossing {
	struct kern_pool *to, *from;
	unsigned to_part, from_part;
	size_t n;
	struct kern_piece piece[CROSSING_PIECES];
};

struct cutting {
	const struct kern_copy *c;
	bool in_order;
	struct crossing crossing[PAIRS_MAX]; /* (crossings) */
	unsigned crossings;
	struct crossing *last; /* of the latest piece */
	bool begun;
	uint64_t number; /* of the latest copy */
	char *errbuf;
	size_t errlen;
};

struct place {
	struct kern_pool *pool;
	unsigned part;
	uint64_t at, left; /* left: bytes up to where the pool goes on in another part */
};

static unsigned copies_of(const struct kern_pool *pool)
{
	return pool && pool->divided ? ((const struct divided_pool *)pool)->copies : 1;
}

/* `copy`: which of the parts that have the byte. */
static struct place find(struct kern_pool *pool, uint64_t at, unsigned copy)
{
	struct place p = {pool, 0, at, UINT64_MAX};
	if (pool && pool->divided) {
		const struct divided_pool *d = (const struct divided_pool *)pool;
		p.left = d->locate(d->arg, at, &p.part, &p.at);
		p.part += copy % d->copies;
		p.pool = d->part[p.part];
	}
	return p;
}

/* Two threads may get here in any order. */
static void note_latest(struct kern_pool *pool, unsigned part, uint64_t number)
{
	struct divided_pool *d = (struct divided_pool *)pool;
	uint64_t was = atomic_load(&d->latest[part]);
	while (was < number && !atomic_compare_exchange_weak(&d->latest[part], &was, number))
		;
}

static int crossing_start(struct cutting *k, struct crossing *g)
{
	struct kern_copy c = *k->c;
	struct kern_pool *pool = g->to ? g->to : g->from, *numbered = c.to ? c.to : c.from;
	c.to = g->to;
	c.from = g->from;
	c.piece = g->piece;
	c.n = g->n;
	g->n = 0;
	int rc = c.n ? pool->by->copy(&c, &k->number, k->errbuf, k->errlen) : KERN_OK;
	if (rc || !c.n)
		return rc;
	k->begun = true;
	if (numbered->divided)
		note_latest(numbered, g->to ? g->to_part : g->from_part, k->number);
	/* what comes next may be seen only after this, or be written over it */
	return k->in_order ? pool->by->wait(pool, k->number, k->errbuf, k->errlen) : KERN_OK;
}

static struct crossing *crossing_of(struct cutting *k, const struct place *to,
                                    const struct place *from)
{
	for (unsigned i = 0; i < k->crossings; i++)
		if (k->crossing[i].to_part == to->part && k->crossing[i].from_part == from->part)
			return &k->crossing[i];
	struct crossing *g = &k->crossing[k->crossings++];
	g->to = to->pool;
	g->from = from->pool;
	g->to_part = to->part;
	g->from_part = from->part;
	g->n = 0;
	return g;
}

/* All crossings are started before there are more of them than there is room for. */
static int all_start(struct cutting *k)
{
	int rc = KERN_OK;
	for (unsigned i = 0; i < k->crossings && !rc; i++)
		rc = crossing_start(k, &k->crossing[i]);
	k->crossings = 0;
	k->last = NULL;
	return rc;
}

static int add(struct cutting *k, const struct place *to, const struct place *from, uint64_t bytes)
{
	int rc = k->crossings == PAIRS_MAX ? all_start(k) : KERN_OK;
	struct crossing *g = crossing_of(k, to, from);
	const struct kern_piece p = {to->at, from->at, bytes};
	if (!rc && k->in_order && k->last && k->last != g)
		rc = crossing_start(k, k->last);
	k->last = g;
	if (!rc && g->n && k->c->to != k->c->from && pieces_join(&g->piece[g->n - 1], &p, !k->c->seen))
		return KERN_OK;
	if (!rc && g->n == CROSSING_PIECES)
		rc = crossing_start(k, g);
	if (!rc)
		g->piece[g->n++] = p;
	return rc;
}

static int cut(struct cutting *k, struct kern_piece p)
{
	int rc = KERN_OK;
	while (p.bytes && !rc) {
		uint64_t n = p.bytes;
		for (unsigned copy = 0; copy < copies_of(k->c->to) && !rc; copy++) {
			struct place to = find(k->c->to, p.to, copy), from = find(k->c->from, p.from, copy);
			uint64_t most = to.left < from.left ? to.left : from.left;
			n = n < most ? n : most;
			rc = add(k, &to, &from, n);
		}
		p = (struct kern_piece){p.to + n, p.from + n, p.bytes - n};
	}
	return rc;
}

int divided_wait(struct kern_pool *pool, char *errbuf, size_t errlen)
{
	struct divided_pool *d = (struct divided_pool *)pool;
	char later[64]; /* discarded: the first error is reported */
	int rc = KERN_OK;
	for (unsigned i = 0; i < d->parts; i++) {
		int failed = d->head.by->wait(d->part[i], atomic_load(&d->latest[i]), rc ? later : errbuf,
		                              rc ? sizeof later : errlen);
		rc = rc ? rc : failed;
	}
	return rc;
}

int divided_copy(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen)
{
	struct cutting k;
	k.c = c;
	k.in_order = c->seen || kern_copy_is_ordered(c);
	k.crossings = 0;
	k.last = NULL;
	k.begun = false;
	k.number = 0;
	k.errbuf = errbuf;
	k.errlen = errlen;
	int rc = KERN_OK;
	for (size_t i = 0; i < c->n && !rc; i++)
		rc = cut(&k, c->piece[i]);
	rc = rc ? rc : all_start(&k);
	if (rc && k.begun) {
		char later[64];
		const struct kern_ticket t = {c->to ? c->to : c->from, k.number};
		kern_wait(&t, later, sizeof later);
	}
	*ret_number = k.number;
	return rc;
}
