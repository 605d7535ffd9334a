/* detok.c - streaming detokeniser, see tokenizer.h. The bytes of tokens go in one by one; whole
 * characters come out. It holds at most three bytes: the start of an incomplete character. */
#include "text/tokenizer_int.h"
#include "text/unicode.h"
#include "util/check.h"

#include <string.h>

static const char REPLACEMENT[] = "\xef\xbf\xbd";

void detok_init(struct detok *d, const struct tokenizer *t, unsigned flags)
{
	memset(d, 0, sizeof *d);
	d->t = t;
	d->flags = flags;
	d->begun = (flags & DECODE_CONTINUES) != 0;
	d->strip = d->begun ? 0 : t->spec.strip;
}

/* For tokenizers whose decoder strips the leading space marker: appends the text of the first token
 * without it. */
static int add_first(const struct detok *d, uint32_t id, struct buf *out)
{
	const struct vocab *v = &d->t->spec.vocab;
	struct buf text;
	buf_init(&text, 0);
	int rc = normalize_replace(&text, vocab_text(v, id), v->tokens[id].text_len, SPEC_SPACE,
	                           sizeof SPEC_SPACE - 1, "", 0);
	if (rc == 0)
		rc = buf_add(out, text.data, text.len);
	buf_fini(&text);
	return rc;
}

int detok_bytes(struct detok *d, uint32_t id, struct buf *out)
{
	size_t len;
	const char *bytes = tokenizer_bytes(d->t, id, &len);
	if (!bytes)
		return ERR_INVALID;
	if ((d->flags & DECODE_SKIP_SPECIAL) && tokenizer_is_special(d->t, id))
		return 0;
	int first = !d->begun;
	d->begun = 1;
	if (first && d->t->spec.strip_metaspace)
		return add_first(d, id, out);
	for (; d->strip && len && *bytes == ' '; d->strip--, len--)
		bytes++;
	if (len)
		d->strip = 0;
	return buf_add(out, bytes, len);
}

static int feed_byte(struct detok *d, unsigned char c, struct buf *out)
{
	uint32_t cp;
	CHECK(d->n_held < sizeof d->held);
	d->held[d->n_held++] = c;
	int step = utf8_step((const char *)d->held, d->n_held, &cp);
	if (step == 0)
		return 0;
	unsigned n = d->n_held, bad = step < 0 ? (unsigned)-step : 0;
	d->n_held = 0;
	if (step > 0)
		return buf_add(out, d->held, n);
	int rc = buf_adds(out, REPLACEMENT);
	/* The held bytes were a valid start, so only c can be left over: decode it as a new start. */
	return rc == 0 && bad < n ? feed_byte(d, c, out) : rc;
}

/* Most tokens are whole ASCII characters: these are copied as they are. */
static int feed_bytes(struct detok *d, const char *bytes, size_t len, struct buf *out)
{
	size_t whole = d->n_held ? 0 : ascii_span(bytes, len);
	int rc = whole ? buf_add(out, bytes, whole) : 0;
	for (size_t i = whole; rc == 0 && i < len; i++)
		rc = feed_byte(d, (unsigned char)bytes[i], out);
	return rc;
}

int detok_feed(struct detok *d, uint32_t id, struct buf *out)
{
	size_t len;
	const char *bytes;
	if (d->begun && !d->strip) {
		bytes = tokenizer_bytes(d->t, id, &len);
		if (!bytes)
			return ERR_INVALID;
		return (d->flags & DECODE_SKIP_SPECIAL) && tokenizer_is_special(d->t, id)
		           ? 0
		           : feed_bytes(d, bytes, len, out);
	}
	struct buf raw;
	buf_init(&raw, 0);
	int rc = detok_bytes(d, id, &raw);
	if (rc == 0 && raw.len)
		rc = feed_bytes(d, raw.data, raw.len, out);
	buf_fini(&raw);
	return rc;
}

int detok_finish(struct detok *d, struct buf *out)
{
	unsigned n = d->n_held;
	d->n_held = 0;
	return n ? buf_adds(out, REPLACEMENT) : 0;
}
