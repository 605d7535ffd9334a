/* family.h - what the files of the families (family_*.c) stand on: readers of a GGUF file's
 * metadata and of config.json, and rotary tables.
 *
 * A reader keeps the first error, with file, key, what was found and what was expected. After it
 * as well its functions give values that can be calculated with: within the limits, or `absent`. */
#ifndef ENGINE_FAMILY_H
#define ENGINE_FAMILY_H

#include "engine/model.h"
#include "format/gguf.h"

#include <jansson.h>

extern const struct family family_llama, family_mistral, family_qwen2, family_qwen3;
extern const struct family family_qwen3_moe, family_ernie4_5, family_ernie4_5_moe, family_gemma3;
extern const struct family family_glm4_moe, family_deepseek_v3, family_granite, family_phi3;
extern const struct family family_gpt_oss;

/* By its name in that format; NULL with the known names in err. */
const struct family *family_find(enum model_source_kind kind, const char *name, size_t len,
                                 struct err *err);
/* What a description is before any key changes it; after family, source and sizes are known. */
void family_defaults(struct model_conf *c);

/* Both outputs as of model_open; src->file is the caller's to close, also after an error. */
int model_gguf_open(const char *path, struct model_conf *c, struct model_source *src,
                    struct err *err);
int model_hf_open(const char *path, struct model_conf *c, struct model_source *src,
                  struct err *err);

/* --- GGUF: keys without the architecture's name in front ----------------- */

struct gguf_reader {
	struct gguf *g;
	const struct model_source *src;
	const char *arch;
	struct err *err;
	int rc;
};

void meta_fail(struct gguf_reader *r, const char *key, double found, const char *expected);
int meta_has(const struct gguf_reader *r, const char *key);
/* min .. max; if `absent` is not within, the key must be there. */
uint32_t meta_u32(struct gguf_reader *r, const char *key, uint32_t min, uint32_t max,
                  uint32_t absent);
/* More than `above`, up to 1e30; if `absent` is not, the key must be there. */
double meta_number(struct gguf_reader *r, const char *key, double above, double absent);
int meta_bool(struct gguf_reader *r, const char *key, int absent);
/* Experts, in the words that all families share. Which layers have them shows by their tensors. */
void meta_experts(struct gguf_reader *r, struct model_conf *c, enum model_scoring scoring_absent);

/* --- config.json: null counts as absent, as in transformers -------------- */

struct hf_reader {
	const char *path; /* of the file */
	struct err *err;
	int rc;
};

const json_t *hf_get(const json_t *o, const char *key);
void hf_fail(struct hf_reader *r, const char *key, const json_t *found, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* min .. max, or `absent` if there is none; hf_need_u32 fails if there is none. */
uint32_t hf_may_u32(struct hf_reader *r, const json_t *o, const char *key, uint32_t min,
                    uint32_t max, uint32_t absent);
uint32_t hf_need_u32(struct hf_reader *r, const json_t *o, const char *key, uint32_t min,
                     uint32_t max);
/* More than `above`, up to 1e30. */
double hf_may_number(struct hf_reader *r, const json_t *o, const char *key, double above,
                     double absent);
double hf_need_number(struct hf_reader *r, const json_t *o, const char *key, double above);
int hf_may_bool(struct hf_reader *r, const json_t *o, const char *key, int absent);
/* A word that changes nothing, or is absent. */
void hf_expect(struct hf_reader *r, const json_t *o, const char *key, const char *word);
/* Parameters of the rotation, of layers that see everything; NULL if there are none. */
const json_t *hf_rope_parameters(struct hf_reader *r, const json_t *o);
/* Windows, then rotary tables (model_hf_rope.c). Return r->rc. */
int hf_read_windows(struct hf_reader *r, const json_t *o, struct model_conf *c);
int hf_read_rope(struct hf_reader *r, const json_t *o, struct model_conf *c);
/* Experts in DeepSeek-V3's words (family_deepseek_v3.c), which others use, too; what it adds to a
 * sum of weights. */
#define DEEPSEEK_NORM_EPS 1e-20f
void hf_deepseek_experts(struct hf_reader *r, const json_t *o, struct model_conf *c);

/* --- rotary tables (model_rope.c) ---------------------------------------- */

/* Frequencies base^(-2 i / dims); the others change what stands in r, yarn its scale as well. */
void model_rope_default(struct model_rope *r, uint32_t dims, double base);
void model_rope_linear(struct model_rope *r, uint32_t dims, double factor);
void model_rope_llama3(struct model_rope *r, uint32_t dims, double factor, double low, double high,
                       double original);
struct model_yarn {
	double base, factor, original, beta_fast, beta_slow;
	double attention_factor; /* on cos and sin */
	int truncate;
};
void model_rope_yarn(struct model_rope *r, uint32_t dims, const struct model_yarn *y);
/* 0.1 m ln(factor) + 1 */
double model_rope_mscale(double factor, double m);
/* LongRoPE: whether the divisors are those for long contexts; the scale of cos and sin. */
int model_rope_is_long(const struct model_conf *c, double original);
double model_rope_longrope_scale(double factor, double original);

#endif
