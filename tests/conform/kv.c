/* kv.c - jobs with KV: what kv_write must have left in the pool, byte for byte, and that nothing
 * else of the pool changed. */
#include "tests/conform/conform.h"

#include <math.h>
#include <string.h>

static const double u = 0x1p-24; /* the rounding of one float32 operation */
const enum kern_dtype kv_types[KV_TYPES] = {KERN_BF16, KERN_F16, KERN_F32, KERN_I8, KERN_F8};

double kv_top(enum kern_dtype t)
{
	return t == KERN_I8 ? 127 : 448;
}

/* The code that is nearest to x (in units of the scale), or as near within `slack` of it: a backend
 * may divide by the scale or multiply by its reciprocal. Codes of a sign are in the order of
 * their values: only neighbours can be nearer, and those of zero. */
static void code_check(enum kern_dtype t, unsigned code, double x, double slack)
{
	unsigned others[] = {code - 1, code + 1, 0x00, 0x01, t == KERN_I8 ? 0xff : 0x81};
	unsigned char c = (unsigned char)code;
	double got = fabs(format_value(t, &c, 0) - x);
	for (size_t i = 0; i < LEN(others); i++) {
		c = (unsigned char)others[i];
		if ((t == KERN_F8 && (c & 0x7f) == 0x7f) || (t == KERN_I8 && c == 0x80))
			continue;
		double other = fabs(format_value(t, &c, 0) - x);
		EXPECT(got <= other + slack, "%s: %.9g became code %02x, but %02x is nearer",
		       kern_dtype_name(t), x, code, c);
		EXPECT(slack > 0 || got < other || c % 2 || !(code % 2),
		       "%s: %.9g became code %02x, but %02x is as near and even", kern_dtype_name(t), x,
		       code, c);
	}
}

static void scaled_check(const struct kern_kv_layer *kv, const unsigned char *at, float scale,
                         const float *x)
{
	double max = 0, top = kv_top(kv->dtype);
	bool finite = true;
	for (uint32_t d = 0; d < kv->head_dim; d++) {
		max = fmax(max, fabs((double)x[d]));
		finite = finite && isfinite(x[d]);
	}
	if (!finite) {
		EXPECT(isnan(scale), "the scale of a row that is not finite is %g, want NaN",
		       (double)scale);
	} else if (max < 1.01e-30) { /* as good as zero */
		for (uint32_t d = 0; d < kv->head_dim; d++)
			EXPECT(fabs((double)scale * format_value(kv->dtype, at + d, 0)) <= 1.01e-30,
			       "a row of zeros has %g", (double)scale * format_value(kv->dtype, at + d, 0));
	} else {
		EXPECT(scale == (float)(max / top), "the scale of a row up to %.9g is %.9g, want %.9g", max,
		       (double)scale, max / top);
		for (uint32_t d = 0; d < kv->head_dim; d++) /* a scale of 1 leaves no room */
			code_check(kv->dtype, at[d], (double)x[d] * top / max,
			           max == top ? 0 : 4 * u * fabs((double)x[d]) * top / max);
	}
}

static void row_bytes_check(const struct kern_kv_layer *kv, const unsigned char *at,
                            const unsigned char *scale_at, const float *x)
{
	float scale;
	size_t e = kern_dtype_bytes(kv->dtype, 1);
	if (e == 1) {
		memcpy(&scale, scale_at, 4);
		scaled_check(kv, at, scale, x);
		return;
	}
	for (uint32_t d = 0; d < kv->head_dim; d++) {
		float got = (float)format_value(kv->dtype, at + d * e, 0),
			  want = format_round(kv->dtype, (double)x[d]);
		EXPECT(got == want || (isnan(got) && isnan(want)),
		       "element %u, %.9g, became %.9g, want %.9g", d, (double)x[d], (double)got,
		       (double)want);
	}
}

/* K or V of a position, as it was given. Fields: k, and v unless there is a latent. */
const float *kv_given(const struct job *j, uint32_t seq, uint32_t position, uint32_t head,
                      uint32_t is_v)
{
	return j->field[is_v].data +
	       ((size_t)(j->world.all[seq] + position) * j->kv.kv_heads + head) * j->kv.head_dim;
}

/* One row of a plane: the bytes of the base, where the input is the same, or right. Wipes it
 * from `rest`. */
static void plane_row_check(const struct job *j, const struct result *r, const struct job *of,
                            const struct result *base, uint32_t seq, uint32_t position,
                            uint32_t plane, unsigned char *rest)
{
	const struct kern_kv_layer *kv = &j->kv;
	uint32_t head = kv->latent ? plane : plane / 2, is_v = kv->latent ? 0 : plane % 2;
	size_t bytes = kern_dtype_bytes(kv->dtype, kv->head_dim),
		   scale = kern_kv_scale_bytes(kv->dtype), scale_at,
		   at = ref_kv_at(j, seq, position, head, is_v, &scale_at);
	const float *given = kv_given(j, seq, position, head, is_v);
	if (base &&
	    !memcmp(given, kv_given(of, seq, position, head, is_v), kv->head_dim * sizeof *given)) {
		bool same = !memcmp(r->pool + at, base->pool + at, bytes) &&
		            !memcmp(r->pool + scale_at, base->pool + scale_at, scale);
		EXPECT(same, "the KV of position %u of sequence %u, plane %u, has other bytes", position,
		       seq, plane);
	} else {
		conform_about(4, "KV of position %u of sequence %u, plane %u", position, seq, plane);
		row_bytes_check(kv, r->pool + at, r->pool + scale_at, given);
	}
	memset(rest + at, r->fill, bytes);
	memset(rest + scale_at, r->fill, scale);
}

static void pool_check(const struct job *j, const struct result *r, const struct job *of,
                       const struct result *base)
{
	const struct world *w = &j->world;
	size_t all = job_pool_bytes(j);
	unsigned char *rest = conform_alloc(all, 1);
	memcpy(rest, r->pool, all);
	for (uint32_t s = 0; s < w->sequences; s++)
		for (uint32_t p = j->record_history ? 0 : w->seq[s].position;
		     p < w->seq[s].position + w->seq[s].rows; p++)
			for (uint32_t plane = 0; plane < kern_kv_planes(&j->kv); plane++)
				plane_row_check(j, r, of, base, s, p, plane, rest);
	conform_about(4, "%s", "");
	for (size_t i = 0; memcmp(rest, rest + 1, all - 1) != 0 || rest[0] != r->fill; i++)
		EXPECT(rest[i] == r->fill, "byte %zu of the pool (block %zu) was written", i,
		       i / j->kv.block_stride_bytes);
}

uint32_t kv_write_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	op->kind = KERN_OP_KV_WRITE;
	op->kv_write.kv = l->kv;
	op->kv_write.k = l->field[0];
	op->kv_write.v = j->kv.latent ? (struct kern_tensor){0} : l->field[1];
	return 1;
}

struct job *kv_job(enum kern_op_kind kind, const struct sequence *seq, uint32_t block_tokens,
                   enum kern_dtype type, uint32_t kv_heads, uint32_t head_dim, uint32_t latent,
                   const char *name)
{
	struct job *j = job_new(kind, world_new(seq, block_tokens), "%s, %s", name,
	                        kern_dtype_name(type));
	job_kv(j, type, kv_heads, head_dim, latent);
	job_field_history(j, "k", kv_heads * head_dim, 2);
	if (!latent)
		job_field_history(j, "v", kv_heads * head_dim, 2);
	j->check_pool = pool_check;
	return j;
}
