/* family.h - shared by the files of the model families (family_*.c): readers of GGUF metadata and
 * of config.json, and rotary tables.
 *
 * A reader keeps the first error, with file, key, what was found and what was expected. After an
 * error its functions still return usable values: within the limits, or `absent`. */
#ifndef ENGINE_FAMILY_H
#define ENGINE_FAMILY_H

#include "engine/model.h"
#include "format/gguf.h"

#include <jansson.h>

extern const struct family family_llama, family_mistral, family_qwen2, family_qwen3;
extern const struct family family_qwen3_moe, family_ernie4_5, family_ernie4_5_moe, family_gemma3;
extern const struct family family_glm4_moe, family_deepseek_v3, family_granite, family_phi3;
extern const struct family family_gpt_oss;

/* Finds a family by its name in that format; NULL: err lists the known names. */
const struct family *family_find(enum model_source_kind kind, const char *name, size_t len,
                                 struct err *err);
/* Sets a description's defaults, before any key changes them; family, source and sizes are
 * known. */
void family_defaults(struct model_conf *c);
/* Once each; those beyond MODEL_EOS_MAX or outside the vocabulary are dropped. */
void model_add_eos(struct model_conf *c, int64_t id);

/* Outputs as in model_open; the caller closes src->file, also after an error. */
int model_gguf_open(const char *path, struct model_conf *c, struct model_source *src,
                    struct err *err);
int model_hf_open(const char *path, struct model_conf *c, struct model_source *src,
                  struct err *err);
/* Of config.json alone, which is `path`. */
int model_hf_describe(const char *path, struct model_conf *c, struct model_source *src,
                      struct err *err);

/* --- GGUF: keys are given without the architecture's prefix -------------- */

struct gguf_reader {
	struct gguf *g;
	const struct model_source *src;
	const char *arch;
	struct err *err;
	int rc;
};

void meta_fail(struct gguf_reader *r, const char *key, double found, const char *expected);
int meta_has(const struct gguf_reader *r, const char *key);
/* min .. max. If `absent` is out of this range, the key is required. */
uint32_t meta_u32(struct gguf_reader *r, const char *key, uint32_t min, uint32_t max,
                  uint32_t absent);
/* Greater than `above`, at most 1e30. If `absent` is out of this range, the key is required. */
double meta_number(struct gguf_reader *r, const char *key, double above, double absent);
int meta_bool(struct gguf_reader *r, const char *key, int absent);
/* Reads the keys of experts, which all families share. Which layers have experts is found by their
 * tensors. */
void meta_experts(struct gguf_reader *r, struct model_conf *c, enum model_scoring scoring_absent);

/* --- config.json: null counts as absent, as in transformers -------------- */

struct hf_reader {
	const char *path; /* of the file */
	const char *in;   /* the object with the keys, "a.b."; NULL: the whole file */
	struct err *err;
	int rc;
};

const json_t *hf_get(const json_t *o, const char *key);
void hf_fail(struct hf_reader *r, const char *key, const json_t *found, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* min .. max; hf_may_u32 returns `absent` if the key is missing, hf_need_u32 fails. */
uint32_t hf_may_u32(struct hf_reader *r, const json_t *o, const char *key, uint32_t min,
                    uint32_t max, uint32_t absent);
uint32_t hf_need_u32(struct hf_reader *r, const json_t *o, const char *key, uint32_t min,
                     uint32_t max);
/* Greater than `above`, at most 1e30. */
double hf_may_number(struct hf_reader *r, const json_t *o, const char *key, double above,
                     double absent);
double hf_need_number(struct hf_reader *r, const json_t *o, const char *key, double above);
int hf_may_bool(struct hf_reader *r, const json_t *o, const char *key, int absent);
/* The key must be absent or have this value, the only one supported. */
void hf_expect(struct hf_reader *r, const json_t *o, const char *key, const char *word);
/* The rotary parameters of layers with full attention; NULL if there are none. */
const json_t *hf_rope_parameters(struct hf_reader *r, const json_t *o);
/* Read the windows, then the rotary tables (model_hf_rope.c). Return r->rc. */
int hf_read_windows(struct hf_reader *r, const json_t *o, struct model_conf *c);
int hf_read_rope(struct hf_reader *r, const json_t *o, struct model_conf *c);
/* DeepSeek-V3's keys of experts (family_deepseek_v3.c), which other families use too; and what it
 * adds to a sum of weights. */
#define DEEPSEEK_NORM_EPS 1e-20f
void hf_deepseek_experts(struct hf_reader *r, const json_t *o, struct model_conf *c);

/* --- rotary tables (model_rope.c) ---------------------------------------- */

/* Sets the frequencies base^(-2 i / dims); the others modify those in r, yarn also its scale. */
void model_rope_default(struct model_rope *r, uint32_t dims, double base);
void model_rope_linear(struct model_rope *r, uint32_t dims, double factor);
void model_rope_llama3(struct model_rope *r, uint32_t dims, double factor, double low, double high,
                       double original);
struct model_yarn {
	double base, factor, original, beta_fast, beta_slow;
	double attention_factor; /* factor of cos and sin */
	int truncate;
};
void model_rope_yarn(struct model_rope *r, uint32_t dims, const struct model_yarn *y);
/* A file with stretched positions (linear, yarn) may give the context before stretching. Then the
 * original length times the factor counts, as in vLLM. original 0: the given one; Gemma 3 gives
 * the stretched one. */
void model_rope_stretch(struct model_conf *c, double original, double factor);
/* 0.1 m ln(factor) + 1 */
double model_rope_mscale(double factor, double m);
/* LongRoPE: 1 if the divisors for long contexts apply; the scale of cos and sin. */
int model_rope_is_long(const struct model_conf *c, double original);
double model_rope_longrope_scale(double factor, double original);

#endif
