/* model.h - what a model file says, before it is on a device: a description, and tensors by role.
 *
 * Two sources, GGUF and Hugging Face folders, fill the same description. What one family of models
 * has of its own (names, quirks, keys) is in its file, family_*.c; what readers share, in
 * family.h. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include "kernels/kernels.h"
#include "kv/layout.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define MODEL_HEAD_DIM_MAX 512u
/* of a token's latent and its rotated part together */
#define MODEL_LATENT_MAX 640u
#define MODEL_EOS_MAX 8u
#define MODEL_HIDDEN_MAX (1u << 16)
#define MODEL_FFN_MAX (1u << 20)
#define MODEL_HEADS_MAX 1024u
#define MODEL_CONTEXT_MAX (1u << 24)
#define MODEL_ROPES 2u

enum model_source_kind { MODEL_GGUF, MODEL_HF, MODEL_SOURCES };

/* Roles of tensors. Those up to MODEL_ROLE_LAST_GLOBAL exist once, the others in each layer that
 * model_has_role tells. */
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
	/* MLA; MODEL_Q where q has no rank */
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

/* Which layers see a window of positions only. BY_PATTERN: those of a list, or all but every n-th;
 * such a model cannot be without a window. */
enum family_window {
	FAMILY_WINDOW_NONE,
	FAMILY_WINDOW_ALL,
	FAMILY_WINDOW_BY_FLAG,
	FAMILY_WINDOW_BY_PATTERN
};
/* A switch of config.json: NULL never, FAMILY_ALWAYS always, else the key of a boolean. GGUF
 * shows by its tensors. */
#define FAMILY_ALWAYS ""

/* Another name for a role's tensor than the usual one (model.c); NULL: the usual one. */
struct family_name {
	enum model_role role;
	const char *name[MODEL_SOURCES];
};

/* Matrices whose rows lie one after the other in one tensor. */
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
	/* general.architecture (NULL: its files say another family's); model_type of config.json */
	const char *name[MODEL_SOURCES];
	/* a GGUF llama has q and k permuted for interleaved pairs; Hugging Face has not */
	enum kern_rope_style rope[MODEL_SOURCES];
	enum family_window window;
	uint32_t window_period; /* BY_PATTERN: every n-th layer sees all, unless the file says */
	/* a GGUF file's YaRN ramp does not begin and end at whole pairs */
	int yarn_whole;
	int local_rope; /* layers with a window have frequencies of their own base */
	struct {
		const char *qkv, *o, *mlp;
	} bias;              /* switches */
	const char *qk_norm; /* switch: RMSNorm of each head of q and k before the rotation */
	/* What a config.json means that has no tie_word_embeddings, rope_theta (0: 10000),
	 * partial_rotary_factor (0: 1). */
	int tied;
	double rope_base, rope_part;
	/* Keys of config.json: sizes that add up to a head's, in place of head_dim; the rotated size,
	 * in place of a part of it. */
	const char *head_dim_keys[2], *rope_dims_key;
	struct family_name names[2];
	struct family_stack stacks[2];
	/* What only this family says: called last, when all else is read; may be NULL. Errors are left
	 * in the reader. */
	void (*read_gguf)(struct gguf_reader *r, struct model_conf *c);
	void (*read_hf)(struct hf_reader *r, const struct json_t *o, struct model_conf *c);
	/* Hugging Face, where an expert's matrix and bias are otherwise than usual, or NULL: as
	 * model_expert_get and model_expert_bias_get, without layer. */
	int (*expert_get)(const struct model_source *src, const struct model_conf *c,
	                  enum model_expert_part part, uint32_t layer, uint32_t expert,
	                  struct model_tensor *ret, struct err *err);
	void (*expert_bias)(enum model_expert_part part, const char **ret_name, uint32_t *ret_first,
	                    uint32_t *ret_step);
};

/* A table of angles: position * inv_freq[i] turns pair i; cos and sin are multiplied by scale. */
struct model_rope {
	float scale;
	float inv_freq[MODEL_HEAD_DIM_MAX / 2]; /* rope_dims / 2 of them */
};

struct model_layer {
	/* positions that a row sees, itself included; 0: all before it */
	uint32_t window;
	uint8_t rope; /* index in model_conf.rope */
	/* 1: the feed-forward part is a mixture of experts */
	uint8_t experts;
};

enum model_scoring { MODEL_SOFTMAX, MODEL_SIGMOID };

/* Experts of a layer that has them. Chosen are the `active` largest scores (+ correction), in
 * `top_groups` of `groups` runs of experts; a weight is the score without the correction,
 * divided by max(sum of the chosen, norm_min) + norm_eps if `normalise`, times scale. */
struct model_experts {
	uint32_t count, active; /* 0: the model is dense */
	/* of one expert; of the one that all tokens pass, 0: none */
	uint32_t ffn, shared_ffn;
	uint32_t groups, top_groups; /* 1 and 1: no groups */
	enum model_scoring scoring;
	int correction, normalise, bias; /* bias: router and experts have biases */
	float norm_min, norm_eps, scale;
};

