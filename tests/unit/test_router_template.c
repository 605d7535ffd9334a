/* test_router_template.c - where a model's chat templates come from, and what a request may say
 * about rendering. The templates here answer by raise_exception with what they see, so that the
 * error of /tokenize shows it. */
#include "router_client.h"
#include "skip.h"
#include "tempdir.h"
#include "real_model.h"

#include <signal.h>
#include <sys/stat.h>

/* --- folders ------------------------------------------------------------- */

static void put(const char *folder, const char *name, const char *text)
{
	char *path = mem_printf("%s/%s", folder, name), *slash = strrchr(path, '/');
	*slash = 0;
	mkdir(path, 0700);
	*slash = '/';
	FILE *f = fopen(path, "w");
	ck_assert_msg(f != NULL, "%s", path);
	fputs(text, f);
	fclose(f);
	free(path);
}

static const struct folder_case {
	const char *files[8];      /* name, text, ... */
	const char *plain, *tools; /* what each template is, NULL: none */
	const char *bos, *why;
} folders[] = {
	{{NULL}, NULL, NULL, NULL, NULL},
	{{"chat_template.jinja", "A", "tokenizer_config.json",
      "{'chat_template':'B','bos_token':'<b>'}"},
     "A",
     NULL,
     "<b>",
     NULL},
	{{"tokenizer_config.json",
      "{'chat_template':'B','bos_token':{'content':'<c>','lstrip':false}}"},
     "B",
     NULL,
     "<c>",
     NULL},
	{{"tokenizer_config.json", "{'chat_template':[{'name':'default','template':'D'},{'name':'tool_"
                               "use','template':'T'},{'name':'rag','template':'R'}]}"},
     "D",
     "T",
     NULL,
     NULL},
	{{"chat_template.json", "{'chat_template':'J'}"}, "J", NULL, NULL, NULL},
	{{"chat_template.jinja", "A", "additional_chat_templates/tool_use.jinja", "T",
      "special_tokens_map.json", "{'bos_token':'<s>','eos_token':null}"},
     "A",
     "T",
     "<s>",
     NULL},
	{{"special_tokens_map.json", "{'bos_token':'old'}", "tokenizer_config.json",
      "{'bos_token':'new'}"},
     NULL,
     NULL,
     "new",
     NULL},
	{{"chat_template.jinja", "\n{% if %}"}, NULL, NULL, NULL, "chat_template.jinja: line 2: "},
	{{"tokenizer_config.json", "{'chat_template':'{{'}"},
     NULL,
     NULL,
     NULL,
     "tokenizer_config.json: line 1: "},
	{{"tokenizer_config.json", "{'chat_template':5}"},
     NULL,
     NULL,
     NULL,
     "must be a text or a list"},
	{{"tokenizer_config.json", "{'chat_template':[{'name':'default'}]}"},
     NULL,
     NULL,
     NULL,
     "chat_template[0] must have a name"},
	{{"tokenizer_config.json", "[1]"}, NULL, NULL, NULL, "is not a JSON object"},
	{{"tokenizer_config.json", "{"}, NULL, NULL, NULL, "is not a JSON object"},
};

static void check_template(const struct chat_template *t, const char *want)
{
	size_t len;
	ck_assert((t != NULL) == (want != NULL));
	if (t)
		ck_assert_str_eq(chat_template_text(t, &len), want);
}

static char *double_quoted(const char *text)
{
	char *s = mem_strdup(text);
	for (char *p = s; *p; p++)
		*p = *p == '\'' ? '"' : *p;
	return s;
}

TEST_CASE("template", .timeout_s = 60);

TEST_LOOP(of_a_folder, 0, sizeof folders / sizeof *folders)
{
	const struct folder_case *f = &folders[_i];
	char folder[TEST_FOLDER_BYTES];
	struct chat_set s = {0};
	struct err err = {0};
	test_folder(folder, "templates");
	for (int i = 0; i < 8 && f->files[i]; i += 2) {
		char *text = double_quoted(f->files[i + 1]);
		put(folder, f->files[i], text);
		free(text);
	}
	int r = chat_set_from_folder(folder, &s, &err);
	ck_assert_msg((r == 0) == !f->why && (!f->why || strstr(err.text, f->why)), "got %d %s", r,
	              err.text);
	check_template(s.plain, f->plain);
	check_template(s.tools, f->tools);
	const char *bos = json_string_value(json_object_get(s.special_tokens, "bos_token"));
	ck_assert((bos != NULL) == (f->bos != NULL) && (!bos || !strcmp(bos, f->bos)));
	ck_assert_ptr_eq(chat_set_choose(&s, 1), f->tools ? s.tools : s.plain);
	ck_assert_ptr_eq(chat_set_choose(&s, 0), s.plain);
	chat_set_fini(&s);
}

