/* disk_dir.c - the folder of the disk tier: lock, state file, segment files' names.
 *
 * The state file is replaced whole (written beside, synced, renamed). It says in which boot of the machine the folder was last used, whether commits were
 * synced, and whether it was closed in order. Only what was neither synced nor closed is in doubt after a crash of the machine: data and index may then have reached
 * the device in any order, and all of it is dropped. A crash of the process alone leaves nothing in doubt: the kernel has what was written.
 *
 * The state file is also the mark of a folder that is ours. Only a folder with it, or without any file, is taken; a file of others in it is never deleted, but
 * makes the start refuse the folder and name the file. */
#include "disk_dir.h"
#include "disk_index.h"
#include "disk_record.h"

#include "util/log.h"
#include "util/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT 1
#define BOOT_BYTES 48
#define LOCK_TRIES 50
#define LOCK_PAUSE_US 10000
#define NAMED_MAX 3u      /* files of others, in a message */

struct state {
	unsigned format;
	char boot[BOOT_BYTES];
	int sync, clean;
};

char *disk_dir_segment_path(const struct disk_dir *d, uint32_t number)
{
	return mem_printf("%s/segment-%04u", d->path, number);
}

/* --- the state file --- */

static void boot_read(char boot[BOOT_BYTES])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	if (!f || fscanf(f, "%47s", boot) != 1)
		snprintf(boot, BOOT_BYTES, "unknown");
	if (f)
		fclose(f);
}

/* 0: there is none that can be understood. */
static int state_read(const struct disk_dir *d, struct state *s)
{
	char *path = mem_printf("%s/state", d->path);
	FILE *f = fopen(path, "re");
	int n = f ? fscanf(f, "format %u boot %47s sync %d clean %d", &s->format, s->boot, &s->sync, &s->clean) : 0;
	if (f)
		fclose(f);
	free(path);
	return n == 4;
}

int disk_dir_sync(const struct disk_dir *d)
{
	int fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = fd < 0 ? -1 : fsync(fd);
	if (fd >= 0)
		close(fd);
	return r;
}

static int state_write(const struct disk_dir *d, int clean)
{
	char boot[BOOT_BYTES];
	char *path = mem_printf("%s/state", d->path), *beside = mem_printf("%s/state.new", d->path);
	boot_read(boot);
	FILE *f = fopen(beside, "we");
	int ok = f && fprintf(f, "format %d\nboot %s\nsync %d\nclean %d\n", FORMAT, boot, d->sync, clean) > 0 && fflush(f) == 0 && fsync(fileno(f)) == 0;
	int e = errno;
	if (f && fclose(f) != 0 && ok) {
		ok = 0;
		e = errno;
	}
	if (ok && rename(beside, path) != 0) {
		ok = 0;
		e = errno;
	}
	if (ok)
		disk_dir_sync(d);
	else
		unlink(beside);
	free(path);
	free(beside);
	return ok ? 0 : e;
}

/* Why what is there cannot be used; NULL: it can. */
static const char *state_doubt(const struct disk_dir *d)
{
	struct state s;
	char boot[BOOT_BYTES];
	boot_read(boot);
	if (!state_read(d, &s))
		return "its state file is missing or not readable";
	if (s.format != FORMAT)
		return "it has another format";
	if (!s.clean && !s.sync && (strcmp(s.boot, boot) != 0 || strcmp(boot, "unknown") == 0))
		return "the machine went down while it was in use, without disk_sync";
	return NULL;
}

/* --- files --- */

/* The number of a segment file, or -1. */
static long segment_number(const char *name)
{
	char *end;
	if (strncmp(name, "segment-", 8) != 0 || name[8] < '0' || name[8] > '9')
		return -1;
	long n = strtol(name + 8, &end, 10);
	return *end || n < 0 || n >= (long)DISK_SEGMENTS_MAX ? -1 : n;
}

void disk_dir_sweep(struct disk_dir *d, int (*known)(void *arg, uint32_t number), void *arg)
{
	DIR *dir = opendir(d->path);
	if (!dir)
		return;
	for (struct dirent *e; (e = readdir(dir)) != NULL;) {
		long n = segment_number(e->d_name);
		if (n >= 0 && !(known && known(arg, (uint32_t)n)))
			unlinkat(dirfd(dir), e->d_name, 0);
	}
	closedir(dir);
}

int disk_dir_begin_anew(struct disk_dir *d, const char *why, struct err *err)
{
	static const char *const name[] = {"index", "index-lock"};
	log_warn("disk_begun_anew", "path=%s reason=%s", log_quote(d->path), log_quote(why));
	for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
		char *path = mem_printf("%s/%s", d->path, name[i]);
		int r = unlink(path) == 0 || errno == ENOENT ? 0 : err_set(err, ERR_IO, "cannot delete %s: %s", path, strerror(errno));
		free(path);
		if (r != 0)
			return r;
	}
	disk_dir_sweep(d, NULL, NULL);
	return 0;
}

