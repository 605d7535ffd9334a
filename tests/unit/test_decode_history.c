/* test_decode_history.c - the host's part in the device's history of a sequence, which drafts of
 * steps in flight are made from: it begins with the latest tokens, and begins again before it would
 * overflow. The device is played: what it is given makes it remember the sequence's latest tokens,
 * never more than it has room for. */
#include "daemons/worker/draft/spec.c" /* plans a draft without the costs of rows */

enum { RUNS = 3, DRAFTED_MAX = 4, TOKENS = 600, HISTORY_MAX = 1000 };

/* A sequence, of which the host knows the first n_tokens. */
struct played {
	struct run r;
	uint32_t tokens[TOKENS + 8];
	uint32_t right; /* of the drafts in flight */
	/* the device's history of it; n 0: it has none */
	uint32_t history[HISTORY_MAX], n;
	uint32_t begun, drafted;
};

static struct engine_info info;
static struct worker w;
static struct batcher b;
static struct drafts drafts;
static uint32_t unused[RUNS], n_histories;
static struct played played[RUNS];
static unsigned seed;

static uint32_t draw(uint32_t below)
{
	return (uint32_t)rand_r(&seed) % below;
}

static void begin(uint32_t history_tokens, uint32_t histories)
{
	seed = 3;
	info.history_tokens = history_tokens;
	w = (struct worker){.info = &info};
	drafts = (struct drafts){.ngram_min = 2, .unused = unused};
	for (n_histories = 0; n_histories < histories; n_histories++)
		unused[drafts.n_unused++] = n_histories + 1;
	memset(&b, 0, sizeof b);
	b.w = &w;
	b.own.drafts = &drafts;
	for (uint32_t i = 0; i < RUNS; i++) {
		struct played *p = &played[i];
		memset(p, 0, sizeof *p);
		for (uint32_t k = 0; k < TOKENS + 8; k++)
			p->tokens[k] = draw(1000);
		p->r.req = (struct request_copy){.tokens = p->tokens, .n_tokens = 1 + draw(60)};
		p->r.draws_in_flight = 1;
		p->r.drafts = sequence_drafts_new(&drafts);
	}
}

static void end(void)
{
	for (uint32_t i = 0; i < RUNS; i++)
		drafts_forget(&b, &played[i].r);
}

/* The step of p that was started before lands on the device, then this one is started. */
static void device_continues(struct played *p, const struct engine_span *s)
{
	const struct request_copy *req = &p->r.req;
	uint32_t drawn = 1 + p->right;
	if (!s->history) {
		ck_assert_uint_eq(s->drafts + s->n_known, 0);
		p->n = 0;
		return;
	}
	ck_assert(s->continues && s->n_known <= info.history_tokens);
	if (s->n_known) {
		memcpy(p->history, s->known, s->n_known * sizeof *s->known);
		p->n = s->n_known;
		p->begun++;
	}
	ck_assert_msg(p->n, "history %u goes on, and was not begun", s->history);
	ck_assert_msg(p->n + drawn <= info.history_tokens, "%u and %u tokens, it has room for %u", p->n,
	              drawn, info.history_tokens);
	memcpy(p->history + p->n, req->tokens + req->n_tokens, drawn * sizeof *p->history);
	p->n += drawn;
	ck_assert_mem_eq(p->history, req->tokens + req->n_tokens + drawn - p->n,
	                 p->n * sizeof *p->history);
}

/* Starts a step of p with a draft of so many rows, if it can have one; then the one before it has
 * ended. */
static void step(struct played *p, uint32_t rows, int *may_begin)
{
	struct run *r = &p->r;
	r->ahead = 0;
	if (rows && r->draws_in_flight)
		plan_on_device(&b, r, rows, may_begin);
	ck_assert(r->ahead == 0 || r->ahead == rows);
	struct engine_span s = {.drafts = r->ahead, .continues = r->draws_in_flight};
	drafts_ask(&b, r, &s);
	if (r->draws_in_flight)
		device_continues(p, &s);
	r->req.n_tokens += r->draws_in_flight + p->right;
	p->drafted += s.drafts;
	p->right = draw(s.drafts + 1);
	r->draws_in_flight = 1;
	r->drafts_in_flight = s.drafts;
}

/* All its tokens are known: no step of it is in flight. It may lose its history to another one. */
static void drain(struct played *p, int gives)
{
	p->r.req.n_tokens += p->r.draws_in_flight + p->right;
	p->r.draws_in_flight = p->r.drafts_in_flight = p->right = 0;
	if (gives)
		drafts_give_history(&b, &p->r);
}

static void no_two_have_one(void)
{
	uint32_t has[1 + RUNS] = {0};
	for (uint32_t i = 0; i < RUNS; i++)
		has[played[i].r.drafts->history]++;
	for (uint32_t i = 1; i <= RUNS; i++)
		ck_assert_msg(has[i] <= 1, "%u sequences have history %u", has[i], i);
	ck_assert_uint_eq(drafts.n_unused + has[1] + has[2] + has[3], n_histories);
}

static const struct {
	const char *what;
	uint32_t room, histories;
	uint32_t drains; /* a run is drained every so many steps; 0: never */
	int gives;
	uint32_t least, most; /* times that histories begin, for 600 tokens of the longest run */
} rows[] = {
	{"there is room for all", HISTORY_MAX, RUNS, 0, 0, RUNS, RUNS},
	{"half of it is 20 tokens", 40, RUNS, 0, 0, 80, 160},
	{"half of it is 8 tokens", 16, RUNS, 0, 0, 200, 320},
	{"no step more than the first", 10, RUNS, 0, 0, 200, 500},
	{"not all steps overlap", HISTORY_MAX, RUNS, 25, 0, 25, 50},
	{"neither, and little room", 40, RUNS, 25, 0, 90, 160},
	{"fewer than sequences", 40, 2, 0, 0, 50, 120},
	{"they change hands", 40, 2, 25, 1, 80, 160},
};
enum { ROWS = sizeof rows / sizeof *rows };

static uint32_t longest(void)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < RUNS; i++)
		n = played[i].r.req.n_tokens > n ? played[i].r.req.n_tokens : n;
	return n;
}

TEST_LOOP(a_history_begins_again_before_it_overflows, 0, ROWS)
{
	uint32_t all = 0;
	begin(rows[_i].room, rows[_i].histories);
	for (uint32_t k = 1; longest() < TOKENS; k++) {
		int may_begin = 1;
		uint32_t before = all;
		for (uint32_t i = 0; i < RUNS; i++) {
			struct played *p = &played[i];
			if (rows[_i].drains && (k + i) % rows[_i].drains == 0)
				drain(p, rows[_i].gives);
			all -= p->begun;
			step(p, draw(DRAFTED_MAX + 1), &may_begin);
			all += p->begun;
		}
		ck_assert_uint_le(all - before, 1); /* there is room in the batch for one */
		no_two_have_one();
	}
	ck_assert_msg(all >= rows[_i].least && all <= rows[_i].most, "%s: histories begin %u times",
	              rows[_i].what, all);
	ck_assert_uint_gt(played[0].drafted, TOKENS / 3);
	end();
	ck_assert_uint_eq(drafts.n_unused, n_histories);
}
