/* test_pdbench_figures.c - what pdbench computes: percentiles against exact ones, goodput, the
 * timeline; and what it asks: arrivals, lengths, prompts that share what they should,
 * conversations, traces with bad lines. */
#include "pdbench/arrive.h"
#include "pdbench/figures.h"
#include "pdbench/report.h"
#include "pdbench/trace.h"
#include "pdbench/work.h"
#include "util/mem.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- figures ------------------------------------------------------------- */

/* The smallest value that at least p percent of all are not above: by counting, not by sorting. */
static double by_counting(const double *v, size_t n, double p)
{
	double best = INFINITY;
	for (size_t i = 0; i < n; i++) {
		size_t below = 0;
		for (size_t k = 0; k < n; k++)
			below += v[k] <= v[i];
		if ((double)below * 100 >= p * (double)n && v[i] < best)
			best = v[i];
	}
	return best;
}

TEST_CASE("pdbench_figures", .timeout_s = 120);

TEST(percentiles_are_exact)
{
	struct draw d = {11};
	double v[300], copy[300];
	for (size_t n = 1; n <= 300; n += n < 20 ? 1 : 71) {
		struct bench_summary s;
		double sum = 0;
		for (size_t i = 0; i < n; i++)
			sum += v[i] = copy[i] = floor(draw_unit(&d) * 50) + (n % 2 ? 0 : draw_unit(&d));
		summary_make(copy, n, &s);
		ck_assert_double_eq(s.p50, by_counting(v, n, 50));
		ck_assert_double_eq(s.p90, by_counting(v, n, 90));
		ck_assert_double_eq(s.p95, by_counting(v, n, 95));
		ck_assert_double_eq(s.p99, by_counting(v, n, 99));
		ck_assert_double_eq(s.max, by_counting(v, n, 100));
		ck_assert_double_eq_tol(s.mean, sum / (double)n, 1e-9);
	}
	struct bench_summary none;
	summary_make(v, 0, &none);
	ck_assert(isnan(none.mean) && isnan(none.p99) && isnan(none.max));
}

TEST(gaps_within_their_error)
{
	static const double ps[] = {0, 1, 10, 50, 90, 99, 99.9, 100};
	struct draw d = {3};
	for (int kind = 0; kind < 3; kind++) {
		enum { N = 20000 };
		double *v = mem_array(N, sizeof *v);
		struct hist h;
		hist_init(&h);
		ck_assert(isnan(hist_percentile(&h, 50)));
		for (size_t i = 0; i < N; i++) {
			double x = kind == 0   ? draw_unit(&d) * 400
			           : kind == 1 ? exp(draw_unit(&d) * 24)
			                       : exp(draw_unit(&d) * 44);
			v[i] = floor(x);
			hist_add(&h, (uint64_t)v[i]);
		}
		struct bench_summary s;
		summary_make(v, N, &s);
		ck_assert_double_eq_tol(hist_mean(&h), s.mean, s.mean * 1e-9);
		for (size_t i = 0; i < sizeof ps / sizeof *ps; i++) {
			double exact = percentile_sorted(v, N, ps[i]), got = hist_percentile(&h, ps[i]);
			ck_assert_msg(fabs(got - exact) <= exact * 0.002, "kind %d p%g: %g for %g", kind, ps[i],
			              got, exact);
		}
		hist_fini(&h);
		free(v);
	}
	/* the ends of the range, and every bucket where it says it is */
	struct hist h;
	hist_init(&h);
	hist_add(&h, 0);
	hist_add(&h, UINT64_MAX);
	ck_assert_double_eq(hist_percentile(&h, 50), 0);
	ck_assert_double_eq_tol(hist_percentile(&h, 100), 0x1p64, 0x1p64 * 0.002);
	for (unsigned i = 1; i < HIST_BUCKETS; i++)
		ck_assert_msg(hist_low(i) == hist_low(i - 1) + hist_width(i - 1), "bucket %u", i);
	hist_fini(&h);
}

