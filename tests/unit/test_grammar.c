/* test_grammar.c - constraints by tables: what is of a grammar and what is not, how deep it nests,
 * what is refused and how; hostile texts within their bounds. Which tokens may follow:
 * test_grammar_tokens.c. */
/* run: parser */
#include "grammar_rig.h"
#include "util/mem.h"

#include <sys/resource.h>

/* --- what matches -------------------------------------------------------- */

static int is_match(enum grammar_kind kind, const char *text, const char *answer, size_t len)
{
	struct automaton *a = made(kind, text, NULL);
	int m = automaton_matches(a, answer, len, NULL);
	automaton_destroy(&a);
	return m;
}

TEST_CASE("grammar", .timeout_s = 120);

TEST_LOOP(matches, 0, COUNT(matching))
{
	for (size_t i = 0; i < 8 && matching[_i].yes[i]; i++)
		ck_assert_msg(is_match(matching[_i].kind, matching[_i].text, matching[_i].yes[i],
		                       strlen(matching[_i].yes[i])),
		              "%s should match %s", matching[_i].text, matching[_i].yes[i]);
	for (size_t i = 0; i < 8 && matching[_i].no[i]; i++)
		ck_assert_msg(!is_match(matching[_i].kind, matching[_i].text, matching[_i].no[i],
		                        strlen(matching[_i].no[i])),
		              "%s should not match %s", matching[_i].text, matching[_i].no[i]);
}

/* Nesting ends at the limit, and up to there everything can be closed again. */
TEST(nesting)
{
	char text[4 * GRAMMAR_DEPTH_MAX + 16];
	struct automaton *a = made(GRAMMAR_JSON_OBJECT, "", NULL);
	size_t n = 0, good;
	n += (size_t)sprintf(text, "{\"a\":");
	for (unsigned i = 0; i < 2 * GRAMMAR_DEPTH_MAX; i++)
		text[n++] = '[';
	automaton_matches(a, text, n, &good);
	unsigned deep = (unsigned)good - 5;
	ck_assert_uint_ge(deep, GRAMMAR_DEPTH_MAX - 4);
	ck_assert_uint_le(deep, GRAMMAR_DEPTH_MAX);
	for (n = good, good = 0; good < deep; good++)
		text[n++] = ']';
	text[n++] = '}';
	ck_assert(automaton_matches(a, text, n, NULL));
	automaton_destroy(&a);
}

/* However deep an answer went, what its schema requires can still be written: an opening without
 * room for that is not allowed. */
TEST(closes)
{
	static const char schema[] =
		"{\"type\":\"object\",\"properties\":{\"n\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":"
		"\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}]},"
		"\"s\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1}},\"required\":["
		"\"n\",\"s\"]}";
	static const char open[] = "{\"n\":[", close[] = "],\"s\":[\"x\"]}";
	char text[GRAMMAR_DEPTH_MAX * (sizeof open + sizeof close) + 64];
	struct automaton *a = made(GRAMMAR_JSON_SCHEMA, schema, NULL);
	size_t n = 0, good;
	for (unsigned i = 0; i < GRAMMAR_DEPTH_MAX; i++)
		n += (size_t)sprintf(text + n, "%s", open);
	automaton_matches(a, text, n, &good);
	size_t deep = good / (sizeof open - 1);
	ck_assert_uint_gt(deep, 8);
	ck_assert_uint_lt(deep, GRAMMAR_DEPTH_MAX);
	n = deep * (sizeof open - 1);
	n += (size_t)sprintf(text + n, "{\"n\":null,\"s\":[\"x\"]}");
	for (size_t i = 0; i < deep; i++)
		n += (size_t)sprintf(text + n, "%s", close);
	ck_assert(automaton_matches(a, text, n, NULL));
	automaton_destroy(&a);
}

/* --- what is refused ----------------------------------------------------- */

