/* driver.c - a small mutating fuzzer for machines without clang: gcc's -fsanitize-coverage=trace-pc
 * says which branches an input took; one that took a new one is mutated further. Beside it only the
 * address and undefined-behaviour sanitizers are needed.
 *
 *   driver NAME SECONDS CORPUS KEPT      mutates the files of CORPUS and of KEPT, writes new ones
 *                                        that reach further to KEPT
 *   driver NAME FILE                     runs one input: to see again what a run found
 *   driver --list
 *
 * Built without sanitizers (`make build/fuzz/driver`) it keeps only what costs more than all before
 * (fuzz_cost): `build/fuzz/driver mask 300 tests/fuzz/corpus/mask /tmp/kept`.
 *
 * The last line says seconds, inputs, branches and how many inputs were kept. What ends the process
 * leaves KEPT/../found-NAME and the status is not 0. The seed is the time's: FUZZ_SEED repeats a
 * run as far as the harness is deterministic. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void __sanitizer_cov_trace_pc(void);
/* NULL: built without sanitizers, to look for expensive inputs at full speed (fuzz_cost) */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* --- branches ------------------------------------------------------------ */

enum { MAP = 1 << 16 };
/* of this input: how often; of all: a bit for each order of magnitude */
static uint8_t hits[MAP], seen[MAP];
static uintptr_t last_pc;
static int recording;

__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void)
{
	if (!recording)
		return;
	uintptr_t pc = (uintptr_t)__builtin_return_address(0);
	uint8_t *h = &hits[(pc ^ last_pc) * 0x9e3779b97f4a7c15ull >> 48];
	*h += *h != 255;
	last_pc = pc >> 1;
}

static uint8_t magnitude(uint8_t n)
{
	return (uint8_t)(n < 3     ? n
	                 : n < 4   ? 4
	                 : n < 8   ? 8
	                 : n < 16  ? 16
	                 : n < 32  ? 32
	                 : n < 128 ? 64
	                           : 128);
}

/* Whether the input did what none before did. */
static int note_hits(void)
{
	int news = 0;
	for (size_t w = 0; w < MAP; w += sizeof(uint64_t)) {
		uint64_t any;
		memcpy(&any, hits + w, sizeof any);
		for (size_t i = w; any && i < w + sizeof any; i++) {
			uint8_t m = magnitude(hits[i]);
			news |= m & ~seen[i];
			seen[i] |= m;
		}
	}
	return news != 0;
}

/* --- inputs -------------------------------------------------------------- */

struct input {
	uint8_t *data;
	size_t size;
};

static struct fuzz_target *target;
static struct input *pool, now; /* now: what runs, for the death callback */
static size_t pool_n, pool_size;
static uint64_t seed, runs, most_expensive;
static const char *kept_dir;

static uint64_t rnd(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return below ? seed % below : 0;
}

static void save(const char *path, struct input in)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, in.data, in.size) != (ssize_t)in.size)
		perror(path);
	if (fd >= 0)
		close(fd);
}

static void on_death(void)
{
	char path[512];
	if (!kept_dir || !now.data)
		return;
	snprintf(path, sizeof path, "%s/../found-%s", kept_dir, target->name);
	save(path, now);
	fprintf(stderr, "\nfuzz %s: input %llu ended the process: %s (%zu bytes)\n", target->name,
	        (unsigned long long)runs, path, now.size);
}

static void on_signal(int sig)
{
	if (sig == SIGALRM)
		fprintf(stderr, "\nfuzz %s: one input took more than %d s\n", target->name,
		        FUZZ_INPUT_SECONDS);
	recording = 0;
	on_death();
	_exit(1);
}

static int run(struct input in)
{
	now = in;
	memset(hits, 0, sizeof hits);
	last_pc = 0;
	/* not each time: a call to the kernel costs as much as a short input, but not as an expensive
	 * one */
	if (runs++ % 64 == 0 || most_expensive)
		alarm(FUZZ_INPUT_SECONDS);
	recording = 1;
	target->run(in.data, in.size);
	recording = 0;
	uint64_t cost = fuzz_costs();
	int is_most_expensive = cost > most_expensive + most_expensive / 50;
	most_expensive = is_most_expensive ? cost : most_expensive;
	return note_hits() || is_most_expensive;
}

