/* test_machine.c - what of a machine the process may use, on machines that are a folder: affinity,
 * hyperthreads, quotas and limits of control groups of both versions. */
#include "util/machine.h"
#include "tempdir.h"

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define CG "sys/fs/cgroup"

static char root[TEST_FOLDER_BYTES];

static void put(const char *path, const char *text)
{
	char full[512];
	snprintf(full, sizeof full, "%s/%s", root, path);
	for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
		*p = 0;
		mkdir(full, 0700);
	}
	FILE *f = fopen(full, "w");
	ck_assert_msg(f != NULL, "%s", full);
	fputs(text, f);
	fclose(f);
}

/* Processors 0 to n - 1, of which i and i + apart are one core; 0: each is a core. */
static void put_processors(unsigned n, unsigned apart)
{
	for (unsigned i = 0; i < n; i++) {
		char path[96], text[32];
		snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%u/topology/thread_siblings_list",
		         i);
		unsigned low = apart && i % (2 * apart) >= apart ? i - apart : i;
		if (!apart)
			snprintf(text, sizeof text, "%u\n", i);
		else if (apart == 1)
			snprintf(text, sizeof text, "%u-%u\n", low, low + 1);
		else
			snprintf(text, sizeof text, "%u,%u\n", low, low + apart);
		put(path, text);
	}
}

struct file {
	const char *path, *text;
};

static const struct {
	const char *allowed; /* NULL: no /proc/self/status */
	unsigned processors, apart;
	struct file files[6];
	unsigned want;
} machines[] = {
	/* affinity and cores */
	{"0-31", 32, 0, {{0}}, 32},
	{"0-95", 96, 0, {{0}}, 96},
	{"0-511", 512, 0, {{0}}, 512},
	{"3,5-6,64", 128, 0, {{0}}, 4},
	{"0-31", 32, 16, {{0}}, 16},
	{"0-31", 32, 1, {{0}}, 16},
	{"0-15", 32, 16, {{0}}, 16},
	{"16-31", 32, 16, {{0}}, 16},
	{"0,16", 32, 16, {{0}}, 1},
	{"0-3", 32, 1, {{0}}, 2},
	{"1,3,5", 32, 1, {{0}}, 3},
	{"0-7", 0, 0, {{0}}, 8}, /* no topology */
	{"", 4, 0, {{0}}, 1},
	{NULL, 4, 0, {{0}}, 1},
	/* --cpus=2 on 32 cores, seen from within the container and from outside */
	{"0-31", 32, 0, {{"proc/self/cgroup", "0::/\n"}, {CG "/cpu.max", "200000 100000\n"}}, 2},
	{"0-31",
     32,
     0,
     {{"proc/self/cgroup", "0::/docker/1\n"}, {CG "/docker/1/cpu.max", "200000 100000\n"}},
     2},
	/* the path is the host's, the files are the container's */
	{"0-31",
     32,
     0,
     {{"proc/self/cgroup", "0::/docker/1\n"}, {CG "/cpu.max", "200000 100000\n"}},
     2},
	{"0-31", 32, 16, {{"proc/self/cgroup", "0::/\n"}, {CG "/cpu.max", "2000000 100000\n"}}, 16},
	{"0-31", 32, 0, {{"proc/self/cgroup", "0::/\n"}, {CG "/cpu.max", "max 100000\n"}}, 32},
	{"0-31", 32, 0, {{"proc/self/cgroup", "0::/\n"}, {CG "/cpu.max", "390000 100000\n"}}, 3},
	{"0-31", 32, 0, {{"proc/self/cgroup", "0::/\n"}, {CG "/cpu.max", "50000 100000\n"}}, 1},
	{"0-31", 32, 0, {{"proc/self/cgroup", "0::/\n"}, {CG "/cpu.max", "200000 0\n"}}, 32},
	{"0-31", 32, 0, {{"proc/self/cgroup", "0::/\n"}, {CG "/cpu.max", "\n"}}, 32},
	/* the smallest along the path */
	{"0-31",
     32,
     0,
     {{"proc/self/cgroup", "0::/a/b/c\n"},
      {CG "/a/b/c/cpu.max", "max 100000\n"},
      {CG "/a/b/cpu.max", "300000 100000\n"},
      {CG "/a/cpu.max", "800000 100000\n"}},
     3},
	{"0-31",
     32,
     0,
     {{"proc/self/cgroup", "0::/a/b\n"},
      {CG "/a/b/cpu.max", "600000 100000\n"},
      {CG "/a/cpu.max", "100000 50000\n"},
      {CG "/b/cpu.max", "100000 100000\n"}},
     2},
	/* the first version, alone and beside the second */
	{"0-31",
     32,
     0,
     {{"proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/x\n0::/\n"},
      {CG "/cpu/x/cpu.cfs_quota_us", "400000\n"},
      {CG "/cpu/x/cpu.cfs_period_us", "100000\n"}},
     4},
	{"0-31",
     32,
     0,
     {{"proc/self/cgroup", "4:cpu:/x/y\n"},
      {CG "/cpu/x/y/cpu.cfs_quota_us", "-1\n"},
      {CG "/cpu/x/y/cpu.cfs_period_us", "100000\n"},
      {CG "/cpu/x/cpu.cfs_quota_us", "500000\n"},
      {CG "/cpu/x/cpu.cfs_period_us", "100000\n"}},
     5},
	{"0-31", 32, 0, {{"proc/self/cgroup", "4:cpuset:/x\nrubbish\n\n"}}, 32},
};

