/* test_tokenizer_kinds.c - every kind of tokenizer, from tokenizer.json and from GGUF, against rows
 * made by Hugging Face `tokenizers`.
 *
 * tests/data/tokenizer/KIND has a small vocabulary in both formats and a sample of the rows, all
 * hand-picked ones among them. PD_TOKENIZER_DATA=folder takes all rows of all kinds from another
 * folder of the same shape.
 *
 * Two rules where we do not follow the rows: of two best paths of one score (unigram, "tie") the
 * sum counts, not the ids; and plain text never becomes control tokens, for which SentencePiece
 * itself is the reference (sentencepiece_differs.jsonl). */
#include "tempdir.h"
#include "tokenizer_rig.h"

#include <math.h>

static const char *const kinds[] = {"gpt2",      "llama3",     "qwen2",   "tekken", "gpt4o",
                                    "deepseek3", "llama2-spm", "unigram", "gemma"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const char *folder(void)
{
	const char *all = getenv("PD_TOKENIZER_DATA");
	return all && *all ? all : DATA;
}

static struct rows kind_rows(const char *kind, const char *name)
{
	char *path = mem_printf("%s/%s/%s", folder(), kind, name);
	struct rows r = rows_read(path);
	free(path);
	return r;
}

static struct rows read_corpus(void)
{
	char *path = mem_printf("%s/corpus.jsonl", folder());
	struct rows r = rows_read(path);
	free(path);
	return r;
}

/* --- scores and control pieces of the unigram kind ----------------------- */

static double total_score(const json_t *vocab, const json_t *want)
{
	double sum = 0;
	for (size_t i = 0; i < json_array_size(want); i++)
		sum += json_number_value(json_array_get(
			json_array_get(vocab, (size_t)json_integer_value(json_array_get(want, i))), 1));
	return sum;
}

static int scores_equal(const struct tokenizer *t, const json_t *vocab, const json_t *text,
                        unsigned flags, const json_t *want)
{
	struct token_list got = {0};
	json_t *ids = json_array();
	ck_assert_int_eq(
		tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, 0, &got), 0);
	for (size_t i = 0; i < got.n; i++)
		json_array_append_new(ids, json_integer(got.ids[i]));
	double a = total_score(vocab, ids), b = total_score(vocab, want);
	token_list_fini(&got);
	json_decref(ids);
	return fabs(a - b) <= 1e-4 * (1 + fabs(b));
}

static int has(const json_t *text, const char *piece)
{
	return memmem(json_string_value(text), json_string_length(text), piece, strlen(piece)) != NULL;
}

static int spelled_out(const struct tokenizer *t, const json_t *text)
{
	struct token_list got = {0};
	int special = 0;
	ck_assert_int_eq(
		tokenizer_encode(t, json_string_value(text), json_string_length(text), 0, 0, &got), 0);
	for (size_t i = 0; i < got.n; i++)
		special |= tokenizer_is_special(t, got.ids[i]);
	token_list_fini(&got);
	return !special;
}

static const json_t *sentencepiece_ids(const struct rows *r, json_int_t line)
{
	for (size_t i = 0; i < r->n; i++)
		if (json_integer_value(json_object_get(r->v[i], "line")) == line)
			return json_object_get(r->v[i], "sentencepiece");
	return NULL;
}

/* --- all rows of one kind ------------------------------------------------ */

struct reference {
	const char *kind, *from, *variant;
	struct rows corpus, ids, differs;
	json_t *vocab; /* unigram: texts and scores */
};

static int row_equal(const struct reference *ref, const struct tokenizer *t, const json_t *row,
                     int plain)
{
	json_int_t line = json_integer_value(json_object_get(row, "line"));
	const json_t *text = ref->corpus.v[line], *want = row_ids(row, ref->variant, plain), *other;
	unsigned flags = plain ? 0 : TOKENIZE_PARSE_SPECIAL;
	if (ids_equal(t, text, flags, want))
		return 1;
	if (ref->vocab && json_is_true(json_object_get(row, "tie")) &&
	    scores_equal(t, ref->vocab, text, flags, want))
		return 1;
	if (!ref->vocab || !plain || !(has(text, "<s>") || has(text, "</s>") || has(text, "<unk>")))
		return 0;
	/* byte pieces are as in the rows, control pieces as in SentencePiece: nobody's ids */
	if (has(text, "<0x"))
		return spelled_out(t, text);
	other = sentencepiece_ids(&ref->differs, line);
	return other && ids_equal(t, text, flags, other);
}

