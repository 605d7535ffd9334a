/* test_model_fp8.c - FP8 weights of folders: what each form of scale means, and what is refused: by
 * config.json, or by a tensor. That whole models are right is in test_models.c. */
#include "engine/mla.h"
#include "engine/model_fp8.h"
#include "engine_rig.h"
#include "kernels/numbers.h"
#include "tempdir.h"

#include <sys/stat.h>

/* --- a golden model with another configuration and file ------------------ */

struct copy {
	unsigned char *file; /* model.safetensors */
	size_t bytes;
	json_t *header, *config;
};

static struct copy copy_of(const char *model)
{
	struct copy c;
	char path[128];
	struct stat st;
	snprintf(path, sizeof path, GOLDEN "%s/model.safetensors", model);
	FILE *f = fopen(path, "re");
	ck_assert_msg(f && fstat(fileno(f), &st) == 0, "%s", path);
	c.bytes = (size_t)st.st_size;
	c.file = mem_alloc(c.bytes);
	ck_assert_uint_eq(fread(c.file, 1, c.bytes, f), c.bytes);
	fclose(f);
	uint64_t n;
	memcpy(&n, c.file, sizeof n);
	c.header = json_loadb((const char *)c.file + 8, n, 0, NULL);
	snprintf(path, sizeof path, GOLDEN "%s", model);
	c.config = load_json(path, "config.json");
	return c;
}

/* The data of a tensor. */
static unsigned char *data_of(const struct copy *c, const char *tensor)
{
	uint64_t n;
	memcpy(&n, c->file, sizeof n);
	const json_t *at = json_object_get(json_object_get(c->header, tensor), "data_offsets");
	ck_assert_msg(at != NULL, "%s", tensor);
	return c->file + 8 + n + json_integer_value(json_array_get(at, 0));
}

/* Writes the copy, with its header as it is now. */
static void copy_write(struct copy *c, char folder[TEST_FOLDER_BYTES])
{
	char path[TEST_FOLDER_BYTES + 32], *text = json_dumps(c->header, JSON_COMPACT);
	uint64_t old, n = strlen(text);
	memcpy(&old, c->file, sizeof old);
	test_folder(folder, "fp8");
	snprintf(path, sizeof path, "%s/config.json", folder);
	ck_assert_int_eq(json_dump_file(c->config, path, 0), 0);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	FILE *f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	fwrite(&n, sizeof n, 1, f);
	fwrite(text, 1, n, f);
	fwrite(c->file + 8 + old, 1, c->bytes - 8 - old, f);
	ck_assert_int_eq(fclose(f), 0);
	free(text);
	free(c->file);
	json_decref(c->header);
	json_decref(c->config);
}

static void refused(const char *folder, const char *text)
{
	struct err err = {0};
	struct engine *e = NULL;
	struct engine_opts o = {.model_path = folder,
	                        .backend = "cpu",
	                        .threads = 1,
	                        .kv_type = KV_F32,
	                        .block_tokens = 16,
	                        .max_rows = 8,
	                        .max_logits = 8,
	                        .max_spans = 1};
	ck_assert_msg(engine_open(&o, &e, &err) != 0, "not refused, expected \"%s\"", text);
	ck_assert_msg(strncmp(err.text, folder, strlen(folder)) == 0 && strstr(err.text, text) &&
	                  !strchr(err.text, '\n'),
	              "\"%s\" does not say \"%s\"", err.text, text);
}

/* --- configurations ------------------------------------------------------ */

#define GROUP_AND(more, weights)                                                    \
	"{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"," more \
	"\"config_groups\":{\"group_7\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}}}}"
#define GROUP(weights) GROUP_AND("", weights)
#define IN_GROUP "quantization_config.config_groups.group_7.weights."
#define FLOAT8 "\"num_bits\":8,\"type\":\"float\","

