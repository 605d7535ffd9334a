/* continue.h - KERN_OP_CONTINUE on the host, for backends whose memory the host can address. */
#ifndef KERNELS_CONTINUE_H
#define KERNELS_CONTINUE_H

#include "kernels/kernels.h"

/* Completes the batch's spans that continue others, before anything else reads it. */
void kern_continue(const struct kern_mem *batch, const struct kern_op *op,
                   const struct kern_limits *l);

#endif
