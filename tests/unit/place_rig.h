/* place_rig.h - a registry of workers that a test fills by hand, the prompts whose blocks they
 * hold, and who was chosen. */
#ifndef TESTS_PLACE_RIG_H
#define TESTS_PLACE_RIG_H

#include "daemons/router/place/place.h"
#include "router_rig.h"

#include <sodium.h>

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))
#define BT 16u

static inline struct worker_record *add_like(struct registry *g, const char *name, const char *role,
                                             const char *numerics, uint32_t context)
{
	Pds__WorkerInfo w = PDS__WORKER_INFO__INIT;
	w.role = (char *)role;
	w.model_fingerprint = (char *)"f";
	w.site = (char *)"s";
	w.numerics = (char *)numerics;
	w.layout = (char *)"l";
	w.context_tokens = context;
	w.block_tokens = BT;
	w.blocks = 1000;
	return registry_up(g, (struct peer *)g, name, 1, &w, clock_us());
}

static inline struct worker_record *add(struct registry *g, const char *name, const char *role)
{
	return add_like(g, name, role, "n", 0);
}

/* A worker of a site, with the addresses that it and its messager tell: "rm" both, "r" its own
 * only, "m" its messager's only, "" none. */
static inline struct worker_record *add_at(struct registry *g, const char *name, const char *role,
                                           const char *site, const char *tells)
{
	char remote[100], messager[100];
	Pds__WorkerInfo w = PDS__WORKER_INFO__INIT;
	snprintf(remote, sizeof remote, "%s@tcp://%s:7001", name, site);
	snprintf(messager, sizeof messager, "messager-%s@tcp://%s:7003", site, site);
	w.role = (char *)role;
	w.model_fingerprint = (char *)"f";
	w.numerics = (char *)"n";
	w.layout = (char *)"l";
	w.block_tokens = BT;
	w.blocks = 1000;
	w.endpoint = (char *)name;
	w.site = (char *)site;
	w.remote = strchr(tells, 'r') ? remote : (char *)"";
	w.messager = strchr(tells, 'm') ? messager : (char *)"";
	return registry_up(g, (struct peer *)g, name, 1, &w, clock_us());
}

static inline void both(struct registry *g, unsigned policy)
{
	g->policy.policy[PLACE_PREFILL] = g->policy.policy[PLACE_DECODE] = policy;
}

static inline const char *show(struct registry *g, const struct place_query *query)
{
	static char text[256];
	struct placement p;
	int r = place_choose(g, query, clock_us(), &p);
	ck_assert_int_eq(place_possible(g, query), r == 0);
	if (r < 0)
		return err_name(r);
	size_t n = (size_t)snprintf(text, sizeof text, "%s", p.first->name);
	for (unsigned i = 0; i < p.n_decode; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, " %s", p.decode[i]->name);
	return text;
}

struct prompt_of {
	uint32_t tokens[1024];
	struct prefixes prefixes;
	struct place_query query;
};

/* kind: the beginning all prompts of a kind share. */
static inline void make_prompt(struct registry *g, struct prompt_of *p, uint32_t kind, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		p->tokens[i] = kind * 10000 + i;
	prefixes_make(&g->roots, NULL, p->tokens, n, &p->prefixes);
	p->query = (struct place_query){.tokens = n, .total_tokens = n + 10, .prefixes = &p->prefixes};
}

static inline void holds(struct registry *g, struct worker_record *w, const struct prompt_of *p,
                         size_t blocks, uint32_t tier)
{
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	size_t n;
	m.stored = (uint64_t *)prefixes_find(&p->prefixes, &w->prefix, &n);
	m.n_stored = blocks;
	m.tier = tier;
	ck_assert_uint_ge(n, blocks);
	registry_kv_events(g, w, &m);
}

TEST_START(place_start)
{
	if (sodium_init() < 0)
		exit(1);
	log_init("test", NULL);
	log_set_level("error");
}

TEST_CASE("place", .timeout_s = 60);

#endif
