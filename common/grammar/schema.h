/* schema.h - compiles JSON schemas to networks. Internal to grammar.
 *
 * Built:
 *   any type    type (one or several), enum, const, anyOf, oneOf, allOf with one member, $ref into
 *               $defs or anywhere in the schema (may be recursive), nullable, not (with type, enum
 *               or const only), true, {}
 *   strings     minLength, maxLength, pattern, format (date-time, date, time, duration, email,
 *               hostname, ipv4, ipv6, uuid): one of these three
 *   numbers     minimum, maximum, exclusiveMinimum, exclusiveMaximum (also true, as in OpenAPI 3.0;
 *               exact for integers, whole bounds only for numbers), multipleOf (whole numbers up to
 *               2000; 0.1, 0.01 ...)
 *   arrays      items, prefixItems (or items as an array, with additionalItems), minItems,
 *               maxItems; uniqueItems where items have enum, const or boolean, or cannot be the
 *               same; contains, minContains, maxContains without items, or if both have an enum or
 *               const
 *   objects     properties, required, additionalProperties (or unevaluatedProperties, which is the
 *               same where the other is absent), patternProperties (one, or several with the same
 *               schema), propertyNames, minProperties, maxProperties, false or {"not":{}} for a
 *               property that must be absent
 * oneOf: no value may be valid by two members: they must differ in their types, in the values of
 * enum or const, or in a required property of which that is true (the discriminator's need not be
 * listed in required; it is always written).
 *
 * Ignored: title, description, default, example(s), $schema, $id, $comment, deprecated, readOnly,
 * writeOnly, discriminator, xml, externalDocs, enumNames, errorMessage, strict, x-...; and with a
 * note to the client: other formats, keywords that nobody knows.
 *
 * Refused with its path: if, then, else, dependentRequired, dependentSchemas, dependencies,
 * unevaluatedItems, $dynamicRef, $recursiveRef; and combinations that are not built: two of
 * pattern, format and lengths; $ref, anyOf, oneOf, allOf or enum beside other constraints than a
 * type that they have anyhow; minProperties beyond the named properties and one more, as other
 * names may repeat.
 *
 * Output: properties come in the schema's order; those not required may be omitted; others are
 * allowed only if additionalProperties or patternProperties say so (absent: none, unless nothing
 * names a property), and beside patternProperties only names that match. Behind prefixItems, items
 * come only if `items` says so, or minItems asks for them. More than eight unique values come in
 * the order of the enum. Every answer generated this way is valid; not every valid text can be
 * generated. strict: additionalProperties must be false and all properties required. */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include "json.h"

#include <jansson.h>

#define SCHEMA_NEST_MAX 100u
#define SCHEMA_REFS_MAX 2048u
#define SCHEMA_NAME_MAX 256u /* bytes of a text that others must be told apart from */
#define SCHEMA_IGNORED_MAX 8u

/* What schemas have that constrains nothing, as a message shows it: mykeyword, format "uri". */
struct schema_ignored {
	unsigned n;
	char name[SCHEMA_IGNORED_MAX][64];
};

/* Builds one schema as part of a network; `rules` may be shared with other schemas of the
 * network. */
int schema_build(struct nfa *f, struct json_rules *rules, const json_t *schema, int strict,
                 uint32_t next, uint32_t *ret_begin, struct schema_ignored *ignored,
                 struct err *err);
int schema_has_format(const char *name);
/* Builds a string of this format. Returns 0, or ERR_UNSUPPORTED: unknown format. */
int schema_format(struct nfa *f, const char *name, uint32_t next, uint32_t *ret_begin);

#endif
