/* test_models.c - every family against reference outputs, from each format and in each style of
 * configuration, and configurations that are refused.
 *
 * tests/data/golden has tiny models with logits and greedy continuations of transformers in
 * float32; model.gguf there is written by make_gguf.py beside it. With PD_FULL=1 and PD_MODEL
 * set to the SmolLM2 file its 8,000 positions are checked, too. */
/* run: minutes */
#include "engine_rig.h"
#include "engine/fingerprint.h"
#include "skip.h"
#include "tempdir.h"

#include <sodium.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const variants[] = {"reference", "plain", "avx2", "avx512"};

static const char *const families[] = {
	"llama",    "llama-tied",  "mistral",   "qwen2",          "qwen2-yarn",
	"qwen3",    "ernie4_5",    "gemma3",    "qwen3_moe",      "ernie4_5_moe",
	"glm4_moe", "deepseek_v3", "granite",   "phi3",           "phi3-longrope",
	"gpt_oss",  "qwen3-fp8",   "llama-fp8", "deepseek_v3-fp8"};
static const char *const in_gguf[] = {"mistral",       "qwen2",       "qwen2-yarn", "qwen3",
                                      "ernie4_5",      "gemma3",      "qwen3_moe",  "ernie4_5_moe",
                                      "glm4_moe",      "deepseek_v3", "granite",    "phi3",
                                      "phi3-longrope", "gpt_oss"};
#define FAMILIES (int)(sizeof families / sizeof *families)
#define IN_GGUF (int)(sizeof in_gguf / sizeof *in_gguf)
#define VARIANTS (int)(sizeof variants / sizeof *variants)

/* Not on a machine that lacks its instructions. */
static int variant_runs(const char *variant)
{
	char text[256];
	struct kern_device *dev;
	struct kern_config c = {.variant = variant, .threads = 1};
	if (kern_cpu_ops.open(&c, &dev, text, sizeof text)) {
		return 0;
	}
	kern_cpu_ops.close(&dev);
	return 1;
}

/* --- golden data --------------------------------------------------------- */

/* The fast variants compute BF16 weights in float32 as well, but round activations for the
 * experts of gpt_oss, which are MXFP4. */
static float tolerance(const char *family, const char *variant)
{
	int rounds = strcmp(family, "gpt_oss") == 0 && (!variant || strcmp(variant, "reference") != 0);
	return rounds ? 1e-2f : GOLDEN_TOLERANCE;
}

TEST_CASE("golden", .timeout_s = 300);

/* Logits within 1e-3, and every token of both continuations. */
TEST_LOOP(logits_and_tokens, 0, FAMILIES *VARIANTS)
{
	const char *variant = variants[_i / FAMILIES];
	char folder[128];
	snprintf(folder, sizeof folder, GOLDEN "%s", families[_i % FAMILIES]);
	if (!variant_runs(variant))
		SKIP("this machine lacks the instructions of variant %s", variant);
	golden_check(folder, folder, (struct rig_opts){.variant = variant, .kv = KV_F32},
	             tolerance(families[_i % FAMILIES], variant));
}

/* A folder with another configuration beside a golden model's weights. */
static void folder_with(char folder[TEST_FOLDER_BYTES], const char *family, const json_t *config)
{
	char from[256], to[256], cwd[128];
	test_folder(folder, "models");
	ck_assert_ptr_nonnull(getcwd(cwd, sizeof cwd));
	snprintf(from, sizeof from, "%s/" GOLDEN "%s/model.safetensors", cwd, family);
	snprintf(to, sizeof to, "%s/model.safetensors", folder);
	ck_assert_int_eq(symlink(from, to), 0);
	snprintf(to, sizeof to, "%s/config.json", folder);
	ck_assert_int_eq(json_dump_file(config, to, 0), 0);
}

static json_t *config_of(const char *family, const char *file)
{
	char folder[128];
	snprintf(folder, sizeof folder, GOLDEN "%s", family);
	return load_json(folder, file);
}

static void fingerprint_of(const char *path, char hex[65])
{
	struct model_conf c;
	struct model_source src;
	struct err err = {0};
	ck_assert_int_ge(sodium_init(), 0);
	ck_assert_msg(model_open(path, &c, &src, &err) == 0, "%s", err.text);
	model_fingerprint(&c, &src, hex);
	model_close(&src);
}

