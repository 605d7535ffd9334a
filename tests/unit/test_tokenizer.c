/* test_tokenizer.c - SmolLM2's real vocabulary against all reference rows, small made-up byte-level
 * vocabularies, streaming, and bytes at random.
 *
 * tests/data/tokenizer holds the rows; the vocabulary comes from the model file, PD_MODEL.
 * test_tokenizer_kinds.c has the other kinds. */
/* run: long */
#include "format/gguf.h"
#include "text/bpe.h"
#include "text/pretok.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "util/mem.h"
#include "tempdir.h"
#include "tokenizer_rig.h"
#include "skip.h"

#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* The real vocabulary, or NULL. */
static struct tokenizer *load_model(void)
{
	const char *path = getenv("PD_MODEL");
	return path && *path ? load(path) : NULL;
}

/* Row N is case N. */
static void check_encode(const struct tokenizer *t)
{
	struct rows corpus = rows_read(DATA "/corpus.jsonl"), ids = rows_read(DATA "/smollm.ids.jsonl");
	size_t bad = 0;
	ck_assert_uint_eq(corpus.n, ids.n);
	for (size_t i = 0; i < ids.n; i++) {
		if (ids_equal(t, corpus.v[i], TOKENIZE_PARSE_SPECIAL, row_ids(ids.v[i], NULL, 0)) &&
		    ids_equal(t, corpus.v[i], 0, row_ids(ids.v[i], NULL, 1)))
			continue;
		if (bad++ < 20)
			printf("smollm: case %zu differs\n", i);
	}
	printf("smollm: %zu of %zu cases equal, special tokens parsed and plain\n", ids.n - bad, ids.n);
	ck_assert_uint_eq(bad, 0);
	rows_free(&corpus);
	rows_free(&ids);
}

TEST_CASE("tokenizer", .timeout_s = 120);

TEST(smollm_reference)
{
	struct tokenizer *t = load_model();
	if (!t)
		SKIP(SKIP_NO_MODEL);
	check_encode(t);
	check_decode(t, "smollm", DATA "/smollm.decode.jsonl");
	tokenizer_destroy(&t);
}

/* --- made-up vocabularies ------------------------------------------------ */

struct made {
	/* lists with spaces (of tokens), commas (of merges) between; NULL: no such key */
	const char *model, *pre, *tokens, *merges;
	const char *types; /* a digit for each token */
	int bos;
};

static void put(struct buf *b, uint64_t v, size_t bytes)
{
	buf_add(b, &v, bytes);
}

static void put_str(struct buf *b, const char *s, size_t len)
{
	put(b, len, 8);
	buf_add(b, s, len);
}

static void put_key(struct buf *b, const char *key, enum gguf_type type, uint64_t *keys)
{
	put_str(b, key, strlen(key));
	put(b, type, 4);
	++*keys;
}

static void put_list(struct buf *b, const char *key, const char *list, char sep, uint64_t *keys)
{
	uint64_t n = *list != 0;
	for (const char *c = list; *c; c++)
		n += *c == sep;
	put_key(b, key, GGUF_ARRAY, keys);
	put(b, GGUF_STRING, 4);
	put(b, n, 8);
	for (const char *c = list; n--; c = strchrnul(c, sep) + 1)
		put_str(b, c, (size_t)(strchrnul(c, sep) - c));
}

