/* derived_model.h - golden models rewritten in another shape or container that must give the same
 * logits.
 *
 * derive_padded: head size doubled with zeros (rotary over the first half only), vocabulary three
 * rows longer, everything F32. derive_gguf: a GGUF file, q and k permuted for interleaved rotary
 * pairs, llama 3 scaling as a tensor of divisors. */
#ifndef DERIVED_MODEL_H
#define DERIVED_MODEL_H

#include "format/gguf.h"
#include "format/safetensors.h"
#include "util/buf.h"
#include "util/mem.h"

#include <check.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct derived {
	struct safetensors *st;
	json_t *config;
	uint32_t heads, kv_heads, head_dim, hidden, vocab;
};

static uint32_t config_u32(const json_t *o, const char *key)
{
	return (uint32_t)json_integer_value(json_object_get(o, key));
}

static void derived_open(struct derived *d, const char *folder)
{
	struct err err;
	char path[256];
	ck_assert_msg(st_open_folder(folder, &d->st, &err) == 0, "%s", err.text);
	snprintf(path, sizeof path, "%s/config.json", folder);
	d->config = json_load_file(path, 0, NULL);
	ck_assert(d->config != NULL);
	d->heads = config_u32(d->config, "num_attention_heads");
	d->kv_heads = config_u32(d->config, "num_key_value_heads");
	d->head_dim = config_u32(d->config, "head_dim");
	d->hidden = config_u32(d->config, "hidden_size");
	d->vocab = config_u32(d->config, "vocab_size");
}

static void derived_close(struct derived *d)
{
	st_close(&d->st);
	json_decref(d->config);
}

static void derived_write(const char *path, const struct buf *b)
{
	FILE *f = fopen(path, "w");
	ck_assert(f && fwrite(b->data, 1, b->len, f) == b->len && fclose(f) == 0);
}

/* The tensor as float32 (n, k); a vector is (1, k). The caller frees it. */
static float *derived_tensor(const struct st_tensor *t, uint32_t *ret_n, uint32_t *ret_k)
{
	*ret_n = t->dims == 2 ? (uint32_t)t->shape[0] : 1;
	*ret_k = (uint32_t)t->shape[t->dims - 1];
	float *out = mem_array((size_t)*ret_n * *ret_k, sizeof *out);
	ck_assert_str_eq(t->dtype, "BF16");
	for (size_t i = 0; i < (size_t)*ret_n * *ret_k; i++) {
		uint32_t bits = (uint32_t)((const uint16_t *)t->data)[i] << 16;
		memcpy(&out[i], &bits, sizeof bits);
	}
	return out;
}

/* --- padded -------------------------------------------------------------- */

/* Rows of a projection to heads: each head's rows, then as many of zeros; `gain` makes up for
 * the smaller attention scale. */
static float *pad_heads(const float *w, uint32_t n, uint32_t k, uint32_t d, float gain)
{
	float *out = mem_array((size_t)2 * n * k, sizeof *out);
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t c = 0; c < k; c++)
			out[((size_t)(r / d) * 2 * d + r % d) * k + c] = w[(size_t)r * k + c] * gain;
	return out;
}

static float *pad_columns(const float *w, uint32_t n, uint32_t k, uint32_t d)
{
	float *out = mem_array((size_t)2 * n * k, sizeof *out);
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t c = 0; c < k; c++)
			out[(size_t)r * 2 * k + c / d * 2 * d + c % d] = w[(size_t)r * k + c];
	return out;
}

static float *pad_tensor(const struct derived *d, const char *name, float *w, uint32_t *n,
                         uint32_t *k)
{
	float *out = w;
	if (strstr(name, "q_proj") || strstr(name, "k_proj") || strstr(name, "v_proj")) {
		out = pad_heads(w, *n, *k, d->head_dim, strstr(name, "q_proj") ? sqrtf(2.0f) : 1.0f);
		*n *= 2;
	} else if (strstr(name, "o_proj")) {
		out = pad_columns(w, *n, *k, d->head_dim);
		*k *= 2;
	} else if (strstr(name, "embed_tokens") || strstr(name, "lm_head")) {
		out = mem_array((size_t)(*n + 3) * *k, sizeof *out);
		memcpy(out, w, (size_t)*n * *k * sizeof *out);
		*n += 3;
	}
	if (out != w)
		free(w);
	return out;
}

