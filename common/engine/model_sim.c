/* model_sim.c - the description of a model and a device for the simulated accelerator (backend
 * "sim"): a libconfig file with the groups `model` and `device`, as in etc/sim/.
 *
 * The resulting engine has the model's sizes and records its steps from them; only the pool is
 * smaller: a token's K and V have eight bytes each. The cost of operations is passed to the device
 * in struct sim_options. The fingerprint covers only the group `model`, so that workers with
 * different devices can hand over KV. An unknown or missing key, a wrong type and a value out of
 * range are returned as errors with file, line, key, value and range. */
#include "engine/model_sim.h"
#include "engine/family.h"
#include "util/config_file.h"

#include <math.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define REQUIRED NAN

static const struct family sim_family = {.name = {"sim", "sim"},
                                         .rope = {KERN_ROPE_HALF, KERN_ROPE_HALF}};

/* The numbers in the file. `whole`: integers only. params = 0 (the default) means that the number
 * is computed from the sizes. */
enum key_id {
	LAYERS,
	HIDDEN,
	HEADS,
	KV_HEADS,
	HEAD_DIM,
	FFN,
	PARAMS,
	ACTIVE_PARAMS,
	WEIGHT_BYTES,
	KV_BYTES,
	CONTEXT,
	VOCAB,
	SEED,
	EOS_RATE,
	FIRST_OF_DEVICE,
	FLOPS = FIRST_OF_DEVICE,
	BANDWIDTH,
	LAUNCH_US,
	STEP_US,
	TP,
	EXCHANGE_US,
	LINK_BANDWIDTH,
	TIME_SCALE,
	HANG_STEP,
	NUMBERS
};

static const struct sim_key {
	const char *name, *unit;
	double min, max, fallback;
	int whole;
} keys[NUMBERS] = {
	[LAYERS] = {"layers", "", 1, KV_LAYERS_MAX, REQUIRED, 1},
	[HIDDEN] = {"hidden", "", 1, 65536, REQUIRED, 1},
	[HEADS] = {"heads", "", 1, 1024, REQUIRED, 1},
	[KV_HEADS] = {"kv_heads", "", 1, 1024, REQUIRED, 1},
	[HEAD_DIM] = {"head_dim", "", 4, 512, REQUIRED, 1},
	[FFN] = {"ffn", "", 1, 1048576, REQUIRED, 1},
	[PARAMS] = {"params", "", 0, 1e14, 0, 0},
	[ACTIVE_PARAMS] = {"active_params", "", 0, 1e14, 0, 0},
	[WEIGHT_BYTES] = {"weight_bytes", "bytes each", 0.25, 8, 2, 0},
	[KV_BYTES] = {"kv_bytes", "bytes each", 0.25, 8, 2, 0},
	[CONTEXT] = {"context", "tokens", 8, 1 << 24, REQUIRED, 1},
	[VOCAB] = {"vocab", "", 16, 1 << 22, 320, 1},
	[SEED] = {"seed", "", 0, 4294967295.0, 0, 1},
	[EOS_RATE] = {"eos_rate", "", 0, 1, 0, 0},
	[FLOPS] = {"flops", "per second", 1e6, 1e18, REQUIRED, 0},
	[BANDWIDTH] = {"bandwidth", "bytes/s", 1e6, 1e15, REQUIRED, 0},
	[LAUNCH_US] = {"launch_us", "us", 0, 1e6, 0, 0},
	[STEP_US] = {"step_us", "us", 0, 1e7, 0, 0},
	[TP] = {"tp", "devices", 1, 64, 1, 1},
	[EXCHANGE_US] = {"exchange_us", "us", 0, 1e6, 0, 0},
	[LINK_BANDWIDTH] = {"link_bandwidth", "bytes/s", 1e6, 1e15, 1e15, 0},
	[TIME_SCALE] = {"time_scale", "", 0, 1000, 1, 0},
	[HANG_STEP] = {"hang_step", "", 0, 1e15, 0, 1},
};

struct sim_file {
	const char *path;
	config_t cf;
	double v[NUMBERS];
	char name[64];
	uint32_t eos[MODEL_EOS_MAX], n_eos;
	int check_always;
	struct err *err;
};

__attribute__((format(printf, 3, 4))) static int wrong(struct sim_file *f,
                                                       const config_setting_t *s, const char *fmt,
                                                       ...)
{
	char text[200];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return err_set(f->err, ERR_INVALID, "%.160s:%u: %s", f->path,
	               s ? (unsigned)config_setting_source_line(s) : 0, text);
}

/* --- reading ------------------------------------------------------------- */

static int is_number(const config_setting_t *s)
{
	int t = config_setting_type(s);
	return t == CONFIG_TYPE_INT64 || t == CONFIG_TYPE_FLOAT;
}

static double number_of(const config_setting_t *s)
{
	return config_setting_type(s) == CONFIG_TYPE_FLOAT ? config_setting_get_float(s)
	                                                   : (double)config_setting_get_int64(s);
}

