/* fast_attention.h - softmax attention over paged KV for the fast variants. Included by each
 * variant's file.
 *
 * A row processes its tokens in steps of 64 and chunks of 256, both aligned to positions, so the
 * order of its additions depends only on its position. Within a chunk the softmax is online (a
 * running maximum, the sum in 16 lanes, the weighted V). Chunks are merged in order: one after the
 * other, or, when few rows have long histories, after threads have computed them separately
 * (cut.c). A score is the sum over d, in order, of q[d] k[d], with fused multiply-adds and q scaled
 * to base 2. For types with scales, a token's K scale multiplies its score and its V scale
 * multiplies its weight, so codes are only converted. Tokens that a row must not see are excluded
 * from its sums, so an infinity or NaN there does not reach it. Rows of a span and heads of a group
 * share each converted block of K and V. */
#ifndef CPU_FAST_ATTENTION_H
#define CPU_FAST_ATTENTION_H

#include "kernels/cpu/fast_record.h"
#include "kernels/cpu/program.h"
#include "kernels/cpu/vec.h"

#define DIRECT_ROWS (ATT_ROWS < 3 ? ATT_ROWS : 3)
enum { STEP = 64, CHUNK = CPU_CHUNK, TILE_Q_ROWS = 96, STEP_VECS = STEP / 16 };

/* element size of a KV type; inlined so that it is a compile-time constant */
INLINE size_t kv_elem(enum kern_dtype type)
{
	return type == KERN_F32 ? 4 : type == KERN_I8 || type == KERN_F8 ? 1 : 2;
}

/* State shared by the items of an attention operation. */
struct fast_attention {
	const struct cpu_attention *a;
	uint32_t group; /* query heads per part */
	/* dim: of K; out_dim: of V; padded: out_dim rounded up to 16; q_rows: the most query rows of a
	 * tile, rounded up to ATT_ROWS */
	uint32_t dim, out_dim, padded, q_rows;
	enum kern_dtype type; /* of KV */
	size_t elem;          /* element size */
	bool scaled;
};

static struct fast_attention fast_view(const struct cpu_attention *a, uint32_t longest)
{
	uint32_t out_dim = cpu_kv_out_dim(&a->kv);
	return (struct fast_attention){
		.a = a,
		.group = a->group,
		.dim = a->kv.head_dim,
		.out_dim = out_dim,
		.padded = (out_dim + 15) & ~15u,
		.q_rows = (longest * a->group + ATT_ROWS - 1) / ATT_ROWS * ATT_ROWS,
		.type = a->kv.dtype,
		.elem = kv_elem(a->kv.dtype),
		.scaled = kern_kv_scale_bytes(a->kv.dtype) != 0,
	};
}

struct att_state {
	float *max, *sum, *acc;
}; /* (q_rows), (q_rows, 16), (q_rows, padded) */

static size_t state_floats(const struct fast_attention *f)
{
	return (size_t)f->q_rows * (1 + 16 + f->padded);
}

static struct att_state state_at(const struct fast_attention *f, float *mem)
{
	return (struct att_state){mem, mem + f->q_rows, mem + (size_t)f->q_rows * 17};
}

static void state_clear(const struct fast_attention *f, struct att_state *s)
{
	memset(s->max, 0, state_floats(f) * sizeof(float));
	for (uint32_t i = 0; i < f->q_rows; i++)
		s->max[i] = -INFINITY;
}

struct att_work {      /* buffers of a thread */
	float *q, *kt, *v; /* (q_rows, dim), (dim, STEP), (STEP, padded) */
	float weight[ATT_ROWS * STEP], factor[ATT_ROWS];
	const unsigned char *k_token[STEP], *v_token[STEP]; /* the step's tokens in the pool */
	float k_scale[STEP], v_scale[STEP];                 /* of these tokens; 0 beyond the last */
	/* few rows: read K and V in the pool; kt and v are unused */
	bool direct;
	struct att_state chunk, run;
};

static size_t work_floats(const struct fast_attention *f)
{
	return (size_t)f->q_rows * f->dim + STEP * ((size_t)f->dim + f->padded) + 2 * state_floats(f) +
	       64;
}

