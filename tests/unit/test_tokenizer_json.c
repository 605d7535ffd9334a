/* test_tokenizer_json.c - tokenizer.json: what is refused and how that is said, and what flags
 * and options do, against what Hugging Face `tokenizers` gives. */
/* run: parser */
#include "text/tokenizer.h"
#include "util/mem.h"
#include "tempdir.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define BYTES                                                                                      \
	"\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":" \
	"\"ByteLevel\"}"
#define FUSED "\"decoder\":{\"type\":\"Fuse\"}"
#define AB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]"
#define BPE "\"model\":{\"type\":\"BPE\"," AB "}"

static void write_file(const char *dir, const char *name, const char *text, size_t len)
{
	char path[TEST_FOLDER_BYTES + 64];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	FILE *f = fopen(path, "w");
	ck_assert(f && fwrite(text, 1, len, f) == len && fclose(f) == 0);
}

static int load(const char *json, const char *config, struct tokenizer **ret, struct err *err)
{
	char dir[TEST_FOLDER_BYTES];
	test_folder(dir, "json");
	if (json)
		write_file(dir, "tokenizer.json", json, strlen(json));
	if (config)
		write_file(dir, "tokenizer_config.json", config, strlen(config));
	return tokenizer_from_folder(dir, ret, err);
}

/* --- refused ------------------------------------------------------------- */

static const struct refusal {
	const char *json;
	int rc;
	const char *says;
} refusals[] = {
	{NULL, ERR_NOTFOUND, "tokenizer.json"},
	{"", ERR_INVALID, "tokenizer.json"},
	{"[]", ERR_INVALID, "expected a JSON object"},
	{"{\"a\":1,\"a\":2}", ERR_INVALID, "duplicate"},
	{"{\"a\":\"\xff\"}", ERR_INVALID, "tokenizer.json:1"},
	{"{}", ERR_UNSUPPORTED, "decoder: missing"},
	{"{\"normalizer\":{\"type\":\"Lowercase\"}," BYTES "," BPE "}", ERR_UNSUPPORTED,
     "normalizer 'Lowercase'"},
	{"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"b\"}," BYTES
     "," BPE "}",
     ERR_UNSUPPORTED, "Replace of a Regex"},
	{"{\"normalizer\":{\"type\":\"Sequence\"}," BYTES "," BPE "}", ERR_INVALID, "normalizers"},
	{"{\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"123456789012345678901234567890123\"}"
     "," BYTES "," BPE "}",
     ERR_UNSUPPORTED, "more than 32 bytes"},
	{"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}," FUSED "," BPE "}", ERR_UNSUPPORTED,
     "pre-tokenizer 'BertPreTokenizer'"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x+\\u0007\"},\"behavior\":"
     "\"Isolated\",\"invert\":false}," FUSED "," BPE "}",
     ERR_UNSUPPORTED, "'x+?...'"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" "
     "\"},\"behavior\":\"Isolated\",\"invert\":false}," FUSED "," BPE "}",
     ERR_UNSUPPORTED, "Split"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"},"
     "\"behavior\":\"Removed\",\"invert\":true}," FUSED "," BPE "}",
     ERR_UNSUPPORTED, "behavior 'Removed'"},
	{"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}," FUSED "," BPE "}",
     ERR_UNSUPPORTED, "replacement '_'"},
	{"{" BYTES ",\"model\":{\"type\":\"WordPiece\"}}", ERR_UNSUPPORTED, "model 'WordPiece'"},
	{"{" BYTES "}", ERR_INVALID, "model: expected an object"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\"}}", ERR_INVALID, "model.vocab"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", ERR_INVALID, "token ids"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"}}}", ERR_INVALID,
     "expected a token id for each text"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":{}}}", ERR_INVALID,
     "model.merges: expected an array"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", ERR_INVALID,
     "token ids from -1"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4194304},\"merges\":[]}}",
     ERR_INVALID, "to 4194304"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":70000},\"merges\":[]}}", ERR_INVALID,
     "to 70000"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":9223372036854775807},\"merges\":[]}}",
     ERR_INVALID, "token ids"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
     ERR_INVALID, "two texts have the id 0"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"dropout\":0.1," AB "}}", ERR_UNSUPPORTED,
     "model.dropout"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"," AB "}}",
     ERR_UNSUPPORTED, "end_of_word_suffix"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}",
     ERR_INVALID, "entry 0: its result"},
	{"{" BYTES
     ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"ab\":1},\"merges\":[[\"a\",\"b\"]]}}",
     ERR_INVALID, "its right part"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"ab\":1},\"merges\":[[\"a\"]]}}",
     ERR_INVALID, "entry 0 is not two"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}",
     ERR_INVALID, "entry 0 is not two"},
	{"{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\" a\"]}}",
     ERR_INVALID, "entry 0 is not two"},
	{"{" FUSED ",\"model\":{\"type\":\"BPE\",\"unk_token\":\"x\"," AB "}}", ERR_INVALID,
     "unk_token"},
	{"{" FUSED ",\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", ERR_INVALID,
     "entry 0 is not a text and a score"},
	{"{" FUSED ",\"model\":{\"type\":\"Unigram\",\"unk_id\":5,\"vocab\":[[\"a\",0]]}}", ERR_INVALID,
     "unk_id"},
	{"{" FUSED ",\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",1e999]]}}", ERR_INVALID,
     "real number overflow"},
	{"{\"added_tokens\":[{\"id\":1}]," BYTES "," BPE "}", ERR_INVALID,
     "entry 0 has no id or no content"},
	{"{\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]," BYTES "," BPE "}", ERR_INVALID,
     "another token's"},
	{"{\"added_tokens\":[{\"id\":3,\"content\":\"a\"}]," BYTES "," BPE "}", ERR_INVALID,
     "has the id 0 in model.vocab"},
	{"{\"added_tokens\":[{\"id\":3,\"content\":\"x\"},{\"id\":3,\"content\":\"y\"}]," BYTES "," BPE
     "}",
     ERR_INVALID, "entry 1 has the id 3"},
	{"{\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"single_word\":true}]," BYTES "," BPE "}",
     ERR_UNSUPPORTED, "single_word"},
	{"{\"decoder\":{\"type\":\"WordPiece\"}," BPE "}", ERR_UNSUPPORTED, "'WordPiece'"},
	{"{\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}," BPE "}",
     ERR_UNSUPPORTED, "Strip"},
	{"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteFallback\"}," BPE "}",
     ERR_UNSUPPORTED, "another decoder"},
};

