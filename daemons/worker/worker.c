/* worker.c - a worker's life outside of its stage: configuration, model, pool, links to router,
 * messager and storage.
 *
 * The role chooses the stage: prefill runs the prefill stage; decode and mixed run the decode
 * stage, which prefills by itself what comes without a candidate. role.c switches it live.
 * Start-up problems are fatal with a sentence; afterwards nothing that a peer does is. */
#include "worker.h"
#include "seq/constraint.h"
#include "stage.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/json_load.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum worker_role default_role;

static const struct conf_key keys[] = {
	{"model", CONF_STRING, "", 0, 4096, "", 0,
     "GGUF file or Hugging Face folder; backend sim: a description as in etc/sim (required)", NULL},
	{"role", CONF_STRING, "default", 0, 16, "", 0,
     "what this worker does; default: by the program's name", "default|prefill|decode|mixed"},
	{"backend", CONF_STRING, "cpu", 0, 16, "", 0,
     "device backend; cuda: a GPU; sim: a simulated accelerator that computes nothing",
     "cpu|cuda|sim"},
	{"device", CONF_INT, "0", 0, 63, "", 0, "cuda: number of the GPU", NULL},
	{"variant", CONF_STRING, "auto", 0, 16, "", 0,
     "cpu: instruction set, or reference kernels; cuda: fast rounds activations as activation_type "
     "bf16 does and multiplies BF16 weights by cuBLASLt (CUDA 13); its tokens depend on the batch",
     "auto|reference|plain|avx2|avx512|avx512bf16|fast"},
	{"threads", CONF_INT, "0", 0, 256, "threads", 0,
     "compute threads; 0: one per core that the process may use", NULL},
	{"tensor_parallel", CONF_INT, "1", 1, 64, "processes", 0,
     "cpu: processes that share the model and its work, at most one per KV head; the threads are "
     "divided equally among them",
     NULL},
	{"kv_type", CONF_STRING, "bf16", 0, 8, "", 0,
     "element type of the KV cache; int8 and fp8 halve it and cost accuracy",
     "bf16|f16|f32|int8|fp8"},
	{"activation_type", CONF_STRING, "f32", 0, 4, "", 0,
     "type of activations in matrix products; bf16 is faster and less accurate: cpu: with BF16 "
     "weights only (AVX512_BF16); cuda: with BF16 and quantised weights, and attention",
     "f32|bf16"},
	{"block_tokens", CONF_INT, "64", 8, 256, "tokens", 0, "tokens of a KV block; a multiple of 8",
     NULL},
	{"kv_memory_mb", CONF_INT, "0", 0, 1048576, "MiB", 0,
     "memory of the KV pool; 0: 512; cuda: kv_memory_fraction of the free memory", NULL},
	{"kv_memory_fraction", CONF_FLOAT, "0.9", 0.01, 0.99, "", 0,
     "cuda: share of the GPU memory that is free after the model and the steps' memory are "
     "allocated",
     NULL},
	{"kv_blocks", CONF_INT, "0", 0, 1048576, "blocks", 0,
     "size of the KV pool; 0: derived from kv_memory_mb or kv_memory_fraction", NULL},
	{"max_batched_tokens", CONF_INT, "512", 16, 65536, "tokens", 0, "token budget of one step",
     NULL},
	{"max_sequences", CONF_INT, "64", 1, 4096, "sequences", 0, "sequences decoding at once", NULL},
	{"prefill_chunk_tokens", CONF_INT, "128", 8, 65536, "tokens", 0,
     "decode and mixed: largest chunk of a prompt in a step that also decodes", NULL},
	{"prepare_threads", CONF_INT, "5", 1, 64, "threads", 0,
     "prefill: threads that match prefixes and take blocks", NULL},
	{"max_inflight_prefill", CONF_INT, "20", 1, 100000, "requests", 0,
     "prefill: reservations requested from one decode worker and not yet handed over; beyond that "
     "the next candidate is asked, or none",
     NULL},
	{"share_running_prefix", CONF_BOOL, "true", 0, 0, "", 0,
     "prefill: a prompt waits for blocks of its prefix that a running one is computing instead of "
     "computing them again",
     NULL},
	{"prefill_order", CONF_STRING, "fifo", 0, 8, "", 0,
     "prefill: which prompt is computed first: fifo, by arrival; srpt, least left to compute (with "
     "ageing)",
     "fifo|srpt"},
	{"prefill_ageing_ms", CONF_INT, "2000", 1, 600000, "ms", 0,
     "prefill: with srpt, a prompt that has waited this long goes before all that arrived later",
     NULL},
	{"max_jobs", CONF_INT, "1024", 1, 100000, "requests", 0,
     "requests held by a worker in any state; beyond that they are refused", NULL},
	{"constraint_memory_mb", CONF_INT, "256", 8, 1048576, "MiB", 0,
     "memory of compiled constraints, in use and cached; when full, the least recently used are "
     "dropped, then new ones are refused",
     NULL},
	{"ring_slots", CONF_INT, "128", 1, 1024, "slots", 0,
     "prefill: transfers in flight; allocated for every role, so that the role can be switched",
     NULL},
	{"lease_ms", CONF_INT, "3000", 300, 600000, "ms", 0,
     "decode: lifetime of a reservation that is not renewed (P renews it every third of this "
     "time, or every 400 ms if that is less)",
     NULL},
	{"stall_ms", CONF_INT, "5000", 100, 600000, "ms", 0,
     "prefill: longest wait for the messager after the last token was computed", NULL},
	{"step_timeout_ms", CONF_INT, "60000", 0, 86400000, "ms", 0,
     "a step that completes no layer within this time hangs: the process exits at once, for its "
     "service manager to restart it; 0: never",
     NULL},
	{"max_queued", CONF_INT, "256", 0, 100000, "reservations", 0,
     "decode: reservations waiting for room; beyond that they are refused, with a Retry-After",
     NULL},
	{"growth_ratio", CONF_FLOAT, "0.7", 0, 1, "", 0,
     "decode: share of the tokens still allowed for which room is kept: the initial and the "
     "largest value",
     NULL},
	{"growth_ratio_min", CONF_FLOAT, "0.02", 0, 1, "", 0,
     "decode: smallest value of that share; above 0 each sequence keeps at least one block", NULL},
	{"growth_ratio_step", CONF_FLOAT, "0.001", 0, 1, "", 0,
     "decode: how much the share decreases in a step", NULL},
	{"growth_ratio_rise", CONF_FLOAT, "0.05", 0, 1, "", 0,
     "decode: how much the share increases in a step that preempts", NULL},
	{"save_preempted_kv", CONF_BOOL, "true", 0, 0, "", 0,
     "decode: write the KV of a preempted sequence to storage, to read it back later", NULL},
	{"preempt_wait_ms", CONF_INT, "50", 0, 60000, "ms", 0,
     "decode: longest wait until storage has written the blocks of preempted sequences; then they "
     "are reused without",
     NULL},
	{"restore_wait_ms", CONF_INT, "1000", 10, 600000, "ms", 0,
     "decode: longest wait for KV read back from storage (a look-up: a quarter of it); then it is "
     "recomputed in other blocks",
     NULL},
	{"growth_cap_tokens", CONF_INT, "4096", 1, 1048576, "tokens", 0,
     "decode: largest growth counted for one sequence", NULL},
	{"speculative", CONF_STRING, "off", 0, 8, "", 0,
     "decode: drafts of the next tokens, computed and checked in one step; the answer stays the "
     "same. ngram: what followed the same tokens earlier in prompt or answer; naive: no drafts",
     "off|naive|ngram"},
	{"spec_tokens_max", CONF_INT, "16", 1, 63, "tokens", 0,
     "decode: longest draft of a sequence; its actual length depends on the acceptance rate and "
     "the cost of a row",
     NULL},
	{"spec_ngram_min", CONF_INT, "2", 1, 8, "tokens", 0,
     "decode: shortest match of the last tokens with earlier ones for which a draft is made", NULL},
	{"kv_eviction", CONF_STRING, "recycle", 0, 16, "", 0,
     "what happens to blocks before they are evicted: recycle drops them; offload writes them to "
     "storage first; write_through writes them once they were used write_through_after times",
     "recycle|offload|write_through"},
	{"offload_low_percent", CONF_INT, "20", 1, 90, "percent", 0,
     "offload: share of the pool that is kept free, or already stored", NULL},
	{"offload_wait_ms", CONF_INT, "200", 0, 60000, "ms", 0,
     "prefill: longest wait of a prompt until the blocks it would evict are written (offload), and "
     "for blocks that storage is reading; then they are evicted anyway",
     NULL},
	{"write_through_after", CONF_INT, "1", 0, 1000000, "uses", 0,
     "write_through: reuses of a block after which it is written; 0: as soon as it is computed",
     NULL},
	{"output_caching", CONF_BOOL, "true", 0, 0, "", 0,
     "decode: send prompt and answer of a finished sequence to storage, for the next turn of the "
     "conversation",
     NULL},
	{"storage_read", CONF_STRING, "auto", 0, 8, "", 0,
     "whether blocks are read from storage; auto: where the measured rates make that faster than "
     "computing",
     "auto|always|never"},
	{"storage_lookup_wait_ms", CONF_INT, "20", 1, 60000, "ms", 0,
     "prefill: longest wait for storage's answer to a look-up", NULL},
	{"storage_read_wait_ms", CONF_INT, "500", 1, 600000, "ms", 0,
     "prefill: longest wait for blocks read from storage; what has not arrived by then is computed",
     NULL},
	{"kv_events_ms", CONF_INT, "10", 0, 60000, "ms", 0,
     "shortest interval between reports of prefix index changes to the routers; 0: no reports",
     NULL},
	{"role_switch_timeout_ms", CONF_INT, "10000", 0, 3600000, "ms", 1,
     "role switch: how long running requests may take to finish; then they move to other workers",
     NULL},
	{"bench_prepare", CONF_STRING, "stage", 0, 8, "", 0,
     "prefill, for benchmarks only: serial prepares requests one after the other between steps, "
     "each to the messager's acknowledgement",
     "stage|serial"},
	{"bench_scheduler", CONF_STRING, "own", 0, 8, "", 0,
     "prefill, for benchmarks only: shared reserves and allocates in order between steps, as one "
     "scheduler for both phases does",
     "own|shared"},
	{"routers", CONF_LIST, "", 0, 16, "", 0, "endpoints of the routers; empty: router on this host",
     NULL},
	{"messager", CONF_STRING, "messager", 0, 47, "", 0,
     "name of this host's messager; none: no hand-over", NULL},
	{"storage", CONF_STRING, "storage", 0, 47, "", 0,
     "name of this host's storage daemon; none: without", NULL},
	CONF_END,
};

