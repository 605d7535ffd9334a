/* figures.c - see figures.h. */
#include "figures.h"

#include "util/mem.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_US 100000u

/* --- gaps ---------------------------------------------------------------- */

void hist_init(struct hist *h)
{
	memset(h, 0, sizeof *h);
	h->count = mem_array(HIST_BUCKETS, sizeof *h->count);
}

void hist_fini(struct hist *h)
{
	free(h->count);
	h->count = NULL;
}

/* Values below 2^8 have one bucket each; above, each octave has 2^8 buckets. */
static unsigned bucket_of(uint64_t v)
{
	if (v < 1u << HIST_SUB_BITS)
		return (unsigned)v;
	unsigned shift = 63u - (unsigned)__builtin_clzll(v) - HIST_SUB_BITS;
	unsigned i = ((shift + 1) << HIST_SUB_BITS) + (unsigned)((v >> shift) - (1u << HIST_SUB_BITS));
	return i;
}

uint64_t hist_low(unsigned i)
{
	if (i < 1u << HIST_SUB_BITS)
		return i;
	unsigned shift = (i >> HIST_SUB_BITS) - 1;
	return ((uint64_t)(i & ((1u << HIST_SUB_BITS) - 1)) + (1u << HIST_SUB_BITS)) << shift;
}

uint64_t hist_width(unsigned i)
{
	return i < 1u << HIST_SUB_BITS ? 1 : (uint64_t)1 << ((i >> HIST_SUB_BITS) - 1);
}

void hist_add(struct hist *h, uint64_t v)
{
	h->count[bucket_of(v)]++;
	h->n++;
	h->sum += (double)v;
	if (v > h->max)
		h->max = v;
}

double hist_mean(const struct hist *h)
{
	return h->n ? h->sum / (double)h->n : NAN;
}

double hist_percentile(const struct hist *h, double p)
{
	uint64_t rank = (uint64_t)ceil(p / 100 * (double)h->n), seen = 0;
	if (!h->n)
		return NAN;
	if (rank < 1)
		rank = 1;
	for (unsigned i = 0; i < HIST_BUCKETS; i++) {
		seen += h->count[i];
		if (seen >= rank) {
			double v = (double)hist_low(i) + (double)(hist_width(i) - 1) / 2;
			return v > (double)h->max ? (double)h->max : v;
		}
	}
	return (double)h->max;
}

/* --- over time ----------------------------------------------------------- */

void timeline_init(struct timeline *t)
{
	memset(t, 0, sizeof *t);
	t->slot_us = SLOT_US;
}

static void merge_slots(struct timeline *t)
{
	for (unsigned i = 0; i < TIMELINE_SLOTS / 2; i++) {
		struct slot *a = &t->slots[2 * i], *b = a + 1;
		t->slots[i] = (struct slot){a->tokens + b->tokens,   a->arrived + b->arrived,
		                            a->done + b->done,       a->in_flight + b->in_flight,
		                            a->waiting + b->waiting, a->samples + b->samples};
	}
	memset(t->slots + TIMELINE_SLOTS / 2, 0, sizeof t->slots / 2);
	t->slot_us *= 2;
	t->n = (t->n + 1) / 2;
}

struct slot *timeline_at(struct timeline *t, uint64_t since_us)
{
	while (since_us / t->slot_us >= TIMELINE_SLOTS)
		merge_slots(t);
	unsigned i = (unsigned)(since_us / t->slot_us);
	if (i >= t->n)
		t->n = i + 1;
	return &t->slots[i];
}

/* --- records ------------------------------------------------------------- */

void result_init(struct result *r)
{
	memset(r, 0, sizeof *r);
	hist_init(&r->gaps);
	timeline_init(&r->timeline);
}

void result_fini(struct result *r)
{
	hist_fini(&r->gaps);
	free(r->records);
	r->records = NULL;
}

struct bench_record *result_record(struct result *r)
{
	if (r->n == r->size) {
		r->size = r->size ? r->size * 2 : 1024;
		r->records = mem_grow(r->records, r->size, sizeof *r->records);
	}
	struct bench_record *rec = &r->records[r->n++];
	memset(rec, 0, sizeof *rec);
	rec->error = -1;
	return rec;
}

/* Are the texts equal except for digits? "waited 12 ms" and "waited 13 ms" are the same kind. */
static int same_kind(const char *a, const char *b)
{
	while (*a && *b) {
		if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
			a += strspn(a, "0123456789");
			b += strspn(b, "0123456789");
		} else if (*a++ != *b++) {
			return 0;
		}
	}
	return *a == *b;
}

