/* test_cuda_device.c - what goes wrong on a CUDA device, on the host's stand-in for a GPU (tests/cuda_host): every call of the runtime and of cuBLASLt fails
 * once, a device breaks, memory runs out. What fails says so, leaves nothing behind, and a device that is not broken goes on. */
#include "kernels/kernels.h"
#include "skip.h"

#include <check.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 64, ROWS = 12, BATCH_BYTES = 4096 };

static const struct kern_ops *k;
static const char *const variants[] = {"auto", "fast"};
static char why[400];

struct rig {
	struct kern_device *dev;
	struct kern_stream *s;
	struct kern_mem mem, batch;
	struct kern_weight *w;
	struct kern_program *p;
};

static void rig_close(struct rig *r)
{
	if (r->p)
		k->program_destroy(&r->p);
	if (r->w)
		k->weight_destroy(r->dev, &r->w);
	if (r->dev) {
		k->mem_free(r->dev, &r->mem);
		k->mem_free(r->dev, &r->batch);
	}
	if (r->s)
		k->stream_destroy(&r->s);
	k->close(&r->dev);
}

static int program_new(struct rig *r)
{
	static const struct kern_limits limits = {.rows = ROWS, .spans = 1, .positions = ROWS, .batch_bytes = BATCH_BYTES};
	struct kern_op op[2] = {{.kind = KERN_OP_SCALE}, {.kind = KERN_OP_MATMUL}};
	struct kern_tensor x = {r->mem.dev, DIM, KERN_F32}, y = {kern_at(r->mem.dev, ROWS * DIM * 4), DIM, KERN_F32};
	op[0].scale.x = op[0].scale.y = op[1].matmul.x = x;
	op[0].scale.dim = DIM;
	op[0].scale.factor = 2;
	op[1].matmul.products = 1;
	op[1].matmul.p[0] = (struct kern_product){r->w, {0}, y};
	return k->program_new(r->dev, op, 2, &limits, &r->p);
}

/* One row through the program. */
static int step(struct rig *r, float *y)
{
	float x[DIM];
	struct kern_batch *b = r->batch.host;
	uint32_t *words = r->batch.host;
	for (int i = 0; i < DIM; i++)
		x[i] = (float)i;
	*b = (struct kern_batch){.words = 64, .rows = 1, .spans = 1, .span = 16, .tokens = 20, .positions = 20, .slots = 20, .tail_index = 20, .tail_span = 20, .table = 20};
	memset(words + 16, 0, 48 * 4);
	words[17] = 1;             /* the span's rows */
	int rc = k->upload(r->s, r->mem.dev, x, sizeof x);
	if (!rc)
		rc = k->run(r->s, r->p, &r->batch);
	if (!rc)
		rc = k->download(r->s, y, kern_at(r->mem.dev, ROWS * DIM * 4), DIM * sizeof *y);
	int sync = k->sync(r->s);
	return rc ? rc : sync;
}

static int rig_open(struct rig *r, const char *variant)
{
	struct kern_config conf = {.variant = variant};
	uint16_t data[DIM * DIM] = {0};
	for (int i = 0; i < DIM; i++)
		data[i * DIM + i] = 0x3f80;    /* the unit matrix, as bfloat16 */
	*r = (struct rig){0};
	int rc = k->open(&conf, &r->dev, why, sizeof why);
	if (rc)
		return rc;
	if (!(rc = k->stream_new(r->dev, &r->s)) && !(rc = k->mem_new(r->dev, KERN_MEM_DEVICE, 2 * ROWS * DIM * 4, &r->mem)) &&
	    !(rc = k->mem_new(r->dev, KERN_MEM_PINNED, BATCH_BYTES, &r->batch)) && !(rc = k->weight_new(r->dev, KERN_BF16, DIM, DIM, data, 0, &r->w)))
		rc = program_new(r);
	if (rc)
		snprintf(why, sizeof why, "%s", k->last_error(r->dev));
	return rc;
}

static void expect_right(struct rig *r)
{
	float y[DIM];
	ck_assert_int_eq(step(r, y), 0);
	for (int i = 0; i < DIM; i++)
		ck_assert_msg(y[i] == 2 * (float)i, "column %d is %g", i, (double)y[i]);
}

START_TEST(a_device_computes)
{
	struct rig r;
	ck_assert_msg(rig_open(&r, variants[_i]) == 0, "%s", why);
	ck_assert_str_eq(k->numerics(r.dev), _i ? "cuda-sm99-r1-fast" : "cuda-sm99-r1");
	expect_right(&r);
	rig_close(&r);
}
END_TEST

/* The n-th call of a function fails, for every n until none does: what was asked for is refused in words, nothing is leaked (AddressSanitizer), and the device
 * is not lost. */
