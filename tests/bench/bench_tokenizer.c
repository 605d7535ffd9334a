/* bench_tokenizer.c - speed of encoding on one core: prose, other scripts, code, and long texts
 * without a place to cut.
 *
 * usage: bench_tokenizer MODEL [corpus.jsonl]   (a GGUF file or a folder; default
 * tests/data/tokenizer/corpus.jsonl)
 *        bench_tokenizer --file TEXT MODEL      prints processor time in seconds and tokens of one
 *        text: for bench_text.py
 *
 * Prose and the like are cases of the corpus joined to 1 MB; each line is the best of several
 * runs of one call, in processor time. */
#include "format/gguf.h"
#include "text/tokenizer.h"
#include "util/buf.h"
#include "util/check.h"
#include "util/mem.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { BYTES = 1 << 20, RUNS = 9 };

static uint64_t cpu_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t best_of(const struct tokenizer *t, const char *text, size_t len,
                        struct token_list *l)
{
	uint64_t best = UINT64_MAX;
	for (int i = 0; i < RUNS; i++) {
		l->n = 0;
		uint64_t begin = cpu_ns();
		CHECK(tokenizer_encode(t, text, len, TOKENIZE_PARSE_SPECIAL, 0, l) == 0);
		uint64_t took = cpu_ns() - begin;
		best = took < best ? took : best;
	}
	return best;
}

static void measure(const struct tokenizer *t, const char *name, const char *text, size_t len)
{
	struct token_list l = {0};
	uint64_t best = best_of(t, text, len, &l);
	struct buf out;
	buf_init(&out, 0);
	uint64_t begin = cpu_ns();
	CHECK(tokenizer_decode(t, l.ids, l.n, 0, &out) == 0);
	uint64_t took = cpu_ns() - begin;
	printf("%-24s %8zu bytes %8zu tokens %8.1f MB/s %7.1f ns/token   decode %7.0f MB/s\n", name,
	       len, l.n, (double)len * 1e3 / (double)best, l.n ? (double)best / (double)l.n : 0,
	       (double)len * 1e3 / (double)took);
	buf_fini(&out);
	token_list_fini(&l);
}

/* Cases [first, end) of the corpus, joined by line breaks, over and over. */
static void measure_cases(const struct tokenizer *t, const char *name, json_t **cases, size_t n,
                          size_t first, size_t end)
{
	struct buf b;
	buf_init(&b, BYTES);
	for (size_t i = first;
	     end <= n && buf_add(&b, json_string_value(cases[i]), json_string_length(cases[i])) == 0 &&
	     buf_addc(&b, '\n') == 0;)
		i = i + 1 < end ? i + 1 : first;
	if (b.len)
		measure(t, name, b.data, b.len);
	buf_fini(&b);
}

static void measure_repeated(const struct tokenizer *t, const char *name, const char *unit)
{
	char *text = mem_alloc(BYTES);
	size_t len = strlen(unit), n = BYTES / len * len;
	for (size_t i = 0; i < n; i++)
		text[i] = unit[i % len];
	measure(t, name, text, n);
	free(text);
}

static size_t read_corpus(const char *path, json_t ***ret_cases)
{
	FILE *f = fopen(path, "r");
	char *line = NULL;
	size_t size = 0, n = 0;
	json_t **cases = NULL;
	if (!f)
		check_fatal("cannot open %s", path);
	for (ssize_t len; (len = getline(&line, &size, f)) > 0; n++) {
		cases = mem_grow(cases, n + 1, sizeof *cases);
		if (!(cases[n] = json_loadb(line, (size_t)len, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL)))
			check_fatal("%s:%zu is not JSON", path, n + 1);
	}
	free(line);
	fclose(f);
	*ret_cases = cases;
	return n;
}

static struct tokenizer *load(const char *path)
{
	struct gguf *g = NULL;
	struct tokenizer *t = NULL;
	struct err err = {0};
	struct stat st;
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
		if (tokenizer_from_folder(path, &t, &err) < 0)
			check_fatal("%s", err.text);
		return t;
	}
	if (gguf_open(path, &g, &err) < 0 || tokenizer_from_gguf(g, &t, &err) < 0)
		check_fatal("%s", err.text);
	gguf_close(&g);
	return t;
}

static int measure_file(const char *model, const char *path)
{
	struct tokenizer *t = load(model);
	struct token_list l = {0};
	struct buf text;
	char part[65536];
	FILE *f = fopen(path, "r");
	buf_init(&text, 0);
	for (size_t n; f && (n = fread(part, 1, sizeof part, f)) > 0;)
		buf_add(&text, part, n);
	if (!f || !text.len)
		check_fatal("cannot read %s", path);
	fclose(f);
	uint64_t best = best_of(t, text.data, text.len, &l);
	printf("%.6f %zu\n", (double)best / 1e9, l.n);
	token_list_fini(&l);
	buf_fini(&text);
	tokenizer_destroy(&t);
	return 0;
}

int main(int argc, char **argv)
{
	json_t **cases;
	if (argc == 4 && !strcmp(argv[1], "--file"))
		return measure_file(argv[3], argv[2]);
	if (argc < 2)
		check_fatal("usage: bench_tokenizer MODEL [corpus.jsonl] | --file TEXT MODEL");
	size_t n = read_corpus(argc > 2 ? argv[2] : "tests/data/tokenizer/corpus.jsonl", &cases);
	uint64_t begin = cpu_ns();
	struct tokenizer *t = load(argv[1]);
	printf("load: %.1f ms, %u tokens\n", (double)(cpu_ns() - begin) / 1e6, tokenizer_size(t));
	static const struct {
		const char *name;
		size_t first, end;
	} kinds[] = {{"prose", 1272, 1822},   {"standard library", 772, 1272}, {"code", 1822, 2419},
	             {"json", 3051, 3250},    {"markdown", 3250, 3498},        {"Chinese", 6687, 6765},
	             {"Russian", 7185, 7258}, {"Hindi", 7043, 7116},           {"fuzz", 5649, 6437}};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		measure_cases(t, kinds[i].name, cases, n, kinds[i].first, kinds[i].end);
	measure_repeated(t, "a...", "a");
	measure_repeated(t, "random-like letters", "qzjxkvbpwyfgmucldrhsnioate");
	measure_repeated(t, "spaces", " ");
	measure_repeated(t, "line breaks", "\n");
	measure_repeated(t, "space, tab, break, word", "  \t\n \n\n x");
	measure_repeated(t, "ill-formed bytes", "\xff\xe2\x82");
	measure_repeated(t, "special tokens", "<|im_start|>");
	for (size_t i = 0; i < n; i++)
		json_decref(cases[i]);
	free(cases);
	tokenizer_destroy(&t);
	return 0;
}
