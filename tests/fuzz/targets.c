/* targets.c - see fuzz.h: the list of harnesses, and files for those that need some. Failures of
 * the system end the process: nothing could be tested. */
#include "tests/fuzz/fuzz.h"
#include "util/log.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fuzz_target *targets;

void fuzz_register(struct fuzz_target *t)
{
	struct fuzz_target **at = &targets;
	log_set_level("error"); /* of each bad message there is a warning */
	while (*at && strcmp((*at)->name, t->name) < 0)
		at = &(*at)->next;
	t->next = *at;
	*at = t;
}

struct fuzz_target *fuzz_targets(void)
{
	return targets;
}

struct fuzz_target *fuzz_find(const char *name)
{
	struct fuzz_target *t = targets;
	while (t && strcmp(t->name, name) != 0)
		t = t->next;
	return t;
}

static unsigned accepts;

void fuzz_accepted(void)
{
	accepts++;
}

unsigned fuzz_accepts(void)
{
	return accepts;
}

static uint64_t cost;

void fuzz_cost(uint64_t c)
{
	cost = c;
}

uint64_t fuzz_costs(void)
{
	uint64_t c = cost;
	cost = 0;
	return c;
}

void fuzz_wrong(const char *what, const char *file, int line)
{
	fprintf(stderr, "ERROR: %s:%d: does not hold: %s\n", file, line, what);
	abort();
}

uint8_t *fuzz_read(const char *path, size_t max, size_t *ret_size)
{
	FILE *f = fopen(path, "rb");
	if (!f)
		return NULL;
	uint8_t *p = malloc(max + 1);
	*ret_size = p ? fread(p, 1, max, f) : 0;
	fclose(f);
	return p;
}

uint64_t fuzz_take(struct fuzz_input *in, size_t bytes)
{
	uint64_t v = 0;
	size_t left = (size_t)(in->end - in->at), n = bytes < left ? bytes : left;
	for (size_t i = 0; i < n && i < 8; i++)
		v |= (uint64_t)in->at[i] << 8 * i;
	in->at += n;
	return v;
}

const uint8_t *fuzz_take_bytes(struct fuzz_input *in, size_t *ret_n)
{
	size_t n = (size_t)fuzz_take(in, 1), left = (size_t)(in->end - in->at);
	const uint8_t *p = in->at;
	*ret_n = n < left ? n : left;
	in->at += *ret_n;
	return p;
}

/* --- files --------------------------------------------------------------- */

static char folder[64];

static void folder_empty(void)
{
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d));)
		if (e->d_name[0] != '.')
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

static void folder_remove(void)
{
	folder_empty();
	rmdir(folder);
}

static void folder_make(void)
{
	const char *tmp = getenv("TMPDIR");
	snprintf(folder, sizeof folder, "%s/pdfuzz-XXXXXX",
	         tmp && *tmp && strlen(tmp) < 40 ? tmp
	         : access("/dev/shm", W_OK) == 0 ? "/dev/shm"
	                                         : "/tmp");
	if (!mkdtemp(folder)) {
		perror(folder);
		exit(2);
	}
	atexit(folder_remove);
}

/* The name of a line "=== NAME", or 0. */
static size_t heading(const uint8_t *p, const uint8_t *end, char name[64])
{
	size_t n = 0;
	if (end - p < 6 || memcmp(p, "=== ", 4) != 0)
		return 0;
	for (p += 4; p < end && n < 63 && (isalnum(*p) || (n && strchr("._-", *p) && *p)); p++)
		name[n++] = (char)*p;
	name[n] = 0;
	return n && p < end && *p == '\n' ? n + 5 : 0;
}

static void file_write(const char *name, const uint8_t *p, size_t n)
{
	char path[160];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, p, n) != (ssize_t)n) {
		perror(path);
		exit(2);
	}
	close(fd);
}

const char *fuzz_files(const uint8_t *data, size_t size)
{
	const uint8_t *end = data + size, *begin = NULL;
	char name[64], next[64];
	if (!folder[0])
		folder_make();
	folder_empty();
	for (const uint8_t *p = data; p <= end; p++) {
		size_t n = p < end && (p == data || p[-1] == '\n') ? heading(p, end, next) : 0;
		if (!n && p < end)
			continue;
		if (begin) /* the line break before a heading is not the file's */
			file_write(name, begin, (size_t)(p - begin) - (n ? p > begin : 0));
		memcpy(name, next, sizeof name);
		begin = p + n;
		p += n ? n - 1 : 0;
	}
	return folder;
}
