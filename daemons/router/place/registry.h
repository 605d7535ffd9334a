/* registry.h - the workers that this router knows: which are up, what they are, and their load. One
 * thread.
 *
 * A record outlives its worker for a while (WORKER_FORGET_US, WORKERS_MAX), so that an operator
 * sees which one is missing. Attempts are linked to a worker only while it is up; the registry
 * never looks into them. */
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
/* records of workers, up or down; a further one replaces the one that is down longest */
#define WORKERS_MAX 2048u
/* limit on the attempts at a worker that have not started, however short they are; far fewer than
 * it holds (max_jobs) */
#define WORKER_STARTING_MAX 256u
/* prompt_rate and output_rate are averages over about this time */
#define RATE_US 10000000u

struct peer;

struct worker_record {
	struct list node; /* registry.workers */
	char name[WORKER_NAME_MAX];
	uint64_t epoch;
	enum worker_role role;
	struct peer *peer; /* NULL while down */
	char *endpoint, *model, *fingerprint, *numerics, *layout;
	char *site; /* workers of one site can hand KV over to each other */
	/* where other hosts reach it and its messager, NAME@tcp://HOST:PORT; "": they cannot */
	char *remote, *messager;
	uint32_t blocks, block_tokens, max_sequences, context_tokens, vocab;
	uint32_t step_tokens;     /* largest number that one step computes; 0: unknown */
	uint32_t handover_tokens; /* longest sequence that it hands over or takes over; 0: any */
	uint32_t hidden;          /* elements of an embedding; 0: it makes none */
	uint64_t name_key;        /* policy_key(name) */
	/* root of its prefix hashes; two workers can use each other's KV if prefix.hash is equal */
	struct prefix_root prefix;
	struct kv_index *index; /* NULL while down, or before its first KV_EVENTS */
	struct breaker breaker;
	Pds__Heartbeat beat; /* the last one; only its numbers */
	int has_heartbeat;   /* a heartbeat has arrived since the link came up */
	uint64_t up_us, down_us, beat_us;
	uint64_t life_us;   /* when a link of its present epoch first came up */
	int ended_in_order; /* down: it has said goodbye */
	int drained;        /* pdctl drain: it gets no new attempts */
	uint64_t up_no;     /* registry.ups when its link came up last */
	/* tokens/s while it has work; 0: not known yet */
	double prompt_rate, output_rate;
	uint64_t progress_us;          /* when beat.progress last grew, or nothing was running */
	struct list prefills, decodes; /* attempts that run here: attempt_try.at_prefill, .at_decode */
	/* of attempts here: uncached prompt tokens until they are computed, and all tokens of those
	 * that decode here */
	uint64_t tokens_in_flight;
	/* the part of tokens_in_flight that is not computed yet; tokens in storage count by the cost of
	 * reading them */
	uint64_t backlog_tokens;
	/* needed by attempts that were placed here to decode since the last heartbeat */
	uint64_t promised_blocks;
	uint32_t requests; /* attempts that it prefills or decodes now */
	/* attempts without a first token that were submitted to it, or that it will decode; and how
	 * many of these it may have before new ones wait at the router */
	uint32_t starting, window;
	uint64_t other_sequences; /* of other routers, by the last heartbeat */
	uint64_t other_tokens;    /* that other_sequences hold there */
	uint64_t placed_seq;      /* registry.place_seq when it was last chosen, for ties */
};

#define HANDOVERS_FAILED_MAX 64u

/* A hand-over from p to d has failed: not placed again before until_us. */
struct handover_failed {
	const struct worker_record *p, *d;
	uint64_t until_us;
};

struct registry {
	struct list workers;
	/* without order; a further one replaces the one that ends first */
	struct handover_failed failed[HANDOVERS_FAILED_MAX];
	unsigned n_failed;
	unsigned n_up, n_workers;
	unsigned n_decode; /* decode workers that are up */
	uint64_t ups;      /* links that came up so far, of all workers */
	uint64_t place_seq;
	uint64_t stuck_us; /* a worker that is busy without progress for this long is stuck */
	struct policy_opts policy;
	struct breaker_opts breaker;
	size_t index_entries_max;  /* of each worker */
	uint64_t draw;             /* state of the policies' generator */
	struct prefix_roots roots; /* of the workers that are up */
	struct option *options;    /* (n_workers): room for place.c */
	uint64_t placed[PLACE_STAGES][POLICIES][PLACE_REASONS];
	uint64_t events, events_bad, index_dropped, breaker_opened;
	double answer_tokens; /* mean length of recent answers; 0: none yet */
};

/* Its owner sets index_entries_max, and of policy and breaker what is configured. */
void registry_init(struct registry *g, uint64_t stuck_us);
void registry_fini(struct registry *g);
/* May a worker be admitted? 0, else *reason names what does not match, with both values. vocab_min:
 * 0 when unknown. */
int registry_admit(const struct registry *g, const char *name, const Pds__WorkerInfo *w,
                   uint32_t vocab_min, char *reason, size_t reason_len);
