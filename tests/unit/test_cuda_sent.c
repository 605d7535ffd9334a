/* test_cuda_sent.c - how many bytes the ranks of a group send each other in a step, on the host's
 * stand-in for GPUs, which counts what they write to each other's memory and give to NCCL. No
 * kernel computes (CUDA_HOST_COMPUTES=0): what is sent depends on shapes alone. */
/* run: cuda minutes */
#include "engine/engine_impl.h"
#include "engine_rig.h"
#include "skip.h"
#include "tempdir.h"

#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS_MAX = 512, VOCAB_UNIT = 16 }; /* VOCAB_UNIT: rows of the head that stay together */

static uint64_t *counter;

/* What all ranks of a group send in a step of a prompt, of whose rows the last one goes on to the
 * head. */
static uint64_t sent_by(const char *folder, unsigned tp, const char *variant, int expert_parallel,
                        uint32_t rows)
{
	struct rig_opts o = {.model = folder,
	                     .backend = "cuda",
	                     .kv = KV_BF16,
	                     .tp = tp,
	                     .rows = rows,
	                     .logits = 1,
	                     .ranks_per_device = 1,
	                     .expert_parallel = expert_parallel,
	                     .activations = KERN_BF16,
	                     .variant = variant};
	uint32_t ids[ROWS_MAX];
	some_ids(ids, rows, 3);
	struct rig r = rig_open(o);
	float *out = mem_array(r.vocab, sizeof *out);
	struct seq s = seq_new(&r, 5);
	uint64_t before = *counter;
	feed(&r, &s, ids, rows, rows, 1, out);
	uint64_t sent = *counter - before;
	free(out);
	rig_close(&r);
	return sent;
}

struct shape {
	uint32_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab;
};

/* Columns of bfloat16 that a layer's row has for all ranks: four gathers, or the payloads of two
 * sums of each rank. */
static uint64_t layer_columns(const struct shape *m, unsigned tp, bool sums)
{
	uint64_t gathered = m->heads * m->head_dim + m->ffn + 2 * m->hidden;
	return sums ? 2ull * m->hidden * tp : gathered * (tp - 1);
}

/* The same for a step. Rows of the table and logits are float32; logits go to rank 0 alone. */
static uint64_t step_bytes(const struct shape *m, unsigned tp, uint32_t rows, bool sums)
{
	uint32_t elsewhere = m->vocab - kern_share(m->vocab, VOCAB_UNIT, 1, tp);
	return 4ull * rows * m->hidden * (tp - 1) +
	       2 * layer_columns(m, tp, sums) * (rows * (m->layers - 1) + 1) + 4ull * elsewhere;
}

TEST_CASE("sent", .timeout_s = 600);

TEST_LOOP(bytes_of_a_step, 0, 4)
{
	static const struct shape llama = {3, 96, 192, 6, 2, 16, 320};
	static const struct {
		unsigned tp;
		const char *variant;
	} ways[] = {{2, NULL}, {2, "fast"}, {4, NULL}, {6, NULL}};
	bool sums = ways[_i].variant != NULL;
	for (uint32_t rows = 1; rows <= 64; rows += 63)
		ck_assert_uint_eq(sent_by(GOLDEN "llama", ways[_i].tp, ways[_i].variant, 0, rows),
		                  step_bytes(&llama, ways[_i].tp, rows, sums));
}

/* --- experts -------------------------------------------------------------- */

/* Bytes that a mixture of experts has for all ranks, of a row and layer without shared experts:
 * what the `used` experts computed before their last product, in bfloat16, from each rank to each;
 * or with whole experts what they give, in float32, from each rank to each that adds up its
 * columns. With divided sums neither is sent: each rank has its payload in a sum either way. */
static uint64_t expert_bytes(uint32_t used, uint32_t hidden, uint32_t ffn, unsigned tp, int whole,
                             bool sums)
{
	return sums ? 0 : whole ? 4ull * used * hidden * (tp - 1) / tp : 2ull * used * ffn * (tp - 1);
}

TEST_LOOP(bytes_of_experts, 0, 6)
{
	/* ffn 0: nothing of it is counted as a dense layer's */
	static const struct shape gpt_oss = {3, 64, 0, 4, 2, 16, 320};
	static const struct {
		unsigned tp;
		const char *variant;
		int whole;
	} ways[] = {{2, NULL, 0}, {2, NULL, 1},   {4, NULL, 0},
	            {4, NULL, 1}, {2, "fast", 0}, {2, "fast", 1}};
	bool sums = ways[_i].variant != NULL;
	for (uint32_t rows = 1; rows <= 64; rows += 63) {
		uint64_t experts = expert_bytes(2, gpt_oss.hidden, 64, ways[_i].tp, ways[_i].whole, sums);
		ck_assert_uint_eq(sent_by(GOLDEN "gpt_oss", ways[_i].tp, ways[_i].variant, ways[_i].whole,
		                          rows),
		                  step_bytes(&gpt_oss, ways[_i].tp, rows, sums) +
		                      experts * (rows * (gpt_oss.layers - 1) + 1));
	}
}

/* What docs/tuning.md says of published models: a rank sends less with whole experts from so many
 * ranks on. */
TEST(whole_experts_send_less)
{
	static const struct {
		uint32_t used, hidden, ffn;
		unsigned from;
	} models[] = {{8, 7168, 2048, 8}, {8, 4096, 1536, 6}, {4, 2880, 2880, 3}};
	for (size_t i = 0; i < sizeof models / sizeof *models; i++)
		for (unsigned tp = 2; tp <= 16; tp++)
			ck_assert_int_eq(expert_bytes(models[i].used, models[i].hidden, models[i].ffn, tp, 1,
			                              0) < expert_bytes(models[i].used, models[i].hidden,
			                                                models[i].ffn, tp, 0, 0),
			                 tp >= models[i].from);
}

