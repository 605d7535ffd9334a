/* config_file.h - reads a file in libconfig's syntax, with whole numbers of 64 bits. */
#ifndef UTIL_CONFIG_FILE_H
#define UTIL_CONFIG_FILE_H

#include "util/err.h"

#include <libconfig.h>

#define CONFIG_FILE_BYTES_MAX (1 << 20)

/* Every whole number in cfg is of CONFIG_TYPE_INT64. cfg: initialised, and destroyed after an error
 * as well. ERR_INVALID for the text, also for one with @include or a NUL byte: names file and
 * line. */
int config_file_read(config_t *cfg, const char *path, struct err *err);

#endif
