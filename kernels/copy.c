/* copy.c - finds a backend's copy functions by name; checks lists of pieces and joins adjacent
 * ones. */
#include "kernels/copy.h"
#include "kernels/divided.h"
#include "kernels/load.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { JOINED_MAX = 64 }; /* pieces per call of a backend */

static const struct kern_copies *find(const char *name, char *errbuf, size_t errlen)
{
	if (strcmp(name, "cpu") == 0 || strcmp(name, "sim") == 0)
		return &kern_host_copies;
	return kern_load(name, "kern_backend_copies", KERN_COPIES_ABI, errbuf, errlen);
}

int kern_pool_open(const char *backend, int device, int fd, size_t bytes,
                   struct kern_pool **ret_pool, char *errbuf, size_t errlen)
{
	const struct kern_copies *by = find(backend, errbuf, errlen);
	struct kern_pool *pool = NULL;
	if (!by)
		return KERN_ENOTSUP;
	int rc = by->open(device, fd, bytes, &pool, errbuf, errlen);
	if (rc)
		return rc;
	pool->by = by;
	pool->bytes = bytes;
	*ret_pool = pool;
	return KERN_OK;
}

void kern_pool_close(struct kern_pool **pool)
{
	if (*pool && (*pool)->divided)
		divided_close(pool);
	else if (*pool)
		(*pool)->by->close(pool);
}

/* --- lists of pieces ----------------------------------------------------- */

static bool beyond(const struct kern_pool *pool, uint64_t at, uint64_t bytes)
{
	return pool && (bytes > pool->bytes || at > pool->bytes - bytes);
}

static int check(const struct kern_copy *c, char *errbuf, size_t errlen)
{
	if (!c->to && !c->from)
		snprintf(errbuf, errlen, "a copy from host memory to host memory");
	else if (c->to && c->seen)
		snprintf(errbuf, errlen, "a copy with a reader to a pool: only possible to host memory");
	else if (c->to && c->from && c->to->by != c->from->by)
		snprintf(errbuf, errlen, "a copy from memory of backend %s to memory of backend %s",
		         c->from->by->name, c->to->by->name);
	else {
		for (size_t i = 0; i < c->n; i++) {
			const struct kern_piece *p = &c->piece[i];
			if (!beyond(c->to, p->to, p->bytes) && !beyond(c->from, p->from, p->bytes))
				continue;
			snprintf(errbuf, errlen,
			         "piece %zu: %llu bytes from %llu to %llu, the pools have %zu and %zu bytes", i,
			         (unsigned long long)p->bytes, (unsigned long long)p->from,
			         (unsigned long long)p->to, c->from ? c->from->bytes : 0,
			         c->to ? c->to->bytes : 0);
			return KERN_EINVAL;
		}
		return KERN_OK;
	}
	return KERN_EINVAL;
}

bool pieces_join(struct kern_piece *a, const struct kern_piece *b, bool overlaps)
{
	uint64_t at = b->to - a->to;
	if (b->to < a->to || b->from < a->from || b->from - a->from != at || at > a->bytes ||
	    (at < a->bytes && !overlaps))
		return false;
	if (at + b->bytes > a->bytes)
		a->bytes = at + b->bytes;
	return true;
}

static int start(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen)
{
	int divided = (c->to && c->to->divided) || (c->from && c->from->divided);
	return divided ? divided_copy(c, ret_number, errbuf, errlen)
	               : (c->to ? c->to : c->from)->by->copy(c, ret_number, errbuf, errlen);
}

int kern_copy(const struct kern_copy *c, struct kern_ticket *ret_ticket, char *errbuf,
              size_t errlen)
{
	struct kern_piece joined[JOINED_MAX];
	struct kern_copy part = *c;
	struct kern_ticket t = {.pool = c->to ? c->to : c->from};
	int rc = check(c, errbuf, errlen);
	bool begun = false;
	part.piece = joined;
	for (size_t i = 0; !rc && i < c->n;) {
		joined[0] = c->piece[i++];
		if (!joined[0].bytes)
			continue;
		for (part.n = 1; i < c->n; i++)
			/* within a pool, what an earlier piece has written may be read */
			if (c->to != c->from && pieces_join(&joined[part.n - 1], &c->piece[i], !c->seen))
				continue;
			else if (part.n < JOINED_MAX)
				joined[part.n++] = c->piece[i];
			else
				break;
		uint64_t number = 0;
		char later[64]; /* discarded: the first error is reported */
		rc = start(&part, &number, errbuf, errlen);
		if (rc && begun)
			kern_wait(&t, later, sizeof later);
		begun = true;
		t.number = number;
	}
	if (!rc)
		*ret_ticket = begun ? t : (struct kern_ticket){0};
	return rc;
}

int kern_wait(const struct kern_ticket *t, char *errbuf, size_t errlen)
{
	if (!t->pool)
		return KERN_OK;
	return t->pool->divided ? divided_wait(t->pool, errbuf, errlen)
	                        : t->pool->by->wait(t->pool, t->number, errbuf, errlen);
}
