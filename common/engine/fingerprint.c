/* fingerprint.c - see fingerprint.h. Nothing here fails; if no thread can be started,
 * fingerprint_end does the work. */
#include "engine/fingerprint.h"
#include "util/check.h"
#include "util/mem.h"

#include <pthread.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Bytes hashed between two checks of `stop` and of whether the tensor was dropped. */
#define WINDOW_BYTES (4u << 20)
#define SAMPLE_PIECE 1024u
#define SAMPLE_PIECES 16u

/* The place of a tensor in memory. */
struct tensor_place {
	const unsigned char *data;
	size_t bytes, entry;
};

struct fingerprint {
	const struct model_conf *conf;
	const struct model_source *src;
	pthread_t thread;
	int has_thread;
	_Atomic int stop;
	struct model_entry *entry;  /* (n) in the order of the file */
	struct tensor_place *place; /* (n) sorted by address */
	size_t n;
	/* (n) 1: the loader has given back pages of the tensor, so we give back what we touch */
	_Atomic unsigned char *dropped;
	unsigned char sum[32];
};

/* --- the description ----------------------------------------------------- */

/* Hashes numbers as text, so that padding and byte order do not matter. hash_conf passes every
 * number that changes a result. */
static void hash_words(crypto_generichash_state *h, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static void hash_words(crypto_generichash_state *h, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	CHECK(n > 0 && (size_t)n < sizeof text);
	crypto_generichash_update(h, (const unsigned char *)text, (size_t)n + 1);
}

static void hash_conf(crypto_generichash_state *h, const struct model_conf *c)
{
	const struct model_experts *x = &c->experts;
	const struct model_mla *m = &c->mla;
	hash_words(h, "pdserve-model-4 %s %d %u %u %u %u %u %u %u %u", c->family->name[MODEL_HF],
	           (int)c->source, c->layers, c->hidden, c->heads, c->kv_heads, c->head_dim, c->ffn,
	           c->vocab, c->context);
	hash_words(h, "%.9g %.9g %.9g %d %d %d %d %d %d %d %d %d", c->norm_eps, c->embed_scale,
	           c->attn_scale, c->tied, c->qkv_bias, c->o_bias, c->mlp_bias, c->qk_norm,
	           c->post_norms, c->norm_plus_one, (int)c->act, (int)c->rope_style);
	hash_words(h, "more %.9g %.9g %d %d", c->residual_scale, c->logit_scale, c->attn_sinks,
	           c->experts.bias);
	for (uint32_t i = 0; i < c->layers; i++)
		hash_words(h, "layer %u %u %u", c->layer[i].window, c->layer[i].rope, c->layer[i].experts);
	for (uint32_t i = 0; i < c->ropes; i++) {
		hash_words(h, "rope %u %.9g", c->rope_dims, c->rope[i].scale);
		crypto_generichash_update(h, (const unsigned char *)c->rope[i].inv_freq,
		                          c->rope_dims / 2 * sizeof *c->rope[i].inv_freq);
	}
	if (x->count)
		hash_words(h, "experts %u %u %u %u %u %u %d %d %d %.9g %.9g %.9g", x->count, x->active,
		           x->ffn, x->shared_ffn, x->groups, x->top_groups, (int)x->scoring, x->correction,
		           x->normalise, x->norm_min, x->norm_eps, x->scale);
	if (m->kv_rank)
		hash_words(h, "mla %u %u %u %u %u %.9g", m->kv_rank, m->q_rank, m->nope, m->rope, m->v,
		           m->norm_eps);
}

/* --- tensors ------------------------------------------------------------- */

/* Same result as XXH3_128bits_update, but with AVX2 or AVX-512: about three times as fast as
 * baseline x86-64. Only in a libxxhash built with DISPATCH=1, such as Debian's. */
XXH_errorcode XXH3_128bits_update_dispatch(XXH3_state_t *state, const void *data, size_t bytes)
	__attribute__((weak));

/* Hashes all bytes, or stops early if `stop` is set. */
static void hash_all(crypto_generichash_state *h, const struct model_entry *e, void *arg)
{
	const struct fingerprint *f = arg;
	const unsigned char *p = e->data;
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t sum;
	if (!state)
		check_fatal("out of memory for the state of a hash");
	XXH_errorcode (*update)(XXH3_state_t *, const void *,
	                        size_t) = XXH3_128bits_update_dispatch ? XXH3_128bits_update_dispatch
	                                                               : XXH3_128bits_update;
	XXH3_128bits_reset(state);
	for (size_t at = 0, n; at < e->bytes && !f->stop; at += n) {
		n = e->bytes - at < WINDOW_BYTES ? e->bytes - at : WINDOW_BYTES;
		update(state, p + at, n);
		if (f->dropped[e - f->entry])
			model_tensor_drop(&(struct model_tensor){.data = p + at, .bytes = n});
	}
	XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(state));
	XXH3_freeState(state);
	crypto_generichash_update(h, sum.digest, sizeof sum.digest);
}

