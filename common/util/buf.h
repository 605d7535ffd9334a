/* buf.h - growable byte buffer with a bound. Past the bound nothing more is added and `full` stays
 * set until buf_reset: check it once at the end. data is always followed by a NUL that len does not
 * count (or is NULL while empty).
 *
 * With a limit or a quota, memory that cannot be had also makes the buffer full. With neither it
 * ends the process: such buffers are for what no client and no peer sizes. */
#ifndef UTIL_BUF_H
#define UTIL_BUF_H

#include <stddef.h>
#include <stdint.h>

struct quota;

struct buf {
	char *data;
	size_t len, size, limit; /* limit 0: none */
	int full;
	struct quota *quota; /* that `size` is taken from, NULL: none; outlives the buffer */
};

void buf_init(struct buf *b, size_t limit);
void buf_init_quota(struct buf *b, size_t limit, struct quota *q);
void buf_fini(struct buf *b);
void buf_reset(struct buf *b); /* empties, keeps the memory */
/* room for n bytes more, at once: 0 or ERR_FULL */
int buf_reserve(struct buf *b, size_t n);
int buf_add(struct buf *b, const void *p, size_t n); /* 0 or ERR_FULL */
int buf_adds(struct buf *b, const char *s);
int buf_addc(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int buf_add_uint(struct buf *b, uint64_t v); /* in decimal */
/* s as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD. */
int buf_add_json(struct buf *b, const char *s, size_t n);
/* The same without quotes, for a long string in pieces. buf_json_piece: where a piece of at most
 * `most` bytes (4 or more) may end. */
int buf_add_json_part(struct buf *b, const char *s, size_t n);
size_t buf_json_piece(const char *s, size_t n, size_t most);

#endif
