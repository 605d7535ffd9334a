/* experts.c - products with the experts that each row has chosen.
 *
 * Pairs (row, slot) are sorted by expert, so that an expert's matrices are read once for all rows
 * that chose it; the products of all experts form one phase. Each product of a row depends on that
 * row alone, and a row's products are added in ascending order of the experts' numbers, so results
 * depend neither on the batch nor on the number of threads. */
#include "kernels/cpu/build.h"
#include "kernels/cpu/panel.h"

#include <string.h>

/* Pairs, numbered row * used + slot, of the experts begin .. begin + experts - 1, sorted by expert,
 * then by number. Experts below are counted from `begin`. */
struct cpu_group {
	struct kern_program *p;
	enum kern_rows rows;
	const uint32_t *ids;
	uint32_t used, begin, experts;
	uint32_t *pair;       /* (pairs) in sorted order */
	uint32_t *place;      /* (pairs) each pair's place in `pair`; KERN_NONE: another's expert */
	uint32_t *first;      /* (experts + 1) start of an expert's pairs in `pair` */
	uint32_t *first_tile; /* (experts + 1) an expert's first tile: a tile has pairs of one expert */
	uint32_t *tile_expert; /* (tiles) */
	uint32_t *present;     /* (experts) experts that have pairs */
	uint32_t n_present;
};

static uint32_t group_items(const void *ctx)
{
	const struct cpu_group *g = ctx;
	return cpu_rows(g->p, g->rows) != 0;
}

static void group_item(const void *ctx, uint32_t item, unsigned worker)
{
	(void)item, (void)worker;
	struct cpu_group *g = (struct cpu_group *)(uintptr_t)ctx;
	uint32_t pairs = cpu_rows(g->p, g->rows) * g->used;
	memset(g->first, 0, (g->experts + 1) * sizeof *g->first);
	g->n_present = 0;
	for (uint32_t i = 0; i < pairs; i++)
		if (g->ids[i] - g->begin < g->experts)
			g->first[g->ids[i] - g->begin + 1]++;
	for (uint32_t e = 0; e < g->experts; e++) {
		uint32_t count = g->first[e + 1], tiles = (count + CPU_TILE_ROWS - 1) / CPU_TILE_ROWS;
		if (count)
			g->present[g->n_present++] = e;
		for (uint32_t t = 0; t < tiles; t++)
			g->tile_expert[g->first_tile[e] + t] = e;
		g->first_tile[e + 1] = g->first_tile[e] + tiles;
		g->first[e + 1] += g->first[e];
	}
	for (uint32_t i = 0; i < pairs; i++) {
		uint32_t e = g->ids[i] - g->begin;
		g->place[i] = e < g->experts ? g->first[e]++ : KERN_NONE;
		if (e < g->experts)
			g->pair[g->place[i]] = i;
	}
	/* the loop advanced each start to the next expert's */
	memmove(g->first + 1, g->first, g->experts * sizeof *g->first);
	g->first[0] = 0;
}

static const struct cpu_group *group_of(struct build *b, const struct kern_op *op, kern_ptr ids,
                                        uint32_t used, const struct kern_experts *x)
{
	uint32_t experts = x->count;
	size_t pairs = (size_t)build_max_rows(b, op->rows) * used,
		   tiles = pairs / CPU_TILE_ROWS + experts + 1;
	/* valid while the ids are unchanged: build_route clears b->group */
	if (b->group && b->group->ids == (const uint32_t *)(void *)ids.v &&
	    b->group->rows == op->rows && b->group->used == used && b->group->begin == x->first &&
	    b->group->experts == experts)
		return b->group;
	struct cpu_group *g = build_alloc(b, sizeof *g);
	uint32_t *words = build_alloc(b,
	                              (2 * pairs + 3 * ((size_t)experts + 1) + tiles) * sizeof *words);
	if (b->rc)
		return NULL;
	*g = (struct cpu_group){.p = b->p,
	                        .rows = op->rows,
	                        .ids = (const uint32_t *)(void *)ids.v,
	                        .used = used,
	                        .begin = x->first,
	                        .experts = experts,
	                        .pair = words,
	                        .place = words + pairs,
	                        .first = words + 2 * pairs,
	                        .first_tile = words + 2 * pairs + experts + 1,
	                        .present = words + 2 * pairs + 2 * ((size_t)experts + 1),
	                        .tile_expert = words + 2 * pairs + 3 * ((size_t)experts + 1)};
	build_phase(b, group_items, group_item, g);
	return b->group = g;
}

/* --- products of all experts --------------------------------------------- */

struct experts_phase {
	struct kern_program *p;
	const struct kern_op *op;
	const struct cpu_group *g;
	struct cpu_make make;
	const struct kern_tensor *x;
	/* rows of x: `used` if one row serves all its experts, 1 if each pair has its own row */
	uint32_t pairs_per_row;
	const struct kern_weight *w[2]; /* gate and up, or down */
	const float *bias[2];           /* of w; NULL or (experts, n) */
	uint32_t matrices, n;
	uint32_t panels[2], panels_per_item[2], items[2]; /* per matrix of an expert */
};

