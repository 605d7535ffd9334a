/* load.h - tables of a backend that is a shared object. */
#ifndef KERNELS_LOAD_H
#define KERNELS_LOAD_H

#include <stddef.h>
#include <stdint.h>

/* The table that pdserve-NAME.so exports as `symbol`; its first word is its ABI number. The object
 * is looked for in the folder that the environment's PDSERVE_BACKENDS names, else in ../lib/pdserve
 * from the program's own folder, and stays loaded. NULL and a sentence in errbuf if there is
 * none, or its ABI is another. */
const void *kern_load(const char *name, const char *symbol, uint32_t abi, char *errbuf,
                      size_t errlen);

#endif
