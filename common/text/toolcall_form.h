/* toolcall_form.h - the other way round: the form of answers that are calls, for constrained output
 * (STRUCTURE of grammar/grammar.h), in the format of the model. What has this form toolcall.h finds
 * to be those calls, with arguments that follow the tools' schemas.
 *
 * Formats that write arguments as JSON take any schema of an object. Those that write parameters in
 * tags (qwen3_coder, glm, deepseek_v32) write strings as they are, up to the closing tag: a string
 * may be free, an enum or a const; other conditions on one, $ref and allOf right below
 * `properties` are refused. A JSON value that holds the closing tag in a string of its own ends
 * there. pythonic is refused: its values are no JSON. harmony has one call in an answer. */
#ifndef TEXT_TOOLCALL_FORM_H
#define TEXT_TOOLCALL_FORM_H

#include "text/toolcall.h"
#include "util/err.h"

#define TOOLCALL_FORM_WHOLE SIZE_MAX

/* What the arguments of this tool (an element of OpenAI's array, checked) must be; a new
 * reference. No parameters: {}. NULL: err says why they can be no arguments. */
json_t *toolcall_form_schema(const json_t *tool, struct err *err);
/* Pieces of one to calls_max calls of the tools, of `only` when it is not NULL; a new reference.
 * NULL: err says why not; *ret_at is the tool, or TOOLCALL_FORM_WHOLE. */
json_t *toolcall_form(const struct toolcall_format *f, const json_t *tools, const char *only,
                      unsigned calls_max, size_t *ret_at, struct err *err);
/* 1: some format's form spells this marker. */
int toolcall_form_spells(const char *marker);

#endif
