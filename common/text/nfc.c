/* nfc.c - see nfc.h. Most text is already normalized: one table look-up per character finds the
 * first that normalization could change or combine. Only the span from the starter before it to the
 * next character that cannot change is decomposed, ordered and composed.
 *
 * Ordering is a counting sort by combining class, so a text of only combining marks takes no longer
 * than any other. The only error is running out of space: the output's limit, or its quota, which
 * also accounts for the working memory. */
#include "text/nfc.h"
#include "text/unicode.h"
#include "util/check.h"
#include "util/err.h"
#include "util/quota.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
	CODE_POINTS = 0x110000,
	S_FIRST = 0xac00,
	S_COUNT = 11172,
	L_FIRST = 0x1100,
	L_COUNT = 19,
	V_FIRST = 0x1161,
	V_COUNT = 21,
	T_FIRST = 0x11a7,
	T_COUNT = 28
};

static unsigned char values[CODE_POINTS];
static pthread_once_t values_once = PTHREAD_ONCE_INIT;

static void values_build(void)
{
	for (unsigned i = 0; i < nfc_class_count; i++)
		memset(values + nfc_classes[i].first, nfc_classes[i].value,
		       nfc_classes[i].last + 1 - nfc_classes[i].first);
}

static unsigned combining(uint32_t cp)
{
	return values[cp] == NFC_CHECKED ? 0 : values[cp];
}

struct points {
	uint32_t *v, *sorted; /* (size) each */
	size_t n, size;
	struct quota *quota;
	int failed; /* 1: out of memory, characters are missing */
};

static void grow(struct points *p)
{
	size_t size = p->size ? p->size * 2 : 64;
	uint32_t *v = quota_alloc(p->quota, size * sizeof *v),
			 *sorted = quota_alloc(p->quota, size * sizeof *sorted);
	if (!v || !sorted) {
		quota_free(p->quota, v, size * sizeof *v);
		quota_free(p->quota, sorted, size * sizeof *sorted);
		p->failed = 1;
		return;
	}
	if (p->n)
		memcpy(v, p->v, p->n * sizeof *v);
	quota_free(p->quota, p->v, p->size * sizeof *v);
	quota_free(p->quota, p->sorted, p->size * sizeof *sorted);
	p->v = v;
	p->sorted = sorted;
	p->size = size;
}

static void push(struct points *p, uint32_t cp)
{
	if (p->n == p->size)
		grow(p);
	if (p->n < p->size)
		p->v[p->n++] = cp;
}

/* A canonical decomposition recurses only into its first part, a few levels deep; the second part
 * never decomposes further. */
static void push_apart(struct points *p, uint32_t cp)
{
	uint32_t tail[8], s = cp - S_FIRST;
	unsigned n = 0;
	if (s < S_COUNT) {
		push(p, L_FIRST + s / (V_COUNT * T_COUNT));
		push(p, V_FIRST + s % (V_COUNT * T_COUNT) / T_COUNT);
		if (s % T_COUNT)
			push(p, T_FIRST + s % T_COUNT);
		return;
	}
	for (;;) {
		size_t lo = 0, hi = nfc_decomposition_count;
		while (lo < hi) {
			size_t mid = (lo + hi) / 2;
			if (nfc_decompositions[mid].whole < cp)
				lo = mid + 1;
			else
				hi = mid;
		}
		if (lo == nfc_decomposition_count || nfc_decompositions[lo].whole != cp)
			break;
		if (nfc_decompositions[lo].second) {
			CHECK(n < sizeof tail / sizeof *tail);
			tail[n++] = nfc_decompositions[lo].second;
		}
		cp = nfc_decompositions[lo].first;
	}
	push(p, cp);
	while (n)
		push(p, tail[--n]);
}