int result_error(struct result *r, int status, const char *text)
{
	char cut[sizeof r->errors[0].text];
	snprintf(cut, sizeof cut, "%s", text);
	for (unsigned i = 0; i < r->n_errors; i++) {
		if (r->errors[i].status == status && same_kind(r->errors[i].text, cut)) {
			r->errors[i].count++;
			return (int)i;
		}
	}
	if (r->n_errors < ERRORS_MAX) {
		struct error_kind *e = &r->errors[r->n_errors++];
		e->status = status;
		memcpy(e->text, cut, sizeof cut);
		e->count = 1;
		return (int)r->n_errors - 1;
	}
	struct error_kind *rest = &r->errors[ERRORS_MAX];
	snprintf(rest->text, sizeof rest->text, "others");
	rest->count++;
	return ERRORS_MAX;
}

/* --- figures ------------------------------------------------------------- */

double record_ttft_ms(const struct bench_record *r)
{
	return r->first_us ? (double)(r->first_us - r->due_us) / 1e3 : NAN;
}

double record_tpot_ms(const struct bench_record *r)
{
	return r->first_us && r->output_tokens > 1
	           ? (double)(r->last_us - r->first_us) / 1e3 / (r->output_tokens - 1)
	           : NAN;
}

double record_e2e_ms(const struct bench_record *r)
{
	return r->end_us ? (double)(r->end_us - r->due_us) / 1e3 : NAN;
}

int figures_is_good(const struct bench_record *r, const struct slo *s)
{
	double tpot = record_tpot_ms(r);
	if (r->outcome != OUTCOME_OK)
		return 0;
	return (!s->ttft_us || record_ttft_ms(r) * 1e3 <= (double)s->ttft_us) &&
	       (!s->tpot_us || isnan(tpot) || tpot * 1e3 <= (double)s->tpot_us) &&
	       (!s->itl_us || r->longest_gap_us <= s->itl_us) &&
	       (!s->e2e_us || record_e2e_ms(r) * 1e3 <= (double)s->e2e_us);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

double percentile_sorted(const double *v, size_t n, double p)
{
	if (!n)
		return NAN;
	size_t rank = (size_t)ceil(p / 100 * (double)n);
	return v[rank < 1 ? 0 : rank > n ? n - 1 : rank - 1];
}

void summary_make(double *v, size_t n, struct bench_summary *ret)
{
	double sum = 0;
	if (n)
		qsort(v, n, sizeof *v, by_value);
	for (size_t i = 0; i < n; i++)
		sum += v[i];
	*ret = (struct bench_summary){.n = n,
	                              .mean = n ? sum / (double)n : NAN,
	                              .p50 = percentile_sorted(v, n, 50),
	                              .p90 = percentile_sorted(v, n, 90),
	                              .p95 = percentile_sorted(v, n, 95),
	                              .p99 = percentile_sorted(v, n, 99),
	                              .max = n ? v[n - 1] : NAN};
}

static double late_ms(const struct bench_record *r)
{
	return r->sent_us ? (double)(r->sent_us - r->due_us) / 1e3 : NAN;
}

/* Summarizes measured requests that completed (`all`: all measured requests that were sent). */
static void summarize(const struct result *r, double (*of)(const struct bench_record *), int all,
                      double *scratch, struct bench_summary *ret)
{
	size_t n = 0;
	for (size_t i = 0; i < r->n; i++) {
		const struct bench_record *rec = &r->records[i];
		double v = rec->measured && (all || rec->outcome == OUTCOME_OK) ? of(rec) : NAN;
		if (!isnan(v))
			scratch[n++] = v;
	}
	summary_make(scratch, n, ret);
}

static void summarize_gaps(const struct hist *h, struct bench_summary *ret)
{
	*ret = (struct bench_summary){.n = h->n,
	                              .mean = hist_mean(h) / 1e3,
	                              .p50 = hist_percentile(h, 50) / 1e3,
	                              .p90 = hist_percentile(h, 90) / 1e3,
	                              .p95 = hist_percentile(h, 95) / 1e3,
	                              .p99 = hist_percentile(h, 99) / 1e3,
	                              .max = h->n ? (double)h->max / 1e3 : NAN};
}

/* Counts requests that ended in the window, whenever they were due: the throughput of a steady
 * server. */
static uint64_t ended_in_window(const struct result *r)
{
	uint64_t n = 0;
	for (size_t i = 0; i < r->n; i++) {
		const struct bench_record *rec = &r->records[i];
		n += rec->outcome == OUTCOME_OK && rec->end_us >= r->window_begin_us &&
		     rec->end_us <= r->window_end_us;
	}
	return n;
}

static void count(const struct result *r, const struct bench_options *o, struct figures *f)
{
	uint64_t in = 0, out = 0, prompt = 0, cached = 0;
	for (size_t i = 0; i < r->n; i++) {
		const struct bench_record *rec = &r->records[i];
		if (!rec->measured) {
			f->warmup_requests++;
			f->warmup_failed += rec->outcome == OUTCOME_FAILED;
			continue;
		}
		f->requests++;
		f->ok += rec->outcome == OUTCOME_OK;
		f->failed += rec->outcome == OUTCOME_FAILED;
		f->left += rec->outcome == OUTCOME_LEFT;
		f->cut += rec->outcome == OUTCOME_CUT;
		f->good += (uint64_t)figures_is_good(rec, &o->slo);
		if (rec->outcome != OUTCOME_OK)
			continue;
		/* of text only the server knows */
		in += o->text && rec->prompt_tokens ? rec->prompt_tokens : rec->input_tokens;
		out += rec->output_tokens;
		prompt += rec->prompt_tokens;
		cached += rec->cached_tokens;
	}
	double ok = (double)f->ok;
	f->input_mean = f->ok ? (double)in / ok : NAN;
	f->output_mean = f->ok ? (double)out / ok : NAN;
	f->cached_percent = prompt ? 100 * (double)cached / (double)prompt : NAN;
}

void figures_make(const struct result *r, const struct bench_options *o, struct figures *ret)
{
	struct figures f = {0};
	double *scratch = mem_array(r->n + 1, sizeof *scratch);
	f.window_s = r->window_end_us > r->window_begin_us
	                 ? (double)(r->window_end_us - r->window_begin_us) / 1e6
	                 : 0;
	count(r, o, &f);
	summarize(r, record_ttft_ms, 0, scratch, &f.ttft);
	summarize(r, record_tpot_ms, 0, scratch, &f.tpot);
	summarize(r, record_e2e_ms, 0, scratch, &f.e2e);
	summarize(r, late_ms, 1, scratch, &f.late);
	summarize_gaps(&r->gaps, &f.itl);
	free(scratch);
	if (f.window_s > 0) {
		f.request_rate = (double)ended_in_window(r) / f.window_s;
		f.total_token_rate = (double)(r->window_tokens + r->window_input) / f.window_s;
		f.token_rate = (double)r->window_tokens / f.window_s;
		f.goodput_rate = (double)f.good / f.window_s;
	}
	double full_s = r->full_end_us > r->window_begin_us
	                    ? (double)(r->full_end_us - r->window_begin_us) / 1e6
	                    : 0;
	f.full_token_rate = full_s > 0 ? (double)r->full_tokens / full_s : NAN;
	f.goodput_percent = f.ok + f.failed ? 100 * (double)f.good / (double)(f.ok + f.failed) : NAN;
	f.cpu_us_per_token = r->tokens ? (double)r->cpu_us / (double)r->tokens : NAN;
	f.cpu_percent = r->wall_us ? 100 * (double)r->cpu_us / (double)r->wall_us : 0;
	f.together_percent = r->gaps.n ? 100 * (double)r->gaps.count[0] / (double)r->gaps.n : NAN;
	f.tokens_per_event = r->events ? (double)r->tokens / (double)r->events : NAN;
	*ret = f;
}

static void summary_each(const char *name, const struct bench_summary *s,
                         void (*fn)(void *, const char *, double, int), void *arg)
{
	const struct {
		const char *what;
		double v;
	} parts[] = {{"mean", s->mean}, {"p50", s->p50}, {"p90", s->p90},
	             {"p95", s->p95},   {"p99", s->p99}, {"max", s->max}};
	char text[48];
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		snprintf(text, sizeof text, "%s_%s_ms", name, parts[i].what);
		if (!isnan(parts[i].v))
			fn(arg, text, parts[i].v, 3);
	}
}

