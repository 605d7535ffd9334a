/* options.c - see options.h. One table describes every option: name, argument, help and parser.
 * --help prints it. */
#include "options.h"

#include "util/mem.h"
#include "value.h"

#include <getopt.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TOKENS_MAX 4194304.0
#define NUMBER_MAX 10000000u
#define RATE_MAX 100000.0
#define CONCURRENCY_MAX 60000u
#define HOURS_US (3600ull * 1000000)

typedef int set_fn(struct bench_options *o, const char *name, const char *v, struct err *err);

/* --- load --- */

static int set_rate(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return value_double(name, v, 0.001, RATE_MAX, &o->rate, err);
}

static int set_concurrency(struct bench_options *o, const char *name, const char *v,
                           struct err *err)
{
	uint64_t n = 0;
	int r = value_uint(name, v, 1, CONCURRENCY_MAX, &n, err);
	o->concurrency = (unsigned)n;
	return r;
}

static int set_arrivals(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	static const char *const names[] = {"poisson", "constant", "trace"};
	for (unsigned i = 0; i < 3; i++) {
		if (strcmp(v, names[i]) == 0) {
			o->arrivals = (enum arrivals)i;
			o->has_arrivals = 1;
			return 0;
		}
	}
	return err_set(err, ERR_INVALID, "%s must be poisson, constant or trace, got \"%.60s\"", name,
	               v);
}

static int set_number(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return value_uint(name, v, 1, NUMBER_MAX, &o->number, err);
}

static int set_duration(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return value_time(name, v, 10000, 168 * HOURS_US, &o->duration_us, err);
}

static int set_warmup(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return value_span(name, v, &o->warmup, err);
}

static int set_ramp(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return value_time(name, v, 0, 24 * HOURS_US, &o->ramp_us, err);
}

static int set_timeout(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return value_time(name, v, 10000, 24 * HOURS_US, &o->timeout_us, err);
}

static int set_in_flight(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	uint64_t n = 0;
	int r = value_uint(name, v, 1, CONCURRENCY_MAX, &n, err);
	o->in_flight_max = (unsigned)n;
	return r;
}

static int set_abort(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return value_share(name, v, &o->abort_fraction, err);
}

static int set_fresh(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	(void)name;
	(void)v;
	(void)err;
	o->fresh_connections = 1;
	return 0;
}

/* --- workload --- */

static int set_input(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	o->has_input = 1;
	return value_dist(name, v, 1, TOKENS_MAX, &o->input, err);
}

static int set_output(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	o->has_output = 1;
	return value_dist(name, v, 1, TOKENS_MAX, &o->output, err);
}

static int set_u32(const char *name, const char *v, uint64_t min, uint64_t max, uint32_t *ret,
                   struct err *err)
{
	uint64_t n = 0;
	int r = value_uint(name, v, min, max, &n, err);
	*ret = (uint32_t)n;
	return r;
}

static int set_prefix_tokens(struct bench_options *o, const char *name, const char *v,
                             struct err *err)
{
	return set_u32(name, v, 0, (uint64_t)TOKENS_MAX, &o->prefix_tokens, err);
}

static int set_prefix_groups(struct bench_options *o, const char *name, const char *v,
                             struct err *err)
{
	return set_u32(name, v, 1, 1000000, &o->prefix_groups, err);
}

static int set_rounds(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	o->has_rounds = 1;
	return value_dist(name, v, 1, 10000, &o->rounds, err);
}

static int set_think(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return value_time_dist(name, v, &o->think_us, err);
}

static int set_text(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	(void)v;
	(void)err;
	o->text = 1;
	o->chat |= strcmp(name, "--chat") == 0;
	return 0;
}

static int set_vocab(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	uint64_t low = 0, high = 0;
	char part[24];
	size_t n = strcspn(v, "-");
	snprintf(part, sizeof part, "%.*s", (int)n, v);
	int bad = n >= sizeof part - 1 || value_uint(name, part, 0, UINT32_MAX, &low, NULL) < 0 ||
	          (v[n] && value_uint(name, v + n + 1, 1, UINT32_MAX, &high, NULL) < 0);
	if (!bad && !v[n]) {
		high = low;
		low = 0;
	}
	if (bad || high < low + 2)
		return err_set(err, ERR_INVALID,
		               "%s must be N (token ids 0 to N-1) or LOW-HIGH (LOW to HIGH-1), at least "
		               "two ids, up to %u, got \"%.60s\"",
		               name, UINT32_MAX, v);
	o->vocab_low = (uint32_t)low;
	o->vocab_high = (uint32_t)high;
	return 0;
}

