/* slice.c - see slice.h. A request that the kernel refuses changes nothing: it is a matter of
 * latency only. */
#include "util/slice.h"

#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>

static void set(unsigned us)
{
	struct sched_attr a;
	/* nice value and policy stay as they are */
	if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0)
		return;
	a.sched_runtime = us * 1000ull;
	syscall(SYS_sched_setattr, 0, &a, 0);
}

void slice_short(void)
{
	set(SLICE_SHORT_US);
}

void slice_default(void)
{
	set(0);
}
