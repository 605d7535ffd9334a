/* svc_env.c - a daemon's environment: its run directory, the lock on its name, systemd.
 *
 * The lock file RUNDIR/NAME.lock has "PID EPOCH" of its current or last holder. It is never
 * removed, so that two processes cannot lock two different files of one name, and so that epochs
 * increase even if the wall clock is set back. */
#include "svc/svc_int.h"
#include "util/clock.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-login.h>
#include <unistd.h>

#define LOCK_TRIES 100
#define LOCK_PAUSE_US 10000
#define START_FORGET_S 1200 /* above the units' TimeoutStartSec */
#define START_PAUSE_MAX_S 30

static int make_dirs(char *path)
{
	for (char *p = path + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = 0;
		int r = mkdir(path, 0755);
		*p = '/';
		if (r < 0 && errno != EEXIST && errno != EROFS)
			return -1;
	}
	return mkdir(path, 0700) < 0 && errno != EEXIST ? -1 : 0;
}

int svc_rundir_make(const char *dir, struct err *err)
{
	char *path = mem_strdup(dir);
	int r = make_dirs(path);
	int code = errno;
	free(path);
	struct stat st;
	if (r < 0)
		return err_set(err, ERR_IO,
		               "cannot make the run directory %s: %s; set rundir to a directory this user "
		               "can write to",
		               dir, strerror(code));
	if (stat(dir, &st) < 0 || !S_ISDIR(st.st_mode) || access(dir, W_OK | X_OK) < 0)
		return err_set(err, ERR_IO,
		               "the run directory %s is not a directory this user can write to; change its "
		               "owner, or set rundir",
		               dir);
	return 0;
}

const char *svc_remedy(const char *why)
{
	return strstr(why, strerror(ENOSPC)) || strstr(why, strerror(EDQUOT))
	           ? ": the disk of the run directory is full; free some space, or set rundir to a "
	             "directory on another disk"
	           : "";
}

static void read_holder(int fd, long *ret_pid, uint64_t *ret_epoch)
{
	char text[64] = "";
	ssize_t n = pread(fd, text, sizeof text - 1, 0);
	*ret_pid = 0;
	*ret_epoch = 0;
	if (n > 0)
		sscanf(text, "%ld %" SCNu64, ret_pid, ret_epoch);
}

/* A process that only checks whether a daemon is alive, such as pdctl, takes the lock for a moment:
 * retry for up to a second before the name counts as taken. */
static int lock_try(int fd)
{
	for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
		if (i == LOCK_TRIES)
			return ERR_EXISTS;
		usleep(LOCK_PAUSE_US);
	}
	return 0;
}

int svc_lock_take(const char *rundir, const char *name, uint64_t *ret_epoch, struct err *err)
{
	char *path = mem_printf("%s/%s.lock", rundir, name), text[64];
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), r;
	long pid;
	uint64_t last, epoch = clock_unix_us();
	if (fd < 0) {
		r = err_set(err, ERR_IO, "cannot open the lock file %s: %s", path, strerror(errno));
		goto out;
	}
	r = lock_try(fd);
	read_holder(fd, &pid, &last);
	if (r < 0) {
		err_set(err, r,
		        "the name \"%s\" is taken by process %ld, which runs in %s: stop that process, or "
		        "choose another name",
		        name, pid, rundir);
		goto out;
	}
	if (epoch <= last && last < UINT64_MAX / 2)
		epoch = last + 1;
	int n = snprintf(text, sizeof text, "%ld %" PRIu64 "\n", (long)getpid(), epoch);
	/* Overwrite, then truncate: on a full disk the file's own block suffices, and the last epoch is
	 * never lost. */
	if (pwrite(fd, text, (size_t)n, 0) != n || ftruncate(fd, n) < 0) {
		r = err_set(err, ERR_IO, "cannot write the lock file %s: %s", path, strerror(errno));
		goto out;
	}
	*ret_epoch = epoch;
	r = fd;
	fd = -1;
out:
	if (fd >= 0)
		close(fd);
	free(path);
	return r;
}

void svc_notify(const char *fmt, ...)
{
	char text[512];
	va_list ap;
	if (!getenv("NOTIFY_SOCKET"))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	sd_notify(0, text);
}

/* The file that marks a start as not yet good: RUNTIME_DIRECTORY/UNIT.starting, with the seconds
 * waited before it. "": no service manager starts this process again. */
static char starting[256];

static void find_starting(const char *program)
{
	const char *dir = getenv("RUNTIME_DIRECTORY");
	char *unit = NULL;
	if (!dir || !getenv("NOTIFY_SOCKET"))
		return;
	sd_pid_get_unit(0, &unit);
	int n = snprintf(starting, sizeof starting, "%s/%s.starting", dir, unit ? unit : program);
	if (n >= (int)sizeof starting)
		starting[0] = 0;
	free(unit);
}

void svc_start_pause(const char *program)
{
	find_starting(program);
	FILE *f = starting[0] ? fopen(starting, "re") : NULL;
	unsigned s = 0;
	struct stat st;
	if (f && fstat(fileno(f), &st) == 0 &&
	    clock_unix_us() / 1000000 < (uint64_t)st.st_mtime + START_FORGET_S) {
		s = fscanf(f, "%u", &s) == 1 && s ? 2 * s : 1;
		s = s < START_PAUSE_MAX_S ? s : START_PAUSE_MAX_S;
		svc_notify("STATUS=the last start failed, or did not live long; the next one is in %u s",
		           s);
		sleep(s);
	}
	if (f)
		fclose(f);
	if (starting[0] && (f = fopen(starting, "we"))) {
		fprintf(f, "%u\n", s);
		fclose(f);
	}
}

void svc_start_done(void)
{
	if (starting[0])
		unlink(starting);
}

uint64_t svc_watchdog_us(void)
{
	uint64_t us = 0;
	return sd_watchdog_enabled(0, &us) > 0 ? us : 0;
}
