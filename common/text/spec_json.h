/* spec_json.h - reads a tokenizer from the JSON of a Hugging Face tokenizer.json: normalizer,
 * pre-tokenizer, model, added tokens, decoder. */
#ifndef TEXT_SPEC_JSON_H
#define TEXT_SPEC_JSON_H

#include "text/spec.h"

#include <jansson.h>

/* ERR_UNSUPPORTED names the feature that this build lacks. */
int spec_from_json(struct tokenizer_spec *s, const json_t *root, struct err *err);
/* The parts. Read the pre-tokenizer before the model: it decides whether tokens are byte-level. */
int spec_json_normalizer(struct tokenizer_spec *s, const json_t *v, struct err *err);
int spec_json_pretokenizer(struct tokenizer_spec *s, const json_t *v, struct err *err);
int spec_json_decoder(struct tokenizer_spec *s, const json_t *v, struct err *err);
int spec_json_model(struct tokenizer_spec *s, const json_t *model, const json_t *added,
                    struct err *err);

/* Parses a file, with limits on its size and number of values. ERR_NOTFOUND: the file does not
 * exist. The caller owns the reference. */
int spec_json_read(const char *path, json_t **ret, struct err *err);

#endif