static struct att_work work_at(const struct fast_attention *f, unsigned worker)
{
	struct att_work w;
	w.kt = f->a->p->scratch[worker];
	w.v = w.kt + (size_t)STEP * f->dim;
	w.q = w.v + (size_t)STEP * f->padded;
	w.chunk = state_at(f, w.q + (size_t)f->q_rows * f->dim);
	w.run = state_at(f, w.chunk.max + state_floats(f));
	return w;
}

/* --- one step ------------------------------------------------------------ */

/* Elements of K that a transposition moves as one lane. */
INLINE uint32_t lane_elements(enum kern_dtype type)
{
	return type == KERN_BF16 ? 2 : type == KERN_I8 ? 4 : 1;
}

/* Loads K of up to 16 tokens, as lanes of n elements from element d on, raw (n > 1) or converted to
 * float, and transposes so that tokens are columns. */
INLINE void lanes_load(const unsigned char *const *k, uint32_t count, uint32_t d, uint32_t dim,
                       enum kern_dtype type, uint32_t n, v16 *block)
{
	size_t at = d * kv_elem(type);
	for (uint32_t j = 0; j < 16; j++)
		block[j] = j >= count ? v_set1(0)
		           : n > 1    ? v_load((const float *)(const void *)(k[j] + at))
		                      : v_load_as(k[j] + at, type, dim - d < 16 ? dim - d : 16);
	transpose16(block);
}

/* Element e of a lane of n elements, as float. */
INLINE v16 lane_part(v16 lane, enum kern_dtype type, uint32_t n, uint32_t e)
{
	if (n == 1)
		return lane;
	return type == KERN_I8 ? v_byte_i8(lane, (int)e) : e ? v_second_bf16(lane) : v_first_bf16(lane);
}

/* Transposes K of up to 16 tokens from element d on into rows of kt: 16 lanes of n elements, or
 * fewer at the end. */
INLINE void load_k(const unsigned char *const *k, uint32_t count, uint32_t d, uint32_t dim,
                   enum kern_dtype type, uint32_t n, float *kt)
{
	v16 block[16];
	lanes_load(k, count, d, dim, type, n, block);
	for (uint32_t j = 0; j < 16 && d + j * n < dim; j++)
		for (uint32_t e = 0; e < n; e++)
			v_store(kt + (size_t)(j * n + e) * STEP, lane_part(block[j], type, n, e));
}

/* Finds K and V of tokens [from, from + count); count is at most STEP. */
static void find_step(const struct fast_attention *f, const struct att_tile *t, uint32_t part,
                      uint32_t from, uint32_t count, struct att_work *w)
{
	uint32_t head = part / f->a->parts;
	const struct kern_kv_layer *kv = &f->a->kv;
	const uint32_t *table = cpu_table(f->a->p, t->span);
	size_t token_bytes = f->dim * f->elem;
	for (uint32_t i = 0, n; i < count; i += n) { /* tokens of one block */
		uint32_t entry = (from + i) / kv->block_tokens, at = (from + i) % kv->block_tokens;
		const unsigned char *k = cpu_kv_plane(kv, table[entry], head, 0),
							*v = cpu_kv_plane(kv, table[entry], head, 1);
		n = kv->block_tokens - at < count - i ? kv->block_tokens - at : count - i;
		if (w->direct) {
			/* data is read once and pool pages may be small, so prefetch all of it */
			fetch(k + at * token_bytes, n * token_bytes);
			fetch(v + at * token_bytes, n * token_bytes);
		}
		for (uint32_t j = 0; j < n; j++) {
			w->k_token[i + j] = k + (at + j) * token_bytes;
			w->v_token[i + j] = v + (at + j) * token_bytes;
		}
		if (!f->scaled)
			continue;
		memcpy(w->k_scale + i, cpu_kv_scales(kv, k) + at, n * sizeof(float));
		memcpy(w->v_scale + i, cpu_kv_scales(kv, v) + at, n * sizeof(float));
	}
	for (uint32_t i = count; f->scaled && i < STEP; i++)
		w->k_scale[i] = w->v_scale[i] = 0;
	for (uint32_t i = 0; f->type == KERN_F8 && i < STEP; i++) {
		w->k_scale[i] *= 256; /* the factor that v_load_f8 omits */
		w->v_scale[i] *= 256;
	}
}