static int set_lengths(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	(void)name;
	(void)err;
	o->lengths = v;
	return 0;
}

static int set_trace(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	(void)name;
	(void)err;
	o->trace = v;
	return 0;
}

static int set_time_scale(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return value_double(name, v, 0.001, 100000, &o->time_scale, err);
}

static int set_sample(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	if (value_share(name, v, &o->sample, err) < 0)
		return ERR_INVALID;
	return o->sample > 0 ? 0
	                     : err_set(err, ERR_INVALID,
	                               "%s must be more than 0 and at most 1, got \"%.60s\"", name, v);
}

static int set_length_scale(struct bench_options *o, const char *name, const char *v,
                            struct err *err)
{
	return set_u32(name, v, 1, 4096, &o->length_scale, err);
}

static int set_trace_block(struct bench_options *o, const char *name, const char *v,
                           struct err *err)
{
	return set_u32(name, v, 1, 65536, &o->trace_block, err);
}

static int set_max_input(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return set_u32(name, v, 1, (uint64_t)TOKENS_MAX, &o->max_input, err);
}

static int set_max_output(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return set_u32(name, v, 1, (uint64_t)TOKENS_MAX, &o->max_output, err);
}

static int set_over(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	o->clip = strcmp(v, "clip") == 0;
	return o->clip || strcmp(v, "skip") == 0
	           ? 0
	           : err_set(err, ERR_INVALID, "%s must be clip or skip, got \"%.60s\"", name, v);
}

/* --- requests --- */

static int set_temperature(struct bench_options *o, const char *name, const char *v,
                           struct err *err)
{
	return value_double(name, v, 0, 100, &o->temperature, err);
}

static int set_seed(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	return value_uint(name, v, 0, INT64_MAX, &o->seed, err);
}

static int set_natural_end(struct bench_options *o, const char *name, const char *v,
                           struct err *err)
{
	(void)name;
	(void)v;
	(void)err;
	o->natural_end = 1;
	return 0;
}

static int set_token_ids(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	(void)name;
	(void)v;
	(void)err;
	o->token_ids = 1;
	return 0;
}

static int set_sessions(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	(void)name;
	(void)v;
	(void)err;
	o->sessions = 1;
	return 0;
}

static int set_model(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	o->model = v;
	return strlen(v) < 1024
	           ? 0
	           : err_set(err, ERR_INVALID, "%s has %zu bytes, more than 1023", name, strlen(v));
}

/* Line breaks must not get into the head of a request. */
static int check_header(const char *name, const char *v, struct err *err)
{
	for (const char *p = v; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 127)
			return err_set(err, ERR_INVALID, "%s has a control character (0x%02x) at byte %zu",
			               name, (unsigned char)*p, (size_t)(p - v));
	return strlen(v) <= 4096
	           ? 0
	           : err_set(err, ERR_INVALID, "%s has %zu bytes, more than 4096", name, strlen(v));
}

static int set_api_key(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	o->api_key = v;
	return check_header(name, v, err);
}

static int set_cacert(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	(void)name;
	(void)err;
	o->cacert = v;
	return 0;
}

static int set_insecure(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	(void)name;
	(void)v;
	(void)err;
	o->insecure = 1;
	return 0;
}

static int set_header(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	static const char *const ours[] = {"host", "content-length", "transfer-encoding", "connection",
	                                   "expect"};
	size_t n = strcspn(v, ":");
	if (check_header(name, v, err) < 0)
		return ERR_INVALID;
	if (n == 0 || v[n] != ':' || strcspn(v, " \t\"(),/;<=>?@[\\]{}") < n)
		return err_set(err, ERR_INVALID, "%s must be NAME: VALUE, got \"%.60s\"", name, v);
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (strlen(ours[i]) == n && strncasecmp(ours[i], v, n) == 0)
			return err_set(err, ERR_INVALID, "%s: %s is set by pdbench itself", name, ours[i]);
	if (buf_printf(&o->headers, "%s\r\n", v) < 0)
		return err_set(err, ERR_INVALID, "the headers have more than %zu bytes in total",
		               o->headers.limit);
	return 0;
}

