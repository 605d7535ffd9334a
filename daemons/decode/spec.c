/* spec.c - speculative decoding on the schedule thread: which running sequences get a draft for the
 * next step, how long, and what came of it.
 *
 * A draft is what the proposer expects behind a sequence's last token. It is written there
 * (n_tokens does not count it) and computed in the same step, a row for each token; then each row
 * is sampled as it would have been alone, by the request's seed and the token's index, and the rows
 * count as long as the draft said what was sampled. So the answer is the same bit for bit as
 * without: a draft decides how many steps it takes and nothing else.
 *
 * How long a draft may be is learned: by what became of the sequence's last ones (spec_record.c),
 * and by what rows cost (spec_cost.c). And rows are what a step has to spare: a draft never
 * makes a prompt's chunk smaller, nor preempts anybody, nor takes a block that one who was
 * preempted waits for. */
#include "spec.h"
#include "decode.h"
#include "daemons/worker/seq/constraint.h"
#include "ngram.h"
#include "util/mem.h"
#include "util/least.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN 5u /* sizes of steps whose times pdctl shows: 1, 2, 4, 8, 16 rows */

struct spec_sequence {
	struct ngram *index;
	struct spec_record record;
	/* of the present draft: place of what it is a copy of; how many tokens before it are the
	 * last ones */
	uint32_t next, match;
};

struct proposer {
	const char *name;
	/* 1: something is proposed, ss->next and ss->match are set. */
	int (*find)(struct spec_sequence *ss, const struct request_copy *k);
};

struct spec {
	const struct proposer *proposer; /* NULL: off */
	uint32_t tokens_max, ngram_min;
	struct spec_cost cost;
	_Atomic uint32_t shown_us[SHOWN]; /* of it, for other threads; 0: nothing is known yet */
	struct spec_want *want;           /* (max_sequences) of this step */
	struct sequence **whose;
};

static int find_nothing(struct spec_sequence *ss, const struct request_copy *k)
{
	(void)ss;
	(void)k;
	return 0;
}

static int find_ngram(struct spec_sequence *ss, const struct request_copy *k)
{
	ss->match = ngram_find(ss->index, k->tokens, k->n_tokens, &ss->next);
	return ss->match != 0;
}

static const struct proposer proposers[] = {{"naive", find_nothing}, {"ngram", find_ngram}};

/* --- life ---------------------------------------------------------------- */

struct spec *spec_new(struct worker *w)
{
	struct conf *c = svc_conf(w->svc);
	struct spec *s = mem_zalloc(sizeof *s);
	for (size_t i = 0; i < sizeof proposers / sizeof *proposers; i++)
		if (strcmp(conf_str(c, "speculative"), proposers[i].name) == 0)
			s->proposer = &proposers[i];
	s->tokens_max = (uint32_t)conf_int(c, "spec_tokens_max");
	s->ngram_min = (uint32_t)conf_int(c, "spec_ngram_min");
	s->want = mem_array(w->max_sequences, sizeof *s->want);
	s->whose = mem_array(w->max_sequences, sizeof *s->whose);
	if (s->proposer)
		log_info("speculative", "proposer=%s tokens_max=%u ngram_min=%u", s->proposer->name,
		         s->tokens_max, s->ngram_min);
	return s;
}

void spec_destroy(struct spec **sp)
{
	struct spec *s = *sp;
	if (!s)
		return;
	free(s->want);
	free(s->whose);
	free(s);
	*sp = NULL;
}

void spec_forget(struct sequence *q)
{
	if (!q->spec)
		return;
	ngram_destroy(&q->spec->index);
	free(q->spec);
	q->spec = NULL;
}

static struct spec_sequence *spec_sequence_new(const struct spec *s)
{
	struct spec_sequence *ss = mem_zalloc(sizeof *ss);
	ss->index = ngram_new(s->ngram_min);
	spec_record_init(&ss->record, s->tokens_max);
	return ss;
}

/* --- planning ------------------------------------------------------------ */

/* Its answer may get so many tokens beside the one of this step. */
static uint32_t tokens_beyond(const struct request_copy *k)
{
	uint32_t answer = k->max_tokens - request_copy_index(k), room = k->limit_tokens - k->n_tokens;
	return (answer < room ? answer : room) - 1;
}

