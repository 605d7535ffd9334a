/* pretok.c - see pretok.h.
 *
 * The expressions are compiled by PCRE2, with its JIT where the host allows it, but they do not
 * match the text itself: each character beyond ASCII is first replaced by one byte that encodes its
 * class (code_of), and \p{..}, \s and \S are rewritten to sets of such bytes. So the classes come
 * from our own table whatever Unicode version the library has, subjects have one byte per
 * character, and pure ASCII needs no copy. The expressions in the table below are as the models'
 * makers wrote them, with three names of our own: \p{Numeric}, \p{LongS} and \p{HanKana}.
 *
 * An expression of the table that does not compile is a bug: PANIC. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretok.h"
#include "text/unicode.h"
#include "util/buf.h"
#include "util/check.h"
#include "util/mem.h"
#include "util/quota.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { HEAP_LIMIT_KIB = 64 * 1024 };
/* CODE_FIRST and CODE_HAN_KANA are flags beside the class; CODE_LONG_S is a code of its own */
enum { CODE_FIRST = 0x80, CODE_LONG_S = 0x8c, CODE_HAN_KANA = 0x20 };

#define AS_WRITTEN "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define CONTRACTION "(?i:'[s\\p{LongS}]|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3(C) \
	C "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define QWEN2(C) C "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define WORD_LOWER "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+"