TEST(timeline_loses_nothing)
{
	struct timeline t;
	struct draw d = {9};
	uint64_t tokens = 0, at = 0, samples = 0;
	timeline_init(&t);
	for (int i = 0; i < 20000; i++) {
		at += draw_below(&d, 200000);
		struct slot *s = timeline_at(&t, at);
		s->tokens += (uint64_t)i;
		s->samples++;
		tokens += (uint64_t)i;
		samples++;
		ck_assert(s >= t.slots && s < t.slots + TIMELINE_SLOTS);
		ck_assert_uint_eq((uint64_t)(s - t.slots), at / t.slot_us);
	}
	ck_assert_uint_gt(t.slot_us, 2000000);
	for (unsigned i = 0; i < TIMELINE_SLOTS; i++) {
		tokens -= t.slots[i].tokens;
		samples -= t.slots[i].samples;
		ck_assert(i < t.n || !t.slots[i].samples);
	}
	ck_assert_uint_eq(tokens, 0);
	ck_assert_uint_eq(samples, 0);
}

TEST(errors_of_a_kind)
{
	struct result r;
	char text[64];
	result_init(&r);
	for (int i = 0; i < 100; i++) {
		snprintf(text, sizeof text, "waited %d ms", i * 37);
		ck_assert_int_eq(result_error(&r, 503, text), 0);
	}
	ck_assert_int_eq(result_error(&r, 429, text), 1);
	ck_assert_int_eq(result_error(&r, 503, "waited long"), 2);
	ck_assert_uint_eq(r.errors[0].count, 100);
	for (int i = 0; i < 100; i++) {
		snprintf(text, sizeof text, "%c%c", 'a' + i / 26, 'a' + i % 26);
		result_error(&r, 0, text);
	}
	ck_assert_uint_eq(r.n_errors, ERRORS_MAX);
	uint64_t all = 0;
	for (unsigned i = 0; i <= ERRORS_MAX; i++)
		all += r.errors[i].count;
	ck_assert_uint_eq(all, 202);
	ck_assert_uint_eq(r.errors[ERRORS_MAX].count, 202 - 102 - (ERRORS_MAX - 3));
	result_fini(&r);
}

static struct bench_record *add(struct result *r, uint64_t due, uint64_t first, uint64_t last,
                                uint32_t tokens, enum outcome outcome)
{
	struct bench_record *rec = result_record(r);
	*rec = (struct bench_record){.due_us = due,
	                             .sent_us = due + 10,
	                             .first_us = first,
	                             .last_us = last,
	                             .end_us = last + 5,
	                             .output_tokens = tokens,
	                             .input_tokens = 100,
	                             .prompt_tokens = 100,
	                             .cached_tokens = 25,
	                             .outcome = (uint8_t)outcome,
	                             .measured = 1,
	                             .error = -1};
	return rec;
}

TEST(goodput_counts_misses)
{
	static const struct {
		struct slo slo;
		unsigned good;
	} cases[] = {
		{{.ttft_us = 2000}, 2},
		{{.ttft_us = 1999}, 1},
		{{.tpot_us = 500}, 2},
		{{.tpot_us = 499}, 1},
		{{.e2e_us = 12005}, 3},
		{{.itl_us = 3000}, 3},
		{{.itl_us = 2999}, 2},
		{{.ttft_us = 2000, .tpot_us = 499}, 1},
		{{0}, 3},
	};
	struct result r;
	struct bench_options o = {.concurrency = 1};
	struct figures f;
	result_init(&r);
	add(&r, 0, 1000, 1000, 1, OUTCOME_OK);                          /* one token: it has no TPOT */
	add(&r, 0, 2000, 12000, 21, OUTCOME_OK)->longest_gap_us = 3000; /* 500 us a token */
	add(&r, 0, 5000, 8000, 4, OUTCOME_OK);                          /* 1 ms a token */
	add(&r, 0, 100, 200, 2, OUTCOME_FAILED);
	add(&r, 0, 100, 200, 2, OUTCOME_LEFT);
	add(&r, 0, 100, 200, 2, OUTCOME_OK)->measured = 0; /* warm-up */
	r.window_end_us = 1000000;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		o.slo = cases[i].slo;
		o.has_slo = 1;
		figures_make(&r, &o, &f);
		ck_assert_msg(f.good == cases[i].good, "case %zu: %llu good", i,
		              (unsigned long long)f.good);
		ck_assert_double_eq(f.goodput_percent, 100.0 * cases[i].good / 4);
		ck_assert_double_eq(f.goodput_rate, cases[i].good);
	}
	ck_assert_uint_eq(f.requests, 5);
	ck_assert_uint_eq(f.warmup_requests, 1);
	ck_assert_uint_eq(f.ttft.n, 3);
	ck_assert_uint_eq(f.tpot.n, 2);
	ck_assert_double_eq(f.ttft.p50, 2);
	ck_assert_double_eq_tol(f.tpot.mean, 0.75, 1e-9);
	ck_assert_double_eq(f.cached_percent, 25);
	ck_assert_double_eq(f.late.max, 0.01);
	result_fini(&r);
}