/* The same description and tensors, down to the last number
 * (fingerprint_covers_the_description). */
TEST_LOOP(older_key_names, 0, FAMILIES)
{
	char folder[TEST_FOLDER_BYTES], data[128], want[65], got[65];
	json_t *config = config_of(families[_i], "config_v4.json");
	folder_with(folder, families[_i], config);
	snprintf(data, sizeof data, GOLDEN "%s", families[_i]);
	fingerprint_of(data, want);
	fingerprint_of(folder, got);
	ck_assert_str_eq(got, want);
	json_decref(config);
}

TEST_LOOP(gguf_gives_the_same, 0, IN_GGUF)
{
	char path[160], data[128];
	snprintf(data, sizeof data, GOLDEN "%s", in_gguf[_i]);
	snprintf(path, sizeof path, "%s/model.gguf", data);
	golden_check(path, data, (struct rig_opts){.kv = KV_F32}, tolerance(in_gguf[_i], NULL));
}

/* All logits of a prompt in chunks are those of one chunk, bit for bit, whatever the family does
 * in a layer. */
TEST_LOOP(chunks_equal_whole, 0, 2 * FAMILIES)
{
	enum { N = 150 };
	char folder[128];
	const char *variant = _i / FAMILIES ? NULL : "reference";
	snprintf(folder, sizeof folder, GOLDEN "%s", families[_i % FAMILIES]);
	struct rig r = rig_open((struct rig_opts){.model = folder, .variant = variant, .kv = KV_BF16});
	uint32_t ids[N];
	some_ids(ids, N, 1);
	size_t bytes = (size_t)N * r.vocab * sizeof(float);
	float *whole = mem_alloc(bytes), *parts = mem_alloc(bytes);
	struct seq s = seq_new(&r, 0);
	feed(&r, &s, ids, N, N, 0, whole);
	static const uint32_t chunks[] = {17, 64, 1};
	for (size_t c = 0; c < (variant ? 2 : 3); c++) {
		s = seq_new(&r, 40);
		feed(&r, &s, ids, N, chunks[c], 0, parts);
		ck_assert_msg(memcmp(whole, parts, bytes) == 0, "%s, chunks of %u: differ by up to %g",
		              folder, chunks[c], (double)max_diff(whole, parts, bytes / sizeof(float)));
	}
	free(whole);
	free(parts);
	rig_close(&r);
}

/* --- long context -------------------------------------------------------- */

enum { LONG = 8000, LONG_CHUNK = 500 };

/* The last row of 8,000 positions, and eight rows after it, in one chunk and in many. */
static void long_check(struct rig_opts o, unsigned rows_whole)
{
	uint32_t *ids = mem_array(LONG, sizeof *ids);
	float *got[2];
	uint32_t vocab = 0;
	some_ids(ids, LONG, 9);
	for (int part = 0; part < 2; part++) {
		o.rows = part ? LONG_CHUNK : rows_whole;
		o.logits = 1;
		struct rig r = rig_open(o);
		vocab = r.vocab;
		got[part] = mem_array(9 * (size_t)vocab, sizeof(float));
		struct seq s = seq_new(&r, 0);
		feed(&r, &s, ids, LONG, o.rows, 1, got[part]);
		for (uint32_t i = 0; i < 8; i++) {
			uint32_t id = argmax(got[part] + (size_t)i * vocab, vocab);
			feed(&r, &s, &id, 1, 1, 1, got[part] + (size_t)(i + 1) * vocab);
		}
		rig_close(&r);
	}
	float d = max_diff(got[0], got[1], 9 * (size_t)vocab);
	ck_assert_msg(memcmp(got[0], got[1], 9 * (size_t)vocab * sizeof(float)) == 0,
	              "%s: chunks of %d differ by up to %g", o.model, LONG_CHUNK, (double)d);
	free(got[0]);
	free(got[1]);
	free(ids);
}

TEST_CASE("long", .timeout_s = 300);

