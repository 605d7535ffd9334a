/* test_fuzz.c - every harness of tests/fuzz runs over every file of its committed corpus, and
 * over each cut short; what a fuzzer found once stays found. Some inputs are taken, or a harness
 * would test the first look at an input alone. */
/* run: parser */
#include "tests/fuzz/fuzz.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fuzz_target *target_at(int i)
{
	struct fuzz_target *t = fuzz_targets();
	while (t && i--)
		t = t->next;
	return t;
}

static int targets(void)
{
	int n = 0;
	for (struct fuzz_target *t = fuzz_targets(); t; t = t->next)
		n++;
	return n;
}

/* Up to some place, and whole: each in memory of its own, so that the address sanitizer sees a
 * read beyond. Returns 1 if the whole was taken. */
static int run_cut(const struct fuzz_target *t, const uint8_t *data, size_t size)
{
	enum { CUTS = 8 };
	unsigned before = 0;
	for (size_t i = 0; i <= CUTS; i++) {
		size_t n = size * i / CUTS;
		uint8_t *p = malloc(n ? n : 1);
		memcpy(p, data, n);
		before = fuzz_accepts();
		t->run(p, n);
		free(p);
	}
	return fuzz_accepts() > before;
}

TEST_CASE("corpus", .timeout_s = 120);

TEST_LOOP(corpus, 0, targets())
{
	struct fuzz_target *t = target_at(_i);
	char folder[128], path[400];
	unsigned files = 0, taken = 0;
	snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", t->name);
	DIR *d = opendir(folder);
	ck_assert_msg(d != NULL, "%s: no corpus", folder);
	for (struct dirent *e; (e = readdir(d));) {
		if (e->d_name[0] == '.')
			continue;
		size_t size;
		snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
		uint8_t *data = fuzz_read(path, t->max, &size);
		ck_assert_msg(data && size, "%s", path);
		fprintf(stderr, "%s\n", path); /* the log's last one is the one that crashed */
		int is_taken = run_cut(t, data, size);
		ck_assert_msg(!(is_taken ? strncmp(e->d_name, "bad", 3) == 0
		                         : strncmp(e->d_name, "good", 4) == 0),
		              "%s is %s", path, is_taken ? "taken" : "not taken");
		free(data);
		files++;
		taken += (unsigned)is_taken;
	}
	closedir(d);
	printf("%s: %u files, %u taken\n", t->name, files, taken);
	ck_assert_msg(taken > 0, "%s: no file that is taken", folder);
}
