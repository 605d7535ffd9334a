/* mla.c - multi-head latent attention: loading, and recording its operations of a step.
 *
 * The cache of a token is its latent (kv_rank elements, normed) and the rotated part of the key
 * that all heads share. Keys and values are never computed from it: the part of a head's query that
 * is not rotated, times the key part of kv_b, is a query for the latent itself, and the weighted
 * sum of latents, times the value part, is the head's output. Prefill and decode compute the same,
 * so a row's bits do not depend on which it is. With several ranks each has the queries of its
 * heads and the whole latent, which every rank computes and writes alike. Errors are returned and
 * name the tensor. */
#include "engine/mla.h"
#include "engine/model_fp8.h"
#include "kernels/numbers.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- loading ------------------------------------------------------------- */

/* 0: only the shape counts. */
static int has_values(const struct loader *l, const struct model_tensor *t)
{
	return t->data && !l->size;
}

static void load_head(struct loader *l, const struct model_tensor *t, uint32_t first, uint32_t n,
                      uint32_t head, struct kern_weight **w)
{
	load_part(l, t, (struct matrix_part){.rows = {.begin = first, .count = n}},
	          l->e->shard.heads.count, head, w);
}

/* Rows [first, first + n) of a matrix of plain (not block) elements, transposed to (k, n). */
static void transposed_rows(struct loader *l, const struct model_tensor *t, uint32_t first,
                            uint32_t n, uint32_t head, struct kern_weight **w)
{
	size_t size = kern_dtype_bytes(t->dtype, 1);
	if (!size) {
		l->rc = err_set(l->err, ERR_UNSUPPORTED,
		                "%.160s: tensor %s: found type %s, expected F32, F16 or BF16",
		                l->e->src.path, t->name, kern_dtype_name(t->dtype));
		return;
	}
	struct model_tensor turned = {.name = t->name, .dtype = t->dtype, .n = t->k, .k = n};
	if (has_values(l, t)) {
		unsigned char *out = mem_alloc((size_t)n * t->k * size);
		const unsigned char *in = (const unsigned char *)t->data + (size_t)first * t->k * size;
		for (uint32_t r = 0; r < n; r++)
			for (uint32_t i = 0; i < t->k; i++)
				memcpy(out + ((size_t)i * n + r) * size, in + ((size_t)r * t->k + i) * size, size);
		turned.data = turned.own = out;
	}
	load_head(l, &turned, 0, turned.n, head, w);
	free(turned.own);
}

/* Whether a transposed part of an FP8 matrix keeps one scale for 128 values of a row: rows
 * [first, first + n) share them in each 128 rows, as where a scale is of blocks that are not cut
 * by heads. */
static int keeps_scales(const struct model_tensor *t, uint32_t first, uint32_t n)
{
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t i = 0; i < t->k; i += KERN_E4M3_VALUES)
			if (model_fp8_scale(t, first + r, i) !=
			    model_fp8_scale(t, first + r - r % KERN_E4M3_VALUES, i))
				return 0;
	return 1;
}

/* Of all heads, so that ranks store the same type whatever their number. */
static int keeps_all_scales(const struct model_conf *c, const struct model_tensor *kv_b)
{
	const struct model_mla *d = &c->mla;
	for (uint32_t h = 0; h < c->heads; h++)
		if (!keeps_scales(kv_b, h * (d->nope + d->v), d->nope))
			return 0;
	return 1;
}

enum kern_dtype mla_key_type(const struct model_conf *c, const struct model_tensor *kv_b)
{
	return kv_b->dtype == KERN_E4M3 && !keeps_all_scales(c, kv_b) ? KERN_F32 : kv_b->dtype;
}

/* transposed_rows of an FP8 matrix: in FP8, or as float32, to which the product of scale and code
 * is rounded. */
