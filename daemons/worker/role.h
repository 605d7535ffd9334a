/* role.h - the role of this worker and its live switch.
 *
 *   RUNS   --pdctl role, another stage--> DRAINS
 *   DRAINS --role_switch_timeout_ms--> DRAINS: what still runs fails with retry
 *   DRAINS --idle--> RUNS: this stage stopped, the other started, routers told (WORKER_UPDATE)
 *
 * Engine, pool, prefix index, ring, links and the messager's mapping stay. Decode and mixed are one
 * stage: a switch between them is immediate. A fence (a messager may still write) is waited for
 * without a time limit, as everywhere. On the loop's thread. */
#ifndef WORKER_ROLE_H
#define WORKER_ROLE_H

#include "msg/chan.h"
#include "msg/role.h"
#include "svc/svc.h"

struct worker;

struct role_switch {
	int active, aborted; /* aborted: timed out, and what was running was failed */
	enum worker_role next;
	uint64_t began_us, until_us; /* until_us: what runs then is failed with retry */
	struct event *look;
};

/* Call before the stage is started. */
void role_init(struct worker *w, enum worker_role r);
/* Something that a switch may wait for has ended: the loop's next round checks whether the stage is
 * idle. */
void role_look(struct worker *w);
/* Tells the stage of all workers that routers have named. */
void role_tell_peers(struct worker *w);
/* The process was told to end: gives up a switch that is under way. */
void role_give_up(struct worker *w);
void role_fini(struct worker *w);
/* pdctl's `role` and `role NAME`: answers at once. "switching" is the next role, or null when no
 * switch is under way. Asking again for the same role gives the same answer. */
int role_command(struct worker *w, char *const *args, size_t n, struct buf *out, struct err *err);
/* Appends JSON members, without a leading comma. */
void role_json(const struct worker *w, struct buf *out);
/* Handle messages that the present stage does not: a sender that waits for an answer gets the one
 * that a worker without the job or lease would give. */
svc_msg_fn role_stray, role_stray_reserve, role_stray_lease_open, role_stray_kv_ready,
	role_stray_first_token;

#endif
