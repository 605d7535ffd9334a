/* lt.c - cuBLASLt, which computes products with BF16 weights for variant "fast". Only this file
 * uses it.
 *
 * The library is loaded when a device of that variant is opened, and stays loaded; other processes
 * do not need it. It chooses the algorithm from the product's shape, without measurements. Errors
 * are texts with the library's status name. */
#include "kernels/cuda/backend.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	WORKSPACE_BYTES = 4 << 20,
	WORKSPACE_BYTES_SM90 = 32 << 20,
	ALIGNMENT = 16,
	PATH_BYTES = 512
};

#define TEXT_OF(X) #X
#define TEXT(X) TEXT_OF(X)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

struct lt {
	cublasLtHandle_t handle;
	cublasLtMatmulPreference_t preference;
	void *workspace;
	size_t workspace_bytes;
};

/* --- the library --------------------------------------------------------- */

static struct {
	__typeof__(cublasLtCreate) *create;
	__typeof__(cublasLtDestroy) *destroy;
	__typeof__(cublasLtGetStatusName) *status_name;
	__typeof__(cublasLtMatmulDescCreate) *desc_create;
	__typeof__(cublasLtMatmulDescDestroy) *desc_destroy;
	__typeof__(cublasLtMatmulDescSetAttribute) *desc_set;
	__typeof__(cublasLtMatrixLayoutCreate) *layout_create;
	__typeof__(cublasLtMatrixLayoutDestroy) *layout_destroy;
	__typeof__(cublasLtMatmulPreferenceCreate) *preference_create;
	__typeof__(cublasLtMatmulPreferenceDestroy) *preference_destroy;
	__typeof__(cublasLtMatmulPreferenceSetAttribute) *preference_set;
	__typeof__(cublasLtMatmulAlgoGetHeuristic) *choose;
	__typeof__(cublasLtMatmul) *matmul;
	int found;     /* 1: all functions */
	char why[256]; /* if not: the loader's message */
} api;

/* Loads it from this object's folder, else from the system's search path. */
static void *library_open(void)
{
	char path[PATH_BYTES] = "";
	Dl_info self;
	const char *slash = dladdr(&api, &self) && self.dli_fname ? strrchr(self.dli_fname, '/') : NULL;
	if (slash &&
	    snprintf(path, sizeof path, "%.*s/%s", (int)(slash - self.dli_fname), self.dli_fname,
	             LIBRARY) < PATH_BYTES &&
	    access(path, F_OK) == 0)
		return dlopen(path, RTLD_NOW | RTLD_LOCAL);
	return dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static void api_look(void)
{
	const struct {
		const char *name;
		void *slot;
	} all[] = {
		{"cublasLtCreate", &api.create},
		{"cublasLtDestroy", &api.destroy},
		{"cublasLtGetStatusName", &api.status_name},
		{"cublasLtMatmulDescCreate", &api.desc_create},
		{"cublasLtMatmulDescDestroy", &api.desc_destroy},
		{"cublasLtMatmulDescSetAttribute", &api.desc_set},
		{"cublasLtMatrixLayoutCreate", &api.layout_create},
		{"cublasLtMatrixLayoutDestroy", &api.layout_destroy},
		{"cublasLtMatmulPreferenceCreate", &api.preference_create},
		{"cublasLtMatmulPreferenceDestroy", &api.preference_destroy},
		{"cublasLtMatmulPreferenceSetAttribute", &api.preference_set},
		{"cublasLtMatmulAlgoGetHeuristic", &api.choose},
		{"cublasLtMatmul", &api.matmul},
	};
	void *library = library_open();
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		void *fn = library ? dlsym(library, all[i].name) : NULL;
		if (!fn) {
			snprintf(api.why, sizeof api.why, "%s", dlerror());
			return;
		}
		memcpy(all[i].slot, &fn, sizeof fn);
	}
	api.found = 1;
}

static int api_find(struct kern_device *dev)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, api_look);
	if (api.found)
		return KERN_OK;
	return cuda_fail(dev, KERN_ENOTSUP,
	                 "variant fast needs %s, which cannot be loaded: install cuBLAS of CUDA %d, or "
	                 "leave `variant` at auto (%.200s)",
	                 LIBRARY, CUBLAS_VER_MAJOR, api.why);
}