static int make(const struct made *m, struct tokenizer **ret_t, struct err *err)
{
	struct buf kv, head;
	uint64_t keys = 0;
	char path[TEST_FOLDER_BYTES];
	buf_init(&kv, 0);
	buf_init(&head, 0);
	if (m->model) {
		put_key(&kv, "tokenizer.ggml.model", GGUF_STRING, &keys);
		put_str(&kv, m->model, strlen(m->model));
	}
	if (m->pre) {
		put_key(&kv, "tokenizer.ggml.pre", GGUF_STRING, &keys);
		put_str(&kv, m->pre, strlen(m->pre));
	}
	if (m->tokens)
		put_list(&kv, "tokenizer.ggml.tokens", m->tokens, ' ', &keys);
	if (m->merges)
		put_list(&kv, "tokenizer.ggml.merges", m->merges, ',', &keys);
	if (m->types) {
		put_key(&kv, "tokenizer.ggml.token_type", GGUF_ARRAY, &keys);
		put(&kv, GGUF_I32, 4);
		put(&kv, strlen(m->types), 8);
		for (const char *c = m->types; *c; c++)
			put(&kv, (uint64_t)(*c - '0'), 4);
	}
	if (m->bos) {
		put_key(&kv, "tokenizer.ggml.bos_token_id", GGUF_U32, &keys);
		put(&kv, (uint64_t)m->bos, 4);
	}
	buf_adds(&head, "GGUF");
	put(&head, 3, 4);
	put(&head, 0, 8);
	put(&head, keys, 8);
	buf_add(&head, kv.data, kv.len);
	test_file(path, "made.gguf");
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
	ck_assert(fd >= 0 && write(fd, head.data, head.len) == (ssize_t)head.len);
	close(fd);
	struct gguf *g = NULL;
	int rc = gguf_open(path, &g, err);
	if (rc == 0)
		rc = tokenizer_from_gguf(g, ret_t, err);
	gguf_close(&g);
	unlink(path);
	buf_fini(&kv);
	buf_fini(&head);
	return rc;
}

static const struct refusal {
	struct made m;
	int rc;
	const char *says;
} refusals[] = {
	{{"bert", "default", "a", "", NULL, 0}, ERR_UNSUPPORTED, "'bert'"},
	{{"llama", "default", "a", "", NULL, 0}, ERR_INVALID, "tokenizer.ggml.scores"},
	{{NULL, "gpt-2", "a", "", NULL, 0}, ERR_INVALID, "tokenizer.ggml.model"},
	{{"gpt2", "viking", "a", "", NULL, 0}, ERR_UNSUPPORTED, "'viking'"},
	{{"gpt2", "gpt-2\x01x", "a", "", NULL, 0}, ERR_UNSUPPORTED, "pre-tokenizer"},
	{{"gpt2", NULL, "a", "", NULL, 0}, ERR_UNSUPPORTED, "tokenizer.ggml.pre"},
	{{"gpt2", "gpt-2", NULL, "", NULL, 0}, ERR_INVALID, "tokenizer.ggml.tokens"},
	{{"gpt2", "gpt-2", "", "", NULL, 0}, ERR_INVALID, "found 0 tokens"},
	{{"gpt2", "gpt-2", "a b", NULL, NULL, 0}, ERR_INVALID, "tokenizer.ggml.merges"},
	{{"gpt2", "gpt-2", "a b ab", "a b,ab", NULL, 0}, ERR_INVALID, "merge 1 is not two"},
	{{"gpt2", "gpt-2", "a b ab", "a ", NULL, 0}, ERR_INVALID, "merge 0 is not two"},
	{{"gpt2", "gpt-2", "a b ab", " b", NULL, 0}, ERR_INVALID, "merge 0 is not two"},
	{{"gpt2", "gpt-2", "a b ab", "a \x80", NULL, 0}, ERR_INVALID, "merge 0 is not two"},
	{{"gpt2", "gpt-2", "a b ab", "c b", NULL, 0}, ERR_INVALID, "left part"},
	{{"gpt2", "gpt-2", "a b ab", "a c", NULL, 0}, ERR_INVALID, "right part"},
	{{"gpt2", "gpt-2", "a b", "a b", NULL, 0}, ERR_INVALID, "result"},
	{{"gpt2", "gpt-2", "a b", "", "1", 0}, ERR_INVALID, "tokenizer.ggml.token_type"},
	{{"gpt2", "gpt-2", "a b", "", "17", 0}, ERR_INVALID, "token 1 has type 7"},
	{{"gpt2", "gpt-2", "a b", "", NULL, 2}, ERR_INVALID, "tokenizer.ggml.bos_token_id"},
};

