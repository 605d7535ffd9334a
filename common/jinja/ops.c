/* ops.c - Python's operators, `%` formatting of strings, and str.format. Integers have 64 bits:
 * overflow is an error, never a wrong number. */
#include "jinja/tree.h"
#include "jinja/value.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *op_name(uint8_t token)
{
	switch (token) {
	case T_ADD: return "+";
	case T_SUB: return "-";
	case T_MUL: return "*";
	case T_DIV: return "/";
	case T_FLOORDIV: return "//";
	case T_MOD: return "%";
	default: return "** or pow()";
	}
}

static _Noreturn void fail_operands(struct jin *r, uint8_t token, struct jv a, struct jv b)
{
	if (token == T_ADD && (a.type == J_STR || a.type == J_LIST || a.type == J_TUPLE)) {
		const char *t = jv_type_name((enum jv_type)a.type);
		jin_fail(r, "can only concatenate %s (not \"%s\") to %s", t,
		         jv_type_name((enum jv_type)b.type), t);
	}
	jin_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op_name(token),
	         jv_type_name((enum jv_type)a.type), jv_type_name((enum jv_type)b.type));
}

static _Noreturn void too_big(struct jin *r)
{
	jin_fail(r, "an integer does not fit 64 bits");
}

static struct jv int_power(struct jin *r, int64_t base, int64_t exponent)
{
	int64_t v = 1;
	if (exponent < 0) {
		if (base == 0)
			jin_fail(r, "0.0 cannot be raised to a negative power");
		return jv_float(pow((double)base, (double)exponent));
	}
	if (base == 0 || base == 1 || base == -1)
		return jv_int(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
	for (int64_t i = 0; i < exponent; i++)
		if (__builtin_mul_overflow(v, base, &v))
			too_big(r);
	return jv_int(v);
}

static struct jv int_op(struct jin *r, uint8_t token, int64_t a, int64_t b)
{
	int64_t v = 0;
	if ((token == T_DIV || token == T_FLOORDIV || token == T_MOD) && b == 0)
		jin_fail(r, token == T_DIV ? "division by zero" : "integer division or modulo by zero");
	switch (token) {
	case T_ADD:
		if (__builtin_add_overflow(a, b, &v))
			too_big(r);
		return jv_int(v);
	case T_SUB:
		if (__builtin_sub_overflow(a, b, &v))
			too_big(r);
		return jv_int(v);
	case T_MUL:
		if (__builtin_mul_overflow(a, b, &v))
			too_big(r);
		return jv_int(v);
	case T_DIV: return jv_float((double)a / (double)b);
	case T_POW: return int_power(r, a, b);
	default:
		if (b == -1) /* INT64_MIN / -1 is the only division that overflows */
			return token == T_MOD ? jv_int(0) : int_op(r, T_SUB, 0, a);
		v = a / b - (a % b != 0 && (a < 0) != (b < 0));
		return jv_int(token == T_FLOORDIV ? v : a - v * b);
	}
}

static struct jv float_op(struct jin *r, uint8_t token, double a, double b)
{
	if ((token == T_DIV || token == T_FLOORDIV || token == T_MOD) && b == 0)
		jin_fail(r, token == T_DIV   ? "float division by zero"
		            : token == T_MOD ? "float modulo"
		                             : "float floor division by zero");
	double m;
	switch (token) {
	case T_ADD: return jv_float(a + b);
	case T_SUB: return jv_float(a - b);
	case T_MUL: return jv_float(a * b);
	case T_DIV: return jv_float(a / b);
	case T_POW:
		m = pow(a, b);
		if ((a == 0 && b < 0) || (isnan(m) && !isnan(a) && !isnan(b)) ||
		    (isinf(m) && !isinf(a) && !isinf(b)))
			jin_fail(r, "the result of ** is not a number");
		return jv_float(m);
	default:
		m = fmod(a, b);
		if (m != 0 && (m < 0) != (b < 0))
			m += b;
		else if (m == 0)
			m = copysign(0, b);
		if (token == T_MOD)
			return jv_float(m);
		double q = (a - m) / b, down = floor(q);
		return jv_float(q - down > 0.5 ? down + 1 : q == 0 ? copysign(0, a / b) : down);
	}
}

static struct jv list_add(struct jin *r, struct jv a, struct jv b)
{
	struct jlist *l = list_new(r, a.list->n + b.list->n);
	jin_step(r, (a.list->n + b.list->n) / 4);
	for (size_t i = 0; i < a.list->n; i++)
		list_push(r, l, a.list->v[i]);
	for (size_t i = 0; i < b.list->n; i++)
		list_push(r, l, b.list->v[i]);
	return (struct jv){.type = a.type, .list = l};
}

static struct jv repeat(struct jin *r, struct jv s, int64_t times)
{
	if (s.type == J_STR)
		return str_repeat(r, s, times);
	struct jlist *l = list_new(r, 0);
	for (int64_t i = 0; i < times && s.list->n; i++) {
		jin_step(r, s.list->n / 4 + 1);
		for (size_t k = 0; k < s.list->n; k++)
			list_push(r, l, s.list->v[k]);
	}
	return (struct jv){.type = s.type, .list = l};
}

static int is_sequence(struct jv v)
{
	return v.type == J_STR || v.type == J_LIST || v.type == J_TUPLE;
}

struct jv op_binary(struct jin *r, uint8_t token, struct jv a, struct jv b)
{
	if (a.type == J_UNDEF)
		jin_undefined(r, a);
	if (token == T_MOD && a.type == J_STR)
		return str_percent(r, a, b);
	if (b.type == J_UNDEF)
		jin_undefined(r, b);
	if (jv_is_number(a) && jv_is_number(b)) {
		if (a.type == J_FLOAT || b.type == J_FLOAT)
			return float_op(r, token, jv_number(a), jv_number(b));
		return int_op(r, token, a.i, b.i);
	}
	if (token == T_ADD && a.type == J_STR && b.type == J_STR)
		return str_concat(r, a, b);
	if (token == T_ADD && a.type == b.type && (a.type == J_LIST || a.type == J_TUPLE))
		return list_add(r, a, b);
	if (token == T_MUL && is_sequence(a) && (b.type == J_INT || b.type == J_BOOL))
		return repeat(r, a, b.i);
	if (token == T_MUL && is_sequence(b) && (a.type == J_INT || a.type == J_BOOL))
		return repeat(r, b, a.i);
	fail_operands(r, token, a, b);
}

struct jv op_negate(struct jin *r, struct jv v)
{
	if (v.type == J_UNDEF)
		jin_undefined(r, v);
	if (v.type == J_FLOAT)
		return jv_float(-v.f);
	if (!jv_is_number(v))
		jin_fail(r, "bad operand type for unary -: '%s'", jv_type_name((enum jv_type)v.type));
	return int_op(r, T_SUB, 0, v.i);
}

/* --- formatting one field ------------------------------------------------ */

enum { FIELD_MAX = 10000 }; /* limit of a field's width and precision */

struct field {
	char fill[4], align, sign, type;
	int fill_len, alternate, zero, group;
	int64_t width, precision; /* -1: not given */
};

static void put_padded(struct jin *r, struct buf *b, const struct field *f, const char *s,
                       size_t len, size_t sign_len, char def_align)
{
	size_t chars = text_length(s, len), want = f->width > 0 ? (size_t)f->width : 0,
		   pad = want > chars ? want - chars : 0;
	char align = f->align ? f->align : def_align;
	size_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0, middle = align == '=' ? pad : 0;
	for (size_t i = 0; i < left; i++)
		text_add(r, b, f->fill, (size_t)f->fill_len);
	text_add(r, b, s, sign_len);
	for (size_t i = 0; i < middle; i++)
		text_add(r, b, f->fill, (size_t)f->fill_len);
	text_add(r, b, s + sign_len, len - sign_len);
	for (size_t i = left + middle; i < pad; i++)
		text_add(r, b, f->fill, (size_t)f->fill_len);
}

/* Inserts thousands separators into the run of digits that starts at s[begin]. Returns the new
 * length. */
static size_t group_digits(char *s, size_t len, size_t size, size_t begin, char by)
{
	size_t digits = begin;
	while (digits < len && s[digits] >= '0' && s[digits] <= '9')
		digits++;
	for (size_t at = digits; at > begin + 3 && len + 1 < size; len++) {
		at -= 3;
		memmove(s + at + 1, s + at, len - at);
		s[at] = by;
	}
	return len;
}

static void put_int(struct jin *r, struct buf *b, const struct field *f, int64_t v)
{
	static const char digits[] = "0123456789abcdef";
	uint64_t u = v < 0 ? -(uint64_t)v : (uint64_t)v, base = f->type == 'x' || f->type == 'X' ? 16
	                                                        : f->type == 'o'                 ? 8
	                                                        : f->type == 'b'                 ? 2
	                                                                                         : 10;
	char text[128], rev[72];
	size_t n = 0, len = 0, sign;
	do
		rev[n++] = digits[u % base];
	while (u /= base);
	while (f->precision > 0 && n < (size_t)f->precision && n < 70)
		rev[n++] = '0';
	if (v < 0 || f->sign == '+' || f->sign == ' ')
		text[len++] = v < 0 ? '-' : f->sign;
	if (f->alternate && base != 10) {
		text[len++] = '0';
		text[len++] = base == 16 ? 'x' : base == 8 ? 'o' : 'b';
	}
	sign = len;
	while (n)
		text[len++] = rev[--n];
	if (f->group)
		len = group_digits(text, len, sizeof text, sign, (char)f->group);
	for (size_t i = 0; f->type == 'X' && i < len; i++)
		text[i] = text[i] >= 'a' && text[i] <= 'z' ? (char)(text[i] - 32) : text[i];
	put_padded(r, b, f, text, len, sign, f->zero ? '=' : '>');
}

static void put_float(struct jin *r, struct buf *b, const struct field *f, double v)
{
	char text[800], spec[8] = "%.*f";
	int precision = f->precision < 0 ? 6 : (int)(f->precision > 300 ? 300 : f->precision);
	char type = f->type == '%' ? 'f' : f->type ? f->type : 'g';
	size_t len = 0;
	if (type == 'n')
		type = 'g';
	if (v >= 0 && f->sign)
		text[len++] = f->sign;
	if (f->type == 0 && f->precision < 0) {
		char plain[40];
		float_repr(v, plain);
		len += (size_t)snprintf(text + len, sizeof text - len, "%s", plain);
	} else {
		spec[3] = type;
		len += (size_t)snprintf(text + len, sizeof text - len, spec, precision,
		                        f->type == '%' ? v * 100 : v);
		if (f->type == 0 && !strpbrk(text, ".e") && len + 2 < sizeof text)
			len += (size_t)snprintf(text + len, sizeof text - len, ".0");
	}
	if (f->type == '%' && len + 1 < sizeof text)
		text[len++] = '%';
	size_t sign = text[0] == '-' || text[0] == '+' || text[0] == ' ';
	if (f->group)
		len = group_digits(text, len, sizeof text, sign, (char)f->group);
	put_padded(r, b, f, text, len, sign, f->zero ? '=' : '>');
}

static void put_text(struct jin *r, struct buf *b, const struct field *f, struct jv v)
{
	size_t len = f->precision >= 0 ? text_offset(v.s, v.len, (size_t)f->precision) : v.len;
	put_padded(r, b, f, v.s, len, 0, '<');
}

/* The character of a number, for %c and {:c}. A surrogate is no text in UTF-8. */
static struct jv char_of(struct jin *r, int64_t cp)
{
	char s[4];
	if (cp < 0 || cp > 0x10ffff)
		jin_fail(r, "%%c arg not in range(0x110000)");
	if (cp >= 0xd800 && cp < 0xe000)
		jin_fail(r, "%%c arg is a surrogate, U+%04X", (unsigned)cp);
	return jv_copy(r, s, (size_t)cp_put(s, (uint32_t)cp));
}

/* --- "%d" % x ------------------------------------------------------------ */

struct percent {
	const char *s;
	size_t len, at;
	struct jv args;
	size_t used; /* number of args consumed */
};

static struct jv next_arg(struct jin *r, struct percent *p)
{
	if (p->args.type != J_TUPLE) {
		if (p->used++)
			jin_fail(r, "not enough arguments for format string");
		return p->args;
	}
	if (p->used == p->args.list->n)
		jin_fail(r, "not enough arguments for format string");
	return p->args.list->v[p->used++];
}

static char percent_peek(struct jin *r, const struct percent *p)
{
	if (p->at >= p->len)
		jin_fail(r, "incomplete format");
	return p->s[p->at];
}

static int64_t percent_number(struct jin *r, struct percent *p, int64_t def)
{
	int64_t v = 0;
	size_t from = p->at;
	if (percent_peek(r, p) == '*') {
		p->at++;
		struct jv n = next_arg(r, p);
		if (n.type != J_INT)
			jin_fail(r, "* wants int");
		v = n.i;
		from = p->at - 1;
	} else {
		for (; p->at < p->len && p->s[p->at] >= '0' && p->s[p->at] <= '9' && v <= FIELD_MAX;
		     p->at++)
			v = v * 10 + (p->s[p->at] - '0');
	}
	if (v > FIELD_MAX || v < -FIELD_MAX)
		jin_over(r, "a field of a format is wider than %d", FIELD_MAX);
	return p->at > from ? v : def;
}

static struct jv percent_key(struct jin *r, struct percent *p)
{
	size_t from = ++p->at, open = 1;
	for (; p->at < p->len; p->at++) {
		open += (p->s[p->at] == '(') - (p->s[p->at] == ')');
		if (!open)
			break;
	}
	if (open)
		jin_fail(r, "incomplete format key");
	if (p->args.type != J_DICT)
		jin_fail(r, "format requires a mapping");
	const struct jv *v = dict_get_text(r, p->args.dict, p->s + from, p->at - from);
	if (!v)
		jin_fail(r, "KeyError: '%.*s'", p->at - from < 100 ? (int)(p->at - from) : 100,
		         p->s + from);
	p->at++;
	return *v;
}

static struct jv percent_char(struct jin *r, struct jv v, int markup)
{
	int number = v.type == J_INT || v.type == J_BOOL;
	if (markup || (!number && (v.type != J_STR || v.len > 4 || text_length(v.s, v.len) != 1)))
		jin_fail(r, "%%c requires int or char");
	return number ? char_of(r, v.i) : v;
}

static void percent_put(struct jin *r, struct buf *b, struct field *f, char type, struct jv v,
                        int markup)
{
	f->type = type == 'i' || type == 'u' ? 'd' : type;
	if (v.type == J_UNDEF && strchr("diueEfFgG", type))
		jin_undefined(r, v);
	if (strchr("diuxXo", type)) {
		if (!jv_is_number(v) || (v.type == J_FLOAT && strchr("xXo", type)))
			jin_fail(r, "%%%c format: a number is required, not %s", type,
			         jv_type_name((enum jv_type)v.type));
		if (v.type == J_FLOAT && !(fabs(v.f) < 9.2e18))
			too_big(r);
		put_int(r, b, f, v.type == J_FLOAT ? (int64_t)v.f : v.i);
	} else if (strchr("eEfFgG", type)) {
		if (!jv_is_number(v))
			jin_fail(r, "must be real number, not %s", jv_type_name((enum jv_type)v.type));
		put_float(r, b, f, jv_number(v));
	} else {
		struct jv text;
		if (type == 'c') {
			text = percent_char(r, v, markup);
			f->precision = -1;
		} else if (type == 's') {
			text = markup ? str_escape(r, v) : jv_to_str(r, v);
		} else {
			jv_repr(r, buf_open(r), v);
			text = buf_close(r);
		}
		f->type = 0;
		f->align = f->align ? f->align : '>';
		put_text(r, b, f, text);
	}
}

static void percent_field(struct jin *r, struct buf *b, struct percent *p, int markup)
{
	struct field f = {.fill = " ", .fill_len = 1, .precision = -1};
	struct jv keyed = jv_none();
	int has_key = percent_peek(r, p) == '(';
	if (has_key)
		keyed = percent_key(r, p);
	for (; strchr("#0- +", percent_peek(r, p)) && p->s[p->at]; p->at++) {
		char c = p->s[p->at];
		f.alternate |= c == '#';
		f.zero |= c == '0';
		f.align = c == '-' ? '<' : f.align;
		f.sign = c == '+' || (c == ' ' && !f.sign) ? c : f.sign;
	}
	f.width = percent_number(r, p, -1);
	if (f.width < 0 && f.width != -1) {
		f.align = '<';
		f.width = -f.width;
	}
	if (percent_peek(r, p) == '.') {
		p->at++;
		f.precision = percent_number(r, p, 0);
	}
	char type = percent_peek(r, p);
	p->at++;
	if (!strchr("diuxXoeEfFgGcrsa", type) || !type)
		jin_fail(r, "unsupported format character 0x%02x at index %zu", (unsigned char)type,
		         p->at - 1);
	if (f.zero && !f.align && !strchr("crsa", type))
		f.fill[0] = '0';
	percent_put(r, b, &f, type, has_key ? keyed : next_arg(r, p), markup);
}

struct jv str_percent(struct jin *r, struct jv format, struct jv args)
{
	struct percent p = {.s = format.s, .len = format.len, .args = args};
	struct buf *b = buf_open(r);
	while (p.at < p.len) {
		const char *sign = memchr(p.s + p.at, '%', p.len - p.at);
		size_t end = sign ? (size_t)(sign - p.s) : p.len;
		text_add(r, b, p.s + p.at, end - p.at);
		p.at = end + 1;
		if (!sign)
			break;
		if (percent_peek(r, &p) == '%') {
			text_add(r, b, "%", 1);
			p.at++;
		} else {
			jin_step(r, 1);
			percent_field(r, b, &p, format.sub);
		}
	}
	if (args.type == J_TUPLE ? p.used < args.list->n
	                         : !p.used && args.type != J_DICT && args.type != J_LIST)
		jin_fail(r, "not all arguments converted during string formatting");
	struct jv v = buf_close(r);
	v.sub = format.sub;
	return v;
}

/* --- "{}".format(x) ------------------------------------------------------ */

struct format {
	const char *s;
	size_t len, at;
	const struct jargs *args;
	const struct jv *map; /* where names are looked up; NULL: among the keyword arguments */
	size_t used;
	int numbered; /* {0} was used: {} is no longer allowed */
};

/* Resolves name.attr[item] after an argument's name. */
static struct jv format_path(struct jin *r, struct jv v, const char *s, size_t len)
{
	for (size_t at = 0; at < len;) {
		size_t begin = at + 1, end = begin;
		int is_item = s[at] == '[', number = 1;
		int64_t index = 0;
		if (!is_item && s[at] != '.')
			jin_fail(r, "Only '.' or '[' may follow ']' in format field specifier");
		while (end < len && (is_item ? s[end] != ']' : s[end] != '.' && s[end] != '['))
			end++;
		if (end == begin || (is_item && end == len))
			jin_fail(r, "Empty attribute in format string");
		for (size_t i = begin; i < end && number; i++)
			number = s[i] >= '0' && s[i] <= '9' && index < 1000000000 &&
			         (index = index * 10 + (s[i] - '0'), 1);
		if (v.type == J_UNDEF)
			jin_undefined(r, v);
		v = is_item && number ? jv_item(r, v, jv_int(index))
		    : is_item         ? jv_item(r, v, jv_str(s + begin, end - begin))
		                      : jv_attr(r, v, jv_str(s + begin, end - begin));
		at = end + (is_item ? 1 : 0);
	}
	return v;
}

static struct jv format_named(struct jin *r, const struct format *f, const char *s, size_t n)
{
	const struct jv *v = NULL;
	if (f->map && f->map->type == J_UNDEF)
		jin_undefined(r, *f->map);
	if (f->map && f->map->type != J_DICT)
		jin_fail(r, "'%s' object is no mapping", jv_type_name((enum jv_type)f->map->type));
	if (f->map)
		v = dict_get_text(r, f->map->dict, s, n);
	for (size_t i = 0; !f->map && i < f->args->n_kw && !v; i++)
		if (f->args->kw_names[i].len == n && !memcmp(f->args->kw_names[i].s, s, n))
			v = &f->args->kw[i];
	if (!v)
		jin_fail(r, "KeyError: '%.*s'", n < 100 ? (int)n : 100, s);
	return *v;
}

static struct jv format_arg(struct jin *r, struct format *f, const char *s, size_t len)
{
	size_t n = 0, index = 0;
	while (n < len && s[n] != '.' && s[n] != '[')
		n++;
	int number = n > 0;
	for (size_t i = 0; i < n && number; i++)
		number = s[i] >= '0' && s[i] <= '9' && index < 100000 &&
		         (index = index * 10 + (size_t)(s[i] - '0'), 1);
	if (n == 0) {
		if (f->numbered)
			jin_fail(r,
			         "cannot switch from manual field specification to automatic field numbering");
		index = f->used++;
	} else if (number) {
		if (f->used)
			jin_fail(r,
			         "cannot switch from automatic field numbering to manual field specification");
		f->numbered = 1;
	} else {
		return format_path(r, format_named(r, f, s, n), s + n, len - n);
	}
	if (index >= f->args->n)
		jin_fail(r, "Replacement index %zu out of range for positional args tuple", index);
	return format_path(r, f->args->v[index], s + n, len - n);
}

static int64_t spec_number(struct jin *r, const char *s, size_t len, size_t *at, int64_t def)
{
	int64_t v = 0;
	size_t from = *at;
	for (; *at < len && s[*at] >= '0' && s[*at] <= '9'; ++*at)
		if ((v = v * 10 + (s[*at] - '0')) > FIELD_MAX)
			jin_over(r, "a field of a format is wider than %d", FIELD_MAX);
	return *at > from ? v : def;
}

/* Parses [[fill]align][sign][#][0][width][,][.precision][type]. */
static struct field parse_spec(struct jin *r, const char *s, size_t len)
{
	struct field f = {.fill = " ", .fill_len = 1, .precision = -1};
	size_t at = 0, first = len ? text_offset(s, len, 1) : 0;
	if (first && first < len && strchr("<>=^", s[first])) {
		memcpy(f.fill, s, first);
		f.fill_len = (int)first;
		f.align = s[first];
		at = first + 1;
	} else if (len && s[0] && strchr("<>=^", s[0])) {
		f.align = s[at++];
	}
	if (at < len && s[at] && strchr("+- ", s[at])) {
		f.sign = s[at] == '-' ? 0 : s[at];
		at++;
	}
	if (at < len && s[at] == '#') {
		f.alternate = 1;
		at++;
	}
	if (at < len && s[at] == '0') {
		f.zero = 1;
		if (!f.align) {
			f.fill[0] = '0';
			f.fill_len = 1;
		}
		at++;
	}
	f.width = spec_number(r, s, len, &at, -1);
	if (at < len && (s[at] == ',' || s[at] == '_'))
		f.group = s[at++];
	if (at < len && s[at] == '.') {
		at++;
		f.precision = spec_number(r, s, len, &at, -1);
		if (f.precision < 0)
			jin_fail(r, "Format specifier missing precision");
	}
	if (at < len)
		f.type = s[at++];
	if (at < len)
		jin_fail(r, "Invalid format specifier");
	return f;
}

static void put_char(struct jin *r, struct buf *b, const struct field *f, int64_t cp)
{
	if (f->sign || f->alternate || f->group)
		jin_fail(r, "a sign, '#' or ',' is not allowed with the format code 'c'");
	struct jv v = char_of(r, cp);
	put_padded(r, b, f, v.s, v.len, 0, '>');
}

static void put_formatted(struct jin *r, struct buf *b, struct jv v, const char *spec, size_t len)
{
	struct field f = parse_spec(r, spec, len);
	int number = jv_is_number(v) && !(v.type == J_BOOL && !len);
	if (number && (v.type == J_FLOAT || (f.type && strchr("eEfFgG%", f.type)))) {
		if (f.type && !strchr("eEfFgG%n", f.type))
			jin_fail(r, "Unknown format code '%c' for object of type 'float'", f.type);
		put_float(r, b, &f, jv_number(v));
	} else if (number) {
		if (f.type && !strchr("dxXobnc", f.type))
			jin_fail(r, "Unknown format code '%c' for object of type 'int'", f.type);
		if (f.precision >= 0)
			jin_fail(r, "Precision not allowed in integer format specifier");
		if (f.type == 'c')
			put_char(r, b, &f, v.i);
		else
			put_int(r, b, &f, v.i);
	} else {
		if ((f.type && f.type != 's') || (len && v.type != J_STR))
			jin_fail(r, "unsupported format string passed to %s.__format__",
			         jv_type_name((enum jv_type)v.type));
		put_text(r, b, &f, jv_to_str(r, v));
	}
}

/* Formats {name!r:spec}; f->at is after the brace. */
static void format_field(struct jin *r, struct buf *b, struct format *f)
{
	size_t begin = f->at, open = 1, end = begin, name = begin, spec;
	for (; end < f->len; end++) {
		open += (f->s[end] == '{') - (f->s[end] == '}');
		if (!open)
			break;
	}
	if (open)
		jin_fail(r, "expected '}' before end of string");
	while (name < end && f->s[name] != '!' && f->s[name] != ':')
		name++;
	struct jv v = format_arg(r, f, f->s + begin, name - begin);
	spec = name;
	if (name < end && f->s[name] == '!') {
		char c = name + 1 < end ? f->s[name + 1] : 0;
		if ((c != 'r' && c != 's' && c != 'a') || (name + 2 < end && f->s[name + 2] != ':'))
			jin_fail(r, "unknown conversion in a format field");
		if (c == 's') {
			v = jv_to_str(r, v);
		} else {
			jv_repr(r, buf_open(r), v);
			v = buf_close(r);
		}
		spec = name + 2;
	}
	spec += spec < end;
	if (memchr(f->s + spec, '{', end - spec))
		jin_fail(r, "fields within a format field are not supported");
	put_formatted(r, b, v, f->s + spec, end - spec);
	f->at = end + 1;
}

static struct jv format_all(struct jin *r, struct format *f)
{
	struct buf *b = buf_open(r);
	while (f->at < f->len) {
		size_t end = f->at;
		while (end < f->len && f->s[end] != '{' && f->s[end] != '}')
			end++;
		text_add(r, b, f->s + f->at, end - f->at);
		f->at = end + 1;
		if (end == f->len)
			break;
		if (f->at < f->len && f->s[f->at] == f->s[end]) {
			text_add(r, b, f->s + end, 1);
			f->at++;
		} else if (f->s[end] == '}') {
			jin_fail(r, "Single '}' encountered in format string");
		} else {
			jin_step(r, 1);
			format_field(r, b, f);
		}
	}
	return buf_close(r);
}

struct jv str_format(struct jin *r, struct jv format, const struct jargs *a)
{
	return format_all(r, &(struct format){.s = format.s, .len = format.len, .args = a});
}

struct jv str_format_map(struct jin *r, struct jv format, struct jv map)
{
	static const struct jargs none = {0};
	return format_all(
		r, &(struct format){.s = format.s, .len = format.len, .args = &none, .map = &map});
}
