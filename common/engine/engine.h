/* engine.h - a model on a device, used by both kinds of worker. One thread (the worker's schedule
 * thread) calls engine_start, engine_finish and engine_step.
 *
 * The engine owns weights, device, scratch and the KV pool's memory, which other processes map by a
 * descriptor. It knows no requests: a step is a list of spans over sequences' block tables.
 * engine_open allocates everything in full size; a step allocates nothing. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/draw.h"
#include "kernels/batch.h"
#include "kernels/device.h"
#include "kv/region.h"
#include "util/endpoint.h"
#include "util/err.h"
#include "util/wire.h"

#include <stddef.h>
#include <stdint.h>

struct engine;
struct tp_remote;

struct engine_opts {
	/* a .gguf file or a Hugging Face folder with safetensors; sim: a description as in etc/sim/ */
	const char *model_path;
	const char *backend; /* "cpu" (NULL), "sim", or one that is loaded (kern_backend) */
	const char *variant; /* see kern_config */
	int device_index;    /* among the backend's devices */
	/* 0: machine_threads. With tp > 1 these are the threads of a stage's ranks, shared equally;
	 * stages compute one after the other */
	unsigned threads;
	/* tensor parallelism: number of processes that share the work of a layer, and pipeline
	 * parallelism: number of stages that have some of the layers each (tp.h); 0 is 1. Devices with
	 * own_memory (device.h): that of process p, rank p % tp of stage p / tp, is number
	 * device_index + p / ranks_per_device (0: 1) */
	unsigned tp, pp, ranks_per_device;
	/* with tp > 1: a rank has whole experts instead of some columns of all */
	int expert_parallel;
	/* the last n_remote stages are on other hosts (tp.h). engine_open sets the wires that it takes
	 * over to NULL; the caller destroys the others. Then pool_shared is 0 */
	struct tp_remote *remote;
	unsigned n_remote;
	/* of the stage's own process on another host: its first process, and how many it has; else 0 */
	unsigned host_first, host_processes;
	/* other processes (messager, storage) are to map the pool */
	int pool_shared;
	enum kv_type kv_type;
	enum kern_dtype activations; /* see kern_config: KERN_F32 (0) or KERN_BF16 */
	uint32_t block_tokens;
	/* maximum tokens of a step: max_batched_tokens, or the maximum of sequences when decoding */
	uint32_t max_rows;
	uint32_t max_logits; /* maximum rows of logits of a step */
	uint32_t max_spans;  /* maximum sequences of a step */
	/* maximum rows of a span that a token is drawn from: 1 (or 0) plus the longest draft */
	uint32_t max_draws;
	/* steps can give hidden states (engine_span.hidden): takes memory for a second program */
	int hidden;
	/* a step can be started while another is in progress (engine_info.overlap), where the device
	 * can: takes memory for a second batch */
	int overlap;
	/* then: number of histories that the device makes drafts from, and the shortest match of the
	 * last tokens with earlier ones that makes one, 1 to KERN_MATCH_LONG. 0: none */
	uint32_t histories, history_match;
	/* called at most once, on any thread, on permanent failure (a rank or the device is gone);
	 * may be NULL */
	void (*broken)(void *arg, const char *why);
	void *broken_arg;
	/* called, on any thread, soon after words of a progress board were stored
	 * (engine_attach_board); must not wait. NULL: spans have no progress words */
	void (*progressed)(void *arg);
	void *progressed_arg;
};

