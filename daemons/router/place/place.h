/* place.h - which workers a sequence goes to. */
#ifndef ROUTER_PLACE_H
#define ROUTER_PLACE_H

#include "prefixes.h"
#include "registry.h"

#define PLACE_CANDIDATES_MAX 8

struct placement {
	struct worker_record *first; /* gets Submit */
	struct worker_record *decode[PLACE_CANDIDATES_MAX];
	unsigned n_decode;      /* 0: `first` runs it alone */
	uint32_t hit_tokens;    /* tokens that `first` is expected to have cached */
	uint32_t stored_tokens; /* of them: to be read from storage */
	/* what `first` has to do before the first token: those to be computed, and those to be read
	 * by their weight */
	uint32_t work_tokens;
	/* hit_tokens is valid: the prompt was hashed for that worker */
	int predicted;
};

/* Who must take it, for tests and benchmarks (allow_pinning). */
struct place_pin {
	char prefill[WORKER_NAME_MAX];                      /* "": anybody */
	char decode[PLACE_CANDIDATES_MAX][WORKER_NAME_MAX]; /* candidates, in this order */
	unsigned n_decode;                                  /* 0: anybody */
};

struct place_wish {
	uint32_t tokens;       /* that the attempt begins with */
	uint32_t total_tokens; /* of the whole sequence at its longest */
	const char *numerics;  /* of the attempt before: preferred; or NULL */
	const char *avoid;     /* worker that failed the attempt before: taken last; or NULL */
	/* The worker that an attempt is to leave: the others count only if neither stuck nor broken.
	 * NULL: a new attempt. The next two only with it. */
	const struct worker_record *leaves;
	uint64_t now_us;
	int wants_room; /* the decoder must have a free place, as far as is known */
	/* prefill worker that computes the same prompt for another answer of the request: preferred to
	 * its equals; or NULL */
	const char *beside;
	const struct prefixes *prefixes; /* of the prompt; NULL: not known */
	const struct place_pin *pin;     /* NULL: none */
	uint64_t session;                /* policy_key, 0: none */
	const struct reqid *id;          /* for the log; NULL: none */
};

/* 0, ERR_NOTFOUND (nobody can take it now), or ERR_FULL (nobody takes a sequence of that
 * length). Counts, and remembers what was placed. */
int place_choose(struct registry *g, const struct place_wish *wish, uint64_t now_us,
                 struct placement *ret);
/* Would place_choose find somebody? Changes nothing. */
int place_possible(const struct registry *g, const struct place_wish *wish);

#endif