static void transposed_fp8(struct loader *l, const struct model_tensor *t, uint32_t first,
                           uint32_t n, enum kern_dtype dtype, uint32_t head, struct kern_weight **w)
{
	enum { BLOCK = KERN_E4M3_VALUES };
	struct model_tensor turned = {.name = t->name, .dtype = dtype, .n = t->k, .k = n};
	if (!has_values(l, t)) {
		load_head(l, &turned, 0, turned.n, head, w);
		return;
	}
	size_t size = dtype == KERN_F32 ? sizeof(float) : 1;
	uint32_t across = (n + BLOCK - 1) / BLOCK;
	const unsigned char *in = (const unsigned char *)t->data + (size_t)first * t->k;
	unsigned char *out = mem_alloc((size_t)n * t->k * size);
	float *scales = mem_array((size_t)(t->k + BLOCK - 1) / BLOCK * across, sizeof *scales);
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t i = 0; i < t->k; i++) {
			unsigned char code = in[(size_t)r * t->k + i], *to = out + ((size_t)i * n + r) * size;
			float *scale = &scales[i / BLOCK * across + r / BLOCK];
			if (i % BLOCK == 0)
				*scale = model_fp8_scale(t, first + r, i);
			float v = *scale * kern_f8_to_f32(code);
			memcpy(to, dtype == KERN_F32 ? (const void *)&v : &code, size);
		}
	turned.data = out;
	turned.scales.data = scales;
	turned.scales.rows = turned.scales.columns = BLOCK;
	turned.scales.across = across;
	load_head(l, &turned, 0, turned.n, head, w);
	free(scales);
	free(out);
}

/* Splits kv_b into the matrices of this rank's heads. */
static void load_whole(struct loader *l, uint32_t layer, struct mla *m)
{
	const struct model_mla *d = &l->e->conf.mla;
	struct model_tensor kv_b;
	if (!load_find(l, MODEL_KV_B, layer, &kv_b))
		return;
	enum kern_dtype key_type = mla_key_type(&l->e->conf, &kv_b);
	for (uint32_t h = 0; h < m->heads && !l->rc; h++) {
		uint32_t first = (l->e->shard.heads.begin + h) * (d->nope + d->v);
		if (kv_b.dtype == KERN_E4M3)
			transposed_fp8(l, &kv_b, first, d->nope, key_type, h, &m->key);
		else
			transposed_rows(l, &kv_b, first, d->nope, h, &m->key);
		load_head(l, &kv_b, first + d->nope, d->v, h, &m->value);
	}
	fingerprint_drop(l->e->print, &kv_b);
}

/* The same from a file that has two tensors, with the keys' part already transposed. */
static void load_parts(struct loader *l, uint32_t layer, struct kern_weight **w, int value,
                       uint32_t rows)
{
	struct engine *e = l->e;
	struct model_tensor t;
	if (l->rc || !load_found(l, model_latent_get(&e->src, &e->conf, value, layer, &t, l->err), &t))
		return;
	for (uint32_t h = 0; h < e->shard.heads.count && !l->rc; h++)
		load_head(l, &t, (e->shard.heads.begin + h) * rows, rows, h, w);
	fingerprint_drop(l->e->print, &t);
}

struct mla *mla_load(struct loader *l, uint32_t layer)
{
	const struct model_conf *c = &l->e->conf;
	const struct model_mla *d = &c->mla;
	char name[64];
	if (!d->kv_rank || l->rc)
		return NULL;
	struct mla *m = mem_zalloc(sizeof *m);
	m->q_a = load_matrix(l, MODEL_Q_A, layer);
	m->q_a_norm = load_norm(l, MODEL_Q_A_NORM, layer);
	m->q_b = load_matrix(l, MODEL_Q_B, layer);
	m->kv_a = load_matrix(l, MODEL_KV_A, layer);
	m->kv_a_norm = load_norm(l, MODEL_KV_A_NORM, layer);
	m->heads = l->e->shard.heads.count;
	snprintf(name, sizeof name, "blk.%u.attn_k_b.weight", layer);
	if (l->e->src.kind == MODEL_GGUF && model_has_tensor(&l->e->src, name)) {
		load_parts(l, layer, &m->key, 0, d->kv_rank);
		load_parts(l, layer, &m->value, 1, d->v);
	} else {
		load_whole(l, layer, m);
	}
	return m;
}

