/* backend.c - finds a backend by name: built in, or a shared object that is loaded and stays
 * loaded. */
#include "kernels/device.h"
#include "kernels/load.h"

#include <string.h>

const struct kern_ops *kern_backend(const char *name, char *errbuf, size_t errlen)
{
	static const struct kern_ops *const built_in[] = {&kern_cpu_ops, &kern_sim_ops};
	for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
		if (strcmp(built_in[i]->name, name) == 0)
			return built_in[i];
	return kern_load(name, "kern_backend_ops", KERN_ABI, errbuf, errlen);
}