/* Nothing measured at all: every output can still be written. */
TEST(an_empty_result_can_be_shown)
{
	struct result r;
	struct bench_options o = {.concurrency = 1,
	                          .n_urls = 1,
	                          .has_slo = 1,
	                          .slo = {.ttft_us = 1},
	                          .result_prefix = "x_",
	                          .title = "<&\xff\x01>"};
	struct server_info says = {.model = ""};
	struct figures f;
	char path[] = "/tmp/test_pdbench_XXXXXX";
	struct err e = {0};
	int fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	close(fd);
	for (int full = 0; full < 2; full++) {
		result_init(&r);
		if (full) {
			for (unsigned i = 0; i < 1000; i++) {
				add(&r, i, i + 1 + i * i, i + 5 + i * i, 2, i % 7 ? OUTCOME_OK : OUTCOME_FAILED)
					->error = (int16_t)result_error(&r, 500, "\"<\xff>");
				hist_add(&r.gaps, i * i * 1000);
				timeline_at(&r.timeline, i * 100000)->tokens = i;
			}
			r.window_end_us = 50000000;
		}
		figures_make(&r, &o, &f);
		struct bench_report p = {&o, &says, &r, &f, 0, NULL};
		FILE *null = fopen("/dev/null", "we");
		report_table(&p, null);
		report_results(&p, null);
		fclose(null);
		ck_assert_int_eq(report_svg(&p, path, &e), 0);
		ck_assert_int_eq(report_requests(&p, path, &e), 0);
		ck_assert_int_eq(report_json(&p, path, &e), 0);
		json_t *j = json_load_file(path, 0, NULL);
		ck_assert(json_is_object(j));
		ck_assert_int_eq((int)json_integer_value(
							 json_object_get(json_object_get(j, "figures"), "failed")),
		                 full ? 143 : 0);
		const json_t *errors = json_object_get(j, "errors");
		ck_assert_uint_eq(json_array_size(errors), (size_t)full);
		if (full)
			ck_assert_str_eq(json_string_value(json_object_get(json_array_get(errors, 0), "text")),
			                 "\"<\xef\xbf\xbd>");
		json_decref(j);
		result_fini(&r);
	}
	unlink(path);
	struct bench_report p = {&o, &says, &r, &f, 0, NULL};
	result_init(&r);
	ck_assert_int_eq(report_json(&p, "/dev/full", &e), ERR_IO);
	ck_assert_int_eq(report_svg(&p, "/nowhere/x", &e), ERR_IO);
	ck_assert(strstr(e.text, "/nowhere/x"));
	result_fini(&r);
}

/* --- arrivals and lengths ------------------------------------------------ */

TEST(arrivals)
{
	for (int kind = ARRIVE_POISSON; kind <= ARRIVE_CONSTANT; kind++) {
		for (int ramp = 0; ramp < 2; ramp++) {
			struct bench_options o = {.rate = 200,
			                          .arrivals = (enum arrivals)kind,
			                          .ramp_us = ramp ? 10000000 : 0,
			                          .seed = 4};
			struct arrive a;
			uint64_t last = 0, squares = 0, in_ramp = 0, n = 0, per_slot[600] = {0};
			arrive_init(&a, &o);
			while (last < 60000000) {
				uint64_t t = arrive_next(&a);
				ck_assert_uint_ge(t, last);
				last = t;
				n++;
				in_ramp += t < 10000000;
				if (t < 60000000)
					per_slot[t / 100000]++;
			}
			double want = ramp ? 200 * 55 : 200 * 60;
			ck_assert_double_eq_tol((double)n, want, want * 0.04);
			ck_assert_double_eq_tol((double)in_ramp, ramp ? 1000 : 2000, ramp ? 130 : 180);
			for (int i = 100; i < 600; i++)
				squares += (per_slot[i] - 20) * (per_slot[i] - 20);
			double variance = (double)squares / 500; /* of a Poisson count it is its mean */
			ck_assert_msg(kind == ARRIVE_POISSON ? variance > 15 && variance < 26 : variance < 1.1,
			              "variance %g", variance);
		}
	}
}

