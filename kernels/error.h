/* error.h - return codes of backend functions. */
#ifndef KERNELS_ERROR_H
#define KERNELS_ERROR_H

enum kern_error {
	KERN_OK = 0,
	KERN_ENOMEM = -1,
	KERN_EINVAL = -2,
	KERN_ENOTSUP = -3,
	KERN_EDEVICE = -4,
	KERN_ELOST = -5 /* the device is lost: every later call fails */
};

#endif
