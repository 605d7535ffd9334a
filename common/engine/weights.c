/* weights.c - loads a model's tensors into matrices and vectors on the device.
 *
 * Each tensor is passed to the device as it is in the file (FP8: its scales among its codes); the
 * device repacks it, and then the file's pages are given back, so that loading needs little more
 * memory than the model itself. Vectors share a few pieces of memory, which are freed together. A
 * missing tensor, a wrong shape or type, and too little memory are returned as errors that name
 * the tensor. */
#include "engine/mla.h"
#include "engine/model_fp8.h"
#include "engine/moe.h"
#include "kernels/numbers.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

int engine_device_error(struct engine *e, int kern_rc, const char *doing, struct err *err)
{
	int code = kern_rc == KERN_ENOMEM    ? ERR_NOMEM
	           : kern_rc == KERN_EINVAL  ? ERR_INVALID
	           : kern_rc == KERN_ENOTSUP ? ERR_UNSUPPORTED
	                                     : ERR_IO;
	return err_set(err, code, "%s: device %s: %.200s", doing, e->ops->name,
	               e->ops->last_error(e->dev));
}

/* --- what ranks divide, and what each has whole --------------------------- */

static struct tp_share rows_of_heads(struct tp_share heads, uint32_t each)
{
	return (struct tp_share){.begin = heads.begin * each, .count = heads.count * each};
}

/* The rows of a role's matrix that belong to this rank. Every matrix is divided by its rows, which
 * are columns of its product, unless weights_divided says otherwise, or whole on each rank:
 * latents, routers, norms. */
static struct tp_share rows_of(const struct engine *e, enum model_role role, uint32_t n)
{
	const struct shard *own = &e->shard;
	const struct model_mla *mla = &e->conf.mla;
	uint32_t dim = e->conf.head_dim;
	switch (role) {
	case MODEL_Q:
	case MODEL_Q_B: return rows_of_heads(own->heads, dim);
	case MODEL_KV_B: return rows_of_heads(own->heads, mla->nope + mla->v);
	case MODEL_SINKS: return own->heads;
	case MODEL_K:
	case MODEL_V: return rows_of_heads(own->kv_heads, dim);
	case MODEL_GATE:
	case MODEL_UP: return own->ffn;
	case MODEL_SHARED_GATE:
	case MODEL_SHARED_UP: return own->shared;
	case MODEL_O:
	case MODEL_DOWN:
	case MODEL_SHARED_DOWN: return own->hidden;
	case MODEL_EMBED:
	case MODEL_HEAD: return own->vocab;
	default: return (struct tp_share){.begin = 0, .count = n};
	}
}

/* Columns of the smallest piece of a row that stands alone. */
static uint32_t block_columns(enum kern_dtype t)
{
	uint32_t n = 1;
	while (t != KERN_E4M3 && !kern_dtype_bytes(t, n))
		n *= 2;
	return t == KERN_E4M3 ? KERN_E4M3_VALUES : n;
}

int weights_divided(const struct engine *e, const struct model_tensor *t, struct tp_share x,
                    uint32_t width, struct tp_share *ret_columns)
{
	*ret_columns = (struct tp_share){.begin = x.begin * width, .count = x.count * width};
	return e->reduces && x.unit * width % block_columns(t->dtype) == 0 &&
	       x.total >= x.unit * e->opts.tp;
}

uint32_t weights_unit(const struct engine *e)
{
	const struct model_conf *c = &e->conf;
	uint32_t unit = TP_COLUMNS;
	struct model_tensor t;
	for (uint32_t layer = 0; layer < c->layers && e->reduces; layer++) {
		if (model_has_role(c, MODEL_DOWN, layer) &&
		    !model_role_get(&e->src, c, MODEL_DOWN, layer, &t, NULL) &&
		    block_columns(t.dtype) > unit)
			unit = block_columns(t.dtype);
		if (c->layer[layer].experts &&
		    !model_expert_get(&e->src, c, MODEL_EXPERT_DOWN, layer, 0, &t, NULL)) {
			unit = block_columns(t.dtype) > unit ? block_columns(t.dtype) : unit;
			free(t.own);
		}
	}
	return unit;
}

