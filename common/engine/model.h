/* model.h - the contents of a model file before it is on a device: a description, and tensors by
 * role.
 *
 * Two sources, GGUF and Hugging Face folders, fill the same description. What is special to a
 * family of models (names, quirks, keys) is in its file, family_*.c; what the readers share is in
 * family.h. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include "kernels/ops.h"
#include "kv/layout.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define MODEL_HEAD_DIM_MAX 512u
/* elements of a token's latent and its rotated part together */
#define MODEL_LATENT_MAX 640u
#define MODEL_EOS_MAX 8u
#define MODEL_HIDDEN_MAX (1u << 16)
#define MODEL_FFN_MAX (1u << 20)
#define MODEL_HEADS_MAX 1024u
#define MODEL_CONTEXT_MAX (1u << 24)
#define MODEL_ROPES 2u

enum model_source_kind { MODEL_GGUF, MODEL_HF, MODEL_SOURCES };

/* Roles of tensors. Those up to MODEL_ROLE_LAST_GLOBAL exist once; the others exist in each layer
 * for which model_has_role returns 1. */
enum model_role {
	MODEL_EMBED,
	MODEL_NORM,
	MODEL_HEAD,
	MODEL_ROLE_LAST_GLOBAL = MODEL_HEAD,
	MODEL_ATTN_NORM,
	MODEL_Q,
	MODEL_K,
	MODEL_V,
	MODEL_O,
	MODEL_Q_NORM,
	MODEL_K_NORM,
	MODEL_SINKS,
	MODEL_ATTN_POST_NORM,
	MODEL_FFN_NORM,
	MODEL_GATE,
	MODEL_UP,
	MODEL_DOWN,
	MODEL_FFN_POST_NORM,
	/* MLA; MODEL_Q is used if queries have no rank */
	MODEL_Q_A,
	MODEL_Q_A_NORM,
	MODEL_Q_B,
	MODEL_KV_A,
	MODEL_KV_A_NORM,
	MODEL_KV_B,
	/* experts */
	MODEL_ROUTER,
	MODEL_CORRECTION,
	MODEL_SHARED_GATE,
	MODEL_SHARED_UP,
	MODEL_SHARED_DOWN,
	MODEL_ROLES
};

/* Which layers have a sliding window. BY_PATTERN: those in a list, or all but every n-th; such a
 * model must have a window. */
enum family_window {
	FAMILY_WINDOW_NONE,
	FAMILY_WINDOW_ALL,
	FAMILY_WINDOW_BY_FLAG,
	FAMILY_WINDOW_BY_PATTERN
};
/* A switch in config.json: NULL: never on; FAMILY_ALWAYS: always on; else the key of a boolean. In
 * GGUF files the tensors tell. */
#define FAMILY_ALWAYS ""

/* A role's tensor name that differs from the usual one (model.c); NULL: the usual one. */
struct family_name {
	enum model_role role;
	const char *name[MODEL_SOURCES];
};

/* Matrices whose rows are stored one after another in one tensor. */
struct family_stack {
	const char *name[MODEL_SOURCES];
	uint32_t count;
	enum model_role role[3];
};

/* Parts of an expert. */
enum model_expert_part {
	MODEL_EXPERT_GATE,
	MODEL_EXPERT_UP,
	MODEL_EXPERT_DOWN,
	MODEL_EXPERT_PARTS
};

struct hf_reader;
struct gguf_reader;
struct json_t;
struct model_conf;
struct model_source;
struct model_tensor;

struct family {
	/* general.architecture (NULL: GGUF uses another family's name); model_type of config.json */
	const char *name[MODEL_SOURCES];
	/* GGUF files of llama have q and k permuted for interleaved pairs; Hugging Face folders do
	 * not */
	enum kern_rope_style rope[MODEL_SOURCES];
	enum family_window window;
	/* BY_PATTERN: every n-th layer has full attention, unless the file tells */
	uint32_t window_period;
	/* 1: in GGUF files, the bounds of YaRN's ramp are not rounded to whole pairs */
	int yarn_whole;
	int local_rope; /* layers with a window have another base of their frequencies */
	struct {
		const char *qkv, *o, *mlp;
	} bias;              /* switches */
	const char *qk_norm; /* switch: RMSNorm of each head of q and k before the rotation */
	/* Defaults for config.json without tie_word_embeddings, rope_theta (0: 10000),
	 * partial_rotary_factor (0: 1). */
	int tied;
	double rope_base, rope_part;
	/* Keys of config.json: sizes whose sum is the head size, in place of head_dim; the rotated
	 * size, in place of partial_rotary_factor. */
	const char *head_dim_keys[2], *rope_dims_key;
	struct family_name names[2];
	struct family_stack stacks[2];
	/* Read the keys of this family only; called last, after everything else is read; may be NULL.
	 * Errors are left in the reader. */
	void (*read_gguf)(struct gguf_reader *r, struct model_conf *c);
	void (*read_hf)(struct hf_reader *r, const struct json_t *o, struct model_conf *c);
	/* Hugging Face, if an expert's matrix and bias are not stored in the usual way; else NULL. As
	 * model_expert_get and model_expert_bias_get; the bias's name is without the layer. */
	int (*expert_get)(const struct model_source *src, const struct model_conf *c,
	                  enum model_expert_part part, uint32_t layer, uint32_t expert,
	                  struct model_tensor *ret, struct err *err);
	void (*expert_bias)(enum model_expert_part part, const char **ret_name, uint32_t *ret_first,
	                    uint32_t *ret_step);
};

