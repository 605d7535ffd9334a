/* process.c - see process.h. The start time detects a PID that has been reused. */
#include "msg/process.h"
#include "util/err.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/* Field 22 of /proc/PID/stat; 0 if there is no such process. The name in field 2 may contain
 * anything, so fields are counted from its last ')'. */
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
	if (!p || !boot_id[0] || strcmp(p->boot_id, boot_id) != 0 ||
	    p->pid_namespace != pid_namespace || p->pid == 0)
		return -1;
	int fd = (int)syscall(SYS_pidfd_open, (pid_t)p->pid, 0);
	if (start_ticks((long)p->pid) == p->start_ticks)
		return fd;
	if (fd >= 0)
		close(fd);
	*ret_dead = 1;
	return -1;
}

/* --- the process at the other end ---------------------------------------- */

/* libzmq 4.x reports an ipc peer's SO_PEERCRED as "localhost:UID:GID:PID"; for TCP only the
 * address. */
void process_origin_parse(const char *address, const char *key, struct process_origin *ret)
{
	unsigned long v[3];
	*ret = (struct process_origin){0};
	snprintf(ret->key, sizeof ret->key, "%s", key ? key : "");
	const char *p = address && !ret->key[0] ? strchr(address, ':') : NULL;
	for (int i = 0; i < 3; i++) {
		char *end;
		if (!p || *p != ':')
			return;
		v[i] = strtoul(p + 1, &end, 10);
		if (end == p + 1 || v[i] > UINT32_MAX)
			return;
		p = end;
	}
	if (*p)
		return;
	*ret = (struct process_origin){
		.is_local = 1, .uid = (uint32_t)v[0], .gid = (uint32_t)v[1], .pid = (uint32_t)v[2]};
}

static int is_our_user(const struct process_origin *o, char *why, size_t why_len)
{
	if (o->uid == geteuid() || o->uid == 0)
		return 1;
	snprintf(why, why_len, "process %u runs as user %u; allowed are user %u and root", o->pid,
	         o->uid, (unsigned)geteuid());
	return 0;
}

int process_origin_of(int sock, struct process_origin *ret, char *why, size_t why_len)
{
	struct ucred u;
	socklen_t n = sizeof u;
	*ret = (struct process_origin){0};
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &u, &n) < 0) {
		snprintf(why, why_len, "the process at the other end is unknown: %s", strerror(errno));
		return ERR_INVALID;
	}
	*ret = (struct process_origin){
		.is_local = 1, .uid = u.uid, .gid = u.gid, .pid = (uint32_t)u.pid};
	return is_our_user(ret, why, why_len) ? 0 : ERR_INVALID;
}

int process_origin_same(const struct process_origin *a, const struct process_origin *b)
{
	return a->is_local == b->is_local && a->uid == b->uid && a->gid == b->gid && a->pid == b->pid &&
	       strcmp(a->key, b->key) == 0;
}

int process_origin_check(const struct process_origin *o, const Pds__Process *p, char *why,
                         size_t why_len)
{
	pthread_once(&once, read_host);
	if (!o->is_local)
		snprintf(why, why_len, "the connection is not local, and has no key");
	else if (!is_our_user(o, why, why_len))
		return ERR_INVALID;
	else if (!p)
		snprintf(why, why_len, "the peer does not say which process it is");
	else if (strcmp(p->boot_id, boot_id) != 0)
		snprintf(why, why_len,
		         "the peer says that it runs on another host, but the connection is local");
	else if (p->pid_namespace == pid_namespace && p->pid != o->pid)
		snprintf(why, why_len,
		         "the peer says that it is process %u, but the connection is from process %u",
		         p->pid, o->pid);
	else
		return 0;
	return ERR_INVALID;
}

/* Searches the field Groups of /proc/PID/status, the supplementary groups. */
static int has_other_group(uint32_t pid, uint32_t gid)
{
	char path[64], line[4096];
	int found = 0;
	snprintf(path, sizeof path, "/proc/%u/status", pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return 0;
	while (!found && fgets(line, sizeof line, f)) {
		if (strncmp(line, "Groups:", 7) != 0)
			continue;
		char *at = line + 7, *end;
		for (unsigned long g = strtoul(at, &end, 10); end != at && !found;
		     g = strtoul(at, &end, 10)) {
			found = g == gid;
			at = end;
		}
	}
	fclose(f);
	return found;
}

int process_origin_in_group(const struct process_origin *o, uint32_t gid)
{
	return o->is_local && (o->gid == gid || (o->pid && has_other_group(o->pid, gid)));
}
