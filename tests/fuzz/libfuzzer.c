/* libfuzzer.c - the entry for clang's libFuzzer: the environment's FUZZ_TARGET names the
 * harness. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct fuzz_target *t;
	const char *name = getenv("FUZZ_TARGET");
	if (!t && !(t = fuzz_find(name ? name : ""))) {
		fprintf(stderr, "FUZZ_TARGET=%s is no harness\n", name ? name : "");
		exit(2);
	}
	return t->run(data, size < t->max ? size : t->max);
}
