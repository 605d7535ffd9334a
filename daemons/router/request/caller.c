/* caller.c - see caller.h. */
#include "caller.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdlib.h>

struct caller *caller_get(struct map *callers, const void *key, uint64_t id)
{
	struct caller *c = map_get(callers, &key);
	if (!c) {
		c = mem_zalloc(sizeof *c);
		c->key = key;
		text_caller_init(&c->text);
		attempt_caller_init(&c->places, id);
		map_put(callers, &key, c);
	}
	c->requests++;
	return c;
}

void caller_put(struct map *callers, struct caller *c)
{
	if (--c->requests)
		return;
	map_remove(callers, &c->key);
	free(c);
}