static void check_rows(const struct reference *ref, const struct tokenizer *t)
{
	size_t bad = 0;
	for (size_t i = 0; i < ref->ids.n; i++)
		for (int plain = 0; plain < 2; plain++)
			if (!row_equal(ref, t, ref->ids.v[i], plain) && bad++ < 20)
				printf("%s from %s: case %d differs%s\n", ref->kind, ref->from,
				       (int)json_integer_value(json_object_get(ref->ids.v[i], "line")),
				       plain ? ", special tokens as text" : "");
	printf("%s from %s: %zu rows, %zu differences\n", ref->kind, ref->from, ref->ids.n, bad);
	ck_assert_uint_eq(bad, 0);
}

static void check_kind(const char *kind, const char *path, const char *variant)
{
	struct tokenizer *t = load(path);
	struct reference ref = {.kind = kind,
	                        .from = path,
	                        .variant = variant,
	                        .corpus = read_corpus(),
	                        .ids = kind_rows(kind, "ids.jsonl")};
	json_t *root = NULL;
	if (!strcmp(kind, "unigram")) {
		char *json = mem_printf("%s/unigram/tokenizer.json", folder());
		root = json_load_file(json, 0, NULL);
		ref.vocab = json_object_get(json_object_get(root, "model"), "vocab");
		ref.differs = kind_rows(kind, "sentencepiece_differs.jsonl");
		free(json);
	}
	char *decode = mem_printf("%s/%s/decode.jsonl", folder(), kind);
	check_rows(&ref, t);
	check_decode(t, kind, decode);
	free(decode);
	json_decref(root);
	rows_free(&ref.corpus);
	rows_free(&ref.ids);
	rows_free(&ref.differs);
	tokenizer_destroy(&t);
}

TEST_CASE("references", .timeout_s = 300);

TEST_LOOP(from_json, 0, KINDS)
{
	char *path = mem_printf("%s/%s", folder(), kinds[_i]);
	check_kind(kinds[_i], path, NULL);
	free(path);
}

TEST_LOOP(from_gguf, 0, KINDS)
{
	char *path = mem_printf("%s/%s/vocab.gguf", folder(), kinds[_i]);
	check_kind(kinds[_i], path, NULL);
	free(path);
}

/* Newer conversions of Llama 2: no normalizer, the pre-tokenizer does it. */
TEST(metaspace)
{
	char *from = mem_printf("%s/llama2-spm/tokenizer.json", folder()), to[TEST_FOLDER_BYTES + 32],
		 dir[TEST_FOLDER_BYTES];
	json_t *root = json_load_file(from, 0, NULL);
	ck_assert_ptr_nonnull(root);
	json_object_set_new(root, "normalizer", json_null());
	json_object_set_new(root, "pre_tokenizer",
	                    json_pack("{ssssssso}", "type", "Metaspace", "replacement", "\xe2\x96\x81",
	                              "prepend_scheme", "first", "split", json_false()));
	test_folder(dir, "metaspace");
	snprintf(to, sizeof to, "%s/tokenizer.json", dir);
	ck_assert_int_eq(json_dump_file(root, to, 0), 0);
	check_kind("llama2-spm", dir, "metaspace");
	json_decref(root);
	free(from);
}

/* --- any bytes ----------------------------------------------------------- */

static uint64_t rnd_state = 20240607;

static uint64_t rnd(uint64_t below)
{
	rnd_state ^= rnd_state << 13;
	rnd_state ^= rnd_state >> 7;
	rnd_state ^= rnd_state << 17;
	return rnd_state % below;
}

