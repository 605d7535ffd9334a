/* role.h - the role of this worker and its live switch.
 *
 *   RUNS   --pdctl role, another stage--> DRAINS
 *   DRAINS --role_switch_timeout_ms--> DRAINS: what still runs fails with retry
 *   DRAINS --idle--> RUNS: this stage stopped, the other started, routers told (WORKER_UPDATE)
 *
 * Engine, pool, prefix index, ring, links and the messager's mapping stay as they are. Between
 * decode and mixed, which are one stage, nothing has to end: the switch is done at once. A fence
 * (a messager that may still write) is waited for without a bound, as everywhere. On the loop's
 * thread. */
#ifndef WORKER_ROLE_H
#define WORKER_ROLE_H

#include "msg/chan.h"
#include "msg/role.h"
#include "util/buf.h"

struct worker;

struct role_switch {
	int active, aborted; /* aborted: the time was up, what ran was failed */
	enum worker_role next;
	uint64_t began_us, until_us; /* until_us: so long what runs may take to end */
	int untold;                  /* a router has still to hear of the last switch */
	unsigned count;              /* switches so far */
	struct event *look;
	unsigned char *peers; /* the last PEERS, packed: the next stage is told, too */
	size_t peers_len;
};

/* Before the stage is started. */
void role_init(struct worker *w, enum worker_role r);
/* Something ended that a switch may wait for: whether the stage is idle now is looked at in the
 * loop's next round. */
void role_look(struct worker *w);
/* The process is told to end: no switch any more. */
void role_give_up(struct worker *w);
void role_fini(struct worker *w);
/* `role`, `role NAME`: answers at once; "switching" names the role to come, or is null when it
 * is done. Asked again for the same role: the same answer. */
int role_command(struct worker *w, char *const *args, size_t n, struct buf *out, struct err *err);
/* JSON members, without a comma at the beginning */
void role_json(const struct worker *w, struct buf *out);
/* The link to a router has come up: its HELLO may have been sent before a switch that is done
 * now. */
void role_router_up(struct worker *w);
void role_keep_peers(struct worker *w, const Pds__Peers *m);
/* The last ones that a router named; NULL: none yet. The caller frees them
 * (pds__peers__free_unpacked). */
Pds__Peers *role_peers(const struct worker *w);
/* A message that the present stage has no use for: what its sender waits for is answered as of
 * one that holds nothing of it. */
void role_stray(struct worker *w, struct peer *p, const struct msg_head *h,
                const ProtobufCMessage *body);

#endif