TEST(drawn_lengths)
{
	static const struct {
		struct dist d;
		double low, high, mean;
	} cases[] = {
		{{DIST_FIXED, 7, 0, 100}, 7, 7, 7},
		{{DIST_UNIFORM, 3, 6, 100}, 3, 6, 4.5},
		{{DIST_LOGNORMAL, 300, 0.8, 1e6}, 1, 1e6, 300},
		{{DIST_LOGNORMAL, 300, 1, 350}, 1, 350, 200},
	};
	for (size_t i = 0; i < 4; i++) {
		struct draw d = {77};
		double sum = 0, low = 1e9, high = 0;
		for (int k = 0; k < 100000; k++) {
			double v = draw_dist(&d, &cases[i].d);
			sum += v;
			low = fmin(low, v);
			high = fmax(high, v);
		}
		ck_assert_double_ge(low, cases[i].low);
		ck_assert_double_le(high, cases[i].high);
		ck_assert_msg(fabs(sum / 1e5 - cases[i].mean) < cases[i].mean * (i < 3 ? 0.02 : 0.15),
		              "%zu: mean %g", i, sum / 1e5);
		ck_assert(i != 1 || (low == 3 && high == 6));
	}
}

/* --- prompts and conversations ------------------------------------------- */

static const struct server_info says = {.model = "m", .context = 0, .vocab = 320};

static void set(struct bench_options *o, const char *line, struct work **ret_work, struct err *err)
{
	static char text[1024];
	char *argv[64] = {(char *)(uintptr_t) "pdbench"}, *at;
	int n = 1;
	snprintf(text, sizeof text, "%s", line);
	for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at))
		argv[n++] = w;
	ck_assert_msg(options_parse(n, argv, o, err) == OPTIONS_RUN, "%s: %s", line, err->text);
	*ret_work = NULL;
	memset(err, 0, sizeof *err);
	work_new(o, &says, ret_work, err);
}

/* The body as a server reads it. */
static json_t *body_of(struct work *w, const struct bench_options *o, const struct bench_turn *t)
{
	struct buf b;
	json_error_t why;
	buf_init(&b, 0);
	work_request(w, &o->urls[0], t, &b);
	char *body = strstr(b.data, "\r\n\r\n");
	ck_assert(body != NULL);
	body += 4;
	char *length = strstr(b.data, "Content-Length: ");
	ck_assert(length && strtoul(length + 16, NULL, 10) == strlen(body));
	json_t *j = json_loads(body, 0, &why);
	ck_assert_msg(j != NULL, "%s: %s", why.text, body);
	buf_fini(&b);
	return j;
}

static json_int_t id_at(const json_t *prompt, size_t i)
{
	ck_assert_uint_lt(i, json_array_size(prompt));
	return json_integer_value(json_array_get(prompt, i));
}

static size_t shared(const json_t *a, const json_t *b)
{
	size_t i = 0;
	while (i < json_array_size(a) && i < json_array_size(b) && id_at(a, i) == id_at(b, i))
		i++;
	return i;
}

TEST(bodies)
{
	struct bench_options o;
	struct err e;
	struct work *w;
	set(&o, "-i 20 -o 7 --temperature 0.5 --seed 9 -e {\"top_p\":0.5} --vocab 100-200 -H X-A:b", &w,
	    &e);
	struct bench_turn *t = work_next(w);
	json_t *j = body_of(w, &o, t), *prompt = json_object_get(j, "prompt");
	ck_assert_uint_eq(json_array_size(prompt), 20);
	for (size_t i = 0; i < 20; i++)
		ck_assert(id_at(prompt, i) >= 100 && id_at(prompt, i) < 200);
	ck_assert_int_eq((int)json_integer_value(json_object_get(j, "max_tokens")), 7);
	ck_assert_int_eq((int)json_integer_value(json_object_get(j, "seed")), 9);
	ck_assert_double_eq(json_real_value(json_object_get(j, "top_p")), 0.5);
	ck_assert_double_eq(json_real_value(json_object_get(j, "temperature")), 0.5);
	ck_assert_str_eq(json_string_value(json_object_get(j, "model")), "m");
	ck_assert(json_is_true(json_object_get(j, "stream")) &&
	          json_is_true(json_object_get(j, "ignore_eos")));
	json_decref(j);
	work_drop(w, t);
	work_destroy(&w);
	options_fini(&o);
	set(&o, "-i 30 --chat -e {\"seed\":4} --natural-end", &w, &e);
	t = work_next(w);
	j = body_of(w, &o, t);
	const char *text = json_string_value(
		json_object_get(json_array_get(json_object_get(j, "messages"), 0), "content"));
	size_t words = 1;
	for (const char *p = text; *p; p++)
		words += *p == ' ';
	ck_assert_uint_eq(words, 30);
	ck_assert_int_eq((int)json_integer_value(json_object_get(j, "seed")), 4);
	ck_assert(!json_object_get(j, "ignore_eos"));
	json_decref(j);
	work_drop(w, t);
	work_destroy(&w);
	options_fini(&o);
}

