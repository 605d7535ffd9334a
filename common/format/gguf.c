/* gguf.c - see gguf.h: one file. One pass over the header reads metadata and tensor directory; then
 * the extents are checked. gguf_split.c handles models split into several files.
 *
 * Invariants: every read goes through the cursor, which knows the file's end; lists grow with what
 * was actually read; after gguf_open each tensor lies inside the file, aligned, and overlaps no
 * other. Errors are returned as "file: field: found ..., expected ...". Shrinking a file while it
 * is mapped is an operator's mistake and ends the process with SIGBUS. */
#include "format/gguf_int.h"
#include "util/check.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GGUF_KEY_MAX 65535u
#define GGUF_NAME_MAX 255u
#define GGUF_ALIGN_DEFAULT 32u
#define GGUF_ALIGN_MAX (1u << 20)
/* The smallest possible entries: a stated count is compared with what the file can hold before
 * anything is read. */
#define GGUF_KV_MIN (8 + 1 + 4 + 1)
#define GGUF_INFO_MIN (8 + 1 + 4 + 8 + 4 + 8)

/* Reading position. field: what is being read, for error messages. */
struct gguf_cursor {
	const struct gguf *g;
	size_t at;
	char field[160];
	struct err *err;
};

static const struct ggml_type {
	const char *name;
	uint32_t block, bytes;
} ggml_types[] = {
	[0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
	[3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
	[8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
	[11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
	[14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
	[17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
	[20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
	[23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
	[26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
	[29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
	[35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},    [40] = {"NVFP4", 64, 36},
	[41] = {"Q1_0", 128, 18},
};

static const uint8_t value_bytes[] = {
	[GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
	[GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

const char *gguf_ggml_type_name(uint32_t ggml_type)
{
	return ggml_type < sizeof ggml_types / sizeof *ggml_types ? ggml_types[ggml_type].name : NULL;
}

/* Truncates a long path at the front: its end is more informative. */
const char *gguf_short_path(const char *path)
{
	size_t n = strlen(path);
	return n > 120 ? path + n - 120 : path;
}

static int refuse(struct gguf_cursor *c, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static int refuse(struct gguf_cursor *c, int code, const char *fmt, ...)
{
	char what[200];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	return err_set(c->err, code, "%s: %s: %s", gguf_short_path(c->g->path), c->field, what);
}

static void field_set(struct gguf_cursor *c, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static void field_set(struct gguf_cursor *c, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(c->field, sizeof c->field, fmt, ap);
	va_end(ap);
	for (char *p = c->field; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
}

static int take(struct gguf_cursor *c, size_t n, const unsigned char **ret_p)
{
	size_t left = c->g->bytes - c->at;
	if (n > left)
		return refuse(c, ERR_CORRUPT,
		              "found %zu bytes up to the end of the file (offset %zu), expected %zu", left,
		              c->at, n);
	*ret_p = c->g->map + c->at;
	c->at += n;
	return 0;
}

static int take_u32(struct gguf_cursor *c, uint32_t *ret)
{
	const unsigned char *p = NULL;
	int rc = take(c, sizeof *ret, &p);
	if (!rc)
		memcpy(ret, p, sizeof *ret);
	return rc;
}

static int take_u64(struct gguf_cursor *c, uint64_t *ret)
{
	const unsigned char *p = NULL;
	int rc = take(c, sizeof *ret, &p);
	if (!rc)
		memcpy(ret, p, sizeof *ret);
	return rc;
}

/* Reads a length or count of items of at least `each` bytes; refuses more than the rest of the file
 * can hold. */
static int take_count(struct gguf_cursor *c, size_t each, uint64_t max, uint64_t *ret)
{
	uint64_t n = 0;
	int rc = take_u64(c, &n);
	if (rc)
		return rc;
	uint64_t fit = (c->g->bytes - c->at) / each;
	if (n > fit || n > max)
		return refuse(c, ERR_CORRUPT, "found %" PRIu64 ", expected at most %" PRIu64, n,
		              fit < max ? fit : max);
	*ret = n;
	return 0;
}

static int take_str(struct gguf_cursor *c, uint64_t max, struct gguf_str *ret)
{
	uint64_t n = 0;
	int rc = take_count(c, 1, max, &n);
	if (rc)
		return rc;
	const unsigned char *p = NULL;
	if ((rc = take(c, n, &p)))
		return rc;
	*ret = (struct gguf_str){(const char *)p, n};
	return 0;
}

static int take_string_array(struct gguf_cursor *c, struct kv *kv)
{
	size_t size = 0;
	for (size_t i = 0; i < kv->count; i++) {
		struct gguf_str s = {0};
		size_t at = c->at;
		int rc = take_str(c, UINT32_MAX, &s);
		if (rc)
			return rc;
		if (i == size) {
			size = size ? size * 2 : 64;
			kv->offset = mem_grow(kv->offset, size, sizeof *kv->offset);
		}
		kv->offset[i] = at;
	}
	return 0;
}

static int take_array(struct gguf_cursor *c, struct kv *kv)
{
	uint32_t elem = 0;
	int rc = take_u32(c, &elem);
	if (rc)
		return rc;
	if (elem > GGUF_F64 || elem == GGUF_ARRAY)
		return refuse(c, elem == GGUF_ARRAY ? ERR_UNSUPPORTED : ERR_CORRUPT,
		              "found element type %u, expected 0..8 or 10..12", elem);
	kv->elem = (enum gguf_type)elem;
	size_t each = elem == GGUF_STRING ? 8 : value_bytes[elem];
	uint64_t n = 0;
	if ((rc = take_count(c, each, SIZE_MAX / 16, &n)))
		return rc;
	kv->count = n;
	kv->data = c->g->map + c->at;
	if (elem == GGUF_STRING)
		return take_string_array(c, kv);
	return take(c, n * each, &kv->data);
}

static int take_value(struct gguf_cursor *c, struct kv *kv)
{
	uint32_t type = 0;
	int rc = take_u32(c, &type);
	if (rc)
		return rc;
	if (type > GGUF_F64)
		return refuse(c, ERR_CORRUPT, "found value type %u, expected 0..12", type);
	kv->type = (enum gguf_type)type;
	if (type == GGUF_ARRAY)
		return take_array(c, kv);
	if (type == GGUF_STRING) {
		struct gguf_str s = {0};
		kv->data = c->g->map + c->at;
		return take_str(c, UINT32_MAX, &s);
	}
	if ((rc = take(c, value_bytes[type], &kv->data)))
		return rc;
	if (type == GGUF_BOOL && *kv->data > 1)
		return refuse(c, ERR_CORRUPT, "found bool %u, expected 0 or 1", *kv->data);
	return 0;
}

static int str_cmp(const char *a, size_t na, const char *b, size_t nb)
{
	int d = memcmp(a, b, na < nb ? na : nb);
	return d ? d : (na > nb) - (na < nb);
}

static int kv_cmp(const void *a, const void *b)
{
	const struct kv *x = a, *y = b;
	return str_cmp(x->key.s, x->key.len, y->key.s, y->key.len);
}

static int read_metadata(struct gguf *g, struct gguf_cursor *c, uint64_t count)
{
	size_t size = 0;
	for (uint64_t i = 0; i < count; i++) {
		if (g->kvs == size) {
			size = size ? size * 2 : 32;
			g->kv = mem_grow(g->kv, size, sizeof *g->kv);
		}
		struct kv *kv = &g->kv[g->kvs];
		*kv = (struct kv){0};
		field_set(c, "name of metadata entry %" PRIu64, i);
		int rc = take_str(c, GGUF_KEY_MAX, &kv->key);
		if (rc)
			return rc;
		if (!kv->key.len)
			return refuse(c, ERR_CORRUPT, "found an empty name, expected 1..%u bytes",
			              GGUF_KEY_MAX);
		g->kvs++; /* from here on gguf_close frees kv->offset */
		field_set(c, "metadata %.*s", (int)(kv->key.len > 100 ? 100 : kv->key.len), kv->key.s);
		if ((rc = take_value(c, kv)))
			return rc;
	}
	if (g->kvs)
		qsort(g->kv, g->kvs, sizeof *g->kv, kv_cmp);
	for (size_t i = 1; i < g->kvs; i++)
		if (kv_cmp(&g->kv[i - 1], &g->kv[i]) == 0) {
			field_set(c, "metadata %.*s", (int)(g->kv[i].key.len > 100 ? 100 : g->kv[i].key.len),
			          g->kv[i].key.s);
			return refuse(c, ERR_CORRUPT, "found twice, expected once");
		}
	return 0;
}

/* Computes the tensor's size in bytes with overflow checks. */
static int tensor_size(struct gguf_cursor *c, struct gguf_tensor *t)
{
	const char *name = gguf_ggml_type_name(t->ggml_type);
	if (!name)
		return refuse(c, ERR_UNSUPPORTED,
		              "found GGML type %u, expected a supported one (F32, F16, BF16, Q..., 0..41)",
		              t->ggml_type);
	const struct ggml_type *y = &ggml_types[t->ggml_type];
	if (t->ne[0] % y->block)
		return refuse(c, ERR_CORRUPT,
		              "found rows of %" PRIu64 " elements, expected a multiple of %u for %s",
		              t->ne[0], y->block, name);
	uint64_t n = 1, bytes;
	for (int d = 0; d < 4; d++)
		if (__builtin_mul_overflow(n, t->ne[d], &n))
			return refuse(c, ERR_CORRUPT,
			              "found more than 2^64 elements, expected a tensor inside the file");
	if (__builtin_mul_overflow(n / y->block, (uint64_t)y->bytes, &bytes) || bytes > c->g->bytes)
		return refuse(c, ERR_CORRUPT,
		              "found %" PRIu64
		              " elements of %s, expected a tensor inside a file of %zu bytes",
		              n, name, c->g->bytes);
	t->bytes = bytes;
	return 0;
}

static int read_info(struct gguf_cursor *c, uint64_t index, struct gguf_tensor *t,
                     uint64_t *ret_offset)
{
	struct gguf_str name = {0};
	field_set(c, "name of tensor %" PRIu64, index);
	int rc = take_str(c, GGUF_NAME_MAX, &name);
	if (rc)
		return rc;
	if (!name.len || memchr(name.s, 0, name.len))
		return refuse(c, ERR_CORRUPT, "found %s, expected 1..%u bytes without NUL",
		              name.len ? "a NUL" : "an empty name", GGUF_NAME_MAX);
	field_set(c, "tensor %.*s", (int)(name.len > 100 ? 100 : name.len), name.s);
	if ((rc = take_u32(c, &t->dims)))
		return rc;
	if (t->dims < 1 || t->dims > 4)
		return refuse(c, ERR_CORRUPT, "found %u dimensions, expected 1..4", t->dims);
	for (uint32_t d = 0; d < 4; d++) {
		t->ne[d] = 1;
		if (d < t->dims && (rc = take_u64(c, &t->ne[d])))
			return rc;
		if (!t->ne[d])
			return refuse(c, ERR_CORRUPT, "found dimension %u of 0 elements, expected at least 1",
			              d);
	}
	if ((rc = take_u32(c, &t->ggml_type)) || (rc = take_u64(c, ret_offset)) ||
	    (rc = tensor_size(c, t)))
		return rc;
	char *copy = mem_alloc(name.len + 1);
	memcpy(copy, name.s, name.len);
	copy[name.len] = 0;
	t->name = copy;
	return 0;
}

/* Until place_tensors knows where the data starts, t->data holds the offset. */
static int read_tensors(struct gguf *g, struct gguf_cursor *c, uint64_t count)
{
	size_t size = 0;
	for (uint64_t i = 0; i < count; i++) {
		if (g->tensors == size) {
			size = size ? size * 2 : 64;
			g->tensor = mem_grow(g->tensor, size, sizeof *g->tensor);
		}
		struct gguf_tensor *t = &g->tensor[g->tensors];
		*t = (struct gguf_tensor){0};
		uint64_t offset = 0;
		int rc = read_info(c, i, t, &offset);
		if (rc)
			return rc;
		t->data = (const void *)(uintptr_t)offset;
		g->tensors++;
	}
	return 0;
}

static int place_tensors(struct gguf *g, struct gguf_cursor *c, uint32_t align)
{
	g->data_at = (c->at + align - 1) / align * align;
	for (size_t i = 0; i < g->tensors; i++) {
		struct gguf_tensor *t = &g->tensor[i];
		uint64_t offset = (uintptr_t)t->data;
		field_set(c, "tensor %.100s", t->name);
		if (offset % align)
			return refuse(c, ERR_CORRUPT, "found offset %" PRIu64 ", expected a multiple of %u",
			              offset, align);
		if (g->data_at > g->bytes || offset > g->bytes - g->data_at ||
		    t->bytes > g->bytes - g->data_at - offset)
			return refuse(c, ERR_CORRUPT,
			              "found data at %zu + %" PRIu64
			              " + %zu bytes, expected it to end within the file's %zu (truncated?)",
			              g->data_at, offset, t->bytes, g->bytes);
		t->data = g->map + g->data_at + offset;
	}
	return 0;
}

static int by_name_cmp(const void *a, const void *b, void *arg)
{
	const struct gguf_tensor *t = arg;
	return strcmp(t[*(const size_t *)a].name, t[*(const size_t *)b].name);
}

static int by_data_cmp(const void *a, const void *b, void *arg)
{
	const struct gguf_tensor *t = arg;
	const void *x = t[*(const size_t *)a].data, *y = t[*(const size_t *)b].data;
	return (x > y) - (x < y);
}

/* Checks that no tensors overlap. */
static int check_overlap(struct gguf *g, struct gguf_cursor *c)
{
	if (!g->tensors)
		return 0;
	int rc = 0;
	size_t *o = mem_array(g->tensors, sizeof *o);
	for (size_t i = 0; i < g->tensors; i++)
		o[i] = i;
	qsort_r(o, g->tensors, sizeof *o, by_data_cmp, g->tensor);
	for (size_t i = 1; i < g->tensors && !rc; i++) {
		const struct gguf_tensor *a = &g->tensor[o[i - 1]], *b = &g->tensor[o[i]];
		field_set(c, "tensor %.100s", b->name);
		if ((const unsigned char *)a->data + a->bytes > (const unsigned char *)b->data)
			rc = refuse(c, ERR_CORRUPT, "found its data inside that of %.60s, expected no overlap",
			            a->name);
	}
	free(o);
	return rc;
}

int gguf_sort_names(struct gguf *g, struct err *err)
{
	struct gguf_cursor c = {.g = g, .err = err};
	size_t *o = g->by_name = g->tensors ? mem_array(g->tensors, sizeof *o) : NULL;
	for (size_t i = 0; i < g->tensors; i++)
		o[i] = i;
	if (o)
		qsort_r(o, g->tensors, sizeof *o, by_name_cmp, g->tensor);
	for (size_t i = 1; i < g->tensors; i++) {
		const struct gguf_tensor *a = &g->tensor[o[i - 1]], *b = &g->tensor[o[i]];
		field_set(&c, "tensor %.100s", b->name);
		if (strcmp(a->name, b->name) == 0)
			return refuse(&c, ERR_CORRUPT, "found twice%s, expected once",
			              gguf_part_of(g, a) == gguf_part_of(g, b) ? "" : " (in two parts)");
	}
	return 0;
}

static int read_alignment(struct gguf *g, struct gguf_cursor *c, uint32_t *ret)
{
	uint32_t a = GGUF_ALIGN_DEFAULT;
	field_set(c, "metadata general.alignment");
	int rc = gguf_get_u32(g, "general.alignment", &a);
	if (rc == ERR_INVALID || a < 8 || a > GGUF_ALIGN_MAX || (a & (a - 1)))
		return refuse(c, ERR_CORRUPT, "found %s%u, expected a power of two from 8 to %u",
		              rc == ERR_INVALID ? "no 32-bit integer, not " : "", a, GGUF_ALIGN_MAX);
	*ret = a;
	return 0;
}

static int refuse_magic(struct gguf_cursor *c)
{
	char text[9] = "";
	for (unsigned i = 0; i < 8; i++)
		text[i] = c->g->map[i] >= 0x20 && c->g->map[i] < 0x7f ? (char)c->g->map[i] : '.';
	return refuse(c, ERR_CORRUPT, "not a GGUF file: it starts with \"%s\", not with \"GGUF\"",
	              text);
}

static int read_header(struct gguf *g, struct err *err)
{
	struct gguf_cursor c = {.g = g, .err = err};
	uint32_t magic = 0, version = 0, align = 0;
	uint64_t tensors = 0, kvs = 0;
	int rc;
	field_set(&c, "magic");
	if ((rc = take_u32(&c, &magic)))
		return rc;
	if (magic != 0x46554747u)
		return refuse_magic(&c);
	field_set(&c, "version");
	if ((rc = take_u32(&c, &version)))
		return rc;
	if (version != 2 && version != 3)
		return refuse(&c, ERR_UNSUPPORTED, "found %u%s, expected 2 or 3", version,
		              version && !(version & 0xffffff) ? " (big endian)" : "");
	field_set(&c, "number of tensors");
	if ((rc = take_count(&c, GGUF_INFO_MIN, SIZE_MAX, &tensors)))
		return rc;
	field_set(&c, "number of metadata entries");
	if ((rc = take_count(&c, GGUF_KV_MIN, SIZE_MAX, &kvs)))
		return rc;
	if ((rc = read_metadata(g, &c, kvs)) || (rc = read_alignment(g, &c, &align)) ||
	    (rc = read_tensors(g, &c, tensors)))
		return rc;
	if ((rc = place_tensors(g, &c, align)))
		return rc;
	return check_overlap(g, &c);
}

static int map_file(struct gguf *g, struct err *err)
{
	int fd = open(g->path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_set(err, ERR_IO, "%s: cannot open: %s", gguf_short_path(g->path),
		               strerror(errno));
	struct stat st;
	int rc = 0;
	if (fstat(fd, &st) < 0)
		rc = err_set(err, ERR_IO, "%s: cannot stat: %s", gguf_short_path(g->path), strerror(errno));
	else if (!S_ISREG(st.st_mode))
		rc = err_set(err, ERR_INVALID, "%s: file: found no regular file, expected a GGUF file",
		             gguf_short_path(g->path));
	else if (st.st_size < 24)
		rc = err_set(err, ERR_CORRUPT,
		             "%s: file: found %lld bytes, expected at least the 24 of a GGUF header",
		             gguf_short_path(g->path), (long long)st.st_size);
	if (!rc) {
		g->bytes = (size_t)st.st_size;
		void *p = mmap(NULL, g->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
		if (p == MAP_FAILED)
			rc = err_set(err, ERR_IO, "%s: cannot map %zu bytes: %s", gguf_short_path(g->path),
			             g->bytes, strerror(errno));
		else
			g->map = p;
	}
	close(fd);
	return rc;
}

int gguf_open_one(const char *path, struct gguf **ret_g, struct err *err)
{
	struct gguf *g = mem_zalloc(sizeof *g);
	g->path = mem_strdup(path);
	int rc = map_file(g, err);
	if (!rc)
		rc = read_header(g, err);
	if (rc)
		gguf_close(&g);
	else
		*ret_g = g;
	return rc;
}

void gguf_close(struct gguf **gp)
{
	struct gguf *g = *gp;
	if (!g)
		return;
	for (size_t i = 0; i < g->others; i++)
		gguf_close(&g->other[i]);
	for (size_t i = 0; i < g->kvs; i++)
		free(g->kv[i].offset);
	for (size_t i = 0; i < g->tensors; i++)
		free((char *)g->tensor[i].name);
	if (g->map)
		munmap((void *)g->map, g->bytes);
	free(g->other);
	free(g->kv);
	free(g->tensor);
	free(g->by_name);
	free(g->path);
	free(g);
	*gp = NULL;
}

const char *gguf_path(const struct gguf *g)
{
	return g->path;
}

size_t gguf_tensors(const struct gguf *g)
{
	return g->tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
	CHECK(i < g->tensors);
	return &g->tensor[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
	size_t lo = 0, hi = g->tensors;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct gguf_tensor *t = &g->tensor[g->by_name[mid]];
		int d = strcmp(name, t->name);
		if (d == 0)
			return t;
		if (d < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}

static const struct kv *kv_find(const struct gguf *g, const char *key)
{
	struct kv want = {.key = {key, strlen(key)}};
	return g->kvs ? bsearch(&want, g->kv, g->kvs, sizeof want, kv_cmp) : NULL;
}

/* Little-endian value of value_bytes[t] bytes; sign-extended if the type is signed. */
static int64_t load_int(const unsigned char *p, enum gguf_type t)
{
	uint64_t v = 0;
	unsigned n = value_bytes[t];
	memcpy(&v, p, n);
	if ((t == GGUF_I8 || t == GGUF_I16 || t == GGUF_I32) && (v >> (8 * n - 1)))
		v |= ~UINT64_C(0) << (8 * n);
	return (int64_t)v;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret)
{
	const struct kv *kv = kv_find(g, key);
	if (!kv)
		return ERR_NOTFOUND;
	switch (kv->type) {
	case GGUF_U8:
	case GGUF_I8:
	case GGUF_U16:
	case GGUF_I16:
	case GGUF_U32:
	case GGUF_I32:
	case GGUF_U64:
	case GGUF_I64: {
		int64_t v = load_int(kv->data, kv->type);
		if (v < 0 || v > (int64_t)UINT32_MAX)
			return ERR_INVALID;
		*ret = (uint32_t)v;
		return 0;
	}
	default: return ERR_INVALID;
	}
}

int gguf_get_f32(const struct gguf *g, const char *key, float *ret)
{
	const struct kv *kv = kv_find(g, key);
	if (!kv)
		return ERR_NOTFOUND;
	if (kv->type == GGUF_F32) {
		memcpy(ret, kv->data, sizeof *ret);
		return 0;
	}
	if (kv->type != GGUF_F64)
		return ERR_INVALID;
	double d;
	memcpy(&d, kv->data, sizeof d);
	if (!(d >= -3.4028234663852886e38 && d <= 3.4028234663852886e38))
		return ERR_INVALID;
	*ret = (float)d;
	return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, int *ret)
{
	const struct kv *kv = kv_find(g, key);
	if (!kv)
		return ERR_NOTFOUND;
	if (kv->type != GGUF_BOOL)
		return ERR_INVALID;
	*ret = *kv->data;
	return 0;
}

/* The length was checked when the file was opened. */
static struct gguf_str str_at(const unsigned char *p)
{
	uint64_t n = 0;
	memcpy(&n, p, sizeof n);
	return (struct gguf_str){(const char *)p + sizeof n, n};
}

int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *ret)
{
	const struct kv *kv = kv_find(g, key);
	if (!kv)
		return ERR_NOTFOUND;
	if (kv->type != GGUF_STRING)
		return ERR_INVALID;
	*ret = str_at(kv->data);
	return 0;
}

int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type *ret_type,
                   size_t *ret_count, const void **ret_data)
{
	const struct kv *kv = kv_find(g, key);
	if (!kv)
		return ERR_NOTFOUND;
	if (kv->type != GGUF_ARRAY)
		return ERR_INVALID;
	if (ret_type)
		*ret_type = kv->elem;
	if (ret_count)
		*ret_count = kv->count;
	if (ret_data)
		*ret_data = kv->data;
	return 0;
}

int gguf_array_str(const struct gguf *g, const char *key, size_t index, struct gguf_str *ret)
{
	const struct kv *kv = kv_find(g, key);
	if (!kv)
		return ERR_NOTFOUND;
	if (kv->type != GGUF_ARRAY || kv->elem != GGUF_STRING || index >= kv->count)
		return ERR_INVALID;
	*ret = str_at(g->map + kv->offset[index]);
	return 0;
}
