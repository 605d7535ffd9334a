/* parts.c - see parts.h. */
#include "parts.h"
#include "util/least.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* bytes of a string that are written at once; six times as many at most */
#define STRING_PIECE 4096u
#define STRING_SHORT 256u /* bytes of a string that is copied at once */
#define IDS_PIECE 1024u
#define FLOATS_PIECE 512u
#define BASE64_PIECE 6144u   /* bytes; a multiple of 3, which become 4 characters */
#define TEXT_MAX (16u << 20) /* far more than one list needs */

enum part_kind {
	PART_TEXT,
	PART_BYTES,
	PART_STRING,
	PART_IDS,
	PART_FLOATS,
	PART_BASE64,
	PART_ROWS
};

struct answer_part {
	enum part_kind kind;
	enum row_shape shape;
	uint32_t most;
	const void *of; /* TEXT: NULL, see from */
	size_t from;    /* TEXT: begin in parts.text; ROWS: the first */
	size_t n;       /* bytes, ids, floats, rows */
};

void parts_init(struct answer_parts *p)
{
	memset(p, 0, sizeof *p);
	buf_init(&p->text, TEXT_MAX);
}

void parts_fini(struct answer_parts *p)
{
	buf_fini(&p->text);
	free(p->part);
	memset(p, 0, sizeof *p);
}

void parts_reset(struct answer_parts *p)
{
	buf_reset(&p->text);
	p->closed = p->done = 0;
	p->n = p->at = 0;
}

/* The caller bounds the list: it has at most REPLY_PIECES pieces of a message. Without memory
 * nothing more is written. */
static void push_part(struct answer_parts *p, struct answer_part part)
{
	if (p->n == p->size) {
		uint32_t size = p->size ? p->size * 2 : 16;
		struct answer_part *more = mem_try_grow(p->part, size, sizeof *more);
		if (!more) {
			p->text.full = 1;
			return;
		}
		p->part = more;
		p->size = size;
	}
	p->part[p->n++] = part;
}

/* The text added since the last part becomes a part. */
static void close_text(struct answer_parts *p)
{
	if (p->closed < p->text.len)
		push_part(p, (struct answer_part){
						 .kind = PART_TEXT, .from = p->closed, .n = p->text.len - p->closed});
	p->closed = p->text.len;
}

static void add_part(struct answer_parts *p, struct answer_part part)
{
	if (!part.n)
		return;
	close_text(p);
	push_part(p, part);
}

void parts_bytes(struct answer_parts *p, const char *s, size_t n)
{
	add_part(p, (struct answer_part){.kind = PART_BYTES, .of = s, .n = n});
}

void parts_inside(struct answer_parts *p, const char *s, size_t n)
{
	if (n <= STRING_SHORT)
		buf_add_json_part(&p->text, s, n);
	else
		add_part(p, (struct answer_part){.kind = PART_STRING, .of = s, .n = n});
}

void parts_string(struct answer_parts *p, const char *s, size_t n)
{
	buf_addc(&p->text, '"');
	parts_inside(p, s, n);
	buf_addc(&p->text, '"');
}

void parts_ids(struct answer_parts *p, const uint32_t *ids, size_t n)
{
	add_part(p, (struct answer_part){.kind = PART_IDS, .of = ids, .n = n});
}

void parts_floats(struct answer_parts *p, const float *v, size_t n)
{
	add_part(p, (struct answer_part){.kind = PART_FLOATS, .of = v, .n = n});
}

void parts_base64(struct answer_parts *p, const void *bytes, size_t n)
{
	add_part(p, (struct answer_part){.kind = PART_BASE64, .of = bytes, .n = n});
}

void parts_rows(struct answer_parts *p, const struct row_list *rows, uint32_t from, uint32_t to,
                enum row_shape shape, uint32_t most)
{
	add_part(p, (struct answer_part){.kind = PART_ROWS,
	                                 .of = rows,
	                                 .from = from,
	                                 .n = to - from,
	                                 .shape = shape,
	                                 .most = most});
}

/* Writes a piece of the part, from `done` on; returns its length in units of part.n. */
static size_t write_piece(const struct answer_parts *p, const struct answer_part *part,
                          const struct model *m, size_t max_size, struct buf *out)
{
	const char *s = part->of;
	const uint32_t *ids = part->of;
	const float *v = part->of;
	char text[BASE64_PIECE / 3 * 4 + 1];
	size_t from = p->done, n = part->n - from;
	switch (part->kind) {
	case PART_TEXT: buf_add(out, p->text.data + part->from, n); break;
	case PART_BYTES:
		n = least(n, max_size);
		buf_add(out, s + from, n);
		break;
	case PART_STRING:
		n = buf_json_piece(s + from, n, STRING_PIECE);
		buf_add_json_part(out, s + from, n);
		break;
	case PART_IDS:
		n = least(n, IDS_PIECE);
		for (size_t i = from; i < from + n; i++) {
			if (i)
				buf_addc(out, ',');
			buf_add_uint(out, ids[i]);
		}
		break;
	case PART_FLOATS:
		n = least(n, FLOATS_PIECE);
		for (size_t i = from; i < from + n; i++) /* nine digits are enough for every float32 */
			buf_printf(out, i ? ",%.9g" : "%.9g", (double)v[i]);
		break;
	case PART_BASE64:
		n = least(n, BASE64_PIECE);
		sodium_bin2base64(text, sizeof text, (const unsigned char *)part->of + from, n,
		                  sodium_base64_VARIANT_ORIGINAL);
		buf_adds(out, text);
		break;
	case PART_ROWS:
		n = 1;
		if (from)
			buf_addc(out, ',');
		logprob_row(m, rows_at(part->of, (uint32_t)(part->from + from)), part->shape, part->most,
		            out);
		break;
	}
	return n;
}

int parts_write(struct answer_parts *p, const struct model *m, struct buf *out, size_t max_size)
{
	close_text(p);
	out->full |= p->text.full;
	while (p->at < p->n) {
		const struct answer_part *part = &p->part[p->at];
		if (out->len >= max_size || out->full)
			return 0;
		p->done += write_piece(p, part, m, max_size - out->len, out);
		if (p->done == part->n) {
			p->done = 0;
			p->at++;
		}
	}
	return 1;
}

int parts_are_unsent(const struct answer_parts *p)
{
	return (p->n || p->text.len) && !p->at && !p->done;
}

int parts_have_begun(const struct answer_parts *p)
{
	return p->at < p->n && (p->at || p->done);
}
