/* products.c - products of a group that shares its activations, and of one matrix per head:
 * activations are prepared (quantised, rounded) by rows, then columns are distributed. */
#include "kernels/cpu/build.h"
#include "kernels/cpu/panel.h"

#include <string.h>

/* --- preparing activations ----------------------------------------------- */

struct cpu_make build_make(const struct build *b, const struct kern_weight *const *w, uint32_t n)
{
	const struct cpu_variant *v = b->p->dev->variant;
	struct cpu_make m = {.k = w[0]->k};
	for (uint32_t i = 0; i < n; i++) {
		if (v->tile_bytes && !panel_is_float(w[i]->dtype))
			m.tile_bytes = v->tile_bytes(m.k / GROUP);
		if (b->p->dev->bf16_activations && w[i]->dtype == KERN_BF16)
			m.ld_rounded = v->rounded_floats(m.k);
	}
	return m;
}

void build_ready_room(struct build *b, const struct cpu_make *m, size_t rows, size_t tiles)
{
	struct kern_program *p = b->p;
	p->rec_bytes = max_size(p->rec_bytes, tiles * m->tile_bytes);
	p->rounded_floats = max_size(p->rounded_floats, rows * m->ld_rounded);
}

struct cpu_ready cpu_ready_at(const struct kern_program *p, const struct cpu_make *m,
                              const float *x, size_t ldx, size_t tile, size_t row)
{
	return (struct cpu_ready){
		.k = m->k,
		.x = x,
		.ldx = ldx,
		.rec = m->tile_bytes ? p->rec + tile * m->tile_bytes : NULL,
		.tile_bytes = m->tile_bytes,
		.rounded = m->ld_rounded ? p->rounded + row * m->ld_rounded : NULL,
		.ld_rounded = m->ld_rounded,
	};
}

uint32_t cpu_panels_per_item(const struct kern_program *p, const struct kern_weight *w,
                             size_t total_bytes, int many)
{
	enum { ITEMS_PER_THREAD = 6, ITEM_BYTES = 192 << 10 };
	size_t share = total_bytes / (ITEMS_PER_THREAD * crew_threads(p->dev->crew)) + 1,
		   panel = w->stride / p->dev->variant->panels(w);
	if (many && share > ITEM_BYTES)
		share = ITEM_BYTES;
	uint32_t each = (uint32_t)(share / (panel ? panel : 1));
	return each ? each : 1;
}

/* --- one group ----------------------------------------------------------- */

/* Two distributions of the columns: for rows of one tile [0], and for more [1]. */
struct matmul_phase {
	struct kern_program *p;
	const struct kern_op *op;
	struct cpu_make make;
	struct kern_weight w[KERN_PRODUCTS_MAX]; /* copies of the operation's */
	uint32_t panels_per_item[2][KERN_PRODUCTS_MAX], first_item[2][KERN_PRODUCTS_MAX + 1];
};

static void ready_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                       uint32_t to)
{
	const struct matmul_phase *ph = s->with;
	struct cpu_ready r = cpu_ready_at(p, &ph->make, cpu_row(&s->op->matmul.x, 0),
	                                  s->op->matmul.x.ld, 0, 0);
	p->dev->variant->make_ready(&r, from, to);
}

static uint32_t matmul_items(const void *ctx)
{
	const struct matmul_phase *ph = ctx;
	uint32_t rows = cpu_rows(ph->p, ph->op->rows);
	return rows ? ph->first_item[rows > CPU_TILE_ROWS][ph->op->matmul.products] : 0;
}

static void matmul_item(const void *ctx, uint32_t item, unsigned worker)
{
	const struct matmul_phase *ph = ctx;
	const struct kern_program *p = ph->p;
	const struct cpu_variant *v = p->dev->variant;
	const struct kern_tensor *x = &ph->op->matmul.x;
	uint32_t rows = cpu_rows(p, ph->op->rows), many = rows > CPU_TILE_ROWS, i = 0;
	while (item >= ph->first_item[many][i + 1])
		i++;
	const struct kern_product *of = &ph->op->matmul.p[i];
	uint32_t each = ph->panels_per_item[many][i], first = (item - ph->first_item[many][i]) * each,
			 panels = v->panels(&ph->w[i]);
	struct cpu_part part = {.w = &ph->w[i],
	                        .bias = of->bias.v ? cpu_f32(of->bias) : NULL,
	                        .y = cpu_f32(of->y.at),
	                        .ldy = of->y.ld,
	                        .in = cpu_ready_at(p, &ph->make, cpu_row(x, 0), x->ld, 0, 0),
	                        .rows = rows};
	v->product(&part, v, first, panels - first < each ? panels : first + each, p->scratch[worker]);
}

static void share_out(struct matmul_phase *ph)
{
	const struct kern_op *op = ph->op;
	size_t total = 0;
	for (uint32_t i = 0; i < op->matmul.products; i++)
		total += op->matmul.p[i].w->stride;
	for (int many = 0; many < 2; many++)
		for (uint32_t i = 0; i < op->matmul.products; i++) {
			uint32_t each = cpu_panels_per_item(ph->p, op->matmul.p[i].w, total, many),
					 panels = ph->p->dev->variant->panels(op->matmul.p[i].w);
			ph->panels_per_item[many][i] = each;
			ph->first_item[many][i + 1] = ph->first_item[many][i] + (panels + each - 1) / each;
		}
}

