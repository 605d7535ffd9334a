/* disk_dir.c - the folder of the disk tier: lock, state file, list of files.
 *
 * The state file is replaced atomically: a new one is written, synced and renamed, and the folder
 * synced. Nothing is deleted before the folder is known to be ours. */
#include "disk_dir.h"
#include "disk_index.h"

#include "util/log.h"
#include "util/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define FORMAT 2
#define LOCK_TRIES 50
#define LOCK_PAUSE_US 10000
#define NAMED_MAX 3u /* foreign files listed in a message */

char *disk_dir_file(const struct disk_dir *d, const char *name, uint32_t number)
{
	return mem_printf("%s/%s-%04u", d->path, name, number);
}

/* --- the state file --- */

static uint64_t state_check(unsigned format, uint64_t flush)
{
	uint64_t all[2] = {format, flush};
	return XXH3_64bits(all, sizeof all);
}

/* Returns NULL, or why the state cannot be used. */
static const char *state_read(const struct disk_dir *d, uint64_t *ret_flush)
{
	char *path = mem_printf("%s/state", d->path);
	FILE *f = fopen(path, "re");
	unsigned format = 0;
	uint64_t flush = 0, check = 0;
	int n = f ? fscanf(f, "format %u flush %" SCNu64 " check %" SCNx64, &format, &flush, &check)
	          : 0;
	if (f)
		fclose(f);
	free(path);
	if (n >= 1 && format != FORMAT)
		return "it has another format";
	if (n != 3 || check != state_check(format, flush) || flush > DISK_SEQ_MAX)
		return "its state file is missing or unreadable";
	*ret_flush = flush;
	return NULL;
}

int disk_dir_sync(const struct disk_dir *d)
{
	int fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = fd < 0 ? -1 : fsync(fd);
	if (fd >= 0)
		close(fd);
	return r;
}

int disk_dir_flush(const struct disk_dir *d, uint64_t flush)
{
	char *path = mem_printf("%s/state", d->path), *beside = mem_printf("%s/state.new", d->path);
	FILE *f = fopen(beside, "we");
	int ok = f &&
	         fprintf(f, "format %d\nflush %" PRIu64 "\ncheck %016" PRIx64 "\n", FORMAT, flush,
	                 state_check(FORMAT, flush)) > 0 &&
	         fflush(f) == 0 && fsync(fileno(f)) == 0;
	int e = ok ? 0 : errno;
	if (f && fclose(f) != 0 && e == 0)
		e = errno;
	if (e == 0 && (rename(beside, path) != 0 || disk_dir_sync(d) != 0))
		e = errno;
	if (e != 0)
		unlink(beside);
	free(path);
	free(beside);
	return e;
}

/* --- files --- */

/* The number of a file of that name, or -1. */
static long file_number(const char *file, const char *name)
{
	size_t n = strlen(name);
	char *end;
	if (strncmp(file, name, n) != 0 || file[n] != '-' || file[n + 1] < '0' || file[n + 1] > '9')
		return -1;
	long number = strtol(file + n + 1, &end, 10);
	return *end || number < 0 || number >= (long)DISK_SEGMENTS_MAX ? -1 : number;
}

static long segment_number(const char *file)
{
	long n = file_number(file, "heads");
	return n >= 0 ? n : file_number(file, "segment");
}

int disk_dir_segments(const struct disk_dir *d, unsigned char *ret_there)
{
	DIR *dir = opendir(d->path);
	int e = dir ? 0 : errno;
	memset(ret_there, 0, DISK_SEGMENTS_MAX);
	errno = 0;
	for (struct dirent *at; dir && (at = readdir(dir)) != NULL;)
		if (segment_number(at->d_name) >= 0)
			ret_there[segment_number(at->d_name)] = 1;
	if (dir && errno)
		e = errno;
	if (dir)
		closedir(dir);
	return e;
}

