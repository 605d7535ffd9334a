/* stats.c - the figures of pdstoraged for /metrics, in the order of enum storage_stat. */
#include "storage.h"

/* The figures of one tier, in the order of enum tier_stat_index. */
#define TIER_STATS(id, tier)                                                                       \
	[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                    \
		TS_BLOCKS] = {tier "_blocks", "Blocks in this tier.", STAT_GAUGE},                         \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_BYTES] = {tier "_bytes", "Bytes of the blocks in this tier.", STAT_GAUGE},          \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_CAPACITY] = {tier "_capacity_bytes", "Bytes that this tier may hold.", STAT_GAUGE}, \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_QUEUED] = {tier "_queued", "Operations waiting for this tier.", STAT_GAUGE},        \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_PUTS] = {tier "_puts_total", "Blocks offered to this tier.", STAT_COUNTER},         \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_KNOWN] = {tier "_known_total", "Of those, blocks it already had.", STAT_COUNTER},   \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_GETS] = {tier "_gets_total", "Blocks requested from this tier.", STAT_COUNTER},     \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_HITS] = {tier "_hits_total", "Of those, blocks found.", STAT_COUNTER},              \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_READ_BYTES] = {tier "_read_bytes_total", "Bytes read from this tier.",              \
	                          STAT_COUNTER},                                                       \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_WRITE_BYTES] = {tier "_write_bytes_total", "Bytes written to this tier.",           \
	                           STAT_COUNTER},                                                      \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_EVICTIONS] = {tier "_evictions_total", "Blocks dropped to make room.",              \
	                         STAT_COUNTER},                                                        \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_LOST] = {tier "_lost_total",                                                        \
	                    "Blocks evicted, damaged or vanished that no tier below "                  \
	                    "was known to have.",                                                      \
	                    STAT_COUNTER},                                                             \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_CORRUPT] = {tier "_corrupt_total", "Blocks with a checksum mismatch.",              \
	                       STAT_COUNTER},                                                          \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_FULL] = {tier "_full_total", "Blocks for which there was no room.", STAT_COUNTER},  \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_ERRORS] = {tier "_errors_total", "Operations that failed for another reason.",      \
	                      STAT_COUNTER},                                                           \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_COPIED_DOWN] = {tier "_copied_down_total", "Blocks copied to the tier below.",      \
	                           STAT_COUNTER},                                                      \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_COPY_FAILED] = {tier "_copy_failed_total", "Blocks the tier below did not accept.", \
	                           STAT_COUNTER},                                                      \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_PROMOTED] = {tier "_promoted_total", "Blocks of this tier copied up into memory.",  \
	                        STAT_COUNTER},                                                         \
		[ST_TIERS + (id - TIER_MEMORY) * TS_COUNT +                                                \
			TS_PREFETCHED] = {tier "_prefetched_total",                                            \
	                          "Of those, prefetched before a worker requested them.",              \
	                          STAT_COUNTER}

const struct stat_def storage_stats[ST_COUNT] = {
	[ST_PUT_BLOCKS] = {"put_blocks_total", "Blocks whose put was acknowledged.", STAT_COUNTER},
	[ST_PUT_BYTES] = {"put_bytes_total", "Bytes copied from workers' blocks and stored.",
                      STAT_COUNTER},
	[ST_PUT_VOID] = {"void_total", "Blocks whose generation changed before the copy was complete.",
                     STAT_COUNTER},
	[ST_GETS_HIT] = {"hits_total", "Blocks found, verified and copied into workers.", STAT_COUNTER},
	[ST_GETS_MISSED] = {"misses_total", "Requested blocks that are not stored.", STAT_COUNTER},
	[ST_GET_BYTES] = {"get_bytes_total", "Bytes copied into workers' blocks.", STAT_COUNTER},
	[ST_LOOKUPS] = {"lookups_total", "Lookups.", STAT_COUNTER},
	[ST_CANCELLED] = {"cancelled_total", "Blocks of cancelled batches.", STAT_COUNTER},
	[ST_FULL] = {"full_total", "Blocks for which there was no room.", STAT_COUNTER},
	[ST_ERRORS] = {"errors_total", "Blocks that failed for another reason.", STAT_COUNTER},
	[ST_REFUSED] = {"refused_total", "Batches refused as a whole.", STAT_COUNTER},
	[ST_EVICTIONS] = {"evictions_total", "Blocks dropped to make room.", STAT_COUNTER},
	[ST_CORRUPT] = {"corrupt_total", "Stored blocks dropped for a checksum mismatch.",
                    STAT_COUNTER},
	[ST_BLOCKS] = {"blocks", "Blocks stored.", STAT_GAUGE},
	[ST_BYTES] = {"bytes", "Bytes of the blocks stored.", STAT_GAUGE},
	[ST_CAPACITY] = {"capacity_bytes", "Bytes that all tiers may hold.", STAT_GAUGE},
	[ST_WORKERS] = {"workers", "Workers whose memory is mapped.", STAT_GAUGE},
	[ST_BATCHES] = {"batches", "Batches in progress.", STAT_GAUGE},
	[ST_PUT_SECONDS] = {"put_seconds", "From a put's arrival to its answer.", STAT_SECONDS},
	[ST_GET_SECONDS] = {"get_seconds", "From a get's arrival to its answer.", STAT_SECONDS},
	[ST_KV_EVENTS] = {"kv_events_total", "Stored or dropped keys reported to workers.",
                      STAT_COUNTER},
	[ST_KV_LISTS] = {"kv_lists_total", "Full lists of keys started.", STAT_COUNTER},
	[ST_KV_OVERFLOWS] = {"kv_overflows_total", "Full lists started because a worker fell behind.",
                         STAT_COUNTER},
	TIER_STATS(TIER_MEMORY, "memory"),
	TIER_STATS(TIER_DISK, "disk"),
	TIER_STATS(TIER_REDIS, "redis"),
};
