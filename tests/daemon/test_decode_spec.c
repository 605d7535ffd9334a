/* test_decode_spec.c - speculative decoding: what rows cost, who gets them, and pddecoded with
 * drafts: the answers, the blocks and the counts are those without. */
#include "daemons/worker/draft/spec.h"
#include "decode_world.h"

#include <math.h>

/* --- what rows cost ------------------------------------------------------ */

static struct spec_cost cost;

static void fresh(void)
{
	memset(&cost, 0, sizeof cost);
}

static void note(uint32_t rows, uint64_t us, int times)
{
	for (int i = 0; i < times; i++)
		spec_cost_note(&cost, rows, us);
}

static void expect_cost(uint32_t rows, double want)
{
	double got = spec_cost_of(&cost, rows);
	ck_assert_msg(fabs(got - want) <= want * 1e-9, "%u rows cost %f, expected %f", rows, got, want);
}

TEST_CASE("cost", .setup = fresh);

TEST(cost_unknown)
{
	expect_cost(1, 1);
	for (uint32_t r = 1; r < 400; r++)
		ck_assert(spec_cost_of(&cost, r + 1) > spec_cost_of(&cost, r));
	note(0, 100, 9);
	note(SPEC_COST_ROWS + 1, 100, 9);
	note(4, 0, 9);
	expect_cost(1, 1);
}

