/* gguf_int.h - shared by gguf.c (one file) and gguf_split.c (split models). */
#ifndef FORMAT_GGUF_INT_H
#define FORMAT_GGUF_INT_H

#include "format/gguf.h"

struct kv {
	struct gguf_str key;
	enum gguf_type type, elem; /* elem: element type of an array */
	size_t count;              /* elements of an array */
	const unsigned char *data; /* the value, or the first element */
	/* array of strings: offset of each string's length field in the mapping */
	uint64_t *offset;
};

struct gguf {
	char *path;
	const unsigned char *map;
	size_t bytes, data_at;
	struct kv *kv; /* sorted by key */
	size_t kvs;
	struct gguf_tensor *tensor; /* in file order; the first part holds the tensors of all parts */
	size_t tensors;
	size_t *by_name;     /* indices into tensor, sorted by name */
	struct gguf **other; /* parts 2 .. n, whose tensors were moved to the first */
	size_t others;
};

/* Opens one file, even if it is part of a split model. Does not make by_name. */
int gguf_open_one(const char *path, struct gguf **ret_g, struct err *err);
/* Makes by_name. ERR_CORRUPT: two tensors have the same name. */
int gguf_sort_names(struct gguf *g, struct err *err);
/* The part whose mapping contains the tensor: g itself or one of the others. */
const struct gguf *gguf_part_of(const struct gguf *g, const struct gguf_tensor *t);
/* Truncates a long path at the front: its end is more informative. */
const char *gguf_short_path(const char *path);

#endif
