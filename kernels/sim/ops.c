/* ops.c - what the operations do to the one word that a row carries: copy it, mix it, and in the end turn it into logits.
 *
 * x of a token goes through the layers: each adds its chain (attention), so that the logits depend on every layer's KV of the whole prefix.
 * Every row is made from that row alone. No time passes here; kv.c charges a layer at its KV write. */
#include "kernels/sim/sim.h"

#include <stdlib.h>

static int check_rows(struct kern_device *dev, const char *op, uint32_t rows)
{
	if (rows > dev->max_rows)
		return sim_fail(dev, KERN_EINVAL, "%s of %u rows, the device was opened for %u", op, rows, dev->max_rows);
	return KERN_OK;
}

static void copy_rows(float *y, size_t ldy, const float *x, size_t ldx, uint32_t rows)
{
	for (uint32_t r = 0; r < rows; r++)
		sim_row_set(y + r * ldy, sim_row_get(x + r * ldx));
}

/* Every step begins with it. */
int sim_op_embed(struct kern_stream *s, float *y, const struct kern_weight *w, const uint32_t *tokens, uint32_t rows)
{
	struct kern_device *dev = s->dev;
	int rc = check_rows(dev, "embed", rows);
	if (rc)
		return rc;
	sim_clock_begin(dev);
	atomic_fetch_add_explicit(&dev->steps, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&dev->rows, rows, memory_order_relaxed);
	for (uint32_t r = 0; r < rows; r++) {
		if (tokens[r] >= w->n)
			return sim_fail(dev, KERN_EINVAL, "embed of token %u, the table has %u rows", tokens[r], w->n);
		sim_row_set(y + (size_t)r * w->k, sim_mix(dev->sim.seed, tokens[r]));
	}
	return KERN_OK;
}

int sim_op_rms_norm(struct kern_stream *s, float *y, const float *x, const float *w, uint32_t rows, uint32_t dim, float eps)
{
	(void)w, (void)eps;
	int rc = check_rows(s->dev, "rms_norm", rows);
	if (!rc)
		copy_rows(y, dim, x, dim, rows);
	return rc;
}

int sim_op_add_rms_norm(struct kern_stream *s, float *y, float *x, const float *a, const float *w, uint32_t rows, uint32_t dim, float eps)
{
	(void)w, (void)eps;
	int rc = check_rows(s->dev, "add_rms_norm", rows);
	for (uint32_t r = 0; !rc && r < rows; r++) {
		size_t at = (size_t)r * dim;
		uint64_t v = sim_mix(sim_row_get(x + at), sim_row_get(a + at));
		sim_row_set(x + at, v);
		sim_row_set(y + at, v);
	}
	return rc;
}

int sim_op_head_norm(struct kern_stream *s, float *x, size_t ldx, uint32_t heads, uint32_t head_dim, const float *w, uint32_t rows, float eps)
{
	(void)x, (void)ldx, (void)heads, (void)head_dim, (void)w, (void)rows, (void)eps;
	return sim_fail(s->dev, KERN_ENOTSUP, "head_norm: a simulated model has no norms of heads");
}

int sim_op_rope(struct kern_stream *s, float *x, size_t ldx, uint32_t heads, uint32_t head_dim, const struct kern_rope *rope,
                const uint32_t *positions, uint32_t rows)
{
	(void)s, (void)x, (void)ldx, (void)heads, (void)head_dim, (void)rope, (void)positions, (void)rows;
	return KERN_OK;   /* the position goes into the chain */
}

int sim_op_attention(struct kern_stream *s, float *out, const float *q, size_t ldq, uint32_t heads, const struct kern_kv_layer *kv,
                     float scale, uint32_t window, const float *sinks, const struct kern_batch *b)
{
	(void)q, (void)ldq, (void)scale, (void)sinks;
	if (window || kv->latent)
		return sim_fail(s->dev, KERN_ENOTSUP, "attention with a window of %u and a latent of %u", window, kv->latent);
	int rc = check_rows(s->dev, "attention", b->rows);
	for (uint32_t i = 0; !rc && i < b->spans; i++) {
		const struct kern_span *sp = &b->span_host[i];
		for (uint32_t r = 0; r < sp->rows; r++)
			sim_row_set(out + (size_t)(sp->row + r) * heads * kv->head_dim, sim_kv_chain(kv, b->block_table + sp->table, sp->position + r));
	}
	return rc;
}

int sim_op_act_mul(struct kern_stream *s, float *y, const float *gate, const float *up, size_t ld, enum kern_act act, uint32_t rows,
                   uint32_t dim)
{
	(void)up, (void)act;
	int rc = check_rows(s->dev, "act_mul", rows);
	if (!rc)
		copy_rows(y, dim, gate, ld, rows);
	return rc;
}

int sim_op_gather_rows(struct kern_stream *s, float *y, const float *x, const uint32_t *index, uint32_t count, uint32_t dim)
{
	int rc = check_rows(s->dev, "gather_rows", count);
	for (uint32_t r = 0; !rc && r < count; r++)
		sim_row_set(y + (size_t)r * dim, sim_row_get(x + (size_t)index[r] * dim));
	return rc;
}

