/* children.h - the processes that a process has started. */
#ifndef TESTS_CHILDREN_H
#define TESTS_CHILDREN_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum { CHILDREN_MAX = 8 };

/* Processes whose parent is `parent`: (CHILDREN_MAX) */
static inline unsigned children(pid_t parent, pid_t *out)
{
	unsigned n = 0;
	DIR *d = opendir("/proc");
	struct dirent *de;
	while ((de = readdir(d))) {
		char path[300], line[512];
		int pid = atoi(de->d_name), ppid = 0;
		snprintf(path, sizeof path, "/proc/%d/stat", pid);
		FILE *f = pid > 0 ? fopen(path, "re") : NULL;
		if (!f)
			continue;
		if (fgets(line, sizeof line, f) && strrchr(line, ')') &&
		    sscanf(strrchr(line, ')') + 1, " %*c %d", &ppid) == 1 && ppid == (int)parent &&
		    n < CHILDREN_MAX)
			out[n++] = pid;
		fclose(f);
	}
	closedir(d);
	return n;
}

#endif