INLINE void convert_k(const struct fast_attention *f, uint32_t count, enum kern_dtype type,
                      struct att_work *w)
{
	uint32_t n = lane_elements(type);
	for (uint32_t i = 0; i < count; i += 16) {
		uint32_t d = 0;
		for (; n > 1 && d + 16 * n <= f->dim; d += 16 * n)
			load_k(w->k_token + i, count - i, d, f->dim, type, n, w->kt + (size_t)d * STEP + i);
		for (; d < f->dim; d += 16)
			load_k(w->k_token + i, count - i, d, f->dim, type, 1, w->kt + (size_t)d * STEP + i);
	}
}

INLINE void convert_v(const struct fast_attention *f, uint32_t count, enum kern_dtype type,
                      struct att_work *w)
{
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t d = 0; d < f->out_dim; d += 16)
			v_store(w->v + (size_t)i * f->padded + d,
			        v_load_as(w->v_token[i] + d * kv_elem(type), type,
			                  f->out_dim - d < 16 ? f->out_dim - d : 16));
}

INLINE void convert_as(const struct fast_attention *f, uint32_t count, enum kern_dtype type,
                       struct att_work *w)
{
	convert_k(f, count, type, w);
	convert_v(f, count, type, w);
}

/* Converts the step's K (transposed, into kt) and V (into v) to float; the type is a compile-time
 * constant in each case. */
static void convert_step(const struct fast_attention *f, uint32_t count, struct att_work *w)
{
	switch (f->type) {
	case KERN_F32: convert_as(f, count, KERN_F32, w); break;
	case KERN_F16: convert_as(f, count, KERN_F16, w); break;
	case KERN_I8: convert_as(f, count, KERN_I8, w); break;
	case KERN_F8: convert_as(f, count, KERN_F8, w); break;
	default: convert_as(f, count, KERN_BF16, w);
	}
}

/* weight (R, STEP) = q (R, dim) kt, for V vectors of tokens */
INLINE void scores(const int R, const int V, const float *q, const float *kt, uint32_t dim,
                   float *weight)
{
	v16 sum[ATT_ROWS][STEP_VECS];
	for (int r = 0; r < R; r++)
		for (int c = 0; c < V; c++)
			sum[r][c] = v_set1(0);
	for (uint32_t d = 0; d < dim; d++, kt += STEP) {
		v16 k[STEP_VECS];
		for (int c = 0; c < V; c++)
			k[c] = v_load(kt + c * 16);
		for (int r = 0; r < R; r++) {
			v16 b = v_set1(q[r * dim + d]);
			for (int c = 0; c < V; c++)
				sum[r][c] = v_fma(b, k[c], sum[r][c]);
		}
	}
	for (int r = 0; r < R; r++)
		for (int c = 0; c < V; c++)
			v_store(weight + r * STEP + c * 16, sum[r][c]);
}

/* acc (R, V vectors) = acc * factor + weight (R, STEP) v, over tokens [lo, hi) */
INLINE void values(const int R, const int V, const float *weight, const float *factor,
                   const float *v, uint32_t lo, uint32_t hi, size_t ld, float *acc)
{
	v += lo * ld;
	v16 sum[ATT_ROWS][4];
	for (int r = 0; r < R; r++)
		for (int c = 0; c < V; c++)
			sum[r][c] = v_mul(v_load(acc + r * ld + c * 16), v_set1(factor[r]));
	for (uint32_t i = lo; i < hi; i++, v += ld) {
		v16 row[4];
		for (int c = 0; c < V; c++)
			row[c] = v_load(v + c * 16);
		for (int r = 0; r < R; r++) {
			v16 b = v_set1(weight[r * STEP + i]);
			for (int c = 0; c < V; c++)
				sum[r][c] = v_fma(b, row[c], sum[r][c]);
		}
	}
	for (int r = 0; r < R; r++)
		for (int c = 0; c < V; c++)
			v_store(acc + r * ld + c * 16, sum[r][c]);
}

/* Both products for few rows of bf16: the same additions without conversion into kt and v; dim is a
 * multiple of 32. Not for other types: each would add the same code again and triple the compile
 * time of the rest of this file. */
