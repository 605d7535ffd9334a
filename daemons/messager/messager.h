/* messager.h - pdmessagerd: one per host; shared by main.c (hooks, messages, the pump) and doors.c (hand-overs of workers). */
#ifndef MESSAGER_MESSAGER_H
#define MESSAGER_MESSAGER_H

#include "mover.h"
#include "svc/svc.h"
#include "util/list.h"

enum messager_stat {
	MS_BYTES, MS_SENT, MS_CANCELLED, MS_REVOKED, MS_REFUSED, MS_STALLED, MS_DEADLINE, MS_PEER_GONE, MS_MALFORMED, MS_COPY_FAILED, MS_PIECES, MS_COPIES,
	MS_HANDOVERS_REFUSED, MS_WORKERS, MS_TASKS, MS_COPY_SECONDS, MS_TAIL_SECONDS, MS_TRANSFER_SECONDS, MS_REACTION_SECONDS, MS_COUNT
};

struct messager {
	struct svc *svc;
	struct mover *mover;
	struct list doors;         /* connections of workers */
	uint32_t n_doors, workers_max;
	int listener;
	struct event *listen_ev;
	struct event *pump_ev;     /* zero timer: more to copy, after what else has come */
	struct event *scan_ev;     /* while tasks are open */
	uint64_t scan_us;
	int scanning;
	uint64_t bytes_counted;
	char refusal[384];         /* the last one that was logged, and when: a refused worker asks again 20 times a second */
	uint64_t refusal_us;
};

/* main.c: look at the rings and move the tasks; called after anything that may let one go on. */
void messager_pump(struct messager *m);

/* doors.c */
int doors_open(struct messager *m, const char *path, struct err *err);
void doors_close(struct messager *m);   /* workers are removed, if the mover still is */

#endif