TEST(prefixes_are_shared_within_groups)
{
	struct bench_options o;
	struct err e;
	struct work *w;
	json_t *prompts[40];
	set(&o, "-i 10-30 --prefix-tokens 50 --prefix-groups 3", &w, &e);
	for (int i = 0; i < 40; i++) {
		struct bench_turn *t = work_next(w);
		json_t *j = body_of(w, &o, t);
		prompts[i] = json_incref(json_object_get(j, "prompt"));
		ck_assert_uint_eq(json_array_size(prompts[i]), t->input_tokens);
		size_t same = 0; /* what is new is new: it repeats no prefix */
		for (size_t k = 0; k < 10; k++)
			same += id_at(prompts[i], k) == id_at(prompts[i], 50 + k);
		ck_assert_uint_lt(same, 4);
		json_decref(j);
		work_drop(w, t);
	}
	int groups[4] = {0}, n_groups = 0, group_of[40];
	for (int i = 0; i < 40; i++) {
		int g = -1;
		for (int k = 0; k < i && g < 0; k++) {
			size_t n = shared(prompts[i], prompts[k]);
			ck_assert_msg(n < 5 || (n >= 50 && n < 55), "prompts %d and %d share %zu tokens", i, k,
			              n);
			if (n >= 50)
				g = group_of[k];
		}
		group_of[i] = g >= 0 ? g : n_groups++;
		ck_assert_int_lt(group_of[i], 3);
		groups[group_of[i]]++;
	}
	ck_assert_int_eq(n_groups, 3);
	ck_assert(groups[0] > 3 && groups[1] > 3 && groups[2] > 3);
	for (int i = 0; i < 40; i++)
		json_decref(prompts[i]);
	work_destroy(&w);
	options_fini(&o);
}

TEST(the_same_seed_asks_the_same)
{
	json_t *seen[2][5];
	for (int run = 0; run < 2; run++) {
		struct bench_options o;
		struct err e;
		struct work *w;
		set(&o, "-i lognormal:40,1 -o 5-50 --seed 12 --prefix-tokens 5 --prefix-groups 4", &w, &e);
		for (int i = 0; i < 5; i++) {
			struct bench_turn *t = work_next(w);
			seen[run][i] = body_of(w, &o, t);
			work_drop(w, t);
		}
		work_destroy(&w);
		options_fini(&o);
	}
	for (int i = 0; i < 5; i++) {
		ck_assert(json_equal(seen[0][i], seen[1][i]));
		json_decref(seen[0][i]);
		json_decref(seen[1][i]);
	}
}

TEST(a_conversation_goes_on_from_its_answer)
{
	struct bench_options o;
	struct err e;
	struct work *w;
	set(&o, "-i 10 -o 3 --rounds 3 --prefix-tokens 4", &w, &e);
	struct bench_turn *t = work_next(w);
	json_t *j = body_of(w, &o, t), *first = json_incref(json_object_get(j, "prompt"));
	ck_assert(json_is_true(json_object_get(j, "return_token_ids")));
	json_decref(j);
	ck_assert_uint_eq(json_array_size(first), 14);
	ck_assert(work_wants_answer(w, t));
	t = work_follow(w, t, "7,8,9", 5, 3);
	ck_assert(t && t->round == 1 && t->input_tokens == 27);
	j = body_of(w, &o, t);
	json_t *second = json_object_get(j, "prompt");
	ck_assert_uint_eq(json_array_size(second), 27);
	ck_assert_uint_eq(shared(first, second), 14);
	ck_assert(id_at(second, 14) == 7 && id_at(second, 15) == 8 && id_at(second, 16) == 9);
	json_decref(j);
	json_decref(first);
	t = work_follow(w, t, "", 0, 0); /* an answer without ids is possible */
	ck_assert(t && t->round == 2 && t->input_tokens == 37);
	j = body_of(w, &o, t);
	ck_assert_uint_eq(json_array_size(json_object_get(j, "prompt")), 37);
	json_decref(j);
	ck_assert(!work_wants_answer(w, t));
	ck_assert(work_follow(w, t, "1", 1, 1) == NULL);
	work_destroy(&w);
	options_fini(&o);

	set(&o, "-i 3 -o 3 --rounds 2 --chat", &w, &e);
	t = work_follow(w, work_next(w), "a \\\"b\\\"", 7, 3);
	j = body_of(w, &o, t);
	json_t *list = json_object_get(j, "messages");
	ck_assert_uint_eq(json_array_size(list), 3);
	ck_assert_str_eq(json_string_value(json_object_get(json_array_get(list, 1), "role")),
	                 "assistant");
	ck_assert_str_eq(json_string_value(json_object_get(json_array_get(list, 1), "content")),
	                 "a \"b\"");
	json_decref(j);
	work_drop(w, t);
	work_destroy(&w);
	options_fini(&o);
}