static uint32_t composed(uint32_t a, uint32_t b)
{
	if (a - L_FIRST < L_COUNT && b - V_FIRST < V_COUNT)
		return S_FIRST + ((a - L_FIRST) * V_COUNT + (b - V_FIRST)) * T_COUNT;
	if (a - S_FIRST < S_COUNT && (a - S_FIRST) % T_COUNT == 0 && b - T_FIRST - 1 < T_COUNT - 1)
		return a + (b - T_FIRST);
	size_t lo = 0, hi = nfc_composition_count;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		const struct nfc_pair *p = &nfc_compositions[mid];
		if (p->first < a || (p->first == a && p->second < b))
			lo = mid + 1;
		else
			hi = mid;
	}
	const struct nfc_pair *p = &nfc_compositions[lo];
	return lo < nfc_composition_count && p->first == a && p->second == b ? p->whole : 0;
}

/* Sorts each run of combining characters by combining class; the sort is stable. */
static void order(struct points *p)
{
	for (size_t i = 0, end; i < p->n; i = end + 1) {
		size_t at[256] = {0}, sum = i;
		for (end = i; end < p->n && combining(p->v[end]); end++)
			at[combining(p->v[end])]++;
		if (end - i < 2)
			continue;
		for (unsigned c = 1; c < 256; c++) {
			size_t count = at[c];
			at[c] = sum;
			sum += count;
		}
		for (size_t k = i; k < end; k++)
			p->sorted[at[combining(p->v[k])]++] = p->v[k];
		memcpy(p->v + i, p->sorted + i, (end - i) * sizeof *p->v);
	}
}

static void compose(struct points *p)
{
	size_t out = 0, starter = SIZE_MAX;
	/* combining class of the last character kept after the starter; 0: none was kept */
	unsigned last = 0;
	for (size_t i = 0; i < p->n; i++) {
		uint32_t cp = p->v[i], whole;
		unsigned c = combining(cp);
		int blocked = starter != SIZE_MAX && out > starter + 1 && last >= c;
		if (starter != SIZE_MAX && !blocked && (whole = composed(p->v[starter], cp))) {
			p->v[starter] = whole;
			continue;
		}
		if (!c)
			starter = out;
		last = c;
		p->v[out++] = cp;
	}
	p->n = out;
}

static void put(struct buf *out, uint32_t cp)
{
	char c[4];
	size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
	for (size_t i = n; i-- > 1; cp >>= 6)
		c[i] = (char)(0x80 | (cp & 0x3f));
	c[0] = (char)(n == 1 ? cp : (0xf00u >> n) | cp);
	buf_add(out, c, n);
}

static void add_changed(struct buf *out, struct points *p, const char *text, size_t len)
{
	uint32_t cp;
	p->n = 0;
	for (size_t i = 0; i < len;) {
		i += (size_t)utf8_step(text + i, len - i, &cp);
		push_apart(p, cp);
	}
	order(p);
	compose(p);
	for (size_t i = 0; i < p->n; i++)
		put(out, p->v[i]);
}

int nfc_add(struct buf *out, const char *text, size_t len)
{
	struct points p = {.quota = out->quota};
	/* before: start of the last character that normalization does not change */
	size_t copied = 0, before = 0, i = 0;
	uint32_t cp;
	pthread_once(&values_once, values_build);
	while (i < len) {
		size_t ascii = ascii_span(text + i, len - i);
		if (ascii)
			before = (i += ascii) - 1;
		if (i == len)
			break;
		size_t at = i;
		i += (size_t)utf8_step(text + i, len - i, &cp);
		if (!values[cp]) {
			before = at;
			continue;
		}
		size_t end = i;
		for (; i < len; end = i) {
			i += (size_t)utf8_step(text + i, len - i, &cp);
			if (!values[cp])
				break;
		}
		buf_add(out, text + copied, before - copied);
		add_changed(out, &p, text + before, end - before);
		before = copied = i = end;
	}
	quota_free(p.quota, p.v, p.size * sizeof *p.v);
	quota_free(p.quota, p.sorted, p.size * sizeof *p.sorted);
	return buf_add(out, text + copied, len - copied) < 0 || out->full || p.failed ? ERR_FULL : 0;
}
