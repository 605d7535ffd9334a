#ifndef REGISTRY_DEFAULTS_H
#define REGISTRY_DEFAULTS_H

#include "daemons/router/router.h"
#include "util/check.h"

#include <string.h>

/* A registry as the router's keys have it by default. */
static inline void registry_defaults(struct registry *g, uint64_t stuck_us)
{
	const struct conf_key *const tables[] = {router_keys, NULL};
	struct router_conf values = {0};
	struct conf *c;
	struct err err = {0};
	CHECK(conf_load(tables, NULL, NULL, 0, &c, &err) == 0);
	conf_fill(c, router_keys, &values);
	conf_destroy(&c);
	registry_init(g, stuck_us);
	memcpy(g->policy.policy, values.policy, sizeof values.policy);
	g->policy.kv_load_weight = values.kv_load_weight;
	g->breaker.error_pct = values.breaker_error_pct;
	g->breaker.open_us = values.breaker_open_us;
	registry_set_index_max(g, values.index_entries_max);
}

#endif
