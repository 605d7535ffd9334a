/* lex.c - converts a template's text to tokens: data, and the contents of {{ }} and {% %}. Removes
 * comments, raw blocks, and the white space that `-`, `+`, trim_blocks and lstrip_blocks strip. As
 * in Jinja, line breaks are first normalized to "\n", and one at the very end is dropped. */
#include "jinja/tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
	struct parse *p;
	const char *s;
	size_t len, at;
	uint32_t line;
	size_t counted;    /* line numbers are counted up to here */
	int line_starting; /* the text consumed last ended with a line break */
};

static uint32_t line_of(struct lexer *x, size_t at)
{
	for (; x->counted < at; x->counted++)
		x->line += x->s[x->counted] == '\n';
	return x->line;
}

static struct token *add_token(struct lexer *x, enum token_kind kind, size_t at)
{
	struct parse *p = x->p;
	if (p->n_tokens == p->tokens_size) {
		size_t size = p->tokens_size ? p->tokens_size * 2 : 256;
		struct token *more = arena_array(p->arena, size, sizeof *more);
		if (p->n_tokens)
			memcpy(more, p->tokens, p->n_tokens * sizeof *more);
		p->tokens = more;
		p->tokens_size = size;
	}
	struct token *t = &p->tokens[p->n_tokens++];
	t->kind = (uint8_t)kind;
	t->line = line_of(x, at);
	return t;
}

static void add_data(struct lexer *x, size_t begin, size_t end)
{
	if (begin >= end)
		return;
	struct token *t = add_token(x, T_DATA, begin);
	t->s = x->s + begin;
	t->len = end - begin;
}

static void normalize_breaks(struct lexer *x, const char *text, size_t len)
{
	char *s = arena_alloc(x->p->arena, len + 1);
	size_t n = 0;
	for (size_t i = 0; i < len; i++) {
		if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n')
			continue;
		s[n++] = text[i];
		if (text[i] == '\r')
			s[n - 1] = '\n';
	}
	if (n && s[n - 1] == '\n')
		n--;
	s[n] = 0;
	x->s = s;
	x->len = n;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
	uint32_t cp;
	while (at < x->len) {
		int n = cp_step(x->s + at, x->len - at, &cp);
		if (!cp_is_space(cp))
			break;
		at += (size_t)n;
	}
	return at;
}

static int starts(const struct lexer *x, size_t at, const char *word)
{
	size_t n = strlen(word);
	return x->len - at >= n && !memcmp(x->s + at, word, n);
}

/* The end of the data before a tag at `end`, after stripping for the tag's sign and
 * lstrip_blocks. */
static size_t strip_data(const struct lexer *x, size_t begin, size_t end, char sign,
                         int is_variable)
{
	const char *s = x->s + begin;
	size_t len = end - begin;
	if (sign == '-') {
		text_strip(&s, &len, NULL, 0, 1);
		return begin + len;
	}
	if (sign == '+' || is_variable)
		return end;
	size_t line = len;
	while (line && s[line - 1] != '\n')
		line--;
	if ((line == 0 && !x->line_starting) || line == len)
		return end;
	return skip_space(x, begin + line) >= end ? begin + line : end;
}

/* The position after a comment or block with the given sign, `at` being after its closing brace;
 * applies trim_blocks. */
static size_t after_block(const struct lexer *x, size_t at, char sign)
{
	if (sign == '-')
		return skip_space(x, at);
	return sign != '+' && at < x->len && x->s[at] == '\n' ? at + 1 : at;
}

/* --- inside a tag -------------------------------------------------------- */

static const struct {
	const char *s;
	uint8_t kind, closes; /* closes: the opening bracket of a closing one */
} operators[] = {
	{"//", T_FLOORDIV, 0},
	{"**", T_POW, 0},
	{"==", T_EQ, 0},
	{"!=", T_NE, 0},
	{">=", T_GTEQ, 0},
	{"<=", T_LTEQ, 0},
	{"+", T_ADD, 0},
	{"-", T_SUB, 0},
	{"/", T_DIV, 0},
	{"*", T_MUL, 0},
	{"%", T_MOD, 0},
	{"~", T_TILDE, 0},
	{"[", T_LBRACKET, 0},
	{"(", T_LPAREN, 0},
	{"{", T_LBRACE, 0},
	{"]", T_RBRACKET, T_LBRACKET},
	{")", T_RPAREN, T_LPAREN},
	{"}", T_RBRACE, T_LBRACE},
	{">", T_GT, 0},
	{"<", T_LT, 0},
	{"=", T_ASSIGN, 0},
	{".", T_DOT, 0},
	{":", T_COLON, 0},
	{"|", T_PIPE, 0},
	{",", T_COMMA, 0},
	{";", T_SEMICOLON, 0},
};

