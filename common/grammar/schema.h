/* schema.h - compiles JSON schemas to networks. Internal to grammar.
 *
 * Supported: type (one or several), properties, required, additionalProperties, items, minItems,
 * maxItems, enum, const, anyOf, allOf with one member, $ref into $defs or anywhere in the schema
 * (may be recursive), pattern, format (date-time, date, time, duration, email, hostname, ipv4,
 * ipv6, uuid), minLength, maxLength, minimum, maximum, exclusiveMinimum, exclusiveMaximum (exact
 * for integers; whole bounds only for numbers), true, {}. Annotations (title, description, default,
 * examples, $comment, ...) are ignored. Anything else is refused with its path, also unsupported
 * combinations: two of pattern, format and lengths; $ref, anyOf or enum beside other constraints.
 *
 * Output: properties come in the schema's order; those not required may be omitted; others are
 * allowed only if additionalProperties says so (absent: none). Every answer generated this way is
 * valid; not every valid text can be generated. strict: additionalProperties must be false and all
 * properties required. */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include "json.h"

#include <jansson.h>

#define SCHEMA_NEST_MAX 100u
#define SCHEMA_REFS_MAX 2048u

/* Builds one schema as part of a network; `rules` may be shared with other schemas of the
 * network. */
int schema_build(struct nfa *f, struct json_rules *rules, const json_t *schema, int strict,
                 uint32_t next, uint32_t *ret_begin, struct err *err);
/* Builds a string of this format. Returns 0, or ERR_UNSUPPORTED: unknown format. */
int schema_format(struct nfa *f, const char *name, uint32_t next, uint32_t *ret_begin);

#endif