static int check(struct kern_device *dev, cublasStatus_t status, const char *doing)
{
	if (status == CUBLAS_STATUS_SUCCESS)
		return KERN_OK;
	if (status == CUBLAS_STATUS_NOT_SUPPORTED)
		return cuda_fail(dev, KERN_ENOTSUP,
		                 "%s: cuBLASLt has no algorithm for this: leave `variant` at auto", doing);
	return cuda_fail(dev, status == CUBLAS_STATUS_ALLOC_FAILED ? KERN_ENOMEM : KERN_EDEVICE,
	                 "%s: cuBLASLt %s", doing, api.status_name(status));
}

/* --- opening and closing ------------------------------------------------- */

/* Restricts algorithms to matrices aligned to ALIGNMENT and to this workspace. */
static int preference_new(struct kern_device *dev, struct lt *lt)
{
	static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
	};
	uint32_t alignment = ALIGNMENT;
	uint64_t bytes = lt->workspace_bytes;
	cublasStatus_t status = api.preference_create(&lt->preference);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.preference_set(lt->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
		                            &bytes, sizeof bytes);
	for (size_t i = 0;
	     i < sizeof alignments / sizeof *alignments && status == CUBLAS_STATUS_SUCCESS; i++)
		status = api.preference_set(lt->preference, alignments[i], &alignment, sizeof alignment);
	return check(dev, status, "describing products");
}

int lt_open(struct kern_device *dev, struct lt **ret_lt)
{
	int rc = api_find(dev);
	if (rc)
		return rc;
	struct lt *lt = calloc(1, sizeof *lt);
	if (!lt)
		return cuda_fail(dev, KERN_ENOMEM, "out of memory for cuBLASLt");
	lt->workspace_bytes = dev->overlaps ? WORKSPACE_BYTES_SM90 : WORKSPACE_BYTES;
	rc = check(dev, api.create(&lt->handle), "opening the device");
	if (!rc)
		rc = preference_new(dev, lt);
	if (!rc)
		rc = cuda_check(dev, cudaMalloc(&lt->workspace, lt->workspace_bytes),
		                "allocating the cuBLASLt workspace");
	if (rc)
		lt_close(&lt);
	else
		*ret_lt = lt;
	return rc;
}

void lt_close(struct lt **ltp)
{
	struct lt *lt = *ltp;
	if (!lt)
		return;
	if (lt->workspace)
		cudaFree(lt->workspace);
	if (lt->preference)
		api.preference_destroy(lt->preference);
	if (lt->handle)
		api.destroy(lt->handle);
	free(lt);
	*ltp = NULL;
}

/* --- a product ----------------------------------------------------------- */

/* The library uses column-major order, in which a matrix of rows is its transpose. So it multiplies
 * W (k, n), transposed, with x (k, rows). */
struct shape {
	cublasLtMatmulDesc_t op;
	cublasLtMatrixLayout_t w, x, y;
};

static cublasStatus_t shape_new(const struct lt_product *q, struct shape *s)
{
	cublasOperation_t transposed = CUBLAS_OP_T;
	cublasStatus_t status = api.desc_create(&s->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.desc_set(s->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.layout_create(&s->w, CUDA_R_16BF, q->k, q->n, q->k);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.layout_create(&s->x, CUDA_R_16BF, q->k, q->rows, q->k);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.layout_create(&s->y, CUDA_R_32F, q->n, q->rows, q->n);
	return status;
}

static void shape_free(const struct shape *s)
{
	cublasLtMatrixLayout_t layouts[] = {s->w, s->x, s->y};
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		if (layouts[i])
			api.layout_destroy(layouts[i]);
	if (s->op)
		api.desc_destroy(s->op);
}

int lt_launch(struct kern_device *dev, const struct lt_product *q, cudaStream_t stream)
{
	const struct lt *lt = dev->lt;
	struct shape s = {0};
	cublasLtMatmulHeuristicResult_t best;
	float one = 1, zero = 0;
	char doing[120];
	int found = 0;
	snprintf(doing, sizeof doing, "a product of %u rows of %u columns with a weight of %u rows",
	         q->rows, q->k, q->n);
	cublasStatus_t status = shape_new(q, &s);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.choose(lt->handle, s.op, s.w, s.x, s.y, s.y, lt->preference, 1, &best, &found);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = found ? best.state : CUBLAS_STATUS_NOT_SUPPORTED;
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.matmul(lt->handle, s.op, &one, q->w, s.w, q->x, s.x, &zero, q->y, s.y, q->y,
		                    s.y, &best.algo, lt->workspace, lt->workspace_bytes, stream);
	shape_free(&s);
	return check(dev, status, doing);
}