TEST_LOOP(refused, 0, COUNT(refusals))
{
	const struct refusal *r = &refusals[_i];
	struct tokenizer *t = NULL;
	struct err err = {0};
	ck_assert_int_eq(make(&r->m, &t, &err), r->rc);
	ck_assert_ptr_null(t);
	ck_assert_msg(strstr(err.text, r->says) != NULL, "%s", err.text);
	for (const char *c = err.text; *c; c++)
		ck_assert((unsigned char)*c >= ' ');
}

/* Ids:  0 a  1 b  2 ab  3 abab  4 <s> (control)  5 <s>> (user-defined)  6 <> (user-defined)  7 !
 *       (maps to the byte 21)
 *       8 the bytes e2 82  9 the byte e2  10 the byte 82  11 ac  12 \xff  13 a token that is not in
 *                          the byte table  14 space  15 b!
 *       16 >x (user-defined) */
static const struct made small = {"gpt2",
                                  "gpt-2",
                                  "a b ab abab <s> <s>> <> ! \xc3\xa2\xc4\xa4 \xc3\xa2 \xc4\xa4 "
                                  "\xc2\xac \xc3\xbf \xe2\x82\xac\xe2\x82\xac \xc4\xa0 b! >x",
                                  "a b,ab ab,\xc3\xa2 \xc4\xa4,b !",
                                  "11113441111111114",
                                  4};

static const struct encoding {
	const char *text;
	unsigned flags;
	const char *want;
} encodings[] = {
	{"", 0, ""},
	{"abab", 0, "3"},
	{"ababa", 0, "3 0"},
	{"aab", 0, "0 2"},
	/* no token for z: dropped, its neighbours merge */
	{"azb", 0, "2"},
	{"zz", 0, ""},
	{"a<s>b", TOKENIZE_PARSE_SPECIAL, "0 4 1"},
	{"a<s>>b", TOKENIZE_PARSE_SPECIAL, "0 5 1"}, /* the longest */
	{"a<s>>b", 0, "0 5 1"},                      /* user-defined: always */
	/* the special one is plain text whose bytes have no tokens */
	{"a<s><>b", 0, "0 6 1"},
	{"a<<>b", 0, "0 6 1"},
	{"a>xb", 0, "0 16 1"},
	{"a<s>xb", TOKENIZE_PARSE_SPECIAL, "0 4 1"}, /* leftmost first */
	/* <s> hides the user-defined one even where it is plain text, as in the reference */
	{"a<s>xb", 0, "0 1"},
	{"<s", TOKENIZE_PARSE_SPECIAL, ""},
	{"a\xe2\x82\xac"
     "b",
     0, "0 8 11 1"},
	{"\xe2\x82", 0, "9 10"}, /* cut short: bytes by themselves */
	{"\xe2\x82"
     "ab",
     0, "9 10 2"},
	/* ill-formed: never merged, neighbours neither */
	{"a\xff"
     "b",
     0, "0 12 1"},
	{"a\xff<s>", TOKENIZE_PARSE_SPECIAL, "0 12 4"},
	{"\xe2<s>", TOKENIZE_PARSE_SPECIAL, "9 4"},
	{"\x82\xac\x82", 0, "10 11 10"},
	{"ab!", 0, "2 7"}, /* two pieces, though b! is a token */
};

static void list_text(const struct token_list *l, struct buf *out)
{
	buf_adds(out, "");
	for (size_t i = 0; i < l->n; i++)
		buf_printf(out, "%s%u", i ? " " : "", l->ids[i]);
}

TEST_LOOP(small_encodings, 0, COUNT(encodings))
{
	const struct encoding *e = &encodings[_i];
	struct tokenizer *t = NULL;
	struct err err = {0};
	struct token_list l = {0};
	struct buf got;
	buf_init(&got, 0);
	ck_assert_msg(make(&small, &t, &err) == 0, "%s", err.text);
	ck_assert_int_eq(tokenizer_encode(t, e->text, strlen(e->text), e->flags, 0, &l), 0);
	list_text(&l, &got);
	ck_assert_str_eq(got.data, e->want);
	token_list_fini(&l);
	buf_fini(&got);
	tokenizer_destroy(&t);
}

/* abc cannot be reached by merges: it comes out only where whole pieces are taken first; control
 * tokens never do so. */
