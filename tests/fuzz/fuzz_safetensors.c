/* fuzz_safetensors.c - a folder of safetensors files and perhaps their index (fuzz.h says how
 * several files are one input): opened, then every byte that it gives out is read. A file that
 * begins with a brace gets the 8 bytes of its header's length put before it, so that a header
 * that grew is still one: the header ends with the file's last brace. */
#include "format/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile unsigned sum;

static void add_length(const char *path)
{
	size_t size;
	uint8_t *p = fuzz_read(path, 1 << 16, &size);
	const uint8_t *end = p && size && p[0] == '{' ? memrchr(p, '}', size) : NULL;
	if (end) {
		uint64_t n = (uint64_t)(end + 1 - p);
		int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
		if (fd < 0 || write(fd, &n, sizeof n) != sizeof n || write(fd, p, size) != (ssize_t)size)
			abort();
		close(fd);
	}
	free(p);
}

static void add_lengths(const char *folder)
{
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d));) {
		char path[400];
		size_t n = strlen(e->d_name);
		snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
		if (n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0)
			add_length(path);
	}
	if (d)
		closedir(d);
}

FUZZ(safetensors, 1 << 14)
{
	const char *folder = fuzz_files(data, size);
	struct safetensors *st = NULL;
	struct err err = {0};
	add_lengths(folder);
	int rc = st_open_folder(folder, &st, &err);
	if ((rc == 0) != (st != NULL) || (rc && !err.text[0]) || strchr(err.text, '\n'))
		abort();
	if (st)
		fuzz_accepted();
	for (size_t i = 0; st && i < st_tensors(st); i++) {
		const struct st_tensor *t = st_tensor_at(st, i);
		if (st_tensor_find(st, t->name) != t)
			abort();
		for (size_t k = 0; k < t->bytes; k++)
			sum += ((const unsigned char *)t->data)[k];
	}
	st_close(&st);
	return 0;
}