struct engine_info {
	char name[128]; /* general.name (GGUF), or the name of the file or folder */
	char arch[32];  /* "llama" */
	/* context: longest sequence that the model supports */
	uint32_t layers, hidden, heads, kv_heads, head_dim, vocab, context;
	uint64_t params, weight_bytes; /* sim: params of the modelled model, weight_bytes 0 */
	/* of configuration, tokenizer and all bytes of the tensors (fingerprint.h) */
	char fingerprint[65];
	/* the numerics id, "cpu-r4:tp1:bf16". Always tp1: the bits are the same at any tp and pp
	 * (tp.h) */
	char numerics[96];
	uint32_t eos[8], n_eos; /* end-of-sequence ids */
	int has_hidden;         /* engine_opts.hidden */
	/* 1: two steps may be in flight. Not on a device that computes in the calling thread, and not
	 * with several stages */
	int overlap;
	uint32_t histories, history_tokens; /* that the device has; tokens that one can hold */
	char backend[16];                   /* backend and index of the device that has the KV pool */
	int device;
	struct kv_layout kv;
};

/* What a model takes on a GPU of each rank: of the rank that needs most. */
struct engine_plan {
	char name[128];
	uint32_t context;
	uint64_t params, matrix_bytes; /* matrix_bytes: of the weights without vectors */
	/* step_bytes: activations and batches; program_bytes: an upper estimate of what the kernels
	 * need beside them; block_bytes: a KV block's part */
	uint64_t weight_bytes, step_bytes, program_bytes, block_bytes;
};
/* From the model's header alone, or from a config.json without its weights, whose types are then
 * those that such folders usually have. Opens no device. ERR_INVALID or ERR_UNSUPPORTED (the model
 * cannot be divided among so many ranks), and errors of engine_open. */
int engine_plan(const struct engine_opts *opts, struct engine_plan *ret, struct err *err);
int engine_open(const struct engine_opts *opts, struct engine **ret_e, struct err *err);
void engine_close(struct engine **e);
const struct engine_info *engine_info(const struct engine *e);
/* The device's counters. Any thread, at any time. */
void engine_counters(const struct engine *e, struct kern_counters *ret);
/* Bytes of memory that a backend's device has, which need not be open; 0: it uses the host's, or
 * there is no such device. */
uint64_t engine_memory_bytes(const char *backend, int device);
void engine_device_info(const struct engine *e, struct kern_info *ret);

/* Registers the memory that contains the spans' progress words, a shared mapping; it must stay
 * mapped until engine_close. Call it before the first step that has progress words. */
int engine_attach_board(struct engine *e, void *board, size_t bytes, struct err *err);

/* For a device with its own memory, before the pool exists: how many bytes are free once the memory
 * for steps is taken (it makes the step's program and drops it). With several ranks: the size of a
 * pool whose parts fit on each of their devices. 0, or ERR_IO (the device does not report it),
 * ERR_INVALID (ranks share a device) or an error of the device. */
int engine_pool_room(struct engine *e, uint64_t *ret_bytes, struct err *err);
/* Call once: makes the KV pool, `blocks` blocks of engine_info.kv in device memory, zeroed; on
 * several devices with memory of their own each rank has a part (layout.h), and each stage has one
 * on any device. ret_data, unless NULL: descriptors of it for other processes, owned by the caller;
 * on a device with memory of its own, and with several stages, none without pool_shared. 0,
 * ERR_INVALID (blocks), ERR_NOMEM, ERR_EXISTS, ERR_IO. */
int engine_new_pool(struct engine *e, uint32_t blocks, struct kv_data *ret_data, struct err *err);
/* The pool's memory, or this process's part; `host` is NULL if the host cannot address it. */
const struct kern_mem *engine_pool(const struct engine *e);

/* Maximum length of the lists of a draw's edit, without the tokens that it has seen: ids of bad
 * words and of ends, and twice the ids with a bias. */
enum { ENGINE_DRAW_LISTS_MAX = 8192 };

enum engine_logits { ENGINE_LOGITS_NONE, ENGINE_LOGITS_LAST, ENGINE_LOGITS_ALL };

