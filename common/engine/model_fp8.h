/* model_fp8.h - weights of a Hugging Face folder in FP8: E4M3 codes, and another tensor of scales,
 * the codes' factors. Such a struct model_tensor has type KERN_E4M3, the file's codes as
 * data, and `scales`. */
#ifndef ENGINE_MODEL_FP8_H
#define ENGINE_MODEL_FP8_H

#include "engine/family.h"

/* Reads quantization_config: which scales the folder's weights may have. */
void model_fp8_read(struct hf_reader *r, const struct json_t *config, struct model_source *src);
/* Finds the scales of t, which has name, n, k and data, and checks them. */
int model_fp8_find(const struct model_source *src, struct model_tensor *t, struct err *err);
/* Sets the scales of a tensor that is only described: which elements share one. */
void model_fp8_describe(const struct model_source *src, struct model_tensor *t);
/* Of a tensor that is only described a number that two elements have alike if they share a
 * scale. */
float model_fp8_scale(const struct model_tensor *t, uint32_t row, uint32_t column);
/* Writes rows [first, first + count) as the device reads KERN_E4M3. */
void model_fp8_rows(const struct model_tensor *t, uint32_t first, uint32_t count,
                    unsigned char *out);

#endif
