/* model_hf_rope.c - windows and rotary tables of config.json, in both spellings: rope_parameters
 * (transformers 5; one per layer type if they differ), and rope_theta, rope_scaling,
 * rope_local_base_freq (earlier versions). Errors as in family.h. */
#include "engine/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- windows ------------------------------------------------------------- */

/* Sets slides[i] to 1 for layers with a window, by the family's rule. */
static void slide_by_rule(struct hf_reader *r, const json_t *o, const struct model_conf *c,
                          uint32_t window, uint8_t *slides)
{
	uint32_t step = 0, from = 0;
	if (c->family->window == FAMILY_WINDOW_BY_PATTERN)
		step = hf_may_u32(r, o, "sliding_window_pattern", 1, KV_LAYERS_MAX,
		                  c->family->window_period);
	if (c->family->window == FAMILY_WINDOW_BY_FLAG)
		from = hf_may_u32(r, o, "max_window_layers", 0, UINT32_MAX, 28);
	for (uint32_t i = 0; i < c->layers; i++)
		slides[i] = window && i >= from && (!step || (i + 1) % step != 0);
}

/* Applies the list layer_types, if there is one: it replaces the rule if the family allows a
 * choice; otherwise it must agree with the rule. */
static void slide_by_list(struct hf_reader *r, const json_t *o, const struct model_conf *c,
                          uint32_t window, uint8_t *slides)
{
	const json_t *list = hf_get(o, "layer_types");
	int free_choice = window && (c->family->window == FAMILY_WINDOW_BY_PATTERN ||
	                             c->family->window == FAMILY_WINDOW_BY_FLAG);
	if (r->rc || !list)
		return;
	if (!json_is_array(list) || json_array_size(list) != c->layers) {
		hf_fail(r, "layer_types", list, "a list of %u types, one for each layer", c->layers);
		return;
	}
	for (uint32_t i = 0; i < c->layers && !r->rc; i++) {
		const char *s = json_string_value(json_array_get(list, i));
		int slide = s && strcmp(s, "sliding_attention") == 0,
			full = s && strcmp(s, "full_attention") == 0;
		if ((!slide && !full) || (!free_choice && slide != slides[i]))
			hf_fail(r, "layer_types", json_array_get(list, i), "%s for layer %u",
			        free_choice ? "full_attention or sliding_attention"
			        : slides[i] ? "sliding_attention"
			                    : "full_attention",
			        i);
		slides[i] = (uint8_t)slide;
	}
}

int hf_read_windows(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	enum family_window how = c->family->window;
	uint8_t slides[KV_LAYERS_MAX] = {0};
	uint32_t window = 0;
	int wanted = how == FAMILY_WINDOW_BY_FLAG ? hf_may_bool(r, o, "use_sliding_window", 0)
	                                          : how != FAMILY_WINDOW_NONE;
	if (wanted && how == FAMILY_WINDOW_ALL)
		window = hf_may_u32(r, o, "sliding_window", 1, 1u << 24, 0);
	else if (wanted)
		window = hf_need_u32(r, o, "sliding_window", 1, 1u << 24);
	slide_by_rule(r, o, c, window, slides);
	slide_by_list(r, o, c, window, slides);
	for (uint32_t i = 0; i < c->layers && !r->rc; i++)
		c->layer[i] = (struct model_layer){.window = slides[i] ? window : 0,
		                                   .rope = c->family->local_rope && slides[i]};
	return r->rc;
}

/* --- tables -------------------------------------------------------------- */

static void read_linear(struct hf_reader *r, const json_t *p, struct model_conf *c,
                        struct model_rope *t)
{
	double factor = hf_need_number(r, p, "factor", 0);
	if (r->rc)
		return;
	model_rope_linear(t, c->rope_dims, factor);
	model_rope_stretch(c, 0, factor);
}

static void read_llama3(struct hf_reader *r, const json_t *p, struct model_conf *c,
                        struct model_rope *t)
{
	double factor = hf_need_number(r, p, "factor", 0),
		   low = hf_need_number(r, p, "low_freq_factor", 0);
	double high = hf_need_number(r, p, "high_freq_factor", low),
		   original = hf_need_number(r, p, "original_max_position_embeddings", 0);
	if (!r->rc)
		model_rope_llama3(t, c->rope_dims, factor, low, high, original);
}

/* Default of attention_factor: mscale's factor divided by mscale_all_dim's if both are given, else
 * the factor for m = 1. */
static void read_yarn(struct hf_reader *r, const json_t *p, struct model_conf *c,
                      struct model_rope *t, double base)
{
	struct model_yarn y = {
		.base = base,
		.factor = hf_need_number(r, p, "factor", 0),
		.original = hf_may_number(r, p, "original_max_position_embeddings", 0, c->context),
		.beta_fast = hf_may_number(r, p, "beta_fast", 0, 32),
		.beta_slow = hf_may_number(r, p, "beta_slow", 0, 1),
		.truncate = hf_may_bool(r, p, "truncate", 1),
	};
	double m = hf_may_number(r, p, "mscale", -1, 0),
		   all = hf_may_number(r, p, "mscale_all_dim", -1, 0);
	double both = model_rope_mscale(y.factor, m) / model_rope_mscale(y.factor, all);
	y.attention_factor = hf_may_number(r, p, "attention_factor", 0,
	                                   m > 0 && all > 0 ? both : model_rope_mscale(y.factor, 1));
	if (r->rc)
		return;
	if (y.beta_slow > y.beta_fast) {
		hf_fail(r, "beta_slow", hf_get(p, "beta_slow"), "at most beta_fast, %g", y.beta_fast);
		return;
	}
	model_rope_yarn(t, c->rope_dims, &y);
	model_rope_stretch(c, y.original, y.factor);
}