static const struct stat_def stats[WS_COUNT] = {
	[WS_STEPS] = {"pdserve_steps_total", "Forward steps.", STAT_COUNTER},
	[WS_PROMPT_TOKENS] = {"vllm:prompt_tokens_total", "Prompt tokens processed.", STAT_COUNTER},
	[WS_CACHED_TOKENS] = {"pdserve_cached_tokens_total",
                          "Prompt tokens that were in the prefix index.", STAT_COUNTER},
	[WS_SAVED_BLOCKS] = {"pdserve_preempt_saved_blocks_total",
                         "Blocks of preempted sequences that storage acknowledged.", STAT_COUNTER},
	[WS_UNSAVED_BLOCKS] =
		{"pdserve_preempt_unsaved_blocks_total",
         "Blocks of preempted sequences that storage did not take, or not in time.", STAT_COUNTER},
	[WS_SAVES_VOID] =
		{"pdserve_preempt_saves_void_total",
         "Write-outs of preempted sequences whose blocks were not waited for any longer.",
         STAT_COUNTER},
	[WS_SAVE_SECONDS] = {"pdserve_preempt_save_seconds",
                         "Preemption until storage had answered for a batch of blocks.",
                         STAT_SECONDS},
	[WS_RESTORES_READ] = {"pdserve_restores_read_total",
                          "Returns of preempted sequences of which storage gave blocks.",
                          STAT_COUNTER},
	[WS_RESTORES_COMPUTED] =
		{"pdserve_restores_computed_total",
         "Returns of preempted sequences that lacked full blocks and computed them all.",
         STAT_COUNTER},
	[WS_RESTORES_KEPT] =
		{"pdserve_restores_kept_total",
         "Returns of preempted sequences whose full blocks were all still in the prefix index.",
         STAT_COUNTER},
	[WS_RESTORES_ABANDONED] =
		{"pdserve_restores_abandoned_total",
         "Reads for sequences that were given up; their blocks wait for storage's fence.",
         STAT_COUNTER},
	[WS_RESTORED_BLOCKS] = {"pdserve_restored_blocks_total",
                            "Blocks of preempted sequences that were read back.", STAT_COUNTER},
	[WS_RESTORE_SECONDS] = {"pdserve_restore_seconds",
                            "A preempted sequence has blocks again until it decodes again.",
                            STAT_SECONDS},
	[WS_STORED_TOKENS] = {"pdserve_stored_tokens_total",
                          "Prompt tokens that were read back from storage.", STAT_COUNTER},
	[WS_GENERATED_TOKENS] = {"vllm:generation_tokens_total", "Tokens generated.", STAT_COUNTER},
	[WS_PREEMPTIONS] = {"vllm:num_preemptions_total", "Sequences preempted for want of blocks.",
                        STAT_COUNTER},
	[WS_REQUESTS] = {"pdserve_requests_total", "Attempts accepted.", STAT_COUNTER},
	[WS_FAILED] = {"pdserve_requests_failed_total", "Attempts that failed here.", STAT_COUNTER},
	[WS_NOT_FINITE] = {"pdserve_logits_not_finite_total",
                       "Attempts that failed because the model's logits were NaN or infinite.",
                       STAT_COUNTER},
	[WS_CANCELLED] = {"pdserve_requests_cancelled_total", "Attempts cancelled.", STAT_COUNTER},
	[WS_LEASES] = {"pdserve_leases_granted_total", "Leases granted.", STAT_COUNTER},
	[WS_LEASES_LOST] = {"pdserve_leases_lost_total",
                        "Leases that expired or whose prefill worker ended.", STAT_COUNTER},
	[WS_FENCES] = {"pdserve_fences_total", "Leases that went through quarantine.", STAT_COUNTER},
	[WS_RUNNING] = {"vllm:num_requests_running", "Sequences or jobs in the schedule.", STAT_GAUGE},
	[WS_WAITING] = {"vllm:num_requests_waiting", "Accepted and not yet in the schedule.",
                    STAT_GAUGE},
	[WS_BLOCKS_FREE] = {"pdserve_kv_blocks_free", "Blocks free or evictable.", STAT_GAUGE},
	[WS_BLOCKS_HELD] = {"pdserve_kv_blocks_held", "Blocks held or leased.", STAT_GAUGE},
	[WS_DEVICE_BUSY] = {"pdserve_device_busy_microseconds_total",
                        "Time in which the device had work; 0 where it does not count.",
                        STAT_COUNTER},
	[WS_DEVICE_STEPS] = {"pdserve_device_steps_total", "Steps that the device counted.",
                         STAT_COUNTER},
	[WS_KV_FAULTS] = {"pdserve_device_kv_faults_total",
                      "Steps in which a simulated device found wrong, stale or torn KV.",
                      STAT_COUNTER},
	[WS_STEP_SECONDS] = {"pdserve_step_seconds", "Duration of a forward step.", STAT_SECONDS},
	[WS_RESERVE_SECONDS] = {"pdserve_reserve_seconds", "Reserve sent until granted.", STAT_SECONDS},
	[WS_TRANSFER_SECONDS] = {"pdserve_transfer_seconds", "Grant until all KV had arrived.",
                             STAT_SECONDS},
	[WS_PARKED] = {"pdserve_reserve_parked_total",
                   "Times that a request was parked because no decode worker could be asked.",
                   STAT_COUNTER},
	[WS_DENIED] = {"pdserve_reserve_denied_total", "Reservations that a decode worker denied.",
                   STAT_COUNTER},
	[WS_SHARES] = {"pdserve_prefix_shares_total",
                   "Times that a prompt waited for a running one's blocks.", STAT_COUNTER},
	[WS_SHARED_TOKENS] = {"pdserve_prefix_shared_tokens_total",
                          "Prompt tokens that were not computed again thanks to such a wait.",
                          STAT_COUNTER},
	[WS_FETCHES_ABANDONED] =
		{"pdserve_fetches_abandoned_total",
         "Reads from storage that were given up; their blocks wait for its fence.", STAT_COUNTER},
	[WS_PRECONDITIONS] = {"pdserve_preconditions_broken_total",
                          "Requests failed because what the scheduler relies on did not hold.",
                          STAT_COUNTER},
	[WS_PREFILL_SECONDS] = {"vllm:request_prefill_time_seconds", "First chunk until first token.",
                            STAT_SECONDS},
	[WS_ROLE_SWITCHES] = {"pdserve_role_switches_total",
                          "Live switches of the role that were done.", STAT_COUNTER},
	[WS_SPEC_DRAFTS] = {"vllm:spec_decode_num_drafts_total", "Drafts that were checked.",
                        STAT_COUNTER},
	[WS_SPEC_PROPOSED] = {"vllm:spec_decode_num_draft_tokens_total", "Tokens of these drafts.",
                          STAT_COUNTER},
	[WS_SPEC_ACCEPTED] = {"vllm:spec_decode_num_accepted_tokens_total",
                          "Of them, those that were right.", STAT_COUNTER},
	[WS_EVICTED_STORED] = {"pdserve_kv_evicted_stored_total", "Evicted blocks that storage had.",
                           STAT_COUNTER},
	[WS_EVICTED_LOST] = {"pdserve_kv_evicted_lost_total",
                         "Evicted blocks that storage did not have.", STAT_COUNTER},
	[WS_WRITTEN] = {"pdserve_kv_written_blocks_total",
                    "Cached blocks that were written to storage.", STAT_COUNTER},
	[WS_NOT_WRITTEN] = {"pdserve_kv_not_written_blocks_total",
                        "Cached blocks that storage did not take, or not in time.", STAT_COUNTER},
	[WS_WRITES_VOID] = {"pdserve_kv_writes_void_total",
                        "Blocks whose write-out was given up because they were needed.",
                        STAT_COUNTER},
	[WS_WRITE_SECONDS] = {"pdserve_kv_write_seconds", "Duration of a batch of write-outs.",
                          STAT_SECONDS},
	[WS_KEPT] = {"pdserve_kv_output_blocks_total",
                 "Blocks of ended sequences that were to be written for their next turn.",
                 STAT_COUNTER},
	[WS_LOOKED_UP] = {"pdserve_storage_lookup_blocks_total", "Blocks that storage was asked about.",
                      STAT_COUNTER},
	[WS_FOUND_MEMORY] = {"pdserve_storage_found_memory_blocks_total",
                         "Of them, found in its memory.", STAT_COUNTER},
	[WS_FOUND_DISK] = {"pdserve_storage_found_disk_blocks_total", "Of them, found on its disk.",
                       STAT_COUNTER},
	[WS_FOUND_REDIS] = {"pdserve_storage_found_redis_blocks_total", "Of them, found in Redis.",
                        STAT_COUNTER},
	[WS_READ_MEMORY] = {"pdserve_storage_read_memory_blocks_total",
                        "Blocks that were read from its memory.", STAT_COUNTER},
	[WS_READ_DISK] = {"pdserve_storage_read_disk_blocks_total",
                      "Blocks that were read from its disk.", STAT_COUNTER},
	[WS_READ_REDIS] = {"pdserve_storage_read_redis_blocks_total",
                       "Blocks that were read from Redis.", STAT_COUNTER},
	[WS_READ_SECONDS] = {"pdserve_storage_read_seconds",
                         "Duration of a prompt's read from storage.", STAT_SECONDS},
	[WS_NOT_WORTH_READING] =
		{"pdserve_storage_not_worth_blocks_total",
         "Blocks that storage had and that were computed because that is faster.", STAT_COUNTER},
	[WS_READ_LATE] = {"pdserve_storage_read_late_blocks_total",
                      "Blocks that storage said it had and that did not come, or not in time.",
                      STAT_COUNTER},
	[WS_QUEUED] = {"pdserve_reservations_queued_total", "Reservations that had to wait for room.",
                   STAT_COUNTER},
	[WS_REFUSED] = {"pdserve_reservations_refused_total", "Reservations that were refused.",
                    STAT_COUNTER},
	[WS_QUEUE_SECONDS] = {"pdserve_reservation_wait_seconds", "Reservation until granted.",
                          STAT_SECONDS},
	[WS_WAIT_SAMPLES] = {"pdserve_wait_samples_total",
                         "Moments, 20 a second, at which reservations waited.", STAT_COUNTER},
	[WS_WAIT_FREE] = {"pdserve_wait_free_blocks_total",
                      "Free or evictable blocks, added up over these moments.", STAT_COUNTER},
	[WS_KV_EVENTS] = {"pdserve_kv_events_total",
                      "Changes of the prefix index that were told to routers.", STAT_COUNTER},
	[WS_KV_LISTS] = {"pdserve_kv_lists_total",
                     "Whole lists of the prefix index that were begun for routers.", STAT_COUNTER},
	[WS_RELAYED] = {"pdserve_store_events_total",
                    "Changes of storage's tiers that were passed on to routers.", STAT_COUNTER},
	[WS_RELAY_ASKED] = {"pdserve_store_lists_asked_total",
                        "Times that storage was asked for whole lists of its tiers.", STAT_COUNTER},
	[WS_RELAY_CUT] = {"pdserve_store_events_cut_total",
                      "Messages about storage's tiers that a router's full link did not take: its "
                      "lists restart.",
                      STAT_COUNTER},
	[WS_RELAY_BAD] = {"pdserve_store_events_bad_total",
                      "Messages about storage's tiers that were dropped: of another daemon, of an "
                      "unknown tier, or too long.",
                      STAT_COUNTER},
	[WS_KV_OVERFLOWS] = {"pdserve_kv_events_overflows_total",
                         "Whole lists that were begun because more had changed than is kept.",
                         STAT_COUNTER},
};

