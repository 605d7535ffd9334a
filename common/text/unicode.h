/* unicode.h - UTF-8 decoding and character classes as tokenizers define them (general categories of
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
	UNICODE_SPACE,         /* White_Space; also in ASCII and U+0085, whatever their category */
	UNICODE_OTHER,         /* C, and unassigned */
	UNICODE_NUMERIC_LATER, /* C in Unicode 16, N in Unicode 17 */
	UNICODE_CLASSES
};

/* The generated table behind unicode_class_table. */
extern const uint32_t unicode_runs[];
extern const unsigned unicode_run_count;

/* Class by code point, 0x110000 entries; valid as long as the process. */
const unsigned char *unicode_class_table(void);

/* Decodes at the start of n > 0 bytes. Positive: length of a character, *ret_cp is set. Negative:
 * minus the length of a maximal ill-formed part. 0: all n bytes are the start of an incomplete
 * character. */
int utf8_step(const char *s, size_t n, uint32_t *ret_cp);

/* The number of leading ASCII bytes. */
size_t ascii_span(const char *s, size_t n);
/* The number of code points: counts bytes that are not continuation bytes. */
size_t utf8_count(const char *s, size_t n);

/* The start of a name from a file, made safe for a message: printable ASCII, other bytes become
 * '?'. */
enum { ASCII_QUOTE = 64 };
const char *ascii_quote(const char *s, size_t n, char out[ASCII_QUOTE + 1]);

#endif
