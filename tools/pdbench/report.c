/* report.c - see report.h: the table, the RESULT lines, and both JSON outputs. */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *arrivals_name(enum arrivals a)
{
	return a == ARRIVE_POISSON ? "poisson" : a == ARRIVE_CONSTANT ? "constant" : "trace";
}

void report_load(const struct bench_options *o, char *out, size_t size)
{
	const char *what = o->has_rounds ? "conversations" : "requests";
	if (o->concurrency)
		snprintf(out, size, "closed loop of %u %s", o->concurrency, what);
	else if (o->arrivals == ARRIVE_TRACE)
		snprintf(out, size, "open loop, a trace at %g times its speed", o->time_scale);
	else
		snprintf(out, size, "open loop of %g %s/s (%s)", o->rate, what, arrivals_name(o->arrivals));
}

/* --- the table ----------------------------------------------------------- */

static void ms_cell(FILE *f, double ms)
{
	if (isnan(ms))
		fprintf(f, "%11s", "-");
	else if (ms < 1)
		fprintf(f, "%8.0f us", ms * 1e3);
	else if (ms < 10000)
		fprintf(f, ms < 100 ? "%8.2f ms" : "%8.1f ms", ms);
	else
		fprintf(f, "%9.2f s", ms / 1e3);
}

static void row(FILE *f, const char *name, const struct bench_summary *s)
{
	const double v[] = {s->mean, s->p50, s->p90, s->p95, s->p99, s->max};
	if (!s->n)
		return;
	fprintf(f, "  %-6s", name);
	for (size_t i = 0; i < sizeof v / sizeof *v; i++)
		ms_cell(f, v[i]);
	fputc('\n', f);
}

static void requests_line(const struct bench_report *p, FILE *f)
{
	const struct figures *g = p->f;
	fprintf(f, "  requests    %llu completed, %llu failed", (unsigned long long)g->ok,
	        (unsigned long long)g->failed);
	if (p->o->abort_fraction > 0)
		fprintf(f, ", %llu aborted by the client (--abort)", (unsigned long long)g->left);
	if (g->cut)
		fprintf(f, ", %llu cut off by the end of the run", (unsigned long long)g->cut);
	if (g->warmup_requests)
		fprintf(f, "; plus %llu during the warm-up (%llu failed), not counted",
		        (unsigned long long)g->warmup_requests, (unsigned long long)g->warmup_failed);
	fprintf(f, "; %.2f s\n", g->window_s);
}

static void rates(const struct bench_report *p, FILE *f)
{
	const struct figures *g = p->f;
	fprintf(f, "  throughput  %.2f requests/s, %.1f output tokens/s", g->request_rate,
	        g->token_rate);
	if (!isnan(g->full_token_rate) && p->o->concurrency)
		fprintf(f, " (%.1f at full load)", g->full_token_rate);
	fprintf(f, ", %.1f tokens/s including prompts\n", g->total_token_rate);
	if (!isnan(g->input_mean))
		fprintf(f, "  lengths     mean prompt %.1f %s, mean answer %.1f tokens", g->input_mean,
		        p->o->text && !p->server->tokens_per_word ? "words" : "tokens", g->output_mean);
	if (!isnan(g->cached_percent))
		fprintf(f, "; %.1f %% of the prompt tokens came from the server's cache",
		        g->cached_percent);
	if (!isnan(g->input_mean))
		fputc('\n', f);
}

static void events_line(const struct bench_report *p, FILE *f)
{
	const struct figures *g = p->f;
	if (!isnan(g->tokens_per_event) && g->tokens_per_event > 1.02)
		fprintf(f,
		        "  events      %.2f tokens per event; a gap (ITL) is the time between two events\n",
		        g->tokens_per_event);
	if (!isnan(g->together_percent) && g->together_percent > 2)
		fprintf(f, "  together    %.1f %% of the gaps are 0: these tokens arrived together\n",
		        g->together_percent);
}

