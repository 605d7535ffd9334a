/* test_worker_constraint.c - which tokens a constraint may be written with: special ones never, but
 * for a call those that are markers of calls and thoughts; and what all compiled constraints
 * take of memory. */
/* run: threads */
#include "daemons/worker/seq/constraint.h"
#include "daemons/worker/seq/copy.h"
#include "daemons/worker/seq/tasks.h"
#include "draw_rig.h"
#include "grammar/grammar.h"
#include "tempdir.h"
#include "util/mem.h"

#include <check.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <string.h>
#include <unistd.h>

static const char TOKENIZER[] =
	"{\"added_tokens\":[{\"id\":3,\"content\":\"[TOOL_CALLS]\",\"special\":true},{\"id\":4,"
	"\"content\":\"[/THINK]\",\"special\":true},"
	"{\"id\":5,\"content\":\"<|other|>\",\"special\":true},{\"id\":6,\"content\":\"<|END_ACTION|>"
	"\",\"special\":true},{\"id\":7,\"content\":\"<tool_call>\",\"special\":false},"
	"{\"id\":8,\"content\":\"<|channel|>\",\"special\":true},{\"id\":9,\"content\":\"<|end|>\","
	"\"special\":true},"
	"{\"id\":10,\"content\":\"<|call|>\",\"special\":true},{\"id\":11,\"content\":\"<|python_tag|>"
	"\",\"special\":true},"
	"{\"id\":12,\"content\":\"<|return|>\",\"special\":true},{\"id\":13,\"content\":\"\\\"\","
	"\"special\":false}],"
	"\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
	"\"ByteLevel\"},"
	"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";

#define COUNT(a) (sizeof(a) / sizeof *(a))

enum { VOCAB = 14 };
static const struct engine_info info = {.vocab = VOCAB, .eos = {6}, .n_eos = 1};

#define STRING "[{\"schema\":{\"type\":\"string\"}}]"

/* 6 ends sequences: it is no marker to write, whatever its text. */
static const struct {
	Pds__ConstraintKind kind;
	const char *text;
	uint32_t tokens[4], n, want;
} cases[] = {
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE,
     "[{\"literal\":\"[TOOL_CALLS]ab\"}]",
     {3, 0, 1},
     3,
     3},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE,
     "[{\"literal\":\"[TOOL_CALLS]ab\"}]",
     {3, 2, 3},
     3,
     2},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE,
     "[{\"free\":\"[/THINK]\"},{\"literal\":\"[TOOL_CALLS]\"}]",
     {0, 2, 4, 3},
     4,
     4},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE,
     "[{\"literal\":\"<|channel|>\"},{\"free\":\"<|end|>\"},{\"literal\":\"b\"}]",
     {8, 0, 9, 1},
     4,
     4},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"literal\":\"<tool_call>\"}]", {7}, 1, 1},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"free\":\"\"}]", {0, 5}, 2, 1},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"literal\":\"<|END_ACTION|>\"}]", {6}, 1, 0},
	/* markers that no form has */
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"free\":\"\"}]", {0, 10}, 2, 1},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"free\":\"\"}]", {0, 11}, 2, 1},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"free\":\"\"}]", {0, 12}, 2, 1},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, STRING, {13, 0, 10, 13}, 4, 2},
	/* the form of thoughts has it */
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, STRING, {13, 0, 9, 13}, 4, 4},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_JSON_SCHEMA, "{\"type\":\"string\"}", {13, 0, 9, 13}, 4, 2},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, "\\[TOOL_CALLS\\]a", {3, 0}, 2, 0},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, ".*", {0, 4}, 2, 1},
};

/* Constraints over the vocabulary above, within so much memory. */
static struct constraints *constraints(size_t bytes)
{
	char dir[TEST_FOLDER_BYTES], path[TEST_FOLDER_BYTES + 64];
	test_folder(dir, "constraint");
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	FILE *f = fopen(path, "w");
	ck_assert(f && fputs(TOKENIZER, f) >= 0 && fclose(f) == 0);
	return constraints_new(dir, &info, bytes);
}

