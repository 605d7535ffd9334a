/* smollm2.h - the demo model held against tests/data/smollm2/reference.jsonl, what Hugging Face
 * transformers computes for 22 prompts: log-probabilities of the prompts' tokens, and the greedy
 * answers. For the tests of engines on any backend. */
#ifndef TESTS_SMOLLM2_H
#define TESTS_SMOLLM2_H

#include "engine_rig.h"
#include "skip.h"

/* The file that PD_MODEL names, or NULL. */
static const char *real_model(void)
{
	const char *path = getenv("PD_MODEL");
	return path && *path ? path : NULL;
}

static double log_prob(const float *logits, uint32_t vocab, uint32_t id)
{
	double max = logits[argmax(logits, vocab)], sum = 0;
	for (uint32_t i = 0; i < vocab; i++)
		sum += exp(logits[i] - max);
	return logits[id] - max - log(sum);
}

struct deviation {
	uint32_t positions, top1, greedy_equal, generated;
	double sum, generated_sum, max;
};

struct record {
	uint32_t ids[4096], n, prompt; /* prompt and greedy continuation */
	const json_t *o;
};

static void record_read(struct record *rec, const json_t *o)
{
	rec->o = o;
	rec->prompt = read_ids(json_object_get(o, "ids"), rec->ids, 2048);
	rec->n = rec->prompt + read_ids(json_object_get(o, "greedy"), rec->ids + rec->prompt, 2048);
}

/* Row at position p predicts ids[p + 1]: compares with the reference's log-probability and best
 * id. */
static void compare(const struct record *rec, uint32_t p, const float *row, uint32_t vocab,
                    struct deviation *d)
{
	double want;
	uint32_t best, generated = p + 1 >= rec->prompt;
	if (generated) {
		const json_t *top = json_array_get(
			json_object_get(json_array_get(json_object_get(rec->o, "steps"), p + 1 - rec->prompt),
		                    "top"),
			0);
		best = (uint32_t)json_integer_value(json_array_get(top, 0));
		want = json_number_value(json_array_get(top, 1));
	} else {
		best = (uint32_t)json_integer_value(
			json_array_get(json_object_get(rec->o, "prompt_top1"), p));
		want = json_number_value(json_array_get(json_object_get(rec->o, "prompt_logprobs"), p));
	}
	double diff = fabs(log_prob(row, vocab, rec->ids[p + 1]) - want);
	uint32_t got = argmax(row, vocab);
	d->positions++;
	d->sum += diff;
	d->generated += generated;
	d->generated_sum += generated ? diff : 0;
	d->max = diff > d->max ? diff : d->max;
	d->top1 += got == best;
	d->greedy_equal += generated && got == best;
}

/* Some records are enough where a position takes long: an answer, bytes beyond ASCII, the
 * shortest, positions up to 768. */
static const char *const few_records[] = {"paris", "emoji", "raw-one-token", "long-800"};
enum { ONE = 1, FEWEST = 3, FEW = 4, ALL = 22 };
static const uint32_t positions_of[] = {[ONE] = 44, [FEWEST] = 187, [FEW] = 955, [ALL] = 3704};

static int is_among(const char *name, int records)
{
	for (int i = 0; i < records; i++)
		if (strcmp(few_records[i], name) == 0)
			return 1;
	return 0;
}

/* Every position of that many records. o.model: the SmolLM2 file */
static struct deviation teacher_forced(struct rig_opts o, int records)
{
	struct deviation d = {0};
	struct record *rec = mem_zalloc(sizeof *rec);
	o.rows = 128;
	o.block_tokens = 64;
	struct rig r = rig_open(o);
	FILE *f = fopen("tests/data/smollm2/reference.jsonl", "r");
	char *line = NULL;
	size_t size = 0;
	ck_assert(f);
	while (getline(&line, &size, f) > 0) {
		json_t *j = json_loads(line, 0, NULL);
		ck_assert(j);
		record_read(rec, j);
		if (records != ALL && !is_among(json_string_value(json_object_get(j, "name")), records))
			rec->n = 0;
		struct seq s = seq_new(&r, 0);
		for (uint32_t at = 0; at + 1 < rec->n; at += 128) {
			uint32_t m = rec->n - 1 - at < 128 ? rec->n - 1 - at : 128;
			struct engine_span span = {.tokens = rec->ids + at,
			                           .n = m,
			                           .position = at,
			                           .blocks = s.table,
			                           .logits = ENGINE_LOGITS_ALL};
			step(&r, &span, 1);
			for (uint32_t i = 0; i < m; i++)
				compare(rec, at + i, engine_logits(r.e, span.logits_row + i), r.vocab, &d);
		}
		json_decref(j);
	}
	printf("%s, %s: %u positions, mean |dlogp| %.5f (generated %.5f), largest %.4f, top-1 %.2f %%, "
	       "generated top-1 %u of %u\n",
	       engine_info(r.e)->name, engine_info(r.e)->numerics, d.positions, d.sum / d.positions,
	       d.generated_sum / d.generated, d.max, 100.0 * d.top1 / d.positions, d.greedy_equal,
	       d.generated);
	free(line);
	fclose(f);
	rig_close(&r);
	free(rec);
	ck_assert_uint_eq(d.positions, positions_of[records]);
	return d;
}

#endif