INLINE void scores_direct(const int R, const float *q, const unsigned char *const *k,
                          uint32_t count, uint32_t dim, float *weight)
{
	for (uint32_t i = 0; i < count; i += 16, weight += 16) {
		v16 sum[ATT_ROWS], block[16];
		for (int r = 0; r < R; r++)
			sum[r] = v_set1(0);
		for (uint32_t d = 0; d < dim; d += 32) {
			lanes_load(k + i, count - i, d, dim, KERN_BF16, 2, block);
#pragma GCC unroll 16
			for (uint32_t j = 0; j < 16; j++) {
				for (int r = 0; r < R; r++)
					sum[r] = v_fma(v_set1(q[r * dim + d + 2 * j]), v_first_bf16(block[j]), sum[r]);
				for (int r = 0; r < R; r++)
					sum[r] = v_fma(v_set1(q[r * dim + d + 2 * j + 1]), v_second_bf16(block[j]),
					               sum[r]);
			}
		}
		for (int r = 0; r < R; r++)
			v_store(weight + r * STEP, sum[r]);
	}
}

INLINE void values_direct(const int R, const int V, const float *weight, const float *factor,
                          const unsigned char *const *v, uint32_t lo, uint32_t hi, uint32_t dim,
                          float *acc)
{
	for (uint32_t d = 0; d < dim; d += 16 * (uint32_t)V) {
		v16 sum[ATT_ROWS][4];
		for (int r = 0; r < R; r++)
			for (int c = 0; c < V; c++)
				sum[r][c] = v_mul(v_load(acc + r * dim + d + c * 16), v_set1(factor[r]));
		for (uint32_t i = lo; i < hi; i++) {
			const uint16_t *row = (const uint16_t *)(const void *)v[i] + d;
			v16 part[4];
			for (int c = 0; c < V; c++)
				part[c] = v_load_bf16(row + 16 * c);
			for (int r = 0; r < R; r++) {
				v16 b = v_set1(weight[r * STEP + i]);
				for (int c = 0; c < V; c++)
					sum[r][c] = v_fma(b, part[c], sum[r][c]);
			}
		}
		for (int r = 0; r < R; r++)
			for (int c = 0; c < V; c++)
				v_store(acc + r * dim + d + c * 16, sum[r][c]);
	}
}

/* multiplies one row's scores or weights by the scales of the step's tokens */
INLINE void apply_scales(float *weight, const float *scale)
{
	for (int c = 0; c < STEP; c += 16)
		v_store(weight + c, v_mul(v_load(weight + c), v_load(scale + c)));
}

/* Turns the scores of a row that sees tokens [lo, hi) of the step into weights. Returns the factor
 * for its earlier sums. */
static float softmax_step(float *weight, int lo, int hi, float *max, float *sum)
{
	if (hi <= lo) {
		memset(weight, 0, STEP * sizeof *weight);
		return 1.0f;
	}
	v16 s[STEP_VECS], top = v_set1(*max), total;
	for (int c = 0; c < STEP_VECS; c++) {
		int l = lo - c * 16, h = hi - c * 16;
		s[c] = v_load(weight + c * 16);
		if (l > 0 || h < 16)
			s[c] = v_keep(s[c],
			              l < 0    ? 0
			              : l > 16 ? 16
			                       : l,
			              h < 0    ? 0
			              : h > 16 ? 16
			                       : h,
			              -INFINITY);
		top = v_max(top, s[c]);
	}
	float new_max = v_hmax(top), factor;
	top = v_set1(new_max);
	for (int c = 0; c < STEP_VECS; c++) {
		s[c] = v_exp2(v_sub(s[c], top));
		v_store(weight + c * 16, s[c]);
	}
	v16 f = new_max == *max ? v_set1(1.0f) : v_exp2(v_sub(v_set1(*max), top));
	total = v_add(v_add(s[0], s[1]), v_add(s[2], s[3]));
	v_store(sum, v_fma(v_load(sum), f, total));
	*max = new_max;
	float lanes[16];
	v_store(lanes, f);
	factor = lanes[0];
	return factor;
}

INLINE void scores_all(const int R, const float *q, const float *kt, uint32_t dim, float *weight)
{
	for (int c = 0; c < STEP_VECS; c += ATT_VECS)
		scores(R, ATT_VECS, q, kt + c * 16, dim, weight + c * 16);
}

