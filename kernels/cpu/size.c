/* size.c - estimates a program's memory from its limits and largest shapes before it exists: the
 * sum of what the files that compile operations into phases allocate. */
#include "kernels/cpu/build.h"
#include "kernels/cpu/panel.h"

enum { DESCRIPTION = 1 << 10, CUTS = 8 };

static size_t tiles_of(size_t rows)
{
	return (rows + CPU_TILE_ROWS - 1) / CPU_TILE_ROWS;
}

/* Prepared activations of `columns` columns. */
static size_t ready_bytes(const struct cpu_variant *v, bool bf16, size_t rows, size_t tiles,
                          uint32_t columns)
{
	size_t rec = v->tile_bytes ? tiles * v->tile_bytes((columns + GROUP - 1) / GROUP) : 0;
	return rec + (bf16 ? rows * v->rounded_floats(columns) * sizeof(float) : 0);
}

static size_t expert_bytes(const struct kern_shape *s, size_t rows)
{
	size_t pairs = rows * s->used, tiles = tiles_of(pairs) + s->experts + 1;
	size_t group = 2 * pairs + 3 * ((size_t)s->experts + 1) + tiles;
	return (pairs * ((size_t)s->expert_in + s->expert_out) + s->expert_layers * group) * 4;
}

static size_t attention_bytes(const struct cpu_variant *v, unsigned threads,
                              const struct kern_limits *l, const struct kern_shape *s, size_t rows,
                              size_t *ret_scratch)
{
	struct cpu_cut cut = {0};
	struct cpu_attention a = {.cut = &cut, .heads = s->heads, .kv = s->kv};
	v->att_share(&a, &cut.tile_rows);
	*ret_scratch = v->att_scratch(&a, l->positions);
	return CUTS * (rows / cut.tile_rows + l->spans + 1) * sizeof *cut.tile +
	       cpu_partial_floats(v, &a, threads, l->positions) * sizeof(float);
}

size_t cpu_program_bytes(const struct cpu_variant *v, unsigned threads, bool bf16,
                         const struct kern_limits *l, const struct kern_shape *s)
{
	size_t rows = max_size(l->rows, l->tail_rows), tiles = tiles_of(rows), pairs = rows * s->used;
	size_t scratch, attention = attention_bytes(v, threads, l, s, rows, &scratch);
	size_t room = 2 * sizeof(struct crew_phase) + crew_phase_bytes(threads);
	size_t described = s->ops * (sizeof(struct kern_op) + DESCRIPTION + room);
	size_t ready = ready_bytes(v, bf16, rows, tiles, s->in);
	if (s->used)
		ready = max_size(ready, ready_bytes(v, bf16, pairs, tiles_of(pairs) + s->experts + 1,
		                                    s->expert_in));
	scratch = max_size(max_size(scratch, s->in), s->expert_in) * sizeof(float);
	return described + attention + ready + expert_bytes(s, rows) +
	       threads * (scratch + (l->vocab ? kern_sampler_bytes(l->vocab) : 0)) +
	       (size_t)l->rows * s->angles * sizeof(float);
}
