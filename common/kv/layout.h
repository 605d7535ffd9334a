/* layout.h - where the bytes of a KV block lie.
 *
 * A pool of N blocks is [layer][block][kv_head][K|V][token][head_dim]: the piece (layer, block) is
 * contiguous, and so is a range of heads of it. Types with scales have them inside, after the
 * values of each (kv_head, K|V): [token] floats; where exactly is the kernels' business
 * (kernels.h), how many bytes that makes is here. Pieces of one layer are neighbours. A layer
 * descriptor covers layers that differ; transport and storage know only (layer, block, byte
 * range). A block out of its pool (in storage, on a wire) is its pieces, layer 0 first. */
#ifndef KV_LAYOUT_H
#define KV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define KV_LAYERS_MAX 256u
#define KV_BLOCK_TOKENS_DEFAULT 64u
#define KV_LAYOUT_TEXT_MAX 64u

/* the numbers are on wires: add at the end */
enum kv_type { KV_BF16, KV_F16, KV_F32, KV_INT8, KV_FP8 };

struct kv_layer {
	uint32_t heads;
	/* per token and head; v_bytes may be 0 (one latent serves as both) */
	uint32_t k_bytes, v_bytes;
	/* per token and head, K's and V's together, beside the values; 0 for types without scales */
	uint32_t scale_bytes;
};

struct kv_layout {
	uint32_t layers, block_tokens;
	enum kv_type type;
	struct kv_layer layer[KV_LAYERS_MAX];
	size_t piece_bytes[KV_LAYERS_MAX];  /* of (layer, one block) */
	size_t before_bytes[KV_LAYERS_MAX]; /* sum of piece_bytes of the layers before */
	size_t block_bytes;                 /* all layers */
};

/* Fills the derived fields of l from layers, block_tokens and layer[]; 0, or ERR_INVALID (a zero,
 * too many, an unknown type, more than 1 GiB a block). On an error the derived fields are not to
 * be used. */
int kv_layout_finish(struct kv_layout *l);
/* Every layer alike. */
int kv_layout_uniform(struct kv_layout *l, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                      uint32_t block_tokens, enum kv_type t);
/* Every layer alike, one latent of `width` elements a token. */
int kv_layout_latent(struct kv_layout *l, uint32_t layers, uint32_t width, uint32_t block_tokens,
                     enum kv_type t);

static inline size_t kv_piece_offset(const struct kv_layout *l, uint32_t blocks, uint32_t layer,
                                     uint32_t block)
{
	return l->before_bytes[layer] * blocks + (size_t)block * l->piece_bytes[layer];
}

size_t kv_type_bytes(enum kv_type t); /* of a value */
/* of what goes with the values of one token and head, of K or of V; 0: nothing does */
size_t kv_type_scale_bytes(enum kv_type t);
const char *kv_type_name(enum kv_type t);                 /* "bf16", "f16", "f32", "int8", "fp8" */
int kv_type_parse(const char *name, enum kv_type *ret_t); /* 0 or ERR_INVALID */
/* "30x3x64:bf16:64": layers x heads x dim : type : block tokens, with a hash of the descriptors (32
 * hex digits) instead of heads x dim where layers differ, or K and V do, or the scales are not the
 * type's. Two daemons may exchange blocks only if these texts are equal. KV_LAYOUT_TEXT_MAX
 * bytes always suffice. */
void kv_layout_text(const struct kv_layout *l, char *out, size_t size);

#endif
