/* parse.c - parses statements; creates and frees templates. */
#include "jinja/jinja.h"
#include "jinja/tree.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void parse_body(struct parse *p, struct node_list *into, const char *const *ends);

static const struct token *look(const struct parse *p)
{
	return &p->tokens[p->at];
}

static int at_end_word(const struct parse *p, const char *const *ends)
{
	for (; *ends; ends++)
		if (parse_is_word(look(p), *ends))
			return 1;
	return 0;
}

/* Parses the statements of a block up to one of its end words, which is not consumed. */
static void parse_block(struct parse *p, struct node_list *into, const char *const *ends)
{
	parse_skip(p, T_COLON);
	parse_expect(p, T_BLOCK_END);
	uint32_t line = look(p)->line;
	parse_enter(p);
	parse_body(p, into, ends);
	p->nesting--;
	if (look(p)->kind == T_EOF)
		parse_fail(p, line, "the template ends within a block: {%% %s %%} is missing", ends[0]);
}

static void parse_whole_block(struct parse *p, struct node_list *into, const char *end)
{
	const char *const ends[] = {end, NULL};
	parse_block(p, into, ends);
	p->at++;
}

/* Parses a block whose body cannot break out of a surrounding loop. */
static void parse_closed_block(struct parse *p, struct node_list *into, const char *end)
{
	unsigned loops = p->loops;
	p->loops = 0;
	parse_whole_block(p, into, end);
	p->loops = loops;
}

static struct jinja_node *parse_for(struct parse *p, uint32_t line)
{
	static const char *const ends[] = {"endfor", "else", NULL};
	char got[80];
	struct jinja_node *n = parse_node(p, N_FOR, line);
	n->a = parse_target(p, 1, 0, "in");
	if (n->a->kind == N_NAME && n->a->name == parse_name_id(p, "loop", 4))
		parse_fail(p, line, "the name loop cannot be the target of a for");
	if (!parse_skip_word(p, "in"))
		parse_fail(p, look(p)->line, "expected in, got %s", token_show(look(p), got));
	n->b = parse_tuple(p, 0, "recursive", 0);
	if (parse_skip_word(p, "if"))
		n->c = parse_expression(p);
	n->op = (uint8_t)parse_skip_word(p, "recursive");
	n->name = parse_name_id(p, "loop", 4);
	p->loops++;
	parse_block(p, &n->list, ends);
	p->loops--;
	if (parse_skip_word(p, "else"))
		parse_whole_block(p, &n->more, "endfor");
	else
		p->at++;
	return n;
}

static struct jinja_node *parse_if(struct parse *p, uint32_t line)
{
	static const char *const ends[] = {"endif", "elif", "else", NULL};
	struct jinja_node *first = parse_node(p, N_IF, line), *n = first;
	for (;;) {
		n->a = parse_tuple(p, 0, NULL, 0);
		parse_block(p, &n->list, ends);
		if (!parse_is_word(look(p), "elif"))
			break;
		struct jinja_node *next = parse_node(p, N_IF, look(p)->line);
		p->at++;
		parse_push(p, &n->more, next);
		n->op = 1;
		n = next;
	}
	if (parse_skip_word(p, "else"))
		parse_whole_block(p, &n->more, "endif");
	else
		p->at++;
	return first;
}

static struct jinja_node *parse_set(struct parse *p, uint32_t line)
{
	struct jinja_node *n = parse_node(p, N_SET, line);
	n->a = parse_target(p, 1, 1, NULL);
	if (parse_skip(p, T_ASSIGN)) {
		n->b = parse_tuple(p, 1, NULL, 0);
		return n;
	}
	n->kind = N_SET_BLOCK;
	n->b = parse_filters(p, NULL, 0);
	parse_closed_block(p, &n->list, "endset");
	return n;
}

