/* main.c - the targets, what tests share, and the program: runs every test that is linked in, on
 * the targets that are named, or on all variants of the CPU. */
#include "tests/conform/conform.h"
#include "tests/unit/skip.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
unsigned conform_thin = 5;
#else
unsigned conform_thin = 1;
#endif

struct target conform_targets[16];
unsigned conform_target_count;

enum { ALLOCS_MAX = 1 << 18, DEVICES_MAX = 64, MEMS_MAX = 4096, LEVELS = 5 };

/* --- failures ------------------------------------------------------------ */

static char about[LEVELS][160];
static bool trace;

static void where(char ret_text[static LEVELS * 164])
{
	ret_text[0] = 0;
	for (unsigned i = 0; i < LEVELS; i++)
		if (about[i][0])
			strcat(strcat(ret_text, about[i]), ": ");
}

void conform_about(unsigned level, const char *fmt, ...)
{
	char text[LEVELS * 164];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(about[level], sizeof about[level], fmt, ap);
	va_end(ap);
	for (unsigned i = level + 1; i < LEVELS; i++)
		about[i][0] = 0;
	if (!trace || level == LEVELS - 1) /* the last level is of single elements */
		return;
	where(text);
	dprintf(STDERR_FILENO, "AT %s\n", text);
}

void conform_begin(const char *what, const char *name)
{
	if (trace)
		dprintf(STDERR_FILENO, "AT %s%s\n", what, name);
}

void conform_fail(const char *fmt, ...)
{
	char text[700], at[LEVELS * 164];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	where(at);
	ck_abort_msg("%s%s", at, text);
	abort();
}

/* --- memory of a test ---------------------------------------------------- */

static void *allocs[ALLOCS_MAX];
static size_t alloc_count;

void *conform_alloc(size_t count, size_t size)
{
	void *p = NULL;
	if (size % 4096)
		p = calloc(count ? count : 1, size);
	else if (!posix_memalign(&p, 4096, count * size)) /* of pages, and aligned as they are */
		memset(p, 0, count * size);
	if (!p || alloc_count == ALLOCS_MAX)
		conform_fail("the test has no memory for %zu x %zu bytes, or %d blocks already", count,
		             size, ALLOCS_MAX);
	return allocs[alloc_count++] = p;
}

size_t conform_mark(void)
{
	return alloc_count;
}

void conform_release(size_t mark)
{
	while (alloc_count > mark)
		free(allocs[--alloc_count]);
}

static uint32_t seed = 1;

void rand_seed(uint32_t s)
{
	seed = s * 2654435761u | 1;
}

uint32_t rand_bits(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 17;
	return seed ^= seed << 5;
}

uint32_t rand_below(uint32_t n)
{
	return (uint32_t)((uint64_t)rand_bits() * n >> 32);
}

float rand_unit(void)
{
	return (float)(rand_bits() >> 8) * 0x1p-23f - 1.0f;
}

float *rand_floats(size_t n, float scale)
{
	float *p = conform_alloc(n, sizeof *p);
	for (size_t i = 0; i < n; i++)
		p[i] = rand_unit() * scale;
	return p;
}

/* --- devices ------------------------------------------------------------- */

static struct device devices[DEVICES_MAX];
static unsigned device_count;
static bool devices_stay; /* from test to test, in one process */

static bool device_open(struct device *dev)
{
	char err[200] = "";
	struct target *t = &conform_targets[dev->target - conform_targets];
	struct kern_config conf = {.variant = t->variant[0] ? t->variant : NULL,
	                           .threads = dev->threads,
	                           .activations = t->activations};
	conform_begin("opening ", t->name);
	int rc = t->ops->open(&conf, &dev->d, err, sizeof err);
	if (rc == KERN_ENOTSUP && strstr(err, "lacks")) {
		SKIP_PART("%s: %s", t->name, err);
		t->absent = true;
		return false;
	}
	EXPECT(rc == 0, "%s with %u threads does not open: %s", t->name, dev->threads, err);
	device_ok(dev, t->ops->stream_new(dev->d, &dev->s), "stream_new");
	return true;
}

struct device *device_get(struct target *t, unsigned threads)
{
	if (t->absent)
		return NULL;
	if (strcmp(t->backend, "cpu") != 0 && threads != ANOTHER)
		threads = 1;
	for (unsigned i = 0; i < device_count; i++)
		if (devices[i].target == t && devices[i].threads == threads)
			return &devices[i];
	if (device_count == DEVICES_MAX)
		conform_fail("more than %d devices in a test", DEVICES_MAX);
	struct device *dev = &devices[device_count];
	*dev = (struct device){.target = t, .ops = t->ops, .threads = threads};
	if (!device_open(dev))
		return NULL;
	device_count++;
	return dev;
}