static const struct { const char *name, *variant; } calls[] = {
	{"cudaMalloc", "auto"}, {"cudaHostAlloc", "auto"}, {"cudaLaunchKernel", "auto"}, {"cudaGraphInstantiate", "auto"}, {"cudaMemcpyAsync", "auto"},
	{"cudaStreamCreateWithFlags", "auto"}, {"cudaStreamBeginCapture", "auto"}, {"cudaEventRecord", "auto"}, {"cudaStreamSynchronize", "auto"},
	{"cudaMemset", "auto"}, {"cudaGraphLaunch", "auto"}, {"cudaMalloc", "fast"}, {"cudaLaunchKernel", "fast"}, {"cublasLtCreate", "fast"},
	{"cublasLtMatmulPreferenceCreate", "fast"}, {"cublasLtMatmulDescCreate", "fast"}, {"cublasLtMatrixLayoutCreate", "fast"},
	{"cublasLtMatmulAlgoGetHeuristic", "fast"}, {"cublasLtMatmul", "fast"},
};
enum { CALLS = sizeof calls / sizeof *calls };

START_TEST(calls_that_fail)
{
	char text[80];
	int failures = 0;
	for (int n = 1; n < 400; n += n < 40 ? 1 : 17) {
		struct rig r;
		float y[DIM];
		snprintf(text, sizeof text, "%s:%d", calls[_i].name, n);
		setenv("CUDA_HOST_FAIL", text, 1);
		int rc = rig_open(&r, calls[_i].variant), ran = rc ? 0 : step(&r, y);
		setenv("CUDA_HOST_FAIL", "none:1", 1);
		ck_assert_msg(rc == 0 || strlen(why) > 10, "%s: %d without a text", text, rc);
		ck_assert_msg(rc != KERN_ELOST && ran != KERN_ELOST, "%s: %s", text, rc ? why : k->last_error(r.dev));
		failures += rc || ran;
		if (!rc)
			expect_right(&r);
		rig_close(&r);
		if (!rc && !ran)
			break;
	}
	ck_assert_int_gt(failures, 0);
}
END_TEST

START_TEST(a_device_that_breaks)
{
	struct rig r;
	struct kern_mem m = {0};
	float y[DIM];
	ck_assert_msg(rig_open(&r, "auto") == 0, "%s", why);
	expect_right(&r);
	setenv("CUDA_HOST_FAIL", "scale_rows:1", 1);
	ck_assert_int_eq(step(&r, y), KERN_ELOST);
	ck_assert_ptr_nonnull(strstr(k->last_error(r.dev), "an illegal memory access"));
	ck_assert_int_eq(step(&r, y), KERN_ELOST);
	ck_assert_int_eq(k->mem_new(r.dev, KERN_MEM_DEVICE, 10, &m), KERN_ELOST);
	ck_assert_int_eq(k->sync(r.s), KERN_ELOST);
	rig_close(&r);
}
END_TEST

/* What a device took is given back when it is closed. */
START_TEST(memory_comes_back)
{
	struct kern_info before, after;
	struct rig r, other;
	ck_assert_int_eq(rig_open(&other, "auto"), 0);
	k->info(other.dev, &before);
	ck_assert_msg(rig_open(&r, variants[_i]) == 0, "%s", why);
	k->info(other.dev, &after);
	ck_assert_uint_lt(after.free_bytes, before.free_bytes);
	ck_assert_str_eq(after.name, "host");
	rig_close(&r);
	k->info(other.dev, &after);
	ck_assert_uint_eq(after.free_bytes, before.free_bytes);
	rig_close(&other);
}
END_TEST

START_TEST(memory_that_runs_out)
{
	struct rig r;
	struct kern_mem m = {0};
	setenv("CUDA_HOST_MEMORY_MB", "64", 1);
	ck_assert_msg(rig_open(&r, "auto") == 0, "%s", why);
	for (int kind = KERN_MEM_DEVICE; kind <= KERN_MEM_SHARED; kind += 2) {
		ck_assert_int_eq(k->mem_new(r.dev, (enum kern_memory)kind, 65 << 20, &m), KERN_ENOMEM);
		ck_assert_msg(strstr(k->last_error(r.dev), "MiB free of 64 MiB"), "%s", k->last_error(r.dev));
	}
	expect_right(&r);
	rig_close(&r);
}
END_TEST

int main(int argc, char **argv)
{
	(void)argc;
	char folder[512];
	snprintf(folder, sizeof folder, "%.400s/../cuda_host", dirname(argv[0]));
	setenv("PDSERVE_BACKENDS", folder, 0);
	k = kern_backend("cuda", why, sizeof why);
	if (!k) {
		fprintf(stderr, "%s\n", why);
		return 2;
	}
	Suite *s = suite_create("cuda_device");
	TCase *t = tcase_create("cuda_device");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, a_device_computes, 0, 2);
	tcase_add_loop_test(t, calls_that_fail, 0, CALLS);
	tcase_add_test(t, a_device_that_breaks);
	tcase_add_loop_test(t, memory_comes_back, 0, 2);
	tcase_add_test(t, memory_that_runs_out);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
