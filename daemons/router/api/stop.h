/* stop.h - stop strings in a text that arrives in pieces: where the answer must be cut, and how
 * much of its end must be held back because it may begin one. One pass, constant work per byte and
 * string (Knuth-Morris-Pratt). */
#ifndef ROUTER_STOP_H
#define ROUTER_STOP_H

#include <stddef.h>
#include <stdint.h>

#define STOP_STRINGS_MAX 16
#define STOP_BYTES_MAX 1024

struct stop_set; /* the strings; may be shared by several texts */

/* each 1 .. STOP_BYTES_MAX bytes */
struct stop_set *stop_set_new(const char *const *strings, const size_t *lens, size_t n);
void stop_set_destroy(struct stop_set **s);
size_t stop_set_bytes(const struct stop_set *s); /* of memory */
const char *stop_string(const struct stop_set *s, size_t i, size_t *ret_len);

struct stop_scan { /* of one text; zeroed at its beginning */
	uint16_t matched[STOP_STRINGS_MAX];
};

/* Feeds n bytes. Returns -1, or the index of the string that is complete first (the longest of
 * those that end at the same byte); *ret_end is then the number of the n bytes up to and with
 * its last one. */
int stop_feed(const struct stop_set *s, struct stop_scan *scan, const char *text, size_t n,
              size_t *ret_end);
/* Feeds n bytes in which no string may end: one that ends there is ignored, but one may begin. */
void stop_pass(const struct stop_set *s, struct stop_scan *scan, const char *text, size_t n);
/* The number of bytes at the end of the text so far that may begin a stop string. */
size_t stop_held(const struct stop_set *s, const struct stop_scan *scan);

#endif