/* A table of angles: pair i is rotated by position * inv_freq[i]; cos and sin are multiplied by
 * scale. */
struct model_rope {
	float scale;
	float inv_freq[MODEL_HEAD_DIM_MAX / 2]; /* rope_dims / 2 of them */
};

struct model_layer {
	/* number of positions that a row sees, itself included; 0: all before it */
	uint32_t window;
	uint8_t rope; /* index in model_conf.rope */
	/* 1: the feed-forward part is a mixture of experts */
	uint8_t experts;
};

enum model_scoring { MODEL_SOFTMAX, MODEL_SIGMOID };

/* Experts of a layer that has them. The `active` experts with the largest scores (+ correction) are
 * chosen, within `top_groups` of `groups` groups of consecutive experts. Their weights are the
 * scores without correction, divided by max(sum of the chosen, norm_min) + norm_eps if `normalise`,
 * times scale. */
struct model_experts {
	uint32_t count, active; /* count 0: the model is dense */
	/* of one expert; of the shared expert, which all tokens pass, 0: none */
	uint32_t ffn, shared_ffn;
	uint32_t groups, top_groups; /* 1 and 1: no groups */
	enum model_scoring scoring;
	int correction, normalise, bias; /* bias: router and experts have biases */
	float norm_min, norm_eps, scale;
};

/* Multi-head latent attention. */
struct model_mla {
	uint32_t kv_rank; /* 0: the model has no MLA */
	uint32_t q_rank;  /* 0: queries are computed by one product */
	/* sizes within a head: not rotated, rotated, value */
	uint32_t nope, rope, v;
	float norm_eps; /* of the two inner norms */
};

/* All that the engine needs to know. It never asks for the family or the source, except for
 * names. */
struct model_conf {
	const struct family *family;
	enum model_source_kind source;
	char name[128];
	/* head_dim: of q and k; ffn: of dense layers */
	uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
	float norm_eps;
	/* Factors of the embeddings, of q k before the softmax, of what attention and MLP add to the
	 * residual stream, of the logits; 1: none. */
	float embed_scale, attn_scale, residual_scale, logit_scale;
	int tied; /* the head's matrix is the embedding */
	int qkv_bias, o_bias, mlp_bias, qk_norm, post_norms, norm_plus_one;
	int attn_sinks; /* each head has a sink: a logit that joins its softmax */
	enum kern_act act;
	enum kern_rope_style rope_style;
	uint32_t rope_dims, ropes;
	struct model_rope rope[MODEL_ROPES];
	struct model_layer layer[KV_LAYERS_MAX];
	struct model_experts experts;
	struct model_mla mla;
	uint32_t eos[MODEL_EOS_MAX], n_eos;
};

/* What shares a scale in an FP8 weight of a folder. */
enum model_fp8_scales { MODEL_FP8_TENSOR = 1, MODEL_FP8_ROW = 2, MODEL_FP8_BLOCK = 4 };

struct model_tensor {
	const char *name;
	enum kern_dtype dtype;
	uint32_t n, k; /* a vector has n = 1 */
	/* KERN_E4M3: the file's codes alone; see model_fp8.h. NULL: only described */
	const void *data;
	size_t bytes;
	struct {
		const void *data; /* (down, across) of dtype F32, F16 or BF16; NULL: only described */
		enum kern_dtype dtype;
		/* rows and columns that share a scale; scales in a row; the number of the tensor's first
		 * row among those that the scales are for */
		uint32_t rows, columns, across, first;
	} scales; /* of KERN_E4M3 */
	/* converted data, which the caller frees; NULL: data is the file's */
	void *own;
	struct {
		const void *data;
		size_t bytes;
	} made_of[2]; /* if own: bytes of the file that no later tensor is read from */
};