static struct node_params *parse_params(struct parse *p)
{
	struct node_params *s = arena_alloc(p->arena, sizeof *s);
	struct node_list names = {0}, defaults = {0};
	int have_default = 0;
	parse_expect(p, T_LPAREN);
	while (look(p)->kind != T_RPAREN) {
		if (names.n)
			parse_expect(p, T_COMMA);
		uint32_t line = look(p)->line;
		parse_push(p, &names, parse_target(p, 0, 0, NULL));
		if (names.v[names.n - 1]->kind != N_NAME)
			parse_fail(p, line, "a parameter must be a name");
		int has = parse_skip(p, T_ASSIGN);
		if (have_default && !has)
			parse_fail(p, line, "a parameter without default follows one with default");
		have_default = has;
		parse_push(p, &defaults, has ? parse_expression(p) : NULL);
	}
	parse_expect(p, T_RPAREN);
	s->n = names.n;
	s->names = arena_array(p->arena, names.n + 1, sizeof *s->names);
	s->defaults = defaults.v;
	for (uint32_t i = 0; i < s->n; i++)
		s->names[i] = names.v[i]->name;
	return s;
}

/* Do the tokens since `from` use this special variable of a macro? */
static int uses(const struct parse *p, size_t from, const char *word)
{
	for (size_t i = from; i < p->at; i++)
		if (parse_is_word(&p->tokens[i], word) && !(i && p->tokens[i - 1].kind == T_DOT))
			return 1;
	return 0;
}

static void parse_macro_body(struct parse *p, struct jinja_node *n, const char *end)
{
	size_t from = p->at;
	parse_closed_block(p, &n->list, end);
	n->params->uses_caller = uses(p, from, "caller");
	n->params->uses_varargs = uses(p, from, "varargs");
	n->params->uses_kwargs = uses(p, from, "kwargs");
	parse_name_id(p, "caller", 6);
	parse_name_id(p, "varargs", 7);
	parse_name_id(p, "kwargs", 6);
}

static struct jinja_node *parse_macro(struct parse *p, uint32_t line)
{
	struct jinja_node *n = parse_node(p, N_MACRO, line);
	const struct token *name = parse_expect(p, T_NAME);
	n->name = parse_name_id(p, name->s, name->len);
	n->value = jv_str(name->s, name->len);
	n->params = parse_params(p);
	parse_macro_body(p, n, "endmacro");
	return n;
}

static struct jinja_node *parse_call_block(struct parse *p, uint32_t line)
{
	struct jinja_node *n = parse_node(p, N_CALL_BLOCK, line);
	n->value = jv_str("caller", 6);
	n->params = look(p)->kind == T_LPAREN ? parse_params(p)
	                                      : arena_alloc(p->arena, sizeof *n->params);
	n->a = parse_expression(p);
	if (n->a->kind != N_CALL)
		parse_fail(p, line, "expected the call of a macro");
	parse_macro_body(p, n, "endcall");
	return n;
}

static struct jinja_node *parse_filter_block(struct parse *p, uint32_t line)
{
	struct jinja_node *n = parse_node(p, N_FILTER_BLOCK, line);
	n->a = parse_filters(p, NULL, 1);
	parse_closed_block(p, &n->list, "endfilter");
	return n;
}

static struct jinja_node *parse_with(struct parse *p, uint32_t line)
{
	struct jinja_node *n = parse_node(p, N_WITH, line);
	n->args = arena_alloc(p->arena, sizeof *n->args);
	while (look(p)->kind != T_BLOCK_END) {
		if (n->more.n)
			parse_expect(p, T_COMMA);
		parse_push(p, &n->more, parse_target(p, 0, 0, NULL));
		parse_expect(p, T_ASSIGN);
		parse_push(p, &n->args->args, parse_expression(p));
	}
	parse_whole_block(p, &n->list, "endwith");
	return n;
}

static struct jinja_node *parse_named_block(struct parse *p, uint32_t line)
{
	struct jinja_node *n = parse_node(p, N_SCOPE, line);
	const struct token *name = parse_expect(p, T_NAME);
	parse_skip_word(p, "scoped");
	parse_closed_block(p, &n->list, "endblock");
	if (look(p)->kind == T_NAME && look(p)->len == name->len &&
	    !memcmp(look(p)->s, name->s, name->len))
		p->at++;
	return n;
}

static struct jinja_node *parse_generation(struct parse *p, uint32_t line)
{
	struct jinja_node *n = parse_node(p, N_SCOPE, line);
	parse_closed_block(p, &n->list, "endgeneration");
	return n;
}

static struct jinja_node *parse_jump(struct parse *p, uint32_t line)
{
	const struct token *word = &p->tokens[p->at - 1];
	if (!p->loops)
		parse_fail(p, line, "%.*s outside a loop", (int)word->len, word->s);
	return parse_node(p, parse_is_word(word, "break") ? N_BREAK : N_CONTINUE, line);
}