static const struct {
	enum grammar_kind kind;
	const char *text;
	int code;
	const char *says;
	unsigned flags;
} refusals[] = {
	{GRAMMAR_REGEX, "a(?=b)", ERR_UNSUPPORTED,
     "lookahead and lookbehind are not supported at offset 1", 0},
	{GRAMMAR_REGEX, "ab\\b", ERR_UNSUPPORTED, "a word boundary is not supported at offset 2", 0},
	{GRAMMAR_REGEX, "(a)\\1", ERR_UNSUPPORTED, "a back reference is not supported at offset 3", 0},
	{GRAMMAR_REGEX, "a^b", ERR_UNSUPPORTED, "an anchor inside is not supported at offset 1", 0},
	{GRAMMAR_REGEX, "(ab", ERR_INVALID, "a ( without ) at offset 0", 0},
	{GRAMMAR_REGEX, "ab)", ERR_INVALID, "a ) without ( at offset 2", 0},
	{GRAMMAR_REGEX, "[ab", ERR_INVALID, "a [ without ] at offset 0", 0},
	{GRAMMAR_REGEX, "[b-a]", ERR_INVALID, "ends before it starts at offset 1", 0},
	{GRAMMAR_REGEX, "a[^\\s\\S]", ERR_INVALID, "leaves no character at offset 1", 0},
	{GRAMMAR_REGEX, "*a", ERR_INVALID, "nothing to repeat at offset 0", 0},
	{GRAMMAR_REGEX, "a{5,2}", ERR_INVALID, "max < min at offset 1", 0},
	{GRAMMAR_REGEX, "a{99999}", ERR_FULL, "a counter above 10000 at offset 1", 0},
	{GRAMMAR_REGEX, "a**", ERR_INVALID, "a repetition of a repetition at offset 1", 0},
	{GRAMMAR_REGEX, "a++", ERR_UNSUPPORTED, "a possessive repetition is not supported at offset 1",
     0},
	{GRAMMAR_REGEX, "\\p{L}", ERR_UNSUPPORTED, "a Unicode property is not supported at offset 0",
     0},
	{GRAMMAR_REGEX, "a\xff", ERR_INVALID, "invalid UTF-8 at offset 1", 0},
	{GRAMMAR_REGEX, "\\", ERR_INVALID, "nothing after the \\ at offset 0", 0},
	{GRAMMAR_CHOICE, "[]", ERR_INVALID, "1 to 10000 strings", 0},
	{GRAMMAR_CHOICE, "[\"a\",1]", ERR_INVALID, "must be a string", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":", ERR_INVALID, "not valid JSON", 0},
	{GRAMMAR_JSON_SCHEMA, "7", ERR_INVALID, "the schema: must be an object or true", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"if\":{}}", ERR_UNSUPPORTED, "/if: this keyword is not supported", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(?!x)\"}}}",
     ERR_UNSUPPORTED, "/properties/a/pattern: lookahead", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"items\":{\"multipleOf\":0.3}}}}",
     ERR_UNSUPPORTED, "/properties/a/items/multipleOf: 0.3 is not supported", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"strin\"}]}", ERR_INVALID,
     "/anyOf/1/type: \"strin\" is none of", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}",
     ERR_UNSUPPORTED, "/pattern: is not supported beside minLength", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":0.5}", ERR_UNSUPPORTED,
     "/minimum: 0.5 is not supported", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", ERR_INVALID,
     "no number is between the bounds", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/x\"}", ERR_INVALID,
     "/$ref: \"#/$defs/x\" leads nowhere", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}", ERR_INVALID, "infinite recursion", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"anyOf\":[{\"$ref\":\"#/$defs/"
     "a\"}],\"$defs\":{\"a\":{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/a\"}]}}}",
     ERR_INVALID, "infinite recursion", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     ERR_INVALID, "no finite answer", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"maxItems\":100000}", ERR_INVALID,
     "/maxItems: must be a whole number from 0 to 10000", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", ERR_INVALID,
     "/maxItems: is less than minItems", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"required\":[\"b\"],\"additionalProperties\":false}", ERR_INVALID,
     "/required: has \"b\", which additionalProperties forbids", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"required\":[\"b\"],\"additionalProperties\":{\"$ref\":\"#\"}}",
     ERR_INVALID, "no finite answer", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"required\":[\"b\"],\"additionalProperties\":{\"type\":\"integer\",\"multipleOf\":-2}}",
     ERR_INVALID, "/additionalProperties/multipleOf: ", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":false}",
     ERR_UNSUPPORTED, "/required: must have \"a\" with strict", GRAMMAR_STRICT},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\"]}",
     ERR_UNSUPPORTED, "/additionalProperties: must be false with strict", GRAMMAR_STRICT},
	{GRAMMAR_JSON_SCHEMA, "{\"enum\":[1],\"minimum\":0}", ERR_UNSUPPORTED,
     "/minimum: is not supported beside enum", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/a\",\"minimum\":0,\"$defs\":{\"a\":{}}}",
     ERR_UNSUPPORTED, "/minimum: is not supported beside $ref", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{}],\"enum\":[1]}", ERR_UNSUPPORTED,
     "/enum: is not supported beside anyOf", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{\"type\":\"integer\"},{\"minimum\":3}]}", ERR_UNSUPPORTED,
     "/allOf: is supported with one member only", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}",
     ERR_UNSUPPORTED, "/pattern: lookahead and lookbehind are not supported at offset 1", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"dependentRequired\":{\"a\":[\"b\"]}}", ERR_UNSUPPORTED,
     "/dependentRequired: this keyword is not supported", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"items\":{\"unevaluatedItems\":false}}", ERR_UNSUPPORTED,
     "/items/unevaluatedItems: this keyword", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"oneOf\":[{\"const\":1.0},{\"type\":\"integer\"}]}", ERR_UNSUPPORTED,
     "/oneOf: members 0 and 1 may both match", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
     ERR_UNSUPPORTED, "/oneOf: members 0 and 1 may both match", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"oneOf\":[{\"properties\":{\"t\":{\"const\":1}}},{\"properties\":{\"t\":{\"const\":2}}}]}",
     ERR_UNSUPPORTED, "/oneOf: members 0 and 1 may both match", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":1}}},{\"type\":\"object\","
     "\"properties\":{\"t\":{\"const\":2}}}]}",
     ERR_UNSUPPORTED, "/oneOf: members 0 and 1 may both match", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"anyOf\":[{\"minLength\":1}]}", ERR_UNSUPPORTED,
     "/type: is not supported beside anyOf", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"items\":{\"type\":\"string\"},\"uniqueItems\":true}", ERR_UNSUPPORTED,
     "/uniqueItems: is supported for items of enum", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"prefixItems\":[{\"const\":1},{\"enum\":[2,1]}],\"items\":false,\"uniqueItems\":true}",
     ERR_UNSUPPORTED, "/uniqueItems: ", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"items\":{\"enum\":[1,1.0,2]},\"uniqueItems\":true,\"minItems\":3}",
     ERR_INVALID, "/minItems: is more than there are different values", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"items\":{\"type\":\"string\"},\"contains\":{\"const\":\"a\"}}",
     ERR_UNSUPPORTED, "/contains: is supported beside items only if", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"contains\":{\"type\":\"integer\"},\"maxContains\":1}",
     ERR_UNSUPPORTED, "/not: integer is not supported beside number", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"contains\":{\"const\":1},\"minContains\":100,\"maxItems\":100}",
     ERR_FULL, "/contains: needs more than 4096 states", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"contains\":{\"const\":1},\"minContains\":3,\"maxItems\":2}",
     ERR_INVALID, "/minContains: is more than maxItems", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"prefixItems\":[true],\"items\":false,\"minItems\":2}", ERR_INVALID,
     "/minItems: is more than there may be", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"minProperties\":2}", ERR_UNSUPPORTED,
     "/minProperties: is supported up to one more than the properties that are named", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{}},\"minProperties\":2}", ERR_INVALID,
     "/minProperties: is not possible with these properties", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"a\",\"b\"],\"maxProperties\":1}",
     ERR_INVALID, "/maxProperties: is not possible", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"minProperties\":2,\"maxProperties\":1}", ERR_INVALID,
     "/maxProperties: is less than minProperties", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":false},\"required\":[\"a\"]}", ERR_INVALID,
     "/required: has \"a\", which may have no value", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"ab\":{}},\"propertyNames\":{\"pattern\":\"^b\"}}",
     ERR_UNSUPPORTED,
     "/propertyNames: is not supported beside a property \"ab\" that it does not allow", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"properties\":{\"ab\":{}},\"required\":[\"ab\"],\"propertyNames\":{\"enum\":[\"b\"]}}",
     ERR_INVALID, "/required: has \"ab\", which propertyNames forbids", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"propertyNames\":{\"type\":\"integer\"}}", ERR_UNSUPPORTED,
     "/propertyNames: must allow strings", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"ab\":{}},\"patternProperties\":{\"^a\":{}}}",
     ERR_UNSUPPORTED,
     "/patternProperties: is not supported beside a property \"ab\" that it may be about, too", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"patternProperties\":{\"^a\":{},\"b\":{\"type\":\"null\"}}}",
     ERR_UNSUPPORTED, "/patternProperties: is supported with one pattern", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"patternProperties\":{\"(?=a)\":{}}}", ERR_UNSUPPORTED,
     "/patternProperties/pattern: lookahead", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":2001}", ERR_UNSUPPORTED,
     "/multipleOf: 2001 is not supported: whole numbers up to 2000", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":10,\"minimum\":11,\"maximum\":19}",
     ERR_INVALID, "no number is between the bounds", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"not\":{\"const\":1}}", ERR_UNSUPPORTED,
     "/not: values of type number are not supported", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"not\":{\"minLength\":1}}", ERR_UNSUPPORTED,
     "/not: is supported with type, enum or const only, not with minLength", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"not\":{\"const\":\"a\"},\"minLength\":1}",
     ERR_UNSUPPORTED, "/not: is not supported beside minLength", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"null\",\"not\":{\"const\":null}}", ERR_INVALID,
     "/not: leaves no value", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/a\",\"not\":{\"const\":1},\"$defs\":{\"a\":{}}}",
     ERR_UNSUPPORTED, "/not: is not supported beside $ref", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"items\":{\"enum\":[\"a\",\"bb\"],\"minLength\":2},\"uniqueItems\":true}", ERR_UNSUPPORTED,
     "/minLength: is not supported beside enum", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"propertyNames\":{\"enum\":[\"a\",\"bb\"],\"minLength\":2}}",
     ERR_UNSUPPORTED, "/minLength: is not supported beside enum", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"a\":1,\"a\":2}", ERR_INVALID, "duplicate", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"oneOf\":[{\"$ref\":\"#/$defs/c\",\"required\":[\"n\"]}],\"discriminator\":{"
     "\"propertyName\":\"t\"},\"$defs\":{\"c\":{\"properties\":{\"t\":{\"const\":1},\"n\":{}}}}}",
     ERR_UNSUPPORTED, "/required: is not supported beside $ref", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"uniqueItems\":true,\"items\":{\"$ref\":\"#/$defs/"
     "e\",\"not\":{\"const\":\"x\"}},\"$defs\":{\"e\":{\"enum\":[\"x\",\"y\"]}}}",
     ERR_UNSUPPORTED, "/not: is not supported beside $ref", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"uniqueItems\":true,\"items\":{\"$ref\":\"#/$defs/"
     "e\",\"type\":\"string\"},\"$defs\":{\"e\":{\"enum\":[1,\"y\"]}}}",
     ERR_UNSUPPORTED, "/type: is not supported beside $ref", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"uniqueItems\":true,\"items\":{\"type\":\"boolean\",\"anyOf\":[{\"const\":true}]}}",
     ERR_UNSUPPORTED, "/uniqueItems: is supported for items of enum", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"propertyNames\":{\"$ref\":\"#/$defs/n\",\"maxLength\":3},\"$defs\":{\"n\":{\"type\":"
     "\"string\"}}}",
     ERR_UNSUPPORTED, "/maxLength: is not supported beside $ref", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"propertyNames\":{\"allOf\":[{\"type\":\"string\"}],\"maxLength\":3}}",
     ERR_UNSUPPORTED, "/maxLength: is not supported beside allOf", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"oneOf\":[{\"properties\":{\"t\":{\"const\":1}},\"required\":\"t\"}],\"discriminator\":{"
     "\"propertyName\":\"t\"}}",
     ERR_INVALID, "required: must be an array of names", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"required\":[\"b\"],\"unevaluatedProperties\":false}", ERR_INVALID,
     "/required: has \"b\", which unevaluatedProperties forbids", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"unevaluatedProperties\":{\"minimum\":\"x\"}}", ERR_INVALID,
     "/unevaluatedProperties/minimum: must be a number", 0},
	{GRAMMAR_JSON_SCHEMA,
     "{\"allOf\":[{\"properties\":{\"a\":{}}}],\"unevaluatedProperties\":false}", ERR_UNSUPPORTED,
     "/unevaluatedProperties: is not supported beside allOf", 0},
	{GRAMMAR_STRUCTURE, "[{\"lateral\":\"x\"}]", ERR_INVALID, "each piece must be an object with",
     0},
	{GRAMMAR_STRUCTURE, "{}", ERR_INVALID, "pieces must be an array", 0},
	{GRAMMAR_GBNF, "", ERR_INVALID, "has no rule root", 0},
	{GRAMMAR_GBNF, "rot ::= \"a\"", ERR_INVALID, "has no rule root", 0},
	{GRAMMAR_GBNF, "root ::= x\n", ERR_INVALID, "the rule x is used in line 1, and not defined", 0},
	{GRAMMAR_GBNF, "root ::= \"a\"\n\nroot ::= \"b\"", ERR_INVALID,
     "a rule that is defined already in line 3", 0},
	{GRAMMAR_GBNF, "root ::= root \"a\" | \"a\"", ERR_INVALID, "infinite recursion", 0},
	{GRAMMAR_GBNF, "root ::= e root \"a\" | \"a\"\ne ::= \"b\"*", ERR_INVALID, "infinite recursion",
     0},
	{GRAMMAR_GBNF, "root ::= \"a\" root", ERR_INVALID, "no finite answer", 0},
	{GRAMMAR_GBNF, "root = \"a\"", ERR_INVALID, "without ::= after it in line 1", 0},
	{GRAMMAR_GBNF, "root ::= \"a", ERR_INVALID, "a \" without its end in line 1", 0},
	{GRAMMAR_GBNF, "root ::= [a", ERR_INVALID, "a [ without ] in line 1", 0},
	{GRAMMAR_GBNF, "root ::= [z-a]", ERR_INVALID, "ends before it starts in line 1", 0},
	{GRAMMAR_GBNF, "root ::= []", ERR_INVALID, "without a character", 0},
	{GRAMMAR_GBNF, "root ::= (\"a\"\n\n", ERR_INVALID, "a ( without ) in line 1", 0},
	{GRAMMAR_GBNF, "root ::= \"a\")", ERR_INVALID, "a ) without (", 0},
	{GRAMMAR_GBNF, "root ::= \"a\"**", ERR_INVALID, "a repetition of a repetition", 0},
	{GRAMMAR_GBNF, "root ::= \"a\"{,3}", ERR_INVALID, "must be {m}, {m,} or {m,n}", 0},
	{GRAMMAR_GBNF, "root ::= \"a\"{3,2}", ERR_INVALID, "must be {m}, {m,} or {m,n}", 0},
	{GRAMMAR_GBNF, "root ::= \"a\"{99999}", ERR_FULL, "over the limit of 10000", 0},
	{GRAMMAR_GBNF, "root ::= \"\\q\"", ERR_INVALID, "an unknown escape", 0},
	{GRAMMAR_GBNF, "root ::= \"\\u12\"", ERR_INVALID, "without its hexadecimal digits", 0},
	{GRAMMAR_GBNF, "root ::= \"\\ud800\"", ERR_INVALID, "no character", 0},
	{GRAMMAR_GBNF, "root ::= \"\\UFFFFFFFF\"", ERR_INVALID, "no character", 0},
	{GRAMMAR_GBNF, "root ::= \"\xff\"", ERR_INVALID, "invalid UTF-8", 0},
	{GRAMMAR_GBNF, "root ::= \"a\" $", ERR_INVALID, "an item, or the name of a rule, is missing",
     0},
	{GRAMMAR_GBNF,
     "root ::= ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((("
     "(((((((((((((((((((",
     ERR_FULL, "nest more than 100 deep", 0},
	/* hostile */
	{GRAMMAR_GBNF, "root ::= (((((((((\"a\"{8}){8}){8}){8}){8}){8}){8}){8}){8}){8}", ERR_FULL,
     "needs more than 100000 nodes", 0},
	{GRAMMAR_REGEX, "(((((((((a{8}){8}){8}){8}){8}){8}){8}){8}){8}){8}", ERR_FULL,
     "needs more than 100000 nodes", 0},
	{GRAMMAR_REGEX, "(a*){10000}", ERR_FULL, "too ambiguous", 0},
	{GRAMMAR_REGEX,
     "(((.{9000}){9000}){9000}.{0,9000}){9000}[^a]{10000}(ab|cd|ef|gh){10000}(ab|cd|ef|gh){10000}("
     "ab|cd|ef|gh){10000}(ab|cd|ef|gh){10000}"
     "(ab|cd|ef|gh){10000}(ab|cd|ef|gh){10000}(ab|cd|ef|gh){10000}(ab|cd|ef|gh){10000}",
     ERR_FULL, "needs more than 100000 nodes", 0},
};