struct model_source {
	enum model_source_kind kind;
	void *file; /* struct gguf or struct safetensors */
	const char *path;
	unsigned fp8_scales; /* enum model_fp8_scales: what config.json allows; 0: no weight in FP8 */
	/* 1: of config.json alone (model_describe), `file` is NULL: every tensor is there in the shape
	 * that the description expects, without data, in this type, or in FP8 as it is usual */
	int described;
	enum kern_dtype type;
};

/* Opens a .gguf file, or a folder with config.json. Outputs are written only on success; the file
 * stays mapped until model_close. */
int model_open(const char *path, struct model_conf *ret_conf, struct model_source *ret_src,
               struct err *err);
/* The same, for what needs no data: `path` may also be a config.json (a name that ends with .json)
 * without its folder's weights. */
int model_describe(const char *path, struct model_conf *ret_conf, struct model_source *ret_src,
                   struct err *err);
void model_close(struct model_source *src);
/* "blk.3.attn_q.weight"; suffix is "weight" or "bias". */
void model_tensor_name(const struct model_conf *c, enum model_role role, uint32_t layer,
                       const char *suffix, char *out, size_t size);
/* 1 if a model of this description has the role's tensor in that layer. */
int model_has_role(const struct model_conf *c, enum model_role role, uint32_t layer);
/* Finds the tensor and checks that it is (n, k). ERR_NOTFOUND, ERR_CORRUPT (another shape) or
 * ERR_UNSUPPORTED (type). */
int model_tensor_get(const struct model_source *src, const char *name, uint32_t n, uint32_t k,
                     struct model_tensor *ret, struct err *err);
/* Finds a role's matrix or vector, or its bias (one element per row of the matrix), with the
 * description's shape; also inside a larger tensor. Errors as above. */
int model_role_get(const struct model_source *src, const struct model_conf *c, enum model_role role,
                   uint32_t layer, struct model_tensor *ret, struct err *err);
int model_bias_get(const struct model_source *src, const struct model_conf *c, enum model_role role,
                   uint32_t layer, struct model_tensor *ret, struct err *err);
/* The same for one expert's matrix in a layer with experts: its own tensor, or its part of a tensor
 * of all experts (GGUF). The caller frees ret->own. */
int model_expert_get(const struct model_source *src, const struct model_conf *c,
                     enum model_expert_part part, uint32_t layer, uint32_t expert,
                     struct model_tensor *ret, struct err *err);
/* Biases of one part of all experts in a layer: value i of expert e is element
 * e * k + first + i * step of (experts, k). */
int model_expert_bias_get(const struct model_source *src, const struct model_conf *c,
                          enum model_expert_part part, uint32_t layer, struct model_tensor *ret,
                          uint32_t *ret_first, uint32_t *ret_step, struct err *err);
/* One of the two parts of MODEL_KV_B from a file that stores them separately, all heads one after
 * another: keys (kv_rank, nope), or values (v, kv_rank). ERR_NOTFOUND if the file does not. */
int model_latent_get(const struct model_source *src, const struct model_conf *c, int value,
                     uint32_t layer, struct model_tensor *ret, struct err *err);
/* The vector that corrects the experts' scores for the choice. */
int model_correction_get(const struct model_source *src, const struct model_conf *c, uint32_t layer,
                         struct model_tensor *ret, struct err *err);
int model_has_tensor(const struct model_source *src, const char *name);
/* Gives the pages of a tensor's data back to the kernel; the mapping stays. */
void model_tensor_drop(const struct model_tensor *t);
/* BLAKE2b-256 of the data that turns text into this model's token ids; missing data counts as
 * empty. */
void model_tokenizer_hash(const struct model_source *src, unsigned char ret[32]);
/* A tensor's entry in either format; shape is row-major, the last dimension is contiguous. */
struct model_entry {
	const char *name, *type;
	uint32_t dims;
	uint64_t shape[4];
	const void *data;
	size_t bytes;
};
/* "128 x 64" */
void model_shape_text(uint32_t dims, const uint64_t shape[4], char *out, size_t size);
size_t model_entries(const struct model_source *src);
void model_entry_at(const struct model_source *src, size_t i, struct model_entry *ret);
/* Shape (n, k) of a role's tensor by the description. */
void model_role_shape(const struct model_conf *c, enum model_role role, uint32_t *ret_n,
                      uint32_t *ret_k);

#endif