#define WORD_UPPER "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*"
#define TEKKEN WORD_LOWER "|" WORD_UPPER "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define GPT4O(C) \
	WORD_LOWER C "?|" WORD_UPPER C "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define DEEPSEEK3                                                                      \
	"[!\"#$%&'()*+,\\-./"                                                              \
	":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| " \
	"?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES

static const struct stage {
	/* written: as in tokenizer.json (NULL: it has another form there); expr: as we compile it */
	const char *name, *written, *expr;
	int covers;
} stages[PRETOK_STAGE_COUNT] = {
	[PRETOK_DIGIT] = {"digit", NULL, "\\p{Numeric}", 0},
	[PRETOK_DIGITS] = {"digits", NULL, "\\p{Numeric}+", 0},
	[PRETOK_NUMBERS_3] = {"numbers-3", "\\p{N}{1,3}", "\\p{N}{1,3}", 0},
	[PRETOK_HAN_KANA] = {"han-kana", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "\\p{HanKana}+",
                         0},
	[PRETOK_GPT2] = {"gpt2", GPT2, GPT2, 1},
	[PRETOK_LLAMA3] = {"llama3", LLAMA3(AS_WRITTEN), LLAMA3(CONTRACTION), 1},
	[PRETOK_QWEN2] = {"qwen2", QWEN2(AS_WRITTEN), QWEN2(CONTRACTION), 1},
	[PRETOK_TEKKEN] = {"tekken", TEKKEN, TEKKEN, 1},
	[PRETOK_GPT4O] = {"gpt4o", GPT4O(AS_WRITTEN), GPT4O(CONTRACTION), 1},
	[PRETOK_DEEPSEEK3] = {"deepseek3", DEEPSEEK3, DEEPSEEK3, 0},
};

/* Names as llama.cpp's converter writes them. */
static const struct pretok_kind kinds[] = {
	{"gpt-2", {PRETOK_GPT2}, 0, 0, 0},
	{"phi-2", {PRETOK_GPT2}, 0, 0, 0},
	{"olmo", {PRETOK_GPT2}, 1, 0, 0},
	{"mpt", {PRETOK_GPT2}, 1, 0, 0},
	{"smollm", {PRETOK_DIGIT, PRETOK_GPT2}, 0, 0, 0},
	{"starcoder", {PRETOK_DIGIT, PRETOK_GPT2}, 0, 0, 0},
	{"refact", {PRETOK_DIGIT, PRETOK_GPT2}, 0, 0, 0},
	{"command-r", {PRETOK_DIGIT, PRETOK_GPT2}, 1, 0, 0},
	{"llama-bpe", {PRETOK_LLAMA3}, 0, 1, 1},
	{"llama3", {PRETOK_LLAMA3}, 0, 1, 1},
	{"llama-v3", {PRETOK_LLAMA3}, 0, 1, 1},
	{"falcon3", {PRETOK_LLAMA3}, 0, 1, 1},
	{"dbrx", {PRETOK_LLAMA3}, 0, 0, 0},
	{"smaug-bpe", {PRETOK_LLAMA3}, 0, 0, 0},
	{"glm4", {PRETOK_LLAMA3}, 0, 0, 0},
	{"chatglm-bpe", {PRETOK_LLAMA3}, 0, 0, 0},
	{"qwen2", {PRETOK_QWEN2}, 1, 0, 0},
	{"deepseek-r1-qwen", {PRETOK_QWEN2}, 1, 0, 0},
	{"stablelm2", {PRETOK_QWEN2}, 1, 0, 0},
	{"megrez", {PRETOK_QWEN2}, 1, 0, 0},
	{"tekken", {PRETOK_TEKKEN}, 0, 1, 1},
	{"gpt-4o", {PRETOK_GPT4O}, 0, 0, 0},
	{"llama4", {PRETOK_GPT4O}, 0, 0, 0},
	{"deepseek-v3", {PRETOK_NUMBERS_3, PRETOK_HAN_KANA, PRETOK_DEEPSEEK3}, 0, 0, 0},
};

struct pretok_property {
	const char *name;
	const char *ascii; /* in the notation used inside [] */
	unsigned classes;  /* bit set of enum unicode_class */
};

static const struct pretok_property properties[] = {
	{"L", "A-Za-z",
     1u << UNICODE_LU | 1u << UNICODE_LL | 1u << UNICODE_LT | 1u << UNICODE_LM | 1u << UNICODE_LO},
	{"Lu", "A-Z", 1u << UNICODE_LU},
	{"Ll", "a-z", 1u << UNICODE_LL},
	{"Lt", "", 1u << UNICODE_LT},
	{"Lm", "", 1u << UNICODE_LM},
	{"Lo", "", 1u << UNICODE_LO},
	{"M", "", 1u << UNICODE_M},
	{"N", "0-9", 1u << UNICODE_N},
	{"P", "!-#%-*,-/:;?@\\[-\\]_{}", 1u << UNICODE_P},
	{"S", "$+<=>\\^`|~", 1u << UNICODE_S},
	{"s", "\\t-\\r ", 1u << UNICODE_SPACE},
	{"Numeric", "0-9", 1u << UNICODE_N | 1u << UNICODE_NUMERIC_LATER}, /* \p{N} as of Unicode 17 */
	{"LongS", "", 0},
	{"HanKana", "", 0}, /* U+4E00-9FA5 and U+3040-30FF of any class */
};

struct pretok {
	const unsigned char *classes;
	pcre2_match_context *context;
	pcre2_code *code[PRETOK_STAGES];
	int jit[PRETOK_STAGES];
	unsigned stages;
};

static unsigned char code_of(const unsigned char *classes, uint32_t cp)
{
	if (cp < 0x80)
		return (unsigned char)cp;
	if (cp == 0x17f)
		return CODE_LONG_S;
	int han_kana = (cp >= 0x4e00 && cp <= 0x9fa5) || (cp >= 0x3040 && cp <= 0x30ff);
	return (unsigned char)(CODE_FIRST | classes[cp] | (han_kana ? CODE_HAN_KANA : 0));
}

/* --- expressions over class codes ---------------------------------------- */

static int property_has(const struct pretok_property *p, unsigned code)
{
	if (code == CODE_LONG_S)
		return !strcmp(p->name, "LongS") || (p->classes & 1u << UNICODE_LL);
	unsigned cls = code & ~(unsigned)(CODE_FIRST | CODE_HAN_KANA);
	if (cls >= UNICODE_CLASSES)
		return 0;
	return !strcmp(p->name, "HanKana") ? (code & CODE_HAN_KANA) != 0 : (p->classes >> cls & 1) != 0;
}

static void add_items(struct buf *out, const char *name, size_t len)
{
	const struct pretok_property *p = NULL;
	for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
		if (strlen(properties[i].name) == len && !memcmp(properties[i].name, name, len))
			p = &properties[i];
	CHECK(p);
	buf_adds(out, p->ascii);
	for (unsigned code = CODE_FIRST; code < 0x100; code++)
		if (property_has(p, code))
			buf_printf(out, "\\x%02x", code);
}

/* Rewrites the escape at e (after the backslash). Returns its length in characters. */
static size_t expand_escape(struct buf *out, const char *e, int in_set)
{
	const char *name = *e == 'p' ? e + 2 : "s";
	size_t len = *e == 'p' ? strcspn(name, "}") : 1;
	if (*e != 'p' && *e != 's' && *e != 'S') {
		buf_printf(out, "\\%c", *e);
		return 1;
	}
	CHECK(!(in_set && *e == 'S'));
	if (!in_set)
		buf_adds(out, *e == 'S' ? "[^" : "[");
	add_items(out, name, len);
	if (!in_set)
		buf_adds(out, "]");
	return *e == 'p' ? len + 3 : 1;
}

static void expand(struct buf *out, const char *expr)
{
	int in_set = 0;
	for (const char *c = expr; *c; c++) {
		if (*c == '\\') {
			c += expand_escape(out, c + 1, in_set);
			continue;
		}
		if (*c == '[' || *c == ']')
			in_set = *c == '[';
		buf_addc(out, *c);
	}
}

static void compile(struct pretok *p, enum pretok_stage stage)
{
	struct buf b;
	int code;
	PCRE2_SIZE at;
	buf_init(&b, 0);
	expand(&b, stages[stage].expr);
	unsigned i = p->stages++;
	p->code[i] = pcre2_compile((PCRE2_SPTR)b.data, b.len, 0, &code, &at, NULL);
	if (!p->code[i])
		PANIC("expression of pre-tokenizer %s: PCRE2 error %d at %zu of %s", stages[stage].name,
		      code, (size_t)at, b.data);
	/* hardened hosts refuse it: slower, but the same pieces */
	p->jit[i] = pcre2_jit_compile(p->code[i], PCRE2_JIT_COMPLETE) == 0;
	buf_fini(&b);
}

const struct pretok_kind *pretok_kind_find(const char *name, size_t len)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (strlen(kinds[i].name) == len && !memcmp(kinds[i].name, name, len))
			return &kinds[i];
	return NULL;
}