/* One item per tile: gathers and prepares its pairs' activations. */
static uint32_t tile_items(const void *ctx)
{
	const struct experts_phase *ph = ctx;
	return cpu_rows(ph->p, ph->op->rows) ? ph->g->first_tile[ph->g->experts] : 0;
}

static struct cpu_ready expert_ready(const struct experts_phase *ph, uint32_t expert)
{
	size_t k = ph->make.k, first = ph->g->first[expert];
	return cpu_ready_at(ph->p, &ph->make, ph->p->gathered + first * k, k, ph->g->first_tile[expert],
	                    first);
}

static void tile_item(const void *ctx, uint32_t tile, unsigned worker)
{
	(void)worker;
	const struct experts_phase *ph = ctx;
	const struct cpu_group *g = ph->g;
	uint32_t e = g->tile_expert[tile], count = g->first[e + 1] - g->first[e],
			 from = (tile - g->first_tile[e]) * CPU_TILE_ROWS;
	uint32_t to = count - from < CPU_TILE_ROWS ? count : from + CPU_TILE_ROWS;
	for (uint32_t i = from; i < to; i++) {
		uint32_t at = g->first[e] + i;
		memcpy(ph->p->gathered + (size_t)at * ph->make.k,
		       cpu_row(ph->x, g->pair[at] / ph->pairs_per_row), ph->make.k * sizeof(float));
	}
	struct cpu_ready r = expert_ready(ph, e);
	if (r.rec || r.rounded)
		ph->p->dev->variant->make_ready(&r, from, to);
}

static uint32_t expert_items(const void *ctx)
{
	const struct experts_phase *ph = ctx;
	return cpu_rows(ph->p, ph->op->rows) ? ph->g->n_present * (ph->items[0] + ph->items[1]) : 0;
}

/* y: (pairs, matrices * n) in sorted order */
static void expert_item(const void *ctx, uint32_t item, unsigned worker)
{
	const struct experts_phase *ph = ctx;
	const struct cpu_group *g = ph->g;
	const struct cpu_variant *v = ph->p->dev->variant;
	uint32_t of = item % (ph->items[0] + ph->items[1]),
			 e = g->present[item / (ph->items[0] + ph->items[1])], matrix = of >= ph->items[0];
	uint32_t each = ph->panels_per_item[matrix], first = (of - matrix * ph->items[0]) * each,
			 panels = ph->panels[matrix];
	size_t ld = (size_t)ph->matrices * ph->n;
	const struct kern_weight w = cpu_matrix(ph->w[matrix], e);
	struct cpu_part part = {.w = &w,
	                        .bias = ph->bias[matrix] ? ph->bias[matrix] + (size_t)e * ph->n : NULL,
	                        .y = ph->p->given + g->first[e] * ld + matrix * ph->n,
	                        .ldy = ld,
	                        .in = expert_ready(ph, e),
	                        .rows = g->first[e + 1] - g->first[e]};
	v->product(&part, v, first, panels - first < each ? panels : first + each,
	           ph->p->scratch[worker]);
}

/* up: NULL if an expert has one matrix; bias: of gate and up, or 0 */
static struct experts_phase *build_products(struct build *b, const struct kern_op *op,
                                            const struct cpu_group *g, const struct kern_tensor *x,
                                            uint32_t pairs_per_row, const struct kern_weight *gate,
                                            const struct kern_weight *up, const kern_ptr bias[2])
{
	struct kern_program *p = b->p;
	struct experts_phase *ph = build_alloc(b, sizeof *ph);
	if (b->rc)
		return NULL;
	size_t pairs = (size_t)build_max_rows(b, op->rows) * g->used;
	*ph = (struct experts_phase){.p = p,
	                             .op = op,
	                             .g = g,
	                             .x = x,
	                             .pairs_per_row = pairs_per_row,
	                             .w = {gate, up},
	                             .matrices = up ? 2 : 1,
	                             .n = gate->n};
	ph->make = build_make(b, ph->w, ph->matrices);
	for (uint32_t i = 0; i < 2; i++)
		if (bias[i].v)
			ph->bias[i] = cpu_f32(bias[i]);
	size_t total = g->used * (gate->stride + (up ? up->stride : 0));
	for (uint32_t i = 0; i < ph->matrices; i++) {
		ph->panels[i] = p->dev->variant->panels(ph->w[i]);
		ph->panels_per_item[i] = cpu_panels_per_item(p, ph->w[i], total, 1);
		ph->items[i] = (ph->panels[i] + ph->panels_per_item[i] - 1) / ph->panels_per_item[i];
	}
	build_ready_room(b, &ph->make, pairs, pairs / CPU_TILE_ROWS + g->experts + 1);
	p->scratch_floats = max_size(p->scratch_floats, ph->make.k);
	p->gathered_floats = max_size(p->gathered_floats, pairs * ph->make.k);
	p->given_floats = max_size(p->given_floats, pairs * ph->matrices * ph->n);
	build_phase(b, tile_items, tile_item, ph);
	build_phase(b, expert_items, expert_item, ph);
	return ph;
}

