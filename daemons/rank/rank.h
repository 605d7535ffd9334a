/* rank.h - pdrank as a daemon: a process that can be a stage of a worker's pipeline on another
 * host. It connects to the worker that its configuration names; the link itself is the offer. When
 * the worker takes it, it starts a process (the same program) that connects to the worker, opens
 * the stage's engine and follows the worker's orders; when that process has ended, for whatever
 * reason, it offers itself again. So nothing of a stage outlives its group.
 *
 *   OFFERED ──PIPELINE_TAKE──▶ TAKEN ──the process has ended──▶ PAUSED ──▶ OFFERED
 *
 * A link is one offer: to offer itself again the rank restarts the link, as the worker does when it
 * starts anew. What lives and ends with the group is the connection of the stage's process. */
#ifndef RANK_RANK_H
#define RANK_RANK_H

#include "svc/svc.h"

/* Returns the exit status. */
int rank_daemon(int argc, char **argv);

#endif
