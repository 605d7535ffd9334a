/* format_rig.h - a folder for files that tests write byte by byte, and what a refusal must say. */
#ifndef TESTS_FORMAT_RIG_H
#define TESTS_FORMAT_RIG_H

#include "util/buf.h"
#include "tempdir.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char folder[TEST_FOLDER_BYTES], path[128]; /* path: of the file written last */

static inline void make_folder(void)
{
	test_folder(folder, "format");
}

static inline void write_file(const char *name, const void *data, size_t n)
{
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "w");
	ck_assert(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

static inline void remove_file(const char *name)
{
	snprintf(path, sizeof path, "%s/%s", folder, name);
	unlink(path);
}

/* One line, which names the file and says the text. */
static inline void refused(const char *file, int rc, const struct err *err, int code,
                           const char *text)
{
	ck_assert_msg(rc == code, "%s: code %d, want %d", text, rc, code);
	ck_assert_int_eq(err->code, code);
	ck_assert_msg(strstr(err->text, file) && strstr(err->text, text) && !strchr(err->text, '\n'),
	              "text \"%s\", want \"%s\"", err->text, text);
}

/* --- GGUF ---------------------------------------------------------------- */

static inline void put32(struct buf *b, uint32_t v)
{
	buf_add(b, &v, sizeof v);
}

static inline void put64(struct buf *b, uint64_t v)
{
	buf_add(b, &v, sizeof v);
}

static inline void put_str(struct buf *b, const char *s)
{
	put64(b, strlen(s));
	buf_adds(b, s);
}

static inline void put_f32(struct buf *b, float f)
{
	buf_add(b, &f, sizeof f);
}

static inline void put_tensor(struct buf *b, const char *name, uint64_t k, uint64_t n,
                              uint32_t type, uint64_t offset)
{
	put_str(b, name);
	put32(b, 2);
	put64(b, k);
	put64(b, n);
	put32(b, type);
	put64(b, offset);
}

#endif
