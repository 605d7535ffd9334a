/* layout.c - the arithmetic of layout.h. Shapes may come from a file or a peer, so operands are
 * checked before each multiplication; nothing here is fatal. */
#include "kv/layout.h"
#include "util/err.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#define BLOCK_BYTES_MAX ((uint64_t)1 << 30)

static const struct {
	const char *name;
	size_t bytes, scale_bytes;
} types[] = {[KV_BF16] = {"bf16", 2, 0},
             [KV_F16] = {"f16", 2, 0},
             [KV_F32] = {"f32", 4, 0},
             [KV_INT8] = {"int8", 1, 4},
             [KV_FP8] = {"fp8", 1, 4}};
#define TYPES (sizeof types / sizeof *types)

size_t kv_type_bytes(enum kv_type t)
{
	return (size_t)t < TYPES ? types[t].bytes : 0;
}

size_t kv_type_scale_bytes(enum kv_type t)
{
	return (size_t)t < TYPES ? types[t].scale_bytes : 0;
}

const char *kv_type_name(enum kv_type t)
{
	return (size_t)t < TYPES ? types[t].name : "?";
}

int kv_type_parse(const char *name, enum kv_type *ret_t)
{
	for (size_t i = 0; i < TYPES; i++)
		if (strcmp(name, types[i].name) == 0) {
			*ret_t = (enum kv_type)i;
			return 0;
		}
	return ERR_INVALID;
}

/* Bytes of one (layer, block); 0 if the layer's shape is invalid. */
static uint64_t piece_bytes(const struct kv_layer *d, uint32_t block_tokens)
{
	if (!d->heads || !d->k_bytes)
		return 0;
	uint64_t token_head = (uint64_t)d->k_bytes + d->v_bytes + d->scale_bytes;
	if (token_head > BLOCK_BYTES_MAX / d->heads)
		return 0;
	uint64_t token = token_head * d->heads;
	return token <= BLOCK_BYTES_MAX / block_tokens ? token * block_tokens : 0;
}

int kv_layout_finish(struct kv_layout *l)
{
	if (l->layers < 1 || l->layers > KV_LAYERS_MAX || l->block_tokens < 1 ||
	    !kv_type_bytes(l->type))
		return ERR_INVALID;
	uint64_t sum = 0;
	for (uint32_t i = 0; i < l->layers; i++) {
		uint64_t bytes = piece_bytes(&l->layer[i], l->block_tokens);
		if (!bytes || sum + bytes > BLOCK_BYTES_MAX)
			return ERR_INVALID;
		l->piece_bytes[i] = bytes;
		l->before_bytes[i] = sum;
		sum += bytes;
	}
	l->block_bytes = sum;
	return 0;
}

/* --- divided pools ------------------------------------------------------- */

int kv_layout_divides(const struct kv_layout *l, struct kv_parts parts)
{
	uint32_t heads = l->layer[0].heads, ranks = parts.ranks;
	if (!ranks || !parts.stages || parts.stages > l->layers)
		return 0;
	for (uint32_t i = 1; ranks > 1 && i < l->layers; i++)
		if (l->layer[i].heads != heads)
			return 0;
	return ranks <= heads || ranks % heads == 0;
}

uint32_t kv_layout_copies(const struct kv_layout *l, struct kv_parts parts)
{
	return parts.ranks > l->layer[0].heads ? parts.ranks / l->layer[0].heads : 1;
}

static uint32_t first_of(uint32_t items, uint32_t share, uint32_t shares)
{
	return (uint32_t)((uint64_t)items * share / shares);
}

/* The last share whose first item is not behind this one. */
static uint32_t share_of(uint64_t item, uint32_t items, uint32_t shares)
{
	return (uint32_t)(((item + 1) * shares + items - 1) / items - 1);
}

static uint64_t before_layer(const struct kv_layout *l, uint32_t layer)
{
	return layer == l->layers ? l->block_bytes : l->before_bytes[layer];
}

/* What this part has of some bytes of whole layers. All layers have the same heads, so it has the
 * same share of each. */
static uint64_t own_bytes(const struct kv_layout *l, uint32_t part, struct kv_parts parts,
                          uint64_t bytes)
{
	uint32_t heads = l->layer[0].heads, copies = kv_layout_copies(l, parts),
			 shares = parts.ranks / copies, share = part % parts.ranks / copies;
	if (shares == 1)
		return bytes;
	return bytes / heads * (first_of(heads, share + 1, shares) - first_of(heads, share, shares));
}

uint64_t kv_part_offset(const struct kv_layout *l, uint32_t blocks, uint32_t part,
                        struct kv_parts parts, uint32_t layer, uint32_t block)
{
	uint32_t stage = part / parts.ranks, first = kv_first_layer(l, stage, parts.stages);
	if (layer == l->layers)
		layer = kv_first_layer(l, stage + 1, parts.stages);
	uint64_t piece = layer < l->layers ? l->piece_bytes[layer] : 0;
	return own_bytes(l, part, parts, before_layer(l, layer) - before_layer(l, first)) * blocks +
	       own_bytes(l, part, parts, piece) * block;
}

