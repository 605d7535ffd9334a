/* unicode.h - UTF-8 steps and character classes as tokenizers see them (general categories of
 * Unicode 16). */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum unicode_class {
	UNICODE_LU,
	UNICODE_LL,
	UNICODE_LT,
	UNICODE_LM,
	UNICODE_LO,
	UNICODE_M,
	UNICODE_N,
	UNICODE_P,
	UNICODE_S,
	UNICODE_SPACE,         /* White_Space; on ASCII and U+0085 too, whatever their category */
	UNICODE_OTHER,         /* C, and what is not assigned */
	UNICODE_NUMERIC_LATER, /* C in Unicode 16, N in Unicode 17 */
	UNICODE_CLASSES
};

/* The generated table behind unicode_class_of. */
extern const uint32_t unicode_runs[];
extern const unsigned unicode_run_count;

/* Class by code point, 0x110000 entries; lives as long as the process. */
const unsigned char *unicode_class_table(void);

/* One step at the start of n > 0 bytes. Positive: a character of so many bytes, *ret_cp set.
 * Negative: so many bytes are a maximal ill-formed part. 0: all n bytes are the beginning of a
 * character whose rest is missing. */
int utf8_step(const char *s, size_t n, uint32_t *ret_cp);

/* Bytes at the start that are ASCII. */
size_t ascii_span(const char *s, size_t n);
/* Code points: bytes that do not continue one. */
size_t utf8_count(const char *s, size_t n);

/* The beginning of a name from a file as it may stand in a message: printable ASCII, the rest as
 * '?'. */
enum { ASCII_QUOTE = 64 };
const char *ascii_quote(const char *s, size_t n, char out[ASCII_QUOTE + 1]);

#endif
