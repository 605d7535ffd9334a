/* test_log_file.c - the log's own file stays below its limit, and no line is lost: not with several
 * threads, nor when the process is killed, nor when others rename the file or write to stderr. */
#include "util/log.h"
#include "util/log_file.h"

#include "tempdir.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_BYTES (64u << 10)
#define THREADS 2
#define LINES 300 /* of a thread: together more than MAX_BYTES, less than twice that */
#define KILLS 30

static char path[TEST_FOLDER_BYTES], old[TEST_FOLDER_BYTES + 2];

static void begin(void)
{
	struct err err = {0};
	ck_assert_msg(log_file_open(path, MAX_BYTES, &err) == 0, "%s", err.text);
	log_init("pdtest", NULL);
	ck_assert_int_eq(log_start(), 0);
}

static void make_path(void)
{
	test_file(path, "x.log");
	snprintf(old, sizeof old, "%s.1", path);
}

/* A missing file is empty. */
static char *content(const char *file)
{
	FILE *f = fopen(file, "r");
	char *text = calloc(1, 4 * MAX_BYTES);
	ck_assert(f || errno == ENOENT);
	if (f) {
		ck_assert_uint_lt(fread(text, 1, 4 * MAX_BYTES - 1, f), 4 * MAX_BYTES - 1);
		fclose(f);
	}
	ck_assert_uint_le(strlen(text), MAX_BYTES);
	return text;
}

/* Both files, the older first. */
static char *content_of_both(void)
{
	char *a = content(old), *b = content(path), *all = malloc(strlen(a) + strlen(b) + 1);
	strcpy(stpcpy(all, a), b);
	free(a);
	free(b);
	return all;
}

static void write_line(int who, unsigned n)
{
	log_notice("spam", "who=%d n=%u filler=%080d", who, n, 0);
}

static void *write_lines(void *arg)
{
	for (unsigned i = 0; i < LINES; i++) {
		write_line(*(int *)arg, i);
		if (i % 50 == 0)
			usleep(1000); /* the buffer has room for all lines; more than one write(2) */
	}
	return NULL;
}

TEST_CASE("log_file", .timeout_s = 60);