void device_ok(const struct device *dev, int rc, const char *what)
{
	EXPECT(rc == 0, "%s returned %d: %s", what, rc, dev->ops->last_error(dev->d));
}

struct kern_mem mem_get(const struct device *dev, enum kern_memory kind, size_t bytes)
{
	struct kern_mem m;
	device_ok(dev, dev->ops->mem_new(dev->d, kind, bytes, &m), "mem_new");
	EXPECT(m.dev.v && m.dev.v % 64 == 0, "memory of kind %d at %#zx", (int)kind, (size_t)m.dev.v);
	return m;
}

void mem_put(const struct device *dev, kern_ptr dst, const void *src, size_t bytes)
{
	device_ok(dev, dev->ops->upload(dev->s, dst, src, bytes), "upload");
	device_ok(dev, dev->ops->sync(dev->s), "sync");
}

void mem_take(const struct device *dev, void *dst, kern_ptr src, size_t bytes)
{
	device_ok(dev, dev->ops->download(dev->s, dst, src, bytes), "download");
	device_ok(dev, dev->ops->sync(dev->s), "sync");
}

static void test_begin(void)
{
	rand_seed(1);
	for (unsigned i = 0; i < LEVELS; i++)
		about[i][0] = 0;
}

static bool devices_close(void)
{
	bool left = false;
	while (device_count) {
		struct device *dev = &devices[--device_count];
		dev->ops->stream_destroy(&dev->s);
		dev->ops->close(&dev->d);
		left |= dev->s || dev->d;
	}
	return !left;
}

static void test_end(void)
{
	if (!devices_stay)
		ck_assert_msg(devices_close(), "close leaves a pointer");
	conform_release(0);
}

/* --- statistics ---------------------------------------------------------- */

/* (KERN_OPS, targets), shared with the tests' processes */
static double(*stats);

void conform_stat(enum kern_op_kind kind, double part)
{
	if (stats && part > stats[kind])
		stats[kind] = part;
}

void conform_stats_show(void)
{
	for (int k = 0; k < KERN_OPS; k++)
		if (stats[k] > 0)
			printf("%-14s largest error %.2f of its bound\n", kern_op_name((enum kern_op_kind)k),
			       stats[k]);
}

/* --- targets ------------------------------------------------------------- */

/* What a backend rounds beyond float32 sums; the first that matches. A backend that computes
 * less precisely gets a row, with the reason. cuda: with rounded activations tensor cores
 * multiply single bfloat16 numbers, in attention and with E4M3 weights
 * (kernels/cuda/attention.h, record.h). cpu: activations of quantised products are integers up
 * to 16319 in groups of 32 (kernels/cpu/fast_matmul.h), so half a step of 1/16319; the variant
 * "reference" keeps float32. cuda: float32. Of types with offsets, w = d q + m, the sums of d q
 * x and of m x are rounded apart, and either may be larger than both together: some roundings
 * of the largest more. With activations of KERN_BF16 quantised products round them too: 8
 * binary digits, so each is off by at most 2^-8 of itself. cuda:fast: always rounds as with
 * KERN_BF16; products with BF16 weights are cuBLASLt's, which adds in an order that depends on
 * the number of rows. */
static const struct {
	const char *prefix;
	double group_step, group_step_bf16;
	bool bf16_mma, always_bf16, rows_vary;
} precisions[] = {
	{"cpu:reference", 0, 0, false, false, false},
	{"cpu", 0.501 / 16319, 0.501 / 16319, false, false, false},
	{"cuda:fast", 0x1p-8, 0x1p-8, true, true, true},
	{"cuda", 0x1p-21, 0x1p-8, true, false, false},
	{"", 0.501 / 16319, 0.501 / 16319, false, false, false},
};

/* BACKEND[:VARIANT[/ACTIVATIONS]] */
static const char *target_parse(struct target *t, const char *text)
{
	static char err[300];
	const char *variant = strchr(text, ':'), *act = strchr(text, '/');
	size_t backend = variant ? (size_t)(variant - text) : act ? (size_t)(act - text) : strlen(text);
	size_t length = variant ? (act ? (size_t)(act - variant) : strlen(variant)) - 1 : 0;
	*t = (struct target){.activations = act && !strcmp(act, "/bf16") ? KERN_BF16 : KERN_F32};
	if (!backend || backend >= sizeof t->backend || length >= sizeof t->variant ||
	    strlen(text) >= sizeof t->name || (act && strcmp(act, "/bf16")))
		return "a target is BACKEND[:VARIANT[/bf16]]";
	strcpy(t->name, text);
	memcpy(t->backend, text, backend);
	if (variant)
		memcpy(t->variant, variant + 1, length);
	t->ops = kern_backend(t->backend, err, sizeof err);
	if (!t->ops)
		return err;
	size_t i = 0;
	while (strncmp(text, precisions[i].prefix, strlen(precisions[i].prefix)) != 0)
		i++;
	bool bf16 = t->activations == KERN_BF16 || precisions[i].always_bf16;
	t->precision = (struct precision){bf16 ? precisions[i].group_step_bf16
	                                       : precisions[i].group_step,
	                                  bf16, bf16 && precisions[i].bf16_mma,
	                                  precisions[i].rows_vary};
	return NULL;
}