TEST_CASE("tokenizer_json", .timeout_s = 120);

TEST_LOOP(refused, 0, COUNT(refusals))
{
	const struct refusal *r = &refusals[_i];
	struct tokenizer *t = NULL;
	struct err err = {0};
	ck_assert_int_eq(load(r->json, NULL, &t, &err), r->rc);
	ck_assert_ptr_null(t);
	ck_assert_msg(strstr(err.text, r->says) != NULL, "%s", err.text);
	ck_assert_ptr_nonnull(strstr(err.text, "tokenizer.json"));
	for (const char *c = err.text; *c; c++)
		ck_assert((unsigned char)*c >= ' ');
}

/* Deep nesting, and more values than a file may have. */
TEST(bounds)
{
	enum { N = 9 << 20 };
	char dir[TEST_FOLDER_BYTES], *text = mem_alloc(N);
	struct tokenizer *t = NULL;
	struct err err = {0};
	test_folder(dir, "bounds");
	memset(text, '[', N);
	write_file(dir, "tokenizer.json", text, 100000);
	ck_assert_int_eq(tokenizer_from_folder(dir, &t, &err), ERR_INVALID);
	write_file(dir, "tokenizer.json", text, N);
	ck_assert_int_eq(tokenizer_from_folder(dir, &t, &err), ERR_INVALID);
	ck_assert_msg(strstr(err.text, "more than 8388608 values") != NULL, "%s", err.text);
	free(text);
}

/* --- options ------------------------------------------------------------- */

#define FLAGS(id, content, special, lstrip, rstrip, normalized)                               \
	"{\"id\":" #id ",\"content\":\"" content "\",\"single_word\":false,\"special\":" #special \
	",\"lstrip\":" #lstrip ",\"rstrip\":" #rstrip ",\"normalized\":" #normalized "}"
#define LETTERS                                                                                    \
	"\"vocab\":{\"a\":0,\"b\":1,\"\u2581\":2,\"\u2581a\":3,\"x\":4,\"ab\":5,\"?\":6},\"merges\":[" \
	"\"\u2581 a\",\"a b\"]"
#define SPACED "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"\u0120\":2},\"merges\":[]}"
#define META(scheme, split)                                                                    \
	"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":" \
	"\"" scheme "\",\"split\":" split "},\"decoder\":{\"type\":\"Metaspace\","                 \
	"\"replacement\":\"\u2581\",\"prepend_scheme\":\"" scheme "\"}"

