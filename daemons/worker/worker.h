/* worker.h - what both stages share: one model on one device, its KV pool and prefix index, and its
 * links. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "links/attach.h"
#include "seq/tasks.h"
#include "engine/engine.h"
#include "links/events.h"
#include "links/peer_lists.h"
#include "links/peers.h"
#include "links/tell.h"
#include "links/routers.h"
#include "kv/pool.h"
#include "kv/region.h"
#include "kv/ring.h"
#include "storage/rates.h"
#include "storage/relay.h"
#include "role.h"
#include "storage/client.h"
#include "svc/svc.h"
#include "watch.h"
#include "storage/writeout.h"

/* rows for drafted tokens in one step, over all sequences, with speculative decoding */
#define WORKER_DRAFT_ROWS 64u

enum worker_tag { TAG_NONE, TAG_ROUTER, TAG_MESSAGER, TAG_STORAGE, TAG_WORKER };

struct stage_ops;

/* In the order of their names in the choices of the key. */
enum kv_eviction { EVICT_RECYCLE, EVICT_OFFLOAD, EVICT_WRITE_THROUGH };

/* Values of worker_keys; any thread may read them. Only role_switch_timeout_us changes, which is
 * the loop's. */
struct worker_conf {
	const char *model, *role, *backend, *variant, *kv_type, *activation_type, *messager, *storage;
	struct conf_items routers;
	int device, expert_parallel, overlap_steps, embeddings;
	uint32_t threads, tensor_parallel, pipeline_parallel, ranks_per_device, remote_stages,
		stage_port;
	/* pool */
	uint64_t kv_memory_bytes, constraint_memory_bytes;
	double kv_memory_fraction;
	uint32_t block_tokens, kv_blocks, ring_slots;
	/* steps and bounds */
	uint32_t max_batched_tokens, max_sequences, prefill_chunk_tokens, max_jobs, max_queued;
	uint64_t step_timeout_us;
	/* prefill */
	uint32_t prepare_threads, max_inflight_prefill;
	int share_running_prefix, prefill_srpt;
	uint64_t prefill_ageing_us, stall_us;
	/* decode */
	uint64_t lease_us, preempt_wait_us, restore_wait_us;
	double growth_ratio, growth_ratio_min;
	int save_preempted_kv, output_caching, speculative;
	uint32_t spec_tokens_max, spec_ngram_min;
	/* storage */
	enum kv_eviction kv_eviction;
	enum rates_mode storage_read;
	uint32_t offload_low_percent, write_through_after;
	uint64_t offload_wait_us, storage_lookup_wait_us, storage_read_wait_us;
	/* links */
	uint64_t kv_events_us, role_switch_timeout_us, resolve_us;
};

struct worker {
	struct svc *svc;
	struct worker_conf conf;
	enum worker_role role;
	struct role_switch sw;
	int drained; /* by pdctl, also before a restart: routers send nothing new */
	struct peer_lists peer_lists;
	struct tell_state tell;
	struct engine *engine;
	const struct engine_info *info;
	struct kv_region region;
	struct kv_pool *pool;
	struct events *events; /* NULL: no reports to routers */
	struct relay *relay;   /* NULL: no storage is configured */
	struct kv_hash root;   /* of prefix hashes */
	struct ring *ring;     /* NULL: no messager is configured */
	char layout[96];
	struct attach *messager_attach;
	struct peer *messager; /* NULL while its link is down */
	struct routers *routers;
	/* id of the last lease granted since the start; it is kept across role switches */
	uint64_t last_lease;
	struct store *store;             /* NULL: not configured */
	struct writeout *writeout;       /* NULL: no storage is configured */
	struct constraints *constraints; /* compiled ones, and the vocabulary */
	struct tasks *compiler;
	struct rates rates; /* measured rates of reading from storage and of computing */
	struct watch watch;
	const struct stage_ops *stage;
	void *state;               /* the stage's */
	uint32_t max_logits;       /* rows of logits of a step */
	_Atomic uint64_t progress; /* steps done, for the heartbeat */
	_Atomic uint64_t prompt_tokens, cached_tokens, generated_tokens, preemptions;
};

