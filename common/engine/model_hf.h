/* model_hf.h - reading config.json: what the parts of the reader (model_hf*.c) share.
 *
 * A reader keeps the first error, with file, key, what was found and what was expected; after it every call does nothing and gives the
 * value for an absent key. null counts as absent, as in transformers. */
#ifndef ENGINE_MODEL_HF_H
#define ENGINE_MODEL_HF_H

#include "engine/model.h"

#include <jansson.h>

struct hf_reader {
	const char *path;   /* of the file */
	struct err *err;
	int rc;
};

const json_t *hf_get(const json_t *o, const char *key);
void hf_fail(struct hf_reader *r, const char *key, const json_t *found, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* min .. max, or `absent` if there is none; hf_need_u32 fails if there is none. */
uint32_t hf_may_u32(struct hf_reader *r, const json_t *o, const char *key, uint32_t min, uint32_t max, uint32_t absent);
uint32_t hf_need_u32(struct hf_reader *r, const json_t *o, const char *key, uint32_t min, uint32_t max);
/* More than `above`, up to 1e30. */
double hf_may_number(struct hf_reader *r, const json_t *o, const char *key, double above, double absent);
double hf_need_number(struct hf_reader *r, const json_t *o, const char *key, double above);
int hf_may_bool(struct hf_reader *r, const json_t *o, const char *key, int absent);
/* A switch of struct family. */
int hf_switch(struct hf_reader *r, const json_t *o, const char *key);

/* After the sizes are known. rope: after the windows. Return r->rc. */
int hf_read_windows(struct hf_reader *r, const json_t *o, struct model_conf *c);
int hf_read_rope(struct hf_reader *r, const json_t *o, struct model_conf *c);
int hf_read_mla(struct hf_reader *r, const json_t *o, struct model_conf *c);
int hf_read_experts(struct hf_reader *r, const json_t *o, struct model_conf *c);

#endif
