/* nfc.h - Unicode normalization form C as the reference tokenizers implement it: with tables of
 * about Unicode 9, see tools/make-nfc-table. Method: https://www.unicode.org/reports/tr15/ */
#ifndef TEXT_NFC_H
#define TEXT_NFC_H

#include "util/buf.h"

#include <stddef.h>
#include <stdint.h>

/* Appends the normal form of well-formed UTF-8. Returns 0, or ERR_FULL if out's limit or quota is
 * exhausted; the quota also accounts for the working memory. Linear in len. */
int nfc_add(struct buf *out, const char *text, size_t len);

/* The generated tables. value: combining class, or NFC_CHECKED for a starter that may change or
 * combine with the character before it. */
struct nfc_class {
	uint32_t first, last;
	uint8_t value;
};
/* second 0: `whole` decomposes into `first` alone */
struct nfc_pair {
	uint32_t first, second, whole;
};
enum { NFC_CHECKED = 255 };
extern const struct nfc_class nfc_classes[];
extern const unsigned nfc_class_count;
/* decompositions are sorted by `whole`, compositions by `first`, then `second` */
extern const struct nfc_pair nfc_decompositions[], nfc_compositions[];
extern const unsigned nfc_decomposition_count, nfc_composition_count;

#endif