TEST_LOOP(refused, 0, COUNT(refusals))
{
	struct grammar *g = NULL;
	struct err err = {0};
	double begin = cpu_ms();
	int r = grammar_compile(refusals[_i].kind, refusals[_i].text, strlen(refusals[_i].text),
	                        refusals[_i].flags, &g, &err);
	ck_assert_msg(r == refusals[_i].code, "%s: %d %s", refusals[_i].text, r, err.text);
	ck_assert_msg(strstr(err.text, refusals[_i].says) != NULL, "%s: \"%s\" does not say \"%s\"",
	              refusals[_i].text, err.text, refusals[_i].says);
	ck_assert_msg(cpu_ms() - begin < 3000, "%s took %g ms", refusals[_i].text, cpu_ms() - begin);
}

static char *repeated(const char *before, const char *what, unsigned n, const char *after)
{
	size_t len = strlen(what), at = strlen(before);
	char *text = mem_alloc(at + n * len + strlen(after) + 1);
	memcpy(text, before, at);
	for (unsigned i = 0; i < n; i++, at += len)
		memcpy(text + at, what, len);
	strcpy(text + at, after);
	return text;
}

/* What needs no node costs a step, and literals no more memory than their text. */
TEST(empty_parts)
{
	static const struct {
		enum grammar_kind kind;
		const char *before, *what;
		unsigned n;
		const char *after;
		int code;
	} texts[] = {
		{GRAMMAR_GBNF, "root ::= ", "\"\"", 65000, "", 0},
		{GRAMMAR_GBNF, "root ::= ((((((", "()", 9000, "){8}){8}){8}){8}){8}){8}", ERR_FULL},
		{GRAMMAR_GBNF, "root ::= ((((((", "|", 18000, "){8}){8}){8}){8}){8}){8}", ERR_FULL},
		{GRAMMAR_REGEX, "((((((", "()", 9000, "){8}){8}){8}){8}){8}){8}", ERR_FULL},
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct rusage before, after;
		struct grammar *g = NULL;
		struct err err = {0};
		char *text = repeated(texts[i].before, texts[i].what, texts[i].n, texts[i].after);
		double begin = cpu_ms();
		getrusage(RUSAGE_SELF, &before);
		int r = grammar_compile(texts[i].kind, text, strlen(text), 0, &g, &err);
		getrusage(RUSAGE_SELF, &after);
		ck_assert_msg(r == texts[i].code, "%zu: %d %s", i, r, err.text);
		ck_assert_msg(cpu_ms() - begin < 1000, "%zu took %g ms", i, cpu_ms() - begin);
		ck_assert_msg(after.ru_maxrss - before.ru_maxrss < 100000, "%zu took %ld KiB", i,
		              after.ru_maxrss - before.ru_maxrss);
		grammar_destroy(&g);
		free(text);
	}
}

