/* test_log.c - a log call never waits, whatever becomes of stderr; what is lost is counted and
 * said. */
/* run: threads */
#include "util/log.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINES 5000
#define READ_MAX (8u << 20)

/* stderr becomes a small pipe; returns its read end. */
static int pipe_as_stderr(void)
{
	int p[2];
	ck_assert_int_eq(pipe(p), 0);
	ck_assert_int_gt(fcntl(p[1], F_SETPIPE_SZ, 4096), 0);
	dup2(p[1], STDERR_FILENO);
	close(p[1]);
	return p[0];
}

static void write_lines(unsigned from, unsigned n)
{
	char filler[200];
	memset(filler, 'x', sizeof filler);
	filler[sizeof filler - 1] = 0;
	for (unsigned i = 0; i < n; i++)
		log_notice("spam", "n=%u filler=%s", from + i, filler);
}

/* Reads until the text has `end` in it. */
static char *read_until(int fd, const char *end)
{
	char *text = malloc(READ_MAX);
	size_t n = 0;
	text[0] = 0;
	while (!strstr(text, end)) {
		ssize_t got = read(fd, text + n, READ_MAX - n - 1);
		ck_assert_int_gt(got, 0);
		n += (size_t)got;
		text[n] = 0;
	}
	return text;
}

/* Whole lines with growing numbers; returns how many spam lines there are. */
static unsigned check_lines(char *text)
{
	unsigned seen = 0;
	long last = -1;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		ck_assert_msg(strncmp(line, "ts=", 3) == 0, "%s", line);
		const char *n = strstr(line, " event=spam n=");
		if (!n)
			continue;
		long number = strtol(n + 14, NULL, 10);
		ck_assert_int_gt(number, last);
		ck_assert_int_eq(line[strlen(line) - 1], 'x');
		last = number;
		seen++;
	}
	return seen;
}

TEST(a_pipe_that_nobody_reads)
{
	int fd = pipe_as_stderr();
	log_init("pdtest", NULL);
	ck_assert_int_eq(log_start(), 0);
	write_lines(0, LINES); /* hangs here if a call waits */
	uint64_t lost = log_dropped();
	ck_assert_uint_gt(lost, 0);
	char want[128];
	snprintf(want, sizeof want,
	         "level=warn prog=pdtest event=log_lines_dropped lines=%llu total=%llu\n",
	         (unsigned long long)lost, (unsigned long long)lost);
	char *text = read_until(fd, want);
	unsigned seen = check_lines(text);
	free(text);
	write_lines(LINES, 1); /* it goes on afterwards */
	text = read_until(fd, "n=5000 ");
	seen += check_lines(text);
	ck_assert_uint_eq(seen + lost, LINES + 1);
	ck_assert_uint_eq(log_dropped(), lost);
	free(text);
}

TEST(the_end_waits_for_the_buffer)
{
	int fd = pipe_as_stderr();
	log_init("pdtest", NULL);
	ck_assert_int_eq(log_start(), 0);
	write_lines(0, 10);
	log_stop(60000);
	write_lines(10, 1); /* by itself now */
	char *text = read_until(fd, "n=10 ");
	ck_assert_uint_eq(check_lines(text), 11);
	free(text);
}

TEST(the_end_does_not_wait_for_ever)
{
	pipe_as_stderr();
	log_init("pdtest", NULL);
	ck_assert_int_eq(log_start(), 0);
	write_lines(0, LINES);
	log_stop(20); /* hangs here if it does */
}

TEST(a_reader_that_is_gone)
{
	signal(SIGPIPE, SIG_IGN);
	int fd = pipe_as_stderr();
	log_init("pdtest", NULL);
	ck_assert_int_eq(log_start(), 0);
	close(fd);
	write_lines(0, 3);
	while (log_dropped() < 3)
		usleep(1000);
	usleep(20000);
	ck_assert_uint_eq(log_dropped(), 3); /* the report of a loss is not a loss to report */
	fd = pipe_as_stderr();
	write_lines(3, 2);
	char *text = read_until(fd, "event=log_lines_dropped lines=3 total=3\n");
	ck_assert_uint_ge(check_lines(text), 1);
	free(text);
}