static int is_name_byte(unsigned char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
	       c >= 0x80;
}

static int digit_of(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : 99;
}

/* Skips digits with single underscores between them and returns the end; `at` if there is no
 * digit. */
static size_t digits(const struct lexer *x, size_t at, int base)
{
	size_t end = at;
	while (end < x->len &&
	       (digit_of(x->s[end]) < base ||
	        (x->s[end] == '_' && end > at && end + 1 < x->len && digit_of(x->s[end + 1]) < base)))
		end++;
	return end;
}

/* The end of a float at `at`; `at` if there is none. */
static size_t float_end(const struct lexer *x, size_t at)
{
	size_t whole = digits(x, at, 10), end = whole;
	if (at && x->s[at - 1] == '.')
		return at;
	if (end < x->len && x->s[end] == '.' && digits(x, end + 1, 10) > end + 1)
		end = digits(x, end + 1, 10);
	if (end < x->len && (x->s[end] == 'e' || x->s[end] == 'E')) {
		size_t e = end + 1;
		e += e < x->len && (x->s[e] == '+' || x->s[e] == '-');
		if (digits(x, e, 10) > e)
			end = digits(x, e, 10);
	}
	return end > whole ? end : at;
}

static void lex_float(struct lexer *x, size_t end)
{
	char text[64];
	size_t n = 0;
	struct token *t = add_token(x, T_FLOAT, x->at);
	for (size_t i = x->at; i < end; i++)
		if (x->s[i] != '_') {
			if (n == sizeof text - 1)
				parse_fail(x->p, t->line, "a number has more than %zu digits", sizeof text - 1);
			text[n++] = x->s[i];
		}
	text[n] = 0;
	t->f = strtod(text, NULL);
	x->at = end;
}

static void lex_int(struct lexer *x)
{
	struct token *t = add_token(x, T_INT, x->at);
	int base = 10;
	size_t begin = x->at, end;
	if (x->s[begin] == '0' && begin + 1 < x->len) {
		char c = (char)(x->s[begin + 1] | 0x20);
		int b = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
		size_t from = begin + 2 + (begin + 2 < x->len && x->s[begin + 2] == '_');
		if (b != 10 && digits(x, from, b) > from) {
			base = b;
			begin = from;
		}
	}
	end = digits(x, begin, base);
	if (base == 10 && x->s[begin] == '0')
		for (size_t i = begin; i < end; i++)
			if (x->s[i] != '0' && x->s[i] != '_')
				end = i; /* 007 is 00 and then 7, which is a syntax error everywhere */
	for (size_t i = begin; i < end; i++)
		if (x->s[i] != '_' && (__builtin_mul_overflow(t->i, base, &t->i) ||
		                       __builtin_add_overflow(t->i, digit_of(x->s[i]), &t->i)))
			parse_fail(x->p, t->line, "an integer does not fit 64 bits");
	x->at = end;
}

/* Decodes one escape at s[0] == '\\', n >= 2. Returns the number of bytes consumed. Unknown escapes
 * are copied unchanged. */
