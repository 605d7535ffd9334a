/* nvml.c - temperature, power, clocks and memory errors from the driver's management library, if it
 * is installed; it stays loaded. What is unavailable or fails stays 0. */
#include "kernels/cuda/backend.h"

/* Values of nvml.h: NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM,
 * NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC. */
enum { TEMPERATURE_GPU = 0, CLOCK_SM = 1, CLOCK_MEM = 2, UNCORRECTED = 1, SINCE_LOADED = 0 };

static struct {
	int (*init)(void);
	int (*by_bus)(const char *bus, void **ret);
	int (*temperature)(void *device, int sensor, unsigned *ret);
	int (*power)(void *device, unsigned *ret_mw);
	int (*clock)(void *device, int which, unsigned *ret_mhz);
	int (*errors)(void *device, int kind, int since, unsigned long long *ret);
	int found; /* 1: all functions, and the library works */
} api;

static void api_look(void)
{
	const struct cuda_symbol all[] = {
		{"nvmlInit_v2", &api.init},
		{"nvmlDeviceGetHandleByPciBusId_v2", &api.by_bus},
		{"nvmlDeviceGetTemperature", &api.temperature},
		{"nvmlDeviceGetPowerUsage", &api.power},
		{"nvmlDeviceGetClockInfo", &api.clock},
		{"nvmlDeviceGetTotalEccErrors", &api.errors},
	};
	char why[200];
	api.found = cuda_library("libnvidia-ml.so.1", all, sizeof all / sizeof *all, why, sizeof why) &&
	            !api.init();
}

void *nvml_find(const char *bus)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	void *device;
	pthread_once(&once, api_look);
	return api.found && !api.by_bus(bus, &device) ? device : NULL;
}

void nvml_read(void *device, struct kern_info *ret)
{
	unsigned v;
	unsigned long long errors;
	if (!device)
		return;
	if (!api.temperature(device, TEMPERATURE_GPU, &v))
		ret->temperature_c = v;
	if (!api.power(device, &v))
		ret->power_w = v / 1000;
	if (!api.clock(device, CLOCK_SM, &v))
		ret->clock_mhz = v;
	if (!api.clock(device, CLOCK_MEM, &v))
		ret->memory_clock_mhz = v;
	if (!api.errors(device, UNCORRECTED, SINCE_LOADED, &errors))
		ret->memory_errors = errors;
}
