/* tombstone.c - attempts that have ended here or were cancelled before they came: a RESERVE or
 * SUBMIT of theirs that comes late begins nothing.
 *
 * A tombstone stands until its request's deadline, at most TOMB_SECONDS. They hang in a wheel of
 * seconds, so that adding, finding and ending one costs the same however many there are; past
 * TOMBS_MAX those that would end soonest go first (the lease's expiry still guards what they
 * guarded). No timer: they are swept when there is something else to do. */
#include "decode.h"
#include "util/mem.h"

#include <stdlib.h>

#define TOMBS_MAX 65536u

_Static_assert(TOMB_WHEEL > TOMB_SECONDS + 1, "two ends in one list are in the same second");

static struct list *wheel_at(struct decode *d, uint64_t second)
{
	return &d->tombstones[second % TOMB_WHEEL];
}

static void tombstone_free(struct decode *d, struct tombstone *t)
{
	map_remove(d->tombstone_by_key, t->key.b);
	list_remove(&t->node);
	d->n_tombstones--;
	free(t);
}

static void free_second(struct decode *d, uint64_t second)
{
	list_each_safe(it, nx, wheel_at(d, second))
		tombstone_free(d, list_entry(it, struct tombstone, node));
}

void tombstone_expire(struct decode *d, uint64_t now_us)
{
	uint64_t now = now_us / 1000000u;
	if (now - d->tombstone_second > TOMB_WHEEL)
		d->tombstone_second = now - TOMB_WHEEL; /* nobody looked for so long: once round is all */
	for (; d->tombstone_second < now; d->tombstone_second++)
		free_second(d, d->tombstone_second);
}

static void make_room(struct decode *d)
{
	for (uint64_t s = d->tombstone_second; d->n_tombstones >= TOMBS_MAX; s++)
		list_each_safe(it, nx, wheel_at(d, s)) {
			if (d->n_tombstones < TOMBS_MAX)
				return;
			tombstone_free(d, list_entry(it, struct tombstone, node));
		}
}

void tombstone_add(struct decode *d, const struct attempt_key *k, uint64_t until_us)
{
	uint64_t now = clock_us();
	tombstone_expire(d, now);
	if (map_get(d->tombstone_by_key, k->b) || until_us <= now)
		return;
	make_room(d);
	struct tombstone *t = mem_zalloc(sizeof *t);
	t->key = *k;
	t->until_us = until_us - now > TOMB_SECONDS * 1000000ull ? now + TOMB_SECONDS * 1000000ull
	                                                         : until_us;
	map_put(d->tombstone_by_key, k->b, t);
	list_push_back(wheel_at(d, t->until_us / 1000000u), &t->node);
	d->n_tombstones++;
}

int tombstone_has(struct decode *d, const struct attempt_key *k)
{
	const struct tombstone *t = map_get(d->tombstone_by_key, k->b);
	return t && clock_us() < t->until_us;
}

void tombstones_init(struct decode *d)
{
	d->tombstone_by_key = map_new(ATTEMPT_KEY_BYTES);
	d->tombstone_second = clock_us() / 1000000u;
	for (uint32_t i = 0; i < TOMB_WHEEL; i++)
		list_init(&d->tombstones[i]);
}

void tombstones_fini(struct decode *d)
{
	for (uint32_t i = 0; i < TOMB_WHEEL; i++)
		free_second(d, i);
	map_destroy(&d->tombstone_by_key);
}