/* The same of a role's matrix of a dense layer. */
static int role_divided(const struct engine *e, enum model_role role, const struct model_tensor *t,
                        struct tp_share *ret_columns)
{
	const struct shard *own = &e->shard;
	return (role == MODEL_O &&
	        weights_divided(e, t, own->heads, engine_att_width(&e->conf), ret_columns)) ||
	       (role == MODEL_DOWN && weights_divided(e, t, own->ffn, 1, ret_columns));
}

/* --- loading --------------------------------------------------------------- */

int load_found(struct loader *l, int rc, const struct model_tensor *t)
{
	if (!rc && l->size) {
		l->size->params += (uint64_t)t->n * t->k;
		l->size->file_bytes += t->bytes;
	} else if (!rc) {
		l->e->info.params += (uint64_t)t->n * t->k;
		l->e->info.weight_bytes += t->bytes;
	}
	l->rc = l->rc ? l->rc : rc;
	return !l->rc;
}

int load_find(struct loader *l, enum model_role role, uint32_t layer, struct model_tensor *t)
{
	return !l->rc &&
	       load_found(l, model_role_get(&l->e->src, &l->e->conf, role, layer, t, l->err), t);
}

/* Rows of an FP8 matrix as the device reads them, valid until the next call. */
static const unsigned char *fp8_rows(struct loader *l, const struct model_tensor *t,
                                     struct tp_share rows)
{
	size_t bytes = rows.count * kern_dtype_bytes(KERN_E4M3, t->k);
	if (l->fp8_bytes < bytes) {
		free(l->fp8);
		l->fp8 = mem_alloc(l->fp8_bytes = bytes);
	}
	model_fp8_rows(t, rows.begin, rows.count, l->fp8);
	return l->fp8;
}

void load_part(struct loader *l, const struct model_tensor *t, struct matrix_part part,
               uint32_t count, uint32_t i, struct kern_weight **w)
{
	struct engine *e = l->e;
	struct tp_share rows = part.rows;
	uint32_t k = part.columns.count ? part.columns.count : t->k;
	size_t row_bytes = kern_dtype_bytes(t->dtype, t->k);
	if (l->rc || !rows.count)
		return;
	if (l->size) {
		l->size->matrix_bytes += (uint64_t)rows.count * kern_dtype_bytes(t->dtype, k);
		return;
	}
	int rc = 0;
	if (!*w) {
		rc = e->ops->weight_new(e->dev, t->dtype, count, rows.count, k, w);
		if (!rc && rows.count != t->n && e->ops->weight_part_of)
			e->ops->weight_part_of(*w, t->n);
	}
	const unsigned char *data = t->data;
	if (data)
		data = (t->dtype == KERN_E4M3 ? fp8_rows(l, t, rows) : data + rows.begin * row_bytes) +
		       kern_dtype_bytes(t->dtype, part.columns.begin);
	if (!rc)
		rc = e->ops->weight_load(e->dev, *w, i, data, row_bytes);
	if (!rc)
		return;
	l->rc = engine_device_error(e, rc, "cannot load", l->err);
	err_prefix(l->err, "%.100s: tensor %s (%u x %u, %s)", e->src.path, t->name, t->n, t->k,
	           kern_dtype_name(t->dtype));
}

struct kern_weight *load_matrix(struct loader *l, enum model_role role, uint32_t layer)
{
	struct model_tensor t;
	struct kern_weight *w = NULL;
	if (!model_has_role(&l->e->conf, role, layer) || !load_find(l, role, layer, &t))
		return NULL;
	struct matrix_part part = {.rows = {.count = t.n}};
	if (!role_divided(l->e, role, &t, &part.columns))
		part = (struct matrix_part){.rows = rows_of(l->e, role, t.n)};
	load_part(l, &t, part, 1, 0, &w);
	fingerprint_drop(l->e->print, &t);
	return w;
}

static int is_divided(const struct engine *e, enum model_role role, uint32_t layer)
{
	struct model_tensor t;
	struct tp_share columns;
	return model_has_role(&e->conf, role, layer) &&
	       !model_role_get(&e->src, &e->conf, role, layer, &t, NULL) &&
	       role_divided(e, role, &t, &columns);
}

