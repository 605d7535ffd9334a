/* layout.h - where the bytes of a KV block lie.
 *
 * A pool of N blocks is [layer][block][kv_head][K|V][token][head_dim]: the piece (layer, block) is
 * contiguous, so is a range of its heads, and the pieces of one layer lie next to each other. For
 * types with scales, [token] floats follow the values of each (kv_head, K|V); tensor.h defines
 * their exact place, this file only their size. Layers may differ: each has a descriptor. Transport
 * and storage know only (layer, block, byte range). Outside its pool (in storage, on the network) a
 * block is its pieces one after another, layer 0 first. */
#ifndef KV_LAYOUT_H
#define KV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define KV_LAYERS_MAX 256u
#define KV_LAYOUT_TEXT_MAX 64u

/* the numbers are part of protocols: add at the end */
enum kv_type { KV_BF16, KV_F16, KV_F32, KV_INT8, KV_FP8 };

struct kv_layer {
	uint32_t heads;
	/* per token and head; v_bytes is 0 if one latent vector serves as both K and V */
	uint32_t k_bytes, v_bytes;
	/* per token and head, K and V together, not in k_bytes or v_bytes; 0 for types without
	 * scales */
	uint32_t scale_bytes;
};

struct kv_layout {
	uint32_t layers, block_tokens;
	enum kv_type type;
	struct kv_layer layer[KV_LAYERS_MAX];
	size_t piece_bytes[KV_LAYERS_MAX];  /* of (layer, one block) */
	size_t before_bytes[KV_LAYERS_MAX]; /* sum of piece_bytes of all lower layers */
	size_t block_bytes;                 /* all layers */
};

/* Computes the derived fields of l from layers, block_tokens and layer[]. 0, or ERR_INVALID (a
 * zero, too many layers, an unknown type, more than 1 GiB per block), which leaves them
 * undefined. */
int kv_layout_finish(struct kv_layout *l);
/* A finished layout whose layers are all the same. */
int kv_layout_uniform(struct kv_layout *l, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                      uint32_t block_tokens, enum kv_type t);
/* The same with one latent vector of `width` elements per token instead of K and V (MLA). */
int kv_layout_latent(struct kv_layout *l, uint32_t layers, uint32_t width, uint32_t block_tokens,
                     enum kv_type t);

static inline size_t kv_piece_offset(const struct kv_layout *l, uint32_t blocks, uint32_t layer,
                                     uint32_t block)
{
	return l->before_bytes[layer] * blocks + (size_t)block * l->piece_bytes[layer];
}

/* A pool can be divided among stages (pipeline parallelism) and ranks (tensor parallelism). Part
 * stage * ranks + r has the layers [kv_first_layer(stage), kv_first_layer(stage + 1)), and of each
 * of them the heads [heads * r / ranks, heads * (r + 1) / ranks), as a pool of those alone:
 * [its layer][block][its heads][K|V] ... With a multiple of the heads, each head is in
 * kv_layout_copies consecutive parts, which have the same bytes; a latent, the one head of its
 * layout, is in all parts of its stage. */
struct kv_parts {
	uint32_t stages, ranks;
};
static inline uint32_t kv_first_layer(const struct kv_layout *l, uint32_t stage, uint32_t stages)
{
	return (uint32_t)((uint64_t)l->layers * stage / stages);
}
/* 1 if the layout can be divided so: each stage has a layer; its layers have the same number of
 * heads, and `ranks` is at most that number or a multiple of it. */
int kv_layout_divides(const struct kv_layout *l, struct kv_parts parts);
/* For such layouts. Parts that have the same head: 1, or ranks / heads. */
uint32_t kv_layout_copies(const struct kv_layout *l, struct kv_parts parts);
/* Offset of the piece (layer, block) in a part of a pool of `blocks` blocks, for a layer that the
 * part has; layer = layers, block 0: the part's size. */
uint64_t kv_part_offset(const struct kv_layout *l, uint32_t blocks, uint32_t part,
                        struct kv_parts parts, uint32_t layer, uint32_t block);
/* Where byte `at` of the whole pool is: the first part that has it, and the offset there and in
 * the other copies. Returns how many bytes from it on are contiguous in that part. */
uint64_t kv_part_find(const struct kv_layout *l, uint32_t blocks, struct kv_parts parts,
                      uint64_t at, uint32_t *ret_part, uint64_t *ret_at);

size_t kv_type_bytes(enum kv_type t); /* of one value */
/* of the scale of one token and head, of K or of V; 0: the type has none */
size_t kv_type_scale_bytes(enum kv_type t);
const char *kv_type_name(enum kv_type t);                 /* "bf16", "f16", "f32", "int8", "fp8" */
int kv_type_parse(const char *name, enum kv_type *ret_t); /* 0 or ERR_INVALID */
/* "30x3x64:bf16:64": layers x heads x dim : type : block tokens. A hash of the descriptors (32 hex
 * digits) replaces heads x dim if layers differ, K and V differ, or the scales are not the type's
 * default. Two daemons may exchange blocks only if their texts are equal. KV_LAYOUT_TEXT_MAX bytes
 * always suffice. */
void kv_layout_text(const struct kv_layout *l, char *out, size_t size);

#endif