static size_t unescape(struct lexer *x, const char *s, size_t n, char *out, size_t *ret_len)
{
	static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
	const char *simple = s[1] ? strchr(from, s[1]) : NULL;
	uint32_t cp = 0;
	size_t used = 2, most = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : s[1] == 'U' ? 8 : 0;
	*ret_len = 1;
	if (simple) {
		out[0] = to[simple - from];
		return 2;
	}
	if (s[1] == '\n') {
		*ret_len = 0;
		return 2;
	}
	if (s[1] >= '0' && s[1] <= '7') {
		for (used = 1; used < n && used < 4 && s[used] >= '0' && s[used] <= '7'; used++)
			cp = cp * 8 + (uint32_t)(s[used] - '0');
	} else if (most) {
		for (; used < n && used < 2 + most && digit_of(s[used]) < 16; used++)
			cp = cp * 16 + (uint32_t)digit_of(s[used]);
		if (used != 2 + most || cp > 0x10ffff || (cp & 0xfffff800) == 0xd800)
			parse_fail(x->p, line_of(x, x->at), "invalid or incomplete escape \\%c in a string",
			           s[1]);
	} else if (s[1] == 'N') {
		parse_fail(x->p, line_of(x, x->at),
		           "escapes by a character's name (\\N) are not supported");
	} else {
		out[0] = '\\';
		return 1;
	}
	*ret_len = (size_t)cp_put(out, cp);
	return used;
}

static void lex_string(struct lexer *x)
{
	char quote = x->s[x->at];
	size_t begin = x->at + 1, end = begin, n = 0, got;
	while (end < x->len && x->s[end] != quote)
		end += x->s[end] == '\\' ? 2 : 1;
	if (end >= x->len)
		parse_fail(x->p, line_of(x, x->at), "unterminated string");
	struct token *t = add_token(x, T_STR, x->at);
	char *out = arena_alloc(x->p->arena, end - begin + 4), piece[4];
	for (size_t i = begin; i < end;) {
		if (x->s[i] != '\\') {
			out[n++] = x->s[i++];
			continue;
		}
		i += unescape(x, x->s + i, end - i, piece, &got);
		memcpy(out + n, piece, got);
		n += got;
	}
	t->s = out;
	t->len = n;
	x->at = end + 1;
}

static void lex_operator(struct lexer *x, uint8_t *open, unsigned *n_open)
{
	for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
		uint8_t kind = operators[i].kind;
		if (!starts(x, x->at, operators[i].s))
			continue;
		if (kind == T_LBRACKET || kind == T_LPAREN || kind == T_LBRACE) {
			if (*n_open == 255)
				parse_fail(x->p, line_of(x, x->at), "more than 255 brackets are open");
			open[(*n_open)++] = kind;
		} else if (operators[i].closes &&
		           (*n_open == 0 || open[--*n_open] != operators[i].closes)) {
			parse_fail(x->p, line_of(x, x->at), "unexpected '%s'", operators[i].s);
		}
		add_token(x, (enum token_kind)kind, x->at);
		x->at += strlen(operators[i].s);
		return;
	}
	unsigned char c = (unsigned char)x->s[x->at];
	parse_fail(x->p, line_of(x, x->at),
	           c >= 0x20 && c < 0x7f ? "unexpected character '%c'" : "unexpected byte 0x%02x", c);
}

/* At the end of the tag? If so, sets *ret_sign to its sign and moves x->at behind the braces. */
static int tag_end(struct lexer *x, int is_variable, char *ret_sign)
{
	const char *end = is_variable ? "}}" : "%}";
	char c = x->s[x->at];
	size_t sign = (c == '-' || (c == '+' && !is_variable)) ? 1 : 0;
	if (!starts(x, x->at + sign, end))
		return 0;
	*ret_sign = sign ? c : 0;
	x->at += sign + 2;
	return 1;
}

static void lex_tag(struct lexer *x, int is_variable)
{
	uint8_t open[256];
	unsigned n_open = 0;
	char sign;
	for (;;) {
		x->at = skip_space(x, x->at);
		if (x->at >= x->len)
			parse_fail(x->p, line_of(x, x->len), "the template ends within {%c",
			           is_variable ? '{' : '%');
		char c = x->s[x->at];
		size_t begin = x->at, end;
		if (n_open == 0 && tag_end(x, is_variable, &sign)) {
			add_token(x, is_variable ? T_VAR_END : T_BLOCK_END, begin);
			if (!is_variable || sign == '-')
				x->at = after_block(x, x->at, sign);
			x->line_starting = x->s[x->at - 1] == '\n';
			return;
		}
		if (c >= '0' && c <= '9' && (end = float_end(x, x->at)) > x->at) {
			lex_float(x, end);
		} else if (c >= '0' && c <= '9') {
			lex_int(x);
		} else if (is_name_byte((unsigned char)c)) {
			struct token *t = add_token(x, T_NAME, x->at);
			for (end = x->at; end < x->len && is_name_byte((unsigned char)x->s[end]); end++)
				;
			t->s = x->s + x->at;
			t->len = end - x->at;
			x->at = end;
		} else if (c == '\'' || c == '"') {
			lex_string(x);
		} else {
			lex_operator(x, open, &n_open);
		}
	}
}

