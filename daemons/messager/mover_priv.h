/* mover_priv.h - shared by mover.c (workers, rings, links) and task.c (the life of one task). */
#ifndef MESSAGER_MOVER_PRIV_H
#define MESSAGER_MOVER_PRIV_H

#include "mover.h"
#include "revoked.h"
#include "util/list.h"

#define LAYOUT_TEXT_MAX 96
/* a task without a believable deadline ends after this */
#define TASK_LIFE_MAX_US (3600ull * 1000000u)

/* What is known of one slot of a ring: which generation was looked at, its open task, or how it
 * failed. */
struct slot_note {
	int known; /* gen has been taken up */
	uint64_t gen;
	struct task *task;  /* NULL: closed */
	int failed, untold; /* it failed; and P could not be told yet */
	Pds__Fault fault;
	char *text;
	struct msg_head head;
};

struct mover_worker {
	struct list node;
	char name[RING_NAME_MAX];
	uint64_t epoch;
	struct kv_layout layout;
	char layout_text[LAYOUT_TEXT_MAX];
	struct kv_region region;
	struct ring *ring;       /* NULL: does not prefill */
	struct slot_note *notes; /* (slots of ring) */
	uint64_t progress_us;    /* one of its tasks was last seen to progress */
};

struct task {
	struct list node; /* in mover.tasks */
	struct mover *m;
	struct mover_worker *p, *d; /* d: NULL until its memory is needed and here */
	uint32_t slot;
	uint64_t gen;
	struct msg_head head; /* request, attempt, deadline (never 0) */
	struct lease_key lease;
	uint32_t first_token, tokens, blocks;
	uint32_t *src, *dst; /* (blocks) */
	uint64_t *dst_gen;   /* (blocks) of D's blocks, as D has said; from OPEN on */
	uint32_t *sent;      /* (layers) blocks delivered */
	uint32_t *seen;      /* (layers) tokens seen computed, at most tokens */
	enum task_state state;
	int was_sent;                /* an earlier messager marked it */
	int said;                    /* ASKED: LEASE_OPEN is out on the present link */
	uint32_t watched;            /* tokens seen in layer 0 before it is OPEN */
	uint64_t found_us, since_us; /* since: of the present state */
	uint64_t progress_us;        /* OPEN: it was last seen to progress, or to wait for its turn */
	uint64_t computed_us, unlinked_us; /* 0: not yet, not now */
	uint64_t bytes, copy_us, tail_us;
	uint32_t pieces, runs;
};

struct mover {
	struct mover_out out;
	struct mover_limits limits;
	struct list workers, tasks;
	uint32_t n_workers, n_tasks, n_untold, n_owed;
	struct revoked *revoked;
	uint64_t bytes, now_us; /* now: of the present call */
	size_t budget;          /* bytes left in this turn */
	int more;               /* the budget ended before the work did */
	struct task *cut;       /* the first task that it cut short */
	struct ring_task scratch;
};

/* mover.c */
int mover_is_linked(const struct mover *m, const char *name, uint64_t epoch);
int mover_send(const struct mover *m, const char *name, uint64_t epoch, enum msg_type type,
               const struct msg_head *head, const ProtobufCMessage *body);
void mover_lease_fill(Pds__Lease *out, const struct lease_key *k);
/* The task in p's ring that names the lease. */
struct task *mover_task_of_lease(struct mover *m, const struct mover_worker *p,
                                 const struct lease_key *k);
/* The slot's task, or what would be one, failed: P is told, now or later. */
void note_fail(struct mover *m, struct mover_worker *w, uint32_t slot, Pds__Fault fault,
               const char *text);

/* task.c */
/* Makes a task of m->scratch, or fails it. */
void task_found(struct mover *m, struct mover_worker *p, uint32_t slot, uint64_t gen,
                enum ring_state state);
/* As far as it goes. The task may be gone afterwards. */
void task_run(struct task *t);
/* Of one that is OPEN, when all have run and so all that P has computed is known: is it time to
 * give it up? The task may be gone afterwards. */
void task_waits(struct task *t);
void task_opened(struct task *t, const Pds__LeaseOpened *b);
void task_revoked(struct task *t);
void task_acked(struct task *t);
/* The link to D is up anew: what this state says is said again. */
void task_relinked(struct task *t);
void task_peer_gone(struct task *t, const char *who);
/* Closes without telling anybody. */
void task_drop(struct task *t, enum task_end end, const char *why);

#endif
