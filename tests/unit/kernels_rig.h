/* kernels_rig.h - what the tests of the CPU kernels share: devices by variant, random inputs, weights, comparisons. Included once by each. */
#ifndef TEST_KERNELS_RIG_H
#define TEST_KERNELS_RIG_H

#include "kernels/kernels.h"
#include "skip.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPS (&kern_cpu_ops)
#define LEN(a) (sizeof(a) / sizeof *(a))
#define UNUSED __attribute__((unused))
/* for elements in their thousands: ck_assert writes to a file each time it holds */
#define EXPECT(cond, ...) do { if (!(cond)) ck_abort_msg(__VA_ARGS__); } while (0)
enum { MAX_ROWS = 600 };

static const char *const fast_variants[] = { "plain", "avx2", "avx512" };

struct dev { struct kern_device *d; struct kern_stream *s; };

/* false when the machine lacks the variant's instructions */
static bool dev_try_as(struct dev *dev, const char *variant, unsigned threads, enum kern_dtype activations)
{
	char err[160] = "";
	struct kern_config conf = { .variant = variant, .threads = threads, .max_rows = MAX_ROWS, .activations = activations };
	int rc = OPS->open(&conf, &dev->d, err, sizeof err);
	if (rc == KERN_ENOTSUP && strstr(err, "lacks")) {
		static char said[sizeof err];   /* once a test, not for every shape */
		if (strcmp(said, err) != 0)
			SKIP_PART("%s", err);
		strcpy(said, err);
		return false;
	}
	ck_assert_msg(rc == 0, "%s: %s", variant, err);
	ck_assert_int_eq(OPS->stream_new(dev->d, &dev->s), 0);
	return true;
}

static UNUSED bool dev_try(struct dev *dev, const char *variant, unsigned threads)
{
	return dev_try_as(dev, variant, threads, KERN_F32);
}

static void dev_close(struct dev *dev)
{
	OPS->stream_destroy(&dev->s);
	OPS->close(&dev->d);
	ck_assert_ptr_null(dev->d);
}

static uint32_t seed = 1;

static uint32_t rand_bits(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 17;
	return seed ^= seed << 5;
}

static float rand_unit(void)                    /* -1 .. 1 */
{
	return (float)(rand_bits() >> 8) * 0x1p-23f - 1.0f;
}

static UNUSED float *rand_floats(size_t n, float scale)
{
	float *p = malloc((n + 1) * sizeof *p);
	for (size_t i = 0; i < n; i++)
		p[i] = rand_unit() * scale;
	return p;
}

static void put_half(unsigned char *p, float f)         /* f16, truncated; what would be subnormal becomes 0 */
{
	uint32_t u;
	memcpy(&u, &f, 4);
	u = fabsf(f) < 0x1p-14f ? 0 : (u >> 16 & 0x8000) | (((u >> 13) - (112 << 10)) & 0x7fff);
	p[0] = (unsigned char)u;
	p[1] = (unsigned char)(u >> 8);
}

/* A random matrix in the file's format, values of about +-1. */
static UNUSED unsigned char *rand_weight(enum kern_dtype t, uint32_t n, uint32_t k)
{
	size_t count = (size_t)n * k, bytes = kern_dtype_bytes(t, count);
	unsigned char *w = malloc(bytes);
	for (size_t i = 0; i < bytes; i++)
		w[i] = (unsigned char)rand_bits();
	for (size_t i = 0; i < count; i++) {
		float f = rand_unit();
		if (t == KERN_F32)
			memcpy(w + 4 * i, &f, 4);
		else if (t == KERN_F16)
			put_half(w + 2 * i, f);
		else if (t == KERN_BF16)
			memcpy(w + 2 * i, (unsigned char *)&f + 2, 2);
		else if (t == KERN_Q6_K && i % 256 == 0)
			put_half(w + i / 256 * 210 + 208, 1.0f / 4096);
		else if (t == KERN_Q8_0 && i % 32 == 0)
			put_half(w + i / 32 * 34, (f + 2) / 256);
		else if (t == KERN_Q4_0 && i % 32 == 0)
			put_half(w + i / 32 * 18, (f + 2) / 16);
		else if (t == KERN_MXFP4 && i % 32 == 0)
			w[i / 32 * 17] = (unsigned char)(121 + w[i / 32 * 17] % 5);
		else if (t == KERN_Q4_1 && i % 32 == 0)
			put_half(w + i / 32 * 20, (f + 2) / 16), put_half(w + i / 32 * 20 + 2, -(f + 2) / 2);
		else if (t == KERN_Q5_0 && i % 32 == 0)
			put_half(w + i / 32 * 22, (f + 2) / 32);
		else if (t == KERN_Q5_1 && i % 32 == 0)
			put_half(w + i / 32 * 24, (f + 2) / 32), put_half(w + i / 32 * 24 + 2, -(f + 2) / 2);
		else if ((t == KERN_Q4_K || t == KERN_Q5_K) && i % 256 == 0)
			put_half(w + kern_dtype_bytes(t, i), (f + 2) / 1024), put_half(w + kern_dtype_bytes(t, i) + 2, (f + 2) / 128);
	}
	return w;
}

static UNUSED struct kern_weight *weight(struct dev *dev, enum kern_dtype t, uint32_t n, uint32_t k, const unsigned char *data)
{
	struct kern_weight *w;
	int borrows;
	ck_assert_msg(OPS->weight_new(dev->d, t, n, k, data, &w, &borrows) == 0, "%s", OPS->last_error(dev->d));
	return w;
}

static UNUSED void same_bits(const float *got, const float *want, size_t n, const char *what)
{
	for (size_t i = 0; i < n; i++)
		EXPECT(memcmp(got + i, want + i, sizeof *got) == 0, "%s: element %zu is %.9g, want the bits of %.9g", what, i,
		              (double)got[i], (double)want[i]);
}

static UNUSED void near(const float *got, const float *want, size_t n, float bound, const char *what)
{
	for (size_t i = 0; i < n; i++)
		EXPECT(fabsf(got[i] - want[i]) <= bound * (1 + fabsf(want[i])), "%s: element %zu is %.9g, want %.9g within %g", what, i,
		              (double)got[i], (double)want[i], (double)bound);
}

static UNUSED char label[160];
#define LABEL(...) (snprintf(label, sizeof label, __VA_ARGS__), label)

static int run_suite(const char *name, const TTest *const *tests, size_t n)
{
	Suite *s = suite_create(name);
	TCase *t = tcase_create("all");
	tcase_set_timeout(t, 300);
	for (size_t i = 0; i < n; i++)
		tcase_add_test(t, tests[i]);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}

#endif
