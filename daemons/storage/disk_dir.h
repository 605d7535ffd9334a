/* disk_dir.h - the disk tier's folder: one process at a time, and nobody else's files.
 *
 * Files: lock (held with flock), state (text: format, flush, check), and of each segment heads-NNNN
 * and segment-NNNN (disk_segment.h). The state file is the mark of a folder that is ours: only a
 * folder with it, or without any file, is taken; a folder with files of others is refused by their
 * names and left as it is.
 *
 * `flush` is a sequence number: heads below it name nothing. A crash leaves the state file as it
 * was before or after a change, never between. */
#ifndef STORAGE_DISK_DIR_H
#define STORAGE_DISK_DIR_H

#include "util/err.h"

#include <stdint.h>

struct disk_dir {
	char *path;
	int lock_fd;
	int sync; /* what is acknowledged has reached the device */
};

/* Makes the folder if need be, locks it, reads its state; deletes what has another format, or a
 * state that does not hold. ERR_EXISTS: it is in use, or others have files in it; ERR_FULL,
 * ERR_IO: it cannot be made, read or written. */
int disk_dir_open(struct disk_dir *d, const char *path, int sync, uint64_t *ret_flush,
                  struct err *err);
void disk_dir_close(struct disk_dir *d);
/* Makes `flush` last: when it returns 0 it is on the device. Or an errno. */
int disk_dir_flush(const struct disk_dir *d, uint64_t flush);
/* The names of its files reach the device. 0, or -1 with errno. */
int disk_dir_sync(const struct disk_dir *d);
/* To be freed: name "segment" or "heads". */
char *disk_dir_file(const struct disk_dir *d, const char *name, uint32_t number);
/* Every number that has a file heads-NNNN or segment-NNNN, as a bit of ret_there
 * (DISK_SEGMENTS_MAX bytes). 0 or an errno. */
int disk_dir_segments(const struct disk_dir *d, unsigned char *ret_there);

#endif
