/* metrics.c - /metrics: the names that dashboards for LLM servers expect, our own, and each
 * worker's figures from its heartbeats. */
#include "daemons/router/request/request.h"
#include "util/least.h"

#include <string.h>

#define ROW(field, type, name, help) STAT_ROW(struct router, field, type, name, help)

const struct stat_row router_stats[] = {
	ROW(stats.running, GAUGE, "vllm:num_requests_running", "attempts that are being computed"),
	ROW(stats.waiting, GAUGE, "vllm:num_requests_waiting",
        "attempts that wait for a worker, and those in the workers' queues"),
	ROW(attempts.counts.prompt_tokens, COUNTER, "vllm:prompt_tokens_total",
        "tokens of all prompts"),
	ROW(attempts.counts.output_tokens, COUNTER, "vllm:generation_tokens_total",
        "tokens of all answers"),
	ROW(attempts.counts.cached_tokens, COUNTER, "pdserve_cached_prompt_tokens_total",
        "prompt tokens that were cached"),
	ROW(attempts.counts.prompt_tokens, COUNTER, "vllm:prefix_cache_queries_total",
        "prompt tokens that were looked up in the caches"),
	ROW(attempts.counts.cached_tokens, COUNTER, "vllm:prefix_cache_hits_total", "of these: cached"),
	ROW(stats.preemptions, COUNTER, "vllm:num_preemptions_total",
        "sequences that workers preempted, as their heartbeats tell"),
	ROW(stats.success_stop, COUNTER, "pdserve_answers_stop_total",
        "answers that ended by an end-of-sequence token or a stop string"),
	ROW(stats.success_length, COUNTER, "pdserve_answers_length_total",
        "answers that ended at max_tokens"),
	ROW(stats.ttft, SECONDS, "vllm:time_to_first_token_seconds",
        "time from a request's arrival to its first token"),
	ROW(stats.tpot, SECONDS, "vllm:time_per_output_token_seconds",
        "mean time per token of an answer, without its first token"),
	ROW(stats.tpot, SECONDS, "vllm:request_time_per_output_token_seconds",
        "the same as vllm:time_per_output_token_seconds, as vLLM names it now"),
	ROW(stats.itl, SECONDS, "vllm:inter_token_latency_seconds",
        "time from a token to the next of its answer"),
	ROW(stats.queue, SECONDS, "vllm:request_queue_time_seconds",
        "time that a request waited for its prompt's computation"),
	ROW(stats.prefill, SECONDS, "vllm:request_prefill_time_seconds",
        "time from the first chunk of an answer's prompt to its first token, at the worker that "
        "computed it"),
	ROW(stats.decode, SECONDS, "vllm:request_decode_time_seconds",
        "time from an answer's first token to its last one"),
	ROW(stats.e2e, SECONDS, "vllm:e2e_request_latency_seconds",
        "time from a request's arrival to its last token"),
	ROW(stats.answer_prompt, SIZES, "vllm:request_prompt_tokens",
        "tokens of the prompt of each answer or embedding"),
	ROW(stats.answer_tokens, SIZES, "vllm:request_generation_tokens", "tokens of each answer"),
	ROW(stats.answer_longest, SIZES, "vllm:request_max_num_generation_tokens",
        "tokens of the longest answer to each prompt (n)"),
	ROW(stats.http_requests, COUNTER, "pdserve_http_requests_total", "requests received"),
	ROW(stats.http.connections, GAUGE, "pdserve_http_connections", "open client connections"),
	ROW(stats.http.refused, COUNTER, "pdserve_http_refused_total",
        "requests and connections that the HTTP edge itself refused: malformed, too long, too "
        "late, too many"),
	ROW(stats.http.closed_waiting, COUNTER, "pdserve_http_closed_waiting_total",
        "idle connections that were closed to make room for others"),
	ROW(stats.http.cut, COUNTER, "pdserve_http_answers_cut_total",
        "answers that were cut off: no room or no memory for the rest, or the end of this process"),
	ROW(stats.http.tls_failed, COUNTER, "pdserve_http_tls_failed_total",
        "connections that ended before their TLS handshake did"),
	ROW(stats.http.in_bytes, GAUGE, "pdserve_http_input_bytes",
        "bytes of requests being received or waiting (input_bytes_max)"),
	ROW(stats.http.out_bytes, GAUGE, "pdserve_http_output_bytes",
        "bytes of answers that clients have not read yet (output_bytes_max)"),
	ROW(attempts.counts.cancelled, COUNTER, "pdserve_sequences_cancelled_total",
        "attempts that were cancelled"),
	ROW(attempts.counts.retries, COUNTER, "pdserve_attempts_retried_total",
        "tries after the first one of an attempt"),
	ROW(attempts.counts.duplicates, COUNTER, "pdserve_tokens_repeated_total",
        "repeated tokens, which were dropped"),
	ROW(attempts.counts.stale, COUNTER, "pdserve_messages_stale_total",
        "messages about attempts that have ended"),
	ROW(attempts.counts.mismatches, COUNTER, "pdserve_tokens_differ_total",
        "repeated tokens that differ from the first ones: a bug or broken hardware"),
	ROW(registry.n_up, GAUGE, "pdserve_workers_up", "workers that are connected"),
	ROW(stats.prepare, SECONDS, "pdserve_prepare_seconds",
        "parsing, template and tokenizing of a request"),
	ROW(registry.events, COUNTER, "pdserve_router_kv_events_total",
        "messages of workers about their prefix indexes"),
	ROW(registry.events_bad, COUNTER, "pdserve_router_kv_events_bad_total",
        "of these: with an unknown tier, or from a worker without blocks"),
	ROW(stats.kv_index, GAUGE, "pdserve_router_kv_index_entries",
        "blocks known to be cached, over all workers"),
	ROW(registry.index_dropped, COUNTER, "pdserve_router_kv_index_dropped_total",
        "cached blocks that are not tracked, for lack of room (kv_index_entries)"),
	ROW(attempts.counts.hits_predicted, COUNTER, "pdserve_router_kv_hit_tokens_predicted_total",
        "prompt tokens expected to be cached at the chosen worker"),
	ROW(attempts.counts.hits_actual, COUNTER, "pdserve_router_kv_hit_tokens_actual_total",
        "prompt tokens of the same requests that were cached there"),
	ROW(attempts.counts.hits_stored_predicted, COUNTER,
        "pdserve_router_kv_hit_tokens_stored_predicted_total",
        "of the predicted: those expected only in the worker's storage"),
	ROW(attempts.counts.hits_stored_actual, COUNTER,
        "pdserve_router_kv_hit_tokens_stored_actual_total",
        "of the actual: those read from storage"),
	ROW(stats.kv_stored, GAUGE, "pdserve_router_kv_stored_entries",
        "blocks known to be in storage, in memory or on disk, over all workers that read from it"),
	ROW(registry.breaker_opened, COUNTER, "pdserve_router_breaker_opened_total",
        "times that a worker was left out for a while because it failed"),
	ROW(stats.retry_after, GAUGE, "pdserve_router_retry_after_seconds",
        "the value of Retry-After, now"),
	STAT_END,
};

