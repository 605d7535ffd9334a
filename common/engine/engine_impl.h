/* engine_impl.h - the engine's own state, shared by engine.c (life), weights.c (loading), record.c
 * (the program), step.c (running it) and ranks.c (several processes). */
#ifndef ENGINE_IMPL_H
#define ENGINE_IMPL_H

#include "engine/engine.h"
#include "engine/fingerprint.h"
#include "engine/model.h"
#include "engine/model_sim.h"
#include "engine/tp.h"

/* Per layer, on the device. NULL and 0 are what the model has not. */
struct layer {
	kern_ptr attn_norm, q_norm, k_norm, attn_post_norm, ffn_norm, ffn_post_norm;
	struct kern_weight *q, *k, *v, *o, *gate, *up, *down;
	kern_ptr sinks; /* of this rank's heads */
	kern_ptr q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
	struct mla *mla; /* in place of q (unless it has no rank), k, v */
	struct moe *moe; /* in place of gate, up, down */
};

/* What this rank computes of each layer; all of it when it is alone. Columns of a product are
 * rows of its matrix. */
struct shard {
	struct tp_share kv_heads, heads; /* whole groups: heads of these KV heads */
	/* columns of o and down, of gate and up, of the head; rows of the embedding */
	struct tp_share hidden, ffn, vocab;
	/* columns of gate and up of each expert, and of the one that all rows pass */
	struct tp_share expert, shared;
};

/* Activations of a step, float32, for max_rows or max_logits rows, whichever are more, unless said
 * otherwise. What several ranks see (tp.h) is att, sum, act and logits: whole rows, of which
 * each rank writes its columns. */
struct scratch {
	struct kern_tensor x;              /* (hidden) residual stream */
	struct kern_tensor h;              /* (hidden) after a norm */
	struct kern_tensor qkv;            /* (engine_qkv_width) */
	struct kern_tensor att;            /* (heads, engine_att_width) */
	struct kern_tensor sum;            /* (hidden) what is added to x next */
	struct kern_tensor gate_up;        /* (2 own ffn), of a dense layer or of the shared expert */
	struct kern_tensor act;            /* (ffn), of a dense layer or of the shared expert */
	struct kern_tensor expert_act;     /* (rows, active, expert ffn), a row of it for each pair */
	struct kern_tensor route;          /* (experts) */
	kern_ptr route_ids, route_weights; /* (rows, active) */
	struct kern_tensor mla_q_a;        /* (q_rank) */
	/* of mla_heads heads at a time: (heads, kv_rank + rope), (heads, kv_rank) */
	struct kern_tensor mla_q, mla_out;
	/* (max_logits rows): rows of the last layer that go on to the head */
	struct kern_tensor tail_x, tail_qkv;
	struct kern_tensor logits; /* (max_logits, vocab) */
};

/* Vectors, side by side in pieces of device memory. */
struct vectors {
	struct kern_mem *piece; /* (pieces) */
	size_t pieces, used;    /* bytes of the last piece */
};

struct engine {
	struct engine_opts opts;
	char *path; /* of the model */
	struct engine_info info;
	struct model_conf conf;
	struct model_sim *sim; /* NULL: a real model */
	_Atomic(char *) lost;  /* why the device is of no use any more; NULL: it is */
	const struct kern_ops *ops;
	struct kern_device *dev;
	struct kern_stream *stream;
	struct layer *layer;
	struct kern_weight *embed, *head; /* the same when tied */
	struct vectors vectors;
	kern_ptr final_norm;
	struct kern_rope rope[MODEL_ROPES]; /* of conf.rope */
	uint32_t mla_heads;
	struct scratch s;
	struct kern_mem own;    /* scratch of this rank alone */
	struct kern_mem logits; /* DEVICE, */
	/* PINNED; with several ranks both are parts of what they share */
	struct kern_mem batch;
	struct kern_mem results;  /* PINNED: (max_logits) struct kern_drawn of one run */
	struct kern_drawn *drawn; /* (max_logits) of the last step */
	/* of its logits, of which `copied` rows are there; NULL: nobody has asked yet */
	float *copy;
	uint32_t copied, tail_rows; /* tail_rows: of the last run */
	uint32_t list_words;        /* that a batch has for masks and lists of its draws */
	/* (max_spans) of the present step: how many of them each span's draws take */
	size_t *listed;
	struct kern_mem shared; /* that mapping, with several ranks */
	struct kern_limits limits;
	struct kern_program *program; /* of one step; made when the pool is attached */
	struct kern_mem board, pool;
	struct model_source src; /* open while weights are loaded */
	int src_open;
	struct fingerprint *print;              /* NULL: not begun, or there is one */
	struct kern_kv_layer kv[KV_LAYERS_MAX]; /* this rank's heads */
	uint32_t kv_blocks;
	struct tp *tp; /* NULL: alone */
	unsigned rank;
	int has_progress; /* spans may have progress words */
	struct shard shard;
};

/* A row of qkv: this rank's queries, keys and values; with latent attention all queries, then
 * latent and rotated part. */
static inline uint32_t engine_qkv_width(const struct engine *e)
{
	const struct model_conf *c = &e->conf;
	return e->shard.heads.count * c->head_dim + (c->mla.kv_rank
	                                                 ? c->mla.kv_rank + c->mla.rope
	                                                 : 2 * e->shard.kv_heads.count * c->head_dim);
}
/* What attention gives for a head. */
static inline uint32_t engine_att_width(const struct model_conf *c)
{
	return c->mla.kv_rank ? c->mla.v : c->head_dim;
}
/* Loads every tensor; on failure what was loaded is freed by weights_free. */
int weights_load(struct engine *e, struct err *err);
void weights_free(struct engine *e);
/* engine.c: what the device needs for the program of a step, beside the engine's own memory. */
size_t engine_program_bytes(const struct engine *e);
/* record.c: the program of a step, once the pool is attached. */
int engine_record(struct engine *e, struct err *err);
/* step.c: runs the program over the batch that rank 0 has laid out; a failure fails the group. */
int engine_run(struct engine *e);
/* engine.c: e->pool is there, of `blocks` blocks: the program is recorded over it. */
int engine_use_pool(struct engine *e, uint32_t blocks, struct err *err);
/* Opens a rank's engine on the group that it has joined; tp stays the caller's. */
int engine_open_rank(const struct engine_opts *opts, int has_progress, struct tp *tp,
                     struct engine **ret_e, struct err *err);
/* ranks.c. What all ranks see of a step; whether the model and device can be shared out; this
 * rank's part; the others' start; all are ready; the KV pool's memory for the others; compute
 * threads of one rank. */
struct tp_sizes engine_whole_sizes(const struct engine *e);
int ranks_check(struct engine *e, struct err *err);
void ranks_share_out(struct engine *e);
int ranks_start(struct engine *e, struct err *err);
int ranks_await(struct engine *e, struct err *err);
int ranks_attach(struct engine *e, uint32_t blocks, struct err *err);
unsigned ranks_threads(const struct engine_opts *o);
/* The latest error of the device as an engine error. */
int engine_device_error(struct engine *e, int kern_rc, const char *doing, struct err *err);

#endif