static struct jinja_node *parse_print_statement(struct parse *p, uint32_t line)
{
	struct jinja_node *n = parse_node(p, N_SCOPE, line);
	do {
		struct jinja_node *one = parse_node(p, N_PRINT, line);
		one->a = parse_expression(p);
		parse_push(p, &n->list, one);
	} while (parse_skip(p, T_COMMA));
	return n;
}

static struct jinja_node *parse_statement(struct parse *p)
{
	static const struct {
		const char *word;
		struct jinja_node *(*parse)(struct parse *p, uint32_t line);
	} statements[] = {
		{"for", parse_for},
		{"if", parse_if},
		{"set", parse_set},
		{"macro", parse_macro},
		{"call", parse_call_block},
		{"filter", parse_filter_block},
		{"with", parse_with},
		{"block", parse_named_block},
		{"generation", parse_generation},
		{"break", parse_jump},
		{"continue", parse_jump},
		{"print", parse_print_statement},
	};
	static const char *const lacking[] = {"include", "import", "from", "extends", "autoescape"};
	const struct token *t = look(p);
	char got[80];
	p->at += t->kind == T_NAME;
	for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
		if (parse_is_word(t, statements[i].word))
			return statements[i].parse(p, t->line);
	for (size_t i = 0; i < sizeof lacking / sizeof *lacking; i++)
		if (parse_is_word(t, lacking[i]))
			parse_fail(p, t->line, "{%% %s %%} is not supported in a chat template", lacking[i]);
	if (t->kind != T_NAME)
		parse_fail(p, t->line, "a tag needs a name, got %s", token_show(t, got));
	parse_fail(p, t->line, "unknown tag %s", token_show(t, got));
}

static struct jinja_node *text_node(struct parse *p, uint32_t line, struct jv text)
{
	struct jinja_node *n = parse_node(p, N_TEXT, line);
	n->value = text;
	return n;
}

static void parse_print(struct parse *p, struct node_list *into)
{
	uint32_t line = look(p)->line;
	struct jinja_node *e = parse_tuple(p, 1, NULL, 0), *n;
	parse_expect(p, T_VAR_END);
	if (e->kind == N_CONST && e->value.type == J_STR) {
		n = text_node(p, line, e->value);
	} else {
		n = parse_node(p, N_PRINT, line);
		n->a = e;
	}
	parse_push(p, into, n);
}

static void parse_body(struct parse *p, struct node_list *into, const char *const *ends)
{
	for (;;) {
		const struct token *t = look(p);
		if (t->kind == T_EOF)
			return;
		p->at++;
		if (t->kind == T_DATA) {
			parse_push(p, into, text_node(p, t->line, jv_str(t->s, t->len)));
		} else if (t->kind == T_VAR_BEGIN) {
			parse_print(p, into);
		} else {
			if (ends && at_end_word(p, ends))
				return;
			parse_push(p, into, parse_statement(p));
			parse_expect(p, T_BLOCK_END);
		}
	}
}

void parse_template(struct parse *p, struct node_list *body)
{
	lex(p);
	parse_body(p, body, NULL);
}

int jinja_template_new(const char *text, size_t len, struct jinja_template **ret_t, struct err *err)
{
	struct parse *p = mem_zalloc(sizeof *p);
	int code = 0;
	if (len > JINJA_TEMPLATE_BYTES_MAX) {
		free(p);
		return err_set(err, ERR_INVALID, "the template has %zu bytes, more than %u", len,
		               JINJA_TEMPLATE_BYTES_MAX);
	}
	p->arena = arena_new();
	p->err = err;
	p->text = text;
	p->len = len;
	struct jinja_template *t = arena_alloc(p->arena, sizeof *t);
	t->arena = p->arena;
	if (setjmp(p->bad) == 0) {
		parse_template(p, &t->body);
		t->names = p->names;
		t->n_names = p->n_names;
		*ret_t = t;
	} else {
		code = p->code;
		arena_destroy(&p->arena);
	}
	free(p);
	return code;
}

void jinja_template_destroy(struct jinja_template **tp)
{
	if (!*tp)
		return;
	struct arena *a = (*tp)->arena;
	arena_destroy(&a);
	*tp = NULL;
}