static void slo_line(const struct bench_report *p, FILE *f)
{
	const struct slo *s = &p->o->slo;
	const struct {
		const char *name;
		uint64_t us;
	} parts[] = {
		{"ttft", s->ttft_us}, {"tpot", s->tpot_us}, {"longest gap", s->itl_us}, {"e2e", s->e2e_us}};
	const char *comma = "";
	if (!p->o->has_slo)
		return;
	fprintf(f,
	        "  goodput     %.2f requests/s, %.1f %% of all requests (failed ones included) with ",
	        p->f->goodput_rate, p->f->goodput_percent);
	for (size_t i = 0; i < 4; i++) {
		if (parts[i].us) {
			fprintf(f, "%s%s <= %g ms", comma, parts[i].name, (double)parts[i].us / 1e3);
			comma = ", ";
		}
	}
	fputc('\n', f);
}

static void limits_lines(const struct bench_report *p, FILE *f)
{
	const struct result *r = p->r;
	if (r->skipped)
		fprintf(f,
		        "  skipped     %llu requests longer than the limits (context %u, "
		        "--max-input, --max-output)\n",
		        (unsigned long long)r->skipped, p->server->context);
	if (r->clipped)
		fprintf(
			f,
			"  clipped     %llu requests to the limits (context %u, --max-input, --max-output)\n",
			(unsigned long long)r->clipped, p->server->context);
	if (r->cut_conversations)
		fprintf(f,
		        "  ended       %llu conversations early, because their next round would exceed the "
		        "limits\n",
		        (unsigned long long)r->cut_conversations);
	if (r->interrupted)
		fprintf(f, "  the run was interrupted: the figures cover the time before that\n");
}

static void client_lines(const struct bench_report *p, FILE *f)
{
	const struct figures *g = p->f;
	fprintf(f, "  client      %.1f %% of a core", g->cpu_percent);
	if (!isnan(g->cpu_us_per_token))
		fprintf(f, ", %.2f us of CPU time per token", g->cpu_us_per_token);
	fprintf(f, "; %llu connections, at most %u requests in flight",
	        (unsigned long long)p->r->connections, p->r->in_flight_most);
	if (!p->o->concurrency && g->late.n) {
		fputs("; sent late: p99", f);
		ms_cell(f, g->late.p99);
	}
	fputc('\n', f);
	if (!p->o->concurrency && p->r->in_flight_most >= p->o->in_flight_max)
		fprintf(f,
		        "  warning     requests waited in the client because %u were in flight "
		        "(--max-in-flight); their times include it\n",
		        p->o->in_flight_max);
	if (g->cpu_percent > 80)
		fprintf(f, "  warning     the client used most of a core, which may distort the figures\n");
	fprintf(f, "  times       %s; percentiles of gaps within 0.2 %%, the others exact\n",
	        p->o->concurrency ? "from when a request was sent"
	                          : "from when a request was due, even if it was sent later");
}

static void error_lines(const struct bench_report *p, FILE *f)
{
	const struct result *r = p->r;
	for (unsigned i = 0; i <= ERRORS_MAX; i++) {
		const struct error_kind *e = &r->errors[i];
		if (!e->count)
			continue;
		fprintf(f, "  failed      %llu x ", (unsigned long long)e->count);
		if (e->status)
			fprintf(f, "status %d: ", e->status);
		fprintf(f, "%s\n", e->text);
	}
}

void report_table(const struct bench_report *p, FILE *f)
{
	char load[120];
	report_load(p->o, load, sizeof load);
	fprintf(f, "%s at http%s://%s%s%s: %s\n", *p->server->model ? p->server->model : "server",
	        p->o->urls[0].tls ? "s" : "", p->o->urls[0].authority, p->o->urls[0].path,
	        p->o->n_urls > 1 ? " and others" : "", load);
	fprintf(f, "  %-6s%11s%11s%11s%11s%11s%11s\n", "", "mean", "p50", "p90", "p95", "p99", "max");
	row(f, "TTFT", &p->f->ttft);
	row(f, "ITL", &p->f->itl);
	row(f, "TPOT", &p->f->tpot);
	row(f, "E2E", &p->f->e2e);
	requests_line(p, f);
	if (*p->server->adapted)
		fprintf(f, "  adapted     %s\n", p->server->adapted);
	rates(p, f);
	events_line(p, f);
	slo_line(p, f);
	limits_lines(p, f);
	client_lines(p, f);
	error_lines(p, f);
}