/* --- the operations ------------------------------------------------------ */

static void act_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                     uint32_t to)
{
	const struct experts_phase *ph = s->with;
	for (uint32_t i = from * ph->g->used; i < to * ph->g->used; i++) {
		if (ph->g->place[i] == KERN_NONE)
			continue;
		const float *gate = p->given + 2 * (size_t)ph->g->place[i] * ph->n;
		p->dev->variant->act_mul(cpu_row(&s->op->experts_act.y, i), gate, gate + ph->n,
		                         s->op->experts_act.act, ph->n);
	}
}

void build_experts_act(struct build *b, const struct kern_op *op)
{
	const struct kern_experts *x = &op->experts_act.experts;
	const struct cpu_group *g = group_of(b, op, op->experts_act.ids, op->experts_act.used, x);
	if (!g)
		return;
	struct experts_phase *ph = build_products(b, op, g, &op->experts_act.x, g->used, x->gate, x->up,
	                                          (kern_ptr[]){x->gate_bias, x->up_bias});
	if (!ph)
		return;
	build_row_step(b, op, act_rows, ph, 4 * (size_t)g->used * ph->n);
}

/* y = the sum of a row's experts in ascending order of their numbers, (+ y if `add`). given: NULL
 * where a pair is skipped */
static void sum_row(float *y, const float *const *given, const uint32_t *ids, const float *weights,
                    uint32_t used, uint32_t n, int add)
{
	uint32_t order[KERN_EXPERTS_USED_MAX];
	for (uint32_t j = 0; j < used; j++) {
		uint32_t at = j;
		for (; at > 0 && ids[order[at - 1]] > ids[j]; at--)
			order[at] = order[at - 1];
		order[at] = j;
	}
	if (!add)
		memset(y, 0, n * sizeof *y);
	for (uint32_t j = 0; j < used; j++) {
		const float *of = given[order[j]], weight = of ? weights[order[j]] : 0;
		for (uint32_t c = 0; of && c < n; c++)
			y[c] += weight * of[c];
	}
}

static void down_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                      uint32_t to)
{
	const struct experts_phase *ph = s->with;
	const struct cpu_group *g = ph->g;
	const float *given[KERN_EXPERTS_USED_MAX];
	for (uint32_t r = from; r < to; r++) {
		size_t pair = (size_t)r * g->used;
		for (uint32_t j = 0; j < g->used; j++) {
			uint32_t place = g->place[pair + j];
			given[j] = place == KERN_NONE ? NULL : p->given + (size_t)place * ph->n;
		}
		sum_row(cpu_row(&s->op->experts_down.y, r), given, g->ids + pair,
		        cpu_f32(s->op->experts_down.weights) + pair, g->used, ph->n,
		        s->op->experts_down.add);
	}
}

static void down_pairs(const struct row_step *s, const struct kern_program *p, uint32_t from,
                       uint32_t to)
{
	const struct experts_phase *ph = s->with;
	const struct cpu_group *g = ph->g;
	for (uint32_t i = from * g->used; i < to * g->used; i++)
		if (g->place[i] != KERN_NONE)
			memcpy(cpu_row(&s->op->experts_down.y, i), p->given + (size_t)g->place[i] * ph->n,
			       ph->n * sizeof(float));
}

void build_experts_down(struct build *b, const struct kern_op *op)
{
	const struct kern_experts *x = &op->experts_down.experts;
	const struct cpu_group *g = group_of(b, op, op->experts_down.ids, op->experts_down.used, x);
	if (!g)
		return;
	struct experts_phase *ph = build_products(b, op, g, &op->experts_down.x, 1, x->down, NULL,
	                                          (kern_ptr[]){x->down_bias, {0}});
	if (!ph)
		return;
	build_row_step(b, op, op->experts_down.pairs ? down_pairs : down_rows, ph,
	               2 * (size_t)g->used * ph->n);
}

static void sum_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                     uint32_t to)
{
	(void)p;
	const struct kern_op *op = s->op;
	uint32_t used = op->experts_sum.used;
	const float *given[KERN_EXPERTS_USED_MAX];
	for (uint32_t r = from; r < to; r++) {
		size_t pair = (size_t)r * used;
		for (uint32_t j = 0; j < used; j++)
			given[j] = cpu_row(&op->experts_sum.x, (uint32_t)pair + j);
		sum_row(cpu_row(&op->experts_sum.y, r), given,
		        (const uint32_t *)(void *)op->experts_sum.ids.v + pair,
		        cpu_f32(op->experts_sum.weights) + pair, used, op->experts_sum.dim,
		        op->experts_sum.add);
	}
}

void build_experts_sum(struct build *b, const struct kern_op *op)
{
	build_row_step(b, op, sum_rows, NULL, 2 * (size_t)op->experts_sum.used * op->experts_sum.dim);
}