int sim_op_route(struct kern_stream *s, uint32_t *ids, float *weights, const float *logits, const struct kern_router *router, uint32_t rows)
{
	(void)ids, (void)weights, (void)logits, (void)router, (void)rows;
	return sim_fail(s->dev, KERN_ENOTSUP, "route: a simulated model has no experts");
}

int sim_op_experts_act(struct kern_stream *s, float *y, const float *x, const uint32_t *ids, uint32_t used, const struct kern_experts *experts,
                       enum kern_act act, uint32_t rows)
{
	(void)y, (void)x, (void)ids, (void)used, (void)experts, (void)act, (void)rows;
	return sim_fail(s->dev, KERN_ENOTSUP, "experts_act: a simulated model has no experts");
}

int sim_op_experts_down(struct kern_stream *s, float *y, size_t ldy, const float *x, const uint32_t *ids, const float *weights, uint32_t used,
                        const struct kern_experts *experts, int add, uint32_t rows)
{
	(void)y, (void)ldy, (void)x, (void)ids, (void)weights, (void)used, (void)experts, (void)add, (void)rows;
	return sim_fail(s->dev, KERN_ENOTSUP, "experts_down: a simulated model has no experts");
}

int sim_op_heads_matmul(struct kern_stream *s, float *y, size_t ldy, const float *x, size_t ldx, struct kern_weight *const *w, uint32_t heads,
                        uint32_t tail, uint32_t rows)
{
	(void)y, (void)ldy, (void)x, (void)ldx, (void)w, (void)heads, (void)tail, (void)rows;
	return sim_fail(s->dev, KERN_ENOTSUP, "heads_matmul: a simulated model has no matrices of single heads");
}

int sim_op_scale(struct kern_stream *s, float *x, float factor, size_t count)
{
	(void)x, (void)factor, (void)count;
	return sim_fail(s->dev, KERN_ENOTSUP, "scale: a simulated model has no factors");
}

/* --- logits ------------------------------------------------------------------------------------------------------------------- */

static int is_eos(const struct kern_sim *m, uint32_t id)
{
	for (uint32_t i = 0; i < m->n_eos; i++)
		if (m->eos[i] == id)
			return 1;
	return 0;
}

/* The highest token that a row's word asks for, and a few less likely ones. eos comes by eos_rate alone. */
static void choose_peaks(const struct kern_sim *m, uint64_t x, uint32_t peak[SIM_PEAKS])
{
	for (uint32_t i = 0; i < SIM_PEAKS; i++) {
		uint64_t h = sim_mix(x, i + 1);
		uint32_t id = (uint32_t)(h % m->vocab);
		while (is_eos(m, id) && m->n_eos < m->vocab)
			id = (id + 1) % m->vocab;
		peak[i] = id;
	}
	if (m->n_eos && (double)(sim_mix(x, SIM_PEAKS + 1) >> 11) * 0x1p-53 < m->eos_rate)
		peak[0] = m->eos[0];
}

static int logits_room(struct kern_device *dev, float *y, size_t ldy, uint32_t rows)
{
	struct sim_logits *l = &dev->logits;
	if (l->y != y || l->ldy != ldy) {
		l->y = y;
		l->ldy = ldy;
		l->rows = 0;
	}
	if (rows > l->room) {
		void *p = realloc(l->peak, (size_t)rows * SIM_PEAKS * sizeof *l->peak);
		if (!p)
			return sim_fail(dev, KERN_ENOMEM, "no memory for %u rows of logits", rows);
		l->peak = p;
		l->room = rows;
	}
	for (; l->rows < rows; l->rows++) {
		memset(y + l->rows * ldy, 0, dev->sim.vocab * sizeof *y);
		memset(l->peak + (size_t)l->rows * SIM_PEAKS, 0, SIM_PEAKS * sizeof *l->peak);
	}
	return KERN_OK;
}

/* A floor of zero with SIM_PEAKS entries above it. Only what differs from the row's last use is written. */
static int logits(struct kern_device *dev, float *y, size_t ldy, const float *x, size_t ldx, uint32_t rows)
{
	static const float height[SIM_PEAKS] = {14.0f, 13.0f, 12.25f, 11.5f, 10.75f};
	int rc = logits_room(dev, y, ldy, rows);
	for (uint32_t r = 0; !rc && r < rows; r++) {
		uint32_t *peak = dev->logits.peak + (size_t)r * SIM_PEAKS;
		float *row = y + r * ldy;
		for (int i = 0; i < SIM_PEAKS; i++)
			row[peak[i]] = 0.0f;
		choose_peaks(&dev->sim, sim_row_get(x + r * ldx), peak);
		for (int i = SIM_PEAKS; i-- > 0;)
			row[peak[i]] = height[i];
	}
	return rc;
}

int sim_op_matmul(struct kern_stream *s, const float *x, uint32_t rows, const struct kern_product *p, uint32_t products)
{
	int rc = check_rows(s->dev, "matmul", rows);
	for (uint32_t i = 0; !rc && i < products; i++) {
		size_t ldx = p[i].w->k;
		if (p[i].w->n == s->dev->sim.vocab)
			rc = logits(s->dev, p[i].y, p[i].ldy, x, ldx, rows);
		else
			copy_rows(p[i].y, p[i].ldy, x, ldx, rows);
	}
	return rc;
}