/* Converts plain elements to float32; ERR_UNSUPPORTED for block types, which no vector has. */
static int widen(const struct model_tensor *t, float *out)
{
	if (t->dtype != KERN_F32 && t->dtype != KERN_F16 && t->dtype != KERN_BF16)
		return ERR_UNSUPPORTED;
	for (uint32_t i = 0; i < t->k; i++)
		out[i] = t->data ? kern_element(t->data, t->dtype, i) : 0;
	return 0;
}

/* Allocates `bytes` in the vectors' memory. */
static int vector_room(struct loader *l, size_t bytes, kern_ptr *ret)
{
	enum { PIECE = 1 << 20 };
	struct engine *e = l->e;
	struct vectors *v = &e->vectors;
	bytes = (bytes + 63) & ~(size_t)63;
	if (!v->pieces || v->piece[v->pieces - 1].bytes - v->used < bytes) {
		struct kern_mem mem = {.bytes = bytes > PIECE ? bytes : PIECE};
		int rc = l->size ? 0 : e->ops->mem_new(e->dev, KERN_MEM_DEVICE, mem.bytes, &mem);
		if (rc)
			return rc;
		if (l->size)
			l->size->vector_bytes += mem.bytes;
		v->piece = mem_grow(v->piece, v->pieces + 1, sizeof *v->piece);
		v->piece[v->pieces++] = mem;
		v->used = 0;
	}
	*ret = kern_at(v->piece[v->pieces - 1].dev, v->used);
	v->used += bytes;
	return 0;
}

static kern_ptr upload(struct loader *l, const float *host, uint32_t count, const char *name)
{
	struct engine *e = l->e;
	kern_ptr dev = {0};
	int rc = vector_room(l, count * sizeof *host, &dev);
	if (l->size)
		return (kern_ptr){0};
	if (!rc)
		rc = e->ops->upload(e->stream, dev, host, count * sizeof *host);
	if (!rc)
		rc = e->ops->sync(e->stream);
	if (rc)
		l->rc = engine_device_error(e, rc, name, l->err);
	return rc ? (kern_ptr){0} : dev;
}

/* Loads a vector: each element plus `more`, times `factor`. */
static kern_ptr load_numbers(struct loader *l, const struct model_tensor *t, float more,
                             float factor)
{
	float *host = mem_array(t->k, sizeof *host);
	kern_ptr dev = {0};
	if (widen(t, host))
		l->rc = err_set(l->err, ERR_UNSUPPORTED,
		                "%.160s: tensor %s: found type %s, expected F32, F16 or BF16",
		                l->e->src.path, t->name, kern_dtype_name(t->dtype));
	else {
		for (uint32_t i = 0; (more != 0.0f || factor != 1.0f) && i < t->k; i++)
			host[i] = (host[i] + more) * factor;
		dev = upload(l, host, t->k, t->name);
	}
	free(host);
	return dev;
}

kern_ptr load_vector(struct loader *l, const struct model_tensor *t, float more)
{
	return load_numbers(l, t, more, 1.0f);
}

/* The logits' scale is folded into the last norm's weights, which only the head's product uses. */
kern_ptr load_norm(struct loader *l, enum model_role role, uint32_t layer)
{
	const struct model_conf *c = &l->e->conf;
	struct model_tensor t;
	if (!model_has_role(c, role, layer) || !load_find(l, role, layer, &t))
		return (kern_ptr){0};
	return load_numbers(l, &t, c->norm_plus_one ? 1.0f : 0.0f,
	                    role == MODEL_NORM ? c->logit_scale : 1.0f);
}

/* Loads a part of a vector. */
static kern_ptr load_own(struct loader *l, struct tp_share own, struct model_tensor *t)
{
	if (t->data)
		t->data = (const unsigned char *)t->data + own.begin * kern_dtype_bytes(t->dtype, 1);
	t->k = own.count;
	return own.count ? load_vector(l, t, 0.0f) : (kern_ptr){0};
}