INLINE void values_all(const int R, const float *weight, const float *factor, const float *v,
                       uint32_t lo, uint32_t hi, uint32_t padded, float *acc)
{
	uint32_t d = 0;
	for (; d + 16 * ATT_VECS <= padded; d += 16 * ATT_VECS)
		values(R, ATT_VECS, weight, factor, v + d, lo, hi, padded, acc + d);
	for (; d < padded; d += 16)
		values(R, 1, weight, factor, v + d, lo, hi, padded, acc + d);
}

/* The tokens [lo[r], hi[r]) of a step that row r of a group sees. Both ascend with r, as positions
 * do. */
struct att_seen {
	uint32_t lo[ATT_ROWS], hi[ATT_ROWS];
};

/* Fills *see for the n rows from q0. Returns whether any sees a token of the step. */
static bool rows_see(const struct fast_attention *f, const struct att_tile *t, uint32_t q0,
                     uint32_t n, uint32_t from, struct att_seen *see)
{
	uint32_t position = t->span->position + (t->row - t->span->row);
	bool any = false;
	for (uint32_t r = 0; r < n; r++) {
		uint32_t last = position + (q0 + r) / f->group, first = 0;
		if (f->a->window && last + 1 > f->a->window)
			first = last + 1 - f->a->window;
		see->lo[r] = first <= from ? 0 : first - from < STEP ? first - from : STEP;
		see->hi[r] = last < from ? 0 : last - from < STEP ? last - from + 1 : STEP;
		any |= see->lo[r] < see->hi[r];
	}
	return any;
}

/* acc (R, padded) of the rows from q0, over tokens [lo, hi) of the step, which all of them see */
INLINE void values_seen(const struct fast_attention *f, const struct att_work *w, const int R,
                        const float *weight, const float *factor, uint32_t lo, uint32_t hi,
                        float *acc)
{
	if (R <= DIRECT_ROWS && w->direct && ATT_VECS == 4 && f->out_dim % 64 == 0)
		values_direct(R, 4, weight, factor, w->v_token, lo, hi, f->out_dim, acc);
	else if (R <= DIRECT_ROWS && w->direct)
		values_direct(R, 2, weight, factor, w->v_token, lo, hi, f->out_dim, acc);
	else
		values_all(R, weight, factor, w->v, lo, hi, f->padded, acc);
}

/* row r of the group from q0 alone, over tokens at an end of the range that the group sees */
static __attribute__((noinline)) void values_end(const struct fast_attention *f, struct att_work *w,
                                                 uint32_t q0, uint32_t r, uint32_t lo, uint32_t hi)
{
	if (lo >= hi)
		return;
	values_seen(f, w, 1, w->weight + r * STEP, w->factor + r, lo, hi,
	            w->chunk.acc + (size_t)(q0 + r) * f->padded);
	w->factor[r] = 1;
}

/* R query rows of a tile, from q0, through one step of `count` tokens from position `from` */
INLINE void step_rows(const struct fast_attention *f, const struct att_tile *t, struct att_work *w,
                      const int R, uint32_t q0, uint32_t rows, uint32_t from, uint32_t count)
{
	uint32_t n = rows - q0 < (uint32_t)R ? rows - q0 : (uint32_t)R; /* the other rows are padding */
	struct att_seen see = {{0}, {0}};
	if (!rows_see(f, t, q0, n, from, &see))
		return;
	if (R <= DIRECT_ROWS && w->direct)
		scores_direct(R, w->q, w->k_token, count, f->dim, w->weight);
	else
		scores_all(R, w->q + (size_t)q0 * f->dim, w->kt, f->dim, w->weight);
	for (uint32_t r = 0; r < (uint32_t)R; r++) {
		if (f->scaled)
			apply_scales(w->weight + r * STEP, w->k_scale);
		w->factor[r] = softmax_step(w->weight + r * STEP, (int)see.lo[r], (int)see.hi[r],
		                            &w->chunk.max[q0 + r], &w->chunk.sum[(q0 + r) * 16]);
		if (f->scaled)
			apply_scales(w->weight + r * STEP, w->v_scale);
	}
	uint32_t lo = see.lo[n - 1], hi = see.hi[0];
	for (uint32_t r = 0; see.lo[0] < lo && r < n; r++)
		values_end(f, w, q0, r, see.lo[r], lo < see.hi[r] ? lo : see.hi[r]);
	if (lo < hi)
		values_seen(f, w, R, w->weight, w->factor, lo, hi, w->chunk.acc + (size_t)q0 * f->padded);
	for (uint32_t r = 0; hi < see.hi[n - 1] && r < n; r++) {
		w->factor[r] = lo < hi ? 1 : w->factor[r];
		values_end(f, w, q0, r, lo < hi ? hi : lo, see.hi[r]);
	}
}