static int read_number(struct sim_file *f, const config_setting_t *s, enum key_id id)
{
	const struct sim_key *k = &keys[id];
	if (!is_number(s))
		return wrong(f, s, "%s: expected a number, %.10g to %.10g %s", k->name, k->min, k->max,
		             k->unit);
	double v = number_of(s);
	if (!(v >= k->min && v <= k->max) || (k->whole && v != floor(v)))
		return wrong(f, s, "%s: found %.10g, expected a%s number, %.10g to %.10g %s", k->name, v,
		             k->whole ? " whole" : "", k->min, k->max, k->unit);
	f->v[id] = v;
	return 0;
}

static int read_name(struct sim_file *f, const config_setting_t *s)
{
	const char *v = config_setting_get_string(s);
	if (!v || !v[0] || strlen(v) >= sizeof f->name)
		return wrong(f, s, "name: expected a text of 1 to 63 bytes");
	snprintf(f->name, sizeof f->name, "%s", v);
	return 0;
}

static int read_eos(struct sim_file *f, const config_setting_t *s)
{
	int n = config_setting_is_aggregate(s) ? config_setting_length(s) : -1;
	if (n < 0 || n > (int)MODEL_EOS_MAX)
		return wrong(f, s, "eos: expected up to 8 token ids: [ 2 ]");
	for (int i = 0; i < n; i++) {
		config_setting_t *e = config_setting_get_elem(s, (unsigned)i);
		if (!is_number(e) || number_of(e) < 0 || number_of(e) >= keys[VOCAB].max ||
		    number_of(e) != floor(number_of(e)))
			return wrong(f, e, "eos: expected token ids, less than vocab");
		f->eos[f->n_eos++] = (uint32_t)number_of(e);
	}
	return 0;
}

static int read_check(struct sim_file *f, const config_setting_t *s)
{
	const char *v = config_setting_get_string(s);
	if (!v || (strcmp(v, "always") != 0 && strcmp(v, "new") != 0))
		return wrong(f, s, "check: expected one of \"new\", \"always\"");
	f->check_always = strcmp(v, "always") == 0;
	return 0;
}

static int read_key(struct sim_file *f, const config_setting_t *s, int device)
{
	const char *name = config_setting_name(s);
	for (int id = device ? FIRST_OF_DEVICE : 0; id < (device ? (int)NUMBERS : (int)FIRST_OF_DEVICE);
	     id++)
		if (strcmp(keys[id].name, name) == 0)
			return read_number(f, s, (enum key_id)id);
	if (!device && strcmp(name, "name") == 0)
		return read_name(f, s);
	if (!device && strcmp(name, "eos") == 0)
		return read_eos(f, s);
	if (device && strcmp(name, "check") == 0)
		return read_check(f, s);
	return wrong(f, s, "unknown key %.60s in group %s", name, device ? "device" : "model");
}

static int read_group(struct sim_file *f, const char *name, int device)
{
	config_setting_t *g = config_lookup(&f->cf, name);
	if (!g || !config_setting_is_group(g))
		return wrong(
			f, NULL,
			"group %s is missing: a simulated accelerator needs model = { ... }; device = { ... };",
			name);
	for (int i = 0; i < config_setting_length(g); i++) {
		int rc = read_key(f, config_setting_get_elem(g, (unsigned)i), device);
		if (rc)
			return rc;
	}
	for (int id = device ? FIRST_OF_DEVICE : 0; id < (device ? (int)NUMBERS : (int)FIRST_OF_DEVICE);
	     id++)
		if (isnan(f->v[id]))
			return wrong(f, g, "%s.%s is missing: expected %.10g to %.10g %s", name, keys[id].name,
			             keys[id].min, keys[id].max, keys[id].unit);
	return 0;
}

/* Checks that involve more than one key. */
static int check_together(struct sim_file *f)
{
	const double *v = f->v;
	if (fmod(v[HEADS], v[KV_HEADS]) != 0)
		return wrong(f, config_lookup(&f->cf, "model.kv_heads"),
		             "model.kv_heads: found %.0f, expected a divisor of %.0f heads", v[KV_HEADS],
		             v[HEADS]);
	if (fmod(v[HEAD_DIM], 4) != 0) /* required by the operations */
		return wrong(f, config_lookup(&f->cf, "model.head_dim"),
		             "model.head_dim: found %.0f, expected a multiple of 4", v[HEAD_DIM]);
	for (uint32_t i = 0; i < f->n_eos; i++)
		if (f->eos[i] >= v[VOCAB])
			return wrong(f, config_lookup(&f->cf, "model.eos"),
			             "model.eos: found %u, expected less than vocab, %.0f", f->eos[i],
			             v[VOCAB]);
	if (v[ACTIVE_PARAMS] > v[PARAMS])
		return wrong(f, config_lookup(&f->cf, "model.active_params"),
		             "model.active_params: found %.10g, expected at most params, %.10g",
		             v[ACTIVE_PARAMS], v[PARAMS]);
	return 0;
}