TEST(whole_pieces)
{
	static const struct {
		const char *pre, *text, *want;
		int adds_bos;
	} cases[] = {{"gpt-2", "abc", "2 4", 0},
	             {"llama-bpe", "abc", "3", 1},
	             {"llama-bpe", "abca", "2 4 0", 1},
	             {"tekken", "bca", "1 4 0", 1}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct made m = {"gpt2", cases[i].pre, "a b ab abc c bca", "a b", "111113", 5};
		struct tokenizer *t = NULL;
		struct token_list l = {0};
		struct buf got;
		buf_init(&got, 0);
		ck_assert_int_eq(make(&m, &t, NULL), 0);
		ck_assert_int_eq(tokenizer_encode(t, cases[i].text, strlen(cases[i].text), 0, 0, &l), 0);
		list_text(&l, &got);
		ck_assert_str_eq(got.data, cases[i].want);
		ck_assert_int_eq(tokenizer_adds_bos(t), cases[i].adds_bos);
		token_list_fini(&l);
		buf_fini(&got);
		tokenizer_destroy(&t);
	}
}

TEST(limits_and_getters)
{
	struct tokenizer *t = NULL, *other = NULL;
	struct token_list l = {0};
	struct buf out;
	size_t len;
	ck_assert_int_eq(make(&small, &t, NULL), 0);
	ck_assert_int_eq(tokenizer_encode(t, "a b a", 5, 0, 5, &l), 0);
	/* counts what this call adds */
	ck_assert_int_eq(tokenizer_encode(t, "a b a", 5, 0, 4, &l), ERR_FULL);
	/* a piece comes whole or not at all */
	ck_assert_uint_eq(l.n, 5 + 3);
	ck_assert_int_eq(tokenizer_encode(t, NULL, 0, 0, 1, &l), 0);
	buf_init(&out, 0);
	ck_assert_int_eq(tokenizer_decode(t, (uint32_t[]){4, 0, 13, 5, 8}, 5, 0, &out), 0);
	ck_assert_str_eq(out.data, "<s>a\xe2\x82\xac\xe2\x82\xac<s>>\xe2\x82");
	buf_reset(&out);
	ck_assert_int_eq(tokenizer_decode(t, (uint32_t[]){4, 0, 5}, 3, 1, &out), 0);
	ck_assert_str_eq(out.data, "a<s>>");
	ck_assert_int_eq(tokenizer_decode(t, (uint32_t[]){17}, 1, 0, &out), ERR_INVALID);
	ck_assert_uint_eq(tokenizer_size(t), 17);
	ck_assert_uint_eq(tokenizer_bos(t), 4);
	ck_assert_uint_eq(tokenizer_eos(t), UINT32_MAX);
	ck_assert_int_eq(tokenizer_adds_bos(t), 0);
	ck_assert(tokenizer_is_special(t, 4) && !tokenizer_is_special(t, 5) &&
	          !tokenizer_is_special(t, 99));
	ck_assert_ptr_null(tokenizer_piece(t, 17, &len));
	ck_assert(!memcmp(tokenizer_piece(t, 8, &len), "\xc3\xa2\xc4\xa4", 4) && len == 4);
	ck_assert(!memcmp(tokenizer_bytes(t, 8, &len), "\xe2\x82", 2) && len == 2);
	struct made m = small;
	m.bos = 3;
	ck_assert_int_eq(make(&m, &other, NULL), 0);
	/* bos does not change what text becomes */
	ck_assert_str_eq(tokenizer_hash(t), tokenizer_hash(other));
	tokenizer_destroy(&other);
	m.pre = "smollm";
	ck_assert_int_eq(make(&m, &other, NULL), 0);
	ck_assert_uint_eq(strlen(tokenizer_hash(other)), 64);
	ck_assert_str_ne(tokenizer_hash(t), tokenizer_hash(other));
	tokenizer_destroy(&other);
	tokenizer_destroy(&t);
	token_list_fini(&l);
	buf_fini(&out);
}

/* --- streaming ----------------------------------------------------------- */

