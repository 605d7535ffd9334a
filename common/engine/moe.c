/* moe.c - layers whose feed-forward part is a mixture of experts: loading, and what a step does in them.
 *
 * A row's experts are chosen by the router, which every rank computes whole. Each rank has its columns of every expert's gate and up and of
 * down, as of a dense layer's, so the bits do not depend on the number of ranks. The one that all rows pass (shared) comes first, the chosen
 * ones are added to it.
 * A missing tensor or a wrong shape is returned and names the tensor. */
#include "engine/moe.h"
#include "util/mem.h"

#include <stdlib.h>

/* --- loading ------------------------------------------------------------------------------------------------------------ */

static struct kern_weight *expert_matrix(struct loader *l, enum model_expert_part part, uint32_t layer, uint32_t expert, struct tp_share rows)
{
	struct model_tensor t;
	if (l->rc || !load_found(l, model_expert_get(&l->e->src, &l->e->conf, part, layer, expert, &t, l->err), &t))
		return NULL;
	struct kern_weight *w = load_rows(l, &t, rows);
	if (!l->e->borrows && !t.own)
		model_tensor_drop(&t);
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
		l->rc = err_set(l->err, ERR_UNSUPPORTED, "%.160s: biases in the feed-forward part: found some, expected none beside experts", l->e->src.path);
		return NULL;
	}
	struct moe *m = mem_zalloc(sizeof *m);
	m->router = load_matrix(l, MODEL_ROUTER, layer);
	m->router_bias = load_bias(l, c->experts.bias, MODEL_ROUTER, layer);
	if (c->experts.correction && !l->rc && load_found(l, model_correction_get(&l->e->src, c, layer, &t, l->err), &t))
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
	float **const vs[] = {&m->router_bias, &m->correction, &m->experts.gate_bias, &m->experts.up_bias,
	                      &m->experts.down_bias};
	for (size_t i = 0; i < sizeof vs / sizeof *vs; i++)
		free_vector(e, vs[i]);
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
		sum += t.bytes * e->conf.experts.count;
		free(t.own);
	}
	return sum;
}

/* --- a step ------------------------------------------------------------------------------------------------------------- */

size_t moe_act_floats(const struct model_conf *c, uint32_t ffn, uint32_t shared_ffn)
{
	return c->experts.count ? (size_t)c->experts.active * ffn + shared_ffn : 0;
}

size_t moe_route_floats(const struct model_conf *c)
{
	return c->experts.count ? (size_t)c->experts.count + 2 * (size_t)c->experts.active : 0;
}

/* What all rows pass, up to its activations, behind those of the experts. */
static void shared_act(struct step *st, const struct moe *m, uint32_t rows)
{
	const struct model_conf *c = &st->e->conf;
	const struct model_experts *x = &c->experts;
	const struct shard *own = &st->e->shard;
	struct scratch *s = &st->e->s;
	size_t ffn = own->shared.count, pairs = (size_t)rows * x->active;
	float *act = s->own_act + pairs * own->expert.count;
	const struct kern_product p[] = {
		{.w = m->shared_gate, .y = s->gate_up, .ldy = 2 * ffn},
		{.w = m->shared_up, .y = s->gate_up + ffn, .ldy = 2 * ffn},
	};
	if (ffn) {
		RUN(st, matmul, s->h, rows, p, 2);
		RUN(st, act_mul, act, s->gate_up, s->gate_up + ffn, 2 * ffn, c->act, rows, (uint32_t)ffn);
	}
	step_place_own(st, s->act + pairs * x->ffn, x->shared_ffn, act, own->shared, rows);
}

void moe_run(struct step *st, uint32_t layer, uint32_t rows)
{
	const struct model_conf *c = &st->e->conf;
	const struct model_experts *x = &c->experts;
	const struct moe *m = st->e->layer[layer].moe;
	const struct shard *own = &st->e->shard;
	struct scratch *s = &st->e->s;
	size_t pairs = (size_t)rows * x->active;
	float *logits = s->route, *weights = logits + (size_t)rows * x->count;
	uint32_t *ids = (uint32_t *)(void *)(weights + pairs);
	const struct kern_product router = {.w = m->router, .bias = m->router_bias, .y = logits, .ldy = x->count};
	const struct kern_router rule = {
		.score = x->scoring == MODEL_SIGMOID ? KERN_SCORE_SIGMOID : KERN_SCORE_SOFTMAX, .experts = x->count, .used = x->active, .groups = x->groups,
		.groups_used = x->top_groups, .bias = m->correction, .normalise = x->normalise, .norm_min = x->norm_min, .norm_add = x->norm_eps, .scale = x->scale,
	};
	RUN(st, matmul, s->h, rows, &router, 1);
	RUN(st, route, ids, weights, logits, &rule, rows);
	if (own->expert.count)
		RUN(st, experts_act, s->own_act, s->h, ids, x->active, &m->experts, c->act, rows);
	step_place_own(st, s->act, x->ffn, s->own_act, own->expert, rows * x->active);
	if (x->shared_ffn)
		shared_act(st, m, rows);
	step_gather(st);
	if (x->shared_ffn)
		step_project(st, s->sum, s->act + pairs * x->ffn, rows, m->shared_down, NULL, own->hidden, c->hidden);
	if (own->hidden.count)
		RUN(st, experts_down, s->sum + own->hidden.begin, c->hidden, s->act, ids, weights, x->active, &m->experts, x->shared_ffn != 0, rows);
	step_gather(st);
}
