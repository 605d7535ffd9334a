/* engine_impl.h - the engine's own state, shared by engine.c (life), weights.c (loading),
 * kv_pool.c, record.c (the programs), step.c (running them) and ranks.c (several processes). */
#ifndef ENGINE_IMPL_H
#define ENGINE_IMPL_H

#include "engine/engine.h"
#include "engine/fingerprint.h"
#include "engine/model.h"
#include "engine/model_sim.h"
#include "engine/tp.h"

/* Per layer, on the device. Parts that the model does not have are NULL or 0. */
struct layer {
	kern_ptr attn_norm, q_norm, k_norm, attn_post_norm, ffn_norm, ffn_post_norm;
	struct kern_weight *q, *k, *v, *o, *gate, *up, *down;
	kern_ptr sinks; /* of this rank's heads */
	kern_ptr q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
	int o_summed, down_summed; /* divided by columns (weights_divided) */
	struct mla *mla;           /* replaces k, v, and q if queries have a rank */
	struct moe *moe;           /* replaces gate, up, down */
};

/* This process's layers, and its part of each; everything if there is one process. A column of a
 * product is a row of its matrix. */
struct shard {
	struct tp_share layers; /* of its stage. Stage 0 also has the embedding and the head */
	/* heads of the cache, and the query heads that read them: whole groups, or, with more ranks
	 * than heads of the cache, a part of one group. Then several ranks have the same KV */
	struct tp_share kv_heads, heads;
	/* columns of o and down, unless these are divided by what they read; of gate and up; of the
	 * head; rows of the embedding */
	struct tp_share hidden, ffn, vocab;
	/* columns of gate and up: of each expert, and of the shared expert */
	struct tp_share expert, shared;
	/* the experts that it has: all, or whole ones (expert_parallel). Then, unless each rank has a
	 * part of every sum, the ranks exchange what these give (`exchanges`) */
	struct tp_share experts;
	int exchanges;
};

/* Activations of a step, float32 unless the engine `rounds`, for max(max_rows, max_logits) rows
 * unless stated otherwise.
 * att, sum, output, act, expert_act and logits are GROUP memory: whole rows, of which each rank
 * writes its columns (sum: rows); with whole experts expert_act is a rank's own, and pairs is. */
struct scratch {
	struct kern_tensor x;          /* (hidden) residual stream */
	struct kern_tensor h;          /* (hidden) after a norm */
	struct kern_tensor qkv;        /* (engine_qkv_width) */
	struct kern_tensor att;        /* (heads, engine_att_width) */
	struct kern_tensor sum;        /* (hidden), float32: rows that begin x */
	struct kern_tensor output;     /* (hidden) in the memory of sum: added to x next */
	struct kern_tensor part;       /* (hidden), bfloat16: the same, of divided sums */
	struct kern_tensor gate_up;    /* (2 own ffn), of a dense layer or of the shared expert */
	struct kern_tensor act;        /* (ffn), of a dense layer or of the shared expert */
	struct kern_tensor expert_act; /* (rows x active, expert ffn): one row per (row, expert) */
	struct kern_tensor pairs; /* (rows x active, hidden), float32: what these give (exchanges) */
	struct kern_tensor route; /* (experts) */
	kern_ptr route_ids, route_weights; /* (rows, active) */
	/* (limits.results) struct kern_kept; 0 if steps do not overlap; histories of sequences */
	kern_ptr kept, histories;
	struct kern_tensor mla_q_a; /* (q_rank) */
	/* of this rank's heads: (heads, kv_rank + rope), (heads, kv_rank) */
	struct kern_tensor mla_q, mla_out;
	/* (max_logits rows): the rows of the last layer that go on to the head */
	struct kern_tensor tail_x, tail_qkv;
	struct kern_tensor logits; /* (max_logits, vocab) */
};

/* Vectors, packed into pieces of device memory. */
struct vectors {
	struct kern_mem *piece; /* (pieces) */
	size_t pieces, used;    /* used: bytes of the last piece */
};

enum { ENGINE_HIDDEN_ROWS = 64 };

/* The rows of a span that its sequence continues after, among all results: its last token's, then
 * those of drafts. rows 0: no token is drawn. */
struct drawn_rows {
	uint32_t from, rows;
};

/* What a pass computes. */
enum pass { PASS_TOKENS, PASS_HIDDEN, PASSES };

