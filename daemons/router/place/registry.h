/* registry.h - the workers that this router knows: who is up, what it is, how much it has to do.
 * One thread.
 *
 * A record outlives its worker's end for a while (WORKER_FORGET_US, WORKERS_MAX), so that an
 * operator sees who is missing. Sequences are linked to a worker only while it is up; the
 * registry never looks into them. */
#ifndef ROUTER_REGISTRY_H
#define ROUTER_REGISTRY_H

#include "breaker.h"
#include "kvindex.h"
#include "msg/role.h"
#include "msg/types.h"
#include "policy.h"
#include "prefixes.h"
#include "util/buf.h"
#include "util/list.h"

#include <stdint.h>

#define WORKER_NAME_MAX 64
#define WORKER_FORGET_US 600000000u
/* records, of workers that are up and that were; one more takes the place of the one that is
 * down longest */
#define WORKERS_MAX 2048u
#define RATE_US 10000000u

struct peer;

struct worker_record {
	struct list node; /* registry.workers */
	char name[WORKER_NAME_MAX];
	uint64_t epoch;
	enum worker_role role;
	struct peer *peer; /* NULL while down */
	char *endpoint, *model, *fingerprint, *numerics, *layout;
	uint32_t blocks, block_tokens, max_sequences, context_tokens, vocab;
	uint64_t name_key; /* policy_key(name) */
	/* what its prefix hashes begin with; KV of two workers is alike if prefix.hash is */
	struct prefix_root prefix;
	struct kv_index *index; /* NULL while down, or when it told no block size */
	struct breaker breaker;
	Pds__Heartbeat beat; /* the last one; numbers only */
	int has_heartbeat;   /* a heartbeat has arrived since the link came up */
	uint64_t up_us, down_us, beat_us;
	uint64_t life_us;   /* when this life was first seen */
	int ended_in_order; /* down: it said goodbye */
	uint64_t up_no;     /* registry.ups when its link came up last */
	/* tokens/s while it has work, measured over about RATE_US; 0: not known yet */
	double prompt_rate, output_rate;
	uint64_t progress_us;          /* when beat.progress last grew, or nothing was running */
	struct list prefills, decodes; /* sequences whose present attempt is here (request.c) */
	/* of the sequences here: uncached prompt tokens until they are computed, the whole sequence
	 * where it decodes */
	uint64_t tokens_in_flight;
	/* of them: uncached prompt tokens that are not computed yet, and stored ones by what reading
	 * them weighs */
	uint64_t backlog_tokens;
	/* of sequences that were sent to decode here since the last heartbeat */
	uint64_t promised_blocks;
	uint32_t requests;        /* sequences in prefills and decodes */
	uint64_t other_sequences; /* not ours, by the last heartbeat */
	uint64_t other_tokens;    /* that they hold there */
	uint64_t placed_seq;      /* when it was last chosen, for ties */
};

struct registry {
	struct list workers;
	unsigned n_up, n_workers;
	uint64_t ups; /* links that came up so far, of whomever */
	uint64_t place_seq;
	uint64_t stuck_us; /* busy without progress for this long: chosen last */
	struct policy_opts policy;
	struct breaker_opts breaker;
	size_t index_entries_max;  /* of each worker */
	uint64_t draw;             /* state of the policies' generator */
	struct prefix_roots roots; /* of the workers that are up */
	struct option *options;    /* (n_workers): room for place.c */
	uint64_t placed[PLACE_STAGES][POLICIES][PLACE_REASONS];
	uint64_t events, events_bad, index_dropped, breaker_opened;
	double answer_tokens; /* mean length of late answers; 0: none yet */
};

void registry_init(struct registry *g, uint64_t stuck_us);
void registry_fini(struct registry *g);
/* A worker may come in: 0, else *reason is filled with both values of what does not match.
 * vocab_min: 0 when unknown. */
int registry_admit(const struct registry *g, const char *name, const Pds__WorkerInfo *w,
                   uint32_t vocab_min, char *reason, size_t reason_len);
struct worker_record *registry_up(struct registry *g, struct peer *peer, const char *name,
                                  uint64_t epoch, const Pds__WorkerInfo *w, uint64_t now_us);
/* Marks it down: nothing is sent to it or placed on it any more. Its sequences are the caller's
 * to move, next. */
void registry_down(struct registry *g, struct worker_record *w, uint64_t now_us);
/* It has said goodbye: its next life is none after a crash. */
void registry_ended_in_order(struct worker_record *w);
/* What it said of itself has changed. 0, or the sentence why that cannot be: nothing has changed
 * then. */
int registry_update(struct registry *g, struct worker_record *w, const Pds__WorkerInfo *info,
                    char *reason, size_t reason_len);
void registry_kv_events(struct registry *g, struct worker_record *w, const Pds__KvEvents *m);
/* An attempt ended well here, or by this worker's own failure. */
void registry_outcome(struct registry *g, struct worker_record *w, int good, uint64_t now_us);
void registry_answered(struct registry *g, uint32_t tokens);
/* Seconds until the workers have computed what they were sent, and one more answer, at the rates
 * that they were measured at: from min_s to max_s. */
uint32_t registry_retry_after_s(const struct registry *g, uint32_t min_s, uint32_t max_s);
void registry_set_index_max(struct registry *g, size_t entries);
size_t registry_index_entries(const struct registry *g, unsigned tier); /* over all workers */
/* blocks that it, or its storage for it, is known to hold */
size_t worker_known(const struct worker_record *w, unsigned tier);
void registry_beat(struct worker_record *w, const Pds__Heartbeat *b, uint64_t now_us);
/* records of workers that are long gone */
void registry_forget(struct registry *g, uint64_t now_us);
/* up or down, or NULL */
struct worker_record *registry_find(const struct registry *g, const char *name);
int worker_is_up(const struct worker_record *w);
int worker_is_stuck(const struct registry *g, const struct worker_record *w, uint64_t now_us);
/* Longest sequence that some worker takes; 0 when none is up. */
uint32_t registry_context(const struct registry *g);
/* smallest of those that are up; 0 when none is */
uint32_t registry_vocab(const struct registry *g);
void registry_json(const struct registry *g, uint64_t now_us, struct buf *out); /* an array */

#endif