static kern_ptr load_sinks(struct loader *l, uint32_t layer)
{
	struct model_tensor t;
	if (!model_has_role(&l->e->conf, MODEL_SINKS, layer) || !load_find(l, MODEL_SINKS, layer, &t))
		return (kern_ptr){0};
	return load_own(l, rows_of(l->e, MODEL_SINKS, t.k), &t);
}

kern_ptr load_expert_biases(struct loader *l, enum model_expert_part part, uint32_t layer,
                            struct tp_share own)
{
	const struct model_conf *c = &l->e->conf;
	uint32_t first, step;
	struct tp_share experts = l->e->shard.experts;
	struct model_tensor t;
	if (!c->experts.bias || l->rc || !own.count)
		return (kern_ptr){0};
	if (!load_found(l, model_expert_bias_get(&l->e->src, c, part, layer, &t, &first, &step, l->err),
	                &t))
		return (kern_ptr){0};
	uint32_t k = t.k;
	t.k *= c->experts.count;
	kern_ptr dev = {0};
	float *all = mem_array(t.k, sizeof *all);
	float *host = mem_array((size_t)experts.count * own.count, sizeof *host);
	if (widen(&t, all))
		l->rc = err_set(l->err, ERR_UNSUPPORTED,
		                "%.160s: tensor %s: found type %s, expected F32, F16 or BF16",
		                l->e->src.path, t.name, kern_dtype_name(t.dtype));
	for (uint32_t e = 0; e < experts.count && !l->rc; e++)
		for (uint32_t i = 0; i < own.count; i++)
			host[(size_t)e * own.count + i] =
				all[(size_t)(experts.begin + e) * k + first + (own.begin + i) * step];
	if (!l->rc)
		dev = upload(l, host, experts.count * own.count, t.name);
	free(all);
	free(host);
	return dev;
}

/* Loads a matrix's bias: one element per row of the matrix. */
kern_ptr load_bias(struct loader *l, int has, enum model_role role, uint32_t layer)
{
	struct model_tensor t;
	if (!has || l->rc || !model_has_role(&l->e->conf, role, layer))
		return (kern_ptr){0};
	if (!load_found(l, model_bias_get(&l->e->src, &l->e->conf, role, layer, &t, l->err), &t))
		return (kern_ptr){0};
	struct tp_share first = {.begin = 0, .count = l->e->rank ? 0 : t.k};
	return load_own(l, is_divided(l->e, role, layer) ? first : rows_of(l->e, role, t.k), &t);
}

static void load_layer(struct loader *l, uint32_t i)
{
	const struct model_conf *c = &l->e->conf;
	l->e->layer[i] = (struct layer){
		.attn_norm = load_norm(l, MODEL_ATTN_NORM, i),
		.q = load_matrix(l, MODEL_Q, i),
		.k = load_matrix(l, MODEL_K, i),
		.v = load_matrix(l, MODEL_V, i),
		.o = load_matrix(l, MODEL_O, i),
		.q_norm = load_norm(l, MODEL_Q_NORM, i),
		.k_norm = load_norm(l, MODEL_K_NORM, i),
		.attn_post_norm = load_norm(l, MODEL_ATTN_POST_NORM, i),
		.ffn_norm = load_norm(l, MODEL_FFN_NORM, i),
		.gate = load_matrix(l, MODEL_GATE, i),
		.up = load_matrix(l, MODEL_UP, i),
		.down = load_matrix(l, MODEL_DOWN, i),
		.ffn_post_norm = load_norm(l, MODEL_FFN_POST_NORM, i),
		.sinks = load_sinks(l, i),
		.q_bias = load_bias(l, c->qkv_bias, MODEL_Q, i),
		.k_bias = load_bias(l, c->qkv_bias, MODEL_K, i),
		.v_bias = load_bias(l, c->qkv_bias, MODEL_V, i),
		.o_bias = load_bias(l, c->o_bias, MODEL_O, i),
		.gate_bias = load_bias(l, c->mlp_bias, MODEL_GATE, i),
		.up_bias = load_bias(l, c->mlp_bias, MODEL_UP, i),
		.down_bias = load_bias(l, c->mlp_bias, MODEL_DOWN, i),
		.o_summed = is_divided(l->e, MODEL_O, i),
		.down_summed = is_divided(l->e, MODEL_DOWN, i),
		.mla = mla_load(l, i),
		.moe = moe_load(l, i),
	};
}