/* 0 or ERR_*; w is empty. */
static int compile(struct constraints *all, struct request_copy *w, Pds__ConstraintKind kind,
                   const char *text)
{
	Pds__Request r = PDS__REQUEST__INIT;
	Pds__Constraint k = PDS__CONSTRAINT__INIT;
	struct err err = {0};
	k.kind = kind;
	k.text = (char *)text;
	r.constraint = &k;
	int code = constraint_take(all, w, &r, &err);
	if (code < 0 || constraint_is_ready(w))
		return code;
	code = constraint_compile(w, &err);
	ck_assert_int_eq(constraint_is_ready(w), code == 0);
	ck_assert(code == 0 || *err.text);
	if (code < 0)
		constraint_detach(w);
	return code;
}

TEST_CASE("tokens", .timeout_s = 300);

TEST_LOOP(tokens_that_may_be_written, 0, sizeof cases / sizeof *cases)
{
	struct constraints *all = constraints(16u << 20);
	struct request_copy w = {0};
	ck_assert_int_eq(compile(all, &w, cases[_i].kind, cases[_i].text), 0);
	w.tokens = (uint32_t *)cases[_i].tokens;
	ck_assert_uint_eq(constraint_leading(&w, cases[_i].n, &(uint64_t){CONSTRAINT_STEPS}),
	                  cases[_i].want);
	constraint_detach(&w);
	constraints_destroy(&all);
}

/* --- memory -------------------------------------------------------------- */

struct shown {
	size_t all, idle, bytes;
};

static struct shown shown(struct constraints *all)
{
	struct shown s;
	struct buf b;
	buf_init(&b, 0);
	constraints_json(all, &b);
	ck_assert_int_eq(
		sscanf(b.data, ",\"constraints\":%zu,\"constraints_idle\":%zu,\"constraint_bytes\":%zu",
	           &s.all, &s.idle, &s.bytes),
		3);
	buf_fini(&b);
	return s;
}

/* 90,000 nodes each, all different. */
static void large(char text[128], int k)
{
	snprintf(text, 128, "a{%d}(a|b){0,10000}(ab|a){0,10000}(b|aa){0,10000}(bb|ba){0,10000}", k + 1);
}

/* A flood of large constraints that all stay in use: some compile, the others are told that
 * there is no memory now; then their memory goes back, and others compile. */
TEST(networks_have_half)
{
	enum { N = 60, MB = 32 };
	struct constraints *all = constraints(MB << 20);
	static struct request_copy w[N];
	char text[128];
	int live = 0;
	memset(w, 0, sizeof w);
	for (int i = 0; i < N; i++) {
		large(text, i);
		int r = compile(all, &w[i], PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, text);
		ck_assert(r == 0 || r == ERR_NOMEM);
		live += r == 0;
		ck_assert_uint_le(shown(all).bytes, MB << 20);
	}
	ck_assert_msg(live >= 4 && live < 30, "%d", live);
	large(text, 0); /* what is there is shared, whatever it takes */
	struct request_copy same = {0};
	ck_assert_int_eq(compile(all, &same, PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, text), 0);
	constraint_detach(&same);
	for (int i = 0; i < N; i++)
		constraint_detach(&w[i]);
	ck_assert_uint_eq(shown(all).idle, shown(all).all);
	large(text, 1000); /* an idle one gives way */
	ck_assert_int_eq(compile(all, &same, PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, text), 0);
	constraint_detach(&same);
	for (int i = 0; i < 100; i++) { /* few of the small ones are kept */
		snprintf(text, sizeof text, "a{%d}b", i + 1);
		ck_assert_int_eq(compile(all, &same, PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, text), 0);
		constraint_detach(&same);
	}
	ck_assert_uint_le(shown(all).idle, 32);
	constraints_destroy(&all);
}

/* With the mask thread, if it takes that. */
static int prepare_mask(struct request_copy *w, uint32_t ahead, struct err *err)
{
	for (;;) {
		uint64_t steps = 10 * CONSTRAINT_STEPS;
		int r = constraint_prepare(w, &info, ahead, &steps, err);
		if (r != ERR_TIMEOUT)
			return r;
		while (constraint_is_busy(w))
			usleep(100);
	}
}