/* In the workers' queues as they last told, other routers' attempts too: a heartbeat does not say
 * whose they are. What waits at a decode
 * worker for its prompt, or for room, is a job of a prefill worker: if there is one, it counts
 * there alone, and only until its first step. */
static size_t waiting_at_workers(const struct router *r)
{
	size_t by_role[ROLE_COUNT] = {0};
	unsigned prefills = 0;
	list_each(it, &r->registry.workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		if (!worker_is_up(w))
			continue;
		by_role[w->role] += w->beat.waiting;
		prefills += w->role == ROLE_PREFILL;
	}
	return by_role[ROLE_PREFILL] + by_role[ROLE_MIXED] + (prefills ? 0 : by_role[ROLE_DECODE]);
}

/* Of the blocks of all workers that are up, the part that is neither free nor evictable. */
static double kv_usage(const struct registry *g)
{
	uint64_t all = 0, free = 0;
	list_each(it, &g->workers) {
		const struct worker_record *w = list_entry(it, struct worker_record, node);
		if (!worker_is_up(w) || !w->has_heartbeat)
			continue;
		all += w->blocks;
		free += least(w->blocks, w->beat.blocks_free);
	}
	return all ? (double)(all - free) / (double)all : 0;
}

/* The numbers that nobody counts. */
static void metrics_refresh(struct router *r)
{
	struct router_stats *st = &r->stats;
	size_t all = attempts_count(&r->attempts);
	st->waiting = waiting_at_workers(r) + r->attempts.queue.n;
	list_each(it, &r->attempts.waiting)
		st->waiting++;
	st->running = all - least(all, st->waiting);
	if (r->http)
		http_counts(r->http, &st->http);
	st->kv_index = registry_index_entries(&r->registry, 0);
	st->kv_stored = registry_index_entries(&r->registry, 1) +
	                registry_index_entries(&r->registry, 2);
	st->retry_after = router_retry_after_s(r);
}