/* In older configurations the original length is not among the rotary parameters. */
static void read_longrope(struct hf_reader *r, const json_t *o, const json_t *p,
                          const struct model_conf *c, struct model_rope *t)
{
	static const char key[] = "original_max_position_embeddings";
	double original = hf_may_number(r, p, key, 1, hf_may_number(r, o, key, 1, c->context));
	double factor = hf_may_number(r, p, "factor", 0, c->context / original);
	const char *name = model_rope_is_long(c, original) ? "long_factor" : "short_factor";
	const json_t *list = hf_get(p, name);
	if (!json_is_array(list) || json_array_size(list) != c->rope_dims / 2)
		hf_fail(r, name, list, "a list of %u numbers", c->rope_dims / 2);
	for (uint32_t i = 0; i < c->rope_dims / 2 && !r->rc; i++) {
		double d = json_number_value(json_array_get(list, i));
		if (!(d > 0))
			hf_fail(r, name, json_array_get(list, i), "a number more than 0");
		t->inv_freq[i] = (float)(t->inv_freq[i] / d);
	}
	t->scale = (float)hf_may_number(r, p, "attention_factor", 0,
	                                model_rope_longrope_scale(factor, original));
}

/* Reads one table from an object of parameters, which may be NULL; o: the whole configuration. */
static void read_table(struct hf_reader *r, const json_t *o, const json_t *p, struct model_conf *c,
                       struct model_rope *t, double base)
{
	const json_t *v = hf_get(p, "rope_type") ? hf_get(p, "rope_type") : hf_get(p, "type");
	const char *type = v ? json_string_value(v) : "default";
	if (r->rc)
		return;
	model_rope_default(t, c->rope_dims, base);
	if (type && strcmp(type, "linear") == 0)
		read_linear(r, p, c, t);
	else if (type && strcmp(type, "llama3") == 0)
		read_llama3(r, p, c, t);
	else if (type && strcmp(type, "yarn") == 0)
		read_yarn(r, p, c, t, base);
	else if (type && (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0))
		read_longrope(r, o, p, c, t);
	else if (!type || strcmp(type, "default") != 0)
		hf_fail(r, "rope_type", v, "default, linear, llama3, yarn or longrope");
}

static const json_t *object_of(struct hf_reader *r, const json_t *o, const char *key)
{
	const json_t *p = hf_get(o, key);
	if (p && !json_is_object(p))
		hf_fail(r, key, p, "an object");
	return json_is_object(p) ? p : NULL;
}

static void read_dims(struct hf_reader *r, const json_t *o, const json_t *p, struct model_conf *c)
{
	double part = c->family->rope_part > 0 ? c->family->rope_part : 1.0;
	part = hf_may_number(r, o, "partial_rotary_factor", 0, part);
	part = hf_may_number(r, p, "partial_rotary_factor", 0, part);
	if (!r->rc && part > 1)
		hf_fail(r, "partial_rotary_factor",
		        hf_get(p, "partial_rotary_factor") ? hf_get(p, "partial_rotary_factor")
		                                           : hf_get(o, "partial_rotary_factor"),
		        "more than 0 and at most 1");
	const char *key = c->family->rope_dims_key;
	c->rope_dims = (uint32_t)(c->head_dim * part);
	if (key)
		c->rope_dims = hf_need_u32(r, o, key, 2, MODEL_HEAD_DIM_MAX);
}

const json_t *hf_rope_parameters(struct hf_reader *r, const json_t *o)
{
	const json_t *params = object_of(r, o, "rope_parameters"),
				 *full = object_of(r, params, "full_attention");
	return full ? full : params ? params : object_of(r, o, "rope_scaling");
}

int hf_read_rope(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	const json_t *p = hf_rope_parameters(r, o), *params = hf_get(o, "rope_parameters");
	if (!r->rc && !c->family->local_rope && hf_get(params, "full_attention"))
		hf_fail(r, "rope_parameters", params, "the same parameters for all layers");
	double base = hf_may_number(r, o, "rope_theta", 1,
	                            c->family->rope_base > 0 ? c->family->rope_base : 10000.0);
	base = hf_may_number(r, p, "rope_theta", 1, base);
	read_dims(r, o, p, c);
	if (r->rc)
		return r->rc;
	read_table(r, o, p, c, &c->rope[0], base);
	if (c->family->local_rope) {
		const json_t *local = object_of(r, params, "sliding_attention");
		base = hf_may_number(r, local, "rope_theta", 1,
		                     hf_may_number(r, o, "rope_local_base_freq", 1, 10000.0));
		read_table(r, o, local, c, &c->rope[1], base);
	}
	return r->rc;
}
