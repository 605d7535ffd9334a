/* test_conform_kv.c - writing K and V to the paged pool: every type, sizes of heads and blocks,
 * latents; halves between two values. */
#include "tests/conform/conform.h"

#include <math.h>

static const struct {
	struct sequence seq[SEQUENCES];
	uint32_t block_tokens, kv_heads, head_dim, latent;
} kv_cases[] = {
	{{{0, 1}}, 16, 1, 4, 0},
	{{{0, 37}, {5, 1}}, 16, 3, 64, 0},
	{{{100, 200}}, 64, 1, 32, 0},
	{{{7, 30}, {0, 2}, {63, 66}}, 7, 2, 20, 0},
	{{{3, 5}, {64, 1}, {2, 1}}, 1, 5, 128, 0},
	{{{0, 65}}, 16, 2, 36, 20},
	{{{9, 16}, {31, 2}}, 64, 1, 576, 512},
	{{{0, 31}}, 256, 8, 100, 0},
};

/* k and v are fields of all positions here, and only those of the rows under test are written. */
CONFORM_TEST(kv_write)
{
	for (uint32_t i = 0; i < LEN(kv_cases) * KV_TYPES; i++) {
		size_t mark = conform_mark();
		uint32_t c = i / KV_TYPES;
		struct job *j = kv_job(KERN_OP_KV_WRITE, kv_cases[c].seq, kv_cases[c].block_tokens,
		                       kv_types[i % KV_TYPES], kv_cases[c].kv_heads, kv_cases[c].head_dim,
		                       kv_cases[c].latent, kv_cases[c].latent ? "latents" : "K and V");
		j->record = kv_write_record;
		job_check(j);
		conform_release(mark);
	}
}

/* Halves between two values of the type go to the even one: integers with one bit too many, of
 * many magnitudes; rows whose scale is 1 for the types that have scales. */
static void halves_fill(struct job *j)
{
	enum kern_dtype t = j->kv.dtype;
	uint32_t dim = j->kv.head_dim,
			 bits = t == KERN_BF16  ? 9
	                : t == KERN_F16 ? 12
	                                : 5,
			 planes = j->world.all[j->world.sequences] * j->kv.kv_heads;
	for (uint32_t f = 0; f < 2; f++)
		for (uint32_t i = 0; i < planes * dim; i++) {
			float odd = (float)(2 * rand_below(1u << (bits - 1)) + 1),
				  sign = rand_bits() % 2 ? -1 : 1;
			float x = t == KERN_I8 ? (float)rand_below(127) + 0.5f
			                       : ldexpf(odd, (int)rand_below(8) - (t == KERN_F8 ? 7 : 20));
			bool scaled = t == KERN_I8 || t == KERN_F8;
			j->field[f].data[i] = sign * (scaled && i % dim == 0    ? (float)kv_top(t)
			                              : t == KERN_F8 && x > 448 ? 1
			                                                        : x);
		}
}

CONFORM_TEST(kv_write_of_halves)
{
	static const struct sequence seq[SEQUENCES] = {{0, 40}, {3, 2}};
	for (uint32_t i = 0; i < KV_TYPES; i++) {
		size_t mark = conform_mark();
		struct job *j = kv_job(KERN_OP_KV_WRITE, seq, 16, kv_types[i], 2, 64, 0, "halves");
		halves_fill(j);
		j->record = kv_write_record;
		job_check(j);
		conform_release(mark);
	}
}