static int set_extra(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	static const char *const ours[] = {"prompt",     "messages",
	                                   "stream",     "stream_options",
	                                   "n",          "return_token_ids",
	                                   "max_tokens", "max_completion_tokens",
	                                   "ignore_eos"};
	json_error_t why;
	json_t *j = json_loads(v, 0, &why);
	if (!json_is_object(j)) {
		json_decref(j);
		return err_set(err, ERR_INVALID, "%s must be a JSON object, got \"%.60s\"%s%s", name, v,
		               j ? "" : ": ", j ? "" : why.text);
	}
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
		if (json_object_get(j, ours[i])) {
			json_decref(j);
			return err_set(err, ERR_INVALID, "%s: \"%s\" is set by pdbench itself", name, ours[i]);
		}
	}
	if (!o->extra)
		o->extra = json_object();
	json_object_update(o->extra, j);
	json_decref(j);
	return 0;
}

/* --- results --- */

static int set_slo(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	o->has_slo = 1;
	return value_slo(name, v, &o->slo, err);
}

static int set_allow(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	o->allow_fraction = 0;
	o->allow_count = 0;
	return strchr(v, '%') ? value_share(name, v, &o->allow_fraction, err)
	                      : value_uint(name, v, 0, NUMBER_MAX, &o->allow_count, err);
}

static int set_file(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	if (!*v)
		return err_set(err, ERR_INVALID, "%s needs a file name, got nothing", name);
	if (strcmp(name, "--json") == 0)
		o->json = v;
	else if (strcmp(name, "--svg") == 0)
		o->svg = v;
	else
		o->requests = v;
	return 0;
}

static int set_result_prefix(struct bench_options *o, const char *name, const char *v,
                             struct err *err)
{
	o->result_prefix = v;
	for (const char *p = v; *p; p++)
		if ((unsigned char)*p <= ' ' || *p == '=')
			return err_set(err, ERR_INVALID, "%s must have no space and no '=', got \"%.60s\"",
			               name, v);
	return 0;
}

static int set_title(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	o->title = v;
	return strlen(v) <= 200
	           ? 0
	           : err_set(err, ERR_INVALID, "%s has %zu bytes, more than 200", name, strlen(v));
}

static int set_quiet(struct bench_options *o, const char *name, const char *v, struct err *err)
{
	(void)name;
	(void)v;
	(void)err;
	o->quiet = 1;
	return 0;
}

/* --- the table --- */

