/* engine_impl.h - the engine's own state, shared by engine.c (life), weights.c (loading), forward.c (one step) and ranks.c (several processes). */
#ifndef ENGINE_IMPL_H
#define ENGINE_IMPL_H

#include "engine/engine.h"
#include "engine/model.h"
#include "engine/model_sim.h"
#include "engine/tp.h"

/* Per layer, on the device. NULL is what the model has not. */
struct layer {
	float *attn_norm, *q_norm, *k_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm;
	struct kern_weight *q, *k, *v, *o, *gate, *up, *down;
	float *sinks;                              /* of this rank's heads */
	float *q_bias, *k_bias, *v_bias, *o_bias, *gate_bias, *up_bias, *down_bias;
	struct mla *mla;                           /* in place of q (unless it has no rank), k, v */
	struct moe *moe;                           /* in place of gate, up, down */
};

/* What this rank computes of each layer; all of it when it is alone. Columns of a product are rows of its matrix. */
struct shard {
	struct tp_share kv_heads, heads;           /* whole groups: heads of these KV heads */
	struct tp_share hidden, ffn, vocab;        /* columns of o and down, of gate and up, of the head; rows of the embedding */
	struct tp_share expert, shared;            /* columns of gate and up of each expert, and of the one that all rows pass */
};

/* Device memory of one step, each for max_rows rows unless said otherwise. own_: this rank's columns alone; the same memory as the
 * whole when it is alone. What all ranks see (tp.h) is att, sum, act and logits. */
struct scratch {
	float *x;          /* (hidden) residual stream */
	float *h;          /* (hidden) after a norm */
	float *qkv;        /* (engine_qkv_width) */
	float *own_att, *att;       /* (heads, engine_att_width) */
	float *sum;        /* (hidden) what is added to x next */
	float *gate_up;    /* (2 own ffn), of a dense layer or of the shared expert */
	float *own_act, *act;       /* (ffn); with experts those of a row's experts, then the shared one's: (rows, active, ffn), (rows, ffn) */
	float *route;      /* logits (rows, experts), weights (rows, active), ids (rows, active) */
	float *mla_q_a;    /* (q_rank) */
	float *mla_q, *mla_out;     /* of mla_heads heads at a time: (heads, kv_rank + rope), (heads, kv_rank) */
	float *tail_x, *tail_qkv;   /* (max_logits rows): rows of the last layer that go on to the head */
	float *logits;     /* (max_logits, vocab) */
};

/* The batch as the device reads it: one block of words, uploaded at once. Offsets in words. */
struct batch_words {
	uint32_t *host, *dev;
	size_t words, used;                                  /* room; of this step. host is shared with the other ranks */
	size_t tokens, positions, spans, table;              /* the whole batch */
	size_t tail_index, tail_positions, tail_spans;       /* rows of the last layer */
};

struct engine {
	struct engine_opts opts;
	char *path;                         /* of the model */
	struct engine_info info;
	struct model_conf conf;
	struct model_sim *sim;              /* NULL: a real model */
	const struct kern_ops *ops;
	struct kern_device *dev;
	struct kern_stream *stream;
	struct layer *layer;
	struct kern_weight *embed, *head;   /* the same when tied */
	float *final_norm, *inv_freq[MODEL_ROPES];
	struct kern_rope rope[MODEL_ROPES];         /* of conf.rope */
	uint32_t mla_heads;
	struct scratch s;
	struct batch_words b;
	float *host_logits;                 /* what engine_logits shows; s.logits itself if the device writes host memory */
	size_t host_logits_bytes;
	int logits_shared;
	struct model_source src;            /* kept open while a weight borrows from it */
	int src_open, borrows;
	struct kern_kv_layer kv[KV_LAYERS_MAX];     /* this rank's heads */
	void *kv_host, *kv_dev;
	uint32_t kv_blocks;
	_Atomic uint64_t pulse;             /* the stepping thread's; read by any */
	struct tp *tp;                      /* NULL: alone */
	unsigned rank;
	void *tp_dev;                       /* the ranks' shared memory as the device sees it */
	struct shard shard;
};

/* A row of qkv: this rank's queries, keys and values; with latent attention all queries, then latent and rotated part. */
static inline uint32_t engine_qkv_width(const struct engine *e)
{
	const struct model_conf *c = &e->conf;
	return e->shard.heads.count * c->head_dim + (c->mla.kv_rank ? c->mla.kv_rank + c->mla.rope : 2 * e->shard.kv_heads.count * c->head_dim);
}
/* What attention gives for a head. */
static inline uint32_t engine_att_width(const struct model_conf *c)
{
	return c->mla.kv_rank ? c->mla.v : c->head_dim;
}
/* Loads every tensor; on failure what was loaded is freed by weights_free. */
int weights_load(struct engine *e, struct err *err);
void weights_free(struct engine *e);
/* What rank 0 tells the others of a step; the batch itself lies in the shared words. */
struct rank_step {
	uint32_t rows, spans, table_len, tail_rows, tail_spans;
	int whole_tail;      /* every row goes to the head */
	int publish;         /* ranks meet after each layer's KV write, so that it can be told on */
	struct batch_words at;   /* offsets; no pointers */
};
/* Does this rank's share of it; a failure fails the group. */
void engine_rank_step(struct engine *e, const struct rank_step *order);
/* engine.c: this process's view of a pool. */
int engine_attach_own(struct engine *e, void *data, uint32_t blocks, size_t bytes, struct err *err);
/* Opens a rank's engine on the group that it has joined; tp stays the caller's. */
int engine_open_rank(const struct engine_opts *opts, struct tp *tp, struct engine **ret_e, struct err *err);
/* ranks.c. What all ranks see of a step; whether the model and device can be shared out; this rank's part; the others' start; all are ready;
 * the KV pool's memory for the others; compute threads of one rank. */
struct tp_sizes engine_whole_sizes(const struct engine *e);
int ranks_check(struct engine *e, struct err *err);
void ranks_share_out(struct engine *e);
int ranks_start(struct engine *e, struct err *err);
int ranks_await(struct engine *e, struct err *err);
int ranks_attach(struct engine *e, int fd, uint32_t blocks, size_t bytes, struct err *err);
unsigned ranks_threads(const struct engine_opts *o);
/* The latest error of the device as an engine error. */
int engine_device_error(struct engine *e, int kern_rc, const char *doing, struct err *err);

#endif