void figures_visit(const struct figures *f, int has_slo,
                   void (*fn)(void *arg, const char *name, double value, int digits), void *arg)
{
	const struct {
		const char *name;
		double v;
		int digits, only_slo;
	} list[] = {
		{"requests", (double)f->requests, 0, 0},
		{"completed", (double)f->ok, 0, 0},
		{"failed", (double)f->failed, 0, 0},
		{"left", (double)f->left, 0, 0},
		{"window_s", f->window_s, 3, 0},
		{"requests_per_s", f->request_rate, 3, 0},
		{"output_tokens_per_s", f->token_rate, 1, 0},
		{"full_load_tokens_per_s", f->full_token_rate, 1, 0},
		{"all_tokens_per_s", f->total_token_rate, 1, 0},
		{"input_tokens_mean", f->input_mean, 1, 0},
		{"output_tokens_mean", f->output_mean, 1, 0},
		{"cached_pct", f->cached_percent, 2, 0},
		{"goodput_per_s", f->goodput_rate, 3, 1},
		{"goodput_pct", f->goodput_percent, 2, 1},
		{"itl_together_pct", f->together_percent, 2, 0},
		{"client_cpu_us_per_token", f->cpu_us_per_token, 2, 0},
		{"client_cpu_pct", f->cpu_percent, 1, 0},
	};
	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		if ((has_slo || !list[i].only_slo) && !isnan(list[i].v))
			fn(arg, list[i].name, list[i].v, list[i].digits);
	summary_each("ttft", &f->ttft, fn, arg);
	summary_each("itl", &f->itl, fn, arg);
	summary_each("tpot", &f->tpot, fn, arg);
	summary_each("e2e", &f->e2e, fn, arg);
	summary_each("late", &f->late, fn, arg);
}