/* The next token, by the logits of all alike but for this one's advantage: what is drawn under
 * the constraint. */
static int draw_under(struct request_copy *w, struct draw_rig *s, uint32_t best, uint32_t *ret_id,
                      struct err *err)
{
	float logits[VOCAB] = {0};
	struct kern_drawn r;
	logits[best] += 1;
	int rc = prepare_mask(w, 0, err);
	if (rc < 0)
		return rc;
	struct engine_draw d = request_copy_draw(w, 0);
	draw_rig_draw(s, logits, d.params, &d, &r);
	*ret_id = r.id;
	return 0;
}

static uint32_t draw(struct request_copy *w, struct draw_rig *s, uint32_t best)
{
	struct err err = {0};
	uint32_t id = 0;
	ck_assert_msg(draw_under(w, s, best, &id, &err) == 0, "%s", err.text);
	return id;
}

/* Many answers grow under constraints that find much on the way, in a memory that holds a few of
 * them: what is found gives way and is found again, and each answer is what it would have been
 * alone. */
TEST(tables_give_way)
{
	enum { LIVE = 24, STEPS = 60, ROOM = 4096, MB = 2 };
	struct constraints *all = constraints(MB << 20), *alone = constraints(512u << 20);
	struct draw_rig *s = draw_rig_new(info.vocab);
	static struct request_copy w[LIVE], own[LIVE];
	static uint32_t tokens[LIVE][ROOM], own_tokens[LIVE][ROOM];
	char text[128];
	uint32_t rng = 1;
	size_t most = 0;
	memset(w, 0, sizeof w);
	memset(own, 0, sizeof own);
	for (int i = 0; i < LIVE; i++) {
		snprintf(text, sizeof text, "(a|b)*a(a|b){%d}(ab|b){3,400}", 8 + i % 3 + (i & 1));
		snprintf(text + strlen(text), sizeof text - strlen(text), "a{%d}", i + 1);
		ck_assert_int_eq(compile(all, &w[i], PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, text), 0);
		ck_assert_int_eq(compile(alone, &own[i], PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, text), 0);
		w[i].tokens = tokens[i];
		own[i].tokens = own_tokens[i];
	}
	for (int step = 0; step < STEPS; step++) {
		for (int i = 0; i < LIVE; i++) {
			uint32_t best = (rng = rng * 1664525u + 1013904223u) >> 30, id = draw(&w[i], s, best);
			ck_assert_uint_eq(id, draw(&own[i], s, best));
			tokens[i][w[i].n_tokens++] = own_tokens[i][own[i].n_tokens++] = id;
		}
		most = shown(all).bytes > most ? shown(all).bytes : most;
	}
	printf("%d answers under constraints: %zu KB at most, alone %zu KB\n", LIVE, most >> 10,
	       shown(alone).bytes >> 10);
	ck_assert_uint_le(most, MB << 20);
	ck_assert_uint_gt(shown(alone).bytes, MB << 20);
	for (int i = 0; i < LIVE; i++) {
		constraint_detach(&w[i]);
		constraint_detach(&own[i]);
	}
	draw_rig_free(&s);
	constraints_destroy(&all);
	constraints_destroy(&alone);
}

/* What may follow drafted tokens is told without taking them for said: the answer goes on
 * another way afterwards. Where a draft leaves the constraint nothing more is told. */