static const struct option_entry {
	const char *name; /* NULL: a heading */
	char letter;
	const char *arg; /* NULL: no argument */
	const char *help;
	set_fn *set;
} entries[] = {
	{NULL, 0, NULL, "load (default: --concurrency 1; with --trace: the trace's own times)", NULL},
	{"concurrency", 'c', "N", "closed loop: N requests (or conversations) are always in flight",
     set_concurrency},
	{"rate", 'r', "R",
     "open loop: R requests (or conversations) per second, however fast the server is", set_rate},
	{"arrivals", 0, "KIND", "open loop: poisson (default), constant, or trace", set_arrivals},
	{"number", 'n', "N",
     "stop after N measured requests (default: 100, 20 x concurrency, or the whole trace)",
     set_number},
	{"duration", 'd', "TIME", "or stop after this time; pdbench waits for requests in flight",
     set_duration},
	{"warmup", 'w', "N|TIME", "number of requests or time (5s) before measuring begins",
     set_warmup},
	{"ramp", 0, "TIME", "load grows linearly to its full size during this time", set_ramp},
	{"timeout", 0, "TIME", "requests that take longer fail (default 600s)", set_timeout},
	{"max-in-flight", 0, "N",
     "open loop: limit of requests in flight; others wait, and the wait counts (default 4096)",
     set_in_flight},
	{"abort", 0, "P%", "share of requests that the client aborts at a random point of the answer",
     set_abort},
	{"fresh-connections", 0, NULL, "a new connection per request, instead of keep-alive",
     set_fresh},
	{NULL, 0, NULL, "workload", NULL},
	{"input", 'i', "LENGTH", "prompt tokens: N, LOW-HIGH, lognormal:MEAN,SIGMA[,MAX] (default 256)",
     set_input},
	{"output", 'o', "LENGTH", "answer tokens, likewise (default 64)", set_output},
	{"lengths", 0, "FILE",
     "both from a JSONL file with input_length and output_length per line, repeated as needed",
     set_lengths},
	{"prefix-tokens", 0, "N",
     "the first N tokens of a prompt are shared within its group, in addition to --input",
     set_prefix_tokens},
	{"prefix-groups", 0, "N", "number of groups that share a prefix (default 1)",
     set_prefix_groups},
	{"rounds", 0, "LENGTH",
     "conversations with this many rounds; a prompt is the history plus --input new tokens",
     set_rounds},
	{"think", 0, "TIME",
     "pause before the next round: a time, LOW-HIGH, lognormal:MEAN,SIGMA (default 0)", set_think},
	{"text", 0, NULL, "prompts are text, of about the length in tokens that is asked for",
     set_text},
	{"chat", 0, NULL, "text, sent to /v1/chat/completions", set_text},
	{"vocab", 0, "N|LOW-HIGH", "token ids of prompts (default: from /v1/models, else 3-256)",
     set_vocab},
	{"trace", 0, "FILE",
     "replay a trace: JSONL with timestamp (ms), input_length, output_length, hash_ids", set_trace},
	{"time-scale", 0, "F", "replay the trace F times as fast", set_time_scale},
	{"sample", 0, "SHARE", "use only this share of the trace's conversations", set_sample},
	{"length-scale", 0, "N", "divide all lengths of the trace (or of --lengths) by N",
     set_length_scale},
	{"trace-block", 0, "N", "tokens per hash id (default 512)", set_trace_block},
	{"max-input", 0, "N", "longest prompt (default: limited by the server's context)",
     set_max_input},
	{"max-output", 0, "N", "longest answer", set_max_output},
	{"over", 0, "skip|clip", "skip (default) or clip requests that exceed these limits", set_over},
	{NULL, 0, NULL, "requests", NULL},
	{"temperature", 0, "T", "sampling temperature (default 0)", set_temperature},
	{"seed", 0, "N", "seed of lengths, prompts, arrivals and sampling (default 1)", set_seed},
	{"natural-end", 0, NULL, "answers may end early (do not send ignore_eos)", set_natural_end},
	{"token-ids", 0, NULL,
     "request the answer's token ids (always on in conversations of token ids)", set_token_ids},
	{"sessions", 0, NULL, "send each request's conversation in the header X-Session-Id",
     set_sessions},
	{"model", 'm', "NAME", "model to use (default: the server's first)", set_model},
	{"api-key", 0, "KEY",
     "sent as Authorization: Bearer KEY (default: environment variable OPENAI_API_KEY)",
     set_api_key},
	{"cacert", 0, "FILE",
     "https: certificates of the authorities to trust, PEM (default: the system's)", set_cacert},
	{"insecure", 0, NULL, "https: accept any certificate", set_insecure},
	{"header", 'H', "NAME: VALUE", "additional request header; may be repeated", set_header},
	{"extra-body", 'e', "JSON", "members to add to each request's body", set_extra},
	{NULL, 0, NULL, "results", NULL},
	{"slo", 0, "LIMITS",
     "limits for goodput, all must hold: ttft=500ms,tpot=50ms,itl=200ms,e2e=10s (itl: longest gap)",
     set_slo},
	{"allow-errors", 0, "N|P%",
     "number or share of failed requests allowed for exit status 0 (default 0)", set_allow},
	{"json", 'j', "FILE", "write all figures as JSON; - is stdout", set_file},
	{"requests", 0, "FILE", "write one JSON line per request", set_file},
	{"svg", 0, "FILE", "write a page of plots", set_file},
	{"result-prefix", 0, "TEXT", "print RESULT TEXTname=value lines at the end", set_result_prefix},
	{"title", 0, "TEXT", "title of the page of plots and of the JSON", set_title},
	{"quiet", 'q', NULL, "no progress, no table", set_quiet},
};
#define ENTRIES (sizeof entries / sizeof *entries)
#define HELP_KEY 1000
#define VERSION_KEY 999