TEST(cost_between_and_beyond)
{
	note(1, 100, 4);
	note(4, 190, 4);
	note(8, 390, 4);
	static const struct {
		uint32_t rows;
		double want;
	} rows[] = {{1, 100}, {2, 130}, {3, 160}, {4, 190}, {5, 240}, {8, 390}, {9, 390 + 290. / 7},
	            {15, 680}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		expect_cost(rows[i].rows, rows[i].want);
	expect_cost(4 * SPEC_COST_ROWS, 4 * spec_cost_of(&cost, SPEC_COST_ROWS));
}

TEST(cost_of_one_bad_moment)
{
	note(1, 100, 4);
	double guess = spec_cost_of(&cost, 4);
	note(4, 100000, 1);
	expect_cost(4, guess); /* one note is none */
	note(4, 200, 1);
	expect_cost(4, 200); /* the least of the first ones */
	note(4, 210, 2);
	expect_cost(4, 200);
	note(4, 100000, 1);
	ck_assert_msg(spec_cost_of(&cost, 4) < 400, "%f", spec_cost_of(&cost, 4));
	ck_assert_msg(spec_cost_of(&cost, 1) < 200, "%f", spec_cost_of(&cost, 1));
}

/* A machine that becomes slower does so for steps of all sizes, also for those that are not made
 * any more. */
TEST(cost_follows_the_machine)
{
	note(1, 100, 10);
	note(4, 200, 10);
	note(4, 400, 100);
	expect_cost(4, spec_cost_of(&cost, 4));
	ck_assert(fabs(spec_cost_of(&cost, 4) - 400) < 1);
	double relation = spec_cost_of(&cost, 4) / spec_cost_of(&cost, 1);
	ck_assert_msg(relation > 1.9 && relation < 2.6, "%f", relation);
}

TEST(cost_is_forgotten)
{
	note(1, 100, 4);
	note(4, 390, 4);
	note(1, 100, 200);
	expect_cost(4, 390);
	note(1, 100, 100);
	ck_assert(spec_cost_of(&cost, 4) < 200);
	note(4, 130, 2);
	expect_cost(4, 130);
}

/* --- who gets them ------------------------------------------------------- */

static struct spec_want want[8];

static void wants(uint32_t i, uint32_t most, uint32_t match)
{
	want[i] = (struct spec_want){.most = most, .match = match, .miss = 1.1, .rows = 99};
}

static void costs(const double *us, uint32_t n)
{
	for (uint32_t r = 1; r <= n; r++)
		note(r, (uint64_t)(1000 * us[r - 1]), 4);
}

TEST(share_of_what_is_free)
{
	for (uint32_t r = 1; r <= SPEC_COST_ROWS; r++)
		note(r, 1000, 2);
	wants(0, 16, 32);
	wants(1, 16, 32);
	wants(2, 0, 32);
	ck_assert_uint_eq(spec_share(&cost, 3, 0, 64, want, 3), 32);
	ck_assert_uint_eq(want[0].rows, 16);
	ck_assert_uint_eq(want[1].rows, 16);
	ck_assert_uint_eq(want[2].rows, 0);
	ck_assert_uint_eq(spec_share(&cost, 3, 0, 9, want, 3), 9);
	ck_assert_uint_eq(want[0].rows + want[1].rows, 9);
	ck_assert_uint_ge(want[0].rows, 4);
	ck_assert_uint_ge(want[1].rows, 4);
	ck_assert_uint_eq(spec_share(&cost, 3, 0, 0, want, 3), 0);
	ck_assert_uint_eq(want[0].rows + want[1].rows, 0);
	ck_assert_uint_eq(spec_share(&cost, 3, 0, 64, want, 0), 0);
	want[1].match = 2;
	ck_assert_uint_eq(spec_share(&cost, 3, 0, 12, want, 3), 12);
	ck_assert_uint_gt(want[0].rows, 7);
}

/* Never more than a step has, whoever asks for how much. */
TEST(share_is_bounded)
{
	static struct spec_want many[100];
	for (uint32_t i = 0; i < 100; i++)
		many[i] = (struct spec_want){.most = 63, .match = 30, .miss = 0.2};
	ck_assert_uint_le(spec_share(&cost, 100, 0, 1000, many, 100), WORKER_DRAFT_ROWS);
	uint32_t sum = 0;
	for (uint32_t i = 0; i < 100; i++)
		sum += many[i].rows;
	ck_assert_uint_le(sum, WORKER_DRAFT_ROWS);
}

/* As measured on one core: the fifth row, and the ninth, are dear. */
static const double one_core[] = {1,    1.35, 1.71, 2.08, 2.98, 3.06, 3.97, 4.04,
                                  5.55, 5.6,  5.68, 5.72, 6.46, 7.22, 7.32, 7.34};

TEST(share_on_one_core)
{
	costs(one_core, 16);
	wants(0, 15, 32);
	want[0].miss = 0.2;
	/* a sure thing: 16 rows for the time of 7.3 */
	ck_assert_uint_eq(spec_share(&cost, 1, 0, 64, want, 1), 15);
	wants(0, 16, 16);
	uint32_t rows = spec_share(&cost, 1, 0, 64, want, 1);
	/* to the edge of a step of the cost */
	ck_assert_msg(rows == 3 || rows == 7, "%u", rows);
	wants(0, 16, 1);
	ck_assert_uint_eq(spec_share(&cost, 1, 0, 64, want, 1), 0);
	for (uint32_t i = 0; i < 4; i++)
		wants(i, 16, 6);
	/* four sequences use the machine as it is */
	ck_assert_uint_eq(spec_share(&cost, 4, 0, 64, want, 4), 0);
}

/* One that copies among seven that do not: they wait for its rows. */
TEST(share_beside_others)
{
	costs(one_core, 16);
	wants(0, 7, 32);
	ck_assert_uint_gt(spec_share(&cost, 1, 0, 64, want, 1), 2);
	ck_assert_uint_eq(spec_share(&cost, 8, 0, 64, want, 1), 0);
	/* a prompt's chunk takes so long that it does not matter */
	ck_assert_uint_eq(spec_share(&cost, 1, 100, 64, want, 1), 7);
	fresh();
	for (uint32_t r = 1; r <= SPEC_COST_ROWS; r++)
		note(r, 1000 + r, 2);
	ck_assert_uint_eq(spec_share(&cost, 8, 0, 64, want, 1), 7);
}

static uint32_t random_state;

static uint32_t draw(uint32_t below)
{
	random_state = random_state * 1664525u + 1013904223u;
	return (uint32_t)((uint64_t)random_state * below >> 32);
}

/* The logarithm of everybody's tokens per time, multiplied. */
static double worth(uint32_t decode, uint32_t chunk, const uint32_t *rows, uint32_t n)
{
	double sum = 0;
	uint32_t all = decode + chunk;
	for (uint32_t i = 0; i < n; i++) {
		double p = 1, tokens = 1;
		for (uint32_t k = 0; k < rows[i]; k++) {
			p *= fmax(0, 1 - want[i].miss / (want[i].match + k));
			tokens += p;
		}
		sum += log(tokens);
		all += rows[i];
	}
	return sum - (decode + (chunk != 0)) * log(spec_cost_of(&cost, all));
}

/* All ways to share, tried out: none is better by more than what counts as noise. */
TEST_LOOP(share_is_the_best_there_is, 0, 40)
{
	random_state = 9 + (uint32_t)_i;
	double us = 1000;
	for (uint32_t r = 1; r <= 16; r++) {
		note(r, (uint64_t)us, 4);
		us += draw(700);
	}
	uint32_t decode = 3 + draw(2), got[3], r[3], budget = draw(10), chunk = _i % 4 ? 0 : draw(4);
	double best = -INFINITY;
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t most = draw(5);
		wants(i, most, 1 + draw(20));
		want[i].miss = 0.05 * (double)(draw(40));
	}
	uint32_t given = spec_share(&cost, decode, chunk, budget, want, 3);
	for (r[0] = 0; r[0] <= want[0].most; r[0]++)
		for (r[1] = 0; r[1] <= want[1].most; r[1]++)
			for (r[2] = 0; r[2] <= want[2].most; r[2]++)
				if (r[0] + r[1] + r[2] <= budget)
					best = fmax(best, worth(decode, chunk, r, 3));
	for (uint32_t i = 0; i < 3; i++) {
		got[i] = want[i].rows;
		ck_assert_uint_le(got[i], want[i].most);
	}
	ck_assert_uint_eq(got[0] + got[1] + got[2], given);
	ck_assert_uint_le(given, budget);
	double has = worth(decode, chunk, got, 3) +
	             (given ? 0.02 : (decode + (chunk != 0)) * log(1.0301) + 0.02);
	ck_assert_msg(has >= best, "%f, best %f", has, best);
}

