/* log_file.c - see log_file.h. A rename is retried at each write, as is an open that failed. While
 * they fail, the file is emptied at twice its limit, so that it stays bounded. */
#include "util/log_file.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MODE 0640

static struct {
	char *path, *old; /* NULL: stderr is not a file of ours */
	uint64_t max_bytes;
	int failed; /* PATH was not replaced at the last write */
} own;

/* Returns 0 or an errno. */
static int open_path(void)
{
	struct stat st;
	/* non-blocking: a FIFO without a reader fails instead of waiting for one */
	int fd = open(own.path, O_WRONLY | O_APPEND | O_CREAT | O_NOCTTY | O_NONBLOCK | O_CLOEXEC,
	              FILE_MODE);
	if (fd < 0)
		return errno;
	int why = fstat(fd, &st) < 0 ? errno : S_ISREG(st.st_mode) ? 0 : EINVAL;
	if (!why && (dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0))
		why = errno;
	if (fd > STDERR_FILENO)
		close(fd);
	return why;
}

int log_file_open(const char *path, uint64_t max_bytes, struct err *err)
{
	own.path = mem_strdup(path);
	own.old = mem_printf("%s.1", path);
	own.max_bytes = max_bytes;
	int why = open_path();
	if (!why)
		return 0;
	free(own.path);
	free(own.old);
	own.path = own.old = NULL;
	return why == EINVAL
	           ? err_set(err, ERR_INVALID, "log_file = \"%s\" is not a regular file", path)
	           : err_set(err, ERR_IO, "cannot open log_file = \"%s\": %s", path, strerror(why));
}

const char *log_file_path(void)
{
	return own.path;
}

/* Returns 1 if PATH is the file that stderr refers to. */
static int is_ours(const struct stat *st)
{
	struct stat at;
	return stat(own.path, &at) == 0 && at.st_ino == st->st_ino && at.st_dev == st->st_dev;
}

/* Returns 1 if n more bytes exceed this limit. */
static int exceeds(size_t n, uint64_t limit, struct stat *st)
{
	return own.max_bytes && fstat(STDERR_FILENO, st) == 0 && (uint64_t)st->st_size + n > limit;
}

int log_file_make_room(size_t n)
{
	struct stat st;
	int why = 0, emptied = 0;
	if (!own.path)
		return 0;
	if (exceeds(n, own.max_bytes, &st) && flock(STDERR_FILENO, LOCK_EX | LOCK_NB) == 0) {
		/* locked, because two daemons with the same log_file must not both rename */
		if (is_ours(&st) && rename(own.path, own.old) < 0)
			why = errno;
		flock(STDERR_FILENO, LOCK_UN);
	}
	int open_why = log_file_follow();
	why = why ? why : open_why;
	if (why && exceeds(n, 2 * own.max_bytes, &st))
		emptied = ftruncate(STDERR_FILENO, 0) == 0;
	int report = why && (!own.failed || emptied);
	own.failed = why != 0;
	return report ? why : 0;
}

int log_file_follow(void)
{
	struct stat st;
	return own.path && fstat(STDERR_FILENO, &st) == 0 && !is_ours(&st) ? open_path() : 0;
}
