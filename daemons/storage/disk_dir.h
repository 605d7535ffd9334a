/* disk_dir.h - the disk tier's folder: one process at a time, and what the one before left it in.
 *
 * Files: lock (held with flock), state (text: format, boot, sync, clean), index and index-lock (LMDB), segment-NNNN. */
#ifndef STORAGE_DISK_DIR_H
#define STORAGE_DISK_DIR_H

#include "util/err.h"

#include <stdint.h>

struct disk_dir {
	char *path;
	int lock_fd;
	int sync;
};

/* Makes the folder if need be, locks it, and deletes what cannot be used: of another format, left by a crash of the machine without sync, or damaged. Then marks it in use. */
int disk_dir_open(struct disk_dir *d, const char *path, int sync, struct err *err);
/* clean: everything is on the device and nothing will be written any more. Unlocks. */
void disk_dir_close(struct disk_dir *d, int clean);
/* Deletes index and segments, with a log line that says why. */
int disk_dir_begin_anew(struct disk_dir *d, const char *why, struct err *err);
/* The names of its files reach the device. */
int disk_dir_sync(const struct disk_dir *d);
/* To be freed. */
char *disk_dir_segment_path(const struct disk_dir *d, uint32_t number);
/* Deletes segment files that `known` does not want. */
void disk_dir_sweep(struct disk_dir *d, int (*known)(void *arg, uint32_t number), void *arg);

#endif