TEST(rows_to_spare)
{
	static const struct {
		uint32_t max, chunk, decode, prompt, spare, want_chunk;
	} rows[] = {
		{512, 128, 4, 0, WORKER_DRAFT_ROWS, 0},
		{512, 128, 4, 1000, WORKER_DRAFT_ROWS, 128},
		{512, 128, 4, 30, WORKER_DRAFT_ROWS, 30},
		{64, 128, 4, 0, 60, 0},
		{64, 128, 4, 1000, 0, 60},
		{64, 32, 4, 1000, 28, 32},
		{64, 32, 60, 1000, 0, 4},
		{64, 32, 64, 0, 0, 0},
		{16, 32, 64, 1000, 0, 0},
		{512, 128, 0, 1000, 0, 512},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		uint32_t chunk,
			spare = spec_spare(rows[i].max, rows[i].chunk, rows[i].decode, rows[i].prompt, &chunk);
		ck_assert_msg(spare == rows[i].spare && chunk == rows[i].want_chunk,
		              "case %zu: %u to spare, a chunk of %u", i, spare, chunk);
	}
}

/* --- what became of drafts ----------------------------------------------- */

TEST(length_of_drafts)
{
	struct spec_record r;
	spec_record_init(&r, 3);
	ck_assert_uint_eq(r.length, 3);
	spec_record_init(&r, 50);
	ck_assert_uint_eq(r.length, 4);
	static const struct {
		uint32_t drafted, right, want;
	} rows[] = {{4, 4, 8},    {3, 3, 8},  {8, 8, 16}, {16, 16, 32}, {32, 32, 50}, {50, 50, 50},
	            {50, 20, 21}, {21, 0, 1}, {1, 0, 1},  {1, 1, 2},    {2, 1, 2}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		spec_record_draft(&r, 5, rows[i].drafted, rows[i].right, 50);
		ck_assert_msg(r.length == rows[i].want, "case %zu: %u", i, r.length);
	}
}

TEST(doubt_grows_and_fades)
{
	struct spec_record r;
	spec_record_init(&r, 16);
	double first = spec_record_miss(&r), last = first;
	for (int i = 0; i < 6; i++) {
		spec_record_draft(&r, 8, 1, 0, 16);
		ck_assert(spec_record_miss(&r) > last);
		last = spec_record_miss(&r);
	}
	for (int i = 0; i < 1000; i++)
		spec_record_step(&r);
	ck_assert(fabs(spec_record_miss(&r) - first) < 0.01);
	for (int i = 0; i < 50; i++)
		spec_record_draft(&r, 8, 1, 0, 16);
	ck_assert(spec_record_miss(&r) <= 4.5);
	spec_record_init(&r, 16);
	for (int i = 0; i < 50; i++)
		spec_record_draft(&r, 8, 8, 8, 16);
	ck_assert(spec_record_miss(&r) < first / 3);
	ck_assert(spec_record_miss(&r) > 0);
}

/* The share of its time that a text loses to drafts if `match` tokens stand before each of 1000
 * places and something else follows every time. */
