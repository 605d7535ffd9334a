/* test_format.c - good files are read as written, hostile ones are refused with one line that names
 * file, field, found, expected.
 *
 * Files are built in memory by the writers below, spoilt in one place, and opened. */
/* run: parser */
#include "format/gguf.h"
#include "format/safetensors.h"
#include "util/mem.h"
#include "format_rig.h"

#include <stdlib.h>
#include <sys/stat.h>

/* --- GGUF ---------------------------------------------------------------- */

/* Where the fields of the file lie that the tests spoil. */
struct marks {
	size_t version, n_tensors, n_kv, key_len, type, array_type, array_count, string_len, boolean,
		align;
	size_t name_len, dims, ne0, ggml_type, offset, second_offset, data;
};

/* Two tensors: "a", 2 x 64 of Q4_1 (80 bytes, then padding to 96), and "b", 3 x 4 of F32 (48
 * bytes). */
static void make_gguf(struct buf *b, struct marks *m)
{
	buf_init(b, 0);
	buf_adds(b, "GGUF");
	m->version = b->len, put32(b, 3);
	m->n_tensors = b->len, put64(b, 2);
	m->n_kv = b->len, put64(b, 7);
	m->key_len = b->len, put_str(b, "number");
	m->type = b->len, put32(b, GGUF_U64), put64(b, 7);
	put_str(b, "general.alignment"), put32(b, GGUF_U32), m->align = b->len, put32(b, 32);
	put_str(b, "words"), put32(b, GGUF_ARRAY);
	m->array_type = b->len, put32(b, GGUF_STRING);
	m->array_count = b->len, put64(b, 2);
	m->string_len = b->len, put_str(b, "one"), put_str(b, "");
	put_str(b, "numbers"), put32(b, GGUF_ARRAY), put32(b, GGUF_I16), put64(b, 3),
		buf_add(b, "\1\0\2\0\3\0", 6);
	put_str(b, "flag"), put32(b, GGUF_BOOL), m->boolean = b->len, buf_addc(b, 1);
	put_str(b, "text"), put32(b, GGUF_STRING), put_str(b, "hello");
	put_str(b, "minus"), put32(b, GGUF_I32), put32(b, (uint32_t)-5);
	m->name_len = b->len, m->dims = b->len + 9, m->ne0 = b->len + 13, m->ggml_type = b->len + 29,
	m->offset = b->len + 33;
	put_tensor(b, "a", 64, 2, 3, 0);
	put_tensor(b, "b", 4, 3, 0, 96);
	m->second_offset = b->len - 8;
	while (b->len % 32)
		buf_addc(b, 0);
	m->data = b->len;
	for (int i = 0; i < 96; i++)
		buf_addc(b, (char)i);
	for (int i = 0; i < 12; i++)
		put_f32(b, (float)i);
}

TEST_CASE("format", .timeout_s = 60, .setup_once = make_folder);