struct worker_record *registry_up(struct registry *g, struct peer *peer, const char *name,
                                  uint64_t epoch, const Pds__WorkerInfo *w, uint64_t now_us);
/* Marks it down: nothing more is sent to it or placed on it. Then the caller must move its attempts
 * (attempts_worker_down). */
void registry_down(struct registry *g, struct worker_record *w, uint64_t now_us);
/* It has said goodbye, so its next start does not count as a crash. */
void registry_ended_in_order(struct worker_record *w);
/* The worker reports changed properties. 0, or an error with the reason; then nothing is
 * changed. */
int registry_update(struct registry *g, struct worker_record *w, const Pds__WorkerInfo *info,
                    char *reason, size_t reason_len);
void registry_kv_events(struct registry *g, struct worker_record *w, const Pds__KvEvents *m);
/* good: an attempt succeeded here; else the worker failed it. */
void registry_outcome(struct registry *g, struct worker_record *w, int good, uint64_t now_us);
/* The outcome of a hand-over from p to d. good: the KV has arrived; else it has not, and neither
 * worker is to blame: the pair is not placed for breaker.open_us, then once in breaker.open_us,
 * until a hand-over is good. With good, p may be NULL or equal d: such a pair never fails. */
void registry_handover(struct registry *g, const struct worker_record *p,
                       const struct worker_record *d, int good, uint64_t now_us);
/* An attempt is placed on the pair. Does nothing unless its hand-over has failed before. */
void registry_handover_tried(struct registry *g, const struct worker_record *p,
                             const struct worker_record *d, uint64_t now_us);
/* May an attempt be placed on p and d, after what is known of their earlier hand-overs? */
int registry_handover_takes(const struct registry *g, const struct worker_record *p,
                            const struct worker_record *d, uint64_t now_us);
/* An attempt there has its first token, or its embedding. */
void registry_started(struct worker_record *w);
/* It refused an attempt because it is full: no more attempts than it has now, until some start. */
void registry_full(struct worker_record *w);
void registry_answered(struct registry *g, uint32_t tokens);
/* Seconds until the workers have computed their backlog, `queued` tokens of prompts that wait at
 * the router, and one more answer, at their measured rates; from min_s to max_s. */
uint32_t registry_retry_after_s(const struct registry *g, uint64_t queued, uint32_t min_s,
                                uint32_t max_s);
void registry_set_index_max(struct registry *g, size_t entries);
size_t registry_index_entries(const struct registry *g, unsigned tier); /* over all workers */
/* blocks that the worker (tier 0) or its storage is known to hold */
size_t worker_known(const struct worker_record *w, unsigned tier);
void registry_beat(struct worker_record *w, const Pds__Heartbeat *b, uint64_t now_us);
/* removes records of workers that are down for WORKER_FORGET_US */
void registry_forget(struct registry *g, uint64_t now_us);
/* Fills ret, with room for n_up, with the workers that `to` can hand KV over to if its role and
 * theirs allow it; roles may change. Returns how many. The texts are the records'. */
size_t registry_peers(const struct registry *g, const struct worker_record *to, Pds__Peer *ret);
/* up or down, or NULL */
struct worker_record *registry_find(const struct registry *g, const char *name);
int worker_is_up(const struct worker_record *w);
/* It takes no new attempts: it was drained or told to stop, or it switches its role. */
int worker_drains(const struct worker_record *w);
/* Can p hand KV over to d, whatever their roles and models? Within a site it can; to another
 * site if both have a messager that other hosts can reach, and p can connect to d. */
int worker_reaches(const struct worker_record *p, const struct worker_record *d);
int worker_is_near(const struct worker_record *p, const struct worker_record *d); /* of one site */
/* where p, which reaches d, connects to it */
const char *worker_endpoint(const struct worker_record *p, const struct worker_record *d);
int worker_is_stuck(const struct registry *g, const struct worker_record *w, uint64_t now_us);
/* Tokens of the longest sequence that a worker that decodes takes (if none is up: any worker); 0
 * when none is up. */
uint32_t registry_context(const struct registry *g);
/* Tokens of the longest prompt that a worker that computes prompts takes; 0: unknown. */
uint32_t registry_prompt_max(const struct registry *g);
/* Writes a name for model, numerics and KV layout of all workers that are up. Returns 0 if none is
 * up, or they differ; else 1. */
int registry_fingerprint(const struct registry *g, char *out, size_t size);
/* Tokens of the longest sequence (of a prefill worker: prompt) that its model and its KV blocks
 * allow; 0: unknown. */
uint32_t worker_longest(const struct worker_record *w);
/* smallest vocabulary of the workers that are up; 0 when none is */
uint32_t registry_vocab(const struct registry *g);
/* elements of an embedding of the workers that are up; 0 when none makes any */
uint32_t registry_hidden(const struct registry *g);
/* Tokens of the longest input of which a worker that is up makes an embedding; 0: unknown. */
uint32_t registry_embedding_max(const struct registry *g);
/* 1: workers are up, and none that is known makes embeddings, up or down. */
int registry_never_embeds(const struct registry *g);
void registry_json(const struct registry *g, uint64_t now_us, struct buf *out); /* an array */

#endif
