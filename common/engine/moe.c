/* moe.c - layers whose feed-forward part is a mixture of experts: loading, and recording their
 * operations of a step.
 *
 * The router chooses a row's experts; every rank computes the whole router. Each rank has its
 * columns of gate, up and down of every expert, as in a dense layer, so the bits do not depend on
 * the number of ranks. The shared expert, which all rows pass, is computed first, and the chosen
 * ones are added to it.
 *
 * With expert_parallel each rank has whole experts instead. It computes what these give for every
 * row that chose them; each rank gets its columns of that from the others, and adds them up in the
 * order of a single process, so the bits are the same. A device that reduces sums a rank's own
 * experts, and these sums over the ranks.
 *
 * A missing tensor or a wrong shape is returned as an error that names the tensor. */
#include "engine/moe.h"
#include "util/mem.h"

#include <stdlib.h>

/* --- loading ------------------------------------------------------------- */

/* Whether each rank has a part of every sum. Then: its columns of down (count 0: all, of whole
 * experts) and of the shared expert's. */
static int divided(const struct engine *e, uint32_t layer, struct tp_share *ret_columns,
                   struct tp_share *ret_shared)
{
	const struct model_conf *c = &e->conf;
	struct model_tensor t;
	int is = e->reduces;
	*ret_columns = *ret_shared = (struct tp_share){0};
	if (is && !engine_has_whole_experts(e)) {
		if (model_expert_get(&e->src, c, MODEL_EXPERT_DOWN, layer, 0, &t, NULL))
			return 0;
		is = weights_divided(e, &t, e->shard.expert, 1, ret_columns);
		free(t.own);
	}
	if (!is || !model_has_role(c, MODEL_SHARED_DOWN, layer))
		return is;
	return !model_role_get(&e->src, c, MODEL_SHARED_DOWN, layer, &t, NULL) &&
	       weights_divided(e, &t, e->shard.shared, 1, ret_shared);
}

int moe_exchanges(const struct engine *e)
{
	struct tp_share down, shared;
	for (uint32_t i = 0; engine_has_whole_experts(e) && i < e->conf.layers; i++)
		if (e->conf.layer[i].experts && !divided(e, i, &down, &shared))
			return 1;
	return 0;
}

/* The matrices of this rank's experts; of down only `columns`, if sums are divided. */
static void load_experts(struct loader *l, uint32_t layer, struct moe *m, struct tp_share columns)
{
	struct engine *e = l->e;
	const struct model_conf *c = &e->conf;
	struct matrix_part part[MODEL_EXPERT_PARTS] = {{.rows = e->shard.expert},
	                                               {.rows = e->shard.expert},
	                                               {.rows = e->shard.hidden}};
	struct kern_weight **const w[MODEL_EXPERT_PARTS] = {&m->gate, &m->up, &m->down};
	enum kern_dtype type[MODEL_EXPERT_PARTS];
	struct weights_size before = l->size ? *l->size : (struct weights_size){0};
	if (m->summed || engine_has_whole_experts(e))
		part[MODEL_EXPERT_DOWN] = (struct matrix_part){{.count = c->hidden}, columns};
	/* all experts are alike: for their size one is looked at */
	struct tp_share own = e->shard.experts;
	uint32_t count = c->experts.count, seen = l->size ? 1 : count;
	for (uint32_t i = 0; i < seen * MODEL_EXPERT_PARTS && !l->rc; i++) {
		enum model_expert_part of = i % MODEL_EXPERT_PARTS;
		uint32_t expert = i / MODEL_EXPERT_PARTS;
		struct model_tensor t;
		if (!load_found(l, model_expert_get(&e->src, c, of, layer, expert, &t, l->err), &t))
			return;
		type[of] = expert ? type[of] : t.dtype;
		if (t.dtype != type[of])
			l->rc = err_set(l->err, ERR_UNSUPPORTED,
			                "%.160s: tensor %s: found type %s, expected %s as of expert 0",
			                e->src.path, t.name, kern_dtype_name(t.dtype),
			                kern_dtype_name(type[of]));
		if (l->size || expert - own.begin < own.count)
			load_part(l, &t, part[of], own.count, expert - own.begin, w[of]);
		fingerprint_drop(e->print, &t);
		free(t.own);
	}
	if (l->size) {
		l->size->matrix_bytes += (l->size->matrix_bytes - before.matrix_bytes) * (own.count - 1);
		l->size->params += (l->size->params - before.params) * (count - 1);
		l->size->file_bytes += (l->size->file_bytes - before.file_bytes) * (count - 1);
	}
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
	struct tp_share down, shared;
	m->summed = divided(l->e, layer, &down, &shared);
	m->router = load_matrix(l, MODEL_ROUTER, layer);
	m->router_bias = load_bias(l, c->experts.bias, MODEL_ROUTER, layer);
	if (c->experts.correction && !l->rc &&
	    load_found(l, model_correction_get(&l->e->src, c, layer, &t, l->err), &t))
		m->correction = load_vector(l, &t, 0.0f);
	m->shared_gate = load_matrix(l, MODEL_SHARED_GATE, layer);
	m->shared_up = load_matrix(l, MODEL_SHARED_UP, layer);
	if (!m->summed)
		m->shared_down = load_matrix(l, MODEL_SHARED_DOWN, layer);
	else if (model_has_role(c, MODEL_SHARED_DOWN, layer) &&
	         load_find(l, MODEL_SHARED_DOWN, layer, &t)) {
		load_part(l, &t, (struct matrix_part){.rows = {.count = t.n}, .columns = shared}, 1, 0,
		          &m->shared_down);
		fingerprint_drop(l->e->print, &t);
	}
	/* of the bias of down: of divided sums rank 0 adds it, but its own experts' each rank */
	struct tp_share bias = l->e->shard.hidden;
	if (m->summed || engine_has_whole_experts(l->e))
		bias = (struct tp_share){.count = c->hidden};
	if (m->summed && !engine_has_whole_experts(l->e) && l->e->rank)
		bias.count = 0;
	load_experts(l, layer, m, down);
	m->experts = (struct kern_experts){
		.experts = c->experts.count,
		.first = l->e->shard.experts.begin,
		.count = l->e->shard.experts.count,
		.gate = m->gate,
		.up = m->up,
		.down = m->down,
		.gate_bias = load_expert_biases(l, MODEL_EXPERT_GATE, layer, l->e->shard.expert),
		.up_bias = load_expert_biases(l, MODEL_EXPERT_UP, layer, l->e->shard.expert),
		.down_bias = load_expert_biases(l, MODEL_EXPERT_DOWN, layer, bias),
	};
	return m;
}

