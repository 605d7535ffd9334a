/* job.c - how jobs are put together: fields, constants, matrices, KV. */
#include "tests/conform/conform.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct job *job_new(enum kern_op_kind kind, const struct world *w, const char *fmt, ...)
{
	static uint32_t number;
	struct job *j = conform_alloc(1, sizeof *j);
	va_list ap;
	j->kind = kind;
	j->world = *w;
	va_start(ap, fmt);
	vsnprintf(j->name, sizeof j->name, fmt, ap);
	va_end(ap);
	conform_about(0, "%s of %s, %u rows", kern_op_name(kind), j->name, world_rows(w));
	rand_seed(j->number = ++number);
	return j;
}

/* Some rows are zero, tiny, or have an outlier: what normal data never are. */
static float *rows_random(uint32_t rows, uint32_t width, float scale)
{
	float *data = rand_floats((size_t)rows * width, scale);
	for (uint32_t r = 0; r < rows; r++) {
		float *x = data + (size_t)r * width;
		if (r % 11 == 3 || r % 11 == 7)
			for (uint32_t i = 0; i < width; i++)
				x[i] *= r % 11 == 3 ? 0 : 1e-38f;
		if (r % 11 == 5)
			x[rand_below(width)] = 100 * scale;
	}
	return data;
}

uint32_t job_field(struct job *j, const char *name, enum direction dir, enum kern_rows rows,
                   uint32_t sub, uint32_t columns, float scale)
{
	float *data = dir == OUT ? NULL : rows_random(world_rows(&j->world), sub * columns, scale);
	if (j->fields == FIELDS)
		conform_fail("a job of more than %d fields", FIELDS);
	j->field[j->fields] = (struct field){name,    dir,   rows,  KERN_F32, sub,
	                                     columns, false, false, data};
	return j->fields++;
}

uint32_t job_field_history(struct job *j, const char *name, uint32_t columns, float scale)
{
	uint32_t f = job_field(j, name, OUT, KERN_ROWS_ALL, 1, columns, 0);
	j->field[f].dir = IN;
	j->field[f].history = true;
	j->field[f].data = rows_random(j->world.all[j->world.sequences], columns, scale);
	return f;
}

void job_dense(struct job *j, uint32_t f, int type)
{
	j->field[f].dense = true;
	j->field[f].type = (enum kern_dtype)type;
}

const float *job_data(const struct job *j, uint32_t f, uint32_t row)
{
	const struct field *x = &j->field[f];
	const struct world *w = &j->world;
	uint32_t s = world_sequence(w, row), at = x->history ? w->all[s] + world_position(w, row) : row;
	return x->data + (size_t)at * x->sub * x->columns;
}

uint32_t job_constant(struct job *j, const void *data, size_t bytes)
{
	j->constant[j->constants].data = data;
	j->constant[j->constants].bytes = bytes;
	return j->constants++;
}

void job_matrices(struct job *j, uint32_t count)
{
	j->matrices = count;
	j->matrix = conform_alloc(count, sizeof *j->matrix);
}

void job_matrix(struct job *j, uint32_t i, enum kern_dtype type, uint32_t n, uint32_t k)
{
	job_matrix_of(j, i, 1, type, n, k);
}

/* Every third is some columns of a wider matrix; which ones differs from job to job. */
void job_matrix_of(struct job *j, uint32_t i, uint32_t count, enum kern_dtype type, uint32_t n,
                   uint32_t k)
{
	struct matrix *m = &j->matrix[i];
	uint32_t before = (i + j->number) % 3 == 1 ? 256 : 0, wide = k + 2 * before,
			 align = kern_dtype_bytes(type, 1)    ? 1
	                 : kern_dtype_bytes(type, 32) ? 32
	                                              : 256;
	wide = (wide + align - 1) / align * align;
	*m = (struct matrix){
		type, n,    k, before ? kern_dtype_bytes(type, wide) : 0, rand_weight(type, n, wide),
		NULL, count};
	m->data += kern_dtype_bytes(type, before);
	m->value = conform_alloc((size_t)n * k, sizeof *m->value);
	for (uint32_t r = 0; r < n; r++)
		format_row(type, matrix_row(m, r), k, m->value + (size_t)r * k);
}

/* Blocks lie a little apart. */
void job_kv(struct job *j, enum kern_dtype type, uint32_t kv_heads, uint32_t head_dim,
            uint32_t latent)
{
	struct kern_kv_layer kv = {.kv_heads = kv_heads,
	                           .head_dim = head_dim,
	                           .block_tokens = j->world.block_tokens,
	                           .dtype = type,
	                           .latent = latent};
	kv.block_stride_bytes = kern_kv_planes(&kv) * kern_kv_plane_bytes(&kv) + 4;
	j->kv = kv;
	j->has_kv = true;
}
