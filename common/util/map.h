/* map.h - hash map from a fixed-size binary key (1..128 bytes) to a pointer. Keys are copied, and
 * hashed by SipHash with a key drawn at random per process, so that a peer that chooses keys cannot
 * choose collisions. Not thread-safe. */
#ifndef UTIL_MAP_H
#define UTIL_MAP_H

#include <stddef.h>
#include <stdint.h>

struct map;

/* The same hash, for other tables; the value differs from process to process. */
uint64_t map_hash(const void *p, size_t bytes);

struct map *map_new(size_t key_bytes);
/* For keys of 8 bytes or more that this process draws at random: their first bytes are the hash. */
struct map *map_new_random_keys(size_t key_bytes);
void map_destroy(struct map **m); /* the caller frees the values */
size_t map_count(const struct map *m);
void *map_get(const struct map *m, const void *key); /* NULL when absent */
/* Adds or replaces. Returns the value that was replaced, or NULL. val must not be NULL. */
void *map_put(struct map *m, const void *key, void *val);
/* Makes room, so that the next map_put needs no memory. 0, or -1: out of memory, m is unchanged. */
int map_make_room(struct map *m);
void *map_remove(struct map *m, const void *key); /* the removed value, or NULL */
/* Iterates: start with *it = 0; returns 0 at the end. The current entry may be removed while
 * iterating; nothing may be added. */
int map_next(const struct map *m, size_t *it, const void **ret_key, void **ret_val);

#endif
