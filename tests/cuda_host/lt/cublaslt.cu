/* cublaslt.cu - the part of cuBLASLt that kernels/cuda uses, on the host: y = x W^T of bfloat16 in
 * float32, in stream order, with a kernel of the stand-in. Like the real one it is a separate
 * library (libcublasLt.so.13, next to the stand-in's pdserve-cuda.so).
 *
 * Like the real one it does not promise bits: the number of parts of a sum depends on the number of
 * rows. It rejects products for which the real one has no fast algorithm.
 * CUDA_HOST_FAIL=function:n: the n-th call of that function fails; cublasLtMatmulAlgoGetHeuristic
 * then finds nothing. */
#include "kernels/cuda/kernel.h"
extern "C" {
#include "tests/cuda_host/runtime.h"
}

#include <cublasLt.h>
#include <stdlib.h>

enum { THREADS = 64, ALIGNMENT = 16, WORKSPACE_WANTED = 1 << 20, ALGORITHM = 77 };

struct cublasLtContext {
	int open;
};
struct cublasLtMatmulDescOpaque {
	cublasOperation_t op_a;
};
struct cublasLtMatrixLayoutOpaque {
	cudaDataType type;
	uint64_t rows, columns;
	int64_t ld;
};
struct cublasLtMatmulPreferenceOpaque {
	uint64_t workspace_bytes;
	uint32_t alignment[4]; /* of A, B, C, D */
};

template <typename T> static cublasStatus_t object_new(const char *name, T **ret, T object)
{
	if (cuda_host_injected(name))
		return CUBLAS_STATUS_ALLOC_FAILED;
	*ret = (T *)malloc(sizeof object);
	**ret = object;
	return CUBLAS_STATUS_SUCCESS;
}

template <typename T> static cublasStatus_t object_free(T *object)
{
	if (!object)
		abort();
	free(object);
	return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
	switch (status) {
	case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
	case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
	case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
	case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
	default: return "CUBLAS_STATUS_UNKNOWN";
	}
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret)
{
	return object_new("cublasLtCreate", ret, cublasLtContext{1});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
	return object_free(h);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t compute,
                                        cudaDataType scale)
{
	if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
		return CUBLAS_STATUS_INVALID_VALUE;
	return object_new("cublasLtMatmulDescCreate", ret, cublasLtMatmulDescOpaque{CUBLAS_OP_N});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
	return object_free(d);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes)
{
	if (which != CUBLASLT_MATMUL_DESC_TRANSA || bytes != sizeof d->op_a)
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(&d->op_a, value, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
	return object_new("cublasLtMatrixLayoutCreate", ret,
	                  cublasLtMatrixLayoutOpaque{type, rows, columns, ld});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
	return object_free(l);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
	return object_new("cublasLtMatmulPreferenceCreate", ret,
	                  cublasLtMatmulPreferenceOpaque{0, {256, 256, 256, 256}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
	return object_free(p);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t bytes)
{
	bool workspace = which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
	void *to = workspace ? (void *)&p->workspace_bytes
	                     : &p->alignment[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
	if (bytes != (workspace ? sizeof p->workspace_bytes : sizeof p->alignment[0]))
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(to, value, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

/* Whether the types and shapes are those of a product, and each column starts at a multiple of
 * ALIGNMENT. */
static bool can_multiply(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                         cublasLtMatrixLayout_t to)
{
	return d->op_a == CUBLAS_OP_T && a->type == CUDA_R_16BF && b->type == CUDA_R_16BF &&
	       to->type == CUDA_R_32F && a->rows == b->rows && a->columns == to->rows &&
	       b->columns == to->columns && a->ld >= (int64_t)a->rows && b->ld >= (int64_t)b->rows &&
	       to->ld >= (int64_t)to->rows && a->ld * 2 % ALIGNMENT == 0 &&
	       b->ld * 2 % ALIGNMENT == 0 && to->ld * 4 % ALIGNMENT == 0;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t to,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t ret[], int *ret_count)
{
	if (!h->open || wanted < 1 || c != to)
		return CUBLAS_STATUS_INVALID_VALUE;
	bool aligned = true;
	for (uint32_t alignment : p->alignment)
		aligned &= alignment <= ALIGNMENT;
	*ret_count = can_multiply(d, a, b, to) && p->workspace_bytes >= WORKSPACE_WANTED && aligned &&
	             !cuda_host_injected("cublasLtMatmulAlgoGetHeuristic");
	ret[0].algo.data[0] = *ret_count ? ALGORITHM : 0;
	ret[0].workspaceSize = WORKSPACE_WANTED;
	ret[0].state = CUBLAS_STATUS_SUCCESS;
	return CUBLAS_STATUS_SUCCESS;
}

struct multiply_args {
	const uint16_t *a, *b; /* columns of k values */
	float *to;
	uint64_t a_ld, b_ld, to_ld;
	uint32_t k, a_columns, b_columns, parts;
};

/* One thread per column of a. */
KERNEL(cublaslt_multiply, THREADS, struct multiply_args)
{
	uint32_t i = blockIdx.x * THREADS + threadIdx.x;
	for (uint32_t j = 0; j < a.b_columns && i < a.a_columns; j++) {
		const uint16_t *x = a.a + i * a.a_ld, *y = a.b + j * a.b_ld;
		float sum = 0;
		for (uint32_t part = 0; part < a.parts; part++) {
			float some = 0;
			for (uint32_t c = part; c < a.k; c += a.parts)
				some = fmaf(kern_bf16_to_f32(x[c]), kern_bf16_to_f32(y[c]), some);
			sum += some;
		}
		a.to[j * a.to_ld + i] = sum;
	}
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *to,
                              cublasLtMatrixLayout_t to_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t s)
{
	uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)to | (uintptr_t)workspace;
	if (!h->open || algo->data[0] != ALGORITHM || !a || !b || !workspace || c != to ||
	    c_layout != to_layout || *(const float *)alpha != 1 || *(const float *)beta != 0 ||
	    all % ALIGNMENT || workspace_bytes < WORKSPACE_WANTED ||
	    !can_multiply(d, a_layout, b_layout, to_layout))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (cuda_host_injected("cublasLtMatmul"))
		return CUBLAS_STATUS_EXECUTION_FAILED;
	uint32_t rows = (uint32_t)b_layout->columns;
	struct multiply_args args = {(const uint16_t *)a,
	                             (const uint16_t *)b,
	                             (float *)to,
	                             (uint64_t)a_layout->ld,
	                             (uint64_t)b_layout->ld,
	                             (uint64_t)to_layout->ld,
	                             (uint32_t)a_layout->rows,
	                             (uint32_t)a_layout->columns,
	                             rows,
	                             1 + rows % 7};
	void *pointers[] = {&args};
	struct dim3 grid = {(args.a_columns + THREADS - 1) / THREADS, 1, 1}, block = {THREADS, 1, 1};
	return cudaLaunchKernel((const void *)cublaslt_multiply, grid, block, pointers, 0, s) ==
	               cudaSuccess
	           ? CUBLAS_STATUS_SUCCESS
	           : CUBLAS_STATUS_EXECUTION_FAILED;
}
