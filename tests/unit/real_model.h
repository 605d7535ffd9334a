/* real_model.h - the tokenizer and the template of the model that PD_MODEL names, for a router's
 * tests; without one the tests that need text are skipped. */
#ifndef TESTS_REAL_MODEL_H
#define TESTS_REAL_MODEL_H

#include "daemons/router/request/request.h"

#include <stdio.h>
#include <stdlib.h>

static struct model *model; /* NULL: without PD_MODEL */

TEST_START(real_model)
{
	const char *path = getenv("PD_MODEL");
	struct err err = {0};
	if (path && *path && served_model_open(path, "", &model, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
}

#endif