static void derive_padded(const char *from, const char *to)
{
	struct derived d;
	struct buf header, data;
	char path[256];
	derived_open(&d, from);
	buf_init(&header, 0);
	buf_init(&data, 0);
	for (size_t i = 0; i < st_tensors(d.st); i++) {
		const struct st_tensor *t = st_tensor_at(d.st, i);
		uint32_t n, k;
		float *w = pad_tensor(&d, t->name, derived_tensor(t, &n, &k), &n, &k);
		size_t bytes = (size_t)n * k * sizeof *w;
		buf_printf(&header, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[", i ? ',' : '{', t->name);
		if (t->dims == 2)
			buf_printf(&header, "%u,", n);
		buf_printf(&header, "%u", k);
		buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", data.len, data.len + bytes);
		buf_add(&data, w, bytes);
		free(w);
	}
	buf_addc(&header, '}');
	struct buf file;
	uint64_t len = header.len;
	buf_init(&file, 0);
	buf_add(&file, &len, sizeof len);
	buf_add(&file, header.data, header.len);
	buf_add(&file, data.data, data.len);
	snprintf(path, sizeof path, "%s/model.safetensors", to);
	derived_write(path, &file);
	json_object_set_new(d.config, "head_dim", json_integer(2 * d.head_dim));
	json_object_set_new(d.config, "vocab_size", json_integer(d.vocab + 3));
	json_object_set_new(json_object_get(d.config, "rope_parameters"), "partial_rotary_factor",
	                    json_real(0.5));
	snprintf(path, sizeof path, "%s/config.json", to);
	ck_assert_int_eq(json_dump_file(d.config, path, 0), 0);
	buf_fini(&header);
	buf_fini(&data);
	buf_fini(&file);
	derived_close(&d);
}

/* --- GGUF ---------------------------------------------------------------- */

struct gguf_writer {
	struct buf kv, info, data;
	uint64_t kvs, tensors;
};

static void gw_str(struct buf *b, const char *s)
{
	uint64_t n = strlen(s);
	buf_add(b, &n, sizeof n);
	buf_adds(b, s);
}

static void gw_value(struct gguf_writer *w, const char *key, uint32_t type, const void *v)
{
	gw_str(&w->kv, key);
	buf_add(&w->kv, &type, sizeof type);
	buf_add(&w->kv, v, 4);
	w->kvs++;
}

static void gw_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
	gw_value(w, key, GGUF_U32, &v);
}

static void gw_f32(struct gguf_writer *w, const char *key, float v)
{
	gw_value(w, key, GGUF_F32, &v);
}

static void gw_tensor(struct gguf_writer *w, const char *name, const float *v, uint64_t n,
                      uint64_t k, uint32_t dims)
{
	uint32_t type = 0;
	uint64_t ne[2] = {k, n}, offset = w->data.len;
	gw_str(&w->info, name);
	buf_add(&w->info, &dims, sizeof dims);
	buf_add(&w->info, ne, dims * sizeof *ne);
	buf_add(&w->info, &type, sizeof type);
	buf_add(&w->info, &offset, sizeof offset);
	buf_add(&w->data, v, n * k * sizeof *v);
	while (w->data.len % 32)
		buf_addc(&w->data, 0);
	w->tensors++;
}

/* Row i of a head's first half goes to 2 i, of its second half to 2 i + 1. */
static void interleave_heads(float *w, uint32_t n, uint32_t k, uint32_t d)
{
	float *old = mem_array((size_t)n * k, sizeof *old);
	memcpy(old, w, (size_t)n * k * sizeof *old);
	for (uint32_t r = 0; r < n; r++) {
		uint32_t i = r % d, to = r - i + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);
		memcpy(w + (size_t)to * k, old + (size_t)r * k, k * sizeof *w);
	}
	free(old);
}

