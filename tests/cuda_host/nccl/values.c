/* values.c - checks kernels/cuda/nccl_api.h, whose names and values are NVIDIA's. Compiled with
 * that header, and with NCCL's own where it is installed (NCCL_OWN): if the two differ, one of the
 * compilations fails. */
#ifdef NCCL_OWN
#include <nccl.h>
#else
#include "kernels/cuda/nccl_api.h"
#endif

#define IS(NAME, VALUE) _Static_assert((long)(NAME) == (VALUE), #NAME)

IS(NCCL_UNIQUE_ID_BYTES, 128);
IS(sizeof(ncclUniqueId), 128);
IS(ncclSuccess, 0);
IS(ncclUnhandledCudaError, 1);
IS(ncclSystemError, 2);
IS(ncclInternalError, 3);
IS(ncclInvalidArgument, 4);
IS(ncclInvalidUsage, 5);
IS(ncclRemoteError, 6);
IS(ncclInProgress, 7);
IS(ncclUint8, 1);
IS(ncclFloat32, 7);
IS(ncclBfloat16, 9);
IS(ncclSum, 0);
IS(NCCL_CONFIG_UNDEF_INT, INT_MIN);
IS(offsetof(ncclConfig_t, size), 0);
IS(offsetof(ncclConfig_t, magic), 8);
IS(offsetof(ncclConfig_t, version), 12);
IS(offsetof(ncclConfig_t, blocking), 16);
IS(offsetof(ncclConfig_t, cgaClusterSize), 20);
IS(offsetof(ncclConfig_t, minCTAs), 24);
IS(offsetof(ncclConfig_t, maxCTAs), 28);
IS(offsetof(ncclConfig_t, netName), 32);
IS(offsetof(ncclConfig_t, splitShare), 40);

/* Parameters and their order. */
extern ncclResult_t ncclGetVersion(int *version);
extern const char *ncclGetErrorString(ncclResult_t result);
extern const char *ncclGetLastError(ncclComm_t comm);
extern ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
extern ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config);
extern ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
extern ncclResult_t ncclCommAbort(ncclComm_t comm);
extern ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t s);
extern ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t s);
extern ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t s);