uint32_t worker_blocks_for(const struct worker *w, uint32_t tokens)
{
	uint32_t bt = w->info->kv.block_tokens;
	return (tokens + bt - 1) / bt;
}

/* --- start --------------------------------------------------------------- */

static void choose_role(struct worker *w, const char *text)
{
	enum worker_role r = default_role;
	worker_role_parse(text, &r); /* "default" is none */
	role_init(w, r);
}

/* --- a part of the engine is gone: the service manager restarts the worker, the router takes
 * its requests elsewhere --- */

static void end_broken(struct svc *s, void *arg)
{
	struct worker *w = worker_of(s);
	(void)arg;
	if (w->engine && engine_broken(w->engine))
		svc_leave(engine_broken(w->engine));
}

static void engine_is_broken(void *arg, const char *why)
{
	struct worker *w = arg;
	log_error("engine_broken", "why=%s", log_quote(why));
	svc_post(w->svc, end_broken, NULL);
}

/* Layers' words of the board were stored; on a thread of the device. */
static void progressed(void *arg)
{
	struct worker *w = arg;
	if (w->ring)
		ring_bell(w->ring);
}

static int open_engine(struct worker *w, const struct conf *c, struct err *err)
{
	struct engine_opts o = {
		.model_path = conf_str(c, "model"),
		.backend = conf_str(c, "backend"),
		.variant = conf_str(c, "variant"),
		.device_index = (int)conf_int(c, "device"),
		.threads = (unsigned)conf_int(c, "threads"),
		.tp = (unsigned)conf_int(c, "tensor_parallel"),
		.broken = engine_is_broken,
		.broken_arg = w,
		.progressed_arg = w,
		.activations = strcmp(conf_str(c, "activation_type"), "bf16") == 0 ? KERN_BF16 : KERN_F32,
		.block_tokens = (uint32_t)conf_int(c, "block_tokens"),
	};
	if (strcmp(conf_str(c, "messager"), "none") != 0)
		o.progressed = progressed;
	if (!o.model_path[0])
		return err_set(err, ERR_INVALID,
		               "no model: set `model` to a GGUF file or a Hugging Face folder");
	if (kv_type_parse(conf_str(c, "kv_type"), &o.kv_type) < 0)
		return err_set(err, ERR_INVALID, "kv_type %s is unknown", conf_str(c, "kv_type"));
	if (o.block_tokens % 8)
		return err_set(err, ERR_INVALID, "block_tokens %u is no multiple of 8", o.block_tokens);
	w->max_batched_tokens = (uint32_t)conf_int(c, "max_batched_tokens");
	w->max_sequences = (uint32_t)conf_int(c, "max_sequences");
	w->max_logits = w->max_sequences > 64 ? w->max_sequences : 64;
	if (strcmp(conf_str(c, "speculative"), "off") != 0)
		w->max_logits += WORKER_DRAFT_ROWS;
	o.max_rows = w->max_batched_tokens > w->max_logits ? w->max_batched_tokens : w->max_logits;
	o.max_logits = w->max_logits;
	o.max_draws = strcmp(conf_str(c, "speculative"), "off") != 0
	                  ? 1 + (uint32_t)conf_int(c, "spec_tokens_max")
	                  : 1;
	o.max_spans = w->max_sequences;
	/* each sequence up to 4096 blocks, the most that a transfer takes */
	o.max_table = w->max_sequences * 4096u;
	return engine_open(&o, &w->engine, err);
}

