/* model_hf.c - reads a Hugging Face folder (config.json, generation_config.json, safetensors) into
 * a model description.
 *
 * The keys of transformers 5 and of earlier versions are accepted. Rotation and windows are in
 * model_hf_rope.c. Every number is checked against its limits before it is used. Errors are
 * returned and name file and key. */
#include "engine/model_fp8.h"
#include "format/safetensors.h"
#include "util/mem.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_MAX (4u << 20)

static int read_json(const char *path, int optional, json_t **ret, struct err *err)
{
	FILE *f = fopen(path, "re");
	if (!f && optional && errno == ENOENT)
		return 0;
	if (!f)
		return err_set(err, ERR_IO, "%.200s: cannot open: %m", path);
	char *text = mem_alloc(CONFIG_MAX + 1);
	size_t n = fread(text, 1, CONFIG_MAX + 1, f);
	int failed = ferror(f), rc = 0;
	fclose(f);
	json_error_t je = {0};
	json_t *root = NULL;
	if (failed)
		rc = err_set(err, ERR_IO, "%.200s: cannot read", path);
	else if (n > CONFIG_MAX)
		rc = err_set(err, ERR_CORRUPT, "%.200s: file: found more than %u bytes, the limit", path,
		             CONFIG_MAX);
	else
		root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
	if (!rc && !json_is_object(root))
		rc = err_set(err, ERR_CORRUPT, "%.200s: file: found no JSON object (%.80s), expected one",
		             path, root ? "another value" : je.text);
	free(text);
	if (rc)
		json_decref(root);
	else
		*ret = root;
	return rc;
}

/* --- values -------------------------------------------------------------- */

void hf_fail(struct hf_reader *r, const char *key, const json_t *found, const char *fmt, ...)
{
	char expected[120],
		*text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII)
	                  : NULL;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(expected, sizeof expected, fmt, ap);
	va_end(ap);
	if (!r->rc)
		r->rc = err_set(r->err, found ? ERR_CORRUPT : ERR_NOTFOUND,
		                "%.160s: %.120s%s: found %.60s, expected %s", r->path, r->in ? r->in : "",
		                key, text ? text : "none", expected);
	free(text);
}

static void fail_integer(struct hf_reader *r, const char *key, const json_t *found, uint32_t min,
                         uint32_t max)
{
	if (min == max)
		hf_fail(r, key, found, "%u", min);
	else
		hf_fail(r, key, found, "an integer, %u..%u", min, max);
}

const json_t *hf_get(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);
	return json_is_null(v) ? NULL : v;
}

uint32_t hf_may_u32(struct hf_reader *r, const json_t *o, const char *key, uint32_t min,
                    uint32_t max, uint32_t absent)
{
	const json_t *v = hf_get(o, key);
	if (r->rc || !v)
		return absent;
	json_int_t i = json_integer_value(v);
	if (json_is_integer(v) && i >= (json_int_t)min && i <= (json_int_t)max)
		return (uint32_t)i;
	fail_integer(r, key, v, min, max);
	return absent;
}

uint32_t hf_need_u32(struct hf_reader *r, const json_t *o, const char *key, uint32_t min,
                     uint32_t max)
{
	if (!hf_get(o, key))
		fail_integer(r, key, NULL, min, max);
	return hf_may_u32(r, o, key, min, max, min);
}

double hf_may_number(struct hf_reader *r, const json_t *o, const char *key, double above,
                     double absent)
{
	const json_t *v = hf_get(o, key);
	if (r->rc || !v)
		return absent;
	double d = json_number_value(v);
	if (json_is_number(v) && d > above && d <= 1e30)
		return d;
	hf_fail(r, key, v, "a number more than %g", above);
	return absent;
}

double hf_need_number(struct hf_reader *r, const json_t *o, const char *key, double above)
{
	if (!hf_get(o, key))
		hf_fail(r, key, NULL, "a number more than %g", above);
	return hf_may_number(r, o, key, above, above + 1);
}

int hf_may_bool(struct hf_reader *r, const json_t *o, const char *key, int absent)
{
	const json_t *v = hf_get(o, key);
	if (r->rc || !v)
		return absent;
	if (!json_is_boolean(v))
		hf_fail(r, key, v, "true or false");
	return json_is_true(v);
}

static int is_on(struct hf_reader *r, const json_t *o, const char *key)
{
	return key && (!*key || hf_may_bool(r, o, key, 0));
}

