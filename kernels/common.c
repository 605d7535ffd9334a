/* common.c - what all backends agree on: names and sizes of the element types; and finding a backend by its name. */
#include "kernels/kernels.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct { const char *name; unsigned block_values, block_bytes; } dtypes[KERN_DTYPE_COUNT] = {
	[KERN_F32] = { "f32", 1, 4 },
	[KERN_F16] = { "f16", 1, 2 },
	[KERN_BF16] = { "bf16", 1, 2 },
	[KERN_Q8_0] = { "q8_0", 32, 34 },
	[KERN_Q4_0] = { "q4_0", 32, 18 },
	[KERN_Q4_1] = { "q4_1", 32, 20 },
	[KERN_Q6_K] = { "q6_k", 256, 210 },
	[KERN_Q5_0] = { "q5_0", 32, 22 },
	[KERN_Q5_1] = { "q5_1", 32, 24 },
	[KERN_Q4_K] = { "q4_k", 256, 144 },
	[KERN_Q5_K] = { "q5_k", 256, 176 },
	[KERN_I8] = { "int8", 1, 1 },
	[KERN_F8] = { "fp8", 1, 1 },
};

size_t kern_dtype_bytes(enum kern_dtype t, size_t count)
{
	if ((unsigned)t >= KERN_DTYPE_COUNT || count % dtypes[t].block_values)
		return 0;
	size_t blocks = count / dtypes[t].block_values;
	return blocks > SIZE_MAX / dtypes[t].block_bytes ? 0 : blocks * dtypes[t].block_bytes;
}

const char *kern_dtype_name(enum kern_dtype t)
{
	return (unsigned)t < KERN_DTYPE_COUNT ? dtypes[t].name : "unknown";
}

size_t kern_kv_scale_bytes(enum kern_dtype t)
{
	return t == KERN_I8 || t == KERN_F8 ? sizeof(float) : 0;
}

size_t kern_kv_plane_bytes(const struct kern_kv_layer *kv)
{
	return (kern_dtype_bytes(kv->dtype, kv->head_dim) + kern_kv_scale_bytes(kv->dtype)) * kv->block_tokens;
}

const char *kern_op_name(enum kern_op_kind k)
{
	static const char *const names[KERN_OPS] = {
		[KERN_OP_EMBED] = "embed", [KERN_OP_GATHER_ROWS] = "gather_rows", [KERN_OP_SCALE] = "scale", [KERN_OP_NORM] = "norm",
		[KERN_OP_HEAD_NORM] = "head_norm", [KERN_OP_MATMUL] = "matmul", [KERN_OP_ROPE] = "rope", [KERN_OP_KV_WRITE] = "kv_write",
		[KERN_OP_PROGRESS] = "progress", [KERN_OP_ATTENTION] = "attention", [KERN_OP_ACT_MUL] = "act_mul", [KERN_OP_ROUTE] = "route",
		[KERN_OP_EXPERTS_ACT] = "experts_act", [KERN_OP_EXPERTS_DOWN] = "experts_down", [KERN_OP_HEADS_MATMUL] = "heads_matmul",
		[KERN_OP_GATHER] = "gather",
	};
	return (unsigned)k < KERN_OPS ? names[k] : "unknown";
}

/* --- backends -------------------------------------------------------------------------------------------------------------- */

static const struct kern_ops *load(const char *name, const char *folder, char *errbuf, size_t errlen)
{
	char path[512];
	snprintf(path, sizeof path, "%.400s/pdserve-%.60s.so", folder, name);
	if (access(path, R_OK)) {
		snprintf(errbuf, errlen, "backend: found %.60s, expected cpu, sim, or one that is installed as %.400s", name, path);
		return NULL;
	}
	void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const struct kern_ops *ops = object ? dlsym(object, "kern_backend_ops") : NULL;
	if (!ops)
		snprintf(errbuf, errlen, "backend %.60s cannot be loaded: %.400s", name, dlerror());
	else if (ops->abi != KERN_ABI) {
		snprintf(errbuf, errlen, "backend %.60s: %.400s has ABI %u, this program has %u: install both from one release", name, path, ops->abi, KERN_ABI);
		ops = NULL;
	}
	if (!ops && object)
		dlclose(object);
	return ops;
}

const struct kern_ops *kern_backend(const char *name, const char *folder, char *errbuf, size_t errlen)
{
	static const struct kern_ops *const built_in[] = { &kern_cpu_ops, &kern_sim_ops };
	for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
		if (strcmp(built_in[i]->name, name) == 0)
			return built_in[i];
	if (folder && !strchr(name, '/'))
		return load(name, folder, errbuf, errlen);
	snprintf(errbuf, errlen, "backend: found %.60s, expected cpu or sim", name);
	return NULL;
}
