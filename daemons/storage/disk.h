/* disk.h - the disk tier: blocks in preallocated segment files (disk_segment.h) in a folder of a
 * local file system, with an index in memory. Acknowledged blocks survive kill -9, and with `sync`
 * a crash of the machine; the next process that opens the folder finds them.
 *
 * The folder belongs to this tier alone: it accepts only an empty folder or one with our mark (the
 * file `state`). In a marked folder, invalid files with our names are deleted. A folder with other
 * files is rejected and left unchanged. */
#ifndef STORAGE_DISK_H
#define STORAGE_DISK_H

#include "tier.h"

struct disk_calls;

/* 0 selects the default where one is given. */
struct tier_disk_opts {
	const char *path; /* copied; created if missing, its parent must exist */
	/* of all slots together, at least 1 MiB; heads add 64 bytes per slot */
	uint64_t capacity_bytes;
	/* of a new segment file, default 256 MiB; limited to 1/256 .. 1/8 of the capacity, at least one
	 * block, at most 1,048,576 blocks */
	uint64_t segment_bytes;
	/* concurrent reads and writes on the device, 1-256, default 16. Also the number of buffers, up
	 * to twice as many while they total at most 16 MiB; at most 256 MiB */
	unsigned depth;
	/* threads that copy, verify and submit with io_uring, 1-16, default 1; without io_uring:
	 * `depth` threads that read and write */
	unsigned threads;
	/* "auto" or NULL: io_uring if available, else threads; "io_uring"; "threads" */
	const char *io;
	/* bypass the page cache (O_DIRECT) where the file system can, else drop pages after use; 0: use
	 * the page cache */
	int direct;
	/* data and head are on the device before a put is acknowledged */
	int sync;
	const struct disk_calls *calls; /* NULL: the system's; tests inject faults (disk_io.h) */
};

/* Reads the heads in the folder: about a second per million blocks; invalid ones are dropped with a
 * log line. Fails with a message if the folder cannot be created, read or written, if another
 * process uses it or it contains other files (ERR_EXISTS), or if an option is out of range
 * (ERR_INVALID). */
int tier_disk_new(const struct tier_disk_opts *o, struct tier **ret, struct err *err);

#endif
