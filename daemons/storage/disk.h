/* disk.h - the disk tier: blocks in a folder of a local file system, in preallocated segment files
 * (disk_segment.h), their index in memory. What it acknowledged survives kill -9 (and with `sync` a
 * crash of the machine), however it was ended; the next one on the same folder finds it.
 *
 * The folder is this tier's alone: only one that is empty or has our mark (the file `state`) is
 * taken. In one with the mark, what is there under our names and does not hold is deleted. A
 * folder with files of others is refused and left as it is. */
#ifndef STORAGE_DISK_H
#define STORAGE_DISK_H

#include "tier.h"

struct disk_calls;

/* 0 stands for the default where one is named. */
struct tier_disk_opts {
	const char *path; /* copied; made when missing, its parent must be there */
	/* of all slots together, 1 MiB or more; heads come on top: 64 bytes per slot */
	uint64_t capacity_bytes;
	/* of a new segment file, 256 MiB; between 1/256 and 1/8 of the capacity, at least one block,
	 * at most 1,048,576 */
	uint64_t segment_bytes;
	/* 1-256 reads and writes with the device at a time, 16; buffers: so many blocks, while they
	 * have 16 MiB at most twice as many; at most 256 MiB */
	unsigned depth;
	/* 1-16 threads that copy, check and submit with io_uring, 1; without it: `depth` threads
	 * that read and write */
	unsigned threads;
	/* "auto" or NULL: io_uring where it is allowed, else threads; "io_uring"; "threads" */
	const char *io;
	/* past the page cache (O_DIRECT) where the file system can, else pages are dropped after
	 * use; 0: not even that */
	int direct;
	/* data and head reach the device before a put is acknowledged */
	int sync;
	const struct disk_calls *calls; /* NULL: the system's; tests put faults in (disk_io.h) */
};

/* Reads the heads of what is in the folder: about a second for a million blocks; what does not hold
 * is dropped with a log line. Fails with a sentence when the folder cannot be made, read or
 * written, another process has it or it has files of others (ERR_EXISTS), or an option is out of
 * range (ERR_INVALID). */
int tier_disk_new(const struct tier_disk_opts *o, struct tier **ret, struct err *err);

#endif