static void worker_rates(struct worker *w, const struct conf *c)
{
	const char *read = conf_str(c, "storage_read");
	enum rates_mode mode = strcmp(read, "always") == 0  ? RATES_ALWAYS
	                       : strcmp(read, "never") == 0 ? RATES_NEVER
	                                                    : RATES_AUTO;
	rates_init(&w->rates, mode, w->info->kv.block_tokens, w->info->kv.block_bytes);
}

static int pool_bytes(const struct worker *w, const struct conf *c, uint64_t *ret, struct err *err)
{
	enum { DEFAULT_MB = 512 };
	uint64_t mb = (uint64_t)conf_int(c, "kv_memory_mb");
	struct kern_info device;
	int rc = 0;
	engine_device_info(w->engine, &device);
	*ret = (mb ? mb : DEFAULT_MB) << 20;
	if (!mb && device.memory_bytes && (rc = engine_pool_room(w->engine, ret, err)) == 0)
		*ret = (uint64_t)((double)*ret * conf_float(c, "kv_memory_fraction"));
	return rc;
}

static int open_pool(struct worker *w, const struct conf *c, struct err *err)
{
	const struct kv_layout *l = &w->info->kv;
	uint64_t bytes = (uint64_t)conf_int(c, "kv_blocks") * l->block_bytes, blocks;
	int fd, r = bytes ? 0 : pool_bytes(w, c, &bytes, err);
	if (r < 0)
		return r;
	blocks = bytes / l->block_bytes;
	if (blocks < 2 || blocks > UINT32_MAX)
		return err_set(err, ERR_INVALID,
		               "a KV pool of %llu MiB (kv_blocks, kv_memory_mb, kv_memory_fraction) holds "
		               "%llu blocks of %zu bytes, at least 2 are needed",
		               (unsigned long long)bytes >> 20, (unsigned long long)blocks, l->block_bytes);
	r = engine_new_pool(w->engine, (uint32_t)blocks, &fd, err);
	if (r < 0 || (r = kv_region_create(&w->region, l, (uint32_t)blocks, fd, err)) < 0)
		return r;
	w->pool = kv_pool_new(w->region.blocks, l->block_tokens, w->region.generations);
	kv_layout_text(l, w->layout, sizeof w->layout);
	struct kv_root root = {.model_fingerprint = w->info->fingerprint,
	                       .numerics = w->info->numerics,
	                       .layout = w->layout};
	kv_hash_root(&root, &w->root);
	worker_rates(w, c);
	w->events = events_new(w->svc, w->pool, (uint64_t)conf_int(c, "kv_events_ms") * 1000u,
	                       &(struct events_stats){WS_KV_EVENTS, WS_KV_LISTS, WS_KV_OVERFLOWS});
	return 0;
}

