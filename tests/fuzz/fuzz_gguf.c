/* fuzz_gguf.c - a GGUF file, or the parts of a split one: opened, then every value and every
 * byte that it gives out is read. */
#include "format/gguf.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile unsigned sum;

static void walk(const struct gguf *g)
{
	for (size_t i = 0; i < gguf_tensors(g); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(g, i);
		if (gguf_tensor_find(g, t->name) != t || !gguf_ggml_type_name(t->ggml_type))
			abort();
		for (size_t k = 0; k < t->bytes; k++)
			sum += ((const unsigned char *)t->data)[k];
	}
	static const char *const keys[] = {
		"general.architecture", "words", "numbers", "number", "split.no", "split.count"};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		struct gguf_str s;
		uint32_t u;
		float f;
		int flag;
		size_t n = 0;
		enum gguf_type type;
		const void *data;
		sum += gguf_get_u32(g, keys[i], &u) == 0 && gguf_get_f32(g, keys[i], &f) == 0 &&
		       gguf_get_bool(g, keys[i], &flag) == 0;
		if (gguf_get_str(g, keys[i], &s) == 0 && s.len)
			sum += (unsigned char)s.s[s.len - 1];
		if (gguf_get_array(g, keys[i], &type, &n, &data) == 0 && type == GGUF_STRING)
			for (size_t k = 0; k < n; k++)
				if (gguf_array_str(g, keys[i], k, &s) == 0 && s.len)
					sum += (unsigned char)s.s[s.len - 1];
	}
}

static void open_path(const char *path)
{
	struct gguf *g = NULL;
	struct err err = {0};
	int rc = gguf_open(path, &g, &err);
	if ((rc == 0) != (g != NULL) || (rc && !err.text[0]) || strchr(err.text, '\n'))
		abort();
	if (g) {
		fuzz_accepted();
		walk(g);
	}
	gguf_close(&g);
}

/* Without a heading the input is one file, which needs no folder. */
FUZZ(gguf, 1 << 16)
{
	char path[128];
	if (size >= 4 && memcmp(data, "=== ", 4) == 0) {
		snprintf(path, sizeof path, "%s/m-00001-of-00002.gguf", fuzz_files(data, size));
		open_path(path);
		return 0;
	}
	int fd = memfd_create("gguf", MFD_CLOEXEC);
	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	open_path(path);
	close(fd);
	return 0;
}
