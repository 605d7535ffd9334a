/* backend.c - finding a backend by its name: built in, or a shared object that is loaded and stays. */
#include "kernels/kernels.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