static const struct {
	const char *model, *quantization, *text;
} configs[] = {
	{"qwen3-fp8", "null",
     "tensor model.layers.0.self_attn.q_proj.weight: found type F8_E4M3, but no "
     "quantization_config in config.json"},
	{"qwen3-fp8", "{}", "quantization_config.quant_method: found none, expected \"fp8\", "},
	{"qwen3-fp8", "{\"quant_method\":\"awq\"}", "quant_method: found \"awq\", expected \"fp8\", "},
	{"qwen3-fp8", "{\"quant_method\":8}", "quant_method: found 8, expected \"fp8\", "},
	{"qwen3-fp8", "{\"quant_method\":\"mxfp4\"}",
     "q_proj.weight: found type F8_E4M3, but no quantization_config"},
	{"qwen3-fp8", "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}",
     "quantization_config.fmt: found \"e5m2\", expected \"e4m3\""},
	{"qwen3-fp8", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,64]}",
     "quantization_config.weight_block_size: found [128,64], expected [128,128]"},
	{"qwen3-fp8", "{\"quant_method\":\"fp8\",\"weight_block_size\":128}",
     "weight_block_size: found 128, expected [128,128]"},
	{"qwen3-fp8", "{\"quant_method\":\"fp8\"}",
     "q_proj.weight_scale_inv: found shape 2 x 2, expected 1 x 1 or 144 x 1"},
	{"qwen3-fp8", "{\"quant_method\":\"fbgemm_fp8\"}",
     "q_proj.weight_scale_inv: found shape 2 x 2, expected 144 x 1"},
	{"llama-fp8", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}",
     "q_proj.weight_scale: found shape 1, expected 2 x 2"},
	{"llama-fp8", "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}",
     "quantization_config.format: found \"pack-quantized\", expected \"float-quantized\""},
	{"llama-fp8", "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{}}",
     "quantization_config.config_groups: found {}, expected an object of groups"},
	{"llama-fp8",
     GROUP_AND("\"transform_config\":{\"config_groups\":{\"R1\":{\"type\":\"hadamard\"}}},",
               FLOAT8 "\"strategy\":\"tensor\""),
     "quantization_config.transform_config: found "
     "{\"config_groups\":{\"R1\":{\"type\":\"hadamard\"}}}, "
     "expected {}: transforms are not supported"},
	{"llama-fp8", GROUP_AND("\"transform_config\":[],", FLOAT8 "\"strategy\":\"tensor\""),
     "transform_config: found [], expected {}"},
	/* an empty one says nothing */
	{"llama-fp8", GROUP_AND("\"transform_config\":{},", FLOAT8 "\"strategy\":\"channel\""),
     "q_proj.weight_scale: found shape 1, expected 144 x 1"},
	{"llama-fp8", GROUP("\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor\""),
     IN_GROUP "num_bits: found 4, expected 8"},
	{"llama-fp8", GROUP("\"type\":\"float\",\"strategy\":\"tensor\""),
     IN_GROUP "num_bits: found none, expected 8"},
	{"llama-fp8", GROUP("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\""),
     IN_GROUP "type: found \"int\", expected \"float\""},
	{"llama-fp8", GROUP(FLOAT8 "\"symmetric\":false,\"strategy\":\"tensor\""),
     IN_GROUP "symmetric: found false, expected true"},
	{"llama-fp8", GROUP(FLOAT8 "\"strategy\":\"group\""),
     IN_GROUP "strategy: found \"group\", expected \"tensor\", \"channel\" or \"block\""},
	{"llama-fp8", GROUP(FLOAT8 "\"strategy\":\"block\",\"block_structure\":[64,64]"),
     IN_GROUP "block_structure: found [64,64], expected [128,128]"},
	{"llama-fp8", GROUP(FLOAT8 "\"strategy\":\"tensor\""),
     "gate_proj.weight_scale: found shape 160 x 1, expected 1 x 1"},
	{"llama-fp8", GROUP(FLOAT8 "\"strategy\":\"channel\""),
     "q_proj.weight_scale: found shape 1, expected 144 x 1"},
};