const struct stat_family router_families[FAMILY_COUNT] = {
	[FAMILY_KV_USAGE] = {{"vllm:kv_cache_usage_perc", "part of the KV blocks in use, 0 to 1",
                          STAT_GAUGE},
                         "model_name"},
	[FAMILY_SUCCESS] = {{"vllm:request_success_total", "answers by finish reason", STAT_COUNTER},
                        "model_name,finished_reason"},
	[FAMILY_REFUSED] = {{"pdserve_requests_refused_total", "answers with status 4xx", STAT_COUNTER},
                        "path,status"},
	[FAMILY_FAILED] = {{"pdserve_requests_failed_total",
                        "answers with status 5xx, and streams that ended in an error",
                        STAT_COUNTER},
                       "path,status"},
	[FAMILY_PLACED] = {{"pdserve_placed_total", "placements by stage, policy and reason",
                        STAT_COUNTER},
                       "stage,policy,reason"},
	[FAMILY_TENANT_REQUESTS] = {{"pdserve_tenant_requests_total", "requests of a key",
                                 STAT_COUNTER},
                                "tenant"},
	[FAMILY_TENANT_RUNNING] = {{"pdserve_tenant_running", "requests of a key that are at work",
                                STAT_GAUGE},
                               "tenant"},
	[FAMILY_TENANT_PROMPT] = {{"pdserve_tenant_prompt_tokens_total", "prompt tokens of a key",
                               STAT_COUNTER},
                              "tenant"},
	[FAMILY_TENANT_GENERATED] = {{"pdserve_tenant_generated_tokens_total",
                                  "generated tokens of a key", STAT_COUNTER},
                                 "tenant"},
	[FAMILY_TENANT_REFUSED] = {{"pdserve_tenant_refused_total", "requests beyond a key's limit",
                                STAT_COUNTER},
                               "tenant,limit"},
	/* of each worker, in the order of worker_value */
	[FAMILY_WORKERS] = {{"pdserve_worker_up", "1 while the worker is connected", STAT_GAUGE},
                        "worker,role"},
	{{"pdserve_worker_running", "sequences or jobs in its schedule", STAT_GAUGE}, "worker,role"},
	{{"pdserve_worker_waiting", "accepted and not running yet", STAT_GAUGE}, "worker,role"},
	{{"pdserve_worker_blocks", "KV blocks of its pool", STAT_GAUGE}, "worker,role"},
	{{"pdserve_worker_blocks_free", "KV blocks free or evictable", STAT_GAUGE}, "worker,role"},
	{{"pdserve_worker_prompt_tokens_total", "prompt tokens since its start", STAT_COUNTER},
     "worker,role"},
	{{"pdserve_worker_generated_tokens_total", "tokens generated since its start", STAT_COUNTER},
     "worker,role"},
	{{"pdserve_worker_cached_tokens_total", "prompt tokens that were cached", STAT_COUNTER},
     "worker,role"},
	{{"pdserve_worker_preemptions_total", "sequences that were preempted", STAT_COUNTER},
     "worker,role"},
	{{"pdserve_worker_tokens_in_flight", "tokens of this router's attempts there", STAT_GAUGE},
     "worker,role"},
	{{"pdserve_worker_backlog_tokens",
      "of these: uncached prompt tokens that are not computed yet; tokens in storage count by the "
      "cost of reading them",
      STAT_GAUGE},
     "worker,role"},
	{{"pdserve_worker_kv_index_entries", "blocks known to be cached there", STAT_GAUGE},
     "worker,role"},
	{{"pdserve_worker_kv_memory_entries", "blocks known to be in its host's storage, in memory",
      STAT_GAUGE},
     "worker,role"},
	{{"pdserve_worker_kv_disk_entries", "blocks known to be in its host's storage, on disk",
      STAT_GAUGE},
     "worker,role"},
	{{"pdserve_worker_breaker_open",
      "1 while the worker is left out because it failed, or on trial", STAT_GAUGE},
     "worker,role"},
	{{"pdserve_worker_draining", "1 while it takes no new work", STAT_GAUGE}, "worker,role"},
};

