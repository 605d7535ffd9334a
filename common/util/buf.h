/* buf.h - growable byte buffer with a bound. Past the bound nothing more is added and `full` stays set until buf_reset:
 * check it once at the end. data is always followed by a NUL that len does not count (or is NULL while empty). */
#ifndef UTIL_BUF_H
#define UTIL_BUF_H

#include <stddef.h>
#include <stdint.h>

struct buf {
	char *data;
	size_t len, size, limit;   /* limit 0: none */
	int full;
};

void buf_init(struct buf *b, size_t limit);
void buf_fini(struct buf *b);
void buf_reset(struct buf *b);                     /* empties, keeps the memory */
int buf_add(struct buf *b, const void *p, size_t n);   /* 0 or ERR_FULL */
int buf_adds(struct buf *b, const char *s);
int buf_addc(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* s as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD. */
int buf_add_json(struct buf *b, const char *s, size_t n);

#endif