/* --- outside of tags ----------------------------------------------------- */

/* If the "{%" at `at` starts a tag that consists of this one word, returns the position after the
 * tag, else 0. data_follows: raw; otherwise endraw, after which trim_blocks applies. */
static size_t word_tag(const struct lexer *x, size_t at, const char *word, int data_follows,
                       char *ret_sign)
{
	size_t i = at + 2;
	char c = i < x->len ? x->s[i] : 0;
	*ret_sign = c == '-' || c == '+' ? c : 0;
	i = skip_space(x, i + (*ret_sign != 0));
	if (i >= x->len || !starts(x, i, word))
		return 0;
	i = skip_space(x, i + strlen(word));
	c = i < x->len ? x->s[i] : 0;
	char sign = c == '-' || (c == '+' && !data_follows) ? c : 0;
	i += sign != 0;
	if (i >= x->len || !starts(x, i, "%}"))
		return 0;
	if (data_follows)
		return sign == '-' ? skip_space(x, i + 2) : i + 2;
	return after_block(x, i + 2, sign);
}

static void lex_comment(struct lexer *x, size_t begin)
{
	const char *end = begin < x->len ? memmem(x->s + begin, x->len - begin, "#}", 2) : NULL;
	if (!end)
		parse_fail(x->p, line_of(x, begin), "unterminated comment: #} is missing");
	size_t at = (size_t)(end - x->s);
	char sign = at > begin && (x->s[at - 1] == '-' || x->s[at - 1] == '+') ? x->s[at - 1] : 0;
	x->at = after_block(x, at + 2, sign);
	x->line_starting = x->s[x->at - 1] == '\n';
}

static void lex_raw(struct lexer *x, size_t begin)
{
	char sign;
	x->line_starting = x->s[begin - 1] == '\n';
	for (size_t at = begin; at + 1 < x->len; at++) {
		if (x->s[at] != '{' || x->s[at + 1] != '%')
			continue;
		size_t after = word_tag(x, at, "endraw", 0, &sign);
		if (!after)
			continue;
		add_data(x, begin, strip_data(x, begin, at, sign, 0));
		x->at = after;
		x->line_starting = x->s[after - 1] == '\n';
		return;
	}
	parse_fail(x->p, line_of(x, begin), "unterminated raw block: {%% endraw %%} is missing");
}

/* The position of the next "{%", "{{" or "{#" from `at` on, or the end of the text. */
static size_t next_tag(const struct lexer *x, size_t at)
{
	while (at < x->len) {
		const char *brace = memchr(x->s + at, '{', x->len - at);
		if (!brace)
			return x->len;
		at = (size_t)(brace - x->s);
		if (at + 1 < x->len && (brace[1] == '%' || brace[1] == '{' || brace[1] == '#'))
			return at;
		at++;
	}
	return x->len;
}

void lex(struct parse *p)
{
	struct lexer x = {.p = p, .line = 1, .line_starting = 1};
	normalize_breaks(&x, p->text, p->len);
	for (;;) {
		size_t begin = x.at, tag = next_tag(&x, begin), after;
		if (tag == x.len) {
			add_data(&x, begin, x.len);
			break;
		}
		char kind = x.s[tag + 1], sign = tag + 2 < x.len ? x.s[tag + 2] : 0, raw_sign;
		sign = sign == '-' || sign == '+' ? sign : 0;
		add_data(&x, begin, strip_data(&x, begin, tag, sign, kind == '{'));
		x.at = tag + 2 + (sign != 0);
		if (kind == '#') {
			lex_comment(&x, x.at);
		} else if (kind == '%' && (after = word_tag(&x, tag, "raw", 1, &raw_sign))) {
			lex_raw(&x, after);
		} else {
			add_token(&x, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, tag);
			lex_tag(&x, kind == '{');
		}
	}
	add_token(&x, T_EOF, x.len);
}
