/* flush_rig.h - flushes a tier and waits until that is done. */
#ifndef TESTS_FLUSH_RIG_H
#define TESTS_FLUSH_RIG_H

#include "daemons/storage/tier.h"

#include "util/clock.h"

#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define FLUSH_WAIT_US 60000000u

struct flush_rig {
	struct tier_flush f; /* first */
	atomic_int done;
};

static inline void flush_rig_done(struct tier_flush *f)
{
	ck_assert_int_eq(atomic_fetch_add(&((struct flush_rig *)f)->done, 1), 0);
}

static inline struct flush_rig flush_rig(void)
{
	struct flush_rig r = {.f = {.done = flush_rig_done}};
	return r;
}

static inline void flush_rig_wait(struct flush_rig *r)
{
	for (uint64_t until = clock_us() + FLUSH_WAIT_US; !atomic_load(&r->done); usleep(100))
		ck_assert_msg(clock_us() < until, "a flush has not ended");
}

/* Blocks dropped; ret_code may be NULL: it must go well. */
static inline uint64_t tier_flushed(struct tier *t, int *ret_code)
{
	struct flush_rig r = flush_rig();
	t->ops->flush(t, &r.f);
	flush_rig_wait(&r);
	if (ret_code)
		*ret_code = r.f.code;
	else
		ck_assert_msg(r.f.code == 0, "%s", r.f.text);
	return r.f.blocks;
}

#endif
