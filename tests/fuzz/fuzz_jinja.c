/* fuzz_jinja.c - a chat template, and behind a line of "===" the variables as JSON: parsed,
 * rendered within small bounds. */
#include "jinja/jinja.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static const char usual[] =
	"{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
	"brief.\"},{\"role\":\"user\",\"content\":\"Hi "
	"\\u00e9\\n\"},{\"role\":\"assistant\",\"content\":"
	"null,\"reasoning\":\"so\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\","
	"\"arguments\":{\"a\":[1,2.5,true,null]}}}]}],\"tools\":"
	"[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
	"\"type\":\"array\"}}}}}],\"s\":\"Hello\",\"n\":7,\"l\":[3,1,2],"
	"\"d\":{\"b\":1,\"a\":\"x\"},\"t\":true,\"nil\":null,\"f\":2.5,\"add_generation_prompt\":true}";

static void check(int rc, const struct err *err)
{
	if (rc != 0 &&
	    ((rc != ERR_INVALID && rc != ERR_FULL) || !err->text[0] || strchr(err->text, '\n')))
		abort();
}

static void render(const char *text, size_t len, const json_t *vars)
{
	struct jinja_template *t = NULL;
	struct err err = {0};
	const json_t *layers[] = {vars};
	const struct jinja_run run = {.layers = layers,
	                              .n_layers = 1,
	                              .steps_max = 200000,
	                              .memory_max = 4u << 20,
	                              .now_s = 1721997296};
	struct buf out;
	int rc = jinja_template_new(text, len, &t, &err);
	check(rc, &err);
	if (!t)
		return;
	buf_init(&out, 1u << 16);
	rc = jinja_render(t, &run, &out, &err);
	check(rc, &err);
	if (rc == 0)
		fuzz_accepted();
	if (out.len > 1u << 16)
		abort();
	buf_fini(&out);
	jinja_template_destroy(&t);
}

FUZZ(jinja, 1 << 14)
{
	const char *s = (const char *)data, *line = memmem(s, size, "\n===\n", 5);
	size_t len = line ? (size_t)(line - s) : size;
	json_t *vars = line ? json_loadb(line + 5, size - len - 5, JSON_ALLOW_NUL, NULL) : NULL;
	if (!json_is_object(vars)) {
		json_decref(vars);
		vars = json_loads(usual, 0, NULL);
	}
	render(s, len, vars);
	json_decref(vars);
	return 0;
}