static void pool_add(const uint8_t *data, size_t size)
{
	if (pool_n == pool_size)
		pool = realloc(pool, (pool_size = pool_size ? 2 * pool_size : 256) * sizeof *pool);
	pool[pool_n].data = malloc(size + 1);
	memcpy(pool[pool_n].data, data, size);
	pool[pool_n++].size = size;
}

static void pool_load(const char *folder)
{
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d));) {
		char path[512];
		size_t n;
		if (e->d_name[0] == '.' ||
		    snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= (int)sizeof path)
			continue;
		uint8_t *p = fuzz_read(path, target->max, &n);
		if (p && (run((struct input){p, n}) || !__sanitizer_set_death_callback))
			pool_add(p, n);
		free(p);
	}
	if (d)
		closedir(d);
}

/* --- mutations: each changes b (room for max bytes) and returns the new size --- */

static const uint64_t odd_numbers[] = {
	0,          1,          2,          7,          16,        31,         32,
	64,         127,        128,        255,        256,       1023,       4096,
	32767,      32768,      65535,      65536,      1u << 20,  INT32_MAX,  1u << 31,
	UINT32_MAX, 1ull << 32, 1ull << 40, 1ull << 61, INT64_MAX, 1ull << 63, UINT64_MAX - 7,
	UINT64_MAX};
static const char *const words[] = {
	"\"",     "{",    "}",    "[",     "]",        "[[[[[[[[",
	"{\"\":", ":",    ",",    "\\",    "\\u0000",  "\\ud800",
	"null",   "true", "-1",   "1e999", "0.5",      "18446744073709551616",
	"../",    "\n",   "\r\n", "\xff",  "\xc0\x80", "\xf0\x9f\x98\x80",
	"{{",     "}}",   "{%",   "%}",    " ",        "%s",
	"(",      ")",    "|",    ")*",    "){64}",    ".{0,60}",
	"[a-z]",  "?",    "::=",  "root"};

static size_t change_bytes(uint8_t *b, size_t n)
{
	size_t at = rnd(n);
	uint64_t v = rnd(3) ? odd_numbers[rnd(sizeof odd_numbers / sizeof *odd_numbers)]
	                    : rnd(UINT64_MAX),
			 old = 0;
	size_t width = (size_t)1 << rnd(4);
	if (width > n - at)
		width = n - at;
	memcpy(&old, b + at, width);
	switch (rnd(4)) {
	case 0: b[at] ^= (uint8_t)(1u << rnd(8)); return n;
	case 1: b[at] = (uint8_t)rnd(256); return n;
	case 2: v = old + (rnd(2) ? 1 + rnd(32) : -(1 + rnd(32))); break;
	default: break;
	}
	memcpy(b + at, &v, width);
	return n;
}

static size_t insert(uint8_t *b, size_t n, size_t max, const uint8_t *p, size_t len)
{
	size_t at = rnd(n + 1);
	len = len < max - n ? len : max - n;
	memmove(b + at + len, b + at, n - at);
	memcpy(b + at, p, len);
	return n + len;
}

static size_t cut(uint8_t *b, size_t n)
{
	size_t len = 1 + rnd(rnd(4) ? 8 : n), at;
	len = len < n ? len : n;
	at = rnd(n - len + 1);
	memmove(b + at, b + at + len, n - at - len);
	return n - len;
}

static size_t copy_part(uint8_t *b, size_t n, size_t max)
{
	const struct input *from = &pool[rnd(pool_n)];
	size_t len = from->size ? 1 + rnd(rnd(3) ? 32 : from->size) : 0, at, to = rnd(n);
	len = len < from->size ? len : from->size;
	at = rnd(from->size - len + 1);
	if (rnd(2))
		return insert(b, n, max, from->data + at, len);
	len = len < n - to ? len : n - to;
	memcpy(b + to, from->data + at, len);
	return n;
}

/* A number in digits becomes another. */
static size_t change_digits(uint8_t *b, size_t n, size_t max)
{
	char text[24];
	size_t at = rnd(n), from = at,
		   len = (size_t)snprintf(
			   text, sizeof text, "%llu",
			   (unsigned long long)odd_numbers[rnd(sizeof odd_numbers / sizeof *odd_numbers)]);
	while (from < n && (b[from] < '0' || b[from] > '9'))
		from++;
	size_t end = from;
	while (end < n && b[end] >= '0' && b[end] <= '9')
		end++;
	if (end == from || n - (end - from) + len > max)
		return n;
	memmove(b + from + len, b + end, n - end);
	memcpy(b + from, text, len);
	return n - (end - from) + len;
}