enum pretok_stage pretok_stage_find(const char *expr, size_t len)
{
	for (unsigned s = PRETOK_NONE + 1; s < PRETOK_STAGE_COUNT; s++)
		if (stages[s].written && strlen(stages[s].written) == len &&
		    !memcmp(stages[s].written, expr, len))
			return (enum pretok_stage)s;
	return PRETOK_NONE;
}

int pretok_stage_covers(enum pretok_stage s)
{
	return stages[s].covers;
}

struct pretok *pretok_new(const enum pretok_stage *list)
{
	struct pretok *p = mem_zalloc(sizeof *p);
	p->classes = unicode_class_table();
	p->context = pcre2_match_context_create(NULL);
	CHECK(p->context);
	/* the expressions bound the time: none backtracks over a character twice */
	pcre2_set_match_limit(p->context, UINT32_MAX);
	pcre2_set_heap_limit(p->context, HEAP_LIMIT_KIB);
	for (unsigned i = 0; i < PRETOK_STAGES && list[i] != PRETOK_NONE; i++)
		compile(p, list[i]);
	return p;
}

void pretok_destroy(struct pretok **pp)
{
	struct pretok *p = *pp;
	if (!p)
		return;
	for (unsigned i = 0; i < p->stages; i++)
		pcre2_code_free(p->code[i]);
	pcre2_match_context_free(p->context);
	free(p);
	*pp = NULL;
}