/* A wrong template of the model's own is an error with the remedy, and none once another is
 * used. */
TEST(override)
{
	char folder[TEST_FOLDER_BYTES];
	struct model *m = NULL;
	struct err err = {0};
	test_folder(folder, "templates");
	put(folder, "chat_template.jinja", "{{ 'x }}");
	put(folder, "mine.jinja", "mine");
	put(folder, "bad.jinja", "{% endif %}");
	char *mine = mem_printf("%s/mine.jinja", folder), *bad = mem_printf("%s/bad.jinja", folder),
		 *none = mem_printf("%s/none.jinja", folder);
	ck_assert_int_eq(served_model_open(folder, "", &m, &err), 0);
	ck_assert_int_lt(model_use_template(m, "", &err), 0);
	has(err.text, "unterminated string");
	has(err.text, "setting chat_template");
	ck_assert_int_lt(model_use_template(m, bad, &err), 0);
	has(err.text, "bad.jinja: line 1: unknown tag endif");
	ck_assert_int_lt(model_use_template(m, none, &err), 0);
	has(err.text, "no such file");
	ck_assert_int_eq(model_use_template(m, mine, &err), 0);
	check_template(chat_set_choose(&m->text.chats, 1), "mine");
	served_model_close(&m);
	free(mine);
	free(bad);
	free(none);
}

TEST(name_of_the_file)
{
	static const char *const names[][2] = {
		{"/models/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1"},
		{"Qwen3-0.6B/", "Qwen3-0.6B"},
		{"/models/Big-00001-of-00003.gguf", "Big"},
		{"/models/-00001-of-00003.gguf", "-00001-of-00003"},
		{"1-of-2.gguf", "1-of-2"},
		{"my model 100%.gguf", "my-model-100-"},
		{".gguf", ".gguf"},
		{"", "default"},
		{"/", "default"},
	};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char name[64];
		model_name_of(names[i][0], name, sizeof name);
		ck_assert_str_eq(name, names[i][1]);
	}
}

#define TEN "0123456789"
#define LONG TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN "1234567" /* 127 bytes */

