/* load.h - tables of a backend that is a shared object. */
#ifndef KERNELS_LOAD_H
#define KERNELS_LOAD_H

#include <stddef.h>
#include <stdint.h>

/* The table that pdserve-NAME.so in `folder` (NULL: none is looked for) exports as `symbol`; its first word is its ABI number. The object stays loaded. NULL and a
 * sentence in errbuf if there is none, or its ABI is another. */
const void *kern_load(const char *name, const char *folder, const char *symbol, uint32_t abi, char *errbuf, size_t errlen);

#endif