/* --- RESULT lines -------------------------------------------------------- */

struct results {
	FILE *f;
	const char *prefix;
};

static void result_line(void *arg, const char *name, double v, int digits)
{
	struct results *r = arg;
	fprintf(r->f, "RESULT %s%s=%.*f\n", r->prefix, name, digits, v);
}

void report_results(const struct bench_report *p, FILE *f)
{
	struct results r = {f, p->o->result_prefix ? p->o->result_prefix : ""};
	figures_visit(p->f, p->o->has_slo, result_line, &r);
}

/* --- JSON ---------------------------------------------------------------- */

static FILE *open_out(const char *path, struct err *err)
{
	FILE *f = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
	if (!f)
		err_set(err, ERR_IO, "cannot write %s: %s", path, strerror(errno));
	return f;
}

static int close_out(FILE *f, const char *path, struct err *err)
{
	int bad = fflush(f) != 0 || ferror(f), e = errno;
	if (f != stdout)
		bad |= fclose(f) != 0;
	return bad ? err_set(err, ERR_IO, "cannot write %s: %s", path, strerror(e)) : 0;
}

/* Accepts any bytes: json_string refuses text that is not UTF-8. */
static json_t *any_text(const char *s)
{
	json_t *j = json_string(s);
	struct buf b;
	if (j)
		return j;
	buf_init(&b, 0);
	buf_add_json(&b, s, strlen(s));
	j = json_loads(b.data, JSON_DECODE_ANY, NULL);
	buf_fini(&b);
	return j ? j : json_null();
}

static void member(void *arg, const char *name, double v, int digits)
{
	json_object_set_new(arg, name, digits ? json_real(v) : json_integer((json_int_t)v));
}

static json_t *errors_json(const struct result *r)
{
	json_t *list = json_array();
	for (unsigned i = 0; i <= ERRORS_MAX; i++)
		if (r->errors[i].count)
			json_array_append_new(list, json_pack("{s:i,s:o,s:I}", "status", r->errors[i].status,
			                                      "text", any_text(r->errors[i].text), "count",
			                                      (json_int_t)r->errors[i].count));
	return list;
}

static json_t *timeline_json(const struct timeline *t)
{
	json_t *tokens = json_array(), *in_flight = json_array(), *waiting = json_array(),
		   *done = json_array(), *arrived = json_array();
	for (unsigned i = 0; i < t->n; i++) {
		const struct slot *s = &t->slots[i];
		double k = s->samples ? s->samples : 1;
		json_array_append_new(tokens, json_integer((json_int_t)s->tokens));
		json_array_append_new(arrived, json_integer((json_int_t)s->arrived));
		json_array_append_new(done, json_integer((json_int_t)s->done));
		json_array_append_new(in_flight, json_real(s->in_flight / k));
		json_array_append_new(waiting, json_real(s->waiting / k));
	}
	return json_pack("{s:f,s:o,s:o,s:o,s:o,s:o}", "slot_s", (double)t->slot_us / 1e6, "tokens",
	                 tokens, "sent", arrived, "ended", done, "under_way", in_flight,
	                 "waiting_for_first_token", waiting);
}

static json_t *command_json(const struct bench_report *p)
{
	json_t *list = json_array();
	for (int i = 0; i < p->argc; i++) {
		int secret = i > 0 && strcmp(p->argv[i - 1], "--api-key") == 0;
		json_array_append_new(list, secret || strncmp(p->argv[i], "--api-key=", 10) == 0
		                                ? json_string("(key)")
		                                : any_text(p->argv[i]));
	}
	return list;
}

