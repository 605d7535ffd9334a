/* trim.c - see trim.h. A free list says what could go back, but also what already did; so the process's size decides when it is worth while. */
#include "util/trim.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#define LARGE_BYTES (1 << 20)        /* own mappings from here on */
#define TOP_BYTES (8 << 20)          /* kept at the end of the heap */
#define WORTH_BYTES (16u << 20)

/* Resident, without files and shared memory; 0: unknown. */
static size_t own_bytes(void)
{
	char text[128] = "";
	unsigned long resident = 0, shared = 0;
	int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	if (n <= 0 || sscanf(text, "%*u %lu %lu", &resident, &shared) != 2 || resident < shared)
		return 0;
	return (resident - shared) * (size_t)sysconf(_SC_PAGESIZE);
}

void trim_setup(struct trim *t)
{
	mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);   /* and it stays there: by default the largest block freed so far raises it, to 32 MiB */
	mallopt(M_TRIM_THRESHOLD, TOP_BYTES);
	t->floor = t->last = own_bytes();
}

size_t trim_tick(struct trim *t)
{
	size_t now = own_bytes(), last = t->last;
	t->last = now;
	if (now < t->floor)
		t->floor = now;
	if (now < t->floor + WORTH_BYTES || now > last || mallinfo2().fordblks < WORTH_BYTES)
		return 0;
	malloc_trim(0);
	t->floor = t->last = own_bytes();
	return now > t->floor ? now - t->floor : 0;
}
