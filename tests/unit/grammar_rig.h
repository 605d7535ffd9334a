/* grammar_rig.h - constraints of every kind, each with texts that match and texts that do not. */
#ifndef TESTS_GRAMMAR_RIG_H
#define TESTS_GRAMMAR_RIG_H

#include "grammar/grammar.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

static inline double cpu_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static inline struct automaton *made(enum grammar_kind kind, const char *text,
                                     const struct grammar_vocab *v)
{
	struct grammar *g;
	struct err err = {0};
	int r = grammar_compile(kind, text, strlen(text), 0, &g, &err);
	ck_assert_msg(r == 0, "%s: %s", text, err.text);
	return automaton_new(g, v, 1 << 20, NULL);
}

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
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"required\":[\"x\"],\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"x\":1}", "{\"x\":-2,\"y\":3}"},
     {"{}", "{\"x\":\"no\"}", "{\"x\":[1]}", "{\"x\":1,\"y\":\"no\"}", "{\"x\":1,\"x\":2}"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"properties\":{\"a\":{\"type\":\"null\"}},\"required\":[\"y\",\"x\",\"a\"],"
     "\"additionalProperties\":{\"type\":\"array\",\"items\":{\"const\":1}}}",
     {"{\"a\":null,\"x\":[1],\"y\":[]}", "{\"a\":null,\"x\":[],\"y\":[1,1],\"z\":[1]}"},
     {"{\"a\":null,\"x\":[1]}", "{\"a\":null,\"x\":[2],\"y\":[]}",
      "{\"a\":null,\"x\":[1],\"y\":null}", "{\"a\":[],\"x\":[1],\"y\":[]}"}},
	{GRAMMAR_JSON_SCHEMA,
     "{\"required\":[\"x\"],\"additionalProperties\":true}",
     {"{\"x\":\"a\"}", "{\"x\":{},\"y\":null}"},
     {"{}", "{\"y\":1}"}},
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

#endif
