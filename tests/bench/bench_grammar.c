/* bench_grammar.c - constrained output on one core, in processor time: compiling a constraint, the
 * first mask of each state that an answer passes, and the same masks again.
 *
 *   bench_grammar MODEL KIND TEXT ANSWER N      MODEL: a GGUF file; KIND: json_schema, regex ...;
 *   TEXT, ANSWER: files; the best of N runs. Prints four times in seconds:
 *                                               compile, first masks, again (both per token of the
 *                                               answer), the slowest first mask; then the answer's
 *                                               tokens
 *   bench_grammar --vocab MODEL                 prints the bytes of each token id in
 *   hexadecimal, "-" for special ones: for the peer */
#include "format/gguf.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"
#include "util/buf.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AUTOMATON_BYTES (16u << 20) /* as a worker gives each */

static double cpu_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct tokenizer *open_tokenizer(const char *path)
{
	struct gguf *f;
	struct tokenizer *t;
	struct err err = {0};
	if (gguf_open(path, &f, &err) < 0 || tokenizer_from_gguf(f, &t, &err) < 0)
		check_fatal("%s: %s", path, err.text);
	gguf_close(&f);
	return t;
}

static struct buf read_file(const char *path)
{
	struct buf b;
	char piece[4096];
	FILE *f = fopen(path, "r");
	if (!f)
		check_fatal("cannot open %s", path);
	buf_init(&b, 0);
	for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
		buf_add(&b, piece, n);
	fclose(f);
	return b;
}

static void print_vocab(const struct tokenizer *t)
{
	for (uint32_t id = 0; id < tokenizer_size(t); id++) {
		size_t n = 0;
		const char *s = tokenizer_is_special(t, id) ? NULL : tokenizer_bytes(t, id, &n);
		for (size_t i = 0; s && i < n; i++)
			printf("%02x", (unsigned char)s[i]);
		puts(s ? "" : "-");
	}
}

static struct grammar_vocab *vocabulary(const struct tokenizer *t)
{
	uint32_t n = tokenizer_size(t), *len = mem_array(n, sizeof *len);
	const char **bytes = mem_array(n, sizeof *bytes);
	for (uint32_t id = 0; id < n; id++) {
		size_t own = 0;
		if (!tokenizer_is_special(t, id))
			bytes[id] = tokenizer_bytes(t, id, &own);
		len[id] = (uint32_t)own;
	}
	struct grammar_vocab *v = grammar_vocab_new(bytes, len, n);
	free(bytes);
	free(len);
	return v;
}

static enum grammar_kind kind_of(const char *name)
{
	for (int k = GRAMMAR_JSON_SCHEMA; k < GRAMMAR_KINDS; k++)
		if (strcmp(name, grammar_kind_name((enum grammar_kind)k)) == 0)
			return (enum grammar_kind)k;
	check_fatal("no kind of constraint is called %s", name);
}

/* Seconds for the masks before each token and behind the last, per token, and of the slowest. */
static double masks(struct automaton *a, const struct token_list *l, uint64_t *mask,
                    double *ret_slowest)
{
	struct grammar_walk walk = {0};
	struct err err = {0};
	unsigned flags = 0;
	double begin = cpu_s(), last = begin, slowest = 0;
	for (uint32_t n = 0; n <= l->n; n++) {
		if (automaton_mask(a, &walk, l->ids, n, NULL, mask, &flags, &err) < 0)
			check_fatal("%s", err.text);
		if (ret_slowest) {
			double now = cpu_s();
			slowest = now - last > slowest ? now - last : slowest;
			last = now;
		}
	}
	double took = cpu_s() - begin;
	if (ret_slowest)
		*ret_slowest = slowest;
	if (!(flags & AUTOMATON_MAY_END))
		check_fatal("the answer is not whole");
	return took / (double)(l->n + 1);
}

static double lesser(double a, double b)
{
	return a < b ? a : b;
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--vocab") == 0) {
		print_vocab(open_tokenizer(argv[2]));
		return 0;
	}
	if (argc != 6)
		check_fatal(
			"usage: bench_grammar MODEL KIND TEXT ANSWER N, or bench_grammar --vocab MODEL");
	struct tokenizer *t = open_tokenizer(argv[1]);
	struct grammar_vocab *v = vocabulary(t);
	struct buf text = read_file(argv[3]), answer = read_file(argv[4]);
	struct token_list l = {0};
	uint64_t *mask = mem_array(grammar_mask_words(grammar_vocab_size(v)), sizeof *mask);
	double compile = 1e9, first = 1e9, again = 1e9, slowest = 1e9, slow;
	CHECK(tokenizer_encode(t, answer.data, answer.len, 0, 0, &l) == 0);
	for (int i = atoi(argv[5]); i > 0; i--) {
		struct grammar *g;
		struct err err = {0};
		double begin = cpu_s();
		if (grammar_compile(kind_of(argv[2]), text.data ? text.data : "", text.len, 0, &g, &err) <
		    0)
			check_fatal("%s: %s", argv[3], err.text);
		struct automaton *a = automaton_new(g, v, AUTOMATON_BYTES, NULL);
		compile = lesser(compile, cpu_s() - begin);
		first = lesser(first, masks(a, &l, mask, &slow));
		slowest = lesser(slowest, slow);
		again = lesser(again, masks(a, &l, mask, NULL));
		automaton_destroy(&a);
	}
	printf("%.9f %.9f %.9f %.9f\n", compile, first, again, slowest);
	for (size_t i = 0; i < l.n; i++)
		printf("%u ", l.ids[i]);
	puts("");
	free(mask);
	token_list_fini(&l);
	buf_fini(&text);
	buf_fini(&answer);
	grammar_vocab_destroy(&v);
	tokenizer_destroy(&t);
	return 0;
}