void hf_expect(struct hf_reader *r, const json_t *o, const char *key, const char *word)
{
	const json_t *v = hf_get(o, key);
	if (!r->rc && v && (!json_is_string(v) || strcmp(json_string_value(v), word) != 0))
		hf_fail(r, key, v, "\"%s\"", word);
}

/* --- config.json --------------------------------------------------------- */

/* The head size in config.json, or hidden_size divided by the number of heads. */
static void read_head_dim(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	const char *const *parts = c->family->head_dim_keys;
	for (size_t i = 0; i < 2 && parts[i]; i++)
		c->head_dim += hf_need_u32(r, o, parts[i], i ? 2 : 1, MODEL_HEAD_DIM_MAX);
	if (!c->head_dim)
		c->head_dim = hf_may_u32(r, o, "head_dim", 2, MODEL_HEAD_DIM_MAX, 0);
	if (c->head_dim)
		return;
	if (!r->rc && (c->hidden % c->heads || c->hidden / c->heads > MODEL_HEAD_DIM_MAX))
		hf_fail(r, "head_dim", NULL,
		        "a size up to %u, because hidden_size %u / num_attention_heads %u gives none",
		        MODEL_HEAD_DIM_MAX, c->hidden, c->heads);
	c->head_dim = c->hidden / c->heads;
}

static int read_sizes(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	const struct family *f = c->family;
	c->layers = hf_need_u32(r, o, "num_hidden_layers", 1, KV_LAYERS_MAX);
	c->hidden = hf_need_u32(r, o, "hidden_size", 1, MODEL_HIDDEN_MAX);
	c->ffn = hf_need_u32(r, o, "intermediate_size", 1, MODEL_FFN_MAX);
	c->heads = hf_need_u32(r, o, "num_attention_heads", 1, MODEL_HEADS_MAX);
	c->kv_heads = hf_may_u32(r, o, "num_key_value_heads", 1, c->heads, c->heads);
	c->vocab = hf_need_u32(r, o, "vocab_size", 1, 1u << 22);
	c->context = hf_need_u32(r, o, "max_position_embeddings", 1, MODEL_CONTEXT_MAX);
	c->norm_eps = (float)hf_need_number(r, o, "rms_norm_eps", 0);
	c->tied = hf_may_bool(r, o, "tie_word_embeddings", f->tied);
	c->qkv_bias = is_on(r, o, f->bias.qkv);
	c->o_bias = is_on(r, o, f->bias.o);
	c->mlp_bias = is_on(r, o, f->bias.mlp);
	c->qk_norm = is_on(r, o, f->qk_norm);
	if (!r->rc && c->heads % c->kv_heads)
		hf_fail(r, "num_key_value_heads", hf_get(o, "num_key_value_heads"),
		        "a divisor of num_attention_heads, %u", c->heads);
	read_head_dim(r, o, c);
	return r->rc;
}

/* Refuses models with features that this engine does not support: their results would be wrong. */
static int refuse_others(struct hf_reader *r, const json_t *o)
{
	static const char *const off[] = {"attn_logit_softcapping", "final_logit_softcapping"},
							 *const no[] = {"use_bidirectional_attention"};
	for (size_t i = 0; i < sizeof off / sizeof *off; i++)
		if (hf_get(o, off[i]))
			hf_fail(r, off[i], hf_get(o, off[i]), "null");
	for (size_t i = 0; i < sizeof no / sizeof *no; i++)
		if (hf_may_bool(r, o, no[i], 0))
			hf_fail(r, no[i], hf_get(o, no[i]), "false");
	return r->rc;
}

static int read_act(struct hf_reader *r, const json_t *o, const struct model_conf *c)
{
	static const char *const keys[] = {"hidden_act", "hidden_activation"},
							 *const names[] = {[KERN_SILU] = "silu",
	                                           [KERN_GELU_TANH] = "gelu_pytorch_tanh",
	                                           [KERN_SWIGLU_CLAMPED] = "silu"};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		const json_t *v = hf_get(o, keys[i]);
		if (v && (!json_is_string(v) || strcmp(json_string_value(v), names[c->act]) != 0))
			hf_fail(r, keys[i], v, "%s", names[c->act]);
	}
	return r->rc;
}

/* Adds one id or a list of ids. */
static void read_eos(const json_t *o, struct model_conf *c)
{
	const json_t *v = hf_get(o, "eos_token_id");
	size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;
	for (size_t i = 0; i < n; i++) {
		const json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
		if (json_is_integer(e))
			model_add_eos(c, json_integer_value(e));
	}
}