static const struct streaming {
	uint32_t ids[8];
	size_t n;
	int skip_special;
	const char *want; /* what each token gives with | after it, then what finish gives */
} streamings[] = {
	{{0, 2}, 2, 0, "a|ab|"},
	{{9, 10, 11}, 3, 0, "||\xe2\x82\xac|"},
	{{8, 11}, 2, 0, "|\xe2\x82\xac|"},
	/* a token that is left out does not break a character */
	{{8, 4, 11}, 3, 1, "||\xe2\x82\xac|"},
	{{8, 4, 11}, 3, 0, "|\xef\xbf\xbd<s>|\xef\xbf\xbd|"},
	{{8}, 1, 0, "|\xef\xbf\xbd"},
	{{8, 8, 11}, 3, 0, "|\xef\xbf\xbd|\xe2\x82\xac|"},
	{{9, 12, 0}, 3, 0, "|\xef\xbf\xbd\xef\xbf\xbd|a|"},
	{{10, 10}, 2, 0, "\xef\xbf\xbd|\xef\xbf\xbd|"},
};

TEST_LOOP(streamed, 0, COUNT(streamings))
{
	const struct streaming *s = &streamings[_i];
	struct tokenizer *t = NULL;
	struct detok d;
	struct buf got;
	buf_init(&got, 0);
	ck_assert_int_eq(make(&small, &t, NULL), 0);
	detok_init(&d, t, s->skip_special);
	for (size_t i = 0; i < s->n; i++) {
		ck_assert_int_eq(detok_feed(&d, s->ids[i], &got), 0);
		buf_adds(&got, "|");
	}
	ck_assert_int_eq(detok_feed(&d, 17, &got), ERR_INVALID);
	ck_assert_int_eq(detok_finish(&d, &got), 0);
	ck_assert_str_eq(got.data, s->want);
	buf_fini(&got);
	tokenizer_destroy(&t);
}

/* --- bytes at random ----------------------------------------------------- */

static uint64_t rnd_state = 20240607;

static uint64_t rnd(uint64_t below)
{
	rnd_state ^= rnd_state << 13;
	rnd_state ^= rnd_state >> 7;
	rnd_state ^= rnd_state << 17;
	return rnd_state % below;
}

/* Noise of several kinds: any bytes, few bytes, characters, corpus-like words, special tokens,
 * cut characters. */
static size_t noise(char *out, size_t size)
{
	static const char *const bits[] = {" ",
	                                   "\n",
	                                   "\r\n",
	                                   "the",
	                                   "'s",
	                                   "42",
	                                   "\xc3\xa9",
	                                   "\xe2\x82\xac",
	                                   "\xf0\x9f\x98\x80",
	                                   "<|im_start|>",
	                                   "<|im_",
	                                   "\xe2\x82",
	                                   "\xff",
	                                   "\xf4\x90\x80\x80",
	                                   "\xed\xa0\x80",
	                                   "\xc0\x80",
	                                   "\x06",
	                                   "\xf1\x80\x80\x80",
	                                   "aaaa",
	                                   "\xcc\x81",
	                                   "  "};
	size_t n = rnd(size + 1), at = 0;
	unsigned kind = (unsigned)rnd(4);
	while (at < n) {
		const char *b = bits[rnd(sizeof bits / sizeof *bits)];
		size_t len = strlen(b);
		if (kind == 0 || len > n - at)
			out[at++] = (char)rnd(256);
		else if (kind == 1)
			out[at++] = "a \n\xe2\x82\xac"[rnd(6)];
		else {
			memcpy(out + at, b, len);
			at += len;
		}
	}
	return n;
}

/* decode(encode(x)) is x without the bytes that the vocabulary lacks; the stream equals decoding
 * all at once. */