/* May be in a folder of ours; the first ones also before it has the mark, when a start was killed ("lost+found": the folder is a file system of its own). */
static int name_is_ours(const char *name, int marked)
{
	static const char *const known[] = {".", "..", "lock", "state.new", "lost+found", "state", "index", "index-lock"};
	enum { BEFORE_MARK = 5, ALL = sizeof known / sizeof known[0] };
	for (int i = 0; i < (marked ? ALL : BEFORE_MARK); i++)
		if (strcmp(name, known[i]) == 0)
			return 1;
	return marked && segment_number(name) >= 0;
}

/* Before anything is written to it or deleted from it. */
static int folder_is_ours(const char *path, struct err *err)
{
	char *mark = mem_printf("%s/state", path), names[160] = "";
	int marked = access(mark, F_OK) == 0;
	unsigned n = 0;
	free(mark);
	DIR *dir = opendir(path);
	if (!dir)
		return err_set(err, ERR_IO, "cannot read the folder %s: %s", path, strerror(errno));
	for (struct dirent *e; (e = readdir(dir)) != NULL;)
		if (!name_is_ours(e->d_name, marked) && n++ < NAMED_MAX) {
			size_t at = strlen(names);
			snprintf(names + at, sizeof names - at, "%s%.40s", at ? ", " : "", e->d_name);
		}
	closedir(dir);
	if (!n)
		return 0;
	return err_set(err, ERR_EXISTS, "%s%s in the folder %s: not of a disk tier; set disk_path to an empty folder, or remove them", names, n > NAMED_MAX ? ", ..." : "",
	               path);
}

/* --- open and close --- */

/* A process that was just killed may leave a child that has not closed its copy yet; that takes moments, and so long it is waited for. */
static int lock_take(int fd)
{
	int r = flock(fd, LOCK_EX | LOCK_NB);
	for (int i = 0; r != 0 && errno == EWOULDBLOCK && i < LOCK_TRIES; i++) {
		usleep(LOCK_PAUSE_US);
		r = flock(fd, LOCK_EX | LOCK_NB);
	}
	return r;
}

static int folder_lock(struct disk_dir *d, struct err *err)
{
	struct stat st;
	if (mkdir(d->path, 0700) != 0 && errno != EEXIST)
		return err_set(err, ERR_IO, "cannot make the folder %s: %s", d->path, strerror(errno));
	if (stat(d->path, &st) != 0)
		return err_set(err, ERR_IO, "cannot use the folder %s: %s", d->path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return err_set(err, ERR_IO, "%s is not a folder", d->path);
	int r = folder_is_ours(d->path, err);
	if (r != 0)
		return r;
	char *path = mem_printf("%s/lock", d->path);
	d->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (d->lock_fd < 0)
		r = err_set(err, ERR_IO, "cannot write to the folder %s: %s", d->path, strerror(errno));
	else if (lock_take(d->lock_fd) != 0)
		r = errno == EWOULDBLOCK ? err_set(err, ERR_EXISTS, "another process uses the folder %s", d->path)
		                         : err_set(err, ERR_IO, "cannot lock %s: %s", path, strerror(errno));
	free(path);
	return r;
}

/* What is there is whole, or is deleted. */
static int folder_check(struct disk_dir *d, struct err *err)
{
	struct err why = {0};
	struct stat st;
	char *index = mem_printf("%s/index", d->path);
	int error = stat(index, &st) == 0 ? 0 : errno;
	if (error && error != ENOENT)   /* segments are only swept when there is no index for certain */
		err_set(err, ERR_IO, "cannot look at %s: %s", index, strerror(error));
	free(index);
	if (error && error != ENOENT)
		return ERR_IO;
	if (error) {
		disk_dir_sweep(d, NULL, NULL);
		return 0;
	}
	const char *doubt = state_doubt(d);
	if (doubt)
		return disk_dir_begin_anew(d, doubt, err);
	int r = disk_index_check(d->path, &why);
	if (r == ERR_CORRUPT) {
		err_prefix(&why, "the index is damaged");
		return disk_dir_begin_anew(d, why.text, err);
	}
	return r == 0 ? 0 : err_set(err, r, "%s", why.text);
}

int disk_dir_open(struct disk_dir *d, const char *path, int sync, struct err *err)
{
	*d = (struct disk_dir){.path = mem_strdup(path), .lock_fd = -1, .sync = sync};
	int r = folder_lock(d, err);
	if (r == 0)
		r = folder_check(d, err);
	if (r == 0) {
		if (sync)
			syncfs(d->lock_fd);   /* what the one before wrote without */
		int e = state_write(d, 0);
		if (e)
			r = err_set(err, e == ENOSPC || e == EDQUOT ? ERR_FULL : ERR_IO, "cannot write %s/state: %s", d->path, strerror(e));
	}
	if (r != 0)
		disk_dir_close(d, 0);
	return r;
}

void disk_dir_close(struct disk_dir *d, int clean)
{
	if (clean)
		state_write(d, 1);   /* if it cannot be said, it counts as a crash */
	if (d->lock_fd >= 0)
		close(d->lock_fd);
	free(d->path);
	d->path = NULL;
	d->lock_fd = -1;
}