TEST(drafted_tokens_are_not_said)
{
	struct constraints *all = constraints(8u << 20);
	struct request_copy w = {0};
	struct err err = {0};
	uint32_t tokens[8];
	ck_assert_int_eq(compile(all, &w, PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, "aab|bba"), 0);
	w.tokens = tokens;
	struct draw_rig *s = draw_rig_new(info.vocab);
	uint32_t a = draw(&w, s, 0), b = draw(&w, s, 1);
	ck_assert_uint_eq(a, 0);
	ck_assert_uint_eq(b, 1);
	tokens[0] = tokens[1] = a; /* a draft: aa, behind which only b may come */
	ck_assert_int_eq(prepare_mask(&w, 2, &err), 2);
	ck_assert(constraint_allowed(&w, 0)[0] & 1u << a && constraint_allowed(&w, 0)[0] & 1u << b);
	ck_assert(constraint_allowed(&w, 1)[0] & 1u << a && !(constraint_allowed(&w, 1)[0] & 1u << b));
	ck_assert(!(constraint_allowed(&w, 2)[0] & 1u << a) && constraint_allowed(&w, 2)[0] & 1u << b);
	ck_assert_int_eq(prepare_mask(&w, 1, &err), 1);
	tokens[0] = b; /* but b was drawn: as many tokens as with the draft */
	w.n_tokens = 1;
	ck_assert_uint_eq(draw(&w, s, a), b);
	tokens[1] = a; /* a draft that is not the constraint's */
	ck_assert_int_eq(prepare_mask(&w, 1, &err), 0);
	draw_rig_free(&s);
	constraint_detach(&w);
	constraints_destroy(&all);
}

/* A long draft's masks are given back when the next step drafts less. */
TEST(masks_of_a_draft_are_given_back)
{
	struct constraints *all = constraints(8u << 20);
	struct request_copy w = {0};
	struct err err = {0};
	uint32_t tokens[512] = {0};
	ck_assert_int_eq(compile(all, &w, PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, "a*"), 0);
	w.tokens = tokens;
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(prepare_mask(&w, 500, &err), 500);
		ck_assert_uint_ge(malloc_usable_size((void *)(uintptr_t)constraint_allowed(&w, 0)),
		                  501 * sizeof(uint64_t));
		ck_assert_int_eq(prepare_mask(&w, 3, &err), 3);
		ck_assert(constraint_allowed(&w, 3)[0] & 1);
		ck_assert_int_eq(prepare_mask(&w, 0, &err), 0);
		ck_assert_uint_lt(malloc_usable_size((void *)(uintptr_t)constraint_allowed(&w, 0)), 100);
	}
	constraint_detach(&w);
	constraints_destroy(&all);
}

/* --- threads ------------------------------------------------------------- */

struct compiler {
	struct constraints *all;
	unsigned seed;
};

static void *compile_some(void *arg)
{
	struct compiler *c = arg;
	struct draw_rig *s = draw_rig_new(info.vocab);
	for (unsigned i = 0; i < 60; i++) {
		struct request_copy w = {0};
		uint32_t tokens[8];
		char text[128];
		if ((i + c->seed) % 5)
			snprintf(text, sizeof text, "(a|b){%u}", (i * 7 + c->seed) % 9 + 3);
		else
			large(text, (int)(i % 3));
		if (compile(c->all, &w, PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, text) < 0)
			continue;
		w.tokens = tokens;
		for (; w.n_tokens < 3; w.n_tokens++) {
			struct err err = {0};
			if (draw_under(&w, s, 0, &tokens[w.n_tokens], &err) < 0) {
				ck_assert_int_eq(err.code, ERR_NOMEM);
				break;
			}
		}
		constraint_detach(&w);
	}
	draw_rig_free(&s);
	return NULL;
}