TEST_CASE("fp8", .timeout_s = 60);

TEST_LOOP(configurations_refused, 0, sizeof configs / sizeof *configs)
{
	char folder[TEST_FOLDER_BYTES];
	struct copy c = copy_of(configs[_i].model);
	json_t *q = json_loads(configs[_i].quantization, JSON_DECODE_ANY, NULL);
	ck_assert_msg(q != NULL, "%s", configs[_i].quantization);
	json_object_set_new(c.config, "quantization_config", q);
	copy_write(&c, folder);
	refused(folder, configs[_i].text);
}

/* --- tensors ------------------------------------------------------------- */

#define WEIGHT "model.layers.1.mlp.up_proj.weight"

/* What is changed: the name of a tensor, or its type, or a number of its data. */
static const struct {
	const char *model, *tensor, *name, *type;
	float value;
	const char *text;
} tensors[] = {
	{"qwen3-fp8", WEIGHT "_scale_inv", "other", NULL, 0,
     WEIGHT ": found neither _scale_inv nor _scale for it, expected 2 x 2"},
	{"llama-fp8", WEIGHT "_scale", "other", NULL, 0,
     WEIGHT ": found neither _scale_inv nor _scale for it, expected 1 x 1 or 160 x 1"},
	{"qwen3-fp8", WEIGHT, NULL, "F8_E5M2", 0,
     WEIGHT ": found type F8_E5M2, expected one of F32, F16, BF16, F8_E4M3, "},
	{"qwen3-fp8", WEIGHT "_scale_inv", NULL, "I32", 0,
     WEIGHT "_scale_inv: found type I32, expected F32, F16 or BF16"},
	{"qwen3-fp8", WEIGHT "_scale_inv", NULL, NULL, NAN,
     WEIGHT "_scale_inv: found scale nan at 3, expected a finite number more than 0"},
	{"qwen3-fp8", WEIGHT "_scale_inv", NULL, NULL, INFINITY, "found scale inf at 3"},
	{"qwen3-fp8", WEIGHT "_scale_inv", NULL, NULL, 0, "found scale 0 at 3"},
	{"qwen3-fp8", WEIGHT "_scale_inv", NULL, NULL, -0.5f, "found scale -0.5 at 3"},
};

TEST_LOOP(tensors_refused, 0, sizeof tensors / sizeof *tensors)
{
	char folder[TEST_FOLDER_BYTES];
	struct copy c = copy_of(tensors[_i].model);
	const char *name = tensors[_i].tensor;
	if (tensors[_i].type)
		json_object_set_new(json_object_get(c.header, name), "dtype",
		                    json_string(tensors[_i].type));
	else if (!tensors[_i].name)
		memcpy(data_of(&c, name) + 12, &tensors[_i].value, 4);
	if (tensors[_i].name) {
		json_object_set(c.header, tensors[_i].name, json_object_get(c.header, name));
		json_object_del(c.header, name);
	}
	copy_write(&c, folder);
	refused(folder, tensors[_i].text);
}

TEST(scalar_refused)
{
	static const char scale[] = "model.layers.0.self_attn.q_proj.weight_scale",
					  rows[] = GROUP(FLOAT8 "\"strategy\":\"channel\"");
	char folder[TEST_FOLDER_BYTES];
	struct copy c = copy_of("llama-fp8");
	json_object_set_new(json_object_get(c.header, scale), "shape", json_array());
	json_object_set_new(c.config, "quantization_config", json_loads(rows, 0, NULL));
	copy_write(&c, folder);
	refused(folder, "q_proj.weight_scale: found shape scalar, expected 144 x 1");
}

/* --- scales -------------------------------------------------------------- */

/* 150 rows of 130 codes, of which a part begins at row 100: the number of a row's scale, and the
 * number of columns that share one. */