/* As many ranges as [...] may have, all apart, leave one more to [^...]: what stands behind the
 * last is among it. */
TEST(most_ranges)
{
	char text[8 + 4 * 513] = "[^", one[4];
	size_t n = 2;
	for (unsigned c = 2; c < 2 + 2 * 512; c += 2) /* every other code point */
		n += (size_t)(c < 0x80 ? sprintf(text + n, "\\x%02x", c)
		                       : sprintf(text + n, "%c%c", (int)(0xc0 | c >> 6),
		                                 (int)(0x80 | (c & 63))));
	strcpy(text + n, "]");
	for (unsigned c = 1; c < 2 + 2 * 512; c++) {
		size_t len = (size_t)(c < 0x80 ? sprintf(one, "%c", (int)c)
		                               : sprintf(one, "%c%c", (int)(0xc0 | c >> 6),
		                                         (int)(0x80 | (c & 63))));
		ck_assert_msg(is_match(GRAMMAR_REGEX, text, one, len) == (c % 2 == 1), "U+%04X", c);
	}
	ck_assert(is_match(GRAMMAR_REGEX, text, "\xe2\x82\xac", 3));
	ck_assert(is_match(GRAMMAR_REGEX, text, "\xf4\x8f\xbf\xbf", 4));
	strcpy(text + n, "\\xe9]");
	struct grammar *g;
	struct err err = {0};
	ck_assert_int_eq(grammar_compile(GRAMMAR_REGEX, text, n + 5, 0, &g, &err), ERR_FULL);
}