void moe_free(struct engine *e, struct moe **mp)
{
	struct moe *m = *mp;
	if (!m)
		return;
	struct kern_weight **const ws[] = {&m->router,      &m->gate,      &m->up,         &m->down,
	                                   &m->shared_gate, &m->shared_up, &m->shared_down};
	for (size_t i = 0; i < sizeof ws / sizeof *ws; i++)
		free_matrix(e, ws[i]);
	free(m);
	*mp = NULL;
}

/* --- a step -------------------------------------------------------------- */

/* What this rank's experts give, added up for each row, or each alone (`pairs`). */
static void record_down(struct recorder *r, const struct moe *m, struct kern_tensor y,
                        struct kern_tensor x, int pairs)
{
	const struct model_experts *of = &r->e->conf.experts;
	const struct scratch *s = &r->e->s;
	record(r, (struct kern_op){.kind = KERN_OP_EXPERTS_DOWN,
	                           .experts_down = {.experts = m->experts,
	                                            .ids = s->route_ids,
	                                            .weights = pairs ? (kern_ptr){0} : s->route_weights,
	                                            .used = of->active,
	                                            .add = of->shared_ffn && !pairs,
	                                            .pairs = pairs,
	                                            .y = y,
	                                            .x = x}});
}

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
	struct kern_tensor act = s->act, expert_act = s->expert_act, sum = s->output;
	struct tp_share out = own->hidden;
	int exchanged = engine_has_whole_experts(e) && !m->summed;
	if (exchanged)
		record_down(r, m, s->pairs, expert_act, 1);
	if (m->summed) {
		act = columns(act, own->shared.begin);
		expert_act = columns(expert_act, own->expert.begin);
		sum = s->part;
		out = (struct tp_share){.begin = 0, .count = c->hidden};
	} else {
		struct kern_gathered shared = gathered(act, 1, own->shared, 1),
							 given = gathered(expert_act, x->active, own->expert, 1);
		if (exchanged)
			given = (struct kern_gathered){.x = s->pairs,
			                               .parts = x->active,
			                               .dim = c->hidden,
			                               .unit = own->hidden.unit,
			                               .ids = x->count,
			                               .chosen = s->route_ids};
		record_gather(r, given, x->shared_ffn ? &shared : NULL);
	}
	if (x->shared_ffn)
		record_project(r, sum, act, m->shared_down, (kern_ptr){0}, out);
	if (out.count && exchanged)
		record(r, (struct kern_op){.kind = KERN_OP_EXPERTS_SUM,
		                           .experts_sum = {.ids = s->route_ids,
		                                           .weights = s->route_weights,
		                                           .used = x->active,
		                                           .dim = out.count,
		                                           .add = x->shared_ffn != 0,
		                                           .y = columns(sum, out.begin),
		                                           .x = columns(s->pairs, out.begin)}});
	else if (out.count)
		record_down(r, m, columns(sum, out.begin), expert_act, 0);
	record_sum(r, m->summed);
}
