/* map.h - hash map from a fixed-size binary key (1..128 bytes) to a pointer. Keys are copied. Keys
 * that a peer chooses are hashed with SipHash under a key drawn per process, so that nobody can
 * choose collisions. Not thread-safe. */
#ifndef UTIL_MAP_H
#define UTIL_MAP_H

#include <stddef.h>
#include <stdint.h>

struct map;

/* That hash, for tables of another shape: it differs from process to process. */
uint64_t map_hash(const void *p, size_t bytes);

struct map *map_new(size_t key_bytes);
void map_destroy(struct map **m); /* values are the caller's */
size_t map_count(const struct map *m);
void *map_get(const struct map *m, const void *key); /* NULL when absent */
/* Replaces; returns the value that was there before, or NULL. val must not be NULL. */
void *map_put(struct map *m, const void *key, void *val);
/* So that the next map_put needs no memory. 0, or -1: there is none, and nothing has changed. */
int map_make_room(struct map *m);
void *map_remove(struct map *m, const void *key); /* the value, or NULL */
/* Iterate: start with *it = 0; returns 0 at the end. The present entry may be removed, none may
 * be added meanwhile. */
int map_next(const struct map *m, size_t *it, const void **ret_key, void **ret_val);

#endif