TEST_LOOP(long_context, 0, 2)
{
	static const char *const models[] = {"llama-tied", "gemma3"};
	char folder[TEST_FOLDER_BYTES];
	json_t *config = config_of(models[_i], "config.json");
	json_object_set_new(config, "max_position_embeddings", json_integer(LONG + 100));
	folder_with(folder, models[_i], config);
	long_check((struct rig_opts){.model = folder, .kv = KV_BF16, .block_tokens = 16, .blocks = 600},
	           LONG);
	json_decref(config);
}

TEST_CASE("smollm2", .timeout_s = 3600);

TEST(long_context_smollm2)
{
	const char *model = getenv("PD_MODEL"), *full = getenv("PD_FULL");
	if (!full || !*full)
		SKIP("PD_FULL is not set: minutes on the real model");
	if (!model || !*model)
		SKIP(SKIP_NO_MODEL);
	long_check(
		(struct rig_opts){
			.model = model, .kv = KV_BF16, .block_tokens = 64, .blocks = 150, .threads = 2},
		LONG);
}

/* --- rotary tables ------------------------------------------------------- */

/* The golden llama's configuration with other keys (an object that is merged in; null takes a
 * key away). */
static json_t *changed(const char *family, const char *file, const char *change)
{
	json_t *config = config_of(family, file), *patch = json_loads(change, 0, NULL);
	ck_assert_msg(patch != NULL, "%s", change);
	json_object_update(config, patch);
	json_decref(patch);
	return config;
}

/* d = 24 unless rotation is partial; base 10000. Values by the formulas of tests/data/golden's
 * source, computed apart. */
static const struct {
	const char *change;
	uint32_t dims;
	double scale, at, value, last; /* inv_freq[at] is value */
} tables[] = {
	{"{}", 24, 1, 1, 0.4641588833612779, 0.00021544346900318845},
	{"{\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0}}", 24, 1, 1,
     0.11603972084031948, 5.386086725079711e-05},
	{"{\"rope_parameters\":null,\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"linear\","
     "\"factor\":4}}",
     24, 1, 1, 0.11603972084031948, 5.386086725079711e-05},
	{"{\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", 12, 1, 1, 0.2154434690031884,
     0.00046415888336127773},
	{"{\"rope_parameters\":null,\"partial_rotary_factor\":0.5}", 12, 1, 1, 0.2154434690031884,
     0.00046415888336127773},
	{"{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_"
     "embeddings\":128}}",
     24, 1.138629436111989, 2, 0.13465216812699274, 5.386086725079711e-05},
	{"{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_"
     "embeddings\":128,\"truncate\":false}}",
     24, 1.138629436111989, 2, 0.13315221046340478, 5.386086725079711e-05},
	{"{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"attention_factor\":1.5}}", 24,
     1.5, 0, 1, 5.386086725079711e-05},
	{"{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"mscale\":0.5,\"mscale_all_"
     "dim\":1.0}}",
     24, 0.939124428143471, 0, 1, 5.386086725079711e-05},
	{"{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"mscale\":0.5}}", 24,
     1.138629436111989, 0, 1, 5.386086725079711e-05},
};

TEST_CASE("refusals", .timeout_s = 60);