static void messager_on(void *arg, uint64_t epoch, int bell_fd)
{
	struct worker *w = arg;
	(void)epoch;
	if (w->ring)
		ring_set_bell(w->ring, bell_fd);
	else if (bell_fd >= 0)
		close(bell_fd);
}

static void messager_gone(void *arg, uint64_t epoch)
{
	struct worker *w = arg;
	w->messager_dead = epoch;
	if (w->ring)
		ring_set_bell(w->ring, -1);
	if (w->state && w->stage->messager_gone)
		w->stage->messager_gone(w, epoch);
}

static void store_ready_cb(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct worker *w = arg;
	struct store_completion *c = store_try(w->store);
	if (!c)
		return;
	struct store_asker *a = c->user;
	a->answered(w, a, c);
}

static int connect_to(struct worker *w, const char *endpoint, const char *name, int tag,
                      struct err *err)
{
	return chan_connect(svc_chan(w->svc), endpoint, name, tag)
	           ? 0
	           : err_set(err, ERR_IO, "cannot connect to %s", endpoint);
}

static int attach_board(struct worker *w, struct err *err)
{
	size_t bytes;
	void *ring = ring_mapping(w->ring, &bytes);
	return engine_attach_board(w->engine, ring, bytes, err);
}

static int attach_messager(struct worker *w, const char *name, struct handover_hello *hello,
                           struct err *err)
{
	char path[256], endpoint[256];
	/* whatever the role: it may be switched */
	uint32_t slots = (uint32_t)conf_int(svc_conf(w->svc), "ring_slots");
	int r = ring_create(slots, w->info->layers, svc_epoch(w->svc), &w->ring, err);
	if (r < 0 || (r = attach_board(w, err)) < 0)
		return r;
	hello->ring_slots = slots;
	hello->ring_layers = w->info->layers;
	struct attach_hooks hooks = {w, messager_on, messager_gone};
	svc_sock_path(w->svc, name, path, sizeof path);
	svc_ipc_endpoint(w->svc, name, endpoint, sizeof endpoint);
	w->messager_attach = attach_new(w->svc, "messager", path, hello, w->region.control_fd,
	                                w->region.data_fd, ring_fd(w->ring), &hooks);
	return connect_to(w, endpoint, name, TAG_MESSAGER, err);
}

static void storage_ready(void *arg, uint64_t epoch)
{
	writeout_storage_ready(((struct worker *)arg)->writeout, epoch);
}

static int attach_storage(struct worker *w, const char *name, const struct handover_hello *hello,
                          struct err *err)
{
	struct store_opts o = {name, TAG_STORAGE,   hello, w->region.control_fd, w->region.data_fd,
	                       256,  storage_ready, w};
	w->store = store_new(w->svc, &o);
	if (!w->store)
		return err_set(err, ERR_IO, "cannot connect to the storage %s", name);
	w->relay = relay_new(w->svc, &(struct relay_stats){WS_RELAYED, WS_RELAY_ASKED, WS_RELAY_CUT,
	                                                   WS_RELAY_BAD});
	w->writeout = writeout_new(w);
	w->store_ev = event_new(svc_base(w->svc), store_fd(w->store), EV_READ | EV_PERSIST,
	                        store_ready_cb, w);
	event_add(w->store_ev, NULL);
	return 0;
}

static int connect_routers(struct worker *w, const struct conf *c, struct err *err)
{
	const char *const *items;
	int n = conf_list(c, "routers", &items), r = 0;
	char endpoint[256];
	svc_ipc_endpoint(w->svc, "router", endpoint, sizeof endpoint);
	for (int i = 0; i < n && r == 0; i++)
		r = connect_to(w, items[i], NULL, TAG_ROUTER, err);
	return n ? r : connect_to(w, endpoint, NULL, TAG_ROUTER, err);
}

static int start(struct svc *s, struct err *err)
{
	struct conf *c = svc_conf(s);
	struct worker *w = mem_zalloc(sizeof *w);
	w->svc = s;
	w->region.control_fd = w->region.data_fd = -1;
	svc_set_data(s, w);
	json_account_setup();
	choose_role(w, conf_str(c, "role"));
	int r = open_engine(w, c, err);
	if (r < 0)
		return r;
	w->info = engine_info(w->engine);
	w->watch.limit_us = (uint64_t)conf_int(c, "step_timeout_ms") * 1000u;
	w->constraints = constraints_new(conf_str(c, "model"), w->info,
	                                 (size_t)conf_int(c, "constraint_memory_mb") << 20);
	if ((r = compiler_new(&w->compiler, err)) < 0)
		return r;
	if ((r = open_pool(w, c, err)) < 0)
		return r;
	struct handover_hello hello;
	handover_hello_init(&hello, svc_name(s), svc_epoch(s), &w->info->kv, w->region.blocks,
	                    w->info->backend, w->info->device);
	if (strcmp(conf_str(c, "storage"), "none") != 0)
		if ((r = attach_storage(w, conf_str(c, "storage"), &hello, err)) < 0)
			return r;
	if (strcmp(conf_str(c, "messager"), "none") != 0)
		if ((r = attach_messager(w, conf_str(c, "messager"), &hello, err)) < 0)
			return r;
	if ((r = w->stage->start(w, err)) < 0)
		return r;
	worker_relay_by_role(w);
	log_info("worker_ready",
	         "role=%s model=%s numerics=%s layout=%s blocks=%u kv_mb=%zu weight_mb=%llu tp=%d",
	         worker_role_name(w->role), log_quote(w->info->name), w->info->numerics, w->layout,
	         w->region.blocks, w->region.data_bytes >> 20,
	         (unsigned long long)(w->info->weight_bytes >> 20),
	         (int)conf_int(c, "tensor_parallel"));
	return connect_routers(w, c, err);
}

void worker_relay_by_role(struct worker *w)
{
	const struct conf *c = svc_conf(w->svc);
	int saves = w->role != ROLE_PREFILL &&
	            (conf_bool(c, "output_caching") || conf_bool(c, "save_preempted_kv"));
	relay_reads(w->relay, w->role == ROLE_PREFILL && w->rates.mode != RATES_NEVER);
	relay_writes(w->relay, saves || strcmp(conf_str(c, "kv_eviction"), "recycle") != 0);
}

/* --- hooks --------------------------------------------------------------- */

void worker_describe(struct worker *w, Pds__WorkerInfo *i)
{
	static char endpoint[256];
	struct svc *s = w->svc;
	const char *e = conf_str(svc_conf(s), "endpoint");
	if (e[0])
		snprintf(endpoint, sizeof endpoint, "%s", e);
	else
		svc_ipc_endpoint(s, svc_name(s), endpoint, sizeof endpoint);
	i->role = (char *)worker_role_name(w->role);
	i->endpoint = endpoint;
	i->model = (char *)w->info->name;
	i->model_fingerprint = (char *)w->info->fingerprint;
	i->numerics = (char *)w->info->numerics;
	i->layout = w->layout;
	i->blocks = w->region.blocks;
	i->block_tokens = w->info->kv.block_tokens;
	i->max_sequences = w->max_sequences;
	i->context_tokens = w->info->context;
	i->vocab = w->info->vocab;
}