/* Deletes everything but lock and state file. 0 or an errno. */
static int delete_all(const struct disk_dir *d, const char *why)
{
	DIR *dir = opendir(d->path);
	int e = dir ? 0 : errno;
	log_warn("disk_deleted", "path=%s reason=%s", log_quote(d->path), log_quote(why));
	for (struct dirent *at; dir && (at = readdir(dir)) != NULL;) {
		const char *name = at->d_name;
		int old = strcmp(name, "index") == 0 || strcmp(name, "index-lock") == 0; /* of format 1 */
		if ((old || segment_number(name) >= 0) && unlinkat(dirfd(dir), name, 0) != 0 &&
		    errno != ENOENT)
			e = errno;
	}
	if (dir)
		closedir(dir);
	return e;
}

/* Names allowed in our folder. The first five are also allowed before the state file exists,
 * because a process may be killed while starting ("lost+found": the folder is the root of a file
 * system). */
static int name_is_ours(const char *name, int marked)
{
	static const char *const known[] = {".",          "..",    "lock",  "state.new",
	                                    "lost+found", "state", "index", "index-lock"};
	enum { BEFORE_MARK = 5, ALL = sizeof known / sizeof known[0] };
	for (int i = 0; i < (marked ? ALL : BEFORE_MARK); i++)
		if (strcmp(name, known[i]) == 0)
			return 1;
	return marked && segment_number(name) >= 0;
}

/* Called before anything in the folder is written or deleted. */
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
	return err_set(err, ERR_EXISTS,
	               "%s%s in the folder %s: not disk tier files; set disk_path to an empty folder, "
	               "or remove them",
	               names, n > NAMED_MAX ? ", ..." : "", path);
}

/* --- open and close --- */

/* A killed process may leave a child that has not closed its copy of the descriptor yet, so the
 * lock is retried for half a second. */
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
		return err_set(err, ERR_IO, "cannot create the folder %s: %s", d->path, strerror(errno));
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
		r = errno == EWOULDBLOCK
		        ? err_set(err, ERR_EXISTS, "another process uses the folder %s", d->path)
		        : err_set(err, ERR_IO, "cannot lock %s: %s", path, strerror(errno));
	free(path);
	return r;
}

static int error_code(int e)
{
	return e == ENOSPC || e == EDQUOT ? ERR_FULL : ERR_IO;
}

/* Starts empty if the state is invalid or missing. */
static int state_open(const struct disk_dir *d, uint64_t *ret_flush, struct err *err)
{
	char *path = mem_printf("%s/state", d->path);
	int there = access(path, F_OK) == 0, error = there ? 0 : errno;
	free(path);
	if (error && error != ENOENT)
		return err_set(err, ERR_IO, "cannot access %s/state: %s", d->path, strerror(error));
	const char *why = there ? state_read(d, ret_flush) : NULL;
	if (there && !why)
		return 0;
	int e = there ? delete_all(d, why) : 0;
	if (e != 0)
		return err_set(err, ERR_IO, "cannot empty the folder %s: %s", d->path, strerror(e));
	*ret_flush = 0;
	e = disk_dir_flush(d, 0);
	return e == 0 ? 0
	              : err_set(err, error_code(e), "cannot write %s/state: %s", d->path, strerror(e));
}

int disk_dir_open(struct disk_dir *d, const char *path, int sync, uint64_t *ret_flush,
                  struct err *err)
{
	*d = (struct disk_dir){.path = mem_strdup(path), .lock_fd = -1, .sync = sync};
	int r = folder_lock(d, err);
	if (r == 0)
		r = state_open(d, ret_flush, err);
	if (r == 0 && sync)
		syncfs(d->lock_fd); /* data left unsynced by a daemon without disk_sync */
	if (r != 0)
		disk_dir_close(d);
	return r;
}

void disk_dir_close(struct disk_dir *d)
{
	if (d->lock_fd >= 0)
		close(d->lock_fd);
	free(d->path);
	d->path = NULL;
	d->lock_fd = -1;
}
