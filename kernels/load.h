/* load.h - loading a backend from a shared object. */
#ifndef KERNELS_LOAD_H
#define KERNELS_LOAD_H

#include <stddef.h>
#include <stdint.h>

/* Returns the table that pdserve-NAME.so exports as `symbol`; its first word is its ABI number. The
 * object is searched in the folder named by the environment variable PDSERVE_BACKENDS, else in
 * ../lib/pdserve relative to the program's folder, and stays loaded. NULL and a message in errbuf
 * if there is none or its ABI differs. */
const void *kern_load(const char *name, const char *symbol, uint32_t abi, char *errbuf,
                      size_t errlen);

#endif