/* --- Llama-70B's shape --------------------------------------------------- */

static void put_tensor(FILE *head, uint64_t *at, const char *name, uint32_t n, uint32_t k)
{
	uint64_t bytes = 2ull * n * (k ? k : 1);
	fprintf(head, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%u", *at ? "," : "", name, n);
	if (k)
		fprintf(head, ",%u", k);
	fprintf(head, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *at, *at + bytes);
	*at += bytes;
}

/* A model of zeros, in a file with a hole instead of them. */
static void put_model(const char *folder, const struct shape *m)
{
	char path[512], *text = NULL;
	size_t length = 0;
	uint64_t at = 0;
	snprintf(path, sizeof path, "%s/config.json", folder);
	FILE *f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fprintf(
		f,
		"{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":"
		"\"silu\",\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,\"max_position_embeddings\":"
		"8192,\"bos_token_id\":1,\"eos_token_id\":2,\"tie_word_embeddings\":false,"
		"\"hidden_size\":%u,\"intermediate_size\":%u,\"num_attention_heads\":%u,"
		"\"num_key_value_heads\":%u,\"head_dim\":%u,\"num_hidden_layers\":%u,\"vocab_size\":%u}",
		m->hidden, m->ffn, m->heads, m->kv_heads, m->head_dim, m->layers, m->vocab);
	fclose(f);
	FILE *head = open_memstream(&text, &length);
	fprintf(head, "{");
	put_tensor(head, &at, "model.embed_tokens.weight", m->vocab, m->hidden);
	put_tensor(head, &at, "lm_head.weight", m->vocab, m->hidden);
	put_tensor(head, &at, "model.norm.weight", m->hidden, 0);
	for (uint32_t l = 0; l < m->layers; l++) {
		const struct {
			const char *name;
			uint32_t n, k;
		} all[] = {{"self_attn.q_proj", m->heads * m->head_dim, m->hidden},
		           {"self_attn.k_proj", m->kv_heads * m->head_dim, m->hidden},
		           {"self_attn.v_proj", m->kv_heads * m->head_dim, m->hidden},
		           {"self_attn.o_proj", m->hidden, m->heads * m->head_dim},
		           {"mlp.gate_proj", m->ffn, m->hidden},
		           {"mlp.up_proj", m->ffn, m->hidden},
		           {"mlp.down_proj", m->hidden, m->ffn},
		           {"input_layernorm", m->hidden, 0},
		           {"post_attention_layernorm", m->hidden, 0}};
		for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
			char name[80];
			snprintf(name, sizeof name, "model.layers.%u.%s.weight", l, all[i].name);
			put_tensor(head, &at, name, all[i].n, all[i].k);
		}
	}
	fprintf(head, "}");
	fclose(head);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	uint64_t n = length;
	ck_assert(write(fd, &n, sizeof n) == sizeof n && write(fd, text, length) == (ssize_t)length);
	ck_assert_int_eq(ftruncate(fd, (off_t)(sizeof n + length + at)), 0);
	close(fd);
	free(text);
}

/* A layer's bytes: of two layers, less those of one. They grow with the rows. */
TEST_LOOP(bytes_of_a_layer_of_70b, 0, 2)
{
	static const char *const variant[] = {NULL, "fast"};
	static const double most[] = {0.9e9, 0.3e9};
	enum { TP = 8, FEW = 256, MANY = ROWS_MAX, GOAL_ROWS = 8192 };
	if (!getenv("PD_FULL"))
		SKIP("PD_FULL is not set: 4 GB of memory");
	uint64_t layer[2];
	for (int i = 0; i < 2; i++) {
		uint32_t rows = i ? MANY : FEW;
		uint64_t sent[2];
		for (uint32_t layers = 1; layers <= 2; layers++) {
			char folder[TEST_FOLDER_BYTES];
			struct shape m = {layers, 8192, 28672, 64, 8, 128, 1024};
			test_folder(folder, "shape");
			put_model(folder, &m);
			sent[layers - 1] = sent_by(folder, TP, variant[_i], 0, rows);
		}
		layer[i] = (sent[1] - sent[0]) / TP;
		printf("%s: %u rows: a rank sends %" PRIu64 " bytes a layer\n",
		       variant[_i] ? variant[_i] : "exact", rows, layer[i]);
	}
	ck_assert_uint_eq(layer[1] * FEW, layer[0] * MANY);
	double goal = (double)layer[1] / MANY * GOAL_ROWS;
	printf("%d rows: %.3f GB\n", GOAL_ROWS, goal * 1e-9);
	ck_assert_msg(goal <= most[_i], "%g", goal);
}

TEST_START(backend)
{
	static char path[TEST_FOLDER_BYTES + 16];
	char folder[512], here[TEST_FOLDER_BYTES];
	snprintf(folder, sizeof folder, "%.400s/../cuda_host", dirname(argv[0]));
	setenv("PDSERVE_BACKENDS", folder, 0);
	test_folder(here, "sent");
	snprintf(path, sizeof path, "%s/sent", here);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *counter))
		abort();
	counter = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	setenv("CUDA_HOST_SENT", path, 1);
	setenv("CUDA_HOST_COMPUTES", "0", 1);
}
