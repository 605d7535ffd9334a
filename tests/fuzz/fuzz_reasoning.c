/* fuzz_reasoning.c - thoughts in any text. The first byte says which format and whether the answer
 * begins within them, the second how the text is cut: the pieces must give what the whole gives,
 * thoughts before the answer, and no more bytes than went in. */
#include "tests/fuzz/fuzz.h"
#include "text/reasoning.h"
#include "util/buf.h"

#include <stdlib.h>
#include <string.h>

static const char *const formats[] = {"think", "ernie", "mistral", "granite", "cohere", "harmony"};

struct seen {
	struct buf part[2];
	int mixes; /* harmony: messages of both kinds in any order */
};

static void sink(void *arg, int thoughts, const char *text, size_t len)
{
	struct seen *s = arg;
	if (!len || (thoughts && s->part[0].len && !s->mixes))
		abort();
	if (thoughts)
		fuzz_accepted();
	buf_add(&s->part[thoughts], text, len);
}

static void run(const uint8_t *data, size_t size, unsigned cuts, struct seen *s)
{
	enum reasoning_at at = data[0] >= 192 ? REASONING_WITHIN_ANSWER
	                                      : (enum reasoning_at)(data[0] & 1);
	struct reasoning *r = reasoning_new(reasoning_format_find(formats[data[0] / 2 % 6]), at, NULL,
	                                    sink, s);
	s->mixes = data[0] / 2 % 6 == 5;
	buf_init(&s->part[0], 0);
	buf_init(&s->part[1], 0);
	for (size_t from = 2, n; from < size; from += n) {
		n = cuts ? 1 + (cuts = cuts * 1103515245u + 12345u) / 65536u % 23 : size;
		n = from + n > size ? size - from : n;
		reasoning_feed(r, (const char *)data + from, n);
	}
	reasoning_finish(r);
	reasoning_destroy(&r);
	/* <|start|> comes before heads of calls, and a longer text in place of what ends one within
	 * a string */
	if (s->part[0].len + s->part[1].len > 4 * size)
		abort();
}

FUZZ(reasoning, 1 << 12)
{
	struct seen whole, parts;
	if (size < 2)
		return 0;
	run(data, size, 0, &whole);
	run(data, size, data[1] + 1u, &parts);
	for (int i = 0; i < 2; i++) {
		if (whole.part[i].len != parts.part[i].len ||
		    (whole.part[i].len &&
		     memcmp(whole.part[i].data, parts.part[i].data, whole.part[i].len) != 0))
			abort();
		buf_fini(&whole.part[i]);
		buf_fini(&parts.part[i]);
	}
	return 0;
}
