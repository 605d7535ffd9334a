/* gguf_split.c - models split into several files by gguf-split: NAME-00001-of-00003.gguf and so on.
 * Each part is a GGUF file with a directory of its own tensors and the keys split.no (from 0),
 * split.count and split.tensors.count (of all parts); the first part has the model's metadata.
 * https://github.com/ggml-org/llama.cpp/blob/master/tools/gguf-split/gguf-split.cpp
 *
 * Invariants: opening any part opens all; all parts exist and agree on count and total, and no
 * tensor is in two of them. The first part owns the others. Errors are returned and name the
 * part. */
#include "format/gguf_int.h"
#include "util/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GGUF_PARTS_MAX 1024u

struct gguf_split {
	uint32_t no, count, tensors; /* no: from 0; tensors: in all parts together */
};

const struct gguf *gguf_part_of(const struct gguf *g, const struct gguf_tensor *t)
{
	const unsigned char *p = t->data;
	for (size_t i = 0; i < g->others; i++)
		if (p >= g->other[i]->map && p < g->other[i]->map + g->other[i]->bytes)
			return g->other[i];
	return g;
}

static int wrong(const struct gguf *g, struct err *err, const char *key, uint32_t found,
                 const char *expected, uint32_t number)
{
	return err_set(err, ERR_CORRUPT, "%s: metadata %s: found %u, expected %s %u",
	               gguf_short_path(g->path), key, found, expected, number);
}

/* count 0: the file is not part of a split model. */
static int read_split(const struct gguf *g, struct gguf_split *ret, struct err *err)
{
	static const char *const keys[] = {"split.count", "split.no", "split.tensors.count"};
	struct gguf_split s = {0};
	uint32_t *const to[] = {&s.count, &s.no, &s.tensors};
	*ret = s;
	for (size_t i = 0; i < 3; i++) {
		int rc = gguf_get_u32(g, keys[i], to[i]);
		if (rc == ERR_NOTFOUND && i == 0)
			return 0;
		if (rc)
			return err_set(err, ERR_CORRUPT,
			               "%s: metadata %s: found %s, expected an integer from 0",
			               gguf_short_path(g->path), keys[i],
			               rc == ERR_NOTFOUND ? "none" : "another type or range");
	}
	if (s.count > GGUF_PARTS_MAX)
		return wrong(g, err, "split.count", s.count, "at most", GGUF_PARTS_MAX);
	if (s.count && s.no >= s.count)
		return wrong(g, err, "split.no", s.no, "less than split.count, which is", s.count);
	*ret = s;
	return 0;
}

/* The length of NAME in the path, which must be NAME-0000N-of-0000M.gguf for this part. */
static int stem_of(const struct gguf *g, const struct gguf_split *s, size_t *ret_len,
                   struct err *err)
{
	char tail[40];
	size_t n = strlen(g->path),
		   t = (size_t)snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf", s->no + 1, s->count);
	if (n <= t || strcmp(g->path + n - t, tail) != 0)
		return err_set(
			err, ERR_INVALID,
			"%s: file name: found one that does not end in %s, expected that of part %u of %u",
			gguf_short_path(g->path), tail, s->no + 1, s->count);
	*ret_len = n - t;
	return 0;
}

static int open_part(const struct gguf *from, const struct gguf_split *want, size_t stem,
                     uint32_t no, struct gguf **ret, struct err *err)
{
	char *path = mem_printf("%.*s-%05u-of-%05u.gguf", (int)stem, from->path, no + 1, want->count);
	struct gguf *g = NULL;
	struct gguf_split s;
	int rc = gguf_open_one(path, &g, err);
	free(path);
	if (rc)
		return rc;
	if (!(rc = read_split(g, &s, err))) {
		if (s.count != want->count)
			rc = wrong(g, err, "split.count", s.count, "as in the part that was opened",
			           want->count);
		else if (s.no != no)
			rc = wrong(g, err, "split.no", s.no, "by the file's name", no);
		else if (s.tensors != want->tensors)
			rc = wrong(g, err, "split.tensors.count", s.tensors, "as in the part that was opened",
			           want->tensors);
	}
	if (rc)
		gguf_close(&g);
	else
		*ret = g;
	return rc;
}

/* Moves the part's tensors, including their names, to the end of the first part's list. */
static void move_tensors(struct gguf *first, struct gguf *part)
{
	if (!part->tensors)
		return;
	first->tensor = mem_grow(first->tensor, first->tensors + part->tensors, sizeof *first->tensor);
	memcpy(first->tensor + first->tensors, part->tensor, part->tensors * sizeof *part->tensor);
	first->tensors += part->tensors;
	part->tensors = 0;
}

/* Opens all parts where part[i] is NULL. On success part[0] owns the others; on error the caller
 * still owns all of them. */
static int join(struct gguf **part, const struct gguf *from, const struct gguf_split *s,
                size_t stem, struct err *err)
{
	uint64_t total = 0;
	for (uint32_t i = 0; i < s->count; i++) {
		int rc = part[i] ? 0 : open_part(from, s, stem, i, &part[i], err);
		if (rc)
			return err_prefix(err, "part %u of %u", i + 1, s->count);
		total += part[i]->tensors;
	}
	if (total != s->tensors)
		return err_set(err, ERR_CORRUPT,
		               "%s: metadata split.tensors.count: found %u, expected the %" PRIu64
		               " tensors that all parts have",
		               gguf_short_path(from->path), s->tensors, total);
	struct gguf *first = part[0];
	first->other = mem_array(s->count, sizeof *first->other);
	for (uint32_t i = 1; i < s->count; i++) {
		move_tensors(first, part[i]);
		first->other[first->others++] = part[i];
		part[i] = NULL;
	}
	return 0;
}

static int open_others(struct gguf **g, const struct gguf_split *s, struct err *err)
{
	size_t stem = 0;
	int rc = stem_of(*g, s, &stem, err);
	if (rc)
		return rc;
	struct gguf **part = mem_array(s->count, sizeof *part), *from = *g;
	part[s->no] = from;
	rc = join(part, from, s, stem, err);
	*g = part[0] ? part[0] : from;
	for (uint32_t i = 0; i < s->count; i++)
		if (rc && part[i] && part[i] != *g)
			gguf_close(&part[i]);
	free(part);
	return rc;
}

int gguf_open(const char *path, struct gguf **ret_g, struct err *err)
{
	struct gguf *g = NULL;
	struct gguf_split s;
	int rc = gguf_open_one(path, &g, err);
	if (rc)
		return rc;
	rc = read_split(g, &s, err);
	if (!rc && s.count > 1)
		rc = open_others(&g, &s, err);
	if (!rc)
		rc = gguf_sort_names(g, err);
	if (rc)
		gguf_close(&g);
	else
		*ret_g = g;
	return rc;
}
