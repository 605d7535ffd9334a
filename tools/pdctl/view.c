/* view.c - the figures of `pdctl top`, from the last two answers of each daemon.
 *
 * A rate needs two answers of the same life of a daemon. Tokens are counted where they are
 * computed, at the workers: the router counts those of a request when it ends. Workers of other
 * hosts are shown as the router knows them from their heartbeats. */
#include "histogram.h"
#include "top.h"

#include "util/clock.h"

#include <string.h>
#include <time.h>

/* Two answers of one daemon. rate: they are of one life and `seconds` apart. */
struct pair_of_answers {
	const json_t *now, *before;
	int rate;
	double seconds;
};

static double number_of(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));
	return s ? s : "";
}

static struct pair_of_answers answers_of(const struct watched *d)
{
	const json_t *a = d->now.status, *b = d->before.status;
	uint64_t us = d->now.at_us - d->before.at_us;
	return (struct pair_of_answers){a, b,
	                                d->before.at_us &&
	                                    number_of(a, "epoch") == number_of(b, "epoch") && us > 0,
	                                (double)us / 1e6};
}

/* What was added to a counter in the interval; 0 if that is not known. */
static double added(const struct pair_of_answers *p, const char *key)
{
	double d = number_of(p->now, key) - number_of(p->before, key);
	return p->rate && d > 0 ? d : 0;
}

static json_t *rate_or_null(const struct pair_of_answers *p, const char *key)
{
	return p->rate ? json_real(added(p, key) / p->seconds) : json_null();
}

static json_t *share_or_null(double part, double whole)
{
	return whole > 0 ? json_real(part / whole) : json_null();
}

static int is_up(const struct watched *d)
{
	return d->at.alive && !d->at.left && d->code == EXIT_DONE && d->now.at_us;
}

static int is_program(const struct watched *d, const char *program)
{
	return strcmp(text_of(d->now.status, "program"), program) == 0;
}

/* A worker as a router knows it, or NULL. */
static const json_t *registered(const struct sample *of, const char *name)
{
	const json_t *w;
	size_t i;
	json_array_foreach(of->workers, i, w)
		if (strcmp(text_of(w, "name"), name) == 0)
			return w;
	return NULL;
}

static const char *state_of(const struct watched *d)
{
	if (!d->at.alive)
		return d->at.left ? "stopped" : "down";
	if (d->at.left)
		return "starting";
	if (d->code == EXIT_DONE)
		return json_is_true(json_object_get(d->now.status, "drained"))
		           ? "drained"
		           : text_of(d->now.status, "state");
	return !d->rounds ? "asked" : d->code == EXIT_UNREACHABLE ? "no answer" : "refused";
}

/* For how long it has not answered: since its last answer, or since another daemon heard it. */
static json_t *since_us(struct watched *const *list, size_t n, const struct watched *d)
{
	uint64_t now = clock_us();
	double least = d->now.at_us ? (double)(now - d->now.at_us) : -1;
	if (is_up(d))
		return json_null();
	for (size_t i = 0; i < n && !d->now.at_us; i++) {
		const json_t *peer;
		size_t k;
		double since = (double)(now - list[i]->now.at_us), ago;
		json_array_foreach(json_object_get(list[i]->now.status, "peers"), k, peer) {
			ago = number_of(peer, "heard_us_ago") + since;
			if (strcmp(text_of(peer, "name"), d->at.name) == 0 && (least < 0 || ago < least))
				least = ago;
		}
		peer = registered(&list[i]->now, d->at.name);
		ago = 1000 * number_of(peer, "heard_ms_ago") + since;
		if (peer && (least < 0 || ago < least))
			least = ago;
	}
	return least < 0 ? json_null() : json_real(least);
}

/* A copy, because the answers are freed by their threads. */
static void set_copy(json_t *row, const json_t *from, const char *key)
{
	const json_t *v = json_object_get(from, key);
	json_object_set_new(row, key, v ? json_deep_copy(v) : json_null());
}

