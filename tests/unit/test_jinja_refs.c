/* test_jinja_refs.c - renderings that Hugging Face's apply_chat_template made, with the templates
 * of many models: all equal byte for byte, and an error wherever the reference has one, with the
 * same words where the template raised it.
 *
 * The templates are other people's, so they are not in this repository: they are looked for in
 * ../shared/data/chat, or in the folder that PD_CHAT_REFS names, and without them this test is
 * skipped. tests/data/chat has a set of the same form with templates of our own, for every
 * build. */
#include "jinja/jinja.h"
#include "skip.h"
#include "text/chat.h"
#include "util/mem.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOW 1721997296 /* 2024-07-26 12:34:56 UTC, when the reference's clock stands still */

struct refs {
	const char *folder;
	json_t *templates, *conversations;
	const char *name; /* of the template that is open */
	struct chat_template *chat;
	struct jinja_template *jinja;
	size_t rows, wrong, errors;
};

static char *path_of(const struct refs *x, const char *file)
{
	return mem_printf("%s/%s", x->folder, file);
}

static json_t *load(const struct refs *x, const char *file)
{
	char *path = path_of(x, file);
	json_error_t e;
	json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
	ck_assert_msg(j != NULL, "%s: %s", path, e.text);
	free(path);
	return j;
}

static void close_template(struct refs *x)
{
	chat_template_destroy(&x->chat);
	jinja_template_destroy(&x->jinja);
}

static void open_template(struct refs *x, const char *name)
{
	struct err err = {0};
	if (x->name && !strcmp(x->name, name))
		return;
	close_template(x);
	char *file = mem_printf("%s/templates/%s.jinja", x->folder, name), *text = mem_alloc(1u << 20);
	FILE *f = fopen(file, "r");
	ck_assert_msg(f != NULL, "cannot open %s", file);
	size_t len = fread(text, 1, 1u << 20, f);
	fclose(f);
	/* lives as long as templates.json */
	x->name = json_object_iter_key(json_object_key_to_iter(name));
	ck_assert_msg(chat_template_new(text, len, &x->chat, &err) == 0, "%s: %s", name, err.text);
	ck_assert_int_eq(jinja_template_new(text, len, &x->jinja, NULL), 0);
	free(text);
	free(file);
}

static const json_t *conversation(const struct refs *x, const char *name)
{
	for (size_t i = 0; i < json_array_size(x->conversations); i++)
		if (!strcmp(json_string_value(json_object_get(json_array_get(x->conversations, i), "name")),
		            name))
			return json_array_get(x->conversations, i);
	ck_abort_msg("no conversation %s", name);
	return NULL;
}

/* The template alone, given the messages untouched. */
static int render_as_given(const struct refs *x, const struct chat_render *in, struct buf *out,
                           struct err *err)
{
	json_t *own = json_pack("{s:O, s:o, s:n, s:b}", "messages", in->messages, "tools",
	                        in->tools ? json_incref((json_t *)in->tools) : json_null(), "documents",
	                        "add_generation_prompt", in->add_generation_prompt);
	const json_t *none = own,
				 *layers[] = {in->special_tokens, in->variables ? in->variables : none, own};
	struct jinja_run run = {.layers = layers, .n_layers = 3, .now_s = NOW};
	int r = jinja_render(x->jinja, &run, out, err);
	json_decref(own);
	return r;
}

static void check_row(struct refs *x, const json_t *row, const json_t *want, int as_given)
{
	const json_t *c = conversation(x, json_string_value(json_object_get(row, "conversation"))),
				 *text = json_object_get(want, "text");
	const char *error = json_string_value(json_object_get(want, "error")),
			   *raised = error ? strstr(error, "TemplateError: ") : NULL;
	struct chat_render in = {
		.messages = json_object_get(c, "messages"),
		.tools = json_object_get(c, "tools"),
		.variables = json_object_get(c, "variables"),
		.special_tokens = json_object_get(x->templates, x->name),
		.now_s = NOW,
		.add_generation_prompt = json_is_true(json_object_get(row, "add_generation_prompt")),
		.continue_final_message = json_is_true(json_object_get(c, "continue_final_message"))};
	struct err err = {0};
	struct buf out;
	buf_init(&out, 0);
	int r = as_given ? render_as_given(x, &in, &out, &err)
	                 : chat_template_render(x->chat, &in, &out, &err);
	int good = text ? r == 0 && out.len == json_string_length(text) &&
	                      !memcmp(out.data ? out.data : "", json_string_value(text), out.len)
	                : r == ERR_INVALID &&
	                      (raised != error || !strcmp(err.text, error + strlen("TemplateError: ")));
	x->rows++;
	x->errors += error != NULL;
	if (!good) {
		x->wrong++;
		printf("--- %s / %s%s (prompt %d): want %s\n%s\n--- got %d %s\n%s\n", x->name,
		       json_string_value(json_object_get(c, "name")), as_given ? " as given" : "",
		       in.add_generation_prompt, error ? "the error" : "",
		       error ? error : json_string_value(text), r, err.text,
		       r || !out.data ? "" : out.data);
	}
	buf_fini(&out);
}

static void check_folder(struct refs *x)
{
	char *line = NULL, *path = path_of(x, "renderings.jsonl");
	size_t size = 0;
	FILE *f = fopen(path, "r");
	ck_assert_msg(f != NULL, "cannot open %s", path);
	x->templates = load(x, "templates.json");
	x->conversations = load(x, "conversations.json");
	while (getline(&line, &size, f) > 0) {
		json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL),
			   *as_given = json_object_get(row, "with_nulls");
		void *it = json_object_iter_at(x->templates,
		                               json_string_value(json_object_get(row, "template")));
		ck_assert(row != NULL && it != NULL);
		open_template(x, json_object_iter_key(it));
		check_row(x, row, row, 0);
		if (as_given)
			check_row(x, row, as_given, 1);
		json_decref(row);
	}
	close_template(x);
	fclose(f);
	free(line);
	free(path);
	json_decref(x->templates);
	json_decref(x->conversations);
	fflush(stdout);
	ck_assert_msg(x->wrong == 0, "%zu of %zu rows differ", x->wrong, x->rows);
}

TEST_CASE("jinja_refs", .timeout_s = 120);

TEST(own)
{
	struct refs x = {.folder = "tests/data/chat"};
	check_folder(&x);
	ck_assert_uint_ge(x.rows, 250);
	ck_assert_uint_ge(x.errors, 20);
}

TEST(of_many_models)
{
	const char *folder = getenv("PD_CHAT_REFS");
	struct refs x = {.folder = folder && *folder ? folder : "../shared/data/chat"};
	char *path = path_of(&x, "renderings.jsonl");
	int there = access(path, R_OK) == 0;
	free(path);
	if (!there)
		SKIP("templates of many models: none in %s (PD_CHAT_REFS names a folder)", x.folder);
	check_folder(&x);
	ck_assert_uint_ge(x.rows, 1593 + 130);
}

TEST_START(utc)
{
	setenv("TZ", "UTC", 1);
	tzset();
}