TEST_LOOP(rotary_tables, 0, sizeof tables / sizeof *tables)
{
	char folder[TEST_FOLDER_BYTES];
	struct model_conf c;
	struct model_source src;
	struct err err = {0};
	json_t *config = changed("mistral", "config.json", tables[_i].change);
	folder_with(folder, "mistral", config);
	ck_assert_msg(model_open(folder, &c, &src, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(c.rope_dims, tables[_i].dims);
	ck_assert_double_eq_tol(c.rope[0].scale, tables[_i].scale, 1e-6);
	ck_assert_double_eq_tol(c.rope[0].inv_freq[(int)tables[_i].at] / tables[_i].value, 1, 1e-6);
	ck_assert_double_eq_tol(c.rope[0].inv_freq[c.rope_dims / 2 - 1] / tables[_i].last, 1, 1e-6);
	model_close(&src);
	json_decref(config);
}

/* --- refusals ------------------------------------------------------------ */

static const struct {
	/* text: what the one line says after the file's name */
	const char *family, *change, *text;
} refused[] = {
	{"llama", "{\"model_type\":\"gptj\"}",
     "architecture: found gptj, expected one of: llama, mistral, qwen2"},
	{"llama", "{\"model_type\":7}", "model_type: found 7, expected a string"},
	{"llama", "{\"num_hidden_layers\":257}",
     "num_hidden_layers: found 257, expected an integer, 1..256"},
	{"llama", "{\"num_hidden_layers\":0}",
     "num_hidden_layers: found 0, expected an integer, 1..256"},
	{"llama", "{\"num_hidden_layers\":null}",
     "num_hidden_layers: found none, expected an integer, 1..256"},
	{"llama", "{\"hidden_size\":-64}", "hidden_size: found -64, expected an integer"},
	{"llama", "{\"hidden_size\":9223372036854775807}",
     "hidden_size: found 9223372036854775807, expected an integer, 1..65536"},
	{"llama", "{\"hidden_size\":\"96\"}", "hidden_size: found \"96\", expected an integer"},
	{"llama", "{\"hidden_size\":96.5}", "hidden_size: found 96.5, expected an integer"},
	{"llama", "{\"intermediate_size\":4294967296}",
     "intermediate_size: found 4294967296, expected an integer"},
	{"llama", "{\"num_attention_heads\":[6]}",
     "num_attention_heads: found [6], expected an integer"},
	{"llama", "{\"num_key_value_heads\":4}",
     "num_key_value_heads: found 4, expected a divisor of num_attention_heads, 6"},
	{"llama", "{\"num_key_value_heads\":7}",
     "num_key_value_heads: found 7, expected an integer, 1..6"},
	{"llama", "{\"num_attention_heads\":7,\"num_key_value_heads\":7,\"head_dim\":null}",
     "head_dim: found none, expected a size up to 512"},
	{"llama", "{\"head_dim\":514}", "head_dim: found 514, expected an integer, 2..512"},
	{"llama", "{\"head_dim\":18}", "head size: found 18, expected a multiple of 4"},
	{"llama", "{\"vocab_size\":0}", "vocab_size: found 0, expected an integer"},
	{"llama", "{\"max_position_embeddings\":1e9}",
     "max_position_embeddings: found 1000000000.0, expected an integer"},
	{"llama", "{\"rms_norm_eps\":0}", "rms_norm_eps: found 0, expected a number more than 0"},
	{"llama", "{\"rms_norm_eps\":2}",
     "norm epsilon: found 2, expected more than 0 and less than 1"},
	{"llama", "{\"hidden_act\":\"relu\"}", "hidden_act: found \"relu\", expected silu"},
	{"llama", "{\"tie_word_embeddings\":\"no\"}",
     "tie_word_embeddings: found \"no\", expected true or false"},
	{"llama", "{\"attention_bias\":1}", "attention_bias: found 1, expected true or false"},
	{"llama", "{\"rope_parameters\":[]}", "rope_parameters: found [], expected an object"},
	{"llama", "{\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":2}}",
     "rope_type: found \"dynamic\", expected default, linear, llama3, yarn or longrope"},
	{"llama", "{\"rope_parameters\":{\"rope_type\":3}}", "rope_type: found 3, expected default"},
	{"llama", "{\"rope_parameters\":{\"rope_theta\":0}}",
     "rope_theta: found 0, expected a number more than 1"},
	{"llama", "{\"rope_parameters\":{\"rope_theta\":-5}}",
     "rope_theta: found -5, expected a number more than 1"},
	{"llama", "{\"rope_parameters\":{\"rope_theta\":1e300}}",
     "rope_theta: found 1.0000000000000001e300, expected a number more than 1"},
	{"llama", "{\"rope_parameters\":{\"rope_type\":\"linear\"}}",
     "factor: found none, expected a number more than 0"},
	{"llama", "{\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":0}}",
     "factor: found 0, expected a number more than 0"},
	{"llama", "{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":\"4\"}}",
     "factor: found \"4\", expected a number more than 0"},
	{"llama",
     "{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":1,\"beta_slow\":2}}",
     "beta_slow: found 2, expected at most beta_fast, 1"},
	{"llama",
     "{\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_"
     "freq_factor\":4,\"original_max_position_embeddings\":64}}",
     "high_freq_factor: found 4, expected a number more than 4"},
	{"llama", "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":10000}}}",
     "rope_parameters: found {\"full_attention\":{\"rope_theta\":10000}}, expected the same"},
	{"llama", "{\"rope_parameters\":{\"partial_rotary_factor\":1.5}}",
     "partial_rotary_factor: found 1.5, expected more than 0 and at most 1"},
	{"llama", "{\"rope_parameters\":{\"partial_rotary_factor\":0.01}}",
     "rotary size: found 0, expected an even number"},
	{"llama", "{\"final_logit_softcapping\":30.0}",
     "final_logit_softcapping: found 30.0, expected null"},
	{"llama", "{\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]}",
     "layer_types: found \"sliding_attention\", expected full_attention for layer 1"},
	{"mistral", "{\"sliding_window\":0}",
     "sliding_window: found 0, expected an integer, 1..16777216"},
	{"mistral", "{\"sliding_window\":-1}",
     "sliding_window: found -1, expected an integer, 1..16777216"},
	{"qwen2", "{\"use_sliding_window\":true}",
     "sliding_window: found none, expected an integer, 1..16777216"},
	{"qwen2", "{\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
     "layer_types: found \"sliding_attention\", expected full_attention for layer 2"},
	{"gemma3", "{\"layer_types\":[\"full_attention\"]}",
     "layer_types: found [\"full_attention\"], expected a list of 4 types, one for each layer"},
	{"gemma3",
     "{\"layer_types\":[\"full_attention\",\"full_attention\",\"chunked_attention\",\"full_"
     "attention\"]}",
     "layer_types: found \"chunked_attention\", expected full_attention or sliding_attention for "
     "layer 2"},
	{"gemma3", "{\"layer_types\":null,\"sliding_window_pattern\":0}",
     "sliding_window_pattern: found 0, expected an integer, 1..256"},
	{"gemma3", "{\"query_pre_attn_scalar\":0}",
     "query_pre_attn_scalar: found 0, expected a number more than 0"},
	{"gemma3", "{\"hidden_activation\":\"gelu\"}",
     "hidden_activation: found \"gelu\", expected gelu_pytorch_tanh"},
	{"qwen3_moe", "{\"num_local_experts\":0}",
     "num_local_experts: found 0, expected an integer, 1..1024"},
	{"qwen3_moe", "{\"num_experts_per_tok\":9}",
     "num_experts_per_tok: found 9, expected an integer, 1..8"},
	{"qwen3_moe", "{\"mlp_only_layers\":1}", "mlp_only_layers: found 1, expected a list of layers"},
	{"qwen3_moe", "{\"decoder_sparse_step\":0}",
     "decoder_sparse_step: found 0, expected an integer"},
	{"ernie4_5_moe", "{\"moe_k\":null}", "moe_k: found none, expected an integer"},
	{"glm4_moe", "{\"n_group\":5}", "groups of experts: found 5, expected a divisor of 12 experts"},
	{"glm4_moe", "{\"n_group\":12,\"topk_group\":12}",
     "groups of experts: found 12, expected at most half of 12 experts"},
	{"glm4_moe", "{\"topk_group\":1,\"num_experts_per_tok\":5}",
     "experts of a token: found 5, expected at most the 4 of 1 groups"},
	{"deepseek_v3", "{\"kv_lora_rank\":null}", "kv_lora_rank: found none, expected an integer"},
	{"deepseek_v3", "{\"kv_lora_rank\":22}",
     "rank of KV and size with rotation: found 22 and 8, expected multiples of 4, together at most "
     "640"},
	{"deepseek_v3", "{\"kv_lora_rank\":640}",
     "rank of KV and size with rotation: found 640 and 8, expected multiples of 4, together at "
     "most 640"},
	{"deepseek_v3", "{\"scoring_func\":\"softmax\"}",
     "scoring_func: found \"softmax\", expected \"sigmoid\""},
	{"deepseek_v3", "{\"attention_bias\":true}", "attention_bias: found true, expected false"},
	{"granite", "{\"logits_scaling\":0}", "logits_scaling: found 0, expected a number more than 0"},
	{"granite", "{\"residual_multiplier\":1e9}",
     "scale of embeddings, residuals or logits: found 1e+09"},
	{"granite", "{\"attention_multiplier\":\"1\"}",
     "attention_multiplier: found \"1\", expected a number"},
	{"gpt_oss", "{\"swiglu_limit\":5.0}", "swiglu_limit: found 5.0, expected 7"},
	{"gpt_oss", "{\"num_experts_per_tok\":9}",
     "num_experts_per_tok: found 9, expected an integer, 1..8"},
	{"gpt_oss", "{\"sliding_window\":null}", "sliding_window: found none, expected an integer"},
	{"phi3", "{\"original_max_position_embeddings\":0,\"rope_parameters\":{\"rope_type\":\"su\"}}",
     "original_max_position_embeddings: found 0, expected a number more than 1"},
	{"phi3", "{\"rope_parameters\":{\"rope_type\":\"longrope\"}}",
     "short_factor: found none, expected a list of 8 numbers"},
	{"phi3-longrope", "{\"rope_parameters\":{\"rope_type\":\"longrope\",\"long_factor\":[1,2]}}",
     "long_factor: found [1,2], expected a list of 12 numbers"},
	{"phi3-longrope",
     "{\"rope_parameters\":{\"rope_type\":\"longrope\",\"partial_rotary_factor\":0.17,\"long_"
     "factor\":[1,0]}}",
     "long_factor: found 0, expected a number more than 0"},
	{"gemma3", "{\"use_bidirectional_attention\":true}",
     "use_bidirectional_attention: found true, expected false"},
};