static void check_noise(const struct tokenizer *t, const unsigned char *lacks, const char *text,
                        size_t len)
{
	struct token_list l = {0};
	struct buf bytes, stream, want;
	struct detok d;
	buf_init(&bytes, 0);
	buf_init(&stream, 0);
	buf_init(&want, 0);
	ck_assert_int_eq(tokenizer_encode(t, text, len, (unsigned)rnd(2), 0, &l), 0);
	ck_assert_int_eq(tokenizer_decode(t, l.ids, l.n, 0, &bytes), 0);
	for (size_t i = 0; i < len; i++)
		if (!lacks[(unsigned char)text[i]])
			buf_addc(&want, text[i]);
	ck_assert_uint_eq(bytes.len, want.len);
	ck_assert(!want.len || !memcmp(bytes.data, want.data, want.len));
	detok_init(&d, t, 0);
	int rc = 0;
	for (size_t i = 0; i < l.n; i++)
		rc |= detok_feed(&d, l.ids[i], &stream);
	ck_assert_int_eq(rc | detok_finish(&d, &stream), 0);
	buf_reset(&want);
	for (size_t i = 0; i < bytes.len;) {
		uint32_t cp;
		int step = utf8_step(bytes.data + i, bytes.len - i, &cp);
		size_t took = step > 0 ? (size_t)step : step < 0 ? (size_t)-step : bytes.len - i;
		buf_add(&want, step > 0 ? bytes.data + i : "\xef\xbf\xbd", step > 0 ? took : 3);
		i += took;
	}
	ck_assert_uint_eq(stream.len, want.len);
	ck_assert(!want.len || !memcmp(stream.data, want.data, want.len));
	token_list_fini(&l);
	buf_fini(&bytes);
	buf_fini(&stream);
	buf_fini(&want);
}

static void check_random(const struct tokenizer *t, unsigned want_lacking)
{
	char text[4096];
	unsigned char lacks[256];
	unsigned lacking = 0;
	for (unsigned c = 0; c < 256; c++) {
		struct token_list l = {0};
		ck_assert_int_eq(tokenizer_encode(t, &(char){(char)c}, 1, 0, 0, &l), 0);
		lacking += lacks[c] = l.n == 0;
		token_list_fini(&l);
	}
	ck_assert_uint_eq(lacking, want_lacking);
	for (int i = 0; i < 1500; i++)
		check_noise(t, lacks, text, noise(text, sizeof text));
}

TEST(random_bytes)
{
	struct tokenizer *t = load(DATA "/gpt2/vocab.gguf");
	check_random(t, 0);
	tokenizer_destroy(&t);
	t = load_model();
	if (!t) {
		SKIP_PART("SmolLM2's vocabulary: " SKIP_NO_MODEL);
		return;
	}
	check_random(t, 21);
	tokenizer_destroy(&t);
}

/* Merging, short pieces and long ones, against the rule taken at its word: ids are bytes, then
 * one new id for each merge. */
enum { ALPHABET = 4, MERGES = 60 };

struct rule {
	uint32_t left, right;
};

static size_t merge_by_rule(const struct rule *rules, uint32_t *ids, size_t n)
{
	for (uint32_t rank = 0; rank < MERGES; rank++)
		for (size_t i = 0; i + 1 < n; i++)
			if (ids[i] == rules[rank].left && ids[i + 1] == rules[rank].right) {
				ids[i] = ALPHABET + rank;
				memmove(ids + i + 1, ids + i + 2, (--n - i - 1) * sizeof *ids);
				/* from the first rank again: a join may have made an earlier pair */
				rank = UINT32_MAX;
				break;
			}
	return n;
}

