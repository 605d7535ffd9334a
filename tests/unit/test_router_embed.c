/* test_router_embed.c - attempts at an embedding: which worker takes them, what it may answer, and
 * how the client gets it. */
#include "router_rig.h"
#include "daemons/router/api/parts.h"

#include <math.h>
#include <sodium.h>

#define LAST PDS__POOLING__POOLING_LAST

static void expect(const struct rig *r, enum standing want, int embeddings, const char *log)
{
	ck_assert_str_eq(standing_name(standing(r->s)), standing_name(want));
	ck_assert_int_eq(r->n_embeddings, embeddings);
	ck_assert_str_eq(r->log, log);
	ck_assert_str_eq(r->out, "");
}

/* Asks for an embedding of four elements. */
static int start(struct rig *r)
{
	rig_seq(r, 1, 0);
	r->s->asked.pooling = LAST;
	r->s->asked.hidden = 4;
	return attempt_start(r->s);
}

static void say_n(struct rig *r, struct worker_record *w, uint32_t attempt, float *values, size_t n)
{
	Pds__Embedding m = PDS__EMBEDDING__INIT;
	Pds__Timing t = PDS__TIMING__INIT;
	struct msg_head head = {.req = r->s->id, .attempt = attempt};
	t.cached_tokens = 3;
	m.timing = &t;
	m.values = values;
	m.n_values = n;
	attempts_embedding(&r->e, w, &head, &m);
}

static void say(struct rig *r, struct worker_record *w, uint32_t attempt)
{
	float values[] = {1, 2, 3, 4};
	say_n(r, w, attempt, values, 4);
}

TEST_LOOP(comes_from_a_prefill_worker, 0, 2)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11);
	if (_i)
		rig_up(r, "d1", "decode", 21);
	ck_assert_int_eq(start(r), 0);
	expect(r, SUBMITTED, 0, "submit p1 #1 5; ");
	say(r, p, 1);
	expect(r, DONE, 1, "submit p1 #1 5; ");
	ck_assert_float_eq(r->embedding[3], 4);
	ck_assert_uint_eq(r->s->got.times.cached_tokens, 3);
	ck_assert_int_eq(r->ended, 1);
	ck_assert_int_eq(r->s->end.status, 200);
	say(r, p, 1); /* late */
	expect(r, DONE, 1, "submit p1 #1 5; ");
	rig_free(r);
}

/* Those that do it all can; a decode worker only if there is no other. */
TEST(comes_from_others)
{
	struct rig *r = rig_new();
	struct worker_record *d = rig_up(r, "d1", "decode", 21);
	ck_assert_int_eq(start(r), 0);
	expect(r, SUBMITTED, 0, "submit d1 #1 5; ");
	say(r, d, 1);
	expect(r, DONE, 1, "submit d1 #1 5; ");
	attempt_destroy(&r->s);
	rig_up(r, "m1", "mixed", 31);
	r->log[0] = 0;
	ck_assert_int_eq(start(r), 0);
	expect(r, SUBMITTED, 1, "submit m1 #1 5; ");
	rig_free(r);
}

TEST(only_of_that_size)
{
	struct rig *r = rig_new();
	struct worker_record *none = rig_up(r, "p1", "prefill", 11), *other;
	none->hidden = 0;
	other = rig_up(r, "p2", "prefill", 12);
	other->hidden = 8;
	ck_assert_int_eq(start(r), ERR_NOTFOUND);
	attempt_destroy(&r->s);
	ck_assert_uint_eq(registry_hidden(&r->g), 8);
	rig_up(r, "p3", "prefill", 13);
	ck_assert_int_eq(start(r), 0);
	expect(r, SUBMITTED, 0, "submit p3 #1 5; ");
	rig_free(r);
}

/* It needs no room for an answer: the context may be full. */
TEST(whole_context)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11);
	p->context_tokens = 5;
	ck_assert_int_eq(start(r), 0);
	attempt_destroy(&r->s);
	p->context_tokens = 4;
	ck_assert_int_eq(start(r), ERR_FULL);
	rig_free(r);
}

/* Lengths count only of workers that make embeddings, of whatever role. */
TEST(longest_input)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11), *d = rig_up(r, "d1", "decode", 21);
	d->context_tokens = 4;
	p->beat.draining = 1;
	ck_assert_int_eq(start(r), ERR_NOTFOUND); /* p1 would take it */
	attempt_destroy(&r->s);
	p->beat.draining = 0;
	p->context_tokens = 4;
	d->context_tokens = 2048;
	d->hidden = 0;
	ck_assert_int_eq(start(r), ERR_FULL);
	rig_free(r);
}

/* A start that waits, and one that was lost: for a worker that takes it, even if one that is there
 * does not. */
TEST_LOOP(waits_for_a_worker, 0, 2)
{
	struct rig *r = rig_new();
	struct worker_record *d = rig_up(r, "d1", "decode", 21), *p;
	if (_i)
		d->context_tokens = 4;
	else
		d->hidden = 0;
	rig_seq(r, 1, 0);
	r->s->asked.pooling = LAST;
	r->s->asked.hidden = 4;
	ck_assert_int_eq(attempt_start(r->s), _i ? ERR_FULL : ERR_NOTFOUND);
	attempt_wait(r->s);
	expect(r, WAITING, 0, "");
	p = rig_up(r, "p1", "prefill", 11);
	attempts_worker_up(&r->e);
	expect(r, SUBMITTED, 0, "submit p1 #1 5; ");
	rig_down(r, p);
	attempts_tick(&r->e, clock_us() + 1000000);
	expect(r, WAITING, 0, "submit p1 #1 5; ");
	rig_up(r, "p1", "prefill", 12);
	attempts_worker_up(&r->e);
	expect(r, SUBMITTED, 0, "submit p1 #1 5; submit p1 #2 5; ");
	rig_free(r);
}