static double lost_in_vain(const double *us, uint32_t n, uint32_t match, uint32_t *ret_drafts)
{
	struct spec_record r;
	double lost = 0;
	spec_record_init(&r, 16);
	costs(us, n);
	*ret_drafts = 0;
	for (int i = 0; i < 1000; i++) {
		spec_record_step(&r);
		want[0] = (struct spec_want){.most = r.length,
		                             .match = match,
		                             .miss = spec_record_miss(&r)};
		uint32_t rows = spec_share(&cost, 1, 0, 64, want, 1);
		if (!rows)
			continue;
		lost += (us[rows] - us[0]) / (1000 * us[0]);
		spec_record_draft(&r, match, rows, 0, 16);
		++*ret_drafts;
	}
	return lost;
}

/* The worst of texts, which looks like one that repeats wherever one looks. It is tried again
 * from time to time. */
TEST(what_does_not_repeat_is_left_alone)
{
	static const double two_cores[] = {1, 1.09, 1.25, 1.45, 2.05, 2.1, 2.61, 2.69};
	static const struct {
		const double *us;
		uint32_t n, match;
		double most;
	} rows[] = {{one_core, 16, 2, 0.005}, {one_core, 16, 3, 0.015}, {one_core, 16, 5, 0.04},
	            {two_cores, 8, 2, 0.01},  {two_cores, 8, 3, 0.02},  {two_cores, 8, 5, 0.04}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		uint32_t drafts;
		fresh();
		double lost = lost_in_vain(rows[i].us, rows[i].n, rows[i].match, &drafts);
		ck_assert_msg(drafts > 5 && lost <= rows[i].most,
		              "case %zu: %u drafts, %.2f %% of the time", i, drafts, 100 * lost);
	}
}

/* --- the daemon ---------------------------------------------------------- */

enum { ASKED = 11 };

struct asked {
	const char *what;
	uint32_t n, period, max_tokens; /* the prompt: tokens that come again after `period` */
	float temperature;
	uint32_t stop_id; /* 0: none */
};
static const struct asked asked[ASKED] = {
	{"three tokens over and over", 61, 3, 120, 0, 0},
	{"two", 33, 2, 100, 0, 0},
	{"one", 47, 1, 90, 0, 0},
	{"seeded", 70, 5, 110, 0.8f, 0},
	{"seeded, few choices", 40, 4, 120, 0.2f, 0},
	{"one token", 30, 3, 1, 0, 0},
	{"two tokens", 30, 3, 2, 0, 0},
	{"a block's edge", 48, 7, 17, 0, 0},
	{"a stop token", 61, 3, 200, 0, 188},
	{"to the end of the context", 400, 9, 500, 0, 0},
	{"half the context, and to its end", 257, 9, 255, 0, 0},
};

static uint32_t asked_vocab = 320; /* the prompts' ids are less */

static void submit_asked(uint32_t n, const struct asked *a)
{
	static uint32_t tokens[512];
	Pds__Submit m = PDS__SUBMIT__INIT;
	struct request q;
	struct prompt p = {.tokens = tokens, .n = a->n, .max_tokens = a->max_tokens};
	for (uint32_t i = 0; i < a->n; i++)
		tokens[i] = (3 + (i % a->period) * 37 % 300 + a->period) % asked_vocab;
	request_fill(&q, &p);
	q.s.temperature = a->temperature;
	q.s.seed = n;
	q.r.stop_ids = (uint32_t *)(uintptr_t)&a->stop_id;
	q.r.n_stop_ids = a->stop_id != 0;
	m.request = &q.r;
	say(ROUTER, MSG_REQUEST_SUBMIT, n, &m);
}

struct outcome {
	struct answer answer[ASKED];
	uint32_t cached, drafts, drafted, accepted, generated, preemptions;
};

/* With these settings, up to NULL; all questions at once, or one after the other. */
static void ask_world(const char *const *settings, int at_once, struct outcome *ret)
{
	world_begin_as(settings);
	for (uint32_t i = 0; i < ASKED; i++) {
		submit_asked(i + 1, &asked[i]);
		if (!at_once)
			UNTIL(ended(i + 1));
	}
	for (uint32_t i = 0; i < ASKED; i++) {
		UNTIL(ended(i + 1));
		ret->answer[i] = D.answer[i + 1];
	}
	UNTIL(requests_are("[]"));
	ret->cached = kv_count("cached");
	ret->drafts = told("status", "drafts");
	ret->drafted = told("status", "drafted_tokens");
	ret->accepted = told("status", "accepted_tokens");
	ret->generated = told("status", "generated_tokens");
	ret->preemptions = told("status", "preemptions");
	world_end();
}