/* Conversations ask the same, in whatever order their answers come. */
TEST(conversations_do_not_change_each_other)
{
	json_t *seen[2][3][2];
	uint64_t thought[2][3];
	for (int run = 0; run < 2; run++) {
		struct bench_options o;
		struct err e;
		struct work *w;
		struct bench_turn *t[3];
		set(&o, "-i 5-50 -o 5-50 --rounds 2 --think 1ms-9s --prefix-tokens 9 --prefix-groups 5", &w,
		    &e);
		for (int i = 0; i < 3; i++) {
			t[i] = work_next(w);
			seen[run][i][0] = body_of(w, &o, t[i]);
			if (run == 0) { /* each answered before the next one begins */
				t[i] = work_follow(w, t[i], "5,6", 3, 2);
				thought[run][i] = work_think_us(w, t[i]);
			}
		}
		for (int i = 2; i >= 0; i--) {
			if (run == 1) {
				t[i] = work_follow(w, t[i], "5,6", 3, 2);
				thought[run][i] = work_think_us(w, t[i]);
			}
			seen[run][i][1] = body_of(w, &o, t[i]);
			work_drop(w, t[i]);
		}
		work_destroy(&w);
		options_fini(&o);
	}
	for (int i = 0; i < 3; i++) {
		ck_assert_uint_eq(thought[0][i], thought[1][i]);
		for (int round = 0; round < 2; round++) {
			ck_assert(json_equal(seen[0][i][round], seen[1][i][round]));
			json_decref(seen[0][i][round]);
			json_decref(seen[1][i][round]);
		}
	}
}

TEST(limits_skip_or_clip)
{
	struct bench_options o;
	struct err e;
	struct work *w;
	set(&o, "-i 10-100 -o 10 --max-input 50", &w, &e);
	for (int i = 0; i < 50; i++) {
		struct bench_turn *t = work_next(w);
		ck_assert_uint_le(t->input_tokens, 50);
		work_drop(w, t);
	}
	ck_assert_uint_gt(work_counts(w)->skipped, 20);
	ck_assert_uint_eq(work_counts(w)->clipped, 0);
	work_destroy(&w);
	options_fini(&o);
	set(&o, "-i 10-100 -o 10 --max-input 50 --max-output 4 --over clip", &w, &e);
	for (int i = 0; i < 50; i++) {
		struct bench_turn *t = work_next(w);
		ck_assert(t->input_tokens <= 50 && t->output_tokens == 4);
		json_t *j = body_of(w, &o, t);
		ck_assert_uint_eq(json_array_size(json_object_get(j, "prompt")), t->input_tokens);
		json_decref(j);
		work_drop(w, t);
	}
	ck_assert_uint_eq(work_counts(w)->skipped, 0);
	ck_assert_uint_eq(work_counts(w)->clipped, 50);
	work_destroy(&w);
	options_fini(&o);
	set(&o, "-i 100 --max-input 50", &w, &e);
	ck_assert(work_next(w) == NULL); /* and it comes back */
	work_destroy(&w);
	options_fini(&o);
	set(&o, "-i 20 -o 5 --rounds 10 --max-input 50", &w, &e);
	struct bench_turn *t = work_next(w);
	ck_assert((t = work_follow(w, t, "1,2,3,4,5", 9, 5)) != NULL);
	ck_assert(work_follow(w, t, "1,2,3,4,5", 9, 5) == NULL); /* 70 of 50 */
	ck_assert_uint_eq(work_counts(w)->cut_conversations, 1);
	work_destroy(&w);
	options_fini(&o);
	set(&o, "--vocab 3-321", &w, &e);
	ck_assert(w == NULL && strstr(e.text, "320"));
	options_fini(&o);
}

