/* keys.c - the configuration of pdstoraged: every key with its default, range, unit and meaning. */
#include "storage.h"
#include "redis.h"

#define POLICIES "auto|recycle|offload|write_through"

const struct conf_key storage_keys[] = {
	{"memory_mb", CONF_INT, "1024", 0, 16777216, "MiB", 1,
     "host memory for stored blocks; taken at start (half a second for a gigabyte); 0: none (from "
     "or to 0: restart)",
     NULL},
	{"memory_eviction", CONF_STRING, "auto", 0, 16, "", 1,
     "what becomes of blocks for which memory has no room: recycle drops the least recently used; "
     "offload copies them to the next tier before; write_through copies a "
     "block there once it was hit memory_write_through_after times; auto: offload where a lower "
     "tier is configured, else recycle",
     POLICIES},
	{"memory_write_through_after", CONF_INT, "2", 0, 1000000, "hits", 1,
     "with write_through; 0: as soon as it is stored", NULL},
	{"memory_offload_percent", CONF_INT, "10", 1, 90, "%", 1,
     "with offload: the share of memory that is kept free or copied to the next tier already",
     NULL},
	{"disk_path", CONF_STRING, "", 0, 4000, "bytes", 0,
     "folder of the disk tier, for this daemon alone; made if it is missing (not its parent); "
     "empty: no disk tier",
     NULL},
	{"disk_mb", CONF_INT, "16384", 1, 1073741824, "MiB", 1,
     "disk space for stored blocks; their heads come on top, 64 bytes per block. About 90 bytes of "
     "memory per block",
     NULL},
	{"disk_segment_mb", CONF_INT, "0", 0, 65536, "MiB", 0,
     "size of the files that blocks are in; 0: 256 MiB, or an eighth of disk_mb if that is less",
     NULL},
	{"disk_depth", CONF_INT, "16", 1, 256, "operations", 0,
     "reads and writes that the device has at a time", NULL},
	{"disk_threads", CONF_INT, "1", 1, 16, "threads", 0,
     "threads that copy and check blocks of the disk tier", NULL},
	{"disk_io", CONF_STRING, "auto", 0, 16, "", 0,
     "how the disk is read and written; auto: io_uring where the system allows it, else threads",
     "auto|io_uring|threads"},
	{"disk_direct", CONF_BOOL, "true", 0, 0, "", 0,
     "past the page cache (O_DIRECT) where the file system can", NULL},
	{"disk_sync", CONF_BOOL, "false", 0, 0, "", 0,
     "a block counts as stored on disk only when the device has it: then it survives a crash of "
     "the machine too",
     NULL},
	{"disk_eviction", CONF_STRING, "auto", 0, 16, "", 1, "as memory_eviction, from disk to Redis",
     POLICIES},
	{"disk_write_through_after", CONF_INT, "2", 0, 250, "hits", 1,
     "with write_through; 0: as soon as it is stored", NULL},
	{"disk_offload_percent", CONF_INT, "10", 1, 90, "%", 1,
     "with offload: the share of the disk tier that is kept free or copied to Redis already", NULL},
	{"redis", CONF_STRING, "", 0, 256, "bytes", 0,
     "a Redis or Valkey that hosts share: HOST:PORT or unix:/PATH; empty: none. Its size is its "
     "own maxmemory",
     NULL},
	{"redis_username", CONF_STRING, "", 0, 128, "bytes", 0, "of Redis; empty: none", NULL},
	{"redis_password_file", CONF_STRING, "", 0, 4000, "bytes", 0,
     "file whose first line is the password; empty: none", NULL},
	{"redis_db", CONF_INT, "0", 0, 65535, "", 0, "number of the database", NULL},
	{"redis_prefix", CONF_STRING, TIER_REDIS_PREFIX, 1, 64, "bytes", 0, "of every key there", NULL},
	{"redis_ttl_s", CONF_INT, "0", 0, 31536000, "s", 0,
     "a block is gone this long after it was last put; 0: never", NULL},
	{"redis_timeout_ms", CONF_INT, "1000", 10, 60000, "ms", 0,
     "of every operation there; several in a row, or an answer that takes twice as long: it counts "
     "as away",
     NULL},
	{"redis_lookup_ms", CONF_INT, "10", 1, 60000, "ms", 0,
     "of a look-up there, which requests wait for", NULL},
	{"redis_depth", CONF_INT, "16", 1, 1024, "operations", 0, "operations that it has at a time",
     NULL},
	{"threads", CONF_INT, "1", 1, 64, "threads", 0,
     "threads that copy blocks between workers and memory", NULL},
	{"workers_max", CONF_INT, "64", 1, 1024, "workers", 0, "workers attached at a time", NULL},
	{"kv_events_ms", CONF_INT, "10", 0, 60000, "ms", 0,
     "workers hear of what is stored and dropped at most this often; 0: not at all", NULL},
	CONF_END,
};