/* A prefill worker that is told to end finishes it, or gives it back by itself; any other is
 * left. */
TEST_LOOP(worker_is_told_to_end, 0, 2)
{
	struct rig *r = rig_new();
	struct worker_record *w = rig_up(r, "w1", _i ? "mixed" : "prefill", 11);
	ck_assert_int_eq(start(r), 0);
	rig_up(r, "p2", "prefill", 12);
	w->beat.draining = w->beat.ending = 1;
	attempts_tick(&r->e, clock_us());
	expect(r, SUBMITTED, 0,
	       _i ? "submit w1 #1 5; cancel w1 #1; submit p2 #2 5; " : "submit w1 #1 5; ");
	rig_free(r);
}

/* What no correct worker sends: the attempt is made again, elsewhere. */
TEST_LOOP(wrong_answers, 0, 6)
{
	static const char again[] = "submit p1 #1 5; cancel p1 #1; submit p2 #2 5; ";
	float values[] = {1, 2, _i == 2 ? NAN : _i == 3 ? INFINITY : 3, 4, 5};
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11), *q;
	ck_assert_int_eq(start(r), 0);
	q = rig_up(r, "p2", "prefill", 12);
	switch (_i) {
	case 0: say_n(r, p, 1, values, 3); break;
	case 1: say_n(r, p, 1, values, 5); break;
	case 2:
	case 3: say_n(r, p, 1, values, 4); break;
	case 4: rig_first(r, p, 1, 0, 10, "d1", 21); break;
	default: rig_more(r, p, 1, 0, 10, 1);
	}
	expect(r, SUBMITTED, 0, again);
	say(r, p, 1); /* of the attempt before */
	expect(r, SUBMITTED, 0, again);
	say(r, p, 2); /* not from its worker */
	expect(r, SUBMITTED, 0, again);
	say(r, q, 2);
	expect(r, DONE, 1, again);
	rig_free(r);
}

TEST(worker_dies)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11), *d = rig_up(r, "d1", "decode", 21);
	ck_assert_int_eq(start(r), 0);
	rig_down(r, p);
	expect(r, SUBMITTED, 0, "submit p1 #1 5; submit d1 #2 5; ");
	say(r, d, 2);
	ck_assert_int_eq(standing(r->s), DONE);
	rig_free(r);
}

TEST(cancelled)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11);
	ck_assert_int_eq(start(r), 0);
	attempt_cancel(r->s, "the client is gone");
	expect(r, CANCELLED, 0, "submit p1 #1 5; cancel p1 #1; ");
	say(r, p, 1);
	expect(r, CANCELLED, 0, "submit p1 #1 5; cancel p1 #1; ");
	rig_free(r);
}

TEST(no_memory)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11);
	ck_assert_int_eq(start(r), 0);
	r->no_memory = 1;
	say(r, p, 1);
	expect(r, FAILED, 0, "submit p1 #1 5; cancel p1 #1; ");
	ck_assert_int_eq(r->s->end.status, 503);
	rig_free(r);
}

/* Nobody asked: ignored in every state of an attempt that generates. */
TEST(not_asked_for)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11), *d = rig_up(r, "d1", "decode", 21);
	rig_seq(r, 16, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	say(r, p, 1);
	ck_assert_int_eq(standing(r->s), SUBMITTED);
	rig_more(r, d, 1, 0, 10, 2);
	say(r, p, 1);
	say(r, d, 1);
	ck_assert_int_eq(standing(r->s), RUNNING);
	ck_assert_int_eq(r->n_embeddings, 0);
	rig_tokens_from(r, d, r->s->id, 1, 2, 12, 1, PDS__FINISH__FINISH_STOP);
	ck_assert_int_eq(standing(r->s), DONE);
	rig_free(r);
}

/* Written in steps, as to a slow client: every bit is there. */
TEST_LOOP(as_json, 0, 2)
{
	enum { N = 5000 };
	static float v[N], got[N];
	struct answer_parts p;
	struct buf out;
	size_t bytes;
	uint32_t x = 1;
	for (int i = 0; i < N; i++) {
		x = x * 1664525u + 1013904223u;
		v[i] = ldexpf((float)(int32_t)x, -31 - (int)(x % 40));
	}
	v[0] = 0;
	v[1] = 1e-40f;
	v[2] = -3e38f;
	parts_init(&p);
	buf_init(&out, 0);
	if (_i)
		parts_base64(&p, v, sizeof v);
	else
		parts_floats(&p, v, N);
	for (size_t most = 1; !parts_write(&p, NULL, &out, most); most = out.len + 1000)
		;
	const char *at = out.data;
	char *end;
	for (int i = 0; !_i && i < N; i++, at = end + (*end == ','))
		got[i] = strtof(at, &end);
	if (_i)
		ck_assert_int_eq(sodium_base642bin((unsigned char *)got, sizeof got, out.data, out.len,
		                                   NULL, &bytes, &at, sodium_base64_VARIANT_ORIGINAL),
		                 0);
	ck_assert_uint_eq((size_t)(at - out.data), out.len);
	ck_assert(memcmp(got, v, sizeof v) == 0);
	buf_fini(&out);
	parts_fini(&p);
}

TEST_START(quiet)
{
	log_set_level("error");
}
