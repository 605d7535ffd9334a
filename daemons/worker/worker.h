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
/* Longest draft of a sequence. Its actual length follows from its acceptance rate and the cost of a
 * row, and is seldom half of this. */
#define WORKER_DRAFT_TOKENS 16u

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
	int prefill_srpt;
	uint64_t prefill_ageing_us, stall_us;
	/* decode */
	uint64_t lease_us, preempt_wait_us, restore_wait_us;
	double growth_ratio;
	int save_preempted_kv, output_caching, speculative;
	uint32_t spec_ngram_min;
	/* storage */
	enum kv_eviction kv_eviction;
	enum rates_mode storage_read;
	uint32_t offload_low_percent, write_through_after;
	uint64_t offload_wait_us, storage_lookup_wait_us, storage_read_wait_us;
	/* links */
	uint64_t kv_events_us, role_switch_timeout_us, resolve_us;
};

/* The numbers of worker_stats; several threads count. */
struct worker_stats {
	/* steps and requests */
	_Atomic uint64_t steps, prompt_tokens, cached_tokens, stored_tokens, generated_tokens, requests,
		failed, cancelled, not_finite, role_switches;
	struct stat_seconds step_seconds, prefill_seconds;
	struct stat_sizes step_tokens;
	/* prefill */
	_Atomic uint64_t parked, denied, shares, shared_tokens;
	struct stat_seconds reserve_seconds;
	/* decode */
	_Atomic uint64_t leases, leases_lost, fences, queued, refused, spec_drafts, spec_proposed,
		spec_accepted, kept;
	struct stat_seconds queue_seconds, transfer_seconds;
	_Atomic uint64_t preemptions, saved_blocks, unsaved_blocks, saves_void, restores_read,
		restores_computed, restores_kept, restores_abandoned, restored_blocks;
	struct stat_seconds save_seconds, restore_seconds;
	/* storage */
	_Atomic uint64_t written, not_written, writes_void, not_worth_reading, read_late,
		fetches_abandoned;
	struct stat_seconds write_seconds, read_seconds;
	struct events_stats events;
	struct relay_stats relay;
	/* as of the last heartbeat or page */
	uint64_t running, waiting, blocks_free, blocks_held, evicted_stored, evicted_lost,
		device_busy_us, device_steps, kv_faults;
	struct store_counts store;
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
	struct worker_stats stats;
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
extern const struct stat_row worker_stats[];
extern const struct svc_ctl worker_ctl[];
void worker_status(struct svc *s, struct buf *out); /* svc_hooks.status */
/* It was drained before it started. */
void worker_find_drained(struct worker *w);
/* Updates the metrics that the device counts. */
void worker_count_device(struct worker *w);

#endif