void options_help(FILE *f)
{
	fputs("usage: pdbench [OPTION]... [URL]...\n"
	      "Generates load on a server with OpenAI's HTTP interface and reports how it performed.\n"
	      "URL: http[s]://HOST:PORT (default http://127.0.0.1:8080). Several URLs take turns.\n",
	      f);
	for (size_t i = 0; i < ENTRIES; i++) {
		const struct option_entry *e = &entries[i];
		char left[64], letter[5] = "    ";
		if (!e->name) {
			fprintf(f, "%s:\n", e->help);
			continue;
		}
		if (e->letter)
			snprintf(letter, sizeof letter, "-%c, ", e->letter);
		snprintf(left, sizeof left, "%s--%s%s%s", letter, e->name, e->arg ? " " : "",
		         e->arg ? e->arg : "");
		fprintf(f, "  %-28s %s\n", left, e->help);
	}
	fputs(
		"  -h, --help, -V, --version\n"
		"Times: 250us, 500ms, 5s, 2m, 1h. In an open loop, times are measured from when a request\n"
		"was due, so a server that stalls cannot hide it.\n"
		"exit status: 0 done, 1 requests failed or a file could not be written, 2 wrong usage,\n"
		"             3 no server\n",
		f);
}

static void fill_getopt(struct option *longs, char *shorts)
{
	size_t n = 0, s = 0;
	shorts[s++] = ':';
	for (size_t i = 0; i < ENTRIES; i++) {
		const struct option_entry *e = &entries[i];
		if (!e->name)
			continue;
		longs[n++] = (struct option){e->name, e->arg ? required_argument : no_argument, NULL,
		                             (int)(HELP_KEY + 1 + i)};
		if (!e->letter)
			continue;
		shorts[s++] = e->letter;
		if (e->arg)
			shorts[s++] = ':';
	}
	longs[n++] = (struct option){"help", no_argument, NULL, HELP_KEY};
	longs[n++] = (struct option){"version", no_argument, NULL, VERSION_KEY};
	longs[n] = (struct option){0};
	shorts[s++] = 'h';
	shorts[s++] = 'V';
	shorts[s] = 0;
}

static const struct option_entry *entry_of(int c)
{
	if (c > HELP_KEY && c <= HELP_KEY + (int)ENTRIES)
		return &entries[c - HELP_KEY - 1];
	for (size_t i = 0; i < ENTRIES; i++)
		if (entries[i].letter && entries[i].letter == c)
			return &entries[i];
	return NULL;
}

/* Explains a getopt error; c is getopt's result. */
static int usage_error(int c, char **argv, struct err *err)
{
	const char *word = argv[optind - 1];
	const struct option_entry *e = entry_of(optopt);
	if (c == ':' && e)
		return err_set(err, ERR_INVALID, "--%s needs a value (%s)", e->name, e->arg);
	if (e && !e->arg)
		return err_set(err, ERR_INVALID, "--%s takes no value", e->name);
	if (optopt && optopt < 256)
		return err_set(err, ERR_INVALID, "there is no option -%c; pdbench --help lists them",
		               optopt);
	return err_set(err, ERR_INVALID,
	               "there is no option \"%.60s\", or it is ambiguous; pdbench --help lists them",
	               word);
}

static void set_defaults(struct bench_options *o)
{
	*o = (struct bench_options){
		.arrivals = ARRIVE_POISSON,
		.timeout_us = 600 * 1000000ull,
		.in_flight_max = 4096,
		.input = {.kind = DIST_FIXED, .a = 256, .max = TOKENS_MAX},
		.output = {.kind = DIST_FIXED, .a = 64, .max = TOKENS_MAX},
		.rounds = {.kind = DIST_FIXED, .a = 1, .max = 10000},
		.think_us = {.kind = DIST_FIXED, .a = 0, .max = 3600e6},
		.prefix_groups = 1,
		.time_scale = 1,
		.sample = 1,
		.length_scale = 1,
		.trace_block = 512,
		.seed = 1,
		.api_key = getenv("OPENAI_API_KEY"),
	};
	buf_init(&o->headers, 65536);
}

