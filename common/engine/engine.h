/* engine.h - a model on a device: what both kinds of worker share. One thread (the worker's
 * schedule thread) calls engine_step.
 *
 * The engine owns weights, device, scratch and the KV pool's memory, which other processes map by a
 * descriptor. It knows no requests: a step is a list of spans over sequences' block tables.
 * Everything has its full size from engine_open on; a step allocates nothing. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/draw.h"
#include "kernels/kernels.h"
#include "kv/layout.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

struct engine;

struct engine_opts {
	/* a .gguf file or a Hugging Face folder with safetensors; sim: a description as in etc/sim/ */
	const char *model_path;
	const char *backend; /* "cpu" (NULL), "sim", or one that is loaded (kern_backend) */
	const char *variant; /* see kern_config */
	int device_index;    /* of the backend's devices */
	/* 0: all cores; with tp > 1 those of all ranks together, each takes an equal part */
	unsigned threads;
	/* tensor parallel: processes that share the work (tp.h); 0 or 1: this one alone. cpu only */
	unsigned tp;
	enum kv_type kv_type;
	enum kern_dtype activations; /* see kern_config: KERN_F32 (0) or KERN_BF16 */
	uint32_t block_tokens;
	/* tokens of one step: max_batched_tokens, or max sequences when decoding */
	uint32_t max_rows;
	uint32_t max_logits; /* rows of logits of one step */
	uint32_t max_spans;  /* sequences of one step */
	uint32_t max_table;  /* block table entries of one step over all spans */
	/* rows of one span that a token is drawn from: 1 (0 too), and the longest draft */
	uint32_t max_draws;
	/* called at most once, on any thread, on permanent failure (a rank or the device is gone);
	 * may be NULL */
	void (*broken)(void *arg, const char *why);
	void *broken_arg;
	/* called, on any thread, soon after words of a progress board were stored
	 * (engine_attach_board); must not wait. NULL: spans have no progress, and none is stored */
	void (*progressed)(void *arg);
	void *progressed_arg;
};

struct engine_info {
	char name[128]; /* general.name or the folder's name */
	char arch[32];  /* "llama" */
	/* context: longest sequence that the model was made for */
	uint32_t layers, hidden, heads, kv_heads, head_dim, vocab, context;
	uint64_t params, weight_bytes; /* sim: params of the modelled model, and no bytes */
	/* of configuration, tokenizer and all bytes of the tensors (fingerprint.h) */
	char fingerprint[65];
	/* "cpu-r4:tp1:bf16": the numerics id. The cpu backend computes the bits of tp1 at any tp
	 * (tp.h) */
	char numerics[96];
	uint32_t eos[8], n_eos; /* end-of-sequence ids */
	char backend[16];       /* whose memory the KV pool is, and: */
	int device;
	struct kv_layout kv;
};

int engine_open(const struct engine_opts *opts, struct engine **ret_e, struct err *err);
void engine_close(struct engine **e);
const struct engine_info *engine_info(const struct engine *e);
/* What the device counted. Any thread, at any time. */
void engine_counters(const struct engine *e, struct kern_counters *ret);
void engine_device_info(const struct engine *e, struct kern_info *ret);

/* The memory that spans' progress words lie in, a shared mapping; it must stay mapped until
 * engine_close. Before the first step that has some. */
int engine_attach_board(struct engine *e, void *board, size_t bytes, struct err *err);

/* For a device with memory of its own, before there is a pool: how many bytes of it are free once
 * steps have what they need (their program is made and forgotten). ERR_NOMEM, ERR_IO. */
int engine_pool_room(struct engine *e, uint64_t *ret_bytes, struct err *err);
/* Once: makes the KV pool, `blocks` blocks of engine_info.kv in memory of the device, zeroed.
 * ret_fd, unless NULL: a descriptor of it for other processes (the caller's). ERR_INVALID
 * (blocks), ERR_NOMEM, ERR_EXISTS, ERR_IO. */
int engine_new_pool(struct engine *e, uint32_t blocks, int *ret_fd, struct err *err);
/* Its memory; `host` is NULL where the host cannot address it. */
const struct kern_mem *engine_pool(const struct engine *e);

/* What a draw's edit may list, beside the tokens that it has seen: ids of bad words and of ends,
 * and twice those with a bias. */
enum { ENGINE_DRAW_LISTS_MAX = 8192 };

enum engine_logits { ENGINE_LOGITS_NONE, ENGINE_LOGITS_LAST, ENGINE_LOGITS_ALL };

struct engine_span {
	/* n ids, checked < vocab by the engine: ERR_INVALID fails the step before anything is
	 * written */
	const uint32_t *tokens;
	uint32_t n, position; /* positions position .. position + n - 1 */
	/* the sequence's block table from its block 0; must cover position + n tokens */
	const uint32_t *blocks;
	enum engine_logits logits;
	/* what is asked of each of these rows; NULL: nothing, the rows are read with engine_logits() */
	const struct engine_draw *draws;
	uint32_t logits_row;            /* out: the first of them there */
	const struct kern_drawn *drawn; /* out: what came of each, until the next step */
	/* once this span's KV of layer l is in the pool the device stores progress_value to
	 * progress[l * progress_stride] (words of the board); NULL: none */
	uint64_t *progress;
	size_t progress_stride;
	uint64_t progress_value;
};

/* One forward pass over all spans: KV of all rows is written, results are there on return (the
 * device is synchronised). Spans whose draws are more than a batch holds are split over several
 * passes; the results are bit-identical. 0, ERR_INVALID (a bound or id, with the value and the
 * limit), or ERR_IO (device). */
int engine_step(struct engine *e, struct engine_span *spans, uint32_t n_spans, struct err *err);
/* (max_logits, vocab) float32 of the last step, in which no span had draws, copied from the
 * device at the first call after it; for tests and tools. */
const float *engine_logits(struct engine *e, uint32_t row);
/* Why the engine will never step again (a rank or the device is gone), or NULL. */
const char *engine_broken(const struct engine *e);
/* Grows while a step advances, several times in each layer. Any thread, at any time. */
uint64_t engine_pulse(const struct engine *e);

/* main() of the program pdrank: a rank of another process's engine, which it reaches by socket
 * `fd`. Returns the exit status. */
int engine_rank_main(int fd);

#endif