TEST(merging)
{
	struct rule rules[MERGES];
	struct bpe_scratch s = {0};
	uint32_t byte_id[256], want[300];
	char text[300];
	memset(byte_id, 0xff, sizeof byte_id);
	for (unsigned i = 0; i < ALPHABET; i++)
		byte_id['a' + i] = i;
	struct bpe *b = bpe_new(MERGES);
	for (uint32_t i = 0; i < MERGES; i++) {
		int known;
		do { /* every pair has one rank */
			rules[i] = (struct rule){(uint32_t)rnd(ALPHABET + i), (uint32_t)rnd(ALPHABET + i)};
			known = 0;
			for (uint32_t k = 0; k < i; k++)
				known |= rules[k].left == rules[i].left && rules[k].right == rules[i].right;
		} while (known);
		bpe_add_merge(b, rules[i].left, rules[i].right, i, ALPHABET + i);
	}
	for (int round = 0; round < 3000; round++) {
		size_t len = rnd(round % 2 ? 12 : sizeof text), n = 0;
		for (size_t i = 0; i < len; i++) {
			text[i] = (char)('a' + rnd(ALPHABET + 1)); /* the last has no token */
			if (byte_id[(unsigned char)text[i]] != BPE_NONE)
				want[n++] = byte_id[(unsigned char)text[i]];
		}
		if (n)
			memcpy(bpe_room(&s, n), want, n * sizeof *want);
		size_t begin = n;
		n = merge_by_rule(rules, want, n);
		ck_assert_uint_eq(bpe_merge(b, &s, begin), n);
		ck_assert(!n || !memcmp(s.ids, want, n * sizeof *want));
	}
	bpe_scratch_fini(&s);
	bpe_destroy(&b);
}

static int add_piece(void *arg, const char *piece, size_t len)
{
	struct buf *b = arg;
	if (b->len)
		buf_adds(b, "|");
	return buf_add(b, piece, len);
}

/* Long texts without a place to cut: time must grow with n log n. The bound is far above what is
 * needed (0.1 s) and far below quadratic (minutes). */
static const char *const long_units[] = {"a",           " ",       "\n",         "ab",
                                         "\xff",        "'",       "7",          "<",
                                         "<|im_start|", " \n",     "\t\xc2\xa0", "\xe6\xbc\xa2",
                                         "A",           "\xe2\x82"};

TEST_LOOP(long_text, 0, COUNT(long_units))
{
	static const char *const pres[] = {"smollm", "gpt-2",  "llama-bpe",
	                                   "tekken", "gpt-4o", "deepseek-v3"};
	enum { BYTES = 1 << 20 };
	const char *unit = long_units[_i];
	char *text = mem_alloc(BYTES);
	size_t len = strlen(unit), n = BYTES / len * len;
	struct tokenizer *t = load(DATA "/gpt2/vocab.gguf");
	struct token_list l = {0};
	for (size_t i = 0; i < n; i++)
		text[i] = unit[i % len];
	ck_assert_int_eq(tokenizer_encode(t, text, n, 0, 0, &l), 0);
	token_list_fini(&l);
	tokenizer_destroy(&t);
	for (size_t i = 0;
	     i < sizeof pres / sizeof *pres && *unit != '\xff' && strcmp(unit, "\xe2\x82"); i++) {
		struct pretok *p = pretok_new(pretok_kind_find(pres[i], strlen(pres[i]))->stage);
		struct pretok_scratch s = {0};
		struct buf all;
		buf_init(&all, 0);
		ck_assert_int_eq(pretok_split(p, &s, text, n, add_piece, &all), 0);
		ck_assert_uint_ge(all.len, n);
		buf_fini(&all);
		pretok_scratch_fini(&s);
		pretok_destroy(&p);
	}
	free(text);
}

/* --- threads ------------------------------------------------------------- */

static void *encode_much(void *arg)
{
	static const char text[] = "Threads share one instance: 'twas 2024 \xe2\x80\x94 "
							   "\xe6\xbc\xa2\xe5\xad\x97, na\xc3\xafve.\n\n";
	struct token_list first = {0}, l = {0};
	tokenizer_encode(arg, text, sizeof text - 1, 0, 0, &first);
	long same = 1;
	for (int i = 0; i < 300; i++) {
		l.n = 0;
		tokenizer_encode(arg, text, sizeof text - 1, 0, 0, &l);
		same &= l.n == first.n && !memcmp(l.ids, first.ids, l.n * sizeof *l.ids);
	}
	token_list_fini(&first);
	token_list_fini(&l);
	return (void *)same;
}

TEST(threads)
{
	struct tokenizer *t = load(DATA "/gpt2/vocab.gguf");
	pthread_t id[4];
	void *same;
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(pthread_create(&id[i], NULL, encode_much, t), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(id[i], &same);
		ck_assert_ptr_nonnull(same);
	}
	tokenizer_destroy(&t);
}
