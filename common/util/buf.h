/* buf.h - growable byte buffer with a limit. An addition that would pass the limit is refused as a
 * whole, and so are all later ones: `full` stays set until buf_reset, so check it once at the end.
 * data is followed by a NUL byte that len does not count (or is NULL before the first addition).
 *
 * With a limit or a quota, running out of memory also sets `full`. With neither it ends the
 * process: use such buffers only where no client and no peer determines the size. */
#ifndef UTIL_BUF_H
#define UTIL_BUF_H

#include <stddef.h>
#include <stdint.h>

struct quota;

struct buf {
	char *data;
	size_t len, size, limit; /* bytes; limit 0: none */
	int full;
	struct quota *quota; /* charged with `size`; NULL: none; must outlive the buffer */
};

void buf_init(struct buf *b, size_t limit);
void buf_init_quota(struct buf *b, size_t limit, struct quota *q);
void buf_fini(struct buf *b);
void buf_reset(struct buf *b); /* empties, keeps the memory */
/* Makes room for n more bytes. 0 or ERR_FULL. */
int buf_reserve(struct buf *b, size_t n);
int buf_add(struct buf *b, const void *p, size_t n); /* 0 or ERR_FULL */
int buf_adds(struct buf *b, const char *s);
int buf_addc(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int buf_add_uint(struct buf *b, uint64_t v); /* in decimal */
/* Adds s as a JSON string with quotes; each byte that is not valid UTF-8 becomes U+FFFD. */
int buf_add_json(struct buf *b, const char *s, size_t n);
/* The same without quotes, for a long string that is added in pieces. buf_json_piece returns the
 * length of the next piece, at most `most` bytes (4 or more), so that no UTF-8 sequence is
 * split. */
int buf_add_json_part(struct buf *b, const char *s, size_t n);
size_t buf_json_piece(const char *s, size_t n, size_t most);

#endif
