/* gguf.h - the GGUF container: metadata and tensor directory of one mapped file, or of all parts of
 * a split model. Knows nothing about models.
 *
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little
 * endian). The parts of a split model are named NAME-00001-of-00003.gguf and so on. Opening any
 * part opens all of them; all must exist and agree; the metadata is that of the first. A hostile
 * file is refused with one line that names file, field, found and expected value: every size and
 * offset is checked against the file before use, and no allocation is proportional to a count that
 * the file merely states. */
#ifndef FORMAT_GGUF_H
#define FORMAT_GGUF_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum gguf_type {
	GGUF_U8,
	GGUF_I8,
	GGUF_U16,
	GGUF_I16,
	GGUF_U32,
	GGUF_I32,
	GGUF_F32,
	GGUF_BOOL,
	GGUF_STRING,
	GGUF_ARRAY,
	GGUF_U64,
	GGUF_I64,
	GGUF_F64
};

struct gguf;

struct gguf_str {
	const char *s; /* in the mapping; not NUL-terminated */
	size_t len;
};

static inline int gguf_str_is(struct gguf_str s, const char *text)
{
	return s.len == strlen(text) && memcmp(s.s, text, s.len) == 0;
}

struct gguf_tensor {
	const char *name; /* NUL-terminated copy */
	/* GGML's type number: 0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 8 Q8_0, 14 Q6_K, 30 BF16, ... */
	uint32_t ggml_type;
	uint32_t dims;
	uint64_t ne[4];   /* ne[0] is contiguous: a matrix (n, k) has ne = {k, n} */
	const void *data; /* in the mapping */
	size_t bytes;
};

/* Writes *ret_g only on success. The mappings stay valid until gguf_close. */
int gguf_open(const char *path, struct gguf **ret_g, struct err *err);
void gguf_close(struct gguf **g);
const char *gguf_path(const struct gguf *g); /* of the first part */

size_t gguf_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name); /* NULL: none */

/* "Q4_1", for example; NULL: unknown type number. */
const char *gguf_ggml_type_name(uint32_t ggml_type);

/* Scalars: integers of any width are converted if the value fits. Returns 0, ERR_NOTFOUND, or
 * ERR_INVALID (another type, or does not fit). */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret);
int gguf_get_f32(const struct gguf *g, const char *key, float *ret);
int gguf_get_bool(const struct gguf *g, const char *key, int *ret);
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *ret);

/* Arrays: gguf_get_array returns type, count and, for numbers, a pointer into the mapping that may
 * be unaligned. For strings use gguf_array_str: O(log keys), the offsets are indexed at open. */
int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type *ret_type,
                   size_t *ret_count, const void **ret_data);
int gguf_array_str(const struct gguf *g, const char *key, size_t index, struct gguf_str *ret);

#endif
