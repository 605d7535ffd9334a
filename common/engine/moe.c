/* moe.c - layers whose feed-forward part is a mixture of experts: loading, and recording their
 * operations of a step.
 *
 * The router chooses a row's experts; every rank computes the whole router. Each rank has its
 * columns of gate, up and down of every expert, as in a dense layer, so the bits do not depend on
 * the number of ranks. The shared expert, which all rows pass, is computed first, and the chosen
 * ones are added to it. A missing tensor or a wrong shape is returned as an error that names the
 * tensor. */
#include "engine/moe.h"
#include "util/mem.h"

#include <stdlib.h>

/* --- loading ------------------------------------------------------------- */

static struct kern_weight *expert_matrix(struct loader *l, enum model_expert_part part,
                                         uint32_t layer, uint32_t expert, struct tp_share rows)
{
	struct model_tensor t;
	if (l->rc ||
	    !load_found(l, model_expert_get(&l->e->src, &l->e->conf, part, layer, expert, &t, l->err),
	                &t))
		return NULL;
	struct kern_weight *w = load_rows(l, &t, rows);
	fingerprint_drop(l->e->print, &t);
	free(t.own);
	return w;
}

static void load_experts(struct loader *l, uint32_t layer, struct kern_experts *x)
{
	const struct shard *own = &l->e->shard;
	x->experts = l->e->conf.experts.count;
	x->gate = mem_array(x->experts, sizeof *x->gate);
	x->up = mem_array(x->experts, sizeof *x->up);
	x->down = mem_array(x->experts, sizeof *x->down);
	for (uint32_t i = 0; i < x->experts && !l->rc; i++) {
		x->gate[i] = expert_matrix(l, MODEL_EXPERT_GATE, layer, i, own->expert);
		x->up[i] = expert_matrix(l, MODEL_EXPERT_UP, layer, i, own->expert);
		x->down[i] = expert_matrix(l, MODEL_EXPERT_DOWN, layer, i, own->hidden);
	}
	x->gate_bias = load_expert_biases(l, MODEL_EXPERT_GATE, layer, own->expert);
	x->up_bias = load_expert_biases(l, MODEL_EXPERT_UP, layer, own->expert);
	x->down_bias = load_expert_biases(l, MODEL_EXPERT_DOWN, layer, own->hidden);
}

struct moe *moe_load(struct loader *l, uint32_t layer)
{
	const struct model_conf *c = &l->e->conf;
	struct model_tensor t;
	if (!c->layer[layer].experts || l->rc)
		return NULL;
	if (c->mlp_bias) {
		l->rc = err_set(
			l->err, ERR_UNSUPPORTED,
			"%.160s: biases in the feed-forward part: found some, expected none beside experts",
			l->e->src.path);
		return NULL;
	}
	struct moe *m = mem_zalloc(sizeof *m);
	m->router = load_matrix(l, MODEL_ROUTER, layer);
	m->router_bias = load_bias(l, c->experts.bias, MODEL_ROUTER, layer);
	if (c->experts.correction && !l->rc &&
	    load_found(l, model_correction_get(&l->e->src, c, layer, &t, l->err), &t))
		m->correction = load_vector(l, &t, 0.0f);
	m->shared_gate = load_matrix(l, MODEL_SHARED_GATE, layer);
	m->shared_up = load_matrix(l, MODEL_SHARED_UP, layer);
	m->shared_down = load_matrix(l, MODEL_SHARED_DOWN, layer);
	load_experts(l, layer, &m->experts);
	return m;
}

void moe_free(struct engine *e, struct moe **mp)
{
	struct moe *m = *mp;
	if (!m)
		return;
	free_matrices(e, &m->experts.gate, m->experts.experts);
	free_matrices(e, &m->experts.up, m->experts.experts);
	free_matrices(e, &m->experts.down, m->experts.experts);
	struct kern_weight **const ws[] = {&m->router, &m->shared_gate, &m->shared_up, &m->shared_down};
	for (size_t i = 0; i < sizeof ws / sizeof *ws; i++)
		free_matrix(e, ws[i]);
	free(m);
	*mp = NULL;
}

uint64_t moe_bytes(const struct engine *e, uint32_t layer)
{
	uint64_t sum = 0;
	for (int part = 0; part < MODEL_EXPERT_PARTS && e->conf.layer[layer].experts; part++) {
		struct model_tensor t;
		if (model_expert_get(&e->src, &e->conf, (enum model_expert_part)part, layer, 0, &t, NULL))
			continue;
		const struct tp_share *own = part == MODEL_EXPERT_DOWN ? &e->shard.hidden
		                                                       : &e->shard.expert;
		uint64_t rows = e->ops->own_memory ? own->count : t.n;
		sum += rows * kern_dtype_bytes(t.dtype, t.k) * e->conf.experts.count;
		free(t.own);
	}
	return sum;
}

/* --- a step -------------------------------------------------------------- */

void moe_record(struct recorder *r, uint32_t layer)
{
	struct engine *e = r->e;
	const struct model_conf *c = &e->conf;
	const struct model_experts *x = &c->experts;
	const struct moe *m = e->layer[layer].moe;
	const struct shard *own = &e->shard;
	const struct scratch *s = &e->s;
	const struct kern_router rule = {
		.score = x->scoring == MODEL_SIGMOID ? KERN_SCORE_SIGMOID : KERN_SCORE_SOFTMAX,
		.experts = x->count,
		.used = x->active,
		.groups = x->groups,
		.groups_used = x->top_groups,
		.bias = m->correction,
		.normalise = x->normalise,
		.norm_min = x->norm_min,
		.norm_add = x->norm_eps,
		.scale = x->scale,
	};
	record_project(r, s->route, s->h, m->router, m->router_bias,
	               (struct tp_share){.begin = 0, .count = x->count});
	record(r, (struct kern_op){.kind = KERN_OP_ROUTE,
	                           .route = {rule, s->route_ids, s->route_weights, s->route}});
	if (own->expert.count)
		record(r,
		       (struct kern_op){.kind = KERN_OP_EXPERTS_ACT,
		                        .experts_act = {m->experts, s->route_ids, x->active, c->act,
		                                        columns(s->expert_act, own->expert.begin), s->h}});
	if (x->shared_ffn)
		record_gated(r, s->act, own->shared, m->shared_gate, (kern_ptr){0}, m->shared_up,
		             (kern_ptr){0});
	struct kern_gathered shared = gathered(s->act, 1, own->shared, 1);
	record_gather(r, gathered(s->expert_act, x->active, own->expert, 1),
	              x->shared_ffn ? &shared : NULL);
	if (x->shared_ffn)
		record_project(r, s->sum, s->act, m->shared_down, (kern_ptr){0}, own->hidden);
	if (own->hidden.count)
		record(r, (struct kern_op){.kind = KERN_OP_EXPERTS_DOWN,
		                           .experts_down = {m->experts, s->route_ids, s->route_weights,
		                                            x->active, x->shared_ffn != 0,
		                                            columns(s->sum, own->hidden.begin),
		                                            s->expert_act}});
	record_gather(r, gathered(s->sum, 1, own->hidden, 1), NULL);
}