/* Values 0 to n - 1. */
static size_t numbers(char *text, const char *before, int n, const char *after)
{
	size_t at = (size_t)sprintf(text, "%s", before);
	for (int i = 0; i < n; i++)
		at += (size_t)sprintf(text + at, i ? ",%d" : "%d", i);
	return at + (size_t)sprintf(text + at, "%s", after);
}

/* 400 members of oneOf that only "t" tells apart, after each pair's "k" was compared: k0 and k1 of
 * the schema. */
static size_t members(char *text)
{
	size_t at = (size_t)sprintf(text, "\"oneOf\":[");
	for (int i = 0; i < 400; i++)
		at += (size_t)sprintf(text + at,
		                      "%s{\"type\":\"object\",\"properties\":{\"k\":{\"$ref\":\"#/k%d\"},"
		                      "\"t\":{\"const\":%d}},\"required\":[\"k\",\"t\"]}",
		                      i ? "," : "", i % 2, i);
	return at + (size_t)sprintf(text + at, "]}");
}

/* Texts made by a rule: nesting, chains of references, many alternatives. All end in bounded
 * time, with a grammar or without. */
TEST_LOOP(hostile, 0, 19)
{
	static char text[GRAMMAR_TEXT_MAX + 64];
	size_t n = 0;
	struct grammar *g = NULL;
	struct err err = {0};
	double begin = cpu_ms(), limit = 5000;
	if (_i == 0) { /* a regular expression of groups */
		memset(text, '(', 5000);
		n = 5000;
		ck_assert_int_eq(grammar_compile(GRAMMAR_REGEX, text, n, 0, &g, &err), ERR_FULL);
	} else if (_i == 1) { /* a schema, 1000 deep */
		for (int i = 0; i < 1000; i++)
			n += (size_t)sprintf(text + n, "{\"items\":");
		n += (size_t)sprintf(text + n, "{}");
		for (int i = 0; i < 1000; i++)
			text[n++] = '}';
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
		ck_assert_ptr_nonnull(strstr(err.text, "more than 100 deep"));
	} else if (_i == 2) { /* a chain of 2,000 references */
		n += (size_t)sprintf(text + n, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{");
		for (int i = 0; i < 2000; i++)
			n += (size_t)sprintf(text + n, "\"a%d\":{\"$ref\":\"#/$defs/a%d\"},", i, i + 1);
		n += (size_t)sprintf(text + n, "\"a2000\":{}}}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
	} else if (_i == 3) { /* 2,000 alternatives that begin alike and recurse */
		n += (size_t)sprintf(text + n, "{\"anyOf\":[{\"type\":\"null\"}");
		for (int i = 0; i < 2000; i++)
			n += (size_t)sprintf(text + n, ",{\"items\":{\"$ref\":\"#\"},\"minItems\":%d}", i % 3);
		n += (size_t)sprintf(text + n, "]}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
	} else if (_i == 4) {
		/* an object that doubles at each of 40 levels: references are shared, not copied */
		n += (size_t)sprintf(text + n, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{");
		for (int i = 0; i < 40; i++)
			n += (size_t)sprintf(
				text + n,
				"\"a%d\":{\"properties\":{\"l\":{\"$ref\":\"#/$defs/a%d\"},\"r\":{\"$ref\":\"#/"
				"$defs/a%d\"}},\"required\":[\"l\",\"r\"]},",
				i, i + 1, i + 1);
		n += (size_t)sprintf(text + n, "\"a40\":{\"type\":\"null\"}}}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), 0);
	} else if (_i == 5) { /* over the limit on bytes */
		memset(text, 'a', sizeof text);
		ck_assert_int_eq(grammar_compile(GRAMMAR_REGEX, text, GRAMMAR_TEXT_MAX + 1, 0, &g, &err),
		                 ERR_FULL);
	} else if (_i == 6) { /* the longest text that is allowed */
		memset(text, 'a', sizeof text);
		ck_assert_int_eq(grammar_compile(GRAMMAR_REGEX, text, GRAMMAR_TEXT_MAX, 0, &g, &err),
		                 ERR_FULL);
		ck_assert_int_eq(grammar_compile(GRAMMAR_REGEX, text, 90000, 0, &g, &err), 0);
	} else if (_i == 7) { /* many repetitions */
		for (int i = 0; i < 5000; i++)
			n += (size_t)sprintf(text + n, "(ab){9}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_REGEX, text, n, 0, &g, &err), ERR_FULL);
		ck_assert_ptr_nonnull(strstr(err.text, "4096 rules"));
	} else if (_i == 8) { /* half of 2,000 properties */
		n += (size_t)sprintf(text + n, "{\"minProperties\":1000,\"properties\":{");
		for (int i = 0; i < 2000; i++)
			n += (size_t)sprintf(text + n, "%s\"p%d\":{\"type\":\"null\"}", i ? "," : "", i);
		n += (size_t)sprintf(text + n, "}}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
	} else if (_i == 9) { /* half of 100 */
		n += (size_t)sprintf(text + n, "{\"minProperties\":50,\"properties\":{");
		for (int i = 0; i < 100; i++)
			n += (size_t)sprintf(text + n, "%s\"p%d\":{\"type\":\"null\"}", i ? "," : "", i);
		n += (size_t)sprintf(text + n, "}}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), 0);
		ck_assert_uint_lt(grammar_nodes(g), 30000);
	} else if (_i == 10) { /* 10,000 unique values, of which 500 must come */
		n += (size_t)sprintf(text + n,
		                     "{\"uniqueItems\":true,\"minItems\":500,\"items\":{\"enum\":[0");
		for (int i = 1; i < 10000; i++)
			n += (size_t)sprintf(text + n, ",%d", i);
		n += (size_t)sprintf(text + n, "]}}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
	} else if (_i == 11) { /* 2,000 members of oneOf, and each with each other is compared */
		n += (size_t)sprintf(text + n, "{\"oneOf\":[{\"const\":0}");
		for (int i = 1; i < 2000; i++)
			n += (size_t)sprintf(text + n, ",{\"const\":%d}", i);
		n += (size_t)sprintf(text + n, "]}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
	} else if (_i == 12) { /* 1,000 names, each compared with another pattern of 10,000 nodes */
		n += (size_t)sprintf(text + n, "{\"prefixItems\":[");
		for (int i = 0; i < 1000; i++)
			n += (size_t)sprintf(text + n,
			                     "%s{\"properties\":{\"a\":{}},\"patternProperties\":{\"a{%d}\":"
			                     "false}}",
			                     i ? "," : "", 9999 - i);
		n += (size_t)sprintf(text + n, "]}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
		ck_assert_ptr_nonnull(strstr(err.text, "steps"));
	} else if (_i == 13) { /* a list of 12,000 types, looked at for each pair of members */
		n += (size_t)sprintf(text + n, "{\"k1\":{\"$ref\":\"#/k0\"},\"k0\":{\"type\":[\"string\"");
		for (int i = 0; i < 12000; i++)
			n += (size_t)sprintf(text + n, ",\"\"");
		n += (size_t)sprintf(text + n, "]},");
		n += members(text + n);
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_INVALID);
		ck_assert_ptr_nonnull(strstr(err.text, "/k0/type: must be a name or an array of 1 to 7"));
	} else if (_i == 14) { /* two equal values of 15,000 numbers: compared for each pair */
		for (int k = 0; k < 2; k++) {
			n += (size_t)sprintf(text + n, "%s\"k%d\":{\"const\":[0", k ? "" : "{", k);
			for (int i = 1; i < 15000; i++)
				n += (size_t)sprintf(text + n, ",0");
			n += (size_t)sprintf(text + n, "]},");
		}
		n += members(text + n);
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
		limit = 1000;
	} else if (_i == 15) { /* a reference of 7,000 steps, followed for each pair of members */
		n += (size_t)sprintf(text + n, "{\"k1\":{\"$ref\":\"#/k0\"}");
		for (int k = 0; k < 7; k++) {
			n += (size_t)sprintf(text + n, ",\"k%d\":{\"$ref\":\"#/k%d/d", k ? k + 1 : 0, k + 2);
			memset(text + n, '/', 1000);
			n += 1000 + (size_t)sprintf(text + n + 1000, "\",\"d\":");
			for (int i = 0; i < 1000; i++)
				n += (size_t)sprintf(text + n, "{\"\":");
			n += (size_t)sprintf(text + n, "{\"$ref\":\"#/k%d\"}", k + 2);
			memset(text + n, '}', 1001);
			n += 1001;
		}
		n += (size_t)sprintf(text + n, ",\"k8\":{\"type\":\"string\",\"d\":true},");
		n += members(text + n);
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
	} else if (_i == 16) { /* 16,000 values of items, each looked for among those of contains */
		n += numbers(text + n, "{\"contains\":{\"$ref\":\"#/items\"},\"items\":{\"enum\":[", 16000,
		             "]}}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
		ck_assert_ptr_nonnull(strstr(err.text, "steps"));
	} else if (_i == 17) { /* 10,000 values, each looked for among those that are not allowed */
		n += numbers(text + n, "{\"enum\":[", 10000, "],\"not\":{\"enum\":[-");
		n += numbers(text + n, "1,-", 10000, "]}}");
		ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, text, n, 0, &g, &err), ERR_FULL);
		ck_assert_ptr_nonnull(strstr(err.text, "steps"));
	} else { /* strings that are each other's beginnings */
		text[n++] = '[';
		for (int i = 1; i < 450; i++)
			n += (size_t)sprintf(text + n, "%s\"%0*d\"", i > 1 ? "," : "", i, 0);
		text[n++] = ']';
		ck_assert_int_eq(grammar_compile(GRAMMAR_CHOICE, text, n, 0, &g, &err), 0);
	}
	grammar_destroy(&g);
	ck_assert_msg(cpu_ms() - begin < limit, "case %d took %g ms", _i, cpu_ms() - begin);
}