/* One line that names the file, the key, what was found and what was expected. */
TEST_LOOP(configurations_refused, 0, sizeof refused / sizeof *refused)
{
	char folder[TEST_FOLDER_BYTES];
	struct model_conf c;
	struct model_source src;
	struct err err = {0};
	json_t *config = changed(refused[_i].family, "config.json", refused[_i].change);
	folder_with(folder, refused[_i].family, config);
	ck_assert_msg(model_open(folder, &c, &src, &err) != 0, "%s: taken", refused[_i].change);
	ck_assert_msg(strncmp(err.text, folder, strlen(folder)) == 0 &&
	                  strstr(err.text, refused[_i].text) && !strchr(err.text, '\n'),
	              "%s: \"%s\" does not say \"%s\"", refused[_i].change, err.text, refused[_i].text);
	json_decref(config);
}

/* What does not fit the tensors. */
static const struct {
	const char *family, *change, *text;
} misfits[] = {
	{"mistral", "{\"num_hidden_layers\":4}",
     "tensor model.layers.3.input_layernorm.weight: found none, expected 1 x 64"},
	{"mistral", "{\"head_dim\":32}",
     "tensor model.layers.0.self_attn.q_proj.weight: found shape 96 x 64, expected 128 x 64"},
	{"mistral", "{\"vocab_size\":321}",
     "tensor model.embed_tokens.weight: found shape 320 x 64, expected 321 x 64"},
	{"mistral", "{\"num_key_value_heads\":4}",
     "tensor model.layers.0.self_attn.k_proj.weight: found shape 48 x 64, expected 96 x 64"},
	{"qwen2", "{\"tie_word_embeddings\":false}",
     "tensor lm_head.weight: found none, expected 320 x 96"},
	{"qwen2", "{\"model_type\":\"qwen3\"}",
     "tensor model.layers.0.self_attn.q_norm.weight: found none, expected 1 x 16"},
	{"llama", "{\"model_type\":\"qwen2\"}",
     "tensor model.layers.0.self_attn.q_proj.bias: found none, expected 1 x "},
	{"llama", "{\"attention_bias\":true}",
     "tensor model.layers.0.self_attn.q_proj.bias: found none, expected 1 x "},
	{"qwen3_moe", "{\"num_local_experts\":9}",
     "tensor model.layers.0.mlp.gate.weight: found shape 8 x 64, expected 9 x 64"},
	{"qwen3_moe", "{\"moe_intermediate_size\":64}",
     "tensor model.layers.0.mlp.experts.0.gate_proj.weight: found shape 48 x 64, expected 64 x 64"},
	{"qwen3_moe", "{\"mlp_only_layers\":[]}",
     "tensor model.layers.1.mlp.gate.weight: found none, expected 8 x 64"},
	{"ernie4_5_moe", "{\"moe_num_shared_experts\":1}",
     "tensor model.layers.1.mlp.shared_experts.gate_proj.weight: found shape 64 x 64, expected 32 "
     "x 64"},
	{"glm4_moe", "{\"n_routed_experts\":24,\"n_group\":1,\"topk_group\":1}",
     "tensor model.layers.1.mlp.gate.weight: found shape 12 x 64, expected 24 x 64"},
	{"deepseek_v3", "{\"v_head_dim\":24}",
     "tensor model.layers.0.self_attn.o_proj.weight: found shape 64 x 80, expected 64 x 96"},
	{"deepseek_v3", "{\"kv_lora_rank\":16}",
     "tensor model.layers.0.self_attn.kv_a_proj_with_mqa.weight: found shape 32 x 64, expected 24 "
     "x 64"},
	{"gpt_oss", "{\"num_local_experts\":7}",
     "tensor model.layers.0.mlp.router.weight: found shape 8 x 64, expected 7 x 64"},
	{"gpt_oss", "{\"intermediate_size\":32}",
     "tensor model.layers.0.mlp.experts.gate_up_proj_blocks: found another shape, expected U8, 8 x "
     "64 x 2 x 16"},
	{"phi3", "{\"num_key_value_heads\":6}",
     "tensor model.layers.0.self_attn.qkv_proj.weight: found shape 160 x 96, expected 288 x 96"},
	{"phi3", "{\"intermediate_size\":192}",
     "tensor model.layers.0.mlp.gate_up_proj.weight: found shape 320 x 96, expected 384 x 96"},
	{"llama", "{\"model_type\":\"gemma3_text\",\"sliding_window\":16,\"hidden_act\":null}",
     "tensor model.layers.0.self_attn.q_norm.weight: found none"},
};

