/* load.c - see load.h. */
#include "kernels/load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const void *kern_load(const char *name, const char *folder, const char *symbol, uint32_t abi, char *errbuf, size_t errlen)
{
	char path[512];
	if (!folder || strchr(name, '/')) {
		snprintf(errbuf, errlen, "backend: found %.60s, expected cpu or sim", name);
		return NULL;
	}
	snprintf(path, sizeof path, "%.400s/pdserve-%.60s.so", folder, name);
	if (access(path, R_OK)) {
		snprintf(errbuf, errlen, "backend: found %.60s, expected cpu, sim, or one that is installed as %.400s", name, path);
		return NULL;
	}
	void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const uint32_t *table = object ? dlsym(object, symbol) : NULL;
	if (!table)
		snprintf(errbuf, errlen, "backend %.60s cannot be loaded: %.400s", name, dlerror());
	else if (*table != abi) {
		snprintf(errbuf, errlen, "backend %.60s: %.400s has ABI %u, this program has %u: install both from one release", name, path, *table, abi);
		table = NULL;
	}
	if (!table && object)
		dlclose(object);
	return table;
}