/* Hashes small data whole; of large data pieces at equal distances, from the first byte to the
 * last. */
static void hash_sample(crypto_generichash_state *h, const struct model_entry *e, void *arg)
{
	const unsigned char *p = e->data;
	(void)arg;
	if (e->bytes <= SAMPLE_PIECE * SAMPLE_PIECES) {
		crypto_generichash_update(h, p, e->bytes);
		return;
	}
	for (size_t i = 0; i < SAMPLE_PIECES; i++)
		crypto_generichash_update(h, p + (e->bytes - SAMPLE_PIECE) / (SAMPLE_PIECES - 1) * i,
		                          SAMPLE_PIECE);
	crypto_generichash_update(h, p + e->bytes - SAMPLE_PIECE, SAMPLE_PIECE);
}

static struct model_entry *list_entries(const struct model_source *src, size_t *ret_n)
{
	struct model_entry *e = mem_array(model_entries(src) + 1, sizeof *e);
	for (*ret_n = 0; *ret_n < model_entries(src); ++*ret_n)
		model_entry_at(src, *ret_n, &e[*ret_n]);
	return e;
}

static void hash_model(const struct model_conf *conf, const struct model_source *src,
                       const struct model_entry *e, size_t n,
                       void (*data)(crypto_generichash_state *, const struct model_entry *, void *),
                       void *arg, unsigned char sum[32])
{
	crypto_generichash_state h;
	crypto_generichash_init(&h, NULL, 0, 32);
	hash_conf(&h, conf);
	model_tokenizer_hash(src, sum);
	crypto_generichash_update(&h, sum, 32);
	for (size_t i = 0; i < n; i++, e++) {
		crypto_generichash_update(&h, (const unsigned char *)e->name, strlen(e->name) + 1);
		crypto_generichash_update(&h, (const unsigned char *)e->type, strlen(e->type) + 1);
		crypto_generichash_update(&h, (const unsigned char *)e->shape, sizeof e->shape);
		data(&h, e, arg);
	}
	crypto_generichash_final(&h, sum, 32);
}

/* --- interface ----------------------------------------------------------- */

static void *hash_thread(void *arg)
{
	struct fingerprint *f = arg;
	hash_model(f->conf, f->src, f->entry, f->n, hash_all, f, f->sum);
	return NULL;
}

static int place_cmp(const void *a, const void *b)
{
	const struct tensor_place *x = a, *y = b;
	return x->data != y->data ? (x->data > y->data) - (x->data < y->data)
	                          : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int place_holds(const void *key, const void *elem)
{
	const struct tensor_place *k = key, *p = elem;
	return k->data < p->data ? -1 : k->data >= p->data + p->bytes;
}

struct fingerprint *fingerprint_begin(const struct model_conf *conf, const struct model_source *src)
{
	struct fingerprint *f = mem_zalloc(sizeof *f);
	f->conf = conf;
	f->src = src;
	f->entry = list_entries(src, &f->n);
	f->dropped = mem_array(f->n + 1, sizeof *f->dropped);
	f->place = mem_array(f->n + 1, sizeof *f->place);
	for (size_t i = 0; i < f->n; i++)
		f->place[i] = (struct tensor_place){f->entry[i].data, f->entry[i].bytes, i};
	qsort(f->place, f->n, sizeof *f->place, place_cmp);
	f->has_thread = pthread_create(&f->thread, NULL, hash_thread, f) == 0;
	return f;
}

static void drop(struct fingerprint *f, const void *data, size_t bytes)
{
	const struct tensor_place key = {.data = data}, *p = NULL;
	p = f ? bsearch(&key, f->place, f->n, sizeof *p, place_holds) : NULL;
	if (p)
		f->dropped[p->entry] = 1; /* before the pages are given back */
	model_tensor_drop(&(struct model_tensor){.data = data, .bytes = bytes});
}

void fingerprint_drop(struct fingerprint *f, const struct model_tensor *t)
{
	if (!t->own)
		drop(f, t->data, t->bytes);
	for (size_t i = 0; t->own && i < sizeof t->made_of / sizeof *t->made_of; i++)
		drop(f, t->made_of[i].data, t->made_of[i].bytes);
}

void fingerprint_end(struct fingerprint **fp, char hex[65])
{
	struct fingerprint *f = *fp;
	if (!f)
		return;
	f->stop = !hex;
	if (f->has_thread)
		pthread_join(f->thread, NULL);
	else
		hash_thread(f);
	if (hex)
		sodium_bin2hex(hex, 65, f->sum, sizeof f->sum);
	free(f->entry);
	free(f->place);
	free((void *)f->dropped);
	free(f);
	*fp = NULL;
}

void model_outline(const struct model_conf *conf, const struct model_source *src, char hex[65])
{
	unsigned char sum[32];
	size_t n;
	struct model_entry *e = list_entries(src, &n);
	hash_model(conf, src, e, n, hash_sample, NULL, sum);
	free(e);
	sodium_bin2hex(hex, 65, sum, sizeof sum);
}