TEST_LOOP(tensors_that_do_not_fit, 0, sizeof misfits / sizeof *misfits)
{
	char folder[TEST_FOLDER_BYTES];
	struct err err = {0};
	struct engine *e = NULL;
	json_t *config = changed(misfits[_i].family, "config.json", misfits[_i].change);
	folder_with(folder, misfits[_i].family, config);
	struct engine_opts o = {.model_path = folder,
	                        .backend = "cpu",
	                        .threads = 1,
	                        .kv_type = KV_F32,
	                        .block_tokens = 16,
	                        .max_rows = 8,
	                        .max_logits = 8,
	                        .max_spans = 1};
	ck_assert_int_ne(engine_open(&o, &e, &err), 0);
	ck_assert_msg(strncmp(err.text, folder, strlen(folder)) == 0 &&
	                  strstr(err.text, misfits[_i].text) && !strchr(err.text, '\n'),
	              "%s: \"%s\" does not say \"%s\"", misfits[_i].change, err.text, misfits[_i].text);
	json_decref(config);
}

/* --- fingerprint --------------------------------------------------------- */

enum { FIELDS = 48 };

/* Changes one number of a description; returns its name. */
static const char *disturb(struct model_conf *c, int i)
{
	switch (i) {
#define U32(n, field)  \
	case n:            \
		c->field += 1; \
		return #field
#define REAL(n, field)       \
	case n:                  \
		c->field *= 1.0001f; \
		c->field += 1e-9f;   \
		return #field
		U32(0, layers);
		U32(1, hidden);
		U32(2, heads);
		U32(3, kv_heads);
		U32(4, head_dim);
		U32(5, ffn);
		U32(6, vocab);
		U32(7, context);
		U32(8, tied);
		U32(9, qkv_bias);
		U32(10, o_bias);
		U32(11, mlp_bias);
		U32(12, qk_norm);
		U32(13, post_norms);
		U32(14, norm_plus_one);
		U32(15, rope_dims);
		U32(16, act);
		U32(17, rope_style);
		REAL(18, norm_eps);
		REAL(19, embed_scale);
		REAL(20, attn_scale);
		REAL(21, rope[0].scale);
		REAL(22, rope[0].inv_freq[3]);
		REAL(23, rope[1].scale);
		REAL(24, rope[1].inv_freq[3]);
		U32(25, layer[1].window);
		U32(26, layer[1].rope);
		U32(27, layer[1].experts);
		U32(28, experts.count);
		U32(29, experts.active);
		U32(30, experts.ffn);
		U32(31, experts.shared_ffn);
		U32(32, experts.groups);
		U32(33, experts.top_groups);
		U32(34, experts.correction);
		U32(35, experts.normalise);
		U32(36, experts.scoring);
		REAL(37, experts.scale);
		REAL(38, experts.norm_min);
		U32(39, mla.kv_rank);
		U32(40, mla.q_rank);
		U32(41, mla.nope);
		U32(42, mla.rope);
		U32(43, mla.v);
		REAL(44, residual_scale);
		REAL(45, logit_scale);
		U32(46, attn_sinks);
		U32(47, experts.bias);
#undef U32
#undef REAL
	}
	return NULL;
}