/* A step from engine_start to engine_finish, and after it until its place is used again. */
struct step_in_flight {
	int done;                 /* its passes were waited for in engine_start */
	uint32_t spans;           /* 0: no step had this place yet */
	struct drawn_rows *drawn; /* (max_spans) */
};

struct engine {
	struct engine_opts opts;
	char *path; /* of the model */
	struct engine_info info;
	struct model_conf conf;
	struct model_sim *sim; /* NULL: a real model */
	_Atomic(char *) lost;  /* why the device is lost for good; NULL: it is not */
	const struct kern_ops *ops;
	struct kern_device *dev;
	struct kern_stream *stream;
	struct layer *layer;              /* (layers of the model), of which this stage has some */
	struct kern_weight *embed, *head; /* the same if tied */
	struct vectors vectors;
	kern_ptr final_norm;
	struct kern_rope rope[MODEL_ROPES]; /* of conf.rope */
	struct scratch s;
	struct kern_mem own, group; /* scratch of this rank alone; GROUP */
	/* PINNED: (flights) batches; with several ranks in their shared mapping */
	struct kern_mem batch;
	struct kern_mem results; /* PINNED: (flights, max_logits) struct kern_drawn */
	uint32_t flights;        /* steps that may be in flight: 1 or 2 */
	struct step_in_flight flight[KERN_FLIGHTS]; /* of step n: n % flights */
	uint64_t started, finished;                 /* steps */
	float *copy;                /* of the last run's logits, `copied` rows; NULL: never asked for */
	uint32_t copied, tail_rows; /* tail_rows: of the last run */
	uint32_t list_words;        /* limit of a batch for masks and lists of its draws */
	uint32_t max_table;         /* and for block table entries, over all spans */
	size_t *listed; /* (max_spans) of the current step: words that each span's draws take */
	struct kern_limits limits;
	/* made when the pool exists; of PASS_HIDDEN only with opts.hidden. A hidden pass computes all
	 * rows up to the final norm, whose result stays in s.h. With several stages: this one's layers;
	 * `finish`, NULL on other stages than 0: what stage 0 does when the last one has done its
	 * part */
	struct kern_program *program[PASSES], *finish[PASSES];
	float *hidden_rows; /* (ENGINE_HIDDEN_ROWS, hidden) copied from the device; rank 0 */
	struct kern_mem board, pool;
	struct model_source src; /* open while weights are loaded */
	int src_open;
	struct fingerprint *print;              /* NULL: not begun, or finished */
	const char *outline;                    /* other ranks: process 0's, until the model is open */
	struct kern_kv_layer kv[KV_LAYERS_MAX]; /* this rank's heads */
	uint32_t kv_blocks;
	struct tp *tp;        /* NULL: a single process */
	unsigned stage, rank; /* rank: within the stage */
	int has_progress;     /* spans may have progress words */
	/* the device adds up over the ranks: o and down are divided by the columns that they read, and
	 * each rank has a part of every sum */
	int reduces;
	int rounds; /* att, output, act, expert_act, mla_q and mla_out are bfloat16 */
	struct shard shard;
};

static inline unsigned engine_stages(const struct engine *e)
{
	return e->opts.pp > 1 ? e->opts.pp : 1;
}
/* Of a stage. */
static inline unsigned engine_ranks(const struct engine *e)
{
	return e->opts.tp > 1 ? e->opts.tp : 1;
}
static inline int engine_has_whole_experts(const struct engine *e)
{
	return e->opts.expert_parallel && engine_ranks(e) > 1;
}
/* This process among those of all stages (tp_rank); 0: the one whose engine was opened. */
static inline unsigned engine_process(const struct engine *e)
{
	return e->stage * engine_ranks(e) + e->rank;
}
static inline int engine_is_last_stage(const struct engine *e)
{
	return e->stage + 1 == engine_stages(e);
}
/* Heads of the cache: with latent attention all heads share one. */
static inline uint32_t engine_cache_heads(const struct model_conf *c)
{
	return c->mla.kv_rank ? 1 : c->kv_heads;
}
/* A row of qkv: this rank's queries, keys and values; with latent attention its queries, then the
 * latent and the rotated part. */
static inline uint32_t engine_qkv_width(const struct engine *e)
{
	const struct model_conf *c = &e->conf;
	return e->shard.heads.count * c->head_dim + (c->mla.kv_rank
	                                                 ? c->mla.kv_rank + c->mla.rope
	                                                 : 2 * e->shard.kv_heads.count * c->head_dim);
}
/* Elements that attention outputs per head. */
static inline uint32_t engine_att_width(const struct model_conf *c)
{
	return c->mla.kv_rank ? c->mla.v : c->head_dim;
}
/* Loads every tensor. After an error weights_free frees what was loaded. */
int weights_load(struct engine *e, struct err *err);
void weights_free(struct engine *e);
/* Whether this matrix, which reads `x`, is divided by columns of its own: with a device that
 * reduces, if each rank has some of x, in whole blocks of the matrix's type. Then *ret_columns is
 * this rank's. An element of x stands for `width` columns. */
