/* fuzz.h - what a fuzz harness needs. A harness is one file, tests/fuzz/fuzz_NAME.c, with one
 * FUZZ(NAME, MAX) { ... }, and a folder of small inputs, tests/fuzz/corpus/NAME/. It is found by
 * itself: `make fuzz` mutates the inputs for FUZZ_SECONDS, `make check` replays them (test_fuzz).
 * The scripts make-corpus... write the inputs that nobody would type.
 *
 * A harness reads `data` and `size` (at most MAX bytes; not terminated), returns 0, keeps nothing
 * between inputs and frees all that it took. It must neither print nor wait. Wrong is what ends
 * the process: a sanitizer's report, abort() where something does not hold, and more than the
 * limits below. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#define FUZZ_INPUT_SECONDS 20 /* of one input, on a busy machine as well */
#define FUZZ_ALLOC_MB 256     /* of one allocation */

struct fuzz_target {
	const char *name;
	size_t max; /* bytes of an input */
	int (*run)(const uint8_t *data, size_t size);
	struct fuzz_target *next;
};

void fuzz_register(struct fuzz_target *t);
struct fuzz_target *fuzz_targets(void);          /* list, by name */
struct fuzz_target *fuzz_find(const char *name); /* NULL */

/* A harness calls it when the reader has taken the input, or a part of it. The corpus has inputs
 * that are taken: those called good... are, those called bad... are not (test_fuzz). */
void fuzz_accepted(void);
unsigned fuzz_accepts(void); /* calls so far */

/* A harness that looks for expensive inputs says what this one cost. The driver keeps an input that
 * costs more than all before. */
void fuzz_cost(uint64_t cost);
uint64_t fuzz_costs(void); /* of the last input that said it; then 0 */

/* The file's bytes (free them) and their number; NULL when it cannot be read. At most max bytes. */
uint8_t *fuzz_read(const char *path, size_t max, size_t *ret_size);

/* For harnesses of readers that open files: an input that is several files, each after a line "===
 * NAME" (plain names of letters, digits, '.', '_', '-'; what comes before the first such line is
 * nobody's). Makes them in a folder of this process, without what was there before, and returns
 * its path. */
const char *fuzz_files(const uint8_t *data, size_t size);

/* For harnesses whose input is a list of steps: what is left of it. */
struct fuzz_input {
	const uint8_t *at, *end;
};
/* The next bytes, at most 8, as a little-endian number; those that are not there are 0. */
uint64_t fuzz_take(struct fuzz_input *in, size_t bytes);
/* As many bytes as the next one says, or as there are. */
const uint8_t *fuzz_take_bytes(struct fuzz_input *in, size_t *ret_n);

/* What always holds: else it is said, and the process ends. */
#define must(holds) ((holds) ? (void)0 : fuzz_wrong(#holds, __FILE__, __LINE__))
_Noreturn void fuzz_wrong(const char *what, const char *file, int line);

#define FUZZ(NAME, MAX)                                                                  \
	static int fuzz_##NAME(const uint8_t *data, size_t size);                            \
	__attribute__((constructor)) static void fuzz_##NAME##_register(void)                \
	{                                                                                    \
		static struct fuzz_target t = {.name = #NAME, .max = (MAX), .run = fuzz_##NAME}; \
		fuzz_register(&t);                                                               \
	}                                                                                    \
	static int fuzz_##NAME(const uint8_t *data, size_t size)

#endif