/* Checks combinations of options. */
static int check_together(struct bench_options *o, struct err *err)
{
	int open = o->rate > 0 || (o->trace && !o->concurrency);
	if (o->rate > 0 && o->concurrency)
		return err_set(
			err, ERR_INVALID,
			"--rate is an open loop, --concurrency a closed loop: give only one of them");
	if (o->has_arrivals && !open)
		return err_set(err, ERR_INVALID, "--arrivals needs an open loop: give --rate or --trace");
	if (o->arrivals == ARRIVE_TRACE && (!o->trace || o->rate > 0))
		return err_set(err, ERR_INVALID, "--arrivals trace needs --trace FILE, and no --rate");
	if (o->has_arrivals && o->arrivals != ARRIVE_TRACE && o->rate <= 0)
		return err_set(err, ERR_INVALID, "--arrivals poisson and constant need --rate");
	if (o->trace && (o->has_input || o->has_output || o->lengths || o->has_rounds ||
	                 o->prefix_tokens || o->text))
		return err_set(err, ERR_INVALID,
		               "--trace defines lengths and prefixes: --input, --output, --lengths, "
		               "--rounds, --prefix-tokens, --text and --chat cannot be used with it");
	if (o->lengths && (o->has_input || o->has_output))
		return err_set(
			err, ERR_INVALID,
			"--lengths defines both lengths: --input and --output cannot be used with it");
	if (!o->trace && (o->time_scale != 1 || o->sample != 1))
		return err_set(err, ERR_INVALID, "--time-scale and --sample need --trace");
	if (o->ramp_us && open && o->rate <= 0)
		return err_set(err, ERR_INVALID,
		               "--ramp needs --rate or --concurrency; a trace has its own times");
	if (o->trace_block % o->length_scale)
		return err_set(err, ERR_INVALID, "--length-scale %u does not divide the block of %u tokens",
		               o->length_scale, o->trace_block);
	if (o->vocab_high && o->text)
		return err_set(err, ERR_INVALID,
		               "--vocab applies to prompts of token ids, not to --text and --chat");
	if (o->token_ids && o->text && o->chat && o->has_rounds)
		return err_set(
			err, ERR_INVALID,
			"--token-ids has no effect in chat conversations: their rounds are sent as text");
	if (o->api_key && !*o->api_key)
		o->api_key = NULL;
	if (o->api_key)
		return check_header("--api-key (or OPENAI_API_KEY)", o->api_key, err);
	return 0;
}

static void apply_defaults(struct bench_options *o)
{
	if (o->rate <= 0 && !o->concurrency && !o->trace)
		o->concurrency = 1;
	if (o->trace && o->rate <= 0 && !o->concurrency)
		o->arrivals = ARRIVE_TRACE;
	if (!o->number && !o->duration_us && !o->trace)
		o->number = o->concurrency ? 20 * (uint64_t)o->concurrency : 100;
}

static int read_urls(int argc, char **argv, struct bench_options *o, struct err *err)
{
	if (argc - optind > URLS_MAX)
		return err_set(err, ERR_INVALID, "%d addresses, more than %d", argc - optind, URLS_MAX);
	for (int i = optind; i < argc; i++)
		if (url_parse(argv[i], &o->urls[o->n_urls++], err) < 0)
			return ERR_INVALID;
	if (!o->n_urls)
		url_parse("http://127.0.0.1:8080", &o->urls[o->n_urls++], NULL);
	return 0;
}

int options_parse(int argc, char **argv, struct bench_options *o, struct err *err)
{
	struct option longs[ENTRIES + 3];
	char shorts[2 * ENTRIES + 5], name[48];
	int c;
	set_defaults(o);
	fill_getopt(longs, shorts);
	opterr = 0;
	optind = 0;
	while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		if (c == HELP_KEY || c == 'h')
			return OPTIONS_HELP;
		if (c == VERSION_KEY || c == 'V')
			return OPTIONS_VERSION;
		const struct option_entry *e = c == '?' || c == ':' ? NULL : entry_of(c);
		if (!e)
			return usage_error(c, argv, err);
		snprintf(name, sizeof name, "--%s", e->name);
		if (e->set(o, name, optarg, err) < 0)
			return ERR_INVALID;
	}
	if (read_urls(argc, argv, o, err) < 0 || check_together(o, err) < 0)
		return ERR_INVALID;
	apply_defaults(o);
	return OPTIONS_RUN;
}

void options_fini(struct bench_options *o)
{
	buf_fini(&o->headers);
	SSL_CTX_free(o->tls);
	json_decref(o->extra);
	o->extra = NULL;
}
