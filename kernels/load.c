/* load.c - see load.h. */
#include "kernels/load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 512 };

/* In PDSERVE_BACKENDS, else in ../lib/pdserve relative to the program's folder. 0: the path is too
 * long */
static int object_path(const char *name, char path[PATH_BYTES])
{
	const char *folder = getenv("PDSERVE_BACKENDS");
	char self[PATH_BYTES] = "";
	int n;
	if (folder && *folder)
		n = snprintf(path, PATH_BYTES, "%s/pdserve-%s.so", folder, name);
	else {
		ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
		char *slash = length > 0 ? strrchr(self, '/') : NULL;
		if (!slash)
			return 0;
		*slash = 0;
		n = snprintf(path, PATH_BYTES, "%s/../lib/pdserve/pdserve-%s.so", self, name);
	}
	return n > 0 && n < PATH_BYTES;
}

const void *kern_load(const char *name, const char *symbol, uint32_t abi, char *errbuf,
                      size_t errlen)
{
	char path[PATH_BYTES];
	if (!*name || strchr(name, '/') || !object_path(name, path)) {
		snprintf(errbuf, errlen,
		         "backend: found \"%.60s\", expected cpu, sim or an installed backend", name);
		return NULL;
	}
	if (access(path, R_OK)) {
		snprintf(errbuf, errlen,
		         "backend: found %.60s, expected cpu, sim or an installed backend: no file %.400s",
		         name, path);
		return NULL;
	}
	void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const uint32_t *table = object ? dlsym(object, symbol) : NULL;
	if (!table)
		snprintf(errbuf, errlen, "backend %.60s cannot be loaded: %.400s", name, dlerror());
	else if (*table != abi) {
		snprintf(
			errbuf, errlen,
			"backend %.60s: %.400s has ABI %u, this program has %u: install both from one release",
			name, path, *table, abi);
		table = NULL;
	}
	if (!table && object)
		dlclose(object);
	return table;
}