/* What q could use, if anything is expected behind its last token. */
static int wants(struct spec *s, struct sequence *q, struct spec_want *ret)
{
	if (!q->first_us)
		return 0; /* its prompt's last token: it may be wanted for log-probabilities */
	if (!q->spec)
		q->spec = spec_sequence_new(s);
	struct spec_sequence *ss = q->spec;
	spec_record_step(&ss->record);
	uint32_t most = tokens_beyond(&q->req), has = q->n_blocks * q->w->info->kv.block_tokens;
	if (decode_of(q->w)->preempted)
		/* free blocks are for those who wait for them */
		most = least(most, has > q->req.n_tokens ? has - q->req.n_tokens : 0);
	if (!s->proposer->find(ss, &q->req) || !most)
		return 0;
	*ret = (struct spec_want){.most = least(most, ss->record.length),
	                          .match = ss->match,
	                          .miss = spec_record_miss(&ss->record)};
	return 1;
}

/* The draft stands behind the tokens, where the next ones will. */
static void write_draft(struct sequence *q, uint32_t rows)
{
	struct request_copy *k = &q->req;
	if (k->n_tokens + rows > k->room_tokens) {
		k->room_tokens = k->n_tokens + rows + 64;
		k->tokens = mem_grow(k->tokens, k->room_tokens, sizeof *k->tokens);
	}
	ngram_copy(k->tokens, k->n_tokens, q->spec->next, rows, k->tokens + k->n_tokens);
	/* what its constraint does not allow will not be sampled */
	q->ahead = constraint_leading(k, rows);
}

void spec_plan(struct decode *d)
{
	struct spec *s = d->spec;
	uint32_t n = 0, decode = 0, prompt = 0, chunk;
	if (!s->proposer)
		return;
	list_each(it, &d->running) {
		struct sequence *q = list_entry(it, struct sequence, batch);
		uint32_t left = q->req.n_tokens - q->computed;
		q->ahead = 0;
		if (q->restore)
			continue; /* it is in no step before storage has ended */
		decode += left == 1;
		prompt += left > 1 ? left : 0;
		if (left == 1 && n < d->w->max_sequences && wants(s, q, &s->want[n]))
			s->whose[n++] = q;
	}
	uint32_t spare = spec_spare(d->w->max_batched_tokens, d->chunk_tokens, decode, prompt, &chunk);
	if (!n || !spec_share(&s->cost, decode, chunk, spare, s->want, n))
		return;
	for (uint32_t i = 0; i < n; i++)
		if (s->want[i].rows)
			write_draft(s->whose[i], s->want[i].rows);
}

/* --- learning ------------------------------------------------------------ */

void spec_step_took(struct decode *d, uint32_t rows, uint64_t us)
{
	struct spec *s = d->spec;
	if (!s->proposer)
		return;
	spec_cost_note(&s->cost, rows, us);
	if (s->cost.notes % 16)
		return;
	for (uint32_t i = 0; i < SHOWN; i++)
		s->shown_us[i] = (uint32_t)spec_cost_of(&s->cost, 1u << i);
}

void spec_learn(struct decode *d, struct sequence *q, uint32_t drafted, uint32_t right)
{
	struct spec_sequence *ss = q->spec;
	struct stat_set *stats = svc_stats(d->w->svc);
	spec_record_draft(&ss->record, ss->match, drafted, right, d->spec->tokens_max);
	q->drafted += drafted;
	q->accepted += right;
	stat_add(stats, WS_SPEC_DRAFTS, 1);
	stat_add(stats, WS_SPEC_PROPOSED, drafted);
	stat_add(stats, WS_SPEC_ACCEPTED, right);
}

void spec_status(const struct decode *d, struct buf *out)
{
	const struct stat_set *stats = svc_stats(d->w->svc);
	buf_printf(
		out,
		",\"speculative\":\"%s\",\"drafts\":%llu,\"drafted_tokens\":%llu,\"accepted_tokens\":%llu",
		d->spec->proposer ? d->spec->proposer->name : "off",
		(unsigned long long)stat_get(stats, WS_SPEC_DRAFTS),
		(unsigned long long)stat_get(stats, WS_SPEC_PROPOSED),
		(unsigned long long)stat_get(stats, WS_SPEC_ACCEPTED));
	if (!d->spec->proposer)
		return;
	buf_adds(out, ",\"step_us_by_rows\":{");
	for (uint32_t i = 0; i < SHOWN; i++)
		buf_printf(out, "%s\"%u\":%u", i ? "," : "", 1u << i, d->spec->shown_us[i]);
	buf_addc(out, '}');
}