TEST_LOOP(threads_of_a_machine, 0, COUNT(machines))
{
	test_folder(root, "machine");
	char status[200];
	snprintf(status, sizeof status, "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\n",
	         machines[_i].allowed ? machines[_i].allowed : "");
	if (machines[_i].allowed)
		put("proc/self/status", status);
	put_processors(machines[_i].processors, machines[_i].apart);
	for (const struct file *f = machines[_i].files; f->path; f++)
		put(f->path, f->text);
	ck_assert_uint_eq(machine_threads(root), machines[_i].want);
}

#define MEMINFO                                                         \
	{                                                                   \
		"proc/meminfo", "MemTotal: 9 kB\nMemAvailable:      65536 kB\n" \
	}
#define MIB 1048576ull

static const struct {
	struct file files[8];
	uint64_t want;
} memories[] = {
	{{{0}}, UINT64_MAX},
	{{MEMINFO}, 64 * MIB},
	/* memory.max less memory.current, without the page cache that can be given back */
	{{MEMINFO, {"proc/self/cgroup", "0::/\n"}, {CG "/memory.max", "33554432\n"}}, 32 * MIB},
	{{MEMINFO,
      {"proc/self/cgroup", "0::/\n"},
      {CG "/memory.max", "33554432\n"},
      {CG "/memory.current", "25165824\n"}},
     8 * MIB},
	{{MEMINFO,
      {"proc/self/cgroup", "0::/\n"},
      {CG "/memory.max", "33554432\n"},
      {CG "/memory.current", "25165824\n"},
      {CG "/memory.stat", "anon 1\nactive_file 2\ninactive_file 4194304\nslab 9\n"}},
     12 * MIB},
	{{MEMINFO,
      {"proc/self/cgroup", "0::/\n"},
      {CG "/memory.max", "33554432\n"},
      {CG "/memory.current", "40000000\n"}},
     0},
	{{MEMINFO,
      {"proc/self/cgroup", "0::/\n"},
      {CG "/memory.max", "max\n"},
      {CG "/memory.current", "40000000\n"}},
     64 * MIB},
	/* a limit above what the machine has */
	{{MEMINFO,
      {"proc/self/cgroup", "0::/\n"},
      {CG "/memory.max", "1099511627776\n"},
      {CG "/memory.current", "0\n"}},
     64 * MIB},
	/* a group around the own one, which others fill as well */
	{{MEMINFO,
      {"proc/self/cgroup", "0::/pod/one\n"},
      {CG "/pod/one/memory.max", "33554432\n"},
      {CG "/pod/one/memory.current", "1048576\n"},
      {CG "/pod/memory.max", "50331648\n"},
      {CG "/pod/memory.current", "46137344\n"}},
     4 * MIB},
	{{MEMINFO,
      {"proc/self/cgroup", "4:memory:/x\n0::/\n"},
      {CG "/memory/x/memory.limit_in_bytes", "33554432\n"},
      {CG "/memory/x/memory.usage_in_bytes", "16777216\n"},
      {CG "/memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 1048576\n"},
      {CG "/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {CG "/memory/memory.usage_in_bytes", "99999999999\n"}},
     17 * MIB},
};

TEST_LOOP(memory_of_a_machine, 0, COUNT(memories))
{
	test_folder(root, "machine");
	for (const struct file *f = memories[_i].files; f->path; f++)
		put(f->path, f->text);
	ck_assert_uint_eq(machine_memory(root), memories[_i].want);
}

/* The real one has something, and no more than nproc says. */
TEST(this_machine)
{
	ck_assert_uint_ge(machine_threads(""), 1);
	ck_assert_uint_le(machine_threads(""), (unsigned)sysconf(_SC_NPROCESSORS_CONF));
	ck_assert_uint_gt(machine_memory(""), MIB);
	ck_assert_uint_lt(machine_memory(""), UINT64_MAX);
}