enum worker_stat {
	WS_PARKED,
	WS_DENIED,
	WS_SHARES,
	WS_SHARED_TOKENS,
	WS_FETCHES_ABANDONED,
	WS_SAVED_BLOCKS,
	WS_UNSAVED_BLOCKS,
	WS_SAVES_VOID,
	WS_SAVE_SECONDS,
	WS_RESTORES_READ,
	WS_RESTORES_COMPUTED,
	WS_RESTORES_KEPT,
	WS_RESTORES_ABANDONED,
	WS_RESTORED_BLOCKS,
	WS_RESTORE_SECONDS,
	WS_STEPS,
	WS_PROMPT_TOKENS,
	WS_CACHED_TOKENS,
	WS_STORED_TOKENS,
	WS_GENERATED_TOKENS,
	WS_PREEMPTIONS,
	WS_REQUESTS,
	WS_FAILED,
	WS_CANCELLED,
	WS_NOT_FINITE,
	WS_LEASES,
	WS_LEASES_LOST,
	WS_FENCES,
	WS_RUNNING,
	WS_WAITING,
	WS_BLOCKS_FREE,
	WS_BLOCKS_HELD,
	WS_DEVICE_BUSY,
	WS_DEVICE_STEPS,
	WS_KV_FAULTS,
	WS_STEP_SECONDS,
	WS_STEP_TOKENS,
	WS_RESERVE_SECONDS,
	WS_TRANSFER_SECONDS,
	WS_PREFILL_SECONDS,
	WS_KV_EVENTS,
	WS_KV_LISTS,
	WS_KV_OVERFLOWS,
	WS_RELAYED,
	WS_RELAY_ASKED,
	WS_RELAY_CUT,
	WS_RELAY_BAD,
	WS_ROLE_SWITCHES,
	WS_SPEC_DRAFTS,
	WS_SPEC_PROPOSED,
	WS_SPEC_ACCEPTED,
	WS_EVICTED_STORED,
	WS_EVICTED_LOST,
	WS_WRITTEN,
	WS_NOT_WRITTEN,
	WS_WRITES_VOID,
	WS_WRITE_SECONDS,
	WS_KEPT,
	WS_LOOKED_UP,
	WS_FOUND_MEMORY,
	WS_FOUND_DISK,
	WS_FOUND_REDIS,
	WS_READ_MEMORY,
	WS_READ_DISK,
	WS_READ_REDIS,
	WS_READ_SECONDS,
	WS_NOT_WORTH_READING,
	WS_READ_LATE,
	WS_QUEUED,
	WS_REFUSED,
	WS_QUEUE_SECONDS,
	WS_COUNT
};

/* Member of the object that a batch of the worker's store is for; the batch's `user` points to it.
 * answered is called with the completion, on the loop, and owns it. */
struct store_asker {
	void (*answered)(struct worker *w, struct store_asker *a, struct store_completion *c);
};

int worker_main(int argc, char **argv, const char *program, const char *default_name,
                enum worker_role default_role);
/* Tells the relay whether this worker, in its present role, reads from storage (then routers are
 * told what storage has) and writes to it. Call after each change of the role. */
void worker_relay_by_role(struct worker *w);
static inline struct worker *worker_of(struct svc *s)
{
	return svc_data(s);
}
/* Blocks for this many tokens. */
uint32_t worker_blocks_for(const struct worker *w, uint32_t tokens);
/* Tokens of the longest sequence whose KV is handed over: a slot of the ring has no room for more
 * blocks. */
uint32_t worker_handover_tokens(const struct worker *w);
/* 0, or ERR_FULL: a sequence of that length is not handed over. */
int worker_check_handover(const struct worker *w, uint32_t tokens, struct err *err);

/* config.c, ctl.c: tables for worker.c */
extern const struct conf_key worker_keys[];
extern const struct stat_def worker_stats[WS_COUNT];
extern const struct svc_ctl worker_ctl[];
void worker_status(struct svc *s, struct buf *out); /* svc_hooks.status */
/* It was drained before it started. */
void worker_find_drained(struct worker *w);
/* Updates the metrics that the device counts. */
void worker_count_device(struct worker *w);

#endif