/* Every number that changes a result changes the fingerprint. */
TEST(fingerprint_covers_the_description)
{
	struct model_conf c;
	struct model_source src;
	struct err err = {0};
	char before[65], after[65], seen[FIELDS][65];
	ck_assert_int_ge(sodium_init(), 0);
	ck_assert_msg(model_open(GOLDEN "gemma3", &c, &src, &err) == 0, "%s", err.text);
	c.experts.count = c.mla.kv_rank = 1;
	model_fingerprint(&c, &src, before);
	for (int i = 0; i < FIELDS; i++) {
		struct model_conf other = c;
		const char *field = disturb(&other, i);
		ck_assert_ptr_nonnull(field);
		model_fingerprint(&other, &src, after);
		ck_assert_msg(strcmp(before, after) != 0, "%s is not in the fingerprint", field);
		memcpy(seen[i], after, sizeof after);
		for (int k = 0; k < i; k++)
			ck_assert_msg(strcmp(seen[k], after) != 0, "%s and field %d give the same fingerprint",
			              field, k);
	}
	model_close(&src);
}

/* So does every byte of every tensor: one bit, anywhere. */
TEST(fingerprint_covers_the_tensors)
{
	struct model_conf c;
	struct model_source src;
	struct err err = {0};
	char before[65], after[65];
	unsigned rng = 1, last = 0;
	ck_assert_int_ge(sodium_init(), 0);
	ck_assert_msg(model_open(GOLDEN "llama", &c, &src, &err) == 0, "%s", err.text);
	model_fingerprint(&c, &src, before);
	ck_assert_uint_gt(model_entries(&src), 5);
	for (size_t i = 0; i < model_entries(&src); i++)
		for (unsigned k = 0; k < 40; k++) {
			struct model_entry e;
			model_entry_at(&src, i, &e);
			rng = rng * 1664525u + 1013904223u;
			size_t at = k == 0   ? 0
			            : k == 1 ? e.bytes - 1
			                     : (size_t)((uint64_t)(rng >> 8) * e.bytes >> 24);
			/* the mapping is this process's own; its page becomes a copy */
			uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
			unsigned char *byte = (unsigned char *)(uintptr_t)e.data + at;
			ck_assert_int_eq(
				mprotect((void *)((uintptr_t)byte & ~(page - 1)), page, PROT_READ | PROT_WRITE), 0);
			*byte ^= 1u << k % 8;
			model_fingerprint(&c, &src, after);
			*byte ^= 1u << k % 8;
			ck_assert_msg(strcmp(before, after) != 0,
			              "byte %zu of %zu of %s is not in the fingerprint", at, e.bytes, e.name);
			last++;
		}
	model_fingerprint(&c, &src, after);
	ck_assert_str_eq(after, before);
	printf("%u bits in the fingerprint\n", last);
	model_close(&src);
}

/* Opening that fails in the middle does not wait for all of a file to be read, and leaves no
 * thread. */
TEST(fingerprint_given_up)
{
	struct model_conf c;
	struct model_source src;
	struct err err = {0};
	ck_assert_int_ge(sodium_init(), 0);
	ck_assert_msg(model_open(GOLDEN "llama", &c, &src, &err) == 0, "%s", err.text);
	for (int i = 0; i < 100; i++) {
		struct fingerprint *f = fingerprint_begin(&c, &src);
		fingerprint_end(&f, NULL);
		ck_assert_ptr_null(f);
	}
	model_close(&src);
}