static int describe(struct svc *s, Pds__WorkerInfo *i)
{
	struct worker *w = worker_of(s);
	if (!w || !w->info)
		return 0;
	worker_describe(w, i);
	return 1;
}

static int differs(const char *what, const char *theirs, const char *ours, char *reason, size_t len)
{
	if (strcmp(theirs, ours) == 0)
		return 0;
	snprintf(reason, len, "%s differs: yours is %s, here it is %s", what, theirs, ours);
	return 1;
}

/* Workers connect to workers to hand KV over; that needs the same model, numbers and layout. */
static int admit(struct svc *s, const char *name, uint64_t epoch, const Pds__Hello *h, char *reason,
                 size_t len)
{
	struct worker *w = worker_of(s);
	(void)name;
	(void)epoch;
	if (!h->worker)
		return 0;
	return differs("model", h->worker->model_fingerprint, w->info->fingerprint, reason, len) ||
	       differs("numerics", h->worker->numerics, w->info->numerics, reason, len) ||
	       differs("KV layout", h->worker->layout, w->layout, reason, len);
}

static void up(struct svc *s, struct peer *p)
{
	struct worker *w = worker_of(s);
	if (peer_tag(p) == TAG_MESSAGER)
		w->messager = p;
	if (peer_tag(p) == TAG_ROUTER) {
		events_up(w->events, p);
		if (w->events)
			relay_router_up(w->relay, p);
		role_router_up(w);
	}
	if (peer_tag(p) == TAG_STORAGE)
		relay_storage_up(w->relay, p);
	if (w->store)
		store_up(w->store, p);
	if (w->state)
		w->stage->peer_up(w, p);
}

static void down(struct svc *s, struct peer *p, const char *why)
{
	struct worker *w = worker_of(s);
	if (p == w->messager)
		w->messager = NULL;
	if (peer_tag(p) == TAG_ROUTER) {
		events_down(w->events, p);
		relay_router_down(w->relay, p);
	}
	relay_storage_down(w->relay, p);
	if (w->store)
		store_down(w->store, p, why);
	if (w->state) /* else the stage has stopped: links end last */
		w->stage->peer_down(w, p, why);
}

static void count_up(struct worker *w, enum worker_stat i, uint64_t total)
{
	stat_add(svc_stats(w->svc), i, total - stat_get(svc_stats(w->svc), i));
}

static void count_device(struct worker *w)
{
	struct kern_counters c;
	engine_counters(w->engine, &c);
	count_up(w, WS_DEVICE_BUSY, c.busy_ns / 1000);
	count_up(w, WS_DEVICE_STEPS, c.steps);
	count_up(w, WS_KV_FAULTS, c.kv_faults);
}

static void count_storage(struct worker *w, const struct kv_stats *ks)
{
	struct store_counts c = {0};
	count_up(w, WS_EVICTED_STORED, ks->evicted_stored);
	count_up(w, WS_EVICTED_LOST, ks->evictions - ks->evicted_stored);
	if (!w->store)
		return;
	store_counts(w->store, &c);
	count_up(w, WS_LOOKED_UP, c.looked_up);
	for (unsigned t = STORE_TIER_MEMORY; t < STORE_TIERS; t++) {
		count_up(w, (enum worker_stat)(WS_FOUND_MEMORY + t - 1), c.found[t]);
		count_up(w, (enum worker_stat)(WS_READ_MEMORY + t - 1), c.got[t]);
	}
}

static uint32_t per_second(double per_us)
{
	return per_us < UINT32_MAX / 1e6 ? (uint32_t)(per_us * 1e6) : UINT32_MAX;
}

static void say_rates(struct worker *w, Pds__Heartbeat *hb)
{
	struct rates_view v;
	rates_view(&w->rates, &v);
	hb->compute_tokens_per_s = per_second(v.compute_tokens_us);
	hb->memory_tokens_per_s = per_second(v.read_tokens_us[STORE_TIER_MEMORY]);
	hb->disk_tokens_per_s = per_second(v.read_tokens_us[STORE_TIER_DISK]);
}

static void heartbeat(struct svc *s, struct peer *p, Pds__Heartbeat *hb)
{
	struct worker *w = worker_of(s);
	struct kv_stats ks;
	(void)p;
	say_rates(w, hb);
	kv_pool_stats(w->pool, &ks);
	count_storage(w, &ks);
	hb->blocks_free = ks.by_state[KV_FREE] + ks.evictable;
	hb->blocks_held = ks.by_state[KV_HELD] + ks.by_state[KV_LEASED];
	hb->progress = w->progress + engine_pulse(w->engine);
	hb->prompt_tokens = w->prompt_tokens;
	hb->cached_tokens = w->cached_tokens;
	hb->generated_tokens = w->generated_tokens;
	hb->preemptions = w->preemptions;
	hb->draining = svc_draining(s) || w->sw.active;
	hb->ending = svc_draining(s);
	w->stage->heartbeat(w, hb);
	count_device(w);
	stat_set_value(svc_stats(s), WS_RUNNING, hb->running);
	stat_set_value(svc_stats(s), WS_WAITING, hb->waiting);
	stat_set_value(svc_stats(s), WS_BLOCKS_FREE, hb->blocks_free);
	stat_set_value(svc_stats(s), WS_BLOCKS_HELD, hb->blocks_held);
}

static void to_stage(struct svc *s, struct peer *p, const struct msg_head *head,
                     const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	for (const struct stage_msg *m = w->stage->messages; m->body; m++)
		if (m->body == body->descriptor) {
			m->fn(w, p, head, body);
			return;
		}
	role_stray(w, p, head, body);
}

static void on_peers(struct svc *s, struct peer *p, const struct msg_head *head,
                     const ProtobufCMessage *body)
{
	role_keep_peers(worker_of(s), (const Pds__Peers *)body);
	to_stage(s, p, head, body);
}

static void to_store(struct svc *s, struct peer *p, const struct msg_head *head,
                     const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	(void)head;
	if (w->store)
		store_message(w->store, p, body);
}

/* What storage has and drops by itself: for the routers, and for the marks of what is in the
 * pool. */
static void on_kv_events(struct svc *s, struct peer *p, const struct msg_head *head,
                         const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	const Pds__KvEvents *m = (const Pds__KvEvents *)body;
	(void)head;
	relay_events(w->relay, p, m);
	if (peer_tag(p) != TAG_STORAGE)
		return;
	if (m->reset)
		kv_pool_doubt_stored(w->pool, m->tier);
	kv_pool_note_stored(w->pool, m->tier, m->removed, m->n_removed, 0);
	kv_pool_note_stored(w->pool, m->tier, m->stored, m->n_stored, 1);
}

static void ignore(struct svc *s, struct peer *p, const struct msg_head *head,
                   const ProtobufCMessage *body)
{
	(void)s;
	(void)p;
	(void)head;
	(void)body;
}