void mla_free(struct engine *e, struct mla **mp)
{
	struct mla *m = *mp;
	if (!m)
		return;
	free_matrix(e, &m->key);
	free_matrix(e, &m->value);
	free_matrix(e, &m->q_a);
	free_matrix(e, &m->q_b);
	free_matrix(e, &m->kv_a);
	free(m);
	*mp = NULL;
}

/* --- a step -------------------------------------------------------------- */

/* Writes the queries of this rank's heads, and the latents, side by side into qkv. */
static void project_in(struct recorder *r, uint32_t layer, struct kern_tensor kv)
{
	struct engine *e = r->e;
	const struct layer *w = &e->layer[layer];
	const struct mla *m = w->mla;
	const struct scratch *s = &e->s;
	uint32_t rank = e->conf.mla.q_rank;
	struct kern_product q = {.w = rank ? m->q_a : w->q, .y = rank ? s->mla_q_a : s->qkv};
	record(r, (struct kern_op){
				  .kind = KERN_OP_MATMUL,
				  .matmul = {.x = s->h, .products = 2, .p = {q, {.w = m->kv_a, .y = kv}}}});
	if (!rank)
		return;
	/* not as a norm of heads: this one prepares its output for the next product */
	record(r, (struct kern_op){.kind = KERN_OP_NORM,
	                           .norm = {.y = s->mla_q_a,
	                                    .x = s->mla_q_a,
	                                    .w = m->q_a_norm,
	                                    .dim = rank,
	                                    .eps = e->conf.mla.norm_eps}});
	record_project(r, s->qkv, s->mla_q_a, m->q_b, (kern_ptr){0},
	               (struct tp_share){.begin = 0, .count = m->heads * e->conf.head_dim});
}

void mla_in(struct recorder *r, uint32_t layer)
{
	struct engine *e = r->e;
	const struct model_conf *c = &e->conf;
	const struct model_mla *d = &c->mla;
	const struct kern_rope *rope = &e->rope[c->layer[layer].rope];
	uint32_t heads = e->layer[layer].mla->heads;
	struct kern_tensor q = e->s.qkv, kv = columns(q, heads * c->head_dim);
	project_in(r, layer, kv);
	record(r, (struct kern_op){.kind = KERN_OP_HEAD_NORM,
	                           .head_norm = {kv, e->layer[layer].mla->kv_a_norm, 1, d->kv_rank,
	                                         d->norm_eps}});
	record(r, (struct kern_op){.kind = KERN_OP_ROPE,
	                           .rope = {columns(q, d->nope), *rope, heads, c->head_dim}});
	record(r, (struct kern_op){.kind = KERN_OP_ROPE,
	                           .rope = {columns(kv, d->kv_rank), *rope, 1, d->rope}});
	record(r,
	       (struct kern_op){.kind = KERN_OP_KV_WRITE, .kv_write = {.kv = e->kv[layer], .k = kv}});
}

void mla_attention(struct recorder *r, uint32_t layer, struct kern_tensor qkv)
{
	struct engine *e = r->e;
	const struct model_conf *c = &e->conf;
	const struct model_mla *d = &c->mla;
	const struct mla *m = e->layer[layer].mla;
	const struct scratch *s = &e->s;
	struct kern_tensor att = columns(s->att, e->shard.heads.begin * d->v);
	record(r, (struct kern_op){.kind = KERN_OP_HEADS_MATMUL,
	                           .heads_matmul = {s->mla_q, qkv, m->key, m->heads, d->rope}});
	record(r, (struct kern_op){.kind = KERN_OP_ATTENTION,
	                           .attention = {.kv = e->kv[layer],
	                                         .out = s->mla_out,
	                                         .q = s->mla_q,
	                                         .heads = m->heads,
	                                         .window = c->layer[layer].window,
	                                         .scale = c->attn_scale}});
	record(r, (struct kern_op){.kind = KERN_OP_HEADS_MATMUL,
	                           .heads_matmul = {att, s->mla_out, m->value, m->heads, 0}});
}
