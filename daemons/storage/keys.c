/* keys.c - the configuration of pdstoraged: every key with its default, range, unit and meaning. */
#include "storage.h"

#define TO(field) CONF_TO(struct storage_conf, field)
#define US(field) CONF_US(struct storage_conf, field)
#define BYTES(field) CONF_BYTES(struct storage_conf, field)
#define POLICIES "auto|recycle|offload|write_through"

const struct conf_key storage_keys[] = {
	{"memory_mb", CONF_INT, "1024", 0, 16777216, "MiB", 1,
     "host memory for stored blocks; allocated at start (half a second per gigabyte); 0: none "
     "(changing from or to 0 needs a restart)",
     NULL, BYTES(memory_bytes)},
	{"memory_eviction", CONF_STRING, "auto", 0, 16, "", 1,
     "what to do with blocks when memory is full: recycle: drop the least recently used; "
     "offload: copy them to the next tier beforehand; write_through: copy a block there after "
     "write_through_after hits; auto: offload if a lower tier is configured, else "
     "recycle",
     POLICIES, TO(memory_eviction)},
	{"disk_path", CONF_STRING, "", 0, 4000, "bytes", 0,
     "folder of the disk tier, used by this daemon alone; created if missing (its parent must "
     "exist); empty: no disk tier",
     NULL, TO(disk.path)},
	{"disk_mb", CONF_INT, "16384", 1, 1073741824, "MiB", 1,
     "disk space for stored blocks, plus 64 bytes per block for heads; also needs about 90 bytes "
     "of memory per block",
     NULL, BYTES(disk.capacity_bytes)},
	{"disk_sync", CONF_BOOL, "false", 0, 0, "", 0,
     "acknowledge a block only when it is on the device, so that it survives a crash of the "
     "machine",
     NULL, TO(disk.sync)},
	{"disk_eviction", CONF_STRING, "auto", 0, 16, "", 1, "like memory_eviction, from disk to Redis",
     POLICIES, TO(disk_eviction)},
	{"write_through_after", CONF_INT, "2", 0, 250, "hits", 1,
     "hits before write_through copies a block to the next tier; 0: as soon as it is stored", NULL,
     TO(after)},
	{"offload_percent", CONF_INT, "10", 1, 90, "%", 1,
     "share of memory, and of the disk tier, that offload keeps free or already copied to the next "
     "tier",
     NULL, TO(low_percent)},
	{"redis", CONF_STRING, "", 0, 256, "bytes", 0,
     "address of a Redis or Valkey shared by hosts: HOST:PORT or unix:/PATH; empty: none. Its "
     "own maxmemory limits its size",
     NULL, TO(redis.address)},
	{"redis_username", CONF_STRING, "", 0, 128, "bytes", 0, "Redis user name; empty: none", NULL,
     TO(redis.username)},
	{"redis_password_file", CONF_STRING, "", 0, 4000, "bytes", 0,
     "file whose first line is the Redis password; empty: none", NULL, TO(redis_password_file)},
	{"redis_db", CONF_INT, "0", 0, 65535, "", 0, "number of the Redis database", NULL,
     TO(redis.db)},
	{"redis_prefix", CONF_STRING, TIER_REDIS_PREFIX, 1, 64, "bytes", 0, "prefix of all keys", NULL,
     TO(redis.prefix)},
	{"redis_ttl_s", CONF_INT, "0", 0, 31536000, "s", 0,
     "time until a block expires after its last put; 0: never", NULL, TO(redis.ttl_s)},
	{"redis_timeout_ms", CONF_INT, "1000", 10, 60000, "ms", 0,
     "limit of every Redis operation; Redis counts as away after several timeouts in a row or "
     "when a reply takes twice as long",
     NULL, TO(redis.timeout_ms)},
	{"redis_lookup_ms", CONF_INT, "10", 1, 60000, "ms", 0,
     "limit of a Redis look-up; requests wait for it", NULL, TO(redis.lookup_ms)},
	{"threads", CONF_INT, "1", 1, 64, "threads", 0,
     "threads that copy blocks between workers and memory", NULL, TO(threads)},
	{"workers_max", CONF_INT, "64", 1, 1024, "workers", 0, "most workers attached at a time", NULL,
     TO(workers_max)},
	{"kv_events_ms", CONF_INT, "10", 0, 60000, "ms", 0,
     "minimum interval between reports of stored and dropped blocks to workers; 0: no reports",
     NULL, US(kv_events_us)},
	CONF_GONE("memory_write_through_after", "it is write_through_after now, of memory and disk"),
	CONF_GONE("disk_write_through_after", "it is write_through_after now, of memory and disk"),
	CONF_GONE("memory_offload_percent", "it is offload_percent now, of memory and disk"),
	CONF_GONE("disk_offload_percent", "it is offload_percent now, of memory and disk"),
	CONF_GONE("disk_segment_mb", "it follows from disk_mb; remove the key"),
	CONF_GONE("disk_depth", "it is 16 now; remove the key"),
	CONF_GONE("disk_threads", "it is 1 now; remove the key"),
	CONF_GONE("disk_io", "io_uring is used where it is available; remove the key"),
	CONF_GONE("disk_direct", "O_DIRECT is used where the file system supports it; remove the key"),
	CONF_GONE("redis_depth", "it is 16 now; remove the key"),
	CONF_END,
};
