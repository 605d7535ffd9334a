/* map.c - open addressing with tombstones; rehashes when more than 70 % of the slots are full or
 * dead, so that probes stay short. */
#include "util/map.h"
#include "util/check.h"
#include "util/mem.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT_EMPTY, SLOT_FULL, SLOT_DEAD };

struct map {
	size_t key_bytes, slots, count, used; /* used counts full and dead */
	int random_keys;
	unsigned char *state, *keys;
	void **vals;
};

static unsigned char sip_key[crypto_shorthash_KEYBYTES];
static pthread_once_t sip_once = PTHREAD_ONCE_INIT;

static void sip_draw(void)
{
	if (sodium_init() < 0)
		check_fatal("cannot initialise libsodium: no source of random numbers");
	randombytes_buf(sip_key, sizeof sip_key);
}

uint64_t map_hash(const void *p, size_t bytes)
{
	uint64_t h;
	pthread_once(&sip_once, sip_draw);
	crypto_shorthash((unsigned char *)&h, p, bytes, sip_key);
	return h;
}

static void free_slots(struct map *m)
{
	free(m->state);
	free(m->keys);
	free(m->vals);
}

/* Gives m empty slots. -1: out of memory, m is unchanged. */
static int map_alloc(struct map *m, size_t slots)
{
	struct map got = {.key_bytes = m->key_bytes, .slots = slots, .random_keys = m->random_keys};
	got.state = mem_try_array(slots, 1);
	got.keys = mem_try_array(slots, m->key_bytes);
	got.vals = mem_try_array(slots, sizeof *got.vals);
	if (!got.state || !got.keys || !got.vals) {
		free_slots(&got);
		return -1;
	}
	*m = got;
	return 0;
}

static void no_memory(const struct map *m)
{
	check_fatal("out of memory for a map of %zu entries: give the process more, or lower the "
	            "configured sizes",
	            m->count);
}

struct map *map_new(size_t key_bytes)
{
	CHECK(key_bytes >= 1 && key_bytes <= 128);
	pthread_once(&sip_once, sip_draw);
	struct map *m = mem_zalloc(sizeof *m);
	m->key_bytes = key_bytes;
	if (map_alloc(m, 16) < 0)
		no_memory(m);
	return m;
}

struct map *map_new_random_keys(size_t key_bytes)
{
	CHECK(key_bytes >= sizeof(uint64_t));
	struct map *m = map_new(key_bytes);
	m->random_keys = 1;
	return m;
}

void map_destroy(struct map **mp)
{
	struct map *m = *mp;
	if (!m)
		return;
	free_slots(m);
	free(m);
	*mp = NULL;
}

size_t map_count(const struct map *m)
{
	return m->count;
}

/* Slot of the key, or where it would go (first dead or empty slot); *ret_found says which. */
static size_t map_find(const struct map *m, const void *key, int *ret_found)
{
	uint64_t h;
	if (m->random_keys)
		memcpy(&h, key, sizeof h);
	else
		crypto_shorthash((unsigned char *)&h, key, m->key_bytes, sip_key);
	size_t mask = m->slots - 1, i = h & mask, free_at = SIZE_MAX;
	for (;; i = (i + 1) & mask) {
		if (m->state[i] == SLOT_EMPTY) {
			*ret_found = 0;
			return free_at != SIZE_MAX ? free_at : i;
		}
		if (m->state[i] == SLOT_DEAD) {
			if (free_at == SIZE_MAX)
				free_at = i;
		} else if (memcmp(m->keys + i * m->key_bytes, key, m->key_bytes) == 0) {
			*ret_found = 1;
			return i;
		}
	}
}

void *map_get(const struct map *m, const void *key)
{
	int found;
	size_t i = map_find(m, key, &found);
	return found ? m->vals[i] : NULL;
}

static int map_rehash(struct map *m)
{
	struct map old = *m;
	if (map_alloc(m, old.count * 2 >= old.slots / 2 ? old.slots * 2 : old.slots) < 0)
		return -1;
	for (size_t i = 0; i < old.slots; i++)
		if (old.state[i] == SLOT_FULL)
			map_put(m, old.keys + i * old.key_bytes, old.vals[i]);
	free_slots(&old);
	return 0;
}

int map_make_room(struct map *m)
{
	return (m->used + 1) * 10 > m->slots * 7 ? map_rehash(m) : 0;
}

void *map_put(struct map *m, const void *key, void *val)
{
	CHECK(val);
	if (map_make_room(m) < 0)
		no_memory(m);
	int found;
	size_t i = map_find(m, key, &found);
	void *before = found ? m->vals[i] : NULL;
	if (!found) {
		m->used += m->state[i] == SLOT_EMPTY;
		m->count++;
		m->state[i] = SLOT_FULL;
		memcpy(m->keys + i * m->key_bytes, key, m->key_bytes);
	}
	m->vals[i] = val;
	return before;
}

void *map_remove(struct map *m, const void *key)
{
	int found;
	size_t i = map_find(m, key, &found);
	if (!found)
		return NULL;
	m->state[i] = SLOT_DEAD;
	m->count--;
	return m->vals[i];
}

int map_next(const struct map *m, size_t *it, const void **ret_key, void **ret_val)
{
	for (; *it < m->slots; ++*it) {
		if (m->state[*it] != SLOT_FULL)
			continue;
		if (ret_key)
			*ret_key = m->keys + *it * m->key_bytes;
		if (ret_val)
			*ret_val = m->vals[*it];
		++*it;
		return 1;
	}
	return 0;
}
