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
/* MULTIPLY_GROUP: how z lies in shared memory, see enum wgmma_layout; GROUP_EARLY: plain, and
 * results are read too early */
enum { GROUP_PLAIN, GROUP_BY_COLUMNS, GROUP_BY_ROWS, GROUP_EARLY };
struct group_args {
	const float *x, *z;
	float *y;
	int how;
};
/* TAKE_TURNS: turn_args; MULTIPLY_GROUP: group_args; else rotate_args */
enum {
	ROTATE_BLOCK,
	ROTATE_WARP,
	WRITE_BEYOND,
	LONE_LANE,
	MULTIPLY,
	TAKE_TURNS,
	ROTATE_BULK,
	MULTIPLY_GROUP,
	HOST_KERNELS
};
extern const void *const host_kernels[HOST_KERNELS];

#ifdef __cplusplus
}
#endif
#endif