struct engine_span {
	/* n ids; ERR_INVALID if one is not below vocab */
	const uint32_t *tokens;
	uint32_t n, position; /* positions position .. position + n - 1 */
	/* the last of its tokens that are guesses of what will be drawn: they count as long as they are
	 * right. The row before them and each of them draws */
	uint32_t drafts;
	/* 0; or 1 + the number of a span of the step that was started before this one, whose draws
	 * only the device knows yet: the first token is what the last of its rows that counts draws.
	 * `tokens` is not read: the device makes the drafts (n is 1 + drafts), from `history`.
	 * `position`, and the index of each draw, are those for the case that no draft of that span
	 * is right */
	uint32_t continues;
	/* with drafts of the device, and in all steps after it, which must continue this one: 1 + the
	 * history's number, that no other sequence has. n_known is not 0: it begins anew, with these
	 * last tokens of the sequence before those that span `continues` draws */
	uint32_t history, n_known;
	const uint32_t *known;
	/* the sequence's block table from its first block; must cover position + n tokens, and as many
	 * as the span that it continues has drafts */
	const uint32_t *blocks;
	enum engine_logits logits;
	/* NULL, or (info.hidden): instead of logits, the hidden states of the selected rows after the
	 * final norm are added to it, row after row. So the sum over a prompt does not depend on its
	 * chunks. Not with draws */
	double *hidden;
	/* one per row that `logits` selects; NULL: nothing is drawn, read the rows by
	 * engine_logits() */
	const struct engine_draw *draws;
	uint32_t logits_row; /* out: index of the first of these rows there */
	/* out: one result per row, valid until the next step starts; with info.overlap until the one
	 * after the next starts */
	const struct kern_drawn *drawn;
	/* once this span's KV of layer l is in the pool, the device stores progress_value to
	 * progress[l * progress_stride] (words of the board); NULL: none */
	uint64_t *progress;
	size_t progress_stride;
	uint64_t progress_value;
};

/* Starts one forward pass over all spans, which writes the KV of all rows. If the spans' draws
 * exceed a batch, they are split over several passes, and spans with `hidden` take passes of their
 * own (put them next to each other); the results are bit-identical. All spans are checked before
 * anything is written, and read before this returns, except `hidden`. One step may be in flight, or
 * two (info.overlap). 0, ERR_INVALID (a limit or an id, with value and limit), or ERR_IO (device):
 * then nothing of it is in flight. */
int engine_start(struct engine *e, struct engine_span *spans, uint32_t n_spans, struct err *err);
/* Waits for the step that was started first of those in flight: its results are ready. 0, or ERR_IO
 * (device): they are not. */
int engine_finish(struct engine *e, struct err *err);
/* Both. */
int engine_step(struct engine *e, struct engine_span *spans, uint32_t n_spans, struct err *err);
/* (max_logits, vocab) float32 of the last step, in which no span had draws; copied from the device
 * at the first call after the step, when none is in flight; for tests and tools. */
const float *engine_logits(struct engine *e, uint32_t row);
/* Why the engine has failed for good (a rank or the device is gone), or NULL. */
const char *engine_broken(const struct engine *e);
/* Increases while a step advances, several times in each layer, and while another stage is waited
 * for, whose own limit then applies (tp.h). Any thread, at any time. */
uint64_t engine_pulse(const struct engine *e);

/* What pdrank tells the process that is to be a stage of another host's pipeline. */
struct engine_stage {
	uint32_t stage, stages;
	char host[ENDPOINT_BYTES_MAX + 1]; /* where stage 0 listens */
	uint16_t port;
	struct wire_ticket ticket;
	char model_path[4096], log_file[4096]; /* "": as on that host; stderr */
	int device_index;
	unsigned threads; /* as in engine_opts */
};
/* main() of such a process, which is told by socket `fd` and ends when that is closed. Returns the
 * exit status: 0 if the worker has ended the connection; else the reason is logged. */
int engine_stage_main(int fd);
/* main() of the program pdrank: a rank of another process's engine, connected by socket `fd`.
 * Returns the exit status. */
int engine_rank_main(int fd);

#endif