/* Multi-head latent attention. */
struct model_mla {
	uint32_t kv_rank; /* 0: none of it */
	uint32_t q_rank;  /* 0: q comes by one product */
	/* sizes within a head: not rotated, rotated, value */
	uint32_t nope, rope, v;
	float norm_eps; /* of the two inner norms */
};

/* All that the engine needs to know; it never asks the family or the source, except for names. */
struct model_conf {
	const struct family *family;
	enum model_source_kind source;
	char name[128];
	/* head_dim: of q and k; ffn: of dense layers */
	uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
	float norm_eps;
	/* Of embeddings, of q k before the softmax, of what attention and MLP add to the residual
	 * stream, of the logits; 1: as they are. */
	float embed_scale, attn_scale, residual_scale, logit_scale;
	int tied; /* the head is the embedding */
	int qkv_bias, o_bias, mlp_bias, qk_norm, post_norms, norm_plus_one;
	int attn_sinks; /* a logit of each head that joins its softmax */
	enum kern_act act;
	enum kern_rope_style rope_style;
	uint32_t rope_dims, ropes;
	struct model_rope rope[MODEL_ROPES];
	struct model_layer layer[KV_LAYERS_MAX];
	struct model_experts experts;
	struct model_mla mla;
	uint32_t eos[MODEL_EOS_MAX], n_eos;
};

struct model_tensor {
	const char *name;
	enum kern_dtype dtype;
	uint32_t n, k; /* a vector has n = 1 */
	const void *data;
	size_t bytes;
	/* data that was made, for the caller to free; NULL: the file's */
	void *own;
	struct {
		const void *data;
		size_t bytes;
	} made_of[2]; /* own: bytes of the file that are not read for another tensor */
};

struct model_source {
	enum model_source_kind kind;
	void *file; /* struct gguf or struct safetensors */
	const char *path;
};

/* A .gguf file, or a folder with config.json. Both outputs only on success; the source's mapping
 * stays until model_close. */
int model_open(const char *path, struct model_conf *ret_conf, struct model_source *ret_src,
               struct err *err);
void model_close(struct model_source *src);
/* "blk.3.attn_q.weight"; suffix is "weight" or "bias". */
void model_tensor_name(const struct model_conf *c, enum model_role role, uint32_t layer,
                       const char *suffix, char *out, size_t size);
/* Whether the description asks for the role's tensor, in that layer. */
int model_has_role(const struct model_conf *c, enum model_role role, uint32_t layer);
/* Finds the tensor and checks that it is (n, k). ERR_NOTFOUND, ERR_CORRUPT (another shape) or
 * ERR_UNSUPPORTED (type). */
int model_tensor_get(const struct model_source *src, const char *name, uint32_t n, uint32_t k,
                     struct model_tensor *ret, struct err *err);
/* A role's matrix or vector, or its bias (a vector of the matrix's rows), of the description's
 * shape; also where a larger tensor holds it. Errors as above. */
int model_role_get(const struct model_source *src, const struct model_conf *c, enum model_role role,
                   uint32_t layer, struct model_tensor *ret, struct err *err);
int model_bias_get(const struct model_source *src, const struct model_conf *c, enum model_role role,
                   uint32_t layer, struct model_tensor *ret, struct err *err);
/* The same of expert `expert` in a layer that has them: its own tensor, or its part of one that
 * holds all experts' (GGUF). The vector that corrects the scores for the choice. */
int model_expert_get(const struct model_source *src, const struct model_conf *c,
                     enum model_expert_part part, uint32_t layer, uint32_t expert,
                     struct model_tensor *ret, struct err *err);
/* Biases of a part of all experts in a layer: value i of expert e is element e * k + first + i *
 * step of (experts, k). */
int model_expert_bias_get(const struct model_source *src, const struct model_conf *c,
                          enum model_expert_part part, uint32_t layer, struct model_tensor *ret,
                          uint32_t *ret_first, uint32_t *ret_step, struct err *err);
/* One of the two parts of MODEL_KV_B where a file has them apart, all heads one after the other:
 * keys (kv_rank, nope), values (v, kv_rank). ERR_NOTFOUND if it has not. */
int model_latent_get(const struct model_source *src, const struct model_conf *c, int value,
                     uint32_t layer, struct model_tensor *ret, struct err *err);
int model_correction_get(const struct model_source *src, const struct model_conf *c, uint32_t layer,
                         struct model_tensor *ret, struct err *err);
int model_has_tensor(const struct model_source *src, const char *name);
/* Gives the pages of a tensor's data back to the kernel; the mapping stays. */
void model_tensor_drop(const struct model_tensor *t);
/* BLAKE2b-256 of what turns text into this model's token ids; of nothing when the source says
 * none. */
void model_tokenizer_hash(const struct model_source *src, unsigned char ret[32]);
/* What both formats say about a tensor; dims are row-major, the last is contiguous. */
struct model_entry {
	const char *name, *type;
	uint32_t dims;
	uint64_t shape[4];
	const void *data;
	size_t bytes;
};
size_t model_entries(const struct model_source *src);
void model_entry_at(const struct model_source *src, size_t i, struct model_entry *ret);
/* Shape (n, k) that the description asks of a role. */
void model_role_shape(const struct model_conf *c, enum model_role role, uint32_t *ret_n,
                      uint32_t *ret_k);

#endif