TEST(aliases)
{
	static const struct {
		const char *names[3], *says;
	} cases[] = {
		{{"a", "*", LONG}, NULL},
		{{"a", "b", ""}, "model_aliases: \"\" has 0 bytes; a name has 1 to 127"},
		{{LONG "8", "a", "b"},
	     "1234567"
	     "8\" has 128 bytes; a name has 1 to 127"},
		{{"a", "b", "a"}, "model_aliases: \"a\" is a name of the model already"},
		{{"*", "b", "*"}, "model_aliases: \"*\" is a name of the model already"},
		{{"a", "served", "b"}, "model_aliases: \"served\" is a name of the model already"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct model *m = NULL;
		struct err err = {0};
		ck_assert_int_eq(served_model_open("", "served", &m, &err), 0);
		int r = model_set_aliases(m, cases[i].names, 3, &err);
		ck_assert_int_eq(r, cases[i].says ? ERR_INVALID : 0);
		if (cases[i].says)
			has(err.text, cases[i].says);
		served_model_close(&m);
	}
}

/* --- requests ------------------------------------------------------------ */

#define PLAIN                                                                             \
	"{{ raise_exception([add_generation_prompt, documents, tools, messages[-1].content, " \
	"kind|default('none'), bos_token|default('?'), reasoning_effort|default('?')]|tojson) }}"
#define USER "'messages':[{'role':'user','content':'Hi'}]"
#define TOOLS "'tools':[{'type':'function','function':{'name':'f','parameters':{}}}]"

static const struct {
	const char *body;
	int status;
	const char *has; /* in the answer, its quotes as here */
} requests[] = {
	{USER, 400, "[true, null, null, 'Hi', 'none', '<|im_start|>', '?']"},
	{USER ",'add_generation_prompt':false", 400, "[false, null"},
	{USER ",'chat_template_kwargs':{'kind':'x','messages':5}", 400,
     "'Hi', 'x', '<|im_start|>', '?']"},
	{USER ",'chat_template_kwargs':{'bos_token':'B'}", 400, "'none', 'B', '?']"},
	{USER ",'chat_template_kwargs':null", 400, "'none', '<"},
	{USER ",'chat_template_kwargs':[]", 400, "chat_template_kwargs must be an object"},
	{USER ",'reasoning_effort':'low'", 400, "'Hi', 'none', '<|im_start|>', 'low']"},
	{USER ",'reasoning_effort':'low','chat_template_kwargs':{'reasoning_effort':'high'}", 400,
     "'<|im_start|>', 'high']"},
	{USER ",'reasoning_effort':null", 400, "'<|im_start|>', '?']"},
	{USER ",'reasoning_effort':5", 400, "reasoning_effort must be a string, got 5"},
	{USER ",'documents':[{'text':'d'}]", 400, "[true, [{'text': 'd'}], null"},
	{USER ",'documents':[]", 400, "[true, null"},
	{USER ",'documents':[5]", 400, "documents[0] must be an object"},
	{USER ",'documents':'x'", 400, "documents must be an array"},
	{USER ",'continue_final_message':true", 400, "[false, null, null, 'HiCONTINUE"},
	{USER ",'continue_final_message':true,'add_generation_prompt':true", 400,
     "cannot both be true"},
	{USER ",'continue_final_message':5", 400, "continue_final_message must be true or false"},
	{USER "," TOOLS, 400, "with tools f"},
	{"'messages':[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]}"
     "]",
     400, "null, 'ab',"},
};

static struct chat_set templates(const char *plain, const char *tools)
{
	struct chat_set s = {.special_tokens = json_incref(model->text.chats.special_tokens)};
	ck_assert_int_eq(chat_template_new(plain, strlen(plain), &s.plain, NULL), 0);
	if (tools)
		ck_assert_int_eq(chat_template_new(tools, strlen(tools), &s.tools, NULL), 0);
	return s;
}

/* The answer's body, quotes as ours and without the backslashes of JSON in JSON. */
static void single_quoted(char *s)
{
	char *to = s;
	for (; *s; s++)
		if (*s != '\\')
			*to++ = *s == '"' ? '\'' : *s;
	*to = 0;
}

static void check_request(struct world *w, const char *path, const char *inside, int status,
                          const char *part)
{
	char *braced = mem_printf("{%s}", inside), *body = double_quoted(braced),
		 *out = ask(w, path, body), line[32];
	snprintf(line, sizeof line, "HTTP/1.1 %d ", status);
	has(out, line);
	single_quoted(out);
	has(out, part);
	free(braced);
	free(body);
	free(out);
}

TEST_LOOP(what_requests_say, 0, sizeof requests / sizeof *requests)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = world_new(model, 1u << 20);
	ck_assert_int_eq(model_set_parsers(&w->model, "hermes", "none", NULL), 0);
	w->model.text.chats = templates(
		PLAIN, "{{ raise_exception('with tools ' ~ tools[0].function.name) }}");
	check_request(w, "/tokenize", requests[_i].body, requests[_i].status, requests[_i].has);
	check_request(w, "/v1/chat/completions", requests[_i].body, requests[_i].status,
	              requests[_i].has);
	chat_set_fini(&w->model.text.chats);
	world_free(w);
}

TEST(parts_and_continuing)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = world_new(model, 1u << 20);
	w->model.text.chats = templates(
		"{% for m in messages %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}",
		NULL);
	check_request(w, "/tokenize",
	              "'messages':[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text',"
	              "'text':'b'}]}],'return_token_strs':true",
	              200, "'token_strs':['a','|','b','|']");
	chat_set_fini(&w->model.text.chats);
	w->model.text.chats = templates("{% for m in messages %}({{ m.content }}){% endfor %}", NULL);
	check_request(w, "/tokenize",
	              "'messages':[{'role':'user','content':'a'},{'role':'assistant','content':'b'}],'"
	              "continue_final_message':true,'return_token_strs':true",
	              200, "'token_strs':['(','a',')(','b']");
	chat_set_fini(&w->model.text.chats);
	w->model.text.chats = (struct chat_set){0};
	check_request(w, "/v1/chat/completions", USER, 400, "has no chat template");
	world_free(w);
}

TEST(of_the_model)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	ck_assert_str_eq(json_string_value(
						 json_object_get(model->text.chats.special_tokens, "bos_token")),
	                 "<|im_start|>");
	ck_assert_str_eq(json_string_value(
						 json_object_get(model->text.chats.special_tokens, "eos_token")),
	                 "<|im_end|>");
	ck_assert(model->text.chats.plain != NULL && !model->text.chats.tools);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
	signal(SIGPIPE, SIG_IGN); /* as the daemon skeleton does */
}
