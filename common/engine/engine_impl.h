/* engine_impl.h - the engine's own state, shared by engine.c (life), weights.c (loading), record.c
 * (the program), step.c (running it) and ranks.c (several processes). */
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
	struct mla *mla; /* replaces k, v, and q if queries have a rank */
	struct moe *moe; /* replaces gate, up, down */
};

/* This rank's part of each layer; everything if there is one rank. A column of a product is a row
 * of its matrix. */
struct shard {
	struct tp_share kv_heads, heads; /* whole groups: heads of these KV heads */
	/* columns of o and down, of gate and up, of the head; rows of the embedding */
	struct tp_share hidden, ffn, vocab;
	/* columns of gate and up: of each expert, and of the shared expert */
	struct tp_share expert, shared;
};

/* Activations of a step, float32, for max(max_rows, max_logits) rows unless stated otherwise.
 * att, sum, act, expert_act and logits are GROUP memory: whole rows, of which each rank writes its
 * columns. */
struct scratch {
	struct kern_tensor x;              /* (hidden) residual stream */
	struct kern_tensor h;              /* (hidden) after a norm */
	struct kern_tensor qkv;            /* (engine_qkv_width) */
	struct kern_tensor att;            /* (heads, engine_att_width) */
	struct kern_tensor sum;            /* (hidden) added to x next */
	struct kern_tensor gate_up;        /* (2 own ffn), of a dense layer or of the shared expert */
	struct kern_tensor act;            /* (ffn), of a dense layer or of the shared expert */
	struct kern_tensor expert_act;     /* (rows x active, expert ffn): one row per (row, expert) */
	struct kern_tensor route;          /* (experts) */
	kern_ptr route_ids, route_weights; /* (rows, active) */
	/* (limits.results) struct kern_kept; 0 if steps do not overlap; histories of sequences */
	kern_ptr kept, histories;
	struct kern_tensor mla_q_a; /* (q_rank) */
	/* of mla_heads heads at a time: (heads, kv_rank + rope), (heads, kv_rank) */
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
	struct layer *layer;
	struct kern_weight *embed, *head; /* the same if tied */
	struct vectors vectors;
	kern_ptr final_norm;
	struct kern_rope rope[MODEL_ROPES]; /* of conf.rope */
	uint32_t mla_heads;
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
	struct kern_program *program; /* of one step; made when the pool exists */
	/* all rows up to the final norm, whose result stays in s.h; NULL without opts.hidden */
	struct kern_program *hidden_program;
	float *hidden_rows; /* (ENGINE_HIDDEN_ROWS, hidden) copied from the device; rank 0 */
	struct kern_mem board, pool;
	struct model_source src; /* open while weights are loaded */
	int src_open;
	struct fingerprint *print;              /* NULL: not begun, or finished */
	struct kern_kv_layer kv[KV_LAYERS_MAX]; /* this rank's heads */
	uint32_t kv_blocks;
	struct tp *tp; /* NULL: a single rank */
	unsigned rank;
	int has_progress; /* spans may have progress words */
	struct shard shard;
};

/* A row of qkv: this rank's queries, keys and values; with latent attention all heads' queries,
 * then the latent and the rotated part. */
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
/* Bytes on the device of this rank's rows of a tensor; of all rows where ranks share memory. */
uint64_t weights_bytes(const struct engine *e, enum model_role role, const struct model_tensor *t);
/* engine.c: bytes that the device needs for a step's program, in addition to the engine's
 * memory. */
size_t engine_program_bytes(const struct engine *e);
/* record.c: records the programs of steps over the pool. */
int engine_record(struct engine *e, struct err *err);
/* step.c, for other ranks; a failure fails the group. engine_follow: starts one of the programs on
 * the part of the batch that rank 0 has laid out, and waits for the step before it; for this one if
 * steps do not overlap. */
int engine_follow(struct engine *e, struct kern_program *p, uint32_t flight);
/* Waits for all that is in flight. */
int engine_settle(struct engine *e);
/* engine.c: records the program over e->pool, which has `blocks` blocks. */
int engine_use_pool(struct engine *e, uint32_t blocks, struct err *err);
/* Opens a rank's engine in the group that it has joined; the caller keeps tp. */
int engine_open_rank(const struct engine_opts *opts, int has_progress, struct tp *tp,
                     struct engine **ret_e, struct err *err);
/* engine.c: bytes of this rank's pool. What is free on this rank's device, as the size of a whole
 * pool. */
size_t engine_pool_bytes(const struct engine *e, uint32_t blocks);
/* The number of a rank's device. */
int engine_device_of(const struct engine *e, unsigned rank);
/* A descriptor of this rank's pool, owned by the caller. */
int engine_share_pool(struct engine *e, int *ret_fd, struct err *err);
int engine_device_room(struct engine *e, uint64_t *ret_bytes, struct err *err);
/* ranks.c, in this order: whether model and device can be shared out; computes this rank's part;
 * starts the other ranks; waits until all ranks get here or one has failed; engine_pool_room of all
 * ranks; the other ranks' part of engine_new_pool; compute threads of one rank. */
int ranks_check(struct engine *e, struct err *err);
void ranks_share_out(struct engine *e);
int ranks_start(struct engine *e, struct err *err);
int ranks_await(struct engine *e, struct err *err);
int ranks_room(struct engine *e, uint64_t *ret_bytes, struct err *err);
/* ret_data: as engine_new_pool's, left alone unless the pool is divided */
int ranks_attach(struct engine *e, uint32_t blocks, struct kv_data *ret_data, struct err *err);
unsigned ranks_threads(const struct engine_opts *o);
/* Orders a step of the other ranks: TP_STEP or TP_HIDDEN. */
void ranks_step(struct engine *e, enum tp_order kind, uint32_t flight);
/* weights.c: the device's last error as an engine error. */
int engine_device_error(struct engine *e, int kern_rc, const char *doing, struct err *err);

#endif
