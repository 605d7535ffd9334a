/* values.c - checks the stand-in for cublasLt.h, whose names and values are NVIDIA's. Compiled with
 * the stand-in, and by `make cuda` with the toolkit's header: if the two differ, one of the
 * compilations fails. */
#include <cublasLt.h>
#include <stddef.h>

#define IS(NAME, VALUE) _Static_assert((int)(NAME) == (VALUE), #NAME)

IS(CUBLAS_VER_MAJOR, 13);
IS(CUBLAS_STATUS_SUCCESS, 0);
IS(CUBLAS_STATUS_NOT_INITIALIZED, 1);
IS(CUBLAS_STATUS_ALLOC_FAILED, 3);
IS(CUBLAS_STATUS_INVALID_VALUE, 7);
IS(CUBLAS_STATUS_EXECUTION_FAILED, 13);
IS(CUBLAS_STATUS_NOT_SUPPORTED, 15);
IS(CUBLAS_OP_N, 0);
IS(CUBLAS_OP_T, 1);
IS(CUBLAS_COMPUTE_32F, 68);
IS(CUDA_R_32F, 0);
IS(CUDA_R_16BF, 14);
IS(CUBLASLT_MATMUL_DESC_TRANSA, 3);
IS(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8);
IS(sizeof(cublasLtMatmulAlgo_t), 64);
IS(sizeof(cublasLtMatmulHeuristicResult_t), 96);
IS(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize), 64);
IS(offsetof(cublasLtMatmulHeuristicResult_t, state), 72);

/* Parameters and their order. */
extern cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret);
extern cublasStatus_t cublasLtDestroy(cublasLtHandle_t h);
extern const char *cublasLtGetStatusName(cublasStatus_t status);
extern cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret,
                                               cublasComputeType_t compute, cudaDataType scale);
extern cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d);
extern cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                                     cublasLtMatmulDescAttributes_t which,
                                                     const void *value, size_t bytes);
extern cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t ld);
extern cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l);
extern cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret);
extern cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p);
extern cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
	cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t which, const void *value,
	size_t bytes);
extern cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
	cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
	cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t to, cublasLtMatmulPreference_t p, int wanted,
	cublasLtMatmulHeuristicResult_t ret[], int *ret_count);
extern cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                                     const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                                     cublasLtMatrixLayout_t b_layout, const void *beta,
                                     const void *c, cublasLtMatrixLayout_t c_layout, void *to,
                                     cublasLtMatrixLayout_t to_layout,
                                     const cublasLtMatmulAlgo_t *algo, void *workspace,
                                     size_t workspace_bytes, cudaStream_t s);