static size_t noise(char *out, size_t size)
{
	static const char *const bits[] = {" ",
	                                   "  ",
	                                   "\n",
	                                   "the",
	                                   " world",
	                                   "'s",
	                                   "42",
	                                   "\xc3\xa9",
	                                   "\xe6\xbc\xa2",
	                                   "\xf0\x9f\x98\x80",
	                                   "<s>",
	                                   "<0x0A>",
	                                   "<unk>",
	                                   "\xe2\x82",
	                                   "\xff",
	                                   "\xed\xa0\x80",
	                                   "aaaa"};
	size_t n = rnd(size + 1), at = 0;
	unsigned any = (unsigned)rnd(4) == 0;
	while (at < n) {
		const char *b = bits[rnd(sizeof bits / sizeof *bits)];
		if (any || strlen(b) > n - at)
			out[at++] = (char)rnd(256);
		else
			for (; *b; b++)
				out[at++] = *b;
	}
	return n;
}

/* All bytes have tokens here: as plain text, what went in comes out, streamed or not, and no
 * control token is in between. Not where NFC changes the text. The mark for a space comes out as
 * a space, so that noise has none. */
TEST_LOOP(round_trip, 0, KINDS)
{
	char *path = mem_printf("%s/%s", folder(), kinds[_i]), text[600];
	struct tokenizer *t = load(path);
	for (int round = 0; round < 400 && strcmp(kinds[_i], "qwen2"); round++) {
		struct token_list l = {0};
		struct buf bytes;
		size_t len = noise(text, sizeof text);
		if (memmem(text, len, "\xe2\x96\x81", 3))
			continue;
		buf_init(&bytes, 0);
		ck_assert_int_eq(tokenizer_encode(t, text, len, 0, 0, &l), 0);
		ck_assert_int_eq(tokenizer_decode(t, l.ids, l.n, 0, &bytes), 0);
		/* unigram: the text <0x0A> is the byte */
		if (strcmp(kinds[_i], "unigram") || !memmem(text, len, "<0x", 3))
			ck_assert_msg(bytes.len == len && (!len || !memcmp(bytes.data, text, len)),
			              "%s: round %d: %zu bytes became %zu", kinds[_i], round, len, bytes.len);
		for (size_t i = 0; i < l.n; i++)
			if (tokenizer_is_special(t, l.ids[i]))
				ck_abort_msg("%s: round %d: plain text became the special token %u", kinds[_i],
				             round, l.ids[i]);
		check_stream(t, l.ids, l.n, 0, &bytes);
		token_list_fini(&l);
		buf_fini(&bytes);
	}
	tokenizer_destroy(&t);
	free(path);
}

/* Long texts without a place to cut: time must grow with n log n. The time limit of the test is
 * far above what is needed (0.1 s each) and far below quadratic. */
TEST_LOOP(long_text, 0, KINDS)
{
	static const char *const units[] = {"a",
	                                    " ",
	                                    "\n",
	                                    "\xe2\x96\x81",
	                                    "\xcc\x81",
	                                    "e\xcc\xa3\xcc\x81",
	                                    "\xe1\x84\x80\xe1\x85\xa1",
	                                    "<0x0A>",
	                                    "<s",
	                                    "\xff",
	                                    "\xe2\x82",
	                                    "\xe6\xbc\xa2",
	                                    " \xe2\x96\x81"};
	enum { BYTES = 1 << 17 };
	char *path = mem_printf("%s/%s", folder(), kinds[_i]), *text = mem_alloc(BYTES);
	struct tokenizer *t = load(path);
	for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
		struct token_list l = {0};
		size_t len = strlen(units[u]), n = BYTES / len * len;
		for (size_t i = 0; i < n; i++)
			text[i] = units[u][i % len];
		ck_assert_int_eq(tokenizer_encode(t, text, n, 0, 0, &l), 0);
		ck_assert_uint_gt(l.n, 0);
		token_list_fini(&l);
	}
	tokenizer_destroy(&t);
	free(text);
	free(path);
}
