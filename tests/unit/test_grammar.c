/* test_grammar.c - constraints by tables: what is of a grammar and what is not, what is refused and
 * how; masks against walking each token by itself; counters, memory and hostile texts within
 * their bounds. */
#include "grammar/grammar.h"
#include "util/mem.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static double cpu_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static struct automaton *made(enum grammar_kind kind, const char *text,
                              const struct grammar_vocab *v)
{
	struct grammar *g;
	struct err err = {0};
	int r = grammar_compile(kind, text, strlen(text), 0, &g, &err);
	ck_assert_msg(r == 0, "%s: %s", text, err.text);
	return automaton_new(g, v, 1 << 20, NULL);
}

static int is_match(enum grammar_kind kind, const char *text, const char *answer, size_t len)
{
	struct automaton *a = made(kind, text, NULL);
	int m = automaton_matches(a, answer, len, NULL);
	automaton_destroy(&a);
	return m;
}

/* --- what matches -------------------------------------------------------- */

#define AB13 "ababababababababababababab"
#define AB39 AB13 AB13 AB13 /* 78 bytes: beyond the places that tokens tell apart */

static const struct {
	enum grammar_kind kind;
	const char *text, *yes[8], *no[8];
} matching[] = {
	{GRAMMAR_REGEX, "a+b?", {"a", "ab", "aaab"}, {"", "b", "abb", "xa"}},
	{GRAMMAR_REGEX, "^(foo|ba[rz])$", {"foo", "bar", "baz"}, {"fo", "bax", "foobar"}},
	{GRAMMAR_REGEX, "x{2,4}", {"xx", "xxx", "xxxx"}, {"x", "xxxxx"}},
	{GRAMMAR_REGEX,
     "(?:ab){10,12}c",
     {"ababababababababababc", "ababababababababababababc"},
     {"ababababababababababababab", "ababababababababababababababc"}},
	{GRAMMAR_REGEX, "[a-f\\d_-]{3}", {"a1-", "__f"}, {"a1", "g11"}},
	{GRAMMAR_REGEX, "[^a-z]", {"A", "1", "\xc3\xa4", "\xf0\x9f\x98\x80"}, {"a", "", "\xc3", "AA"}},
	{GRAMMAR_REGEX,
     "[\xc3\xa0-\xc3\xbc\xe2\x82\xac]+",
     {"\xc3\xa4\xc3\xb6", "\xe2\x82\xac"},
     {"\xc3\xbf", "a", "\xe2\x82"}},
	{GRAMMAR_REGEX,
     "\\u00e4\\x41\\uD83D\\uDE00",
     {"\xc3\xa4"
      "A\xf0\x9f\x98\x80"},
     {"\xc3\xa4"
      "A"}},
	{GRAMMAR_REGEX,
     ".*",
     {"", "a b", "\xe2\x82\xac"},
     {"a\nb", "\xff", "\xed\xa0\x80", "\xc0\x80"}},
	{GRAMMAR_REGEX, "\\w+@\\w+\\.com", {"a@b.com"}, {"a@bxcom", "@b.com"}},
	{GRAMMAR_REGEX, "(?P<year>\\d{4})-(?<m>\\d\\d)", {"2024-01"}, {"2024-1"}},
	{GRAMMAR_REGEX, "a{,x|{", {"a{,x", "{"}, {"a", ""}},
	{GRAMMAR_REGEX, "(a*)*b", {"b", "aab"}, {"", "a"}},
	{GRAMMAR_REGEX, "a??b*?", {"", "ab", "bb"}, {"aa"}},
	{GRAMMAR_REGEX,
     "(ab){39,41}c",
     {AB39 "c", AB39 "ababc"},
     {AB39, AB39 "abababc", "ababababababababc"}},
	{GRAMMAR_CHOICE,
     "[\"zoo\",\"zo\",\"ab\",\"a\",\"b\"]",
     {"zoo", "zo", "ab", "a", "b"},
     {"z", "zooo", "ba"}},
	{GRAMMAR_CHOICE,
     "[\"yes\",\"no\",\"now\",\"\\u00e4\"]",
     {"yes", "no", "now", "\xc3\xa4"},
     {"", "n", "yesno", "nowx"}},
	{GRAMMAR_JSON_OBJECT,
     "",
     {"{}", "{\"a\": 1}", "{\"a\":[1,2.5e3,{\"b\":null}],\"c\":\"\\u00e4\\n\"}", "{ \"a\": [ ] }"},
     {"", "[]", "{\"a\"}", "{\"a\":01}", "{\"a\":  1}", "{\"a\":1,}", "{\"\\ud800\":1}", "{}{}"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":["
     "\"string\",\"null\"]}},\"required\":[\"a\",\"b\"],"
     "\"additionalProperties\":false}",
     {"{\"a\":1,\"b\":null}", "{\"a\": -20, \"b\": \"x\"}"},
     {"{\"a\":1}", "{\"b\":null,\"a\":1}", "{\"a\":1.5,\"b\":null}",
      "{\"a\":1,\"b\":null,\"c\":1}"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"properties\":{\"a\":{\"type\":\"boolean\"},\"b\":{\"const\":1},\"c\":true},\"required\":["
     "\"b\"]}",
     {"{\"b\":1}", "{\"a\":true,\"b\":1}", "{\"b\":1,\"c\":[1]}",
      "{\"a\":false, \"b\":1, \"c\":{}}"},
     {"{}", "{\"a\":true}", "{\"b\":2}", "{\"c\":1,\"b\":1}", "{\"a\":true,}"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":{"
     "\"type\":\"integer\"}}",
     {"{}", "{\"a\":null}", "{\"a\":null,\"b\":3,\"aa\":4}", "{\"b\":3}", "{\"\":3}"},
     {"{\"a\":3}", "{\"b\":null}", "{\"a\":null,\"a\":3}", "{\"b\":1,\"a\":2}"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{}", "{\"x y\":3}", "{\"\\n\":0,\"b\":-1}"},
     {"{\"a\":\"\"}"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",2,null,[1],0.1]},\"minItems\":1,\"maxItems\":"
     "3}",
     {"[\"a\"]", "[2, null,[1]]", "[0.1]"},
     {"[]", "[2,2,2,2]", "[3]", "[2,]"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":9,\"maxItems\":11}",
     {"[true,true,true,true,true,true,true,true,true]"},
     {"[true,true,true,true,true,true,true,true]",
      "[true,true,true,true,true,true,true,true,true,true,true,true]"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^[a-c\\\"]+$\"}",
     {"\"abc\"", "\"a\\\"\""},
     {"\"\"", "\"d\"", "\"a\"\"", "\"a\\n\""}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"b\"}",
     {"\"b\"", "\"abc\"", "\"\\n\\u001fb\\t\""},
     {"\"\"", "\"ac\""}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^a|b$\"}",
     {"\"ax\"", "\"xb\"", "\"a\""},
     {"\"xax\"", "\"bx\""}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"minLength\":2,\"maxLength\":40}",
     {"\"ab\"", "\"\\u00e4\xc3\xa4\"", "\"\\ud83d\\ude00x\"",
      "\"0123456789012345678901234567890123456789\""},
     {"\"a\"", "\"\"", "\"\\ud83d\\ude00\"", "\"01234567890123456789012345678901234567890\""}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"minLength\":78,\"maxLength\":80}",
     {"\"" AB39 "\"", "\"" AB39 "xy\""},
     {"\"" AB39 "xyz\"", "\"x\"", "\"ababab\""}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"minLength\":79}",
     {"\"" AB39 "x\"", "\"" AB39 AB39 "\""},
     {"\"" AB39 "\""}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"2023-12-31\"", "\"2000-02-29\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"x\""}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"format\":\"ipv6\"}",
     {"\"::\"", "\"1:2:3:4:5:6:7:8\"", "\"fe80::1\"", "\"::ffff:1\""},
     {"\":\"", "\"1::2::3\"", "\"1:2:3:4:5:6:7:8:9\""}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567e89b12d3a456426614174000\""}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"format\":\"email\"}",
     {"\"a.b@c.de\"", "\"x+y@sub.host.org\""},
     {"\"a@b\"", "\".a@b.c\"", "\"a@b..c\"", "\"@b.c\""}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":105}",
     {"-12", "-9", "0", "7", "99", "100", "104"},
     {"-13", "105", "-0", "00", "1.0", "1000", "-100"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"integer\",\"minimum\":1999.5}",
     {"2000", "9999", "10000", "123456789012345678901"},
     {"1999", "200", "-2000", "02000"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "1", "0.5", "1.000", "0.0"},
     {"1.1", "1.001", "-0.5", "2", "1e0"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"number\",\"exclusiveMinimum\":-2,\"exclusiveMaximum\":3}",
     {"-1.99", "-1", "0", "2.999", "-0.5"},
     {"-2", "3", "-2.0", "3.0", "-2.5"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"number\",\"exclusiveMinimum\":2,\"minimum\":1}",
     {"2.01", "2.5", "3", "10"},
     {"2", "2.0", "1", "1.5"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"number\",\"exclusiveMaximum\":-2,\"minimum\":-5}",
     {"-2.1", "-5", "-5.0", "-3.7"},
     {"-2", "-2.0", "-5.1", "-1", "2"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"integer\",\"minimum\":3,\"exclusiveMinimum\":7,\"maximum\":20,"
     "\"exclusiveMaximum\":12}",
     {"8", "11"},
     {"7", "12", "3", "20"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"integer\",\"exclusiveMinimum\":3,\"minimum\":7,\"exclusiveMaximum\":20,"
     "\"maximum\":12}",
     {"7", "12"},
     {"6", "13", "4", "19"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"number\",\"minimum\":3,\"exclusiveMinimum\":7,\"maximum\":12,"
     "\"exclusiveMaximum\":20}",
     {"7.1", "12", "12.0"},
     {"7", "3", "12.1", "13"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"$ref\":\"#/$defs/a~1b~0c\",\"$defs\":{\"a/b~c\":{\"const\":1},\"a~b/c\":{\"const\":2}}}",
     {"1"},
     {"2"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"anyOf\":[{\"const\":1},{\"type\":\"array\",\"items\":{\"$ref\":\"#/anyOf/0\"}}]}",
     {"1", "[1, 1]"},
     {"2", "[[1]]"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"object\",\"properties\":{\"k\":{\"const\":"
     "\"a\"}},\"required\":[\"k\"]}]}",
     {"5", "{\"k\":\"a\"}"},
     {"\"a\"", "{}", "{\"k\":\"b\"}"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"$ref\":\"#/$defs/"
     "n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
     "\"next\":{\"anyOf\":[{\"type\":\"null\"},"
     "{\"$ref\":\"#/$defs/n\"}]}},\"required\":[\"v\",\"next\"]}}}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2}}"}},
	{GRAMMAR_JSON_SCHEMA, "{}", {"1", "\"x\"", "[1,{\"a\":true}]", "null"}, {"", "nul", "[1"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":[\"string\",\"integer\"],\"enum\":[\"a\",1,2.5,null]}",
     {"\"a\"", "1"},
     {"2.5", "null"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"allOf\":[{\"type\":\"null\"}],\"description\":\"x\"}",
     {"null"},
     {"1"}},
	{GRAMMAR_JSON_SCHEMA, "{\"required\":[\"z\"]}", {"{\"z\":[]}"}, {"{}", "{\"y\":1}"}},
	{GRAMMAR_STRUCTURE,
     "[{\"literal\":\"<call>\"},{\"any_of\":[[{\"literal\":\"f "
     "\"},{\"schema\":{\"type\":\"integer\"}}],[{\"literal\":\"g\"}]]},{\"regex\":\"x?\"},{"
     "\"literal\":\"</call>\"}]",
     {"<call>f 12</call>", "<call>gx</call>"},
     {"<call>f</call>", "<call>g</call> "}},
	{GRAMMAR_STRUCTURE,
     "[{\"any_of\":[[],[{\"literal\":\"x\"}],[{\"literal\":\"y\"}]]}]",
     {"", "x", "y"},
     {"xy"}},
	{GRAMMAR_STRUCTURE,
     "[{\"free\":\"aab\"},{\"literal\":\"!\"}]",
     {"aab!", "xaaab!", "abaab!"},
     {"aab", "aab!x", "ab!"}},
	{GRAMMAR_STRUCTURE,
     "[{\"repeat\":[{\"regex\":\"[ab]\"}],\"min\":1,\"max\":3,\"separator\":\", \"}]",
     {"a", "a, b", "a, b, a"},
     {"", "a,b", "a, b, a, b", "a, "}},
	{GRAMMAR_STRUCTURE,
     "[{\"literal\":\"a \"},{\"choice\":[\"yes\",\"yet\"]},{\"literal\":\".\"}]",
     {"a yes.", "a yet."},
     {"a ye.", "yes.", "a yesyet."}},
	{GRAMMAR_STRUCTURE, "[{\"free\":\"\"}]", {"", "anything\n"}, {NULL}},
	{GRAMMAR_STRUCTURE,
     "[{\"literal\":\"<\"},{\"gbnf\":\"root ::= [ab]+\"},{\"literal\":\">\"}]",
     {"<a>", "<abba>"},
     {"<>", "a", "<c>"}},
	{GRAMMAR_GBNF, "root ::= \"\"", {""}, {"a"}},
	{GRAMMAR_GBNF,
     "# a sum\nroot  ::= (expr \"=\" ws term \"\\n\")+\nexpr  ::= term ([-+*/] term)*\n"
     "term  ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\n"
     "num ::= [0-9]+ ws\nws ::= [ \\t\\n]*",
     {"a=1\n", "a+(b-2)*x_1 = 7\n", "((1))=1\n2=2\n"},
     {"a=\n", "a+=1\n", "(1=1\n", "a=1"}},
	{GRAMMAR_GBNF,
     "root ::= list\nlist ::= \"[\" ( list\n  ( \",\" list )* # more\n )? \"]\"\n",
     {"[]", "[[],[[]]]"},
     {"", "[", "[,]", "[][]"}},
	{GRAMMAR_GBNF,
     "root ::= one\n  | two\n\t| \"x\"{2,3} # and more\none::=\"\\x31\\u00e4\\U0001F600\"\n"
     "two ::= [^a-z\\]\\\\-] . \"\\\"\\\\\"",
     {"1\xc3\xa4\xf0\x9f\x98\x80", "xx", "xxx", "A\n\"\\", "\xc3\xa4\xe2\x82\xac\"\\"},
     {"x", "xxxx", "aa\"\\", "]a\"\\", "-a\"\\"}},
	{GRAMMAR_GBNF,
     "root ::= item root | \"\"\nitem ::= \"- \" [a-z]+ \"\\n\"",
     {"", "- a\n", "- ab\n- c\n"},
     {"- ", "- a", "a\n"}},
	{GRAMMAR_GBNF,
     "root ::= list\nlist ::= item list | item\nitem ::= [a-c] opt \";\"\nopt ::= \"!\"?",
     {"a;", "a!;b;c;"},
     {"", ";", "a;b"}},
	{GRAMMAR_GBNF,
     "root ::= [a-] \"q\"? \"ab\"* [0-9]{2} [x]{1,}",
     {"a12x", "-qabab00xx"},
     {"bq12x", "aqaba12x", "a1x", "a12"}},
};

START_TEST(matches)
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
END_TEST

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
	{GRAMMAR_JSON_SCHEMA, "{\"not\":{}}", ERR_UNSUPPORTED, "/not: this keyword is not supported",
     0},
	{GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(?!x)\"}}}",
     ERR_UNSUPPORTED, "/properties/a/pattern: lookahead", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"items\":{\"multipleOf\":3}}}}",
     ERR_UNSUPPORTED, "/properties/a/items/multipleOf: ", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"strin\"}]}", ERR_INVALID,
     "/anyOf/1/type: \"strin\" is none of", 0},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"uri\"}", ERR_UNSUPPORTED,
     "/format: \"uri\" is not supported", 0},
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
	{GRAMMAR_JSON_SCHEMA, "{\"a\":1,\"a\":2}", ERR_INVALID, "duplicate", 0},
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

START_TEST(refused)
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
END_TEST

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
START_TEST(empty_parts)
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
END_TEST

/* As many ranges as [...] may have, all apart, leave one more to [^...]: what stands behind the
 * last is among it. */
START_TEST(most_ranges)
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
END_TEST

/* Texts made by a rule: nesting, chains of references, many alternatives. All end in bounded
 * time, with a grammar or without. */
START_TEST(hostile)
{
	static char text[GRAMMAR_TEXT_MAX + 64];
	size_t n = 0;
	struct grammar *g = NULL;
	struct err err = {0};
	double begin = cpu_ms();
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
	} else { /* strings that are each other's beginnings */
		text[n++] = '[';
		for (int i = 1; i < 450; i++)
			n += (size_t)sprintf(text + n, "%s\"%0*d\"", i > 1 ? "," : "", i, 0);
		text[n++] = ']';
		ck_assert_int_eq(grammar_compile(GRAMMAR_CHOICE, text, n, 0, &g, &err), 0);
	}
	grammar_destroy(&g);
	ck_assert_msg(cpu_ms() - begin < 5000, "case %d took %g ms", _i, cpu_ms() - begin);
}
END_TEST

/* --- masks --------------------------------------------------------------- */

#define TOKENS_MAX 700u

struct words {
	const char *s[TOKENS_MAX];
	uint32_t len[TOKENS_MAX], n;
	char store[TOKENS_MAX][48];
};

static void word_add(struct words *w, const char *s, size_t len)
{
	memcpy(w->store[w->n], s, len);
	w->s[w->n] = w->store[w->n];
	w->len[w->n++] = (uint32_t)len;
}

/* All bytes alone, words that cross borders of all kinds, halves of characters, a long one, a
 * special one (id 0) and two that are equal. */
static void make_words(struct words *w)
{
	static const char *const more[] = {
		"{\"",     "\":",      "\": ",      "\",\"",    "\"}",
		"},{",     "}]",       "[]",        "{}",       "true",
		"false",   "null",     "tru",       "12",       "345",
		"-1",      "0.5",      "e1",        "ab",       "abc",
		"aab",     "name",     "\"name\":", " ",        "  ",
		"\\u",     "\\n\"",    "\\\\",      "\"a\":1",  ",\"b",
		"\xc3",    "\xa4",     "\xc3\xa4",  "\xe2\x82", "\xac",
		"x\xc3",   "\xf0\x9f", "\x98\x80",  "yes",      "no",
		"2024-",   "02-29",    "@",         ".com",     "foo",
		"\"foo\"", "null}",    "1,",        "1, ",      "1}",
		"]}",      "]]",       "a\"",       "b\"]",     "0123456789012345678901234567890123456789",
		"1,"};
	w->n = 0;
	w->s[w->n] = NULL;
	w->len[w->n++] = 0;
	for (unsigned b = 0; b < 256; b++)
		word_add(w, &(char){(char)b}, 1);
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		word_add(w, more[i], strlen(more[i]));
}

static uint64_t rng = 1;

static uint32_t draw(uint32_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(rng >> 33) % n;
}

static int has(const uint64_t *mask, uint32_t id)
{
	return mask[id / 64] >> id % 64 & 1;
}

/* Whether text + token can still become an answer, found without masks: byte by byte. */
static int leads_on(struct automaton *bytes, const char *text, size_t len, const char *token,
                    uint32_t token_len)
{
	char all[4096];
	size_t good;
	memcpy(all, text, len);
	memcpy(all + len, token, token_len);
	automaton_matches(bytes, all, len + token_len, &good);
	return good == len + token_len;
}

/* A random answer: the mask of each step says the same as the bytes do; it ends, and what comes
 * out matches. */
static void random_answer(const struct words *w, struct automaton *a, struct automaton *bytes,
                          int counted, unsigned steps, int check_all)
{
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	uint32_t tokens[600];
	char text[4000];
	size_t len = 0;
	uint32_t n = 0;
	struct grammar_walk walk = {0};
	for (; n < steps; n++) {
		unsigned flags;
		struct err err = {0};
		uint32_t may[TOKENS_MAX], n_may = 0;
		int r = automaton_mask(a, &walk, tokens, n, mask, &flags, &err);
		ck_assert_msg(r == 0, "%s", err.text);
		ck_assert_int_eq(!!(flags & AUTOMATON_MAY_END), automaton_matches(bytes, text, len, NULL));
		ck_assert(!has(mask, 0));
		for (uint32_t i = 1; i < w->n; i++) {
			if (has(mask, i))
				may[n_may++] = i;
			if (check_all && !(counted && w->len[i] > 32))
				ck_assert_msg(has(mask, i) == leads_on(bytes, text, len, w->s[i], w->len[i]),
				              "after \"%.*s\": token \"%.*s\"", (int)len, text, (int)w->len[i],
				              w->s[i]);
		}
		ck_assert_int_eq(n_may > 0, !!(flags & AUTOMATON_MAY_GO_ON));
		if (!n_may || ((flags & AUTOMATON_MAY_END) && draw(4) == 0))
			return;
		uint32_t id = may[draw(n_may)];
		ck_assert_uint_eq(automaton_leading(a, &walk, tokens, n, &id, 1), 1);
		tokens[n] = id;
		memcpy(text + len, w->s[id], w->len[id]);
		len += w->len[id];
		if (len > 3000)
			return;
	}
}

START_TEST(masks)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct automaton *a = made(matching[_i].kind, matching[_i].text, v),
					 *b = made(matching[_i].kind, matching[_i].text, NULL);
	rng = (uint64_t)_i + 1;
	int counted = strstr(matching[_i].text, "Length") || strstr(matching[_i].text, "Items") ||
	              strchr(matching[_i].text, '{');
	for (int k = 0; k < 3; k++)
		random_answer(&w, a, b, counted, 12, 1);
	for (int k = 0; k < 20; k++)
		random_answer(&w, a, b, counted, 60, 0);
	automaton_destroy(&a);
	automaton_destroy(&b);
	grammar_vocab_destroy(&v);
}
END_TEST

/* A walk that begins anew (another worker) finds the same masks; one that shares the automaton
 * with others, too; also when there is so little room that tables are renewed. */
START_TEST(state_is_a_function_of_the_tokens)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct grammar *g;
	static const char schema[] =
		"{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":3000},\"minItems\":2}";
	ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, schema, strlen(schema), 0, &g, NULL), 0);
	struct automaton *small = automaton_new(g, v, 0, NULL),
					 *fresh = made(GRAMMAR_JSON_SCHEMA, schema, v);
	struct grammar_walk kept = {0}, other = {0};
	static uint32_t tokens[3000];
	uint64_t m1[(TOKENS_MAX + 63) / 64], m2[(TOKENS_MAX + 63) / 64];
	unsigned f1, f2;
	size_t most = 0;
	rng = 5;
	for (uint32_t n = 0; n < 3000; n++) {
		struct err err = {0};
		ck_assert_msg(automaton_mask(small, &kept, tokens, n, m1, &f1, &err) == 0, "%s", err.text);
		if (n % 97 == 0) {
			struct grammar_walk anew = {0};
			ck_assert_int_eq(automaton_mask(fresh, &anew, tokens, n, m2, &f2, NULL), 0);
			ck_assert_mem_eq(m1, m2, grammar_mask_words(w.n) * 8);
			ck_assert_uint_eq(f1, f2);
			/* somebody else's answer in between */
			ck_assert_int_eq(automaton_mask(small, &other, tokens, n / 2, m2, &f2, NULL), 0);
		}
		uint32_t may[TOKENS_MAX], n_may = 0;
		/* strings of some length, and no end */
		for (int quotes = n % 50 == 0; !n_may && quotes < 2; quotes++)
			for (uint32_t i = 0; i < w.n; i++)
				if (has(m1, i) && !memchr(w.s[i], ']', w.len[i]) &&
				    (quotes || !memchr(w.s[i], '"', w.len[i])))
					may[n_may++] = i;
		ck_assert_uint_gt(n_may, 0);
		tokens[n] = may[draw(n_may)];
		most = automaton_bytes(small) > most ? automaton_bytes(small) : most;
	}
	ck_assert_msg(most < 6 << 20, "%zu bytes", most);
	automaton_destroy(&small);
	automaton_destroy(&fresh);
	grammar_vocab_destroy(&v);
}
END_TEST

START_TEST(foreign_tokens)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct automaton *a = made(GRAMMAR_CHOICE, "[\"abc\"]", v);
	struct grammar_walk walk = {0};
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	unsigned flags;
	struct err err = {0};
	uint32_t wrong[] = {1 + 'a', 1 + 'b', 1 + 'x'}, special[] = {0}, outside[] = {w.n};
	ck_assert_int_eq(automaton_mask(a, &walk, wrong, 3, mask, &flags, &err), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(err.text, "token 2 (id 121)"));
	ck_assert_int_eq(automaton_mask(a, &walk, wrong, 2, mask, &flags, &err), 0);
	ck_assert(has(mask, 1 + 'c') && !has(mask, 1 + 'b'));
	ck_assert_uint_eq(automaton_leading(a, &walk, wrong, 1, wrong + 1, 2), 1);
	walk = (struct grammar_walk){0};
	ck_assert_int_eq(automaton_mask(a, &walk, special, 1, mask, &flags, &err), ERR_INVALID);
	ck_assert_int_eq(automaton_mask(a, &walk, outside, 1, mask, &flags, &err), ERR_INVALID);
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}
END_TEST

/* A vocabulary that cannot write the answer: said so, nothing else. */
START_TEST(no_way_on)
{
	const char *s[] = {"a", "b"};
	uint32_t len[] = {1, 1}, tokens[] = {0};
	struct grammar_vocab *v = grammar_vocab_new(s, len, 2);
	struct automaton *a = made(GRAMMAR_CHOICE, "[\"ac\"]", v);
	struct grammar_walk walk = {0};
	uint64_t mask[1];
	unsigned flags;
	struct err err = {0};
	ck_assert_int_eq(automaton_mask(a, &walk, tokens, 0, mask, &flags, &err), 0);
	ck_assert_int_eq(automaton_mask(a, &walk, tokens, 1, mask, &flags, &err), ERR_NOTFOUND);
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}
END_TEST

/* Nesting ends at the limit, and up to there everything can be closed again. */
START_TEST(nesting)
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
END_TEST

/* However deep an answer went, what its schema requires can still be written: an opening without
 * room for that is not allowed. */
START_TEST(closes)
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
END_TEST

/* Beyond what a counter's places tell apart a token is only offered if it fits wherever the
 * counter is. */
START_TEST(long_tokens)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct automaton *a = made(GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":200}", v);
	struct grammar_walk walk = {0};
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	uint32_t tokens[200] = {1 + '"'}, longest = 0;
	unsigned flags;
	for (uint32_t i = 1; i < w.n; i++)
		longest = w.len[i] > w.len[longest] ? i : longest;
	ck_assert_uint_eq(w.len[longest], 40);
	for (uint32_t n = 1; n <= 165; n++) {
		ck_assert_int_eq(automaton_mask(a, &walk, tokens, n, mask, &flags, NULL), 0);
		if (has(mask, longest))
			ck_assert_uint_eq(automaton_leading(a, &walk, tokens, n, &longest, 1), 1);
		tokens[n] = 1 + 'x';
	}
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}
END_TEST

/* Ambiguity that grows with the text: refused or bounded, never slow. */
START_TEST(ambiguous)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct automaton *a = made(GRAMMAR_REGEX, "(a|b)*a(a|b){18}x", v);
	struct grammar_walk walk = {0};
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	uint32_t tokens[400];
	unsigned flags;
	double begin = cpu_ms();
	rng = 3;
	for (uint32_t n = 0; n < 400; n++) {
		ck_assert_int_eq(automaton_mask(a, &walk, tokens, n, mask, &flags, NULL), 0);
		tokens[n] = 1 + 'a' + draw(2);
	}
	ck_assert_msg(cpu_ms() - begin < 20000, "%g ms", cpu_ms() - begin);
	ck_assert_uint_lt(automaton_bytes(a), 8 << 20);
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}
END_TEST

/* So many ways at once that no mask can be told in bounded time: said so, each time the same. */
START_TEST(too_costly)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	static char text[8192];
	size_t n = (size_t)sprintf(text, "[ -~]*(");
	for (int i = 0; i < 240; i++)
		n += (size_t)sprintf(text + n, "[ -~]%c|", 'a' + i % 26);
	sprintf(text + n, "zz)");
	struct automaton *a = made(GRAMMAR_REGEX, text, v);
	struct grammar_walk walk = {0};
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	unsigned flags;
	for (int k = 0; k < 2; k++) {
		struct err err = {0};
		ck_assert_int_eq(automaton_mask(a, &walk, NULL, 0, mask, &flags, &err), ERR_UNSUPPORTED);
		ck_assert_ptr_nonnull(
			strstr(err.text, "too ambiguous: finding the next token takes more than"));
	}
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}
END_TEST

/* A token that is allowed by what its place looks like from near, and behind which the answer
 * may be too many things at once: that is the reason that is told. */
START_TEST(too_many_at_once)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct automaton *a = made(GRAMMAR_REGEX, "(m../||b){6,60}", v);
	struct grammar_walk walk = {0};
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	uint32_t tokens[] = {1 + 'b', 1 + 'm'};
	unsigned flags;
	struct err err = {0};
	ck_assert_int_eq(automaton_mask(a, &walk, tokens, 1, mask, &flags, &err), 0);
	ck_assert(has(mask, tokens[1]));
	ck_assert_int_eq(automaton_mask(a, &walk, tokens, 2, mask, &flags, &err), ERR_UNSUPPORTED);
	ck_assert_msg(strstr(err.text, "after token 1 the answer has more than 512 interpretations") !=
	                  NULL,
	              "%s", err.text);
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}
END_TEST

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

int main(void)
{
	Suite *s = suite_create("grammar");
	TCase *t = tcase_create("grammar");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, matches, 0, COUNT(matching));
	tcase_add_loop_test(t, refused, 0, COUNT(refusals));
	tcase_add_test(t, empty_parts);
	tcase_add_test(t, most_ranges);
	tcase_add_loop_test(t, hostile, 0, 9);
	tcase_add_loop_test(t, masks, 0, COUNT(matching));
	tcase_add_test(t, state_is_a_function_of_the_tokens);
	tcase_add_test(t, foreign_tokens);
	tcase_add_test(t, no_way_on);
	tcase_add_test(t, nesting);
	tcase_add_test(t, closes);
	tcase_add_test(t, long_tokens);
	tcase_add_test(t, ambiguous);
	tcase_add_test(t, too_costly);
	tcase_add_test(t, too_many_at_once);
	suite_add_tcase(s, t);
	SRunner *sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	int failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed != 0;
}
