/* fuzz_tokenizer.c - a tokenizer from a folder's files, or from a GGUF file: what loads must
 * encode and decode anything within its promises. */
#include "format/gguf.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check_stream(const struct tokenizer *t, const struct token_list *l, unsigned flags)
{
	struct detok d;
	struct buf out, whole;
	uint32_t cp;
	buf_init(&out, 0);
	buf_init(&whole, 0);
	detok_init(&d, t, flags);
	for (size_t i = 0; i < l->n; i++)
		if (detok_feed(&d, l->ids[i], &out) != 0)
			abort();
	detok_finish(&d, &out);
	for (size_t i = 0; i < out.len;) {
		int step = utf8_step(out.data + i, out.len - i, &cp);
		if (step <= 0)
			abort();
		i += (size_t)step;
	}
	if (tokenizer_decode(t, l->ids, l->n, flags, &whole) != 0)
		abort();
	buf_fini(&out);
	buf_fini(&whole);
}

static void check_text(const struct tokenizer *t, const char *text, size_t len)
{
	for (unsigned flags = 0; flags <= TOKENIZE_PARSE_SPECIAL; flags++) {
		struct token_list l = {0};
		int rc = tokenizer_encode(t, text, len, flags, 100000, &l);
		if (rc != 0 && rc != ERR_FULL && rc != ERR_NOMEM)
			abort();
		for (size_t i = 0; i < l.n; i++)
			if (l.ids[i] >= tokenizer_size(t) ||
			    (!flags && tokenizer_is_special(t, l.ids[i]) && tokenizer_is_eos(t, l.ids[i])))
				abort();
		check_stream(t, &l, flags);
		token_list_fini(&l);
	}
}

static void check(int rc, struct tokenizer *t, const struct err *err, const uint8_t *data,
                  size_t size)
{
	static const char text[] =
		"It's  a\xe2\x96\x81 <s>test</s>, \xe6\xbc\xa2\xe5\xad\x97 12345 "
		"e\xcc\x81\xcc\xa3\n\n<0x0A>"
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\xff\xe2\x82";
	if ((rc == 0) != (t != NULL) || (rc && rc != ERR_NOTFOUND && !err->text[0]) ||
	    strchr(err->text, '\n'))
		abort();
	if (t) {
		fuzz_accepted();
		check_text(t, text, sizeof text - 1);
		check_text(t, (const char *)data, size < 2000 ? size : 2000);
	}
	tokenizer_destroy(&t);
}

static void from_gguf(const uint8_t *data, size_t size)
{
	char path[64];
	struct gguf *g = NULL;
	struct tokenizer *t = NULL;
	struct err err = {0};
	int fd = memfd_create("gguf", MFD_CLOEXEC);
	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (gguf_open(path, &g, &err) == 0) {
		int rc = tokenizer_from_gguf(g, &t, &err);
		check(rc, t, &err, data, size);
	}
	gguf_close(&g);
	close(fd);
}

FUZZ(tokenizer, 1 << 16)
{
	struct tokenizer *t = NULL;
	struct err err = {0};
	if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
		from_gguf(data, size);
		return 0;
	}
	int rc = tokenizer_from_folder(fuzz_files(data, size), &t, &err);
	check(rc, t, &err, data, size);
	return 0;
}
