/* stats.c - the figures of pdstoraged for /metrics. */
#include "storage.h"

#define ROW(field, type, name, help) STAT_ROW(struct storage, stats.field, type, name, help)

#define TIER_ROWS(id, name)                                                                       \
	ROW(tier[id].tier.blocks, GAUGE, name "_blocks", "Blocks in this tier."),                     \
		ROW(tier[id].tier.bytes, GAUGE, name "_bytes", "Bytes of the blocks in this tier."),      \
		ROW(tier[id].tier.capacity_bytes, GAUGE, name "_capacity_bytes",                          \
	        "Bytes that this tier may hold."),                                                    \
		ROW(tier[id].tier.queued, GAUGE, name "_queued", "Operations waiting for this tier."),    \
		ROW(tier[id].tier.puts, COUNTER, name "_puts_total", "Blocks offered to this tier."),     \
		ROW(tier[id].tier.known, COUNTER, name "_known_total",                                    \
	        "Of those, blocks it already had."),                                                  \
		ROW(tier[id].tier.gets, COUNTER, name "_gets_total", "Blocks requested from this tier."), \
		ROW(tier[id].tier.hits, COUNTER, name "_hits_total", "Of those, blocks found."),          \
		ROW(tier[id].tier.read_bytes, COUNTER, name "_read_bytes_total",                          \
	        "Bytes read from this tier."),                                                        \
		ROW(tier[id].tier.write_bytes, COUNTER, name "_write_bytes_total",                        \
	        "Bytes written to this tier."),                                                       \
		ROW(tier[id].tier.evictions, COUNTER, name "_evictions_total",                            \
	        "Blocks dropped to make room."),                                                      \
		ROW(tier[id].tier.lost, COUNTER, name "_lost_total",                                      \
	        "Blocks evicted, damaged or vanished that no tier below was known to have."),         \
		ROW(tier[id].tier.corrupt, COUNTER, name "_corrupt_total",                                \
	        "Blocks with a checksum mismatch."),                                                  \
		ROW(tier[id].tier.full, COUNTER, name "_full_total",                                      \
	        "Blocks for which there was no room."),                                               \
		ROW(tier[id].tier.errors, COUNTER, name "_errors_total",                                  \
	        "Operations that failed for another reason."),                                        \
		ROW(tier[id].copied_down, COUNTER, name "_copied_down_total",                             \
	        "Blocks copied to the tier below."),                                                  \
		ROW(tier[id].copy_failed, COUNTER, name "_copy_failed_total",                             \
	        "Blocks the tier below did not accept."),                                             \
		ROW(tier[id].promoted, COUNTER, name "_promoted_total",                                   \
	        "Blocks of this tier copied up into memory."),                                        \
		ROW(tier[id].prefetched, COUNTER, name "_prefetched_total",                               \
	        "Of those, prefetched before a worker requested them.")

const struct stat_row storage_stats[] = {
	ROW(put_blocks, COUNTER, "put_blocks_total", "Blocks whose put was acknowledged."),
	ROW(put_bytes, COUNTER, "put_bytes_total", "Bytes copied from workers' blocks and stored."),
	ROW(put_void, COUNTER, "void_total",
        "Blocks whose generation changed before the copy was complete."),
	ROW(gets_hit, COUNTER, "hits_total", "Blocks found, verified and copied into workers."),
	ROW(gets_missed, COUNTER, "misses_total", "Requested blocks that are not stored."),
	ROW(get_bytes, COUNTER, "get_bytes_total", "Bytes copied into workers' blocks."),
	ROW(lookups, COUNTER, "lookups_total", "Lookups."),
	ROW(cancelled, COUNTER, "cancelled_total", "Blocks of cancelled batches."),
	ROW(full, COUNTER, "full_total", "Blocks for which there was no room."),
	ROW(errors, COUNTER, "errors_total", "Blocks that failed for another reason."),
	ROW(refused, COUNTER, "refused_total", "Batches refused as a whole."),
	ROW(evictions, COUNTER, "evictions_total", "Blocks dropped to make room."),
	ROW(corrupt, COUNTER, "corrupt_total", "Stored blocks dropped for a checksum mismatch."),
	ROW(blocks, GAUGE, "blocks", "Blocks stored."),
	ROW(bytes, GAUGE, "bytes", "Bytes of the blocks stored."),
	ROW(capacity, GAUGE, "capacity_bytes", "Bytes that all tiers may hold."),
	ROW(workers, GAUGE, "workers", "Workers whose memory is mapped."),
	ROW(batches, GAUGE, "batches", "Batches in progress."),
	ROW(put_seconds, SECONDS, "put_seconds", "From a put's arrival to its answer."),
	ROW(get_seconds, SECONDS, "get_seconds", "From a get's arrival to its answer."),
	ROW(kv_events, COUNTER, "kv_events_total", "Stored or dropped keys reported to workers."),
	ROW(kv_lists, COUNTER, "kv_lists_total", "Full lists of keys started."),
	ROW(kv_overflows, COUNTER, "kv_overflows_total",
        "Full lists started because a worker fell behind."),
	TIER_ROWS(TIER_MEMORY, "memory"),
	TIER_ROWS(TIER_DISK, "disk"),
	TIER_ROWS(TIER_REDIS, "redis"),
	STAT_END,
};