static void gguf_name(const char *hf, char *out, size_t size)
{
	static const char *const names[][2] = {
		{"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
		{"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
		{"self_attn.o_proj", "attn_output"}, {"post_attention_layernorm", "ffn_norm"},
		{"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
		{"mlp.down_proj", "ffn_down"},
	};
	unsigned layer;
	int at = 0;
	if (sscanf(hf, "model.layers.%u.%n", &layer, &at) == 1 && at) {
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			if (strncmp(hf + at, names[i][0], strlen(names[i][0])) == 0)
				snprintf(out, size, "blk.%u.%s.weight", layer, names[i][1]);
	} else {
		snprintf(out, size, "%s.weight",
		         strstr(hf, "embed")     ? "token_embd"
		         : strstr(hf, "lm_head") ? "output"
		                                 : "output_norm");
	}
}

static void gw_metadata(struct gguf_writer *w, const struct derived *d)
{
	uint32_t type = GGUF_STRING;
	gw_str(&w->kv, "general.architecture");
	buf_add(&w->kv, &type, sizeof type);
	gw_str(&w->kv, "llama");
	w->kvs++;
	gw_u32(w, "llama.block_count", config_u32(d->config, "num_hidden_layers"));
	gw_u32(w, "llama.context_length", config_u32(d->config, "max_position_embeddings"));
	gw_u32(w, "llama.embedding_length", d->hidden);
	gw_u32(w, "llama.feed_forward_length", config_u32(d->config, "intermediate_size"));
	gw_u32(w, "llama.attention.head_count", d->heads);
	gw_u32(w, "llama.attention.head_count_kv", d->kv_heads);
	gw_f32(w, "llama.attention.layer_norm_rms_epsilon",
	       (float)json_number_value(json_object_get(d->config, "rms_norm_eps")));
	gw_f32(w, "llama.rope.freq_base",
	       (float)json_number_value(
			   json_object_get(json_object_get(d->config, "rope_parameters"), "rope_theta")));
}

/* Divisors of the frequencies, in the words of the family's description: factor 8, low 1, high
 * 4, original length 64. */
static void gw_rope_freqs(struct gguf_writer *w, const struct derived *d)
{
	float v[64];
	for (uint32_t i = 0; i < d->head_dim / 2; i++) {
		double f = pow(10000.0, -2.0 * i / d->head_dim), wave = 2 * M_PI / f,
			   t = (64 / wave - 1) / (4 - 1);
		v[i] = (float)(wave < 64.0 / 4 ? 1 : wave > 64 ? 8 : 1 / ((1 - t) / 8 + t));
	}
	gw_tensor(w, "rope_freqs.weight", v, 1, d->head_dim / 2, 1);
}

static void derive_gguf(const char *from, const char *path)
{
	struct derived d;
	struct gguf_writer w = {0};
	derived_open(&d, from);
	buf_init(&w.kv, 0);
	buf_init(&w.info, 0);
	buf_init(&w.data, 0);
	gw_metadata(&w, &d);
	for (size_t i = 0; i < st_tensors(d.st); i++) {
		const struct st_tensor *t = st_tensor_at(d.st, i);
		uint32_t n, k;
		char name[96];
		float *v = derived_tensor(t, &n, &k);
		if (strstr(t->name, "q_proj") || strstr(t->name, "k_proj"))
			interleave_heads(v, n, k, d.head_dim);
		gguf_name(t->name, name, sizeof name);
		gw_tensor(&w, name, v, n, k, t->dims);
		free(v);
	}
	if (json_object_get(json_object_get(d.config, "rope_parameters"), "factor"))
		gw_rope_freqs(&w, &d);
	struct buf file;
	uint32_t version = 3;
	buf_init(&file, 0);
	buf_adds(&file, "GGUF");
	buf_add(&file, &version, sizeof version);
	buf_add(&file, &w.tensors, 8);
	buf_add(&file, &w.kvs, 8);
	buf_add(&file, w.kv.data, w.kv.len);
	buf_add(&file, w.info.data, w.info.len);
	while (file.len % 32)
		buf_addc(&file, 0);
	buf_add(&file, w.data.data, w.data.len);
	derived_write(path, &file);
	buf_fini(&w.kv);
	buf_fini(&w.info);
	buf_fini(&w.data);
	buf_fini(&file);
	derived_close(&d);
}

#endif