/* up: the numbers of the moment hold. */
static json_t *worker_row(const char *name, const char *state, int up,
                          const struct pair_of_answers *p)
{
	static const char *const gauges[] = {"running",       "waiting",     "blocks",  "blocks_free",
	                                     "blocks_cached", "preemptions", "requests"};
	json_t *row = json_pack("{s:s,s:s}", "name", name, "state", state);
	set_copy(row, p->now, "role");
	for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++)
		set_copy(row, up ? p->now : NULL, gauges[i]);
	if (!up)
		set_copy(row, p->now, "blocks");
	struct pair_of_answers rates = *p;
	rates.rate = rates.rate && up;
	double cached = added(&rates, "cached_tokens");
	json_object_set_new(row, "in_per_s", rate_or_null(&rates, "prompt_tokens"));
	json_object_set_new(row, "out_per_s", rate_or_null(&rates, "generated_tokens"));
	json_object_set_new(row, "hit_rate",
	                    share_or_null(cached, cached + added(&rates, "prompt_tokens")));
	set_copy(row, up ? p->now : NULL, "uptime_us");
	return row;
}

/* What a daemon that is no worker does, in its own figures. */
static json_t *daemon_row(const struct watched *d)
{
	static const char *const figures[] = {"requests", "connections",    "workers",
	                                      "retries",  "open_transfers", "blocks",
	                                      "bytes",    "capacity_bytes", "hits",
	                                      "misses"};
	json_t *row = json_pack("{s:s,s:s}", "name", d->at.name, "state", state_of(d));
	for (size_t i = 0; is_up(d) && i < sizeof figures / sizeof *figures; i++)
		if (json_object_get(d->now.status, figures[i]))
			set_copy(row, d->now.status, figures[i]);
	set_copy(row, is_up(d) ? d->now.status : NULL, "uptime_us");
	return row;
}

static int is_worker(const struct watched *d)
{
	return json_object_get(d->now.status, "role") || is_program(d, "pdprefilld") ||
	       is_program(d, "pddecoded");
}

/* One that has never answered is told by the router what it is. */
static const json_t *known_to_routers(struct watched *const *list, size_t n, const char *name)
{
	const json_t *w = NULL;
	for (size_t i = 0; i < n && !w; i++)
		w = registered(&list[i]->now, name);
	return w;
}

static void add_local(json_t *view, struct watched *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct watched *d = list[i];
		const json_t *known = known_to_routers(list, n, d->at.name);
		json_t *since = since_us(list, n, d), *row;
		struct pair_of_answers p = answers_of(d);
		const char *state = state_of(d), *there = text_of(known, "state");
		if (d->at.left && !d->at.alive && json_is_null(since)) { /* nobody misses it */
			json_decref(since);
			continue;
		}
		if (is_up(d) && known && strcmp(there, "up") != 0 && strcmp(state, "running") == 0)
			state = strcmp(there, "down") == 0 ? "no link" : there;
		if (!d->now.at_us && known)
			p.now = known;
		int worker = is_worker(d) || known;
		row = worker ? worker_row(d->at.name, state, is_up(d), &p) : daemon_row(d);
		json_object_set_new(row, "since_us", since);
		json_array_append_new(json_object_get(view, worker ? "workers" : "daemons"), row);
	}
}

static int is_local(struct watched *const *list, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(list[i]->at.name, name) == 0)
			return 1;
	return 0;
}

