/* kernels.h - the kernels of kernels.cu and their argument. */
#ifndef CUDA_HOST_KERNELS_H
#define CUDA_HOST_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

struct rotate_args {
	const float *x, *z;
	float *y;
	int with_barrier;
};
enum { ROTATE_BLOCK, ROTATE_WARP, WRITE_BEYOND, LONE_LANE, MULTIPLY, HOST_KERNELS };
extern const void *const host_kernels[HOST_KERNELS];

#ifdef __cplusplus
}
#endif
#endif
