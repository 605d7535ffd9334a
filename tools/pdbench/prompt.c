/* prompt.c - see prompt.h. */
#include "prompt.h"

#include "draw.h"

void prompt_maker_init(struct prompt_maker *m, uint64_t seed, uint32_t low, uint32_t high,
                       int words)
{
	*m = (struct prompt_maker){.seed = draw_mix(seed), .low = low, .high = high, .words = words};
}

static char *put_number(char *p, uint32_t v)
{
	char digits[10];
	int n = 0;
	do
		digits[n++] = (char)('0' + v % 10);
	while (v /= 10);
	while (n)
		*p++ = digits[--n];
	return p;
}

/* Two or three syllables: one or two tokens in most vocabularies. */
static char *put_word(char *p, uint64_t v)
{
	static const char first[] = "bdfgklmnprstvz", then[] = "aeiou";
	for (int left = 2 + (int)(v & 1); left; left--) {
		v = draw_mix(v);
		*p++ = first[v % (sizeof first - 1)];
		*p++ = then[(v >> 32) % (sizeof then - 1)];
	}
	return p;
}

static int goes_on(const struct buf *out)
{
	char last = out->len ? out->data[out->len - 1] : '"';
	return last != '"' && last != ',' && last != '[';
}

void prompt_add(const struct prompt_maker *m, struct buf *out, uint32_t kind, uint64_t stream,
                uint32_t n)
{
	char piece[4096], *p = piece;
	struct draw d = {draw_mix(m->seed ^ draw_mix(stream * 4 + kind))};
	int more = goes_on(out);
	if (!n)
		return;
	if (m->words && m->per_token > 0)
		n = n * m->per_token < 1 ? 1 : (uint32_t)(n * m->per_token + 0.5);
	for (uint32_t i = 0; i < n; i++) {
		if (p - piece > (long)sizeof piece - 16) {
			buf_add(out, piece, (size_t)(p - piece));
			p = piece;
		}
		if (more)
			*p++ = m->words ? ' ' : ',';
		more = 1;
		p = m->words ? put_word(p, draw_u64(&d))
		             : put_number(p, m->low + draw_below(&d, m->high - m->low));
	}
	buf_add(out, piece, (size_t)(p - piece));
}