TEST_LOOP(gguf_good, 0, 2)
{
	struct buf b;
	struct marks m;
	struct gguf *g;
	struct err err;
	make_gguf(&b, &m);
	uint32_t version = _i ? 2 : 3, u;
	memcpy(b.data + m.version, &version, 4);
	write_file("good.gguf", b.data, b.len);
	ck_assert_msg(gguf_open(path, &g, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(gguf_tensors(g), 2);
	const struct gguf_tensor *t = gguf_tensor_find(g, "b");
	ck_assert(t == gguf_tensor_at(g, 1) && t->ne[0] == 4 && t->ne[1] == 3 && t->ne[2] == 1 &&
	          t->bytes == 48);
	ck_assert(((const float *)t->data)[11] == 11.0f);
	ck_assert_uint_eq(gguf_tensor_find(g, "a")->bytes, 80);
	ck_assert_ptr_null(gguf_tensor_find(g, "c"));
	ck_assert_int_eq(gguf_get_u32(g, "number", &u), 0);
	ck_assert_uint_eq(u, 7);
	ck_assert_int_eq(gguf_get_u32(g, "minus", &u), ERR_INVALID);
	ck_assert_int_eq(gguf_get_u32(g, "text", &u), ERR_INVALID);
	ck_assert_int_eq(gguf_get_u32(g, "nothing", &u), ERR_NOTFOUND);
	int flag;
	ck_assert(gguf_get_bool(g, "flag", &flag) == 0 && flag == 1);
	struct gguf_str s;
	ck_assert(gguf_get_str(g, "text", &s) == 0 && s.len == 5 && memcmp(s.s, "hello", 5) == 0);
	ck_assert(gguf_array_str(g, "words", 0, &s) == 0 && s.len == 3 && memcmp(s.s, "one", 3) == 0);
	ck_assert(gguf_array_str(g, "words", 1, &s) == 0 && s.len == 0);
	ck_assert_int_eq(gguf_array_str(g, "words", 2, &s), ERR_INVALID);
	ck_assert_int_eq(gguf_array_str(g, "numbers", 0, &s), ERR_INVALID);
	enum gguf_type type;
	size_t n;
	const void *data;
	ck_assert(gguf_get_array(g, "numbers", &type, &n, &data) == 0 && type == GGUF_I16 && n == 3 &&
	          memcmp(data, "\1\0\2\0\3\0", 6) == 0);
	gguf_close(&g);
	ck_assert_ptr_null(g);
	buf_fini(&b);
}

/* A field, what is put there (little endian, `size` bytes), the code and a piece of the text
 * that is expected. */
#define AT(field) offsetof(struct marks, field)
static const struct {
	size_t mark, size;
	uint64_t value;
	int code;
	const char *text;
} gguf_spoilt[] = {
	{AT(version), 4, 1, ERR_UNSUPPORTED, "version: found 1, expected 2 or 3"},
	{AT(version), 4, 4, ERR_UNSUPPORTED, "version: found 4, expected 2 or 3"},
	{AT(version), 4, 0x03000000, ERR_UNSUPPORTED, "(big endian)"},
	{AT(n_tensors), 8, UINT64_MAX, ERR_CORRUPT,
     "number of tensors: found 18446744073709551615, expected at most"},
	{AT(n_tensors), 8, 1ull << 60, ERR_CORRUPT, "number of tensors: found"},
	{AT(n_tensors), 8, 3, ERR_CORRUPT, "name of tensor 2: found"},
	{AT(n_kv), 8, UINT64_MAX, ERR_CORRUPT, "number of metadata entries: found"},
	{AT(n_kv), 8, 6, ERR_CORRUPT, "tensor minus: found 5 dimensions, expected 1..4"},
	{AT(key_len), 8, 0, ERR_CORRUPT, "name of metadata entry 0: found an empty name"},
	{AT(key_len), 8, UINT64_MAX, ERR_CORRUPT,
     "name of metadata entry 0: found 18446744073709551615, expected at most"},
	{AT(type), 4, 13, ERR_CORRUPT, "metadata number: found value type 13, expected 0..12"},
	{AT(array_type), 4, 13, ERR_CORRUPT, "metadata words: found element type 13"},
	{AT(array_type), 4, GGUF_ARRAY, ERR_UNSUPPORTED, "metadata words: found element type 9"},
	{AT(array_count), 8, UINT64_MAX / 8 + 2, ERR_CORRUPT,
     "metadata words: found 2305843009213693953, expected at most"},
	{AT(array_count), 8, 60, ERR_CORRUPT, "metadata words: found"},
	{AT(string_len), 8, 1ull << 62, ERR_CORRUPT,
     "metadata words: found 4611686018427387904, expected at most"},
	{AT(boolean), 1, 2, ERR_CORRUPT, "metadata flag: found bool 2, expected 0 or 1"},
	{AT(align), 4, 0, ERR_CORRUPT, "metadata general.alignment: found 0"},
	{AT(align), 4, 24, ERR_CORRUPT,
     "metadata general.alignment: found 24, expected a power of two"},
	{AT(align), 4, 1u << 31, ERR_CORRUPT, "metadata general.alignment: found 2147483648"},
	{AT(align), 4, 64, ERR_CORRUPT, "tensor b: found offset 96, expected a multiple of 64"},
	{AT(name_len), 8, 0, ERR_CORRUPT, "name of tensor 0: found an empty name"},
	{AT(name_len), 8, 256, ERR_CORRUPT, "name of tensor 0: found 256, expected at most"},
	{AT(dims), 4, 0, ERR_CORRUPT, "tensor a: found 0 dimensions"},
	{AT(dims), 4, 5, ERR_CORRUPT, "tensor a: found 5 dimensions, expected 1..4"},
	{AT(ne0), 8, 0, ERR_CORRUPT, "tensor a: found dimension 0 of 0 elements"},
	{AT(ne0), 8, 48, ERR_CORRUPT,
     "tensor a: found rows of 48 elements, expected a multiple of 32 for Q4_1"},
	{AT(ne0), 8, 1ull << 63, ERR_CORRUPT, "tensor a: found more than 2^64 elements"},
	{AT(ne0), 8, 1ull << 61, ERR_CORRUPT,
     "tensor a: found 4611686018427387904 elements of Q4_1, expected a tensor inside a file of"},
	{AT(ne0), 8, 256, ERR_CORRUPT, "tensor a: found data at"},
	{AT(ne0), 8, 96, ERR_CORRUPT, "tensor b: found its data inside that of a"},
	{AT(ggml_type), 4, 4, ERR_UNSUPPORTED, "tensor a: found GGML type 4"},
	{AT(ggml_type), 4, UINT32_MAX, ERR_UNSUPPORTED, "tensor a: found GGML type 4294967295"},
	{AT(offset), 8, 8, ERR_CORRUPT, "tensor a: found offset 8, expected a multiple of 32"},
	{AT(offset), 8, UINT64_MAX - 31, ERR_CORRUPT, "tensor a: found data at"},
	{AT(second_offset), 8, 0, ERR_CORRUPT, "expected no overlap"},
	{AT(second_offset), 8, 64, ERR_CORRUPT,
     "tensor b: found its data inside that of a, expected no overlap"},
	{AT(second_offset), 8, 128, ERR_CORRUPT, "tensor b: found data at"},
};

TEST_LOOP(gguf_hostile, 0, sizeof gguf_spoilt / sizeof *gguf_spoilt)
{
	struct buf b;
	struct marks m;
	struct gguf *g = NULL;
	struct err err = {0};
	make_gguf(&b, &m);
	size_t at;
	memcpy(&at, (char *)&m + gguf_spoilt[_i].mark, sizeof at);
	memcpy(b.data + at, &gguf_spoilt[_i].value, gguf_spoilt[_i].size);
	write_file("hostile.gguf", b.data, b.len);
	refused("hostile.gguf", gguf_open(path, &g, &err), &err, gguf_spoilt[_i].code,
	        gguf_spoilt[_i].text);
	ck_assert_ptr_null(g);
	buf_fini(&b);
}

/* Cut anywhere, the file is refused; so is another magic, an empty file, a folder, nothing. */
TEST(gguf_truncated)
{
	struct buf b;
	struct marks m;
	struct gguf *g = NULL;
	struct err err;
	make_gguf(&b, &m);
	for (size_t n = 0; n < b.len; n++) {
		write_file("cut.gguf", b.data, n);
		ck_assert_msg(gguf_open(path, &g, &err) == ERR_CORRUPT, "cut at %zu", n);
		ck_assert(strstr(err.text, "found") && strstr(err.text, "expected"));
	}
	b.data[0] = 'H';
	write_file("magic.gguf", b.data, b.len);
	refused("magic.gguf", gguf_open(path, &g, &err), &err, ERR_CORRUPT,
	        "magic: not a GGUF file: it starts with \"HGUF....\", not with \"GGUF\"");
	refused(folder, gguf_open(folder, &g, &err), &err, ERR_INVALID, "found no regular file");
	ck_assert_int_eq(gguf_open("/nonexistent", &g, &err), ERR_IO);
	buf_fini(&b);
}

/* Every byte set to other values: opened or refused, never a crash, and what was opened can be
 * walked. */
TEST(gguf_every_byte)
{
	static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
	struct buf b;
	struct marks m;
	make_gguf(&b, &m);
	for (size_t i = 0; i < m.data; i++)
		for (size_t v = 0; v < sizeof values; v++) {
			struct gguf *g;
			struct err err;
			char old = b.data[i];
			b.data[i] = (char)values[v];
			write_file("byte.gguf", b.data, b.len);
			b.data[i] = old;
			if (gguf_open(path, &g, &err))
				continue;
			volatile unsigned sum = 0;
			for (size_t t = 0; t < gguf_tensors(g); t++)
				for (size_t k = 0; k < gguf_tensor_at(g, t)->bytes; k++)
					sum += ((const unsigned char *)gguf_tensor_at(g, t)->data)[k];
			gguf_close(&g);
		}
	buf_fini(&b);
}

/* --- GGUF in parts ------------------------------------------------------- */

/* What a part says: its keys (a negative one is left out), and one F32 tensor of 4 values, all
 * of them `no`; NULL: none. */
struct part {
	int no, count, total;
	const char *tensor;
};

static void put_key(struct buf *b, const char *key, uint32_t type, int value)
{
	if (value < 0)
		return;
	put_str(b, key);
	put32(b, type);
	buf_add(b, &value, type == GGUF_U16 ? 2 : 4);
}

static void write_part(const char *name, const struct part *p)
{
	struct buf b;
	buf_init(&b, 0);
	buf_adds(&b, "GGUF");
	put32(&b, 3);
	put64(&b, p->tensor ? 1 : 0);
	put64(&b, 1 + (p->no >= 0) + (p->count >= 0) + (p->total >= 0));
	put_key(&b, "mine", GGUF_U32, 100 + p->no);
	put_key(&b, "split.no", GGUF_U16, p->no);
	put_key(&b, "split.count", GGUF_U16, p->count);
	put_key(&b, "split.tensors.count", GGUF_I32, p->total);
	if (p->tensor)
		put_tensor(&b, p->tensor, 4, 1, 0, 0);
	while (b.len % 32)
		buf_addc(&b, 0);
	for (int i = 0; p->tensor && i < 4; i++)
		put_f32(&b, (float)p->no);
	write_file(name, b.data, b.len);
	buf_fini(&b);
}

#define PARTS 3
static const char *const part_name[PARTS] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                             "m-00003-of-00003.gguf"};
static const struct part part_good[PARTS] = {{0, 3, 3, "a"}, {1, 3, 3, "b"}, {2, 3, 3, "c"}};

/* Part `at` is another one, or not there (no tensor and no keys); then part 1 is opened. */
static const struct {
	int at;
	struct part part;
	int code;
	const char *file, *text;
} parts_spoilt[] = {
	{0,
     {0, 3, 3, NULL},
     ERR_CORRUPT,
     "m-00002",
     "metadata split.tensors.count: found 3, expected the 2 tensors"},
	{1,
     {1, 3, 4, "b"},
     ERR_CORRUPT,
     "m-00001",
     "metadata split.tensors.count: found 3, expected as in the part that was opened 4"},
	{1, {1, -1, 3, "b"}, 0, "", ""},
	{1, {1, 0, 3, "b"}, 0, "", ""},
	{1,
     {1, 1, 3, "b"},
     ERR_CORRUPT,
     "m-00002",
     "metadata split.no: found 1, expected less than split.count, which is 1"},
	{1,
     {-1, 3, 3, "b"},
     ERR_CORRUPT,
     "m-00002",
     "metadata split.no: found none, expected an integer"},
	{1, {1, 3, -1, "b"}, ERR_CORRUPT, "m-00002", "metadata split.tensors.count: found none"},
	{1,
     {3, 3, 3, "b"},
     ERR_CORRUPT,
     "m-00002",
     "metadata split.no: found 3, expected less than split.count, which is 3"},
	{1,
     {2, 3, 3, "b"},
     ERR_INVALID,
     "m-00002",
     "file name: found one that does not end in -00003-of-00003.gguf, expected that of part 3 of "
     "3"},
	{1,
     {1, 2000, 3, "b"},
     ERR_CORRUPT,
     "m-00002",
     "metadata split.count: found 2000, expected at most 1024"},
	{1,
     {1, 4, 3, "b"},
     ERR_INVALID,
     "m-00002",
     "file name: found one that does not end in -00002-of-00004.gguf"},
	{2, {2, 4, 3, "c"}, ERR_CORRUPT, "m-00003", "part 3 of 3"},
	{2,
     {1, 3, 3, "c"},
     ERR_CORRUPT,
     "m-00003",
     "metadata split.no: found 1, expected by the file's name 2"},
	{2,
     {2, -1, 3, "c"},
     ERR_CORRUPT,
     "m-00003",
     "metadata split.count: found 0, expected as in the part that was opened 3"},
	{2,
     {2, 3, 3, "a"},
     ERR_CORRUPT,
     "m-00001",
     "tensor a: found twice (in two parts), expected once"},
	{2,
     {2, 3, 3, "b"},
     ERR_CORRUPT,
     "m-00001",
     "tensor b: found twice (in two parts), expected once"},
	{2, {-1, -1, -1, NULL}, ERR_IO, "m-00003", "cannot open: No such file"},
	{0, {-1, -1, -1, NULL}, ERR_IO, "m-00001", "part 1 of 3: "},
};

TEST(parts_good)
{
	for (int i = 0; i < PARTS; i++)
		write_part(part_name[i], &part_good[i]);
	for (int i = 0; i < PARTS; i++) {
		struct gguf *g = NULL;
		struct err err = {0};
		uint32_t mine;
		snprintf(path, sizeof path, "%s/%s", folder, part_name[i]);
		ck_assert_msg(gguf_open(path, &g, &err) == 0, "%s", err.text);
		ck_assert_uint_eq(gguf_tensors(g), PARTS);
		ck_assert(strstr(gguf_path(g), part_name[0]) && gguf_get_u32(g, "mine", &mine) == 0 &&
		          mine == 100);
		for (int t = 0; t < PARTS; t++) {
			const struct gguf_tensor *of = gguf_tensor_find(g, part_good[t].tensor);
			ck_assert(of == gguf_tensor_at(g, (size_t)t) && of->bytes == 16 &&
			          ((const float *)of->data)[3] == (float)t);
		}
		gguf_close(&g);
	}
}

TEST_LOOP(parts_hostile, 0, sizeof parts_spoilt / sizeof *parts_spoilt)
{
	struct gguf *g = NULL;
	struct err err = {0};
	int at = parts_spoilt[_i].at;
	for (int i = 0; i < PARTS; i++)
		write_part(part_name[i], i == at ? &parts_spoilt[_i].part : &part_good[i]);
	if (parts_spoilt[_i].part.no < 0 && !parts_spoilt[_i].part.tensor)
		remove_file(part_name[at]);
	snprintf(path, sizeof path, "%s/%s", folder, part_name[1]);
	int rc = gguf_open(path, &g, &err);
	if (parts_spoilt[_i].code) {
		refused(parts_spoilt[_i].file, rc, &err, parts_spoilt[_i].code, parts_spoilt[_i].text);
		ck_assert_ptr_null(g);
	} else { /* no part of anything */
		ck_assert_msg(rc == 0 && gguf_tensors(g) == 1, "%s", err.text);
		gguf_close(&g);
	}
}

/* --- safetensors --------------------------------------------------------- */

static void write_st(const char *name, const char *header, size_t data_bytes)
{
	struct buf b;
	buf_init(&b, 0);
	put64(&b, strlen(header));
	buf_adds(&b, header);
	for (size_t i = 0; i < data_bytes; i++)
		buf_addc(&b, (char)i);
	write_file(name, b.data, b.len);
	buf_fini(&b);
}

#define TENSOR_A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"

TEST(st_good)
{
	struct safetensors *st;
	struct err err;
	write_st("model.safetensors",
	         "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_"
	         "offsets\":[24,32]}," TENSOR_A "}",
	         32);
	ck_assert_msg(st_open_folder(folder, &st, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(st_tensors(st), 2);
	const struct st_tensor *t = st_tensor_find(st, "b");
	ck_assert(t && t->dims == 1 && t->shape[0] == 4 && t->bytes == 8 &&
	          strcmp(t->dtype, "BF16") == 0 && *(const unsigned char *)t->data == 24);
	ck_assert_str_eq(st_tensor_at(st, 0)->name, "a");
	ck_assert_ptr_null(st_tensor_find(st, "c"));
	st_close(&st);
	remove_file("model.safetensors");
}

static const struct {
	const char *header;
	size_t data;
	int code;
	const char *text;
} st_spoilt[] = {
	{"[]", 0, ERR_CORRUPT, "header: found no JSON object"},
	{"{\"a\":", 0, ERR_CORRUPT, "header: found no JSON object"},
	{"{" TENSOR_A "," TENSOR_A "}", 24, ERR_CORRUPT,
     "header: found no JSON object (duplicate object key"},
	{"{\"a\":3}", 0, ERR_CORRUPT, "a: found no tensor"},
	{"{\"a\":{\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24, ERR_CORRUPT, "a: found dtype (none)"},
	{"{\"a\":{\"dtype\":\"F31\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24, ERR_UNSUPPORTED,
     "a: found dtype F31"},
	{"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,24]}}", 24, ERR_CORRUPT, "a: found no shape"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,6],\"data_offsets\":[0,24]}}", 24, ERR_CORRUPT,
     "a: found more dimensions"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,-3],\"data_offsets\":[0,24]}}", 24, ERR_CORRUPT,
     "a: found dimension 1 that is not an integer >= 0"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3.5],\"data_offsets\":[0,24]}}", 24, ERR_CORRUPT,
     "a: found dimension 1"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,2],\"data_offsets\":[0,24]}}", 24,
     ERR_CORRUPT, "a: found more than 2^64 elements"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387910],\"data_offsets\":[0,24]}}", 24,
     ERR_CORRUPT, "a: found 24 bytes of data, expected 4611686018427387910 x 4"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,20]}}", 20, ERR_CORRUPT,
     "a: found 20 bytes of data, expected 6 x 4"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3]}}", 24, ERR_CORRUPT, "a: found no data_offsets"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[24,0]}}", 24, ERR_CORRUPT,
     "a: found data_offsets 24..0"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[-24,0]}}", 24, ERR_CORRUPT,
     "a: found data_offsets -24..0"},
	{"{" TENSOR_A "}", 23, ERR_CORRUPT,
     "a: found data_offsets 0..24, expected them in order and at most 23 (truncated?)"},
	{"{" TENSOR_A "}", 25, ERR_CORRUPT, "data: found 1 bytes after the last tensor"},
	{"{" TENSOR_A ",\"b\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[20,24]}}", 24,
     ERR_CORRUPT, "b: found data at 20, expected 24 (overlap)"},
	{"{" TENSOR_A ",\"b\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[28,32]}}", 32,
     ERR_CORRUPT, "b: found data at 28, expected 24 (gap)"},
};

