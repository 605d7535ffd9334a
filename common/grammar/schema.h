/* schema.h - JSON schemas to networks. Internal to grammar.
 *
 * The subset: type (one or several), properties, required, additionalProperties, items, minItems,
 * maxItems, enum, const, anyOf, allOf with one member, $ref into $defs or anywhere in the schema
 * (recursion too), pattern, format (date-time, date, time, duration, email, hostname, ipv4, ipv6,
 * uuid), minLength, maxLength, minimum, maximum, exclusiveMinimum, exclusiveMaximum (exact for
 * integers; whole ones for numbers), true, {}. Annotations (title, description, default, examples,
 * $comment, ...) are skipped. Anything else is refused with its path, as is what this one does not
 * combine: pattern, format and lengths; $ref, anyOf, enum with constraints beside them.
 *
 * What is written: properties in the schema's order, those not required may be left out, further
 * ones only if additionalProperties says so (absent: none). An answer so written is always
 * valid; not every valid text is written so. strict: additionalProperties must be false and all
 * properties required. */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include "json.h"

#include <jansson.h>

#define SCHEMA_NEST_MAX 100u
#define SCHEMA_REFS_MAX 2048u

/* One schema within a network; rules may be shared with others of it. */
int schema_build(struct nfa *f, struct json_rules *rules, const json_t *schema, int strict,
                 uint32_t next, uint32_t *ret_begin, struct err *err);
/* A string of this format; 0 or ERR_UNSUPPORTED (not known). */
int schema_format(struct nfa *f, const char *name, uint32_t next, uint32_t *ret_begin);

#endif
