/* cut.c - attention: the spans of a batch are cut into tiles of rows; where few tiles have long
 * histories, tiles are cut into chunks that threads compute separately and join. The cut changes no
 * bit of the results (fast_attention.h). Layers that are cut alike share one cut. */
#include "kernels/cpu/build.h"

enum { ITEMS_PER_THREAD = 4 };

/* --- a batch ------------------------------------------------------------- */

static void cut_span(struct cpu_cut *c, const struct kern_span *s)
{
	for (uint32_t r = 0; r < s->rows; r += c->tile_rows) {
		uint32_t rows = s->rows - r < c->tile_rows ? s->rows - r : c->tile_rows,
				 low = s->position + r;
		uint32_t first = c->window && low + 1 > c->window ? (low + 1 - c->window) / CPU_CHUNK : 0,
				 count = (low + rows - 1) / CPU_CHUNK - first + 1;
		c->tile[c->tiles++] = (struct att_tile){s, s->row + r, rows, first, count, c->chunks};
		c->chunks += count;
		c->longest = rows > c->longest ? rows : c->longest;
	}
}

static void cut(const struct kern_program *p, struct cpu_cut *c)
{
	const struct kern_batch *b = p->batch;
	int all = c->rows == KERN_ROWS_ALL;
	const struct kern_span *span = kern_part(b, all ? b->span : b->tail_span);
	uint32_t spans = all ? b->spans : b->tail_spans, threads = crew_threads(p->dev->crew);
	c->tiles = c->chunks = c->longest = 0;
	for (uint32_t i = 0; i < spans; i++)
		cut_span(c, &span[i]);
	c->apart = p->dev->variant->att_join && threads > 1 && c->chunks > c->tiles &&
	           (uint64_t)c->tiles * c->heads < (uint64_t)ITEMS_PER_THREAD * threads;
}

void cpu_cut_batch(struct kern_program *p)
{
	for (unsigned i = 0; i < p->cuts; i++)
		cut(p, p->cut[i]);
}

/* --- phases -------------------------------------------------------------- */

int cpu_apart(const struct cpu_attention *a)
{
	const struct cpu_cut *c = a->cut;
	return c->apart &&
	       (uint64_t)c->chunks * a->items * a->p->dev->variant->att_state(a, c->longest) <=
	           a->p->partial_floats;
}

static uint32_t att_items(const void *ctx)
{
	const struct cpu_attention *a = ctx;
	return (cpu_apart(a) ? a->cut->chunks : a->cut->tiles) * a->items;
}

static uint32_t join_items(const void *ctx)
{
	const struct cpu_attention *a = ctx;
	return cpu_apart(a) ? a->cut->tiles * a->items : 0;
}

static struct cpu_cut *cut_of(struct build *b, const struct kern_op *op, uint32_t tile_rows,
                              uint32_t heads)
{
	struct kern_program *p = b->p;
	for (unsigned i = 0; i < p->cuts; i++) {
		struct cpu_cut *c = p->cut[i];
		if (c->rows == op->rows && c->window == op->attention.window && c->tile_rows == tile_rows &&
		    c->heads == heads)
			return c;
	}
	struct cpu_cut *c = build_alloc(b, sizeof *c);
	if (p->cuts == sizeof p->cut / sizeof *p->cut)
		build_fail(b, KERN_ENOTSUP, "more than %u kinds of attention", p->cuts);
	if (b->rc)
		return NULL;
	*c = (struct cpu_cut){
		.rows = op->rows,
		.window = op->attention.window,
		.tile_rows = tile_rows,
		.heads = heads,
		.tile = build_alloc(b, (build_max_rows(b, op->rows) / tile_rows + p->limits.spans + 1) *
	                               sizeof *c->tile)};
	return p->cut[p->cuts++] = c;
}

size_t cpu_partial_floats(const struct cpu_variant *v, const struct cpu_attention *a,
                          unsigned threads, uint32_t positions)
{
	enum { FLOATS_MAX = 16 << 20 };
	uint64_t tiles = ITEMS_PER_THREAD * (uint64_t)threads / a->items + 1;
	if (!v->att_join || threads == 1)
		return 0;
	uint64_t floats = tiles * (positions / CPU_CHUNK + 2) * a->items *
	                  v->att_state(a, a->cut->tile_rows);
	return floats < FLOATS_MAX ? floats : FLOATS_MAX;
}

void build_attention(struct build *b, const struct kern_op *op)
{
	struct kern_program *p = b->p;
	const struct kern_kv_layer *kv = &op->attention.kv;
	const struct cpu_variant *v = p->dev->variant;
	uint32_t heads = op->attention.heads, tile_rows;
	struct cpu_attention *a = build_alloc(b, sizeof *a);
	if (b->rc)
		return;
	*a = (struct cpu_attention){.p = p,
	                            .out = cpu_row(&op->attention.out, 0),
	                            .q = cpu_row(&op->attention.q, 0),
	                            .ldo = op->attention.out.ld,
	                            .ldq = op->attention.q.ld,
	                            .heads = heads,
	                            .window = op->attention.window,
	                            .kv = *kv,
	                            .scale = op->attention.scale,
	                            .sinks = op->attention.sinks.v ? cpu_f32(op->attention.sinks)
	                                                           : NULL};
	v->att_share(a, &tile_rows);
	uint64_t items = (build_max_rows(b, op->rows) / tile_rows + p->limits.spans + 1ull) * a->items;
	if (items > UINT32_MAX)
		build_fail(b, KERN_EINVAL, "attention: %u heads of a step have %llu parts, the limit is %u",
		           heads, (unsigned long long)items, UINT32_MAX);
	if (!(a->cut = cut_of(b, op, tile_rows, a->items)))
		return;
	size_t scratch = v->att_scratch(a, p->limits.positions),
		   partial = cpu_partial_floats(v, a, crew_threads(p->dev->crew), p->limits.positions);
	p->scratch_floats = scratch > p->scratch_floats ? scratch : p->scratch_floats;
	p->partial_floats = partial > p->partial_floats ? partial : p->partial_floats;
	build_phase(b, att_items, v->att_item, a);
	if (v->att_join)
		build_phase(b, join_items, v->att_join, a);
}
