/* trim.c - see trim.h. malloc's free memory may already be returned to the system, and resident
 * memory may all be in use; so it trims only if one of the two has grown since the last trim. */
#include "util/trim.h"
#include "util/least.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#define LARGE_BYTES (1 << 20)   /* blocks of this size and more get their own mapping */
#define TOP_BYTES (8 << 20)     /* free memory that malloc keeps at the end of the heap */
#define WORTH_BYTES (16u << 20) /* less than this is not worth a trim */
#define CHANGE_BYTES (1u << 20) /* a change of resident memory that sets `changed` */

/* Resident memory without files and shared memory; 0: unknown. */
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
	/* fixes the threshold: by default malloc raises it when a large block is freed, up to 32 MiB */
	mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
	mallopt(M_TRIM_THRESHOLD, TOP_BYTES);
	t->last = t->resident = own_bytes();
	t->kept = 0;
	t->changed = 1;
}

size_t trim_tick(struct trim *t)
{
	size_t now = own_bytes(), last = t->last;
	t->last = now;
	t->changed = (now > last ? now - last : last - now) >= CHANGE_BYTES;
	t->resident = least(t->resident, now);
	if (now < WORTH_BYTES || now > last)
		return 0;
	size_t kept = mallinfo2().fordblks;
	t->kept = least(t->kept, kept);
	if (kept < WORTH_BYTES || (now - t->resident < WORTH_BYTES && kept - t->kept < WORTH_BYTES))
		return 0;
	malloc_trim(0);
	t->last = t->resident = own_bytes();
	t->kept = mallinfo2().fordblks;
	return now > t->resident ? now - t->resident : 0;
}