void pretok_scratch_fini(struct pretok_scratch *s)
{
	pcre2_match_data_free(s->match);
	quota_free(s->quota, s->classes, s->classes_size);
	memset(s, 0, sizeof *s);
}

/* --- splitting ----------------------------------------------------------- */

struct pretok_cursor {
	const struct pretok *p;
	pcre2_match_data *match;
	const unsigned char *subject; /* class codes, or the text itself if it is ASCII */
	const char *next;             /* start of the next piece in the text */
	int ascii;
	pretok_give_fn give;
	void *arg;
};

static int give_piece(struct pretok_cursor *s, size_t begin, size_t end)
{
	const char *piece = s->next, *e = piece;
	if (s->ascii)
		e += end - begin;
	else
		for (size_t i = begin; i < end; i++)
			e += *e & 0x80 ? ((unsigned char)*e >= 0xf0   ? 4
			                  : (unsigned char)*e >= 0xe0 ? 3
			                                              : 2)
			               : 1;
	s->next = e;
	return s->give(s->arg, piece, (size_t)(e - piece));
}

/* Finds the first match of one stage in [begin, end). Returns 1, 0 for none, or ERR_NOMEM. */
static int find(struct pretok_cursor *s, unsigned stage, size_t begin, size_t end,
                size_t *ret_begin, size_t *ret_end)
{
	const pcre2_code *code = s->p->code[stage];
	PCRE2_SPTR subject = s->subject + begin;
	int rc = PCRE2_ERROR_JIT_STACKLIMIT;
	if (s->p->jit[stage])
		rc = pcre2_jit_match(code, subject, end - begin, 0, 0, s->match, s->p->context);
	if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
		rc = pcre2_match(code, subject, end - begin, 0, PCRE2_NO_JIT, s->match, s->p->context);
	if (rc == PCRE2_ERROR_NOMATCH)
		return 0;
	if (rc < 0)
		return ERR_NOMEM;
	const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->match);
	*ret_begin = begin + at[0];
	*ret_end = begin + at[1];
	CHECK(*ret_begin < *ret_end && *ret_end <= end);
	return 1;
}

static int split_stage(struct pretok_cursor *s, unsigned stage, size_t begin, size_t end)
{
	if (stage == s->p->stages)
		return give_piece(s, begin, end);
	while (begin < end) {
		size_t from = end, to = end;
		int rc = find(s, stage, begin, end, &from, &to);
		if (rc >= 0 && begin < from)
			rc = split_stage(s, stage + 1, begin, from);
		if (rc >= 0 && from < to)
			rc = split_stage(s, stage + 1, from, to);
		if (rc < 0)
			return rc;
		begin = to;
	}
	return 0;
}

/* Writes the text's class codes to the scratch. Returns their number; 0: out of memory. */
static size_t classify(const struct pretok *p, struct pretok_scratch *s, const char *text,
                       size_t len)
{
	if (s->classes_size < len) {
		quota_free(s->quota, s->classes, s->classes_size);
		s->classes = quota_alloc(s->quota, len);
		s->classes_size = s->classes ? len : 0;
		if (!s->classes)
			return 0;
	}
	size_t n = 0;
	for (size_t i = 0; i < len;) {
		uint32_t cp;
		int step = utf8_step(text + i, len - i, &cp);
		CHECK(step > 0);
		s->classes[n++] = code_of(p->classes, cp);
		i += (size_t)step;
	}
	return n;
}

int pretok_split(const struct pretok *p, struct pretok_scratch *s, const char *text, size_t len,
                 pretok_give_fn give, void *arg)
{
	if (!s->match && !(s->match = pcre2_match_data_create(1, NULL)))
		return ERR_NOMEM;
	struct pretok_cursor sp = {.p = p, .match = s->match, .next = text, .give = give, .arg = arg};
	sp.ascii = ascii_span(text, len) == len;
	size_t n = sp.ascii ? len : classify(p, s, text, len);
	if (!n && len)
		return ERR_NOMEM;
	sp.subject = sp.ascii ? (const unsigned char *)text : s->classes;
	return split_stage(&sp, 0, 0, n);
}