/* The workers of other hosts that a router knows. */
static void add_remote(json_t *view, struct watched *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct watched *r = list[i];
		struct pair_of_answers p = answers_of(r);
		const json_t *w;
		size_t k;
		json_array_foreach(r->now.workers, k, w) {
			const char *name = text_of(w, "name");
			int up = is_up(r) && strcmp(text_of(w, "state"), "down") != 0;
			if (!*name || is_local(list, n, name))
				continue;
			p.now = w;
			p.before = registered(&r->before, name);
			p.rate = p.before && strcmp(text_of(w, "epoch"), text_of(p.before, "epoch")) == 0;
			json_t *row = worker_row(name, text_of(w, "state"), up, &p);
			json_object_set_new(row, "since_us",
			                    up ? json_null() : json_real(number_of(w, "for_s") * 1e6));
			json_array_append_new(json_object_get(view, "workers"), row);
		}
	}
}

static void add_pairs(json_t *view, const struct watched *d)
{
	struct pair_of_answers p = answers_of(d), one = p;
	const json_t *now, *before;
	size_t i, k;
	json_array_foreach(json_object_get(p.now, "pairs"), i, now) {
		one.now = now;
		one.before = NULL;
		json_array_foreach(json_object_get(p.before, "pairs"), k, before)
			if (strcmp(text_of(now, "from"), text_of(before, "from")) == 0 &&
			    strcmp(text_of(now, "to"), text_of(before, "to")) == 0)
				one.before = before;
		double transfers = added(&one, "transfers"), all = number_of(now, "transfers");
		double tail = transfers > 0 ? added(&one, "tail_us") / transfers
		              : all > 0     ? number_of(now, "tail_us") / all
		                            : 0;
		json_array_append_new(json_object_get(view, "pairs"),
		                      json_pack("{s:s,s:s,s:o,s:o,s:f,s:f,s:f}", "from",
		                                text_of(now, "from"), "to", text_of(now, "to"),
		                                "transfers_per_s", rate_or_null(&one, "transfers"),
		                                "bytes_per_s", rate_or_null(&one, "bytes"), "transfers",
		                                all, "bytes", number_of(now, "bytes"), "tail_us", tail));
	}
}

/* The values that came into a histogram in the interval, of all daemons of a program. */
static json_t *quantiles(struct watched *const *list, size_t n, const char *program,
                         const char *name)
{
	struct histogram h = {0};
	for (size_t i = 0; i < n; i++) {
		const struct watched *d = list[i];
		if (!is_up(d) || !is_program(d, program) || !answers_of(d).rate || !d->before.metrics)
			continue;
		histogram_add(&h, d->now.metrics, name, 1);
		histogram_add(&h, d->before.metrics, name, -1);
	}
	double p50 = histogram_quantile(&h, 0.5), p99 = histogram_quantile(&h, 0.99);
	return p50 < 0 ? json_null() : json_pack("{s:f,s:f}", "p50", p50 * 1e6, "p99", p99 * 1e6);
}

static double counter_of(const char *text, const char *name)
{
	size_t len = strlen(name);
	for (const char *s = text; s && (s = strstr(s, name)); s += len)
		if ((s == text || s[-1] == '\n') && (s[len] == '{' || s[len] == ' ')) {
			const char *end = s + strcspn(s, "\n"),
					   *value = s[len] == '{' ? strstr(s, "} ") : s + len;
			return value && value < end ? strtod(value + (*value == '}'), NULL) : 0;
		}
	return 0;
}

/* Prompt tokens that were cached, of those that could have been. */
static json_t *prefix_hits(struct watched *const *list, size_t n, int total)
{
	double hits = 0, queries = 0;
	for (size_t i = 0; i < n; i++) {
		const struct watched *d = list[i];
		const char *before = total ? NULL : d->before.metrics;
		if (!is_up(d) || !is_program(d, "pdrouterd") ||
		    (!total && (!answers_of(d).rate || !before)))
			continue;
		hits += counter_of(d->now.metrics, "vllm:prefix_cache_hits_total") -
		        counter_of(before, "vllm:prefix_cache_hits_total");
		queries += counter_of(d->now.metrics, "vllm:prefix_cache_queries_total") -
		           counter_of(before, "vllm:prefix_cache_queries_total");
	}
	return share_or_null(hits, queries);
}