static const char *const all_cpu[] = {
	"cpu:plain",      "cpu:reference", "cpu:avx2",        "cpu:avx512",          "cpu:avx512bf16",
	"cpu:plain/bf16", "cpu:avx2/bf16", "cpu:avx512/bf16", "cpu:avx512bf16/bf16",
};

static int targets_choose(int n, char *const *names)
{
	for (int i = 0; i < (n ? n : (int)LEN(all_cpu)); i++) {
		const char *name = n ? names[i] : all_cpu[i], *why = "too many targets";
		if (conform_target_count == LEN(conform_targets) ||
		    (why = target_parse(&conform_targets[conform_target_count], name))) {
			fprintf(stderr, "conform: %s: %s\n", name, why);
			return -1;
		}
		conform_target_count++;
	}
	return 0;
}

/* --- main ---------------------------------------------------------------- */

static struct conform_test *tests;

void conform_register(struct conform_test *t)
{
	struct conform_test **at = &tests;
	while (*at && strcmp((*at)->name, t->name) < 0)
		at = &(*at)->next;
	t->next = *at;
	*at = t;
}

enum { CASES_MAX = 32 };
struct test_case {
	char name[32];
	TCase *c;
};

/* The case of a test: what its file is called, test_conform_NAME.c; or "groups", tests that fork
 * processes: they never run in the one process of the others (CK_FORK=no), and a debugger of
 * devices cannot follow them (CK_EXCLUDE_TAGS=forks). */
static TCase *case_of(Suite *s, struct test_case cases[CASES_MAX], const struct conform_test *t)
{
	static const char prefix[] = "test_conform_";
	char name[sizeof cases->name];
	bool forks = strncmp(t->name, "groups_", 7) == 0;
	const char *file = strstr(t->test->file, prefix);
	file = file ? file + strlen(prefix) : t->test->file;
	snprintf(name, sizeof name, "%.*s", forks ? 6 : (int)strcspn(file, "."),
	         forks ? "groups" : file);
	unsigned i = 0;
	while (i < CASES_MAX && cases[i].c && strcmp(cases[i].name, name) != 0)
		i++;
	if (i == CASES_MAX) {
		fprintf(stderr, "conform: more than %d files of tests\n", CASES_MAX);
		exit(2);
	}
	if (!cases[i].c) {
		strcpy(cases[i].name, name);
		cases[i].c = tcase_create(cases[i].name);
		tcase_set_timeout(cases[i].c, 300);
		tcase_add_checked_fixture(cases[i].c, test_begin, test_end);
		if (forks)
			tcase_set_tags(cases[i].c, "forks");
		suite_add_tcase(s, cases[i].c);
	}
	return cases[i].c;
}

int main(int argc, char **argv)
{
	const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
	if (targets_choose(argc - 1, argv + 1))
		return 2;
	if (getenv("CONFORM_THIN") && atoi(getenv("CONFORM_THIN")) > 0)
		conform_thin = (unsigned)atoi(getenv("CONFORM_THIN"));
	if (getenv("CONFORM_SHOW")) {
		stats = mmap(NULL, KERN_OPS * sizeof *stats, PROT_READ | PROT_WRITE,
		             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		stats = stats == MAP_FAILED ? NULL : stats;
	}
	trace = getenv("CONFORM_TRACE") != NULL;
	Suite *s = suite_create(name);
	struct test_case cases[CASES_MAX] = {0};
	for (struct conform_test *t = tests; t; t = t->next)
		tcase_add_test(case_of(s, cases, t), t->test);
	SRunner *r = srunner_create(s);
	if (srunner_fork_status(r) == CK_NOFORK) {
		/* groups first: what they fork could not use a device of this process */
		srunner_set_fork_status(r, CK_FORK);
		srunner_run_tagged(r, NULL, NULL, "forks", NULL, CK_ENV);
		srunner_set_fork_status(r, CK_NOFORK);
		devices_stay = true;
		srunner_run_tagged(r, NULL, NULL, NULL, "forks", CK_ENV);
	} else {
		srunner_run_all(r, CK_ENV);
	}
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	if (!devices_close()) {
		fprintf(stderr, "conform: close leaves a pointer\n");
		failed++;
	}
	if (stats)
		conform_stats_show();
	return failed != 0;
}