static void drain(struct svc *s)
{
	struct worker *w = worker_of(s);
	role_give_up(w);
	w->stage->drain(w);
}

static int idle(struct svc *s)
{
	struct worker *w = worker_of(s);
	return w->stage->idle(w) || watch_gives_up(w);
}

static void stop(struct svc *s)
{
	struct worker *w = worker_of(s);
	if (watch_gives_up(w))
		svc_leave("told to end while a step makes no progress");
	w->stage->stop(w);
	role_fini(w);
	if (w->store) {
		event_free(w->store_ev);
		writeout_destroy(&w->writeout);
		store_destroy(&w->store);
	}
	if (w->messager_attach)
		attach_destroy(&w->messager_attach);
	compiler_destroy(&w->compiler);
	constraints_destroy(&w->constraints);
	engine_close(&w->engine);
	events_destroy(&w->events);
	relay_destroy(&w->relay);
	kv_pool_destroy(&w->pool);
	rates_fini(&w->rates);
	if (w->ring)
		ring_destroy(&w->ring);
	kv_region_fini(&w->region);
	svc_set_data(s, NULL);
	free(w);
}

struct peer *worker_router(struct worker *w, const char *name, uint64_t epoch)
{
	struct peer *p = chan_find(svc_chan(w->svc), name);
	return p && peer_tag(p) == TAG_ROUTER && peer_epoch(p) == epoch ? p : NULL;
}

void worker_fail_by(struct worker *w, const struct msg_head *head, const char *router,
                    uint64_t router_epoch, const struct worker_failure *f)
{
	Pds__Failed m = PDS__FAILED__INIT;
	m.fault = f->fault;
	m.retry = f->retry;
	m.text = (char *)f->text;
	m.blame = (char *)(f->blame ? f->blame : "");
	m.retry_after_us = f->retry_after_us;
	stat_add(svc_stats(w->svc), WS_FAILED, 1);
	log_req(LOG_WARN, &head->req, "attempt_failed", "attempt=%u fault=%d retry=%d blame=%s text=%s",
	        head->attempt, f->fault, f->retry, f->blame ? f->blame : "-", log_quote(f->text));
	struct peer *p = worker_router(w, router, router_epoch);
	if (p)
		svc_send(w->svc, p, MSG_REQUEST_FAILED, head, &m.base);
}

void worker_fail(struct worker *w, const struct msg_head *head, const char *router,
                 uint64_t router_epoch, Pds__Fault fault, int retry, const char *text)
{
	worker_fail_by(w, head, router, router_epoch,
	               &(struct worker_failure){.fault = fault, .retry = retry, .text = text});
}

/* --- pdctl --------------------------------------------------------------- */

/* A GPU; of the host nothing is said. */
static void device_json(const struct worker *w, struct buf *out)
{
	struct kern_info i;
	engine_device_info(w->engine, &i);
	if (!i.memory_bytes)
		return;
	buf_adds(out, ",\"device\":{\"name\":");
	buf_add_json(out, i.name, strlen(i.name));
	buf_printf(out,
	           ",\"index\":%d,\"memory_mb\":%llu,\"free_mb\":%llu,\"temperature_c\":%u,\"power_w\":"
	           "%u,\"clock_mhz\":%u,\"memory_clock_mhz\":%u,"
	           "\"memory_errors\":%llu}",
	           w->info->device, (unsigned long long)i.memory_bytes >> 20,
	           (unsigned long long)i.free_bytes >> 20, i.temperature_c, i.power_w, i.clock_mhz,
	           i.memory_clock_mhz, (unsigned long long)i.memory_errors);
}

static void status(struct svc *s, struct buf *out)
{
	struct worker *w = worker_of(s);
	struct kv_stats ks;
	struct kern_counters dev;
	kv_pool_stats(w->pool, &ks);
	engine_counters(w->engine, &dev);
	count_device(w);
	buf_addc(out, ',');
	role_json(w, out);
	buf_printf(out, ",\"numerics\":\"%s\",\"layout\":\"%s\",\"model\":", w->info->numerics,
	           w->layout);
	buf_add_json(out, w->info->name, strlen(w->info->name));
	buf_printf(out,
	           ",\"blocks\":%u,\"blocks_free\":%u,\"blocks_cached\":%u,\"blocks_held\":%u,\"blocks_"
	           "leased\":%u",
	           ks.blocks, ks.by_state[KV_FREE], ks.by_state[KV_CACHED], ks.by_state[KV_HELD],
	           ks.by_state[KV_LEASED]);
	buf_printf(out,
	           ",\"steps\":%llu,\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"generated_tokens\":"
	           "%llu,\"preemptions\":%llu",
	           (unsigned long long)w->progress, (unsigned long long)w->prompt_tokens,
	           (unsigned long long)w->cached_tokens, (unsigned long long)w->generated_tokens,
	           (unsigned long long)w->preemptions);
	buf_printf(out, ",\"device_busy_us\":%llu,\"device_steps\":%llu,\"device_kv_faults\":%llu",
	           (unsigned long long)dev.busy_ns / 1000, (unsigned long long)dev.steps,
	           (unsigned long long)dev.kv_faults);
	device_json(w, out);
	constraints_json(w->constraints, out);
	w->stage->status(w, out);
}

static int ctl_requests(struct svc *s, char *const *args, size_t n, struct buf *out,
                        struct err *err)
{
	struct worker *w = worker_of(s);
	(void)args;
	(void)n;
	(void)err;
	w->stage->requests(w, out);
	return 0;
}

static void tier_json(unsigned t, const struct kv_stats *ks, const struct store_counts *c,
                      const struct rates_view *v, struct buf *out)
{
	buf_printf(out,
	           "%s{\"tier\":\"%s\",\"cached_stored\":%u,\"found_blocks\":%llu,\"read_blocks\":%llu,"
	           "\"written_blocks\":%llu",
	           t > STORE_TIER_MEMORY ? "," : "", store_tier_name(t), ks->stored[t],
	           (unsigned long long)c->found[t], (unsigned long long)c->got[t],
	           (unsigned long long)c->put[t]);
	buf_printf(out, ",\"read_begin_us\":%.0f,\"read_bytes_per_s\":%.0f,\"break_even_blocks\":",
	           v->read_begin_us[t], v->read_bytes_us[t] * 1e6);
	if (v->break_even_blocks[t] == UINT32_MAX)
		buf_adds(out, "\"never\"}");
	else if (!v->break_even_blocks[t])
		buf_adds(out, "null}");
	else
		buf_printf(out, "%u}", v->break_even_blocks[t]);
}