TEST_LOOP(st_hostile, 0, sizeof st_spoilt / sizeof *st_spoilt)
{
	struct safetensors *st = NULL;
	struct err err = {0};
	write_st("model.safetensors", st_spoilt[_i].header, st_spoilt[_i].data);
	refused("model.safetensors", st_open_folder(folder, &st, &err), &err, st_spoilt[_i].code,
	        st_spoilt[_i].text);
	ck_assert_ptr_null(st);
	remove_file("model.safetensors");
}

TEST(st_header_length)
{
	static const uint64_t lengths[] = {0, 1, 3, 1 << 20, UINT64_MAX};
	struct safetensors *st = NULL;
	struct err err;
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		struct buf b;
		buf_init(&b, 0);
		put64(&b, lengths[i]);
		buf_adds(&b, "{}");
		write_file("model.safetensors", b.data, b.len);
		refused("model.safetensors", st_open_folder(folder, &st, &err), &err, ERR_CORRUPT,
		        "header length: found");
		write_file("model.safetensors", b.data, b.len - 1);
		ck_assert_int_eq(st_open_folder(folder, &st, &err), ERR_CORRUPT);
		buf_fini(&b);
	}
	remove_file("model.safetensors");
	refused(folder, st_open_folder(folder, &st, &err), &err, ERR_NOTFOUND,
	        "found neither model.safetensors nor model.safetensors.index.json");
}

