/* safetensors.h - tensor directory of a Hugging Face folder with mapped safetensors files.
 *
 * Format: https://huggingface.co/docs/safetensors. A folder contains model.safetensors, or
 * model.safetensors.index.json and the shards that it names. Offsets are checked against the file
 * and against shape x dtype; overlaps and gaps are refused. */
#ifndef FORMAT_SAFETENSORS_H
#define FORMAT_SAFETENSORS_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

struct safetensors;

struct st_tensor {
	const char *name;
	char dtype[8]; /* "F32", "F16", "BF16", ... as in the file */
	uint32_t dims;
	uint64_t shape[4]; /* row-major, last contiguous */
	const void *data;
	size_t bytes;
};

int st_open_folder(const char *folder, struct safetensors **ret_st, struct err *err);
void st_close(struct safetensors **st);
size_t st_tensors(const struct safetensors *st);
const struct st_tensor *st_tensor_at(const struct safetensors *st, size_t i);
const struct st_tensor *st_tensor_find(const struct safetensors *st, const char *name);

#endif