static void step_tile(const struct fast_attention *f, const struct att_tile *t, struct att_work *w,
                      uint32_t from, uint32_t count)
{
	uint32_t rows = t->rows * f->group;
	for (uint32_t q0 = 0; q0 < rows; q0 += ATT_ROWS) {
		switch (rows - q0) {
		case 1: step_rows(f, t, w, 1, q0, rows, from, count); break;
#if ATT_ROWS > 2
		case 2: step_rows(f, t, w, 2, q0, rows, from, count); break;
#endif
#if ATT_ROWS > 3
		case 3: step_rows(f, t, w, 3, q0, rows, from, count); break;
#endif
		default: step_rows(f, t, w, ATT_ROWS, q0, rows, from, count);
		}
	}
}

/* --- chunks and tiles ---------------------------------------------------- */

static void load_queries(const struct fast_attention *f, const struct att_tile *t, uint32_t head,
                         struct att_work *w)
{
	float scale = f->a->scale * 1.44269504088896341f;
	uint32_t rows = t->rows * f->group;
	for (uint32_t i = 0; i < rows; i++) {
		const float *q = f->a->q + (t->row + i / f->group) * f->a->ldq +
		                 (size_t)(head * f->group + i % f->group) * f->dim;
		for (uint32_t d = 0; d < f->dim; d++)
			w->q[(size_t)i * f->dim + d] = q[d] * scale;
	}
	memset(w->q + (size_t)rows * f->dim, 0, (size_t)(f->q_rows - rows) * f->dim * sizeof(float));
}

/* computes chunk c of a tile into w->chunk */
static void chunk_tile(const struct fast_attention *f, const struct att_tile *t, uint32_t head,
                       uint32_t c, struct att_work *w)
{
	uint32_t low = t->span->position + (t->row - t->span->row), last = low + t->rows - 1;
	uint32_t first = f->a->window && low + 1 > f->a->window ? low + 1 - f->a->window : 0;
	state_clear(f, &w->chunk);
	w->direct = t->rows * f->group <= DIRECT_ROWS && f->type == KERN_BF16 && f->dim % 32 == 0 &&
	            f->out_dim % 32 == 0;
	for (uint32_t from = c * CHUNK; from < (c + 1) * CHUNK && from <= last; from += STEP) {
		if (from + STEP <= first)
			continue;
		uint32_t count = last + 1 - from < STEP ? last + 1 - from : STEP;
		find_step(f, t, head, from, count, w);
		if (!w->direct)
			convert_step(f, count, w);
		step_tile(f, t, w, from, count);
	}
}

static void merge_row(const struct fast_attention *f, struct att_state *into,
                      const struct att_state *s, uint32_t i)
{
	float max = into->max[i] > s->max[i] ? into->max[i] : s->max[i];
	/* -infinity: both are empty, or contain only NaN, which must be kept */
	v16 old = max == -INFINITY ? v_set1(1) : v_exp2(v_sub(v_set1(into->max[i]), v_set1(max)));
	v16 add = max == -INFINITY ? v_set1(1) : v_exp2(v_sub(v_set1(s->max[i]), v_set1(max)));
	v_store(into->sum + i * 16,
	        v_fma(v_load(s->sum + i * 16), add, v_mul(v_load(into->sum + i * 16), old)));
	for (size_t d = (size_t)i * f->padded; d < (size_t)(i + 1) * f->padded; d += 16)
		v_store(into->acc + d, v_fma(v_load(s->acc + d), add, v_mul(v_load(into->acc + d), old)));
	into->max[i] = max;
}

static void merge(const struct fast_attention *f, const struct att_tile *t, struct att_state *into,
                  const struct att_state *s)
{
	for (uint32_t i = 0; i < t->rows * f->group; i++)
		merge_row(f, into, s, i);
}