/* Compiled by several threads at once, the same and others; each stays what it is. */
TEST(compiled_by_several_threads)
{
	struct constraints *all = constraints(12u << 20);
	struct compiler c[4];
	pthread_t t[4];
	for (unsigned i = 0; i < 4; i++) {
		c[i] = (struct compiler){all, i};
		ck_assert_int_eq(pthread_create(&t[i], NULL, compile_some, &c[i]), 0);
	}
	for (unsigned i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	ck_assert_uint_eq(shown(all).idle, shown(all).all);
	ck_assert_uint_le(shown(all).bytes, 12u << 20);
	constraints_destroy(&all);
}

/* --- the threads for constraints ----------------------------------------- */

static _Atomic unsigned masks_done;

static void count_mask(void *arg)
{
	(void)arg;
	masks_done++;
}

static int prepare_in(struct request_copy *w, uint64_t steps, struct err *err)
{
	return constraint_prepare(w, &info, 0, &steps, err);
}

/* A mask for which there are no steps is there when the mask thread says so, and is the one that
 * enough steps give. An error comes the same way. */
TEST(mask_from_beside_the_step)
{
	struct constraints *all = constraints(8u << 20), *other = constraints(8u << 20);
	struct request_copy w = {0}, same = {0};
	struct err err = {0};
	uint32_t tokens[8] = {0};
	masks_done = 0;
	constraints_on_mask(all, count_mask, NULL);
	ck_assert_int_eq(compile(all, &w, PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, "aab|bba"), 0);
	ck_assert_int_eq(compile(other, &same, PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, "aab|bba"), 0);
	w.tokens = same.tokens = tokens;
	for (unsigned n = 0; n < 2; n++) {
		ck_assert_int_eq(prepare_in(&w, 1, &err), ERR_TIMEOUT);
		while (masks_done == n)
			usleep(100);
		ck_assert(!constraint_is_busy(&w));
		ck_assert_int_eq(prepare_in(&w, 1, &err), 0);
		ck_assert_int_eq(prepare_in(&same, CONSTRAINT_STEPS, &err), 0);
		ck_assert_uint_eq(constraint_allowed(&w, 0)[0], constraint_allowed(&same, 0)[0]);
		tokens[n] = 0;
		w.n_tokens = same.n_tokens = n + 1;
	}
	tokens[1] = 1; /* "ab", which is not the constraint's; it was walked as "a" only */
	ck_assert_int_eq(prepare_in(&w, 1, &err), ERR_TIMEOUT);
	while (masks_done == 2)
		usleep(100);
	ck_assert_int_eq(prepare_in(&w, 1, &err), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(err.text, "violates its constraint"));
	constraint_detach(&w);
	constraint_detach(&same);
	constraints_destroy(&all);
	constraints_destroy(&other);
}

/* Whether it waits or is being worked on. */
TEST(detached_while_its_mask_is_computed)
{
	struct constraints *all = constraints(8u << 20);
	constraints_on_mask(all, count_mask, NULL);
	for (unsigned i = 0; i < 200; i++) {
		struct request_copy w[4];
		struct err err = {0};
		uint32_t tokens[1] = {0};
		memset(w, 0, sizeof w);
		for (unsigned k = 0; k < 4; k++) {
			char text[64];
			snprintf(text, sizeof text, "(a|b)*a(a|b){%u}b{%u}", 3 + k, 1 + i);
			ck_assert_int_eq(compile(all, &w[k], PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, text), 0);
			w[k].tokens = tokens;
			ck_assert_int_eq(prepare_in(&w[k], 1, &err), ERR_TIMEOUT);
		}
		usleep(i);
		for (unsigned k = 4; k-- > 0;) {
			if (k % 2)
				ck_assert(!constraint_stop(&w[k]) || !constraint_is_busy(&w[k]));
			constraint_detach(&w[k]);
		}
	}
	constraints_wait(all);
	constraints_destroy(&all);
}

static char order[32];
static _Atomic unsigned n_order, may_begin;

static int work(struct request_copy *req, struct err *err)
{
	(void)err;
	while (!may_begin)
		usleep(100);
	order[n_order] = (char)req->prompt_tokens;
	return 0;
}

static void worked(struct constraint_task *t)
{
	(void)t;
	n_order++;
}

/* The first is begun at once. */
TEST(tasks_take_turns)
{
	static const char put[] = "AAAAAABBCA", want[] = "AABCABAAAA";
	struct tasks *c;
	struct constraint_task t[COUNT(put)];
	struct request_copy req[COUNT(put)];
	ck_assert_int_eq(tasks_new(&c, "turns", 0, NULL), 0);
	for (unsigned i = 0; put[i]; i++) {
		req[i].prompt_tokens = (uint32_t)put[i];
		t[i] = (struct constraint_task){
			.req = &req[i], .group = (uint64_t)put[i], .work = work, .done = worked};
		tasks_put(c, &t[i], 0);
		usleep(i ? 0 : 20000);
	}
	may_begin = 1;
	tasks_wait(c);
	ck_assert_str_eq(order, want);
	tasks_destroy(&c);
}
