/* toolcall_form.h - builds the form (STRUCTURE of grammar/grammar.h) that constrains an answer to
 * tool calls in the model's format. toolcall.h parses every text of this form as those calls, with
 * arguments that follow the tools' schemas.
 *
 * Formats that write arguments as JSON accept any schema of an object. Formats that write
 * parameters in tags (qwen3_coder, glm, deepseek_v32) write strings verbatim up to the closing tag:
 * a string may be unconstrained, an enum or a const, the last two also beside null and schemas that
 * allow no string, if none of the strings would be read as such a value; other constraints on a
 * string are refused, as is a $ref directly below `properties` that does not name a definition of
 * the same schema, and what constrains the arguments together: $ref, anyOf, oneOf, minProperties
 * ... of the whole. A JSON value with the closing tag inside a string ends there.
 * pythonic is refused because its values are not JSON. harmony allows one call per answer. */
#ifndef TEXT_TOOLCALL_FORM_H
#define TEXT_TOOLCALL_FORM_H

#include "text/toolcall.h"
#include "util/err.h"

#define TOOLCALL_FORM_WHOLE SIZE_MAX

/* The schema of the arguments of this tool (a checked element of OpenAI's array); a new reference.
 * No parameters: only {} is allowed. NULL: the schema cannot be used for arguments, see err. */
json_t *toolcall_form_schema(const json_t *tool, struct err *err);
/* The form of one to calls_max calls of the tools, or only of the tool named `only` if it is not
 * NULL; a new reference. NULL: see err; *ret_at is the index of the tool, or
 * TOOLCALL_FORM_WHOLE. */
json_t *toolcall_form(const struct toolcall_format *f, const json_t *tools, const char *only,
                      unsigned calls_max, size_t *ret_at, struct err *err);
/* A form of calls in the generic format becomes one of calls or a response. 0 or -1: no memory */
int toolcall_form_or_response(json_t *form);
/* Does the form of any format contain this marker? */
int toolcall_form_spells(const char *marker);

#endif
