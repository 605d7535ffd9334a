/* machine.c - see machine.h. What cannot be read limits nothing: the files differ between kernels
 * and containers. Control groups of both versions: the second one's files, and where a controller
 * is still mounted by itself, the first one's. */
#include "util/machine.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CPUS_MAX = 4096, LIST_BYTES = 16384, PATH_BYTES = 1024 };

/* Opens the file of a folder below root; NULL: there is none. */
static FILE *file_open(const char *root, const char *folder, const char *name)
{
	char path[2 * PATH_BYTES];
	int n = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
	return n < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* The number behind `key` in the first line that starts with it; UINT64_MAX: there is none, or it
 * is no number ("max", -1). */
static uint64_t number_read(const char *root, const char *folder, const char *name, const char *key)
{
	char line[256];
	uint64_t v = UINT64_MAX;
	FILE *f = file_open(root, folder, name);
	while (f && fgets(line, sizeof line, f)) {
		if (strncmp(line, key, strlen(key)) != 0)
			continue;
		const char *at = line + strlen(key) + strspn(line + strlen(key), " \t");
		if (*at >= '0' && *at <= '9')
			v = strtoull(at, NULL, 10);
		break;
	}
	if (f)
		fclose(f);
	return v;
}

/* --- control groups ------------------------------------------------------ */

struct cgroup {
	const char *root, *folder; /* /sys/fs/cgroup/... */
	bool v1;
};

/* Calls `each` for every control group around the process that the controller may limit, from its
 * own outwards. In a container the outer ones may be missing, and the own one be the root. */
static void groups_walk(const char *root, const char *controller,
                        void (*each)(const struct cgroup *g, void *arg), void *arg)
{
	char line[PATH_BYTES], folder[PATH_BYTES + 64];
	FILE *f = file_open(root, "/proc/self", "cgroup");
	while (f && fgets(line, sizeof line, f)) {
		/* "NUMBER:CONTROLLERS:PATH", of the second version "0::PATH" */
		char *names = strchr(line, ':'), *path = names ? strchr(++names, ':') : NULL;
		if (!path)
			continue;
		*path++ = 0;
		path[strcspn(path, "\n")] = 0;
		bool v1 = *names, mine = !v1;
		for (char *save, *n = strtok_r(names, ",", &save); n; n = strtok_r(NULL, ",", &save))
			mine |= strcmp(n, controller) == 0;
		if (!mine)
			continue;
		snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s", v1 ? "/" : "", v1 ? controller : "");
		size_t top = strlen(folder);
		snprintf(folder + top, sizeof folder - top, "%s", strcmp(path, "/") ? path : "");
		for (;;) {
			each(&(struct cgroup){root, folder, v1}, arg);
			if (strlen(folder) <= top)
				break;
			*strrchr(folder, '/') = 0;
		}
	}
	if (f)
		fclose(f);
}

/* --- processors ---------------------------------------------------------- */

struct cpus {
	bool has[CPUS_MAX];
};

/* "0-3,8" */
static void cpus_parse(const char *list, struct cpus *ret)
{
	*ret = (struct cpus){0};
	while (*list >= '0' && *list <= '9') {
		char *end;
		unsigned long from = strtoul(list, &end, 10), to = from;
		if (*end == '-')
			to = strtoul(end + 1, &end, 10);
		for (unsigned long i = from; i <= to && i < CPUS_MAX; i++)
			ret->has[i] = true;
		list = end + (*end == ',');
	}
}

/* The list behind `key`; false: there is none. */
static bool cpus_read(const char *root, const char *folder, const char *name, const char *key,
                      struct cpus *ret)
{
	char line[LIST_BYTES];
	bool found = false;
	FILE *f = file_open(root, folder, name);
	while (f && !found && fgets(line, sizeof line, f))
		found = strncmp(line, key, strlen(key)) == 0;
	if (found)
		cpus_parse(line + strlen(key) + strspn(line + strlen(key), " \t"), ret);
	if (f)
		fclose(f);
	return found;
}

static void quota_of(const struct cgroup *g, void *least)
{
	uint64_t quota, period, *threads = least;
	if (g->v1) {
		quota = number_read(g->root, g->folder, "cpu.cfs_quota_us", "");
		period = number_read(g->root, g->folder, "cpu.cfs_period_us", "");
	} else { /* "QUOTA PERIOD" */
		FILE *f = file_open(g->root, g->folder, "cpu.max");
		if (!f || fscanf(f, "%lu %lu", &quota, &period) != 2)
			quota = period = UINT64_MAX;
		if (f)
			fclose(f);
	}
	if (quota != UINT64_MAX && period != UINT64_MAX && period && quota / period < *threads)
		*threads = quota / period;
}

unsigned machine_threads(const char *root)
{
	struct cpus mine, siblings;
	uint64_t cores = 0, paid = UINT64_MAX;
	if (!cpus_read(root, "/proc/self", "status", "Cpus_allowed_list:", &mine))
		return 1;
	for (unsigned cpu = 0; cpu < CPUS_MAX; cpu++) {
		char folder[96];
		unsigned first = 0;
		if (!mine.has[cpu])
			continue;
		snprintf(folder, sizeof folder, "/sys/devices/system/cpu/cpu%u/topology", cpu);
		if (!cpus_read(root, folder, "thread_siblings_list", "", &siblings))
			siblings = (struct cpus){0};
		siblings.has[cpu] = true;
		while (!siblings.has[first] || !mine.has[first])
			first++;
		cores += first == cpu; /* its core counts by the first of its processors that we may use */
	}
	groups_walk(root, "cpu", quota_of, &paid);
	cores = cores < paid ? cores : paid;
	return cores ? (unsigned)cores : 1;
}

/* --- memory -------------------------------------------------------------- */

static void left_of(const struct cgroup *g, void *least)
{
	uint64_t *left = least;
	uint64_t max = number_read(g->root, g->folder, g->v1 ? "memory.limit_in_bytes" : "memory.max",
	                           ""),
			 used = number_read(g->root, g->folder,
	                            g->v1 ? "memory.usage_in_bytes" : "memory.current", ""),
			 cache = number_read(g->root, g->folder, "memory.stat",
	                             g->v1 ? "total_inactive_file " : "inactive_file ");
	if (max == UINT64_MAX)
		return;
	used = used == UINT64_MAX ? 0 : used;
	used -= cache == UINT64_MAX ? 0 : cache < used ? cache : used;
	uint64_t have = max > used ? max - used : 0;
	*left = have < *left ? have : *left;
}

uint64_t machine_memory(const char *root)
{
	uint64_t kib = number_read(root, "/proc", "meminfo", "MemAvailable:");
	uint64_t left = kib == UINT64_MAX ? kib : kib * 1024;
	groups_walk(root, "memory", left_of, &left);
	return left;
}
