/* process.c - see process.h. The start time guards against a PID that was used again. */
#include "msg/process.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char boot_id[40];
static uint64_t pid_namespace;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_host(void)
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	if (f) {
		if (!fgets(boot_id, sizeof boot_id, f))
			boot_id[0] = 0;
		fclose(f);
	}
	boot_id[strcspn(boot_id, "\n")] = 0;
	struct stat st;
	if (stat("/proc/self/ns/pid", &st) == 0)
		pid_namespace = st.st_ino;
}

/* Field 22 of /proc/PID/stat; 0 if there is no such process. The name in field 2 may hold anything, so count from its last ')'. */
static uint64_t start_ticks(long pid)
{
	char path[64], line[1024];
	snprintf(path, sizeof path, "/proc/%ld/stat", pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return 0;
	size_t n = fread(line, 1, sizeof line - 1, f);
	fclose(f);
	line[n] = 0;
	char *p = strrchr(line, ')');
	for (int field = 2; p && field < 22; field++)
		if ((p = strchr(p + 1, ' ')) == NULL)
			return 0;
	return p ? strtoull(p + 1, NULL, 10) : 0;
}

void process_self(Pds__Process *p)
{
	pthread_once(&once, read_host);
	pds__process__init(p);
	p->boot_id = boot_id;
	p->pid_namespace = pid_namespace;
	p->pid = (uint32_t)getpid();
	p->start_ticks = start_ticks(getpid());
}

int process_watch(const Pds__Process *p, int *ret_dead)
{
	pthread_once(&once, read_host);
	*ret_dead = 0;
	if (!p || !boot_id[0] || strcmp(p->boot_id, boot_id) != 0 || p->pid_namespace != pid_namespace || p->pid == 0)
		return -1;
	int fd = (int)syscall(SYS_pidfd_open, (pid_t)p->pid, 0);
	if (start_ticks((long)p->pid) == p->start_ticks)
		return fd;
	if (fd >= 0)
		close(fd);
	*ret_dead = 1;
	return -1;
}
