/* safetensors.c - see safetensors.h. A file is 8 bytes of length, a JSON header of that length, and
 * the data.
 *
 * Invariants: after st_open_folder the tensors of a file cover its data without gaps or overlaps,
 * and each is as large as shape x dtype; shards are plain file names inside the folder; tensor
 * names are unique. The JSON header is bounded, and so is the cost of parsing it. Errors are
 * returned as "file: field: found ..., expected ...". */
#include "format/safetensors.h"
#include "util/check.h"
#include "util/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ST_HEADER_MAX (32u << 20)
#define ST_NAME_MAX 512u
#define ST_SHARDS_MAX 1024u
/* per header; bounds the memory for parsing; a tensor needs about 10 values */
#define ST_VALUES_MAX (2u << 20)

struct st_file {
	char *path;
	const unsigned char *map;
	size_t bytes, data_at;
	size_t first, count; /* range of its tensors in st->tensor, until those are sorted */
};

struct safetensors {
	struct st_file *file;
	size_t files;
	struct st_tensor *tensor; /* sorted by name once all files are open */
	size_t tensors, size;
};

static const struct {
	const char *name;
	unsigned bytes;
} dtypes[] = {
	{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8},     {"I64", 8},
	{"U64", 8}, {"I32", 4}, {"U32", 4},  {"I16", 2},     {"U16", 2},
	{"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

static int refuse(struct err *err, int code, const char *path, const char *field, const char *fmt,
                  ...) __attribute__((format(printf, 5, 6)));
static int refuse(struct err *err, int code, const char *path, const char *field, const char *fmt,
                  ...)
{
	char what[200];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	size_t n = strlen(path);
	return err_set(err, code, "%s: %.100s: %s", n > 120 ? path + n - 120 : path, field, what);
}

/* Maps a regular file. If `optional` is set and the file does not exist, *ret_map is NULL. */
static int map_file(const char *path, size_t min, size_t max, int optional,
                    const unsigned char **ret_map, size_t *ret_bytes, struct err *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && optional) {
		*ret_map = NULL;
		return 0;
	}
	if (fd < 0)
		return refuse(err, ERR_IO, path, "file", "cannot open: %s", strerror(errno));
	struct stat st;
	void *p = MAP_FAILED;
	int rc = 0;
	if (fstat(fd, &st) < 0)
		rc = refuse(err, ERR_IO, path, "file", "cannot stat: %s", strerror(errno));
	else if (!S_ISREG(st.st_mode))
		rc = refuse(err, ERR_INVALID, path, "file", "found no regular file, expected one");
	else if ((uint64_t)st.st_size < min || (uint64_t)st.st_size > max)
		rc = refuse(err, ERR_CORRUPT, path, "file", "found %lld bytes, expected %zu..%zu",
		            (long long)st.st_size, min, max);
	else if ((p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED)
		rc = refuse(err, ERR_IO, path, "file", "cannot map %lld bytes: %s", (long long)st.st_size,
		            strerror(errno));
	close(fd);
	if (!rc) {
		*ret_map = p;
		*ret_bytes = (size_t)st.st_size;
	}
	return rc;
}

/* Parses the JSON of a header or an index. The JSON parser bounds the depth. */
static int parse(const char *path, const char *field, const unsigned char *p, size_t n,
                 json_t **ret, struct err *err)
{
	size_t values = 0;
	for (size_t i = 0; i < n; i++)
		values += p[i] == ',' || p[i] == '[' || p[i] == '{';
	if (values > ST_VALUES_MAX)
		return refuse(err, ERR_UNSUPPORTED, path, field, "found %zu values, expected at most %u",
		              values, ST_VALUES_MAX);
	json_error_t je = {0};
	json_t *o = json_loadb((const char *)p, n, JSON_REJECT_DUPLICATES, &je);
	if (!json_is_object(o)) {
		int rc = refuse(err, ERR_CORRUPT, path, field,
		                "found no JSON object (%.80s, byte %d), expected one",
		                o ? "another value" : je.text, o ? 0 : je.position);
		json_decref(o);
		return rc;
	}
	*ret = o;
	return 0;
}

static int read_dtype(const struct st_file *f, const char *name, const json_t *v,
                      struct st_tensor *t, unsigned *ret_bytes, struct err *err)
{
	const char *s = json_string_value(json_object_get(v, "dtype"));
	for (size_t i = 0; s && i < sizeof dtypes / sizeof *dtypes; i++)
		if (strcmp(s, dtypes[i].name) == 0) {
			snprintf(t->dtype, sizeof t->dtype, "%s", s);
			*ret_bytes = dtypes[i].bytes;
			return 0;
		}
	return refuse(err, s ? ERR_UNSUPPORTED : ERR_CORRUPT, f->path, name,
	              "found dtype %.40s, expected one of F32, F16, BF16, ...", s ? s : "(none)");
}

static int read_shape(const struct st_file *f, const char *name, const json_t *v,
                      struct st_tensor *t, uint64_t *ret_count, struct err *err)
{
	const json_t *shape = json_object_get(v, "shape");
	if (!json_is_array(shape) || json_array_size(shape) > 4)
		return refuse(err, ERR_CORRUPT, f->path, name,
		              "found %s, expected a shape of 0..4 dimensions",
		              json_is_array(shape) ? "more dimensions" : "no shape");
	uint64_t n = 1;
	t->dims = (uint32_t)json_array_size(shape);
	for (uint32_t d = 0; d < 4; d++) {
		const json_t *e = json_array_get(shape, d);
		t->shape[d] = 1;
		if (d >= t->dims)
			continue;
		if (!json_is_integer(e) || json_integer_value(e) < 0)
			return refuse(err, ERR_CORRUPT, f->path, name,
			              "found dimension %u that is not an integer >= 0", d);
		t->shape[d] = (uint64_t)json_integer_value(e);
		if (__builtin_mul_overflow(n, t->shape[d], &n))
			return refuse(err, ERR_CORRUPT, f->path, name,
			              "found more than 2^64 elements, expected a tensor inside the file");
	}
	*ret_count = n;
	return 0;
}

static int read_tensor(const struct st_file *f, const char *name, const json_t *v,
                       struct st_tensor *t, struct err *err)
{
	size_t len = strlen(name), data_bytes = f->bytes - f->data_at;
	if (!json_is_object(v) || !len || len > ST_NAME_MAX)
		return refuse(err, ERR_CORRUPT, f->path, len ? name : "(empty name)",
		              "found no tensor, expected a name of 1..%u bytes and an object", ST_NAME_MAX);
	unsigned each = 0;
	uint64_t count = 0, bytes;
	int rc = read_dtype(f, name, v, t, &each, err);
	if (rc || (rc = read_shape(f, name, v, t, &count, err)))
		return rc;
	const json_t *o = json_object_get(v, "data_offsets"), *b = json_array_get(o, 0),
				 *e = json_array_get(o, 1);
	if (json_array_size(o) != 2 || !json_is_integer(b) || !json_is_integer(e))
		return refuse(err, ERR_CORRUPT, f->path, name,
		              "found no data_offsets of two integers, expected them");
	json_int_t begin = json_integer_value(b), end = json_integer_value(e);
	if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
		return refuse(
			err, ERR_CORRUPT, f->path, name,
			"found data_offsets %lld..%lld, expected them in order and at most %zu (truncated?)",
			(long long)begin, (long long)end, data_bytes);
	if (__builtin_mul_overflow(count, (uint64_t)each, &bytes) || bytes != (uint64_t)(end - begin))
		return refuse(err, ERR_CORRUPT, f->path, name,
		              "found %lld bytes of data, expected %" PRIu64 " x %u",
		              (long long)(end - begin), count, each);
	t->data = f->map + f->data_at + begin;
	t->bytes = (size_t)bytes;
	t->name = mem_strdup(name);
	return 0;
}

static int by_data(const void *a, const void *b)
{
	const struct st_tensor *x = a, *y = b;
	if (x->data != y->data)
		return x->data < y->data ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Checks that the tensors cover the data from start to end, each byte once. */
static int check_cover(struct safetensors *st, const struct st_file *f, struct err *err)
{
	struct st_tensor *t = f->count ? st->tensor + f->first : NULL;
	const unsigned char *at = f->map + f->data_at;
	if (f->count)
		qsort(t, f->count, sizeof *t, by_data);
	for (size_t i = 0; i < f->count; i++) {
		if (t[i].data != at)
			return refuse(err, ERR_CORRUPT, f->path, t[i].name,
			              "found data at %td, expected %td (%s)",
			              (const unsigned char *)t[i].data - f->map - (ptrdiff_t)f->data_at,
			              at - f->map - (ptrdiff_t)f->data_at,
			              (const unsigned char *)t[i].data < at ? "overlap" : "gap");
		at += t[i].bytes;
	}
	if (at != f->map + f->bytes)
		return refuse(err, ERR_CORRUPT, f->path, "data",
		              "found %td bytes after the last tensor, expected none",
		              f->map + f->bytes - at);
	return 0;
}

static int read_tensors(struct safetensors *st, struct st_file *f, json_t *header, struct err *err)
{
	const char *name;
	json_t *v;
	json_object_foreach(header, name, v) {
		if (strcmp(name, "__metadata__") == 0)
			continue;
		if (st->tensors == st->size) {
			st->size = st->size ? st->size * 2 : 64;
			st->tensor = mem_grow(st->tensor, st->size, sizeof *st->tensor);
		}
		struct st_tensor *t = &st->tensor[st->tensors];
		*t = (struct st_tensor){0};
		int rc = read_tensor(f, name, v, t, err);
		if (rc)
			return rc;
		st->tensors++;
		f->count++;
	}
	return check_cover(st, f, err);
}

/* Opens the next file into st->file[st->files]. It counts as open, so that st_close frees it, from
 * the start. */
static int open_file(struct safetensors *st, const char *path, struct err *err)
{
	struct st_file *f = &st->file[st->files++];
	*f = (struct st_file){.path = mem_strdup(path), .first = st->tensors};
	int rc = map_file(path, 8 + 2, SIZE_MAX / 2, 0, &f->map, &f->bytes, err);
	if (rc)
		return rc;
	uint64_t n;
	memcpy(&n, f->map, sizeof n);
	uint64_t limit = f->bytes - 8 < ST_HEADER_MAX ? f->bytes - 8 : ST_HEADER_MAX;
	if (n < 2 || n > limit)
		return refuse(err, ERR_CORRUPT, path, "header length",
		              "found %" PRIu64 ", expected 2..%" PRIu64, n, limit);
	f->data_at = 8 + (size_t)n;
	json_t *header = NULL;
	rc = parse(path, "header", f->map + 8, (size_t)n, &header, err);
	if (!rc)
		rc = read_tensors(st, f, header, err);
	json_decref(header);
	return rc;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int sort_tensors(struct safetensors *st, const char *folder, struct err *err)
{
	if (st->tensors)
		qsort(st->tensor, st->tensors, sizeof *st->tensor, by_name);
	for (size_t i = 1; i < st->tensors; i++)
		if (by_name(&st->tensor[i - 1], &st->tensor[i]) == 0)
			return refuse(err, ERR_CORRUPT, folder, st->tensor[i].name,
			              "found in two files, expected one");
	return 0;
}

static int shard_name_ok(const char *s)
{
	size_t n = s ? strlen(s) : 0;
	return n > 12 && n < 256 && s[0] != '.' && !strchr(s, '/') &&
	       strcmp(s + n - 12, ".safetensors") == 0;
}

static const struct st_file *file_find(const struct safetensors *st, const char *path)
{
	for (size_t i = 0; i < st->files; i++)
		if (strcmp(st->file[i].path, path) == 0)
			return &st->file[i];
	return NULL;
}

static int open_shards(struct safetensors *st, const char *folder, const char *index_path,
                       json_t *map, struct err *err)
{
	const char *name;
	json_t *v;
	json_object_foreach(map, name, v) {
		const char *shard = json_string_value(v);
		if (!shard_name_ok(shard))
			return refuse(err, ERR_CORRUPT, index_path, name,
			              "found shard %.60s, expected the plain name of a .safetensors file",
			              shard ? shard : "(none)");
		char *path = mem_printf("%s/%s", folder, shard);
		int rc = 0;
		if (!file_find(st, path)) {
			if (st->files == ST_SHARDS_MAX)
				rc = refuse(err, ERR_UNSUPPORTED, index_path, "weight_map",
				            "found more than %u shards, expected fewer", ST_SHARDS_MAX);
			else
				rc = open_file(st, path, err);
		}
		free(path);
		if (rc)
			return rc;
	}
	return sort_tensors(st, folder, err);
}

/* Checks that every tensor of the index is in the shard that the index names. */
static int check_index(struct safetensors *st, const char *folder, const char *index_path,
                       json_t *map, struct err *err)
{
	const char *name;
	json_t *v;
	json_object_foreach(map, name, v) {
		char *path = mem_printf("%s/%s", folder, json_string_value(v));
		const struct st_file *f = file_find(st, path);
		free(path);
		const struct st_tensor *t = st_tensor_find(st, name);
		const unsigned char *data = t ? t->data : NULL;
		if (!f || !data || data < f->map || data > f->map + f->bytes)
			return refuse(err, ERR_CORRUPT, index_path, name,
			              "found no such tensor in %.60s, expected it there", json_string_value(v));
	}
	return 0;
}

/* The error for a folder without model.safetensors and its index; says whether there are other
 * shards. */
static int refuse_folder(const char *folder, struct err *err)
{
	DIR *d = opendir(folder);
	size_t shards = 0;
	char one[80] = "";
	for (struct dirent *e; d && (e = readdir(d));)
		if (shard_name_ok(e->d_name) && shards++ == 0)
			snprintf(one, sizeof one, "%.79s", e->d_name);
	if (d)
		closedir(d);
	if (!shards)
		return refuse(err, ERR_NOTFOUND, folder, "files",
		              "found neither model.safetensors nor model.safetensors.index.json, expected "
		              "one of them");
	return refuse(err, ERR_NOTFOUND, folder, "files",
	              "found %zu .safetensors file%s (%s%s) but no model.safetensors.index.json, "
	              "expected that index",
	              shards, shards > 1 ? "s" : "", one, shards > 1 ? ", ..." : "");
}

static int open_index(struct safetensors *st, const char *folder, struct err *err)
{
	char *path = mem_printf("%s/model.safetensors.index.json", folder);
	const unsigned char *map = NULL;
	size_t bytes = 0;
	int rc = map_file(path, 2, ST_HEADER_MAX, 1, &map, &bytes, err);
	if (!rc && !map)
		rc = refuse_folder(folder, err);
	if (!rc) {
		json_t *root = NULL;
		rc = parse(path, "index", map, bytes, &root, err);
		munmap((void *)map, bytes);
		json_t *weight_map = json_object_get(root, "weight_map");
		if (!rc && !json_object_size(weight_map))
			rc = refuse(err, ERR_CORRUPT, path, "weight_map",
			            "found none, expected an object that maps tensors to shards");
		if (!rc)
			rc = open_shards(st, folder, path, weight_map, err);
		if (!rc)
			rc = check_index(st, folder, path, weight_map, err);
		json_decref(root);
	}
	free(path);
	return rc;
}

int st_open_folder(const char *folder, struct safetensors **ret_st, struct err *err)
{
	struct safetensors *st = mem_zalloc(sizeof *st);
	st->file = mem_array(ST_SHARDS_MAX, sizeof *st->file);
	char *single = mem_printf("%s/model.safetensors", folder);
	int rc;
	if (access(single, F_OK) == 0) {
		rc = open_file(st, single, err);
		if (!rc)
			rc = sort_tensors(st, folder, err);
	} else {
		rc = open_index(st, folder, err);
	}
	free(single);
	if (rc)
		st_close(&st);
	else
		*ret_st = st;
	return rc;
}

void st_close(struct safetensors **sp)
{
	struct safetensors *st = *sp;
	if (!st)
		return;
	for (size_t i = 0; i < st->files; i++) {
		if (st->file[i].map)
			munmap((void *)st->file[i].map, st->file[i].bytes);
		free(st->file[i].path);
	}
	for (size_t i = 0; i < st->tensors; i++)
		free((char *)st->tensor[i].name);
	free(st->tensor);
	free(st->file);
	free(st);
	*sp = NULL;
}

size_t st_tensors(const struct safetensors *st)
{
	return st->tensors;
}

const struct st_tensor *st_tensor_at(const struct safetensors *st, size_t i)
{
	CHECK(i < st->tensors);
	return &st->tensor[i];
}

const struct st_tensor *st_tensor_find(const struct safetensors *st, const char *name)
{
	struct st_tensor want = {.name = name};
	return st->tensors ? bsearch(&want, st->tensor, st->tensors, sizeof want, by_name) : NULL;
}
