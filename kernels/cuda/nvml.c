/* nvml.c - temperature, power, clocks and memory errors from the driver's management library, if it
 * is installed. Unavailable values stay 0. */
#include "kernels/cuda/backend.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Values of nvml.h: NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM,
 * NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC. */
enum { TEMPERATURE_GPU = 0, CLOCK_SM = 1, CLOCK_MEM = 2, UNCORRECTED = 1, SINCE_LOADED = 0 };

struct nvml {
	void *library, *device;
	int begun; /* initialised: needs shutdown */
	int (*shutdown)(void);
	int (*temperature)(void *device, int sensor, unsigned *ret);
	int (*power)(void *device, unsigned *ret_mw);
	int (*clock)(void *device, int which, unsigned *ret_mhz);
	int (*errors)(void *device, int kind, int since, unsigned long long *ret);
};

static void find(void *library, const char *name, void *slot)
{
	void *fn = dlsym(library, name);
	memcpy(slot, &fn, sizeof fn);
}

struct nvml *nvml_open(const char *bus)
{
	int (*init)(void), (*by_bus)(const char *bus, void **ret);
	struct nvml *n = calloc(1, sizeof *n);
	if (!n || !(n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL))) {
		free(n);
		return NULL;
	}
	find(n->library, "nvmlInit_v2", &init);
	find(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &by_bus);
	find(n->library, "nvmlShutdown", &n->shutdown);
	find(n->library, "nvmlDeviceGetTemperature", &n->temperature);
	find(n->library, "nvmlDeviceGetPowerUsage", &n->power);
	find(n->library, "nvmlDeviceGetClockInfo", &n->clock);
	find(n->library, "nvmlDeviceGetTotalEccErrors", &n->errors);
	n->begun = init && by_bus && n->shutdown && !init();
	if (!n->begun || by_bus(bus, &n->device))
		nvml_close(&n);
	return n;
}

void nvml_close(struct nvml **np)
{
	struct nvml *n = *np;
	if (!n)
		return;
	if (n->begun)
		n->shutdown();
	dlclose(n->library);
	free(n);
	*np = NULL;
}

void nvml_read(const struct nvml *n, struct kern_info *ret)
{
	unsigned v;
	unsigned long long errors;
	if (!n)
		return;
	if (n->temperature && !n->temperature(n->device, TEMPERATURE_GPU, &v))
		ret->temperature_c = v;
	if (n->power && !n->power(n->device, &v))
		ret->power_w = v / 1000;
	if (n->clock && !n->clock(n->device, CLOCK_SM, &v))
		ret->clock_mhz = v;
	if (n->clock && !n->clock(n->device, CLOCK_MEM, &v))
		ret->memory_clock_mhz = v;
	if (n->errors && !n->errors(n->device, UNCORRECTED, SINCE_LOADED, &errors))
		ret->memory_errors = errors;
}