TEST(scales_of_rows)
{
	static const struct {
		uint32_t rows, columns, across;
		enum kern_dtype dtype;
		float want[3]; /* of row 100, column 0; of row 127, column 129; of row 128, column 1 */
	} cases[] = {
		{150, 130, 1, KERN_F32, {1, 1, 1}},
		{1, 130, 1, KERN_BF16, {101, 128, 129}},
		{1, 130, 1, KERN_F16, {101, 128, 129}},
		{128, 128, 2, KERN_F32, {1, 2, 3}},
	};
	static const unsigned char codes[50 * 130] = {[27 * 130 + 129] = 0x38, [28 * 130 + 1] = 0xb8};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		unsigned char scales[150 * 4];
		for (uint16_t k = 0; k < 150; k++) {
			float f = k + 1;
			uint16_t h = (uint16_t)(cases[i].dtype == KERN_F16 ? kern_f32_to_f16(f)
			                                                   : kern_f32_to_bf16(f));
			if (cases[i].dtype == KERN_F32)
				memcpy(scales + 4 * k, &f, 4);
			else
				memcpy(scales + 2 * k, &h, 2);
		}
		struct model_tensor t = {.dtype = KERN_E4M3, .n = 50, .k = 130, .data = codes};
		t.scales.data = scales;
		t.scales.dtype = cases[i].dtype;
		t.scales.rows = cases[i].rows;
		t.scales.columns = cases[i].columns;
		t.scales.across = cases[i].across;
		t.scales.first = 100;
		float got[3] = {model_fp8_scale(&t, 0, 0), model_fp8_scale(&t, 27, 129),
		                model_fp8_scale(&t, 28, 1)};
		ck_assert_msg(!memcmp(got, cases[i].want, sizeof got), "case %zu: %g %g %g", i,
		              (double)got[0], (double)got[1], (double)got[2]);
		/* rows 27 and 28 in two blocks each: a scale and 128 codes, the second block with 2 */
		unsigned char rows[4 * 132], none[126] = {0};
		float second, third;
		memset(rows, 0xff, sizeof rows);
		model_fp8_rows(&t, 27, 2, rows);
		memcpy(&second, rows + 132, 4);
		memcpy(&third, rows + 2 * 132, 4);
		ck_assert(second == got[1] && third == got[2]);
		ck_assert(rows[132 + 4 + 1] == 0x38 && rows[2 * 132 + 4 + 1] == 0xb8);
		ck_assert_msg(!memcmp(rows + 132 + 6, none, 126), "case %zu: codes beyond the columns", i);
	}
}

/* --- memory -------------------------------------------------------------- */

/* Keys of latent attention are transposed: in FP8 if 128 rows share a scale, else as float32. */
TEST(keys_that_grow)
{
	enum { HEADS = 3, NOPE = 128, V = 64, RANK = 256 };
	struct model_conf c = {.heads = HEADS, .mla = {.kv_rank = RANK, .nope = NOPE, .v = V}};
	float scales[HEADS * (NOPE + V)];
	struct model_tensor t = {.dtype = KERN_E4M3, .n = HEADS * (NOPE + V), .k = RANK};
	t.scales.data = scales;
	t.scales.rows = t.scales.across = 1;
	t.scales.columns = RANK;
	for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
		scales[i] = 2;
	ck_assert_uint_eq(mla_key_type(&c, &t), KERN_E4M3);
	scales[2 * (NOPE + V) + NOPE] = 3; /* of the last head's values */
	ck_assert_uint_eq(mla_key_type(&c, &t), KERN_E4M3);
	scales[2 * (NOPE + V) + NOPE - 1] = 3;
	ck_assert_uint_eq(mla_key_type(&c, &t), KERN_F32);
	t.dtype = KERN_BF16;
	ck_assert_uint_eq(mla_key_type(&c, &t), KERN_BF16);
}