/* Headers that would take long or much memory: nested too deep, and more values than any model
 * has. */
TEST(st_deep_and_wide)
{
	static const struct {
		char fill;
		size_t n;
		int code;
		const char *text;
	} cases[] = {
		{'[', 100000, ERR_CORRUPT, "header: found no JSON object (maximum parsing depth reached"},
		{'{', 4 << 20, ERR_UNSUPPORTED, "header: found 4194309 values, expected at most 2097152"},
		{',', 4 << 20, ERR_UNSUPPORTED, "header: found 4194309 values"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct safetensors *st = NULL;
		struct err err = {0};
		char *header = mem_alloc(cases[i].n + 6);
		memset(header, cases[i].fill, cases[i].n);
		memcpy(header + cases[i].n, "[[[[[", 6);
		memcpy(header, "{\"a\":", i == 0 ? 5 : 0);
		write_st("model.safetensors", header, 0);
		refused("model.safetensors", st_open_folder(folder, &st, &err), &err, cases[i].code,
		        cases[i].text);
		free(header);
	}
	remove_file("model.safetensors");
}

#define TENSOR_B "\"b\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}"

static const struct {
	const char *index;
	int code; /* 0: opens */
	const char *text;
} indices[] = {
	{"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}", 0, ""},
	{"{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}", ERR_CORRUPT,
     "a: found no such tensor in s2.safetensors"},
	{"{\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"s2.safetensors\"}}", ERR_CORRUPT,
     "c: found no such tensor in s2.safetensors"},
	{"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s3.safetensors\"}}", ERR_IO,
     "s3.safetensors"},
	{"{\"weight_map\":{\"a\":\"s1.safetensors\",\"a2\":\"s1b.safetensors\"}}", ERR_CORRUPT,
     "a: found in two files"},
	{"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", ERR_CORRUPT,
     "a: found shard ../s1.safetensors, expected the plain name"},
	{"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", ERR_CORRUPT, "a: found shard /etc/passwd"},
	{"{\"weight_map\":{\"a\":3}}", ERR_CORRUPT, "a: found shard (none)"},
	{"{\"weight_map\":{}}", ERR_CORRUPT, "weight_map: found none"},
	{"{}", ERR_CORRUPT, "weight_map: found none"},
	{"{\"weight_map\":[\"s1.safetensors\"]}", ERR_CORRUPT, "weight_map: found none"},
	{"{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}", ERR_CORRUPT,
     "index: found no JSON object (duplicate object key"},
	{"{\"weight_map\":{\"a\":\"s1/../s1.safetensors\"}}", ERR_CORRUPT,
     "a: found shard s1/../s1.safetensors"},
	{"{\"weight_map\":{\"a\":\"..safetensors\"}}", ERR_CORRUPT, "a: found shard ..safetensors"},
	{"{\"weight_map\":{\"a\":\".safetensors\"}}", ERR_CORRUPT, "a: found shard .safetensors"},
	{"[]", ERR_CORRUPT, "index: found no JSON object (another value"},
	{"nonsense", ERR_CORRUPT, "index: found no JSON object"},
	{NULL, ERR_NOTFOUND, "files: found 3 .safetensors files (s"},
};

TEST_LOOP(st_shards, 0, sizeof indices / sizeof *indices)
{
	struct safetensors *st = NULL;
	struct err err = {0};
	write_st("s1.safetensors", "{" TENSOR_A "}", 24);
	write_st("s1b.safetensors", "{" TENSOR_A "}", 24);
	write_st("s2.safetensors", "{" TENSOR_B "}", 4);
	if (indices[_i].index)
		write_file("model.safetensors.index.json", indices[_i].index, strlen(indices[_i].index));
	int rc = st_open_folder(folder, &st, &err);
	if (indices[_i].code) {
		refused("", rc, &err, indices[_i].code, indices[_i].text);
	} else {
		ck_assert_msg(rc == 0, "%s", err.text);
		ck_assert(st_tensors(st) == 2 && st_tensor_find(st, "b")->bytes == 4);
		st_close(&st);
	}
	remove_file("s1.safetensors");
	remove_file("s1b.safetensors");
	remove_file("s2.safetensors");
	remove_file("model.safetensors.index.json");
}