static size_t mutate(uint8_t *b, size_t n, size_t max)
{
	for (uint64_t i = 1 + rnd(rnd(3) ? 3 : 16); i; i--) {
		const char *w = words[rnd(sizeof words / sizeof *words)];
		uint8_t any[8];
		uint64_t r = seed;
		memcpy(any, &r, sizeof any);
		switch (n ? rnd(8) : 0) {
		case 0: n = insert(b, n, max, any, 1 + rnd(8)); break;
		case 1: n = insert(b, n, max, (const uint8_t *)w, strlen(w)); break;
		case 2: n = cut(b, n); break;
		case 3: n = change_digits(b, n, max); break;
		case 4: n = copy_part(b, n, max); break;
		default: n = change_bytes(b, n);
		}
	}
	return n;
}

/* --- the loop ------------------------------------------------------------ */

static uint64_t hash(struct input in)
{
	uint64_t h = 14695981039346656037ull;
	for (size_t i = 0; i < in.size; i++)
		h = (h ^ in.data[i]) * 1099511628211ull;
	return h;
}

static void keep(struct input in)
{
	char path[512];
	pool_add(in.data, in.size);
	snprintf(path, sizeof path, "%s/%016llx", kept_dir, (unsigned long long)hash(in));
	save(path, in);
}

static size_t branches(void)
{
	size_t n = 0;
	for (size_t i = 0; i < MAP; i++)
		n += seen[i] != 0;
	return n;
}

static int fuzz(int seconds, const char *corpus)
{
	pool_load(corpus);
	pool_load(kept_dir);
	if (!pool_n) {
		fprintf(stderr, "fuzz %s: %s has no input that reaches anything\n", target->name, corpus);
		return 2;
	}
	size_t begun = pool_n;
	uint8_t *b = malloc(target->max + 1);
	time_t start = time(NULL), end = start + seconds;
	while (time(NULL) < end) {
		/* every second input is one of those that were kept last */
		const struct input
			*from = &pool[rnd(2) ? rnd(pool_n) : pool_n - 1 - rnd(pool_n < 32 ? pool_n : 32)];
		memcpy(b, from->data, from->size);
		/* of the exact size, so that the address sanitizer sees a read beyond it */
		struct input in = {.size = mutate(b, from->size, target->max)};
		in.data = malloc(in.size ? in.size : 1);
		memcpy(in.data, b, in.size);
		if (run(in))
			keep(in);
		now.data = NULL;
		free(in.data);
	}
	free(b);
	alarm(0);
	printf("fuzz %-16s %4ld s  %9llu inputs  %6zu branches  %5zu inputs of the corpus reach "
	       "further than others, %zu new\n",
	       target->name, (long)(time(NULL) - start), (unsigned long long)runs, branches(), begun,
	       pool_n - begun);
	if (most_expensive)
		printf("fuzz %-16s the most expensive input: %llu\n", target->name,
		       (unsigned long long)most_expensive);
	return 0;
}

static int usage(void)
{
	fprintf(stderr, "usage: driver NAME SECONDS CORPUS KEPT | driver NAME FILE | driver --list\n");
	return 2;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		for (struct fuzz_target *t = fuzz_targets(); t; t = t->next)
			puts(t->name);
		return 0;
	}
	if ((argc != 3 && argc != 5) || !(target = fuzz_find(argv[1])))
		return usage();
	signal(SIGALRM, on_signal);
	signal(SIGABRT, on_signal);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(on_death);
	if (argc == 3) {
		struct input in;
		in.data = fuzz_read(argv[2], target->max, &in.size);
		if (!in.data)
			return perror(argv[2]), 2;
		run(in);
		free(in.data);
		return 0;
	}
	const char *s = getenv("FUZZ_SEED");
	seed = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid();
	seed |= 1;
	kept_dir = argv[4];
	int rc = fuzz(atoi(argv[2]), argv[3]);
	for (size_t i = 0; i < pool_n; i++)
		free(pool[i].data);
	free(pool);
	return rc;
}