/* what a sink adds to the sum of weights; weights are relative to the largest score, in base 2 */
static float sink_term(float sink, float max)
{
	float lanes[16];
	v_store(lanes, v_exp2(v_set1(sink * 1.44269504088896341f - max)));
	return lanes[0];
}

static void finish(const struct fast_attention *f, const struct att_tile *t, uint32_t head,
                   const struct att_state *s)
{
	for (uint32_t i = 0; i < t->rows * f->group; i++) {
		float sum = v_hsum(v_load(s->sum + i * 16));
		if (f->a->sinks)
			sum += sink_term(f->a->sinks[head * f->group + i % f->group], s->max[i]);
		v16 inv = v_set1(1.0f / sum);
		const float *acc = s->acc + (size_t)i * f->padded;
		float *out = f->a->out + (t->row + i / f->group) * f->a->ldo +
		             (size_t)(head * f->group + i % f->group) * f->out_dim;
		for (uint32_t d = 0; d < f->out_dim; d += 16)
			v_storen(out + d, v_mul(v_load(acc + d), inv),
			         f->out_dim - d < 16 ? f->out_dim - d : 16);
	}
}

/* computes a tile completely; items start with the last tiles, which have the longest histories */
static void whole_item(const struct fast_attention *f, const struct att_tile *t, uint32_t head,
                       unsigned worker)
{
	struct att_work w = work_at(f, worker);
	load_queries(f, t, head, &w);
	state_clear(f, &w.run);
	for (uint32_t c = 0; c < t->chunks; c++) {
		chunk_tile(f, t, head, t->first_chunk + c, &w);
		merge(f, t, &w.run, &w.chunk);
	}
	finish(f, t, head, &w.run);
}

static void apart_item(const struct fast_attention *f, uint32_t item, unsigned worker)
{
	uint32_t heads = f->a->items, head = item % heads, c = item / heads;
	const struct att_tile *t = f->a->cut->tile;
	while (c >= t->partial + t->chunks)
		t++;
	struct att_work w = work_at(f, worker);
	w.chunk = state_at(f, f->a->p->partial + item * state_floats(f));
	load_queries(f, t, head, &w);
	chunk_tile(f, t, head, t->first_chunk + c - t->partial, &w);
}

static void fast_att_item(const void *attention, uint32_t item, unsigned worker)
{
	const struct cpu_attention *a = attention;
	struct fast_attention f = fast_view(a, a->cut->longest);
	if (cpu_apart(a))
		apart_item(&f, item, worker);
	else
		whole_item(&f, &a->cut->tile[a->cut->tiles - 1 - item / a->items], item % a->items, worker);
}

static void fast_att_join(const void *attention, uint32_t item, unsigned worker)
{
	const struct cpu_attention *a = attention;
	struct fast_attention f = fast_view(a, a->cut->longest);
	uint32_t head = item % a->items;
	const struct att_tile *t = &a->cut->tile[item / a->items];
	struct att_work w = work_at(&f, worker);
	state_clear(&f, &w.run);
	for (uint32_t c = 0; c < t->chunks; c++) {
		struct att_state s = state_at(
			&f, a->p->partial + ((size_t)(t->partial + c) * a->items + head) * state_floats(&f));
		merge(&f, t, &w.run, &s);
	}
	finish(&f, t, head, &w.run);
}

/* Divides a KV head's query heads into the smallest number of equal parts of at most PART_HEADS, so
 * that threads can share a large group. */
static void fast_att_share(struct cpu_attention *a, uint32_t *ret_tile_rows)
{
	enum { PART_HEADS = 32 };
	uint32_t group = a->heads / a->kv.kv_heads, parts = (group + PART_HEADS - 1) / PART_HEADS;
	while (group % parts)
		parts++;
	a->parts = parts;
	a->group = group / parts;
	a->items = a->kv.kv_heads * parts;
	*ret_tile_rows = a->group >= TILE_Q_ROWS ? 1 : TILE_Q_ROWS / a->group;
}

static size_t fast_att_scratch(const struct cpu_attention *a, uint32_t positions)
{
	(void)positions;
	struct fast_attention f = fast_view(a, a->cut->tile_rows);
	return work_floats(&f);
}

static size_t fast_att_state(const struct cpu_attention *a, uint32_t longest)
{
	struct fast_attention f = fast_view(a, longest);
	return state_floats(&f);
}

#endif
