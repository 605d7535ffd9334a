/* normalize.c - see normalize.h. */
#include "text/normalize.h"
#include "text/nfc.h"

#include <string.h>

int normalizer_add(struct normalizer *n, enum normalize_op op, const char *from, size_t from_len,
                   const char *to, size_t to_len)
{
	if (n->n == NORMALIZE_STEPS || from_len > NORMALIZE_TEXT || to_len > NORMALIZE_TEXT)
		return ERR_FULL;
	struct normalize_step *s = &n->steps[n->n++];
	*s = (struct normalize_step){.op = op,
	                             .from_len = (unsigned)from_len,
	                             .to_len = (unsigned)to_len};
	if (from_len)
		memcpy(s->from, from, from_len);
	if (to_len)
		memcpy(s->to, to, to_len);
	return 0;
}

int normalize_replace(struct buf *out, const char *text, size_t len, const char *from,
                      size_t from_len, const char *to, size_t to_len)
{
	size_t copied = 0, i = 0;
	while (i + from_len <= len) {
		const char *hit = memchr(text + i, from[0], len - from_len + 1 - i);
		if (!hit)
			break;
		i = (size_t)(hit - text);
		if (memcmp(hit, from, from_len)) {
			i++;
			continue;
		}
		buf_add(out, text + copied, i - copied);
		buf_add(out, to, to_len);
		copied = i += from_len;
	}
	return buf_add(out, text + copied, len - copied) < 0 || out->full ? ERR_FULL : 0;
}

static int run_step(const struct normalize_step *s, int first, const char *text, size_t len,
                    struct buf *out)
{
	switch (s->op) {
	case NORMALIZE_PREPEND:
		if (first)
			buf_add(out, s->to, s->to_len);
		return buf_add(out, text, len);
	case NORMALIZE_REPLACE:
		return normalize_replace(out, text, len, s->from, s->from_len, s->to, s->to_len);
	case NORMALIZE_NFC: return nfc_add(out, text, len);
	}
	return ERR_INVALID;
}

int normalizer_run(const struct normalizer *n, int first, const char *text, size_t len,
                   struct buf *out, struct buf *spare)
{
	int rc = 0;
	buf_reset(out);
	if (!n->n)
		return buf_add(out, text, len);
	for (unsigned i = 0; i < n->n && rc == 0; i++) {
		struct buf was = *out;
		*out = *spare;
		*spare = was;
		buf_reset(out);
		rc = run_step(&n->steps[i], first, i ? was.data : text, i ? was.len : len, out);
	}
	return rc;
}
