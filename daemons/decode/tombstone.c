/* tombstone.c - attempts that have ended here, or were cancelled before they came: a late RESERVE
 * or SUBMIT of one begins nothing.
 *
 * A tombstone stands until its request's deadline, at most TOMBSTONE_SECONDS. They hang in a wheel
 * of seconds: adding, finding and freeing one is O(1). Past TOMBSTONES_MAX those that end soonest
 * are freed early; the lease's expiry still guards what they guarded. They have no timer: expired
 * ones are freed when another is added, and at the stage's tick. */
#include "decode.h"
#include "util/mem.h"

#include <stdlib.h>

#define TOMBSTONES_MAX 65536u

_Static_assert(TOMBSTONE_WHEEL > TOMBSTONE_SECONDS + 1,
               "all ends in one list are in the same second");

static struct list *wheel_at(struct decode *d, uint64_t second)
{
	return &d->tombstones.wheel[second % TOMBSTONE_WHEEL];
}

static void tombstone_free(struct decode *d, struct tombstone *t)
{
	map_remove(d->tombstones.by_key, t->key.b);
	list_remove(&t->node);
	d->tombstones.n--;
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
	if (now - d->tombstones.second > TOMBSTONE_WHEEL)
		d->tombstones.second = now - TOMBSTONE_WHEEL; /* one turn frees them all */
	for (; d->tombstones.second < now; d->tombstones.second++)
		free_second(d, d->tombstones.second);
}

static void tombstone_make_room(struct decode *d)
{
	for (uint64_t s = d->tombstones.second; d->tombstones.n >= TOMBSTONES_MAX; s++)
		list_each_safe(it, nx, wheel_at(d, s)) {
			if (d->tombstones.n < TOMBSTONES_MAX)
				return;
			tombstone_free(d, list_entry(it, struct tombstone, node));
		}
}

void tombstone_add(struct decode *d, const struct attempt_key *k, uint64_t until_us)
{
	uint64_t now = clock_us();
	tombstone_expire(d, now);
	if (map_get(d->tombstones.by_key, k->b) || until_us <= now)
		return;
	tombstone_make_room(d);
	struct tombstone *t = mem_zalloc(sizeof *t);
	t->key = *k;
	t->until_us = until_us - now > TOMBSTONE_SECONDS * 1000000ull
	                  ? now + TOMBSTONE_SECONDS * 1000000ull
	                  : until_us;
	map_put(d->tombstones.by_key, k->b, t);
	list_push_back(wheel_at(d, t->until_us / 1000000u), &t->node);
	d->tombstones.n++;
}

int tombstone_has(struct decode *d, const struct attempt_key *k)
{
	const struct tombstone *t = map_get(d->tombstones.by_key, k->b);
	return t && clock_us() < t->until_us;
}

void tombstones_init(struct decode *d)
{
	d->tombstones.by_key = map_new(ATTEMPT_KEY_BYTES);
	d->tombstones.second = clock_us() / 1000000u;
	for (uint32_t i = 0; i < TOMBSTONE_WHEEL; i++)
		list_init(&d->tombstones.wheel[i]);
}

void tombstones_fini(struct decode *d)
{
	for (uint32_t i = 0; i < TOMBSTONE_WHEEL; i++)
		free_second(d, i);
	map_destroy(&d->tombstones.by_key);
}