static uint32_t layer_at(const struct kv_layout *l, uint32_t blocks, uint64_t at)
{
	uint32_t low = 0, end = l->layers;
	while (end - low > 1) {
		uint32_t mid = low + (end - low) / 2;
		if ((uint64_t)l->before_bytes[mid] * blocks <= at)
			low = mid;
		else
			end = mid;
	}
	return low;
}

uint64_t kv_part_find(const struct kv_layout *l, uint32_t blocks, struct kv_parts parts,
                      uint64_t at, uint32_t *ret_part, uint64_t *ret_at)
{
	uint32_t heads = l->layer[0].heads, layer = layer_at(l, blocks, at),
			 copies = kv_layout_copies(l, parts), shares = parts.ranks / copies,
			 stage = share_of(layer, l->layers, parts.stages);
	if (shares == 1) {
		uint64_t first = before_layer(l, kv_first_layer(l, stage, parts.stages)) * blocks,
				 end = before_layer(l, kv_first_layer(l, stage + 1, parts.stages)) * blocks;
		*ret_part = stage * parts.ranks;
		*ret_at = at - first;
		return end - at;
	}
	uint64_t in_layer = at - (uint64_t)l->before_bytes[layer] * blocks,
			 piece = l->piece_bytes[layer], head_bytes = piece / heads, block = in_layer / piece,
			 in_piece = in_layer % piece;
	uint32_t share = share_of(in_piece / head_bytes, heads, shares);
	*ret_part = stage * parts.ranks + share * copies;
	*ret_at = kv_part_offset(l, blocks, *ret_part, parts, layer, (uint32_t)block) + in_piece -
	          first_of(heads, share, shares) * head_bytes;
	return first_of(heads, share + 1, shares) * head_bytes - in_piece;
}

static int fill_uniform(struct kv_layout *l, uint32_t layers, struct kv_layer each,
                        uint32_t block_tokens, enum kv_type t)
{
	memset(l, 0, sizeof *l);
	l->layers = layers;
	l->block_tokens = block_tokens;
	l->type = t;
	for (uint32_t i = 0; i < layers; i++)
		l->layer[i] = each;
	return kv_layout_finish(l);
}

int kv_layout_uniform(struct kv_layout *l, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                      uint32_t block_tokens, enum kv_type t)
{
	size_t unit = kv_type_bytes(t);
	if (layers > KV_LAYERS_MAX || !unit || head_dim > UINT32_MAX / unit)
		return ERR_INVALID;
	uint32_t bytes = head_dim * (uint32_t)unit, scale = (uint32_t)kv_type_scale_bytes(t);
	return fill_uniform(l, layers,
	                    (struct kv_layer){.heads = kv_heads,
	                                      .k_bytes = bytes,
	                                      .v_bytes = bytes,
	                                      .scale_bytes = 2 * scale},
	                    block_tokens, t);
}

int kv_layout_latent(struct kv_layout *l, uint32_t layers, uint32_t width, uint32_t block_tokens,
                     enum kv_type t)
{
	size_t unit = kv_type_bytes(t);
	if (layers > KV_LAYERS_MAX || !unit || width > UINT32_MAX / unit)
		return ERR_INVALID;
	uint32_t scale = (uint32_t)kv_type_scale_bytes(t);
	return fill_uniform(
		l, layers,
		(struct kv_layer){.heads = 1, .k_bytes = width * (uint32_t)unit, .scale_bytes = scale},
		block_tokens, t);
}

static int is_plain(const struct kv_layout *l)
{
	const struct kv_layer *a = &l->layer[0];
	if (a->k_bytes != a->v_bytes || a->scale_bytes != 2 * kv_type_scale_bytes(l->type) ||
	    a->k_bytes % kv_type_bytes(l->type))
		return 0;
	for (uint32_t i = 1; i < l->layers; i++)
		if (memcmp(a, &l->layer[i], sizeof *a) != 0)
			return 0;
	return 1;
}

static void add_le32(crypto_generichash_state *h, uint32_t v)
{
	unsigned char b[4] = {(unsigned char)v, (unsigned char)(v >> 8), (unsigned char)(v >> 16),
	                      (unsigned char)(v >> 24)};
	crypto_generichash_update(h, b, sizeof b);
}

/* 128-bit hash of the layer descriptors, the same on every host. */
static void shape_hash(const struct kv_layout *l, char hex[33])
{
	unsigned char sum[16];
	crypto_generichash_state h;
	crypto_generichash_init(&h, NULL, 0, sizeof sum);
	for (uint32_t i = 0; i < l->layers; i++) {
		add_le32(&h, l->layer[i].heads);
		add_le32(&h, l->layer[i].k_bytes);
		add_le32(&h, l->layer[i].v_bytes);
		add_le32(&h, l->layer[i].scale_bytes);
	}
	crypto_generichash_final(&h, sum, sizeof sum);
	sodium_bin2hex(hex, 33, sum, sizeof sum);
}

void kv_layout_text(const struct kv_layout *l, char *out, size_t size)
{
	char shape[40];
	if (is_plain(l))
		snprintf(shape, sizeof shape, "%ux%zu", l->layer[0].heads,
		         l->layer[0].k_bytes / kv_type_bytes(l->type));
	else
		shape_hash(l, shape);
	snprintf(out, size, "%ux%s:%s:%u", l->layers, shape, kv_type_name(l->type), l->block_tokens);
}