/* Sums over the daemons of a program that answer: of a gauge, or of a counter's rate. */
static json_t *sum_of(struct watched *const *list, size_t n, const char *program, const char *key,
                      int rate)
{
	double sum = 0;
	int some = 0;
	for (size_t i = 0; i < n; i++) {
		struct pair_of_answers p = answers_of(list[i]);
		if (!is_up(list[i]) || !is_program(list[i], program) || (rate && !p.rate))
			continue;
		sum += rate ? added(&p, key) / p.seconds : number_of(p.now, key);
		some = 1;
	}
	return !some ? json_null() : rate ? json_real(sum) : json_integer((json_int_t)sum);
}

static json_t *sum_of_rows(const json_t *rows, const char *key, const char *role)
{
	const json_t *row;
	double sum = 0;
	size_t i;
	int some = 0;
	json_array_foreach(rows, i, row) {
		const json_t *v = json_object_get(row, key);
		if (!json_is_number(v) || (role && strcmp(text_of(row, "role"), role) != 0))
			continue;
		sum += json_number_value(v);
		some = 1;
	}
	return some ? json_real(sum) : json_null();
}

static void add_totals(json_t *view, struct watched *const *list, size_t n)
{
	static const struct {
		const char *name, *program, *key;
		int rate;
	} sums[] = {{"requests", "pdrouterd", "requests", 0},
	            {"done_per_s", "pdrouterd", "done", 1},
	            {"failed_per_s", "pdrouterd", "failed", 1},
	            {"cancelled_per_s", "pdrouterd", "cancelled", 1},
	            {"transfers", "pdmessagerd", "open_transfers", 0},
	            {"transfer_bytes_per_s", "pdmessagerd", "bytes", 1}};
	static const struct {
		const char *name, *program, *histogram;
	} times[] = {{"ttft_us", "pdrouterd", "vllm:time_to_first_token_seconds"},
	             {"itl_us", "pdrouterd", "vllm:inter_token_latency_seconds"},
	             {"tail_us", "pdmessagerd", "pdserve_messager_transfer_tail_seconds"}};
	static const struct {
		const char *name, *key, *role;
	} workers[] = {{"running", "running", NULL},
	               {"in_per_s", "in_per_s", NULL},
	               {"out_per_s", "out_per_s", NULL},
	               {"waiting_prefill", "waiting", "prefill"},
	               {"waiting_decode", "waiting", "decode"},
	               {"waiting_mixed", "waiting", "mixed"}};
	const json_t *rows = json_object_get(view, "workers");
	for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
		json_object_set_new(view, sums[i].name,
		                    sum_of(list, n, sums[i].program, sums[i].key, sums[i].rate));
	for (size_t i = 0; i < sizeof times / sizeof *times; i++)
		json_object_set_new(view, times[i].name,
		                    quantiles(list, n, times[i].program, times[i].histogram));
	for (size_t i = 0; i < sizeof workers / sizeof *workers; i++)
		json_object_set_new(view, workers[i].name,
		                    sum_of_rows(rows, workers[i].key, workers[i].role));
	json_object_set_new(view, "prefix_hit_rate", prefix_hits(list, n, 0));
	json_object_set_new(view, "prefix_hit_rate_total", prefix_hits(list, n, 1));
}

json_t *top_view(struct watcher *w, const struct options *o)
{
	size_t n;
	struct watched *const *list = watch_lock(w, &n);
	json_t *view = json_pack("{s:I,s:f,s:[],s:[],s:[]}", "time", (json_int_t)time(NULL),
	                         "interval_s", o->interval_s, "workers", "daemons", "pairs");
	add_local(view, list, n);
	add_remote(view, list, n);
	for (size_t i = 0; i < n; i++)
		if (is_up(list[i]))
			add_pairs(view, list[i]);
	add_totals(view, list, n);
	watch_unlock(w);
	return view;
}
