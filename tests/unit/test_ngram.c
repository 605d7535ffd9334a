/* test_ngram.c - the index of a sequence's own tokens against a search that looks everywhere;
 * its window, its memory, its time; copies that run into themselves. */
#include "daemons/worker/draft/ngram.h"
#include "util/clock.h"
#include "util/mem.h"

#include <check.h>
#include <stdlib.h>

static uint32_t random_state;

static uint32_t draw(uint32_t below)
{
	random_state = random_state * 1664525u + 1013904223u;
	return (uint32_t)((uint64_t)random_state * below >> 32);
}

static uint32_t alike(const uint32_t *t, uint32_t place, uint32_t n)
{
	uint32_t k = 0;
	while (k < NGRAM_LONG && k < place && t[place - 1 - k] == t[n - 1 - k])
		k++;
	return k;
}

/* The longest match among the latest NGRAM_TRIES places that have one, the latest of equals. */
static uint32_t find_slowly(const uint32_t *t, uint32_t n, uint32_t min, uint32_t *ret_next)
{
	uint32_t best = 0, tries = 0, oldest = n > NGRAM_WINDOW ? n - NGRAM_WINDOW : 1;
	for (uint32_t place = n - 1; n && place >= oldest && tries < NGRAM_TRIES; place--) {
		uint32_t k = alike(t, place, n);
		tries += k >= min;
		if (k >= min && k > best) {
			best = k;
			*ret_next = place;
		}
	}
	return best;
}

static void fill(uint32_t *t, uint32_t n, uint32_t alphabet)
{
	for (uint32_t i = 0; i < n;) {
		uint32_t run = 1 + draw(40), from = i ? draw(i) : 0;
		int copy = i > 20 && draw(3) == 0;
		for (uint32_t k = 0; k < run && i < n; k++, i++)
			t[i] = copy ? t[from + k] : 7 * draw(alphabet);
	}
}

static const struct {
	uint32_t alphabet, n, min, most_new;
} walks[] = {
	{1, 300, 1, 1},      {2, 600, 2, 1},       {2, 700, 8, 3},    {3, 900, 4, 5},
	{10, 3000, 1, 1},    {10, 3000, 2, 1},     {50, 3000, 2, 17}, {50, 3000, 3, 1},
	{49152, 3000, 1, 1}, {49152, 3000, 4, 60}, {5, 2000, 5, 400}, {49152, 5000, 2, 5000},
};

TEST_CASE("ngram", .timeout_s = 120);

/* Whatever is shown at once, the answer is that of the slow search. A place may be missed only
 * behind others that fell into its slot: none is, here. */
TEST_LOOP(same_as_the_slow_search, 0, sizeof walks / sizeof *walks)
{
	uint32_t n = walks[_i].n, min = walks[_i].min, found = 0;
	uint32_t *t = mem_array(n, sizeof *t);
	struct ngram *x = ngram_new(min);
	random_state = 77 + (uint32_t)_i;
	fill(t, n, walks[_i].alphabet);
	for (uint32_t shown = 0; shown <= n; shown += 1 + draw(walks[_i].most_new)) {
		uint32_t next = UINT32_MAX, want_next = UINT32_MAX, got = ngram_find(x, t, shown, &next),
				 want = find_slowly(t, shown, min, &want_next);
		ck_assert_msg(got == want && next == want_next,
		              "%u of %u tokens: %u at %u, expected %u at %u", shown, n, got, next, want,
		              want_next);
		found += got != 0;
	}
	ck_assert_uint_gt(found, 0);
	ngram_destroy(&x);
	ck_assert_ptr_null(x);
	ngram_destroy(&x);
	free(t);
}

TEST(too_short_to_repeat)
{
	static const uint32_t t[] = {5, 5, 5, 5, 5, 5, 5, 5, 5, 5};
	for (uint32_t min = NGRAM_MIN; min <= NGRAM_MAX; min++) {
		struct ngram *x = ngram_new(min);
		uint32_t next = 0;
		for (uint32_t n = 0; n <= min; n++)
			ck_assert_uint_eq(ngram_find(x, t, n, &next), 0);
		ck_assert_uint_eq(ngram_find(x, t, min + 1, &next), min);
		ck_assert_uint_eq(next, min);
		ngram_destroy(&x);
	}
}

/* A match that has left the window is not found, one that is just in it is; memory has its
 * bound. */
TEST(window)
{
	enum { MARK = 4 };
	uint32_t n = 3 * NGRAM_WINDOW, next;
	uint32_t *t = mem_array(n + MARK, sizeof *t);
	for (uint32_t back = NGRAM_WINDOW - 4; back <= NGRAM_WINDOW + 5; back++) {
		struct ngram *x = ngram_new(3);
		for (uint32_t i = 0; i < n; i++)
			t[i] = 1000 + i;
		uint32_t place = n - back; /* its mark stands just before it */
		for (uint32_t i = 0; i < MARK; i++)
			t[place - MARK + i] = t[n - MARK + i] = i;
		/* in pieces, or all at once */
		for (uint32_t shown = back % 2 ? 500 : n; shown < n; shown += 500)
			ngram_find(x, t, shown, &next);
		uint32_t got = ngram_find(x, t, n, &next);
		ck_assert_msg(got == (back <= NGRAM_WINDOW ? MARK : 0), "%u tokens back: %u", back, got);
		ck_assert(!got || next == place);
		ngram_destroy(&x);
	}
	free(t);
}

/* The worst texts for it: every place matches, and every place has another hash. A search whose
 * cost grew with the length would take hours. */
TEST(as_fast_at_the_end_as_at_the_begin)
{
	uint32_t n = 1000000, next, *t = mem_array(n, sizeof *t);
	uint64_t begin = clock_us();
	for (int text = 0; text < 2; text++) {
		struct ngram *x = ngram_new(2);
		for (uint32_t i = 0; i < n; i++) {
			t[i] = text ? i : i % 2 + (i % 31 == 0);
			ngram_find(x, t, i + 1, &next);
		}
		ngram_destroy(&x);
	}
	ck_assert_uint_lt(clock_us() - begin, 60000000u);
	free(t);
}

TEST(copies)
{
	uint32_t t[20] = {1, 2, 3, 4, 5, 6};
	static const uint32_t behind[] = {4, 5, 6, 4, 5, 6, 4, 5, 6, 4}, plain[] = {2, 3, 4};
	ngram_copy(t, 6, 3, 10, t + 6);
	for (uint32_t i = 0; i < 10; i++)
		ck_assert_uint_eq(t[6 + i], behind[i]);
	ngram_copy(t, 6, 1, 3, t + 10);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_uint_eq(t[10 + i], plain[i]);
	ngram_copy(t, 6, 5, 0, t + 6);
	ck_assert_uint_eq(t[6], 4);
}