/* --- traces -------------------------------------------------------------- */

static char *file_of(const char *text, size_t n)
{
	static char path[64];
	snprintf(path, sizeof path, "/tmp/test_pdbench_XXXXXX");
	int fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq((int)write(fd, text, n), (int)n);
	close(fd);
	return path;
}

#define GOOD "{\"timestamp\":5,\"input_length\":600,\"output_length\":2,\"hash_ids\":[1,2]}\n"

TEST(bad_traces)
{
	static const struct {
		const char *line, *says;
	} cases[] = {
		{"", "no records"},
		{"\n  \n", "no records"},
		{GOOD "nonsense\n", ":2: not JSON"},
		{GOOD "[1]\n", ":2: the line must be a JSON object"},
		{GOOD "{\"timestamp\":5,\"input_length\":600,\"output_length\":2,\"hash_ids\":[1,2]",
	     ":2: not JSON"},
		{"{\"timestamp\":5,\"output_length\":2,\"hash_ids\":[1]}\n",
	     ":1: input_length must be a number from 1 to 1.67772e+07, got nothing"},
		{"{\"timestamp\":5,\"input_length\":0,\"output_length\":2,\"hash_ids\":[]}\n", "got 0"},
		{"{\"timestamp\":5,\"input_length\":99999999,\"output_length\":2,\"hash_ids\":[]}\n",
	     "got 99999999"},
		{"{\"timestamp\":5,\"input_length\":\"6\",\"output_length\":2,\"hash_ids\":[1]}\n",
	     "got \"6\""},
		{"{\"timestamp\":5,\"input_length\":6,\"output_length\":0,\"hash_ids\":[1]}\n",
	     "output_length"},
		{"{\"timestamp\":-5,\"input_length\":6,\"output_length\":1,\"hash_ids\":[1]}\n",
	     "timestamp"},
		{"{\"timestamp\":5,\"input_length\":513,\"output_length\":1,\"hash_ids\":[1]}\n",
	     "the 2 blocks of 512 tokens (input_length 513), got 1"},
		{"{\"timestamp\":5,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1,2]}\n",
	     "the 1 blocks"},
		{"{\"timestamp\":5,\"input_length\":512,\"output_length\":1}\n", "not a list"},
		{"{\"timestamp\":5,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1.5]}\n",
	     "hash_ids[0]"},
		{"\xff\xfe\n", "not JSON"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct bench_trace t;
		struct err e = {0};
		char *path = file_of(cases[i].line, strlen(cases[i].line));
		ck_assert_int_lt(trace_read(path, 512, &t, &e), 0);
		ck_assert_msg(strstr(e.text, cases[i].says) && strstr(e.text, path), "%zu: %s", i, e.text);
		ck_assert_uint_eq(t.n, 0);
		unlink(path);
	}
	struct bench_trace t;
	struct err e = {0};
	ck_assert_int_eq(trace_read("/nowhere", 512, &t, &e), ERR_IO);
	ck_assert_int_lt(trace_read("/", 512, &t, &e), 0);
	char *zeros = mem_zalloc(5000), *path = file_of(zeros, 5000);
	ck_assert_int_lt(trace_read(path, 512, &t, &e), 0);
	unlink(path);
	free(zeros);
}

TEST(lengths_from_a_file)
{
	static const char text[] = "{\"input_length\":40,\"output_length\":8}\n{\"input_length\":9,"
							   "\"output_length\":3,\"timestamp\":-1,\"hash_ids\":false}\n";
	struct bench_options o;
	struct err e;
	struct work *w;
	char line[100], *path = file_of(text, sizeof text - 1);
	snprintf(line, sizeof line, "--lengths %s --length-scale 2", path);
	set(&o, line, &w, &e);
	ck_assert_msg(w != NULL, "%s", e.text);
	for (int i = 0; i < 10; i++) { /* over and over */
		struct bench_turn *t = work_next(w);
		ck_assert(t && t->input_tokens == (i % 2 ? 5 : 20) && t->output_tokens == (i % 2 ? 2 : 4));
		work_drop(w, t);
	}
	work_destroy(&w);
	options_fini(&o);
	unlink(path);
}

TEST(a_line_that_is_too_long)
{
	size_t n = TRACE_LINE_MAX + 100;
	char *text = mem_alloc(n);
	struct bench_trace t;
	struct err e = {0};
	memset(text, ' ', n);
	memcpy(text + n - strlen(GOOD), GOOD, strlen(GOOD));
	char *path = file_of(text, n);
	ck_assert_int_lt(trace_read(path, 512, &t, &e), 0);
	ck_assert_msg(strstr(e.text, "more than 4194304"), "%s", e.text);
	unlink(path);
	free(text);
}

TEST(a_trace_in_order)
{
	static const char text[] =
		"{\"timestamp\":1500,\"input_length\":600,\"output_length\":2,\"hash_ids\":[0,8]}\n\n"
		"{\"timestamp\":1000,\"input_length\":1024,\"output_length\":3,\"hash_ids\":[0,7],\"more\":"
		"1}\n"
		"{\"timestamp\":2500,\"input_length\":1536.0,\"output_length\":4,\"hash_ids\":[0,7,9]}";
	struct bench_options o;
	struct err e;
	struct work *w;
	char line[200];
	char *path = file_of(text, sizeof text - 1);
	snprintf(line, sizeof line, "--trace %s --time-scale 10", path);
	set(&o, line, &w, &e);
	ck_assert_msg(w != NULL, "%s", e.text);
	json_t *p[3];
	static const uint64_t at[] = {0, 50000, 150000};
	static const uint32_t in[] = {1024, 600, 1536}, out[] = {3, 2, 4};
	for (int i = 0; i < 3; i++) {
		struct bench_turn *t = work_next(w);
		ck_assert(t && t->at_us == at[i] && t->input_tokens == in[i] && t->output_tokens == out[i]);
		json_t *j = body_of(w, &o, t);
		p[i] = json_incref(json_object_get(j, "prompt"));
		ck_assert_uint_eq(json_array_size(p[i]), in[i]);
		json_decref(j);
		work_drop(w, t);
	}
	ck_assert(work_next(w) == NULL);
	ck_assert(shared(p[0], p[1]) >= 512 && shared(p[0], p[1]) < 520);
	ck_assert(shared(p[0], p[2]) == 1024);
	work_destroy(&w);
	options_fini(&o);
	snprintf(line, sizeof line, "--trace %s --length-scale 64", path);
	set(&o, line, &w, &e);
	struct bench_turn *t = work_next(w);
	ck_assert(t->input_tokens == 16 && t->output_tokens == 1);
	work_drop(w, t);
	t = work_next(w);
	ck_assert(t->input_tokens == 10);
	json_t *j = body_of(w, &o, t);
	ck_assert_uint_eq(json_array_size(json_object_get(j, "prompt")), 10);
	json_decref(j);
	work_drop(w, t);
	work_destroy(&w);
	options_fini(&o);
	unlink(path);
	for (int i = 0; i < 3; i++)
		json_decref(p[i]);
}

static uint64_t second_block(const struct trace_record *r)
{
	return r->n_hashes > 1 ? r->hashes[1] : r->hashes[0];
}

TEST(a_sample_keeps_conversations_whole)
{
	struct bench_trace all, some;
	struct err e = {0};
	static const char path[] = "tests/data/traces/conversation_tenth_20min.jsonl";
	ck_assert_msg(trace_read(path, 512, &all, &e) == 0, "%s", e.text);
	ck_assert_uint_eq(all.n, 407);
	ck_assert_int_eq(trace_read(path, 512, &some, &e), 0);
	trace_sample(&some, 0.5, 3);
	ck_assert(some.n > 120 && some.n < 290);
	ck_assert_uint_eq(some.records[0].at_us, 0);
	for (size_t i = 0; i < all.n; i++) {
		uint64_t key = second_block(&all.records[i]);
		size_t there = 0, kept = 0;
		for (size_t k = 0; k < all.n; k++)
			there += second_block(&all.records[k]) == key;
		for (size_t k = 0; k < some.n; k++)
			kept += second_block(&some.records[k]) == key;
		ck_assert(kept == 0 || kept == there);
	}
	trace_fini(&some);
	trace_fini(&all);
}