int weights_divided(const struct engine *e, const struct model_tensor *t, struct tp_share x,
                    uint32_t width, struct tp_share *ret_columns);
/* In units of which what down reads is divided: with a device that reduces, whole blocks of down's
 * types. */
uint32_t weights_unit(const struct engine *e);
/* What a model's tensors take on a device. */
struct weights_size {
	uint64_t matrix_bytes, vector_bytes, params;
	uint64_t file_bytes; /* of whole tensors, as in the model's file */
};
/* What weights_load would take for this process's shard, by the same walk over the tensors. */
int weights_size(struct engine *e, struct weights_size *ret, struct err *err);
/* engine.c: bytes that the device needs for a step's program, in addition to the engine's
 * memory. */
size_t engine_program_bytes(const struct engine *e);
/* record.c: records the programs of steps over the pool. */
int engine_record(struct engine *e, struct err *err);
/* step.c, for other processes; a failure fails the group. engine_follow: starts this one's part of
 * a pass on the part of the batch that process 0 has laid out, and waits for the step before it;
 * for this one if steps do not overlap. */
int engine_follow(struct engine *e, enum pass pass, uint32_t flight);
/* Waits for all that is in flight. */
int engine_settle(struct engine *e);
/* engine.c: frees the programs of steps. */
void engine_drop_programs(struct engine *e);
/* kv_pool.c: records the programs over e->pool, which has `blocks` blocks. */
int engine_use_pool(struct engine *e, uint32_t blocks, struct err *err);
/* Opens a rank's engine in the group that it has joined; the caller keeps tp. */
int engine_open_rank(const struct engine_opts *opts, int has_progress, const char *outline,
                     struct tp *tp, struct engine **ret_e, struct err *err);
/* kv_pool.c: the pool's parts, and which of them is this process's. */
struct kv_parts engine_pool_parts(const struct engine *e);
uint32_t engine_pool_part(const struct engine *e);
/* kv_pool.c: bytes of this part of the pool. What is free on this process's device, as the size of
 * a whole pool. */
int engine_alloc_pool(struct engine *e, uint32_t blocks, struct err *err);
size_t engine_pool_bytes(const struct engine *e, uint32_t blocks);
/* The number of a process's device. */
int engine_device_of(const struct engine *e, unsigned process);
/* A descriptor of this part of the pool, owned by the caller. */
int engine_share_pool(struct engine *e, int *ret_fd, struct err *err);
int engine_device_room(struct engine *e, uint64_t *ret_bytes, struct err *err);
/* ranks.c, in this order: whether model and device can be shared out (ranks_check_model: the model
 * alone); computes this process's part; what the device needs of the other
 * processes; starts them; waits until all get here or one
 * has failed; engine_pool_room of all; engine_new_pool once process 0 has its part; compute threads
 * of one process. */
int ranks_check_model(const struct engine *e, struct err *err);
int ranks_check(struct engine *e, struct err *err);
void ranks_share_out(struct engine *e);
void ranks_connect(struct engine *e, struct kern_config *conf);
int ranks_start(struct engine *e, struct err *err);
int ranks_await(struct engine *e, struct err *err);
/* Of a rank, before it loads: ERR_CORRUPT if its model's outline is not process 0's. */
int ranks_check_outline(struct engine *e, struct err *err);
/* Waits until all have loaded. ERR_CORRUPT: another host's model has another fingerprint. */
int ranks_ready(struct engine *e, struct err *err);
int ranks_room(struct engine *e, uint64_t *ret_bytes, struct err *err);
/* ret_data: as engine_new_pool's, left alone unless the pool is divided */
int ranks_new_pool(struct engine *e, uint32_t blocks, struct kv_data *ret_data, struct err *err);
unsigned ranks_threads(const struct engine_opts *o);
/* Orders a pass of the other processes. */
void ranks_step(struct engine *e, enum pass pass, uint32_t flight);
/* weights.c: the device's last error as an engine error. */
int engine_device_error(struct engine *e, int kern_rc, const char *doing, struct err *err);

#endif