static const char *content_of(const json_t *token)
{
	return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

/* What ends an answer for the tokenizer: a model that was trained on chats may have another
 * eos_token there than its base model's in the other two files. It is the tokenizer's file: what
 * is wrong in it is told where that is read. */
static void read_tokenizer_eos(const char *folder, struct model_conf *c)
{
	char *path = mem_printf("%s/tokenizer_config.json", folder), *end;
	json_t *o = NULL, *token;
	const char *key, *text;
	if (read_json(path, 1, &o, NULL) == 0 && (text = content_of(json_object_get(o, "eos_token"))))
		json_object_foreach(json_object_get(o, "added_tokens_decoder"), key, token) {
			const char *of = content_of(token);
			long id = strtol(key, &end, 10);
			if (of && strcmp(of, text) == 0 && *key && !*end)
				model_add_eos(c, id);
		}
	json_decref(o);
	free(path);
}

static int read_generation_config(const char *folder, struct model_conf *c, struct err *err)
{
	char *path = mem_printf("%s/generation_config.json", folder);
	json_t *o = NULL;
	int rc = read_json(path, 1, &o, err);
	if (!rc)
		read_eos(o, c);
	json_decref(o);
	free(path);
	return rc;
}

static int read_config(const char *path, const json_t *o, struct model_conf *c,
                       struct model_source *src, struct err *err)
{
	struct hf_reader r = {.path = path, .err = err};
	const json_t *type = hf_get(o, "model_type");
	if (!json_is_string(type)) {
		hf_fail(&r, "model_type", type, "a string");
		return r.rc;
	}
	c->family = family_find(MODEL_HF, json_string_value(type), json_string_length(type), err);
	if (!c->family) {
		err_prefix(err, "%.160s", path);
		return ERR_UNSUPPORTED;
	}
	if (read_sizes(&r, o, c))
		return r.rc;
	family_defaults(c);
	if (refuse_others(&r, o) || hf_read_windows(&r, o, c) || hf_read_rope(&r, o, c))
		return r.rc;
	if (c->family->read_hf)
		c->family->read_hf(&r, o, c);
	model_fp8_read(&r, o, src);
	if (r.rc || read_act(&r, o, c))
		return r.rc;
	read_eos(o, c);
	return 0;
}

/* The type of a described model's weights. */
static void read_type(struct hf_reader *r, const json_t *o, struct model_source *src)
{
	static const struct {
		const char *name;
		enum kern_dtype type;
	} types[] = {{"bfloat16", KERN_BF16}, {"float16", KERN_F16}, {"float32", KERN_F32}};
	const json_t *v = hf_get(o, "dtype") ? hf_get(o, "dtype") : hf_get(o, "torch_dtype");
	src->type = KERN_BF16;
	for (size_t i = 0; v && i < sizeof types / sizeof *types; i++)
		if (json_is_string(v) && strcmp(json_string_value(v), types[i].name) == 0) {
			src->type = types[i].type;
			return;
		}
	if (v)
		hf_fail(r, "dtype", v, "bfloat16, float16 or float32");
}

static void read_name(const char *folder, struct model_conf *c)
{
	size_t n = strlen(folder);
	while (n > 1 && folder[n - 1] == '/')
		n--;
	size_t from = n;
	while (from > 0 && folder[from - 1] != '/')
		from--;
	snprintf(c->name, sizeof c->name, "%.*s", (int)(n - from > 127 ? 127 : n - from),
	         folder + from);
}

int model_hf_describe(const char *path, struct model_conf *c, struct model_source *src,
                      struct err *err)
{
	struct hf_reader r = {.path = path, .err = err};
	json_t *o = NULL;
	src->kind = c->source = MODEL_HF;
	int rc = read_json(path, 0, &o, err);
	if (!rc)
		rc = read_config(path, o, c, src, err);
	if (!rc) {
		read_type(&r, o, src);
		rc = r.rc;
	}
	json_decref(o);
	read_name(path, c);
	return rc;
}

int model_hf_open(const char *path, struct model_conf *c, struct model_source *src, struct err *err)
{
	src->kind = c->source = MODEL_HF;
	char *config = mem_printf("%s/config.json", path);
	json_t *o = NULL;
	int rc = read_json(config, 0, &o, err);
	if (!rc)
		rc = read_config(config, o, c, src, err);
	json_decref(o);
	free(config);
	if (!rc)
		rc = read_generation_config(path, c, err);
	if (!rc)
		read_tokenizer_eos(path, c);
	struct safetensors *st = NULL;
	if (!rc)
		rc = st_open_folder(path, &st, err);
	src->file = st;
	read_name(path, c);
	return rc;
}
