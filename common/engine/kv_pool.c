/* kv_pool.c - this process's part of the KV pool, where each layer lies in it, and the progress
 * board. */
#include "engine/mla.h"
#include "kv/pool.h"
#include "util/check.h"

#include <stdio.h>

int engine_attach_board(struct engine *e, void *board, size_t bytes, struct err *err)
{
	if (e->board.host)
		return err_set(err, ERR_EXISTS, "a progress board of %zu bytes is already attached",
		               e->board.bytes);
	int rc = e->ops->mem_pin(e->dev, board, bytes, &e->board);
	return rc ? engine_device_error(e, rc, "cannot pin the progress board", err) : 0;
}

/* The ranks of a stage share its part if they share memory. */
struct kv_parts engine_pool_parts(const struct engine *e)
{
	return (struct kv_parts){engine_stages(e), e->ops->own_memory ? engine_ranks(e) : 1};
}

uint32_t engine_pool_part(const struct engine *e)
{
	uint32_t ranks = engine_pool_parts(e).ranks;
	return e->stage * ranks + e->rank % ranks;
}

size_t engine_pool_bytes(const struct engine *e, uint32_t blocks)
{
	const struct kv_layout *l = &e->info.kv;
	return kv_part_offset(l, blocks, engine_pool_part(e), engine_pool_parts(e), l->layers, 0);
}

static struct kern_kv_layer pool_layer(const struct engine *e, uint32_t blocks, uint32_t i)
{
	static const enum kern_dtype dtype[] = {[KV_BF16] = KERN_BF16,
	                                        [KV_F16] = KERN_F16,
	                                        [KV_F32] = KERN_F32,
	                                        [KV_INT8] = KERN_I8,
	                                        [KV_FP8] = KERN_F8};
	const struct kv_layout *l = &e->info.kv;
	const struct model_conf *c = &e->conf;
	const struct tp_share *own = &e->shard.kv_heads;
	struct kv_parts parts = engine_pool_parts(e);
	int is_part = parts.ranks > 1; /* of these heads alone */
	size_t head = l->piece_bytes[i] / l->layer[i].heads;
	struct kern_kv_layer kv = {
		.base = kern_at(e->pool.dev, kv_part_offset(l, blocks, engine_pool_part(e), parts, i, 0) +
	                                     (is_part ? 0 : own->begin * head)),
		.block_stride_bytes = is_part ? own->count * head : l->piece_bytes[i],
		.kv_heads = own->count,
		.head_dim = c->mla.kv_rank ? mla_width(c) : c->head_dim,
		.latent = c->mla.kv_rank,
		.block_tokens = l->block_tokens,
		.dtype = dtype[l->type],
		.layer = i,
	};
	CHECK(e->sim || (c->mla.kv_rank ? 1 : 2) * l->layer[i].heads * kern_kv_plane_bytes(&kv) ==
	                    l->piece_bytes[i]);
	return kv;
}

int engine_use_pool(struct engine *e, uint32_t blocks, struct err *err)
{
	struct tp_share own = e->shard.layers;
	for (uint32_t i = own.begin; i < own.begin + own.count; i++)
		e->kv[i] = pool_layer(e, blocks, i);
	e->kv_blocks = blocks;
	return engine_record(e, err);
}

int engine_device_room(struct engine *e, uint64_t *ret_bytes, struct err *err)
{
	struct kern_info device;
	e->pool.dev = e->own.dev; /* any address will do: nothing runs */
	int rc = engine_use_pool(e, 1, err);
	e->ops->info(e->dev, &device);
	engine_drop_programs(e);
	e->pool.dev = (kern_ptr){0};
	*ret_bytes = device.free_bytes / engine_pool_bytes(e, 1) * e->info.kv.block_bytes;
	return rc || device.free_bytes
	           ? rc
	           : err_set(
					 err, ERR_IO,
					 "the device does not report how much of its memory is free: set kv_memory_mb");
}

int engine_pool_room(struct engine *e, uint64_t *ret_bytes, struct err *err)
{
	return e->tp ? ranks_room(e, ret_bytes, err) : engine_device_room(e, ret_bytes, err);
}

int engine_share_pool(struct engine *e, int *ret_fd, struct err *err)
{
	int rc = e->ops->mem_share(e->dev, &e->pool, ret_fd);
	return rc ? engine_device_error(e, rc, "cannot share the KV pool", err) : 0;
}

int engine_alloc_pool(struct engine *e, uint32_t blocks, struct err *err)
{
	/* ranks that share memory map the pool as well */
	enum kern_memory kind = e->opts.pool_shared || !e->ops->own_memory ? KERN_MEM_SHARED
	                                                                   : KERN_MEM_DEVICE;
	int rc = e->ops->mem_new(e->dev, kind, engine_pool_bytes(e, blocks), &e->pool);
	const char *remedy = rc == KERN_ENOMEM
	                         ? " (lower kv_blocks, kv_memory_mb or kv_memory_fraction)"
	                     : rc == KERN_ENOTSUP && e->opts.pool_shared
	                         ? " (set messager and storage to \"none\")"
	                         : "";
	char doing[120];
	snprintf(doing, sizeof doing, "cannot create the KV pool%s", remedy);
	return rc ? engine_device_error(e, rc, doing, err) : 0;
}

/* The descriptors are closed on an error, or if the caller wants none. */
int engine_new_pool(struct engine *e, uint32_t blocks, struct kv_data *ret_data, struct err *err)
{
	if (e->pool.dev.v)
		return err_set(err, ERR_EXISTS, "the KV pool already exists, with %u blocks", e->kv_blocks);
	if (blocks < 1 || blocks == KV_BLOCK_NONE)
		return err_set(err, ERR_INVALID, "KV pool of %u blocks, limits are 1 and %u", blocks,
		               KV_BLOCK_NONE - 1);
	struct kv_data data = {.device = {e->info.device}, .fd = {-1}};
	int rc = engine_alloc_pool(e, blocks, err);
	if (!rc)
		rc = e->tp ? ranks_new_pool(e, blocks, &data, err) : engine_use_pool(e, blocks, err);
	struct kv_parts parts = engine_pool_parts(e);
	if (!rc && ret_data && parts.stages * parts.ranks == 1 && e->pool.kind == KERN_MEM_SHARED &&
	    !(rc = engine_share_pool(e, data.fd, err)))
		data.parts = 1;
	if (!rc && ret_data)
		*ret_data = data;
	else
		kv_data_close(&data);
	return rc;
}

const struct kern_mem *engine_pool(const struct engine *e)
{
	return &e->pool;
}