TEST(threads_lose_no_line)
{
	make_path();
	begin();
	pthread_t threads[THREADS];
	int who[THREADS];
	for (int i = 0; i < THREADS; i++) {
		who[i] = i;
		ck_assert_int_eq(pthread_create(&threads[i], NULL, write_lines, &who[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	log_stop(60000);
	ck_assert_uint_eq(log_dropped(), 0);
	ck_assert_int_eq(access(old, F_OK), 0);
	char *all = content_of_both();
	unsigned next[THREADS] = {0};
	for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n")) {
		int from;
		unsigned n;
		const char *at = strstr(line, " who=");
		ck_assert_msg(strncmp(line, "ts=", 3) == 0 && at, "%s", line);
		ck_assert_int_eq(sscanf(at, " who=%d n=%u", &from, &n), 2);
		ck_assert_uint_eq(n, next[from]++);
	}
	for (int i = 0; i < THREADS; i++)
		ck_assert_uint_eq(next[i], LINES);
	free(all);
}

/* Runs until it is killed. */
static _Noreturn void write_for_ever(int life)
{
	begin();
	for (unsigned n = 0;; n++) {
		write_line(life, n);
		if (n % 100 == 99)
			usleep(500);
	}
}

/* What both files have are the last lines of all lives, each life without a hole: only the end of a
 * life, which the log's thread had not written, is missing, and what an older PATH.1 had. */
static void check_lives(void)
{
	char *all = content_of_both();
	int life = -1;
	unsigned next = 0;
	for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n")) {
		int who;
		unsigned n;
		const char *at = strstr(line, " who=");
		ck_assert_msg(strncmp(line, "ts=", 3) == 0, "%s", line);
		if (!at)
			continue; /* lines were dropped: the disk was slow */
		ck_assert_int_eq(sscanf(at, " who=%d n=%u", &who, &n), 2);
		ck_assert(who >= life);
		if (who > life && life >= 0)
			ck_assert_uint_eq(n, 0);
		else if (life >= 0)
			ck_assert_uint_eq(n, next);
		life = who;
		next = n + 1;
	}
	free(all);
}

TEST(kills_lose_no_written_line)
{
	make_path();
	unsigned renamed = 0;
	ino_t last = 0;
	for (int i = 0; i < KILLS || (renamed <= 3 && i < 10 * KILLS); i++) { /* later each time */
		pid_t pid = fork();
		if (pid == 0)
			write_for_ever(i);
		usleep(5000 + (useconds_t)i * 700);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		check_lives();
		struct stat st;
		if (stat(path, &st) == 0) {
			renamed += st.st_ino != last;
			last = st.st_ino;
		}
	}
	ck_assert_uint_gt(renamed, 3);
}

/* A kill between the rename and the open of the new file leaves only PATH.1. */
TEST(goes_on_without_a_current_file)
{
	make_path();
	int fd = open(old, O_WRONLY | O_CREAT, 0600);
	ck_assert_int_eq(write(fd, "before\n", 7), 7);
	close(fd);
	begin();
	write_line(0, 0);
	log_stop(60000);
	char *a = content(old), *b = content(path);
	ck_assert_str_eq(a, "before\n");
	ck_assert_ptr_nonnull(strstr(b, " n=0 "));
	free(a);
	free(b);
}

TEST(appends)
{
	make_path();
	int fd = open(path, O_WRONLY | O_CREAT, 0600);
	ck_assert_int_eq(write(fd, "before\n", 7), 7);
	close(fd);
	begin();
	write_line(0, 0);
	log_stop(60000);
	char *b = content(path);
	ck_assert_int_eq(strncmp(b, "before\nts=", 10), 0);
	free(b);
}

TEST(what_libraries_print_follows)
{
	make_path();
	begin();
	for (int i = 0; i < THREADS; i++)
		write_lines(&i);
	log_stop(60000);
	fputs("from a library\n", stderr);
	ck_assert_int_eq(write(STDOUT_FILENO, "to stdout\n", 10), 10);
	char *b = content(path);
	ck_assert_ptr_nonnull(strstr(b, "\nfrom a library\nto stdout\n"));
	free(b);
}

/* As logrotate does it, and as a worker does it for its ranks. */
TEST(follows_when_another_renames_it)
{
	char other[TEST_FOLDER_BYTES + 8];
	make_path();
	begin();
	write_line(0, 0);
	log_stop(60000);
	snprintf(other, sizeof other, "%s.other", path);
	ck_assert_int_eq(rename(path, other), 0);
	log_file_follow();
	fputs("last words\n", stderr);
	char *a = content(other), *b = content(path);
	ck_assert_ptr_nonnull(strstr(a, " n=0 "));
	ck_assert_str_eq(b, "last words\n");
	free(a);
	free(b);
}

TEST(a_rename_that_fails_is_reported_once)
{
	make_path();
	ck_assert_int_eq(mkdir(old, 0700), 0); /* cannot be replaced by a file */
	begin();
	for (int i = 0; i < THREADS; i++)
		write_lines(&i);
	log_stop(60000);
	FILE *f = fopen(path, "r");
	char line[4096];
	unsigned told = 0, lines = 0;
	while (fgets(line, sizeof line, f)) {
		told += strstr(line, " event=log_file_not_replaced path=") != NULL;
		lines += strstr(line, " event=spam ") != NULL;
	}
	fclose(f);
	ck_assert_uint_eq(told, 1);
	ck_assert_uint_eq(lines, THREADS * LINES);
}

/* The file was renamed, but no descriptor is left for the new one. */
TEST(an_open_that_fails_is_reported_and_bounded)
{
	struct rlimit limit, none;
	make_path();
	begin();
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = limit;
	none.rlim_cur = STDERR_FILENO + 1;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	for (int i = 0; i < 8; i++)
		write_lines(&i);
	log_stop(60000);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	struct stat st;
	ck_assert_int_eq(access(path, F_OK), -1);
	ck_assert_int_eq(stat(old, &st), 0);
	ck_assert_int_gt(st.st_size, 0);
	ck_assert_int_le(st.st_size, 2 * MAX_BYTES);
	unsigned told = 0;
	char line[4096];
	FILE *f = fopen(old, "r");
	while (fgets(line, sizeof line, f))
		told += strstr(line, " event=log_file_not_replaced path=") != NULL;
	fclose(f);
	ck_assert_uint_ge(
		told, 1); /* again, after it was emptied; more than once if the lines before it waited */
	ck_assert_int_eq(log_file_make_room(1), 0);
	ck_assert_int_eq(access(path, F_OK), 0);
}

TEST(other_things_than_files_are_refused)
{
	struct err err = {0};
	make_path();
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	ck_assert_int_eq(log_file_open(path, MAX_BYTES, &err), ERR_IO); /* hangs here if it waits */
	ck_assert_int_eq(log_file_open("/dev/null", MAX_BYTES, &err), ERR_INVALID);
	ck_assert_str_eq(err.text, "log_file = \"/dev/null\" is not a regular file");
	ck_assert_int_eq(log_file_open("/nonexistent/x", MAX_BYTES, &err), ERR_IO);
	ck_assert_ptr_nonnull(strstr(err.text, "\"/nonexistent/x\": No such file"));
	ck_assert_ptr_null(log_file_path());
}
