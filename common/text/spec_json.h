/* spec_json.h - a tokenizer from the JSON of a Hugging Face tokenizer.json: normalizer,
 * pre-tokenizer, model, added tokens, decoder. */
#ifndef TEXT_SPEC_JSON_H
#define TEXT_SPEC_JSON_H

#include "text/spec.h"

#include <jansson.h>

/* What the file asks and this build does not do is ERR_UNSUPPORTED with its name. */
int spec_from_json(struct spec *s, const json_t *root, struct err *err);
/* The parts. The model comes after the pre-tokenizer, which says whether tokens are bytes. */
int spec_json_normalizer(struct spec *s, const json_t *v, struct err *err);
int spec_json_pretokenizer(struct spec *s, const json_t *v, struct err *err);
int spec_json_decoder(struct spec *s, const json_t *v, struct err *err);
int spec_json_model(struct spec *s, const json_t *model, const json_t *added, struct err *err);

/* Parses a file with bounds on its size and on how many values it has. ERR_NOTFOUND: there is
 * none. The caller drops the reference. */
int spec_json_read(const char *path, json_t **ret, struct err *err);

#endif