static uint64_t worker_value(const struct worker_record *w, unsigned i)
{
	const uint64_t values[WORKER_VALUES] = {(uint64_t)worker_is_up(w), w->beat.running,
	                                        w->beat.waiting,           w->blocks,
	                                        w->beat.blocks_free,       w->beat.prompt_tokens,
	                                        w->beat.generated_tokens,  w->beat.cached_tokens,
	                                        w->beat.preemptions,       w->tokens_in_flight,
	                                        w->backlog_tokens,         worker_known(w, 0),
	                                        worker_known(w, 1),        worker_known(w, 2),
	                                        (uint64_t)w->breaker.open, (uint64_t)worker_drains(w)};
	return values[i];
}

static void render_placed(const struct registry *g, struct buf *out)
{
	static const char *const stages[] = {"prefill", "decode"};
	stat_render_head(&router_families[FAMILY_PLACED].def, "", out);
	for (unsigned s = 0; s < PLACE_STAGES; s++)
		for (unsigned p = 0; p < POLICIES; p++)
			for (unsigned why = 0; why < PLACE_REASONS; why++)
				if (g->placed[s][p][why])
					buf_printf(
						out,
						"pdserve_placed_total{stage=\"%s\",policy=\"%s\",reason=\"%s\"} %llu\n",
						stages[s], policies[p].name, place_reason_name(why),
						(unsigned long long)g->placed[s][p][why]);
}

/* Those that have sent a request; their number is bounded by API_KEYS_MAX. */
static void render_tenants(const struct api_keys *k, struct buf *out)
{
	for (size_t m = FAMILY_TENANT_REQUESTS; m <= FAMILY_TENANT_GENERATED; m++) {
		stat_render_head(&router_families[m].def, "", out);
		for (size_t i = 0; i < k->n_tenants; i++) {
			const struct tenant *t = k->tenant[i];
			const uint64_t v[] = {t->requests, t->running, t->prompt_tokens, t->generated_tokens};
			if (t->requests)
				buf_printf(out, "%s{tenant=\"%s\"} %llu\n", router_families[m].def.name, t->name,
				           (unsigned long long)v[m - FAMILY_TENANT_REQUESTS]);
		}
	}
	stat_render_head(&router_families[FAMILY_TENANT_REFUSED].def, "", out);
	for (size_t i = 0; i < k->n_tenants * TENANT_LIMITS; i++) {
		const struct tenant *t = k->tenant[i / TENANT_LIMITS];
		enum tenant_limit limit = i % TENANT_LIMITS;
		if (t->refused[limit])
			buf_printf(out, "pdserve_tenant_refused_total{tenant=\"%s\",limit=\"%s\"} %llu\n",
			           t->name, tenant_limit_name(limit), (unsigned long long)t->refused[limit]);
	}
}

void metrics_render(struct router *r, struct buf *out)
{
	struct buf label;
	buf_init(&label, 0);
	buf_adds(&label, "model_name=");
	buf_add_json(&label, r->model->name, strlen(r->model->name));
	metrics_refresh(r);
	stat_render(router_stats, r, "", label.data, out);
	stat_render_head(&router_families[FAMILY_KV_USAGE].def, "", out);
	buf_printf(out, "vllm:kv_cache_usage_perc{%s} %.6g\n", label.data, kv_usage(&r->registry));
	stat_render_head(&router_families[FAMILY_SUCCESS].def, "", out);
	buf_printf(out, "vllm:request_success_total{%s,finished_reason=\"stop\"} %llu\n", label.data,
	           (unsigned long long)r->stats.success_stop);
	buf_printf(out, "vllm:request_success_total{%s,finished_reason=\"length\"} %llu\n", label.data,
	           (unsigned long long)r->stats.success_length);
	buf_fini(&label);
	api_errors_render(r, router_families, out);
	render_placed(&r->registry, out);
	render_tenants(&r->keys, out);
	for (unsigned i = FAMILY_WORKERS; i < FAMILY_COUNT; i++) {
		stat_render_head(&router_families[i].def, "", out);
		list_each(it, &r->registry.workers) {
			const struct worker_record *w = list_entry(it, struct worker_record, node);
			buf_printf(out, "%s{worker=", router_families[i].def.name);
			buf_add_json(out, w->name, strlen(w->name));
			buf_printf(out, ",role=\"%s\"} %llu\n", worker_role_name(w->role),
			           (unsigned long long)worker_value(w, i - FAMILY_WORKERS));
		}
	}
}