static const struct option {
	const char *json, *text, *want, *back; /* ids, special tokens parsed; what they decode to */
} options[] = {
	{"{\"added_tokens\":[" FLAGS(9, "<s>", true, true, false, false) "]," BYTES "," SPACED "}",
     "a <s> b", "0 9 2 1", "a<s> b"},
	{"{\"added_tokens\":[" FLAGS(9, "<s>", true, false, true, false) "]," BYTES "," SPACED "}",
     "a <s> \n b", "0 2 9 1", "a <s>b"},
	{"{\"added_tokens\":[" FLAGS(9, "<s>", true, true, true, false) "]," BYTES "," BPE "}",
     "<s> <s>\xc2\xa0"
     "ab",
     "9 9 2", "<s><s>ab"},
	{"{\"added_tokens\":[" FLAGS(9, "<s>", true, false, true, false) "," FLAGS(
		 8, " ", false, false, false, false) "]," BYTES "," BPE "}",
     "<s>  a", "9 8 8 0", "<s>  a"},
	{"{\"added_tokens\":[" FLAGS(9, "ab", false, false, false, false) "," FLAGS(
		 8, "abab", false, false, false,
		 true) "]," BYTES ",\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}",
     "abab", "9 9", "abab"},
	{"{\"added_tokens\":[" FLAGS(9, "<s>", true, false, false,
                                 true) "],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{"
                                       "\"String\":\"s\"},\"content\":\"x\"}," BYTES "," BPE "}",
     "a<x>b<s>", "0 9 1 9", "a<s>b<s>"},
	{"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true},\"decoder\":{\"type\":"
     "\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0,\"\u0120\":1},\"merges\":[]}}",
     "a a", "1 0 1 0", " a a"},
	{"{" META("always", "true") ",\"model\":{" LETTERS "}}", "a a", "3 3", "a a"},
	{"{" META("always", "false") ",\"model\":{" LETTERS "}}", " a", "3", "a"},
	{"{" META("never", "false") ",\"model\":{" LETTERS "}}", "a a", "0 3", "a a"},
	{"{" META("first", "false") ",\"added_tokens\":[" FLAGS(9, "<s>", true, false, false,
                                                            false) "],\"model\":{" LETTERS "}}",
     "a<s>a", "3 9 0", "a<s>a"},
	{"{" META("always", "false") ",\"added_tokens\":[" FLAGS(9, "<s>", true, false, false,
                                                             false) "],\"model\":{" LETTERS "}}",
     "a<s>a", "3 9 3", "a<s> a"},
	{"{" FUSED ",\"model\":{\"unk_token\":\"?\",\"fuse_unk\":true," LETTERS "}}", "azzb", "0 6 1",
     "a?b"},
	{"{" FUSED ",\"model\":{\"unk_token\":\"?\",\"fuse_unk\":false," LETTERS "}}", "azzb",
     "0 6 6 1", "a??b"},
	{"{" FUSED ",\"model\":{" LETTERS "}}", "azzb", "5", "ab"},
	{"{" FUSED
     ",\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"ab\",-5]]}}",
     "abzza", "2 0 1", "ab?a"},
	{"{" FUSED
     ",\"model\":{\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[]}}",
     "ab", "2", "ab"},
};

TEST_LOOP(option, 0, COUNT(options))
{
	const struct option *o = &options[_i];
	struct tokenizer *t = NULL;
	struct err err = {0};
	struct token_list l = {0};
	struct buf ids, back;
	buf_init(&ids, 0);
	buf_init(&back, 0);
	ck_assert_msg(load(o->json, NULL, &t, &err) == 0, "%s", err.text);
	ck_assert_int_eq(tokenizer_encode(t, o->text, strlen(o->text), TOKENIZE_PARSE_SPECIAL, 0, &l),
	                 0);
	for (size_t i = 0; i < l.n; i++)
		buf_printf(&ids, i ? " %u" : "%u", l.ids[i]);
	ck_assert_str_eq(ids.data, o->want);
	ck_assert_int_eq(tokenizer_decode(t, l.ids, l.n, 0, &back), 0);
	ck_assert_str_eq(back.data, o->back);
	token_list_fini(&l);
	buf_fini(&ids);
	buf_fini(&back);
	tokenizer_destroy(&t);
}

/* --- BOS and EOS --------------------------------------------------------- */

#define SPECIALS                                                                                 \
	"\"added_tokens\":[" FLAGS(8, "<s>", true, false, false,                                     \
	                           false) "," FLAGS(9, "</s>", true, false, false, false) "]," BYTES \
																					  "," BPE
#define TEMPLATE                                                                                 \
	"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":" \
	"\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[8]}}}"

TEST(ends)
{
	static const struct {
		const char *json, *config;
		uint32_t bos, eos;
		int adds;
	} cases[] = {
		{"{" SPECIALS "}", NULL, UINT32_MAX, UINT32_MAX, 0},
		{"{" SPECIALS "}", "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"}}", 8, 9, 0},
		{"{" SPECIALS "}", "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", 8, UINT32_MAX, 1},
		{"{" SPECIALS "}", "{\"bos_token\":\"<none>\",\"add_bos_token\":true}", UINT32_MAX,
	     UINT32_MAX, 0},
		{"{" SPECIALS "," TEMPLATE "}", NULL, 8, UINT32_MAX, 1},
		{"{" SPECIALS "," TEMPLATE "}", "{\"add_bos_token\":false,\"eos_token\":\"</s>\"}", 8, 9,
	     0},
	};
	for (int i = 0; i < COUNT(cases); i++) {
		struct tokenizer *t = NULL;
		struct err err = {0};
		ck_assert_msg(load(cases[i].json, cases[i].config, &t, &err) == 0, "%s", err.text);
		ck_assert_uint_eq(tokenizer_bos(t), cases[i].bos);
		ck_assert_uint_eq(tokenizer_eos(t), cases[i].eos);
		ck_assert_int_eq(tokenizer_is_eos(t, 9), cases[i].eos == 9);
		ck_assert_int_eq(tokenizer_adds_bos(t), cases[i].adds);
		ck_assert_uint_eq(tokenizer_size(t), 10); /* ids 3 to 7 are gaps: no text */
		size_t len = 1;
		ck_assert(tokenizer_bytes(t, 5, &len) && !len);
		tokenizer_destroy(&t);
	}
}
