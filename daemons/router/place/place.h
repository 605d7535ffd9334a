/* place.h - chooses the workers of an attempt. */
#ifndef ROUTER_PLACE_H
#define ROUTER_PLACE_H

#include "prefixes.h"
#include "registry.h"

#define PLACE_CANDIDATES_MAX 8

struct placement {
	struct worker_record *first; /* gets Submit */
	struct worker_record *decode[PLACE_CANDIDATES_MAX];
	unsigned n_decode;      /* 0: `first` does it all */
	uint32_t hit_tokens;    /* expected to be cached at `first`, on its device or in its storage */
	uint32_t stored_tokens; /* the part of hit_tokens that is read from storage */
	/* work of `first` before the first token: tokens to be computed, and tokens to be read from
	 * storage times the cost of reading one */
	uint32_t work_tokens;
	/* hit_tokens is a prediction: the prompt was hashed for that worker */
	int predicted;
};

/* Workers that must take it, for tests and benchmarks (allow_pinning). */
struct place_pin {
	char prefill[WORKER_NAME_MAX];                      /* "": any */
	char decode[PLACE_CANDIDATES_MAX][WORKER_NAME_MAX]; /* candidates, in this order */
	unsigned n_decode;                                  /* 0: any */
};

struct place_query {
	uint32_t tokens;       /* prompt and answer so far */
	uint32_t total_tokens; /* prompt and max_tokens, or one token more than `tokens` */
	const char *numerics;  /* preferred, because the last try had it; NULL: none */
	const char *avoid;     /* worker that failed the last try: chosen last; NULL: none */
	uint32_t hidden;       /* length of the embedding; 0: none */
	/* nothing follows the prefill, as its answer is an embedding or a single token: no decode
	 * worker is needed */
	int prefill_only;
	int alone; /* hand-overs have failed: preferably one worker that does it all */
	/* the worker that the attempt has to leave: only workers that are neither stuck nor broken can
	 * take it. NULL: none */
	const struct worker_record *leaves;
	int wants_room;  /* with `leaves`: the decode worker must have room, as far as is known */
	uint64_t now_us; /* for `leaves`, place_possible and place_may_return */
	/* prefill worker that computes the same prompt for another answer of the request: preferred
	 * among equals; NULL: none */
	const char *beside;
	const struct prefixes *prefixes; /* of the prompt; NULL: not hashed */
	const struct place_pin *pin;     /* NULL: none */
	uint64_t session;                /* policy_key, 0: none */
	const struct reqid *id;          /* for the log; NULL: none */
	int in_turn; /* a new attempt: it waits rather than go to a worker with enough to start with */
	/* with in_turn: its caller's sequences at workers that decode, limited by fair_share; 0:
	 * there is no other caller */
	uint32_t seats;
};

#define PLACE_LATER 1
/* 0, PLACE_LATER (in_turn: workers can take it, but all of them have enough to start with, or its
 * caller has its share of their seats), ERR_NOTFOUND (no worker can take it now), or ERR_FULL (no
 * worker takes a sequence of that length). Records the placement, for metrics and for the next
 * ones. */
int place_choose(struct registry *g, const struct place_query *query, uint64_t now_us,
                 struct placement *ret);
/* Are some workers that are up excluded for this attempt alone: by its length, its embedding's
 * length, its pin or its caller's seats? */
int place_is_restricted(const struct registry *g, const struct place_query *query);
/* Is there a worker that can take it, now or later? Changes nothing. */
int place_possible(const struct registry *g, const struct place_query *query);
/* Called when no worker can take it. Is a worker restarting that could take it or decode for it:
 * one that was told to stop, or went down less than within_us ago, and was not drained before? */
int place_may_return(const struct registry *g, const struct place_query *query, uint64_t within_us);
/* Why requests for several tokens cannot be served now: "no decode worker"; NULL: they can. */
const char *place_missing(const struct registry *g, uint64_t now_us);

#endif
