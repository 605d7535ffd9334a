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
struct turn_args {
	const float *x;
	float *y;
	unsigned *tickets, *turn; /* both start at 0 */
	int with_wait;
};
/* the last one's argument is turn_args */
enum { ROTATE_BLOCK, ROTATE_WARP, WRITE_BEYOND, LONE_LANE, MULTIPLY, TAKE_TURNS, HOST_KERNELS };
extern const void *const host_kernels[HOST_KERNELS];

#ifdef __cplusplus
}
#endif
#endif
