/* disk_dir.h - the disk tier's folder: used by one process at a time, without other files.
 *
 * Files: lock (held with flock), state (text: format, flush, check), and per segment heads-NNNN and
 * segment-NNNN (disk_segment.h). The state file marks a folder as ours: only a folder with it, or
 * an empty one, is accepted; a folder with other files is rejected with their names and left
 * unchanged.
 *
 * `flush` is a sequence number: heads below it are invalid. A change of the state file is atomic
 * across a crash. */
#ifndef STORAGE_DISK_DIR_H
#define STORAGE_DISK_DIR_H

#include "util/err.h"

#include <stdint.h>

struct disk_dir {
	char *path;
	int lock_fd;
	int sync; /* acknowledged means on the device */
};

/* Creates the folder if needed, locks it and reads its state; deletes the files if they have
 * another format or the state is invalid. ERR_EXISTS: in use, or it contains other files; ERR_FULL,
 * ERR_IO: it cannot be created, read or written. */
int disk_dir_open(struct disk_dir *d, const char *path, int sync, uint64_t *ret_flush,
                  struct err *err);
void disk_dir_close(struct disk_dir *d);
/* Persists `flush`: on the device when it returns 0. Else an errno. */
int disk_dir_flush(const struct disk_dir *d, uint64_t flush);
/* Syncs the folder, so that new file names are on the device. 0, or -1 with errno. */
int disk_dir_sync(const struct disk_dir *d);
/* Path of a file; name is "segment" or "heads". The caller frees it. */
char *disk_dir_file(const struct disk_dir *d, const char *name, uint32_t number);
/* Sets ret_there[number] (DISK_SEGMENTS_MAX bytes) for every number that has a file heads-NNNN or
 * segment-NNNN. 0 or an errno. */
int disk_dir_segments(const struct disk_dir *d, unsigned char *ret_there);

#endif