static void storage_json(struct worker *w, const struct kv_stats *ks, struct buf *out)
{
	struct store_counts c;
	struct rates_view v;
	if (!w->store)
		return;
	store_counts(w->store, &c);
	rates_view(&w->rates, &v);
	buf_printf(out,
	           ",\"storage\":{\"ready\":%d,\"looked_up_blocks\":%llu,\"found_blocks\":%llu,"
	           "\"missed_blocks\":%llu,\"timeouts\":%llu,\"errors\":%llu",
	           c.ready, (unsigned long long)c.looked_up,
	           (unsigned long long)(c.found[0] + c.found[1] + c.found[2] + c.found[3]),
	           (unsigned long long)c.missed_blocks, (unsigned long long)c.timeouts,
	           (unsigned long long)c.errors);
	buf_printf(out,
	           ",\"compute_tokens_per_s\":%.1f,\"write_bytes_per_s\":%.0f,\"worth_reading_blocks\":"
	           "%llu,\"worth_computing_blocks\":%llu",
	           v.compute_tokens_us * 1e6, v.write_bytes_us * 1e6, (unsigned long long)v.chosen_read,
	           (unsigned long long)v.chosen_compute);
	writeout_json(w->writeout, out);
	buf_adds(out, ",\"tiers\":[");
	for (unsigned t = STORE_TIER_MEMORY; t < STORE_TIERS; t++)
		tier_json(t, ks, &c, &v, out);
	buf_adds(out, "]}");
}

static void pin_json(struct worker *w, struct buf *out)
{
	struct kv_oldest_pin pin;
	uint64_t now = clock_us();
	if (kv_pool_oldest_pin(w->pool, &pin))
		buf_printf(out, ",\"oldest_pin_ms\":%llu,\"oldest_pin_block\":%u,\"oldest_pin\":\"%s\"",
		           (unsigned long long)(now > pin.since_us ? (now - pin.since_us) / 1000 : 0),
		           pin.block, pin.why);
	else
		buf_adds(out, ",\"oldest_pin_ms\":null,\"oldest_pin_block\":null,\"oldest_pin\":null");
}

/* Why a block is not anybody's to take. */
static const char *block_reason(struct worker *w, const struct kv_block_info *i)
{
	const char *special = w->state && w->stage->reason ? w->stage->reason(w, i->block) : NULL;
	return special ? special : i->state == KV_LEASED ? "lease" : i->refs ? "request" : "reader";
}

static int ctl_kv(struct svc *s, char *const *args, size_t n, struct buf *out, struct err *err)
{
	struct worker *w = worker_of(s);
	struct kv_stats ks;
	(void)args;
	(void)n;
	(void)err;
	kv_pool_verify(w->pool);
	kv_pool_stats(w->pool, &ks);
	uint32_t sum = 0;
	buf_printf(out, "{\"blocks\":%u", ks.blocks);
	for (int i = 0; i < KV_STATE_COUNT; i++) {
		buf_printf(out, ",\"%s\":%u", kv_state_name((enum kv_state)i), ks.by_state[i]);
		sum += ks.by_state[i];
	}
	buf_printf(out,
	           ",\"sum\":%u,\"readers\":%u,\"evictable\":%u,\"queries_tokens\":%llu,\"hit_tokens\":"
	           "%llu,\"hit_rate\":%.3f,\"evictions\":%llu,\"evicted_stored\":%llu",
	           sum, ks.readers, ks.evictable, (unsigned long long)ks.queries_tokens,
	           (unsigned long long)ks.hit_tokens,
	           ks.queries_tokens ? (double)ks.hit_tokens / (double)ks.queries_tokens : 0,
	           (unsigned long long)ks.evictions, (unsigned long long)ks.evicted_stored);
	buf_printf(out, ",\"block_bytes\":%zu,\"due\":%u,\"writing\":%u,\"cached_stored\":%u",
	           w->info->kv.block_bytes, ks.due, ks.writing, ks.stored[0]);
	pin_json(w, out);
	storage_json(w, &ks, out);
	buf_adds(out, ",\"owners\":[");
	uint64_t now = clock_us();
	int first = 1;
	for (uint32_t b = 0; b < ks.blocks; b++) {
		struct kv_block_info i;
		kv_pool_block(w->pool, b, &i);
		if (i.state != KV_HELD && i.state != KV_LEASED && !i.readers)
			continue;
		buf_printf(out,
		           "%s{\"block\":%u,\"state\":\"%s\",\"reason\":\"%s\",\"refs\":%u,\"readers\":%u,"
		           "\"generation\":%llu,\"age_ms\":%llu,\"owner\":\"%s\"}",
		           first ? "" : ",", b, kv_state_name(i.state), block_reason(w, &i), i.refs,
		           i.readers, (unsigned long long)i.generation,
		           (unsigned long long)(now - i.since_us) / 1000, log_reqid(&i.owner));
		first = 0;
	}
	buf_adds(out, "]}");
	return 0;
}

static int ctl_flush(struct svc *s, char *const *args, size_t n, struct buf *out, struct err *err)
{
	(void)args;
	(void)n;
	(void)err;
	buf_printf(out, "{\"freed\":%u}", kv_pool_flush(worker_of(s)->pool));
	return 0;
}

static int ctl_role(struct svc *s, char *const *args, size_t n, struct buf *out, struct err *err)
{
	return role_command(worker_of(s), args, n, out, err);
}

int worker_main(int argc, char **argv, const char *program, const char *default_name,
                enum worker_role role)
{
	static const struct svc_msg messages[] = {
		{MSG_PEERS, on_peers},
		{MSG_REQUEST_SUBMIT, to_stage},
		{MSG_REQUEST_CANCEL, to_stage},
		{MSG_REQUEST_FIRST_TOKEN, to_stage},
		{MSG_REQUEST_FIRST_TOKEN_ACK, to_stage},
		{MSG_KV_RESERVE, to_stage},
		{MSG_KV_QUEUED, to_stage},
		{MSG_KV_GRANT, to_stage},
		{MSG_KV_DENY, to_stage},
		{MSG_KV_RENEW, to_stage},
		{MSG_LEASE_OPEN, to_stage},
		{MSG_LEASE_REVOKED, to_stage},
		{MSG_KV_READY, to_stage},
		{MSG_KV_SENT, to_stage},
		{MSG_TRANSFER_FAILED, to_stage},
		{MSG_TRANSFER_SEEN, to_stage},
		{MSG_STORE_DONE, to_store},
		{MSG_STORE_FOUND, to_store},
		{MSG_STORE_FENCED, to_store},
		{MSG_KV_EVENTS, on_kv_events},
		{MSG_HEARTBEAT, ignore},
		{0, NULL},
	};
	static const struct svc_ctl ctl[] = {
		{"requests", ctl_requests, "requests of this worker with state and age", 0},
		{"kv", ctl_kv, "blocks by state; owner, age and reason of every held one", 0},
		{"role", ctl_role,
	     "the role; with prefill, decode or mixed: switch to it, without losing a request", 1},
		{"flush", ctl_flush, "drop what the prefix index holds and nobody uses", 1},
		{NULL, NULL, NULL, 0},
	};
	default_role = role;
	struct svc_hooks hooks = {
		.program = program,
		.default_name = default_name,
		.keys = keys,
		.stats = stats,
		.n_stats = WS_COUNT,
		.messages = messages,
		.ctl = ctl,
		.start = start,
		.drain = drain,
		.idle = idle,
		.stop = stop,
		.status = status,
		.describe = describe,
		.admit = admit,
		.up = up,
		.down = down,
		.heartbeat = heartbeat,
	};
	return svc_main(argc, argv, &hooks);
}
