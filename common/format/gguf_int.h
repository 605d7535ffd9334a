/* gguf_int.h - what gguf.c (one file) and gguf_split.c (a model in several) share. */
#ifndef FORMAT_GGUF_INT_H
#define FORMAT_GGUF_INT_H

#include "format/gguf.h"

struct kv {
	struct gguf_str key;
	enum gguf_type type, elem; /* elem: of an array */
	size_t count;              /* of an array */
	const unsigned char *data; /* the value, or the first element */
	/* array of strings: from the mapping's start to each string's length */
	uint64_t *offset;
};

struct gguf {
	char *path;
	const unsigned char *map;
	size_t bytes, data_at;
	struct kv *kv; /* sorted by key */
	size_t kvs;
	struct gguf_tensor *tensor; /* in the file's order; of all parts, part after part */
	size_t tensors;
	size_t *by_name;     /* indices of tensor, sorted by name */
	struct gguf **other; /* parts 2 .. n, whose tensors have moved to the first */
	size_t others;
};

/* One file, whatever it says of others; by_name is not made. */
int gguf_open_one(const char *path, struct gguf **ret_g, struct err *err);
/* Makes by_name; ERR_CORRUPT when a name comes twice. */
int gguf_sort_names(struct gguf *g, struct err *err);
/* The part in whose mapping the tensor lies: g itself or one of the others. */
const struct gguf *gguf_part_of(const struct gguf *g, const struct gguf_tensor *t);
/* The end of a long path says more than its start. */
const char *gguf_short_path(const char *path);

#endif