static void need_scratch(struct build *b, size_t floats)
{
	b->p->scratch_floats = max_size(b->p->scratch_floats, floats);
}

void build_matmul(struct build *b, const struct kern_op *op)
{
	const struct kern_weight *w[KERN_PRODUCTS_MAX];
	for (uint32_t i = 0; i < op->matmul.products; i++)
		w[i] = op->matmul.p[i].w;
	struct matmul_phase *ph = build_alloc(b, sizeof *ph);
	if (!ph)
		return;
	*ph = (struct matmul_phase){.p = b->p, .op = op, .make = build_make(b, w, op->matmul.products)};
	for (uint32_t i = 0; i < op->matmul.products; i++)
		ph->w[i] = *w[i];
	uint32_t rows = build_max_rows(b, op->rows);
	build_ready_room(b, &ph->make, rows, (rows + CPU_TILE_ROWS - 1) / CPU_TILE_ROWS);
	need_scratch(b, ph->make.k);
	share_out(ph);
	if (ph->make.tile_bytes || ph->make.ld_rounded)
		build_row_step(b, op, ready_rows, ph, 4 * (size_t)ph->make.k);
	build_phase(b, matmul_items, matmul_item, ph);
}

/* --- one matrix per head ------------------------------------------------- */

struct heads_phase {
	struct kern_program *p;
	const struct kern_op *op;
	struct cpu_make make;
	size_t tiles, rows; /* capacity per head */
	uint32_t panels, panels_per_item[2], items_per_head[2];
};

static struct cpu_ready head_ready(const struct heads_phase *ph, uint32_t head)
{
	const struct kern_tensor *x = &ph->op->heads_matmul.x;
	return cpu_ready_at(ph->p, &ph->make,
	                    cpu_row(x, 0) + head * ((size_t)ph->make.k + ph->op->heads_matmul.tail),
	                    x->ld, head * ph->tiles, head * ph->rows);
}

static void heads_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                       uint32_t to)
{
	const struct heads_phase *ph = s->with;
	const struct kern_op *op = s->op;
	uint32_t n = op->heads_matmul.w->n, k = ph->make.k, tail = op->heads_matmul.tail;
	for (uint32_t h = 0; h < op->heads_matmul.heads; h++) {
		if (ph->make.tile_bytes || ph->make.ld_rounded) {
			struct cpu_ready r = head_ready(ph, h);
			p->dev->variant->make_ready(&r, from, to);
		}
		for (uint32_t r = from; r < to && tail; r++)
			memcpy(cpu_row(&op->heads_matmul.y, r) + h * ((size_t)n + tail) + n,
			       cpu_row(&op->heads_matmul.x, r) + h * ((size_t)k + tail) + k,
			       tail * sizeof(float));
	}
}

static uint32_t heads_items(const void *ctx)
{
	const struct heads_phase *ph = ctx;
	uint32_t rows = cpu_rows(ph->p, ph->op->rows);
	return rows ? ph->op->heads_matmul.heads * ph->items_per_head[rows > CPU_TILE_ROWS] : 0;
}

static void heads_item(const void *ctx, uint32_t item, unsigned worker)
{
	const struct heads_phase *ph = ctx;
	const struct kern_op *op = ph->op;
	const struct cpu_variant *v = ph->p->dev->variant;
	uint32_t rows = cpu_rows(ph->p, op->rows), many = rows > CPU_TILE_ROWS,
			 each = ph->panels_per_item[many];
	uint32_t head = item / ph->items_per_head[many], first = item % ph->items_per_head[many] * each;
	const struct kern_weight w = cpu_matrix(op->heads_matmul.w, head);
	struct cpu_part part = {.w = &w,
	                        .y = cpu_row(&op->heads_matmul.y, 0) +
	                             head * ((size_t)w.n + op->heads_matmul.tail),
	                        .ldy = op->heads_matmul.y.ld,
	                        .in = head_ready(ph, head),
	                        .rows = rows};
	v->product(&part, v, first, ph->panels - first < each ? ph->panels : first + each,
	           ph->p->scratch[worker]);
}

void build_heads_matmul(struct build *b, const struct kern_op *op)
{
	uint32_t heads = op->heads_matmul.heads, rows = build_max_rows(b, op->rows),
			 tail = op->heads_matmul.tail;
	const struct kern_weight *w = op->heads_matmul.w;
	struct heads_phase *ph = build_alloc(b, sizeof *ph);
	if (!ph)
		return;
	*ph = (struct heads_phase){.p = b->p,
	                           .op = op,
	                           .make = build_make(b, &w, 1),
	                           .rows = rows,
	                           .tiles = (rows + CPU_TILE_ROWS - 1) / CPU_TILE_ROWS,
	                           .panels = b->p->dev->variant->panels(w)};
	for (int many = 0; many < 2; many++) {
		ph->panels_per_item[many] = cpu_panels_per_item(b->p, w, heads * w->stride, many);
		ph->items_per_head[many] = (ph->panels + ph->panels_per_item[many] - 1) /
		                           ph->panels_per_item[many];
	}
	build_ready_room(b, &ph->make, heads * ph->rows, heads * ph->tiles);
	need_scratch(b, ph->make.k);
	if (ph->make.tile_bytes || ph->make.ld_rounded || tail)
		build_row_step(b, op, heads_rows, ph, heads * (4 * (size_t)ph->make.k));
	build_phase(b, heads_items, heads_item, ph);
}