/* A matrix of a simulated model has only a size; such a model has no vectors. */
static struct kern_weight *shape(struct loader *l, enum model_role role)
{
	struct engine *e = l->e;
	struct kern_weight *w = NULL;
	uint32_t n, k;
	model_role_shape(&e->conf, role, &n, &k);
	int rc = l->rc ? l->rc : e->ops->weight_new(e->dev, KERN_F32, 1, n, k, &w);
	if (rc && !l->rc)
		l->rc = engine_device_error(e, rc, "cannot load a simulated model", l->err);
	return w;
}

static void load_shapes(struct loader *l)
{
	struct engine *e = l->e;
	e->head = e->embed = shape(l, MODEL_EMBED);
	for (uint32_t i = 0; i < e->conf.layers; i++)
		e->layer[i] = (struct layer){
			.q = shape(l, MODEL_Q),
			.k = shape(l, MODEL_K),
			.v = shape(l, MODEL_V),
			.o = shape(l, MODEL_O),
			.gate = shape(l, MODEL_GATE),
			.up = shape(l, MODEL_UP),
			.down = shape(l, MODEL_DOWN),
		};
}

static void load_tensors(struct loader *l)
{
	struct engine *e = l->e;
	struct tp_share own = e->shard.layers;
	if (!e->stage)
		e->embed = load_matrix(l, MODEL_EMBED, 0);
	for (uint32_t i = own.begin; i < own.begin + own.count && !l->rc; i++)
		load_layer(l, i);
	if (!e->stage) {
		e->final_norm = load_norm(l, MODEL_NORM, 0);
		e->head = e->conf.tied ? e->embed : load_matrix(l, MODEL_HEAD, 0);
	}
	for (uint32_t i = 0; i < e->conf.ropes && !l->rc; i++)
		e->rope[i].inv_freq = upload(l, e->conf.rope[i].inv_freq, e->conf.rope_dims / 2,
		                             "rotary frequencies");
}

int weights_load(struct engine *e, struct err *err)
{
	struct loader l = {.e = e, .err = err};
	e->layer = mem_array(e->conf.layers, sizeof *e->layer);
	if (e->sim)
		load_shapes(&l);
	else
		load_tensors(&l);
	free(l.fp8);
	return l.rc;
}

int weights_size(struct engine *e, struct weights_size *ret, struct err *err)
{
	struct weights_size size = {0};
	struct loader l = {.e = e, .err = err, .size = &size};
	struct fingerprint *print = e->print;
	e->print = NULL; /* pages of the file are not given back yet */
	e->layer = mem_array(e->conf.layers, sizeof *e->layer);
	if (!e->sim)
		load_tensors(&l);
	e->vectors.pieces = 0; /* which have no memory */
	weights_free(e);
	e->vectors = (struct vectors){0};
	e->print = print;
	if (!l.rc)
		*ret = size;
	return l.rc;
}

void free_matrix(struct engine *e, struct kern_weight **w)
{
	if (*w)
		e->ops->weight_destroy(e->dev, w);
	*w = NULL;
}

void weights_free(struct engine *e)
{
	for (uint32_t i = 0; e->layer && i < e->conf.layers; i++) {
		struct layer *l = &e->layer[i];
		struct kern_weight **const ws[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
		for (size_t k = 0; k < sizeof ws / sizeof *ws; k++)
			free_matrix(e, ws[k]);
		mla_free(e, &l->mla);
		moe_free(e, &l->moe);
	}
	if (e->head == e->embed)
		e->head = NULL;
	free_matrix(e, &e->embed);
	free_matrix(e, &e->head);
	for (size_t i = 0; i < e->vectors.pieces; i++)
		e->ops->mem_free(e->dev, &e->vectors.piece[i]);
	free(e->vectors.piece);
	free(e->layer);
	e->layer = NULL;
}
