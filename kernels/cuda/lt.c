/* lt.c - cuBLASLt, which computes products with BF16 weights for variant "fast". Only this file
 * uses it.
 *
 * The library is loaded when a device of that variant is opened, and stays loaded; other processes
 * do not need it. It chooses the algorithm from the product's shape, without measurements. Errors
 * are texts with the library's status name. */
#include "kernels/cuda/backend.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 4 << 20, WORKSPACE_BYTES_SM90 = 32 << 20, ALIGNMENT = 16 };

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

#define FUNCTIONS(X)                        \
	X(cublasLtCreate)                       \
	X(cublasLtDestroy)                      \
	X(cublasLtGetStatusName)                \
	X(cublasLtMatmulDescCreate)             \
	X(cublasLtMatmulDescDestroy)            \
	X(cublasLtMatmulDescSetAttribute)       \
	X(cublasLtMatrixLayoutCreate)           \
	X(cublasLtMatrixLayoutDestroy)          \
	X(cublasLtMatmulPreferenceCreate)       \
	X(cublasLtMatmulPreferenceDestroy)      \
	X(cublasLtMatmulPreferenceSetAttribute) \
	X(cublasLtMatmulAlgoGetHeuristic)       \
	X(cublasLtMatmul)
static struct {
	FUNCTIONS(CUDA_MEMBER)
	int found;     /* 1: all functions */
	char why[256]; /* if not: the loader's message */
} api;

static void api_look(void)
{
	const struct cuda_symbol all[] = {FUNCTIONS(CUDA_SYMBOL)};
	api.found = cuda_library(LIBRARY, all, sizeof all / sizeof *all, api.why, sizeof api.why);
}

static int check(struct kern_device *dev, cublasStatus_t status, const char *doing)
{
	if (status == CUBLAS_STATUS_SUCCESS)
		return KERN_OK;
	if (status == CUBLAS_STATUS_NOT_SUPPORTED)
		return cuda_fail(dev, KERN_ENOTSUP,
		                 "%s: cuBLASLt has no algorithm for this: leave `variant` at auto", doing);
	return cuda_fail(dev, status == CUBLAS_STATUS_ALLOC_FAILED ? KERN_ENOMEM : KERN_EDEVICE,
	                 "%s: cuBLASLt %s", doing, api.cublasLtGetStatusName(status));
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
	cublasStatus_t status = api.cublasLtMatmulPreferenceCreate(&lt->preference);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.cublasLtMatmulPreferenceSetAttribute(lt->preference,
		                                                  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
		                                                  &bytes, sizeof bytes);
	for (size_t i = 0;
	     i < sizeof alignments / sizeof *alignments && status == CUBLAS_STATUS_SUCCESS; i++)
		status = api.cublasLtMatmulPreferenceSetAttribute(lt->preference, alignments[i], &alignment,
		                                                  sizeof alignment);
	return check(dev, status, "describing products");
}

int lt_open(struct kern_device *dev, struct lt **ret_lt)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, api_look);
	if (!api.found)
		return cuda_fail(dev, KERN_ENOTSUP,
		                 "variant fast needs " LIBRARY
		                 ", which cannot be loaded: install cuBLAS of "
		                 "CUDA %d, or leave `variant` at auto (%.200s)",
		                 CUBLAS_VER_MAJOR, api.why);
	struct lt *lt = calloc(1, sizeof *lt);
	if (!lt)
		return cuda_fail(dev, KERN_ENOMEM, "out of memory for cuBLASLt");
	lt->workspace_bytes = dev->overlaps ? WORKSPACE_BYTES_SM90 : WORKSPACE_BYTES;
	int rc = check(dev, api.cublasLtCreate(&lt->handle), "opening the device");
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
		api.cublasLtMatmulPreferenceDestroy(lt->preference);
	if (lt->handle)
		api.cublasLtDestroy(lt->handle);
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
	cublasStatus_t status = api.cublasLtMatmulDescCreate(&s->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.cublasLtMatmulDescSetAttribute(s->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
		                                            sizeof transposed);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.cublasLtMatrixLayoutCreate(&s->w, CUDA_R_16BF, q->k, q->n, q->k);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.cublasLtMatrixLayoutCreate(&s->x, CUDA_R_16BF, q->k, q->rows,
		                                        (int64_t)q->x_ld);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.cublasLtMatrixLayoutCreate(&s->y, CUDA_R_32F, q->n, q->rows, q->n);
	return status;
}

static void shape_free(const struct shape *s)
{
	cublasLtMatrixLayout_t layouts[] = {s->w, s->x, s->y};
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		if (layouts[i])
			api.cublasLtMatrixLayoutDestroy(layouts[i]);
	if (s->op)
		api.cublasLtMatmulDescDestroy(s->op);
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
		status = api.cublasLtMatmulAlgoGetHeuristic(lt->handle, s.op, s.w, s.x, s.y, s.y,
		                                            lt->preference, 1, &best, &found);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = found ? best.state : CUBLAS_STATUS_NOT_SUPPORTED;
	if (status == CUBLAS_STATUS_SUCCESS)
		status = api.cublasLtMatmul(lt->handle, s.op, &one, q->w, s.w, q->x, s.x, &zero, q->y, s.y,
		                            q->y, s.y, &best.algo, lt->workspace, lt->workspace_bytes,
		                            stream);
	shape_free(&s);
	return check(dev, status, doing);
}
