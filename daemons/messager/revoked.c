/* revoked.c - see revoked.h. A map by lease and a list by age. */
#include "revoked.h"

#include "util/check.h"
#include "util/list.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

struct revoked_entry {
	struct list node;
	struct revoked_lease e;
};

struct revoked {
	struct map *by_lease;
	struct list by_age; /* oldest first */
	uint32_t count, max;
};

struct lease_key lease_key_of(const char *decode, uint64_t id, uint64_t epoch, uint64_t generation)
{
	struct lease_key k = {.id = id, .epoch = epoch, .generation = generation};
	memcpy(k.decode, decode, strnlen(decode, sizeof k.decode - 1));
	return k;
}

struct revoked *revoked_new(uint32_t max)
{
	struct revoked *r = mem_zalloc(sizeof *r);
	r->by_lease = map_new(sizeof(struct lease_key));
	list_init(&r->by_age);
	r->max = max;
	return r;
}

static void drop(struct revoked *r, struct revoked_entry *x)
{
	map_remove(r->by_lease, &x->e.lease);
	list_remove(&x->node);
	free(x);
	r->count--;
}

void revoked_destroy(struct revoked **rp)
{
	struct revoked *r = *rp;
	if (!r)
		return;
	list_each_safe(it, nx, &r->by_age)
		drop(r, list_entry(it, struct revoked_entry, node));
	map_destroy(&r->by_lease);
	free(r);
	*rp = NULL;
}

struct revoked_lease *revoked_add(struct revoked *r, const struct lease_key *lease, uint64_t now_us)
{
	struct revoked_entry *x = map_get(r->by_lease, lease);
	if (x)
		return &x->e;
	while (!list_empty(&r->by_age)) {
		struct revoked_entry *old = list_entry(r->by_age.next, struct revoked_entry, node);
		if (r->count < r->max && now_us - old->e.at_us < REVOKED_LIFE_US)
			break;
		drop(r, old);
	}
	x = mem_zalloc(sizeof *x);
	x->e.lease = *lease;
	x->e.at_us = now_us;
	list_push_back(&r->by_age, &x->node);
	map_put(r->by_lease, lease, x);
	r->count++;
	return &x->e;
}

struct revoked_lease *revoked_find(const struct revoked *r, const struct lease_key *lease)
{
	struct revoked_entry *x = map_get(r->by_lease, lease);
	return x ? &x->e : NULL;
}

int revoked_has(const struct revoked *r, const struct lease_key *lease)
{
	return revoked_find(r, lease) != NULL;
}

void revoked_forget(struct revoked *r, const char *decode, uint64_t epoch)
{
	list_each_safe(it, nx, &r->by_age) {
		struct revoked_entry *x = list_entry(it, struct revoked_entry, node);
		if (x->e.lease.epoch == epoch && strcmp(x->e.lease.decode, decode) == 0)
			drop(r, x);
	}
}

void revoked_each(struct revoked *r, int (*fn)(struct revoked_lease *e, void *arg), void *arg)
{
	list_each_safe(it, nx, &r->by_age) {
		if (!fn(&list_entry(it, struct revoked_entry, node)->e, arg))
			return;
	}
}

uint32_t revoked_count(const struct revoked *r)
{
	return r->count;
}
