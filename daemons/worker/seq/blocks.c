/* blocks.c - see blocks.h. */
#include "blocks.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define SPARE_BLOCKS 16u /* capacity beyond what is asked for: a sequence grows */
#define SPARE_HASHES 64u

void seq_blocks_fini(struct seq_blocks *b)
{
	free(b->hash);
	free(b->block);
	b->hash = NULL;
	b->block = NULL;
}

int seq_blocks_hash(struct seq_blocks *b, const struct worker *w, const struct request_copy *req,
                    uint32_t max_tokens)
{
	uint32_t bt = w->info->kv.block_tokens, full = req->n_tokens / bt;
	uint32_t some = (max_tokens + bt - 1) / bt, left = full - b->n_hashes;
	uint32_t end = left > some ? b->n_hashes + some : full;
	if (full > b->hash_capacity) {
		b->hash_capacity = full + SPARE_HASHES;
		b->hash = mem_grow(b->hash, b->hash_capacity, sizeof *b->hash);
	}
	struct kv_hash root = w->root;
	if (req->has_salt && !b->n_hashes)
		kv_hash_salt(&w->root, req->cache_salt, &root);
	for (; b->n_hashes < end; b->n_hashes++)
		kv_hash_block(b->n_hashes ? &b->hash[b->n_hashes - 1] : &root,
		              req->tokens + (size_t)b->n_hashes * bt, bt, &b->hash[b->n_hashes]);
	return b->n_hashes == full;
}

static void blocks_reserve(struct seq_blocks *b, uint32_t n)
{
	if (n <= b->capacity)
		return;
	b->capacity = n + SPARE_BLOCKS;
	b->block = mem_grow(b->block, b->capacity, sizeof *b->block);
}

int seq_blocks_take(struct seq_blocks *b, const struct worker *w, const struct request_copy *req,
                    uint32_t may_match, enum kv_state state, seq_blocks_room room, void *arg)
{
	uint32_t need = worker_blocks_for(w, req->n_tokens);
	blocks_reserve(b, need);
	/* One that cannot fit, however much of it is cached, is found out without touching the index:
	 * it is asked for often. */
	if (room && !room(arg, need - kv_pool_probe(w->pool, b->hash, may_match)))
		return 0;
	uint32_t matched = kv_pool_match(w->pool, b->hash, may_match, &req->id, b->block);
	if ((room && !room(arg, need - matched)) ||
	    kv_pool_take(w->pool, need - matched, state, &req->id, b->block + matched) < 0) {
		kv_pool_release(w->pool, b->block, matched);
		return 0;
	}
	b->n = need;
	b->published = matched;
	return 1;
}

int seq_blocks_add(struct seq_blocks *b, const struct worker *w, const struct request_copy *req)
{
	blocks_reserve(b, b->n + 1);
	if (kv_pool_take(w->pool, 1, KV_HELD, &req->id, &b->block[b->n]) < 0)
		return 0;
	b->n++;
	return 1;
}

static void publish_next(struct seq_blocks *b, const struct worker *w)
{
	uint32_t i = b->published;
	kv_pool_publish(w->pool, b->block[i], &b->hash[i], i ? &b->hash[i - 1] : NULL);
	b->published = i + 1;
}

void seq_blocks_publish(struct seq_blocks *b, const struct worker *w, uint32_t full)
{
	while (b->published < full && b->published < b->n_hashes)
		publish_next(b, w);
}

void seq_blocks_publish_read(struct seq_blocks *b, const struct worker *w, unsigned tier)
{
	uint32_t block = b->block[b->published];
	publish_next(b, w);
	kv_pool_set_stored(w->pool, block, atomic_load(&w->region.generations[block]), tier);
}

void seq_blocks_release(struct seq_blocks *b, const struct worker *w)
{
	if (b->n)
		kv_pool_release(w->pool, b->block, b->n);
	b->n = 0;
}

uint32_t seq_blocks_common(const struct seq_blocks *a, const struct seq_blocks *b, uint32_t most)
{
	uint32_t low = 0, high = a->n_hashes < b->n_hashes ? a->n_hashes : b->n_hashes;
	if (high > most)
		high = most;
	/* a hash covers all tokens before it: equal at one place, equal at all places before */
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (memcmp(&a->hash[mid], &b->hash[mid], sizeof *a->hash) == 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}