static int read_file(struct sim_file *f)
{
	int rc = config_file_read(&f->cf, f->path, f->err);
	if (rc == 0)
		rc = read_group(f, "model", 0);
	return rc || (rc = read_group(f, "device", 1)) ? rc : check_together(f);
}

/* --- results ------------------------------------------------------------- */

static void fill_conf(const struct sim_file *f, struct model_conf *c)
{
	const double *v = f->v;
	*c = (struct model_conf){
		.family = &sim_family,
		.source = MODEL_HF,
		.layers = (uint32_t)v[LAYERS],
		.hidden = (uint32_t)v[HIDDEN],
		.heads = (uint32_t)v[HEADS],
		.kv_heads = (uint32_t)v[KV_HEADS],
		.head_dim = (uint32_t)v[HEAD_DIM],
		.ffn = (uint32_t)v[FFN],
		.vocab = (uint32_t)v[VOCAB],
		.context = (uint32_t)v[CONTEXT],
		.norm_eps = 1e-5f,
		.tied = 1,
		.rope_dims = (uint32_t)v[HEAD_DIM],
		.n_eos = f->n_eos,
	};
	snprintf(c->name, sizeof c->name, "%s", f->name[0] ? f->name : "simulated");
	memcpy(c->eos, f->eos, sizeof c->eos);
	family_defaults(c);
}

/* Weights of a layer as recorded: q, k, v, o and a gated feed-forward part. */
static double layer_weights(const double *v)
{
	return v[HIDDEN] * v[HEAD_DIM] * 2.0 * (v[HEADS] + v[KV_HEADS]) + 3.0 * v[HIDDEN] * v[FFN];
}

/* If the file gives totals (a model with experts), each recorded weight stands for several in
 * memory, and for those of them that a token uses. */
static void fill_options(const struct sim_file *f, struct model_sim *m)
{
	const double *v = f->v, recorded = layer_weights(v) * v[LAYERS],
				 params = v[PARAMS] > 0 ? v[PARAMS] : recorded;
	m->params = (uint64_t)params;
	m->options = (struct sim_options){
		.weight_flops = 2.0 * (v[ACTIVE_PARAMS] > 0 ? v[ACTIVE_PARAMS] : params) / recorded,
		.weight_bytes = v[WEIGHT_BYTES] * params / recorded,
		.kv_bytes = v[KV_BYTES],
		.tp = (uint32_t)v[TP],
		.flops = v[FLOPS],
		.bandwidth = v[BANDWIDTH],
		.link_bandwidth = v[LINK_BANDWIDTH],
		.launch_us = v[LAUNCH_US],
		.exchange_us = v[EXCHANGE_US],
		.step_us = v[STEP_US],
		.time_scale = v[TIME_SCALE],
		.seed = (uint64_t)v[SEED],
		.eos_rate = v[EOS_RATE],
		.n_eos = f->n_eos,
		.check_always = f->check_always,
		.hang_step = (uint64_t)v[HANG_STEP],
	};
	memcpy(m->options.eos, f->eos, sizeof m->options.eos);
}

static void fingerprint(const struct sim_file *f, char hex[65])
{
	crypto_generichash_state h;
	unsigned char out[32];
	crypto_generichash_init(&h, NULL, 0, sizeof out);
	crypto_generichash_update(&h, (const unsigned char *)"pdserve-sim-1", 14);
	crypto_generichash_update(&h, (const unsigned char *)f->name, sizeof f->name);
	for (int id = 0; id < FIRST_OF_DEVICE; id++) {
		char text[32];
		int n = snprintf(text, sizeof text, "%.17g", f->v[id]);
		crypto_generichash_update(&h, (const unsigned char *)text, (size_t)n + 1);
	}
	for (uint32_t i = 0; i < f->n_eos; i++) {
		unsigned char b[4] = {(unsigned char)f->eos[i], (unsigned char)(f->eos[i] >> 8),
		                      (unsigned char)(f->eos[i] >> 16), (unsigned char)(f->eos[i] >> 24)};
		crypto_generichash_update(&h, b, sizeof b);
	}
	crypto_generichash_final(&h, out, sizeof out);
	sodium_bin2hex(hex, 65, out, sizeof out);
}

int model_sim_open(const char *path, enum kv_type type, struct model_sim *ret, struct err *err)
{
	struct sim_file f = {.path = path, .err = err};
	if (!kv_type_bytes(type))
		return err_set(err, ERR_INVALID, "unknown KV type %d", (int)type);
	for (int id = 0; id < NUMBERS; id++)
		f.v[id] = keys[id].fallback;
	config_init(&f.cf);
	int rc = read_file(&f);
	if (!rc) {
		fill_conf(&f, &ret->conf);
		fill_options(&f, ret);
		fingerprint(&f, ret->fingerprint);
		ret->kv_dim = (uint32_t)(sizeof(uint64_t) / kv_type_bytes(type));
	}
	config_destroy(&f.cf);
	return rc;
}