/* A world of its own, in a process of its own, as a test needs several. */
static struct outcome *ask_all_of(const char *const *settings, int at_once)
{
	int status;
	struct outcome *o = mmap(NULL, sizeof *o, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
	                         -1, 0);
	ck_assert_ptr_ne(o, MAP_FAILED);
	pid_t pid = fork();
	if (pid == 0) {
		ask_world(settings, at_once, o);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(status == 0, "%s: wait status %#x", settings[0], (unsigned)status);
	return o;
}

static struct outcome *ask_all(const char *option, const char *blocks, int at_once)
{
	return ask_all_of((const char *const[]){option, blocks, NULL}, at_once);
}

static void expect_same(const struct outcome *got, const struct outcome *want_)
{
	for (uint32_t i = 0; i < ASKED; i++) {
		const struct answer *a = &got->answer[i], *b = &want_->answer[i];
		ck_assert_msg(a->n == b->n && a->finish == b->finish,
		              "%s: %u tokens, finish %d, expected %u, %d", asked[i].what, a->n, a->finish,
		              b->n, b->finish);
		for (uint32_t k = 0; k < a->n; k++)
			ck_assert_msg(a->id[k] == b->id[k], "%s: token %u is %u, expected %u", asked[i].what, k,
			              a->id[k], b->id[k]);
	}
}

TEST_CASE("drafts", .timeout_s = 60);

/* The same answers; the same blocks are left behind: none of a row that was not to be. */
TEST(drafts_change_nothing)
{
	const struct outcome *alone = ask_all("speculative=off", "kv_blocks=200", 0),
						 *other = ask_all("speculative=ngram", "kv_blocks=200", 0);
	ck_assert_uint_eq(alone->drafts + alone->drafted + alone->accepted, 0);
	expect_same(other, alone);
	ck_assert_uint_eq(other->cached, alone->cached);
	ck_assert_uint_eq(other->generated, alone->generated);
	ck_assert_uint_gt(other->drafts, 10);
	ck_assert_uint_gt(other->accepted, 0);
	ck_assert_uint_gt(other->drafted, other->accepted); /* wrong ones among them */
}

/* At once, with room for half of them: rows are shared, blocks are short, sequences give way and
 * come back. */
TEST(drafts_change_nothing_under_pressure)
{
	const struct outcome *alone = ask_all("speculative=off", "kv_blocks=200", 0),
						 *other = ask_all("speculative=ngram", "kv_blocks=34", 1);
	expect_same(other, alone);
	ck_assert_uint_gt(other->preemptions, 0);
	ck_assert_uint_gt(other->drafts, 0);
}

/* A simulated accelerator, whose steps overlap. What it says does not repeat, of few ids: most
 * drafts are wrong. */
static void sim_write(const char *path)
{
	FILE *f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fprintf(f,
	        "model = { name = \"sim\"; layers = 2; hidden = 64; heads = 2; kv_heads = 1; "
	        "head_dim = 32; ffn = 64; context = 512; vocab = %u; };\n"
	        "device = { flops = 1.0e12; bandwidth = 1.0e11; launch_us = 20.0; step_us = 1500.0; "
	        "check = \"always\"; };\n",
	        asked_vocab);
	ck_assert_int_eq(fclose(f), 0);
}

/* The device's history of a sequence has as many tokens as the context, of which half are left for
 * what will be drawn: with a few wrong drafts, that of "half the context" overflows. How much is
 * drafted depends on what rows seem to cost. */
TEST(drafts_of_the_device_change_nothing)
{
	char folder[TEST_FOLDER_BYTES], model[TEST_FOLDER_BYTES + 32];
	const char *settings[] = {"overlap_steps=false", "kv_blocks=300",
	                          "backend=sim",         model,
	                          "kv_type=bf16",        NULL};
	asked_vocab = 16;
	test_folder(folder, "sim");
	snprintf(model, sizeof model, "model=%s/sim.conf", folder);
	sim_write(model + strlen("model="));
	const struct outcome *alone = ask_all_of(settings, 1);
	settings[0] = "speculative=ngram";
	uint32_t drafts = 0;
	for (int turn = 0; turn < 5 && drafts <= 10; turn++) {
		const struct outcome *other = ask_all_of(settings, 1);
		expect_same(other, alone);
		drafts += other->drafts;
	}
	ck_assert_uint_gt(drafts, 10);
}
