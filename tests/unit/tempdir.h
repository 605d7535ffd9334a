/* tempdir.h - folders for tests that are gone when the test program ends, also when a test failed
 * or crashed.
 *
 * libcheck runs each test in a child. The program that started them owns one folder, made before
 * the first test and removed with all that is in it at its exit; every test_folder lies in that.
 * tools/run-tests sets TMPDIR to a folder of its own, for programs that are killed. */
#ifndef TESTS_TEMPDIR_H
#define TESTS_TEMPDIR_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* socket paths have 107 bytes in all: a name of 40 bytes still fits */
#define TEST_FOLDER_BYTES 64

static char test_base[40];
static pid_t test_owner;

static int test_remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path), 0;
}

static void test_remove_all(void)
{
	if (getpid() == test_owner)
		nftw(test_base, test_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

__attribute__((constructor)) static void test_base_make(void)
{
	const char *tmp = getenv("TMPDIR"), *base = getenv("TEST_BASE");
	if (base && strlen(base) < sizeof test_base) {
		/* a test runs this program again: the folder belongs to the first one */
		strcpy(test_base, base);
		return;
	}
	if (!tmp || !*tmp || strlen(tmp) > 26)
		tmp = "/tmp";
	snprintf(test_base, sizeof test_base, "%s/pd-test-XXXXXX", tmp);
	test_owner = getpid();
	if (!mkdtemp(test_base) || setenv("TEST_BASE", test_base, 1) != 0 ||
	    atexit(test_remove_all) != 0) {
		perror(test_base);
		exit(1);
	}
}

/* Makes a new empty folder; writes its path to out (TEST_FOLDER_BYTES). */
static inline void test_folder(char *out, const char *name)
{
	int n = snprintf(out, TEST_FOLDER_BYTES, "%s/%s-XXXXXX", test_base, name);
	if (n >= TEST_FOLDER_BYTES || !mkdtemp(out)) {
		perror(out);
		abort();
	}
}

/* The path of a file NAME that does not exist yet; out has TEST_FOLDER_BYTES. */
static inline void test_file(char *out, const char *name)
{
	char folder[TEST_FOLDER_BYTES];
	test_folder(folder, "f");
	int n = snprintf(out, TEST_FOLDER_BYTES, "%s/%s", folder, name);
	if (n >= TEST_FOLDER_BYTES)
		abort();
}

#endif
