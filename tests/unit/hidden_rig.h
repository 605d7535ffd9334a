/* hidden_rig.h - hidden states after the final norm, summed over a sequence in steps of all sizes,
 * and the reference's (embeddings.f32, make_embeddings.py beside the golden models). Included once
 * by each. */
#ifndef TEST_HIDDEN_RIG_H
#define TEST_HIDDEN_RIG_H

#include "engine_rig.h"

#define HIDDEN_MAX 8192u /* of the models in tests/data/golden and etc/sim */

/* Adds the hidden states of n tokens, in chunks, to sum. last: only the last token's. */
static void feed_hidden(struct rig *r, struct seq *s, const uint32_t *ids, uint32_t n,
                        uint32_t chunk, int last, double *sum)
{
	for (uint32_t at = 0; at < n; at += chunk) {
		uint32_t m = n - at < chunk ? n - at : chunk;
		int wanted = !last || at + m == n;
		struct engine_span span = {.tokens = ids + at,
		                           .n = m,
		                           .position = s->position,
		                           .blocks = s->table,
		                           .logits = !wanted ? ENGINE_LOGITS_NONE
		                                     : last  ? ENGINE_LOGITS_LAST
		                                             : ENGINE_LOGITS_ALL,
		                           .hidden = wanted ? sum : NULL};
		step(r, &span, 1);
		s->position += m;
	}
}

/* The largest difference of an element between v / n and want, relative to the root of want's mean
 * square; *ret_cosine of the two. */
static double hidden_diff(const double *v, double n, const float *want, uint32_t hidden,
                          double *ret_cosine)
{
	double vv = 0, ww = 0, vw = 0, most = 0;
	for (uint32_t k = 0; k < hidden; k++) {
		double x = v[k] / n, w = (double)want[k];
		vv += x * x;
		ww += w * w;
		vw += x * w;
		most = fabs(x - w) > most || isnan(x) ? fabs(x - w) : most;
	}
	*ret_cosine = vw / sqrt(vv * ww);
	return most / sqrt(ww / hidden);
}

/* The last token's hidden state and the mean of each prompt against the reference. */
static void hidden_check(const char *folder, struct rig_opts o, double tolerance)
{
	static double sum[HIDDEN_MAX];
	float want[HIDDEN_MAX];
	struct golden *g = mem_zalloc(sizeof *g);
	char path[256];
	golden_load(g, folder);
	snprintf(path, sizeof path, "%s/embeddings.f32", folder);
	FILE *f = fopen(path, "r");
	ck_assert_msg(f != NULL, "%s", path);
	o.model = folder;
	o.hidden = 1;
	struct rig r = rig_open(o);
	uint32_t hidden = engine_info(r.e)->hidden;
	for (int i = 0; i < 4; i++) {
		int prompt = i / 2, mean = i % 2;
		double cosine;
		struct seq s = seq_new(&r, (uint32_t)i * 20);
		memset(sum, 0, sizeof sum);
		ck_assert(fread(want, hidden * sizeof *want, 1, f) == 1);
		feed_hidden(&r, &s, g->prompt[prompt], g->n[prompt], g->n[prompt], !mean, sum);
		double d = hidden_diff(sum, mean ? g->n[prompt] : 1, want, hidden, &cosine);
		printf("%s %s %s: largest difference %.2g (limit %g), 1 - cosine %.2g\n", folder,
		       prompt ? "long" : "short", mean ? "mean" : "last", d, tolerance, 1 - cosine);
		ck_assert_msg(d <= tolerance && cosine >= 1 - tolerance * tolerance, "%s: %g, cosine %.9f",
		              folder, d, cosine);
	}
	rig_close(&r);
	fclose(f);
	free(g);
}

#endif