int report_json(const struct bench_report *p, const char *path, struct err *err)
{
	char load[120];
	json_t *all = json_object(), *figures = json_object(), *urls = json_array();
	report_load(p->o, load, sizeof load);
	for (unsigned i = 0; i < p->o->n_urls; i++)
		json_array_append_new(urls, json_sprintf("http%s://%s%s", p->o->urls[i].tls ? "s" : "",
		                                         p->o->urls[i].authority, p->o->urls[i].path));
	figures_visit(p->f, p->o->has_slo, member, figures);
	json_object_set_new(all, "format", json_string("pdbench 1"));
	if (p->o->title)
		json_object_set_new(all, "title", any_text(p->o->title));
	json_object_set_new(all, "command", command_json(p));
	json_object_set_new(all, "urls", urls);
	json_object_set_new(all, "model", any_text(p->o->model ? p->o->model : p->server->model));
	json_object_set_new(all, "load", json_string(load));
	json_object_set_new(all, "adapted", json_string(p->server->adapted));
	json_object_set_new(all, "began_unix_us", json_integer((json_int_t)p->r->began_unix_us));
	json_object_set_new(all, "interrupted", json_boolean(p->r->interrupted));
	json_object_set_new(all, "times_from", json_string(p->o->concurrency ? "sent" : "due"));
	json_object_set_new(all, "figures", figures);
	json_object_set_new(all, "skipped", json_integer((json_int_t)p->r->skipped));
	json_object_set_new(all, "clipped", json_integer((json_int_t)p->r->clipped));
	json_object_set_new(all, "cut_conversations",
	                    json_integer((json_int_t)p->r->cut_conversations));
	json_object_set_new(all, "errors", errors_json(p->r));
	json_object_set_new(all, "timeline", timeline_json(&p->r->timeline));
	FILE *f = open_out(path, err);
	int code = f ? 0 : ERR_IO;
	if (f) {
		json_dumpf(all, f, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
		fputc('\n', f);
		code = close_out(f, path, err);
	}
	json_decref(all);
	return code;
}

static void put_ms(FILE *f, const char *name, double ms)
{
	if (!isnan(ms))
		fprintf(f, ",\"%s\":%.3f", name, ms);
}

static void put_record(const struct bench_report *p, const struct bench_record *r, FILE *f)
{
	static const char *const outcomes[] = {"ok", "failed", "left", "cut"};
	fprintf(f,
	        "{\"number\":%llu,\"conversation\":%llu,\"round\":%u,\"measured\":%s,\"due_s\":%.6f,"
	        "\"sent_s\":%.6f,\"input_tokens\":%u,\"max_tokens\":%u,"
	        "\"output_tokens\":%u,\"prompt_tokens\":%u,\"cached_tokens\":%u,\"outcome\":\"%s\","
	        "\"status\":%d",
	        (unsigned long long)r->number, (unsigned long long)r->conversation, r->round,
	        r->measured ? "true" : "false", (double)r->due_us / 1e6, (double)r->sent_us / 1e6,
	        r->input_tokens, r->max_tokens, r->output_tokens, r->prompt_tokens, r->cached_tokens,
	        outcomes[r->outcome], r->status);
	put_ms(f, "ttft_ms", record_ttft_ms(r));
	put_ms(f, "tpot_ms", record_tpot_ms(r));
	put_ms(f, "longest_gap_ms", r->first_us ? (double)r->longest_gap_us / 1e3 : NAN);
	put_ms(f, "e2e_ms", record_e2e_ms(r));
	if (p->o->has_slo)
		fprintf(f, ",\"good\":%s", figures_is_good(r, &p->o->slo) ? "true" : "false");
	if (r->error >= 0) {
		struct buf b;
		const char *text = p->r->errors[r->error].text;
		buf_init(&b, 0);
		buf_add_json(&b, text, strlen(text));
		fprintf(f, ",\"error\":%s", b.data);
		buf_fini(&b);
	}
	fputs("}\n", f);
}

int report_requests(const struct bench_report *p, const char *path, struct err *err)
{
	FILE *f = open_out(path, err);
	if (!f)
		return ERR_IO;
	for (size_t i = 0; i < p->r->n; i++)
		put_record(p, &p->r->records[i], f);
	return close_out(f, path, err);
}
