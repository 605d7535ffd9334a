/* eval.c - evaluates a template's tree: statements write to the output, expressions return values.
 *
 * Variables: the template's globals are in an array indexed by name number. Loops, macros and
 * blocks push scopes in front of it, which are searched from the innermost outwards. An assignment
 * goes to the innermost scope and is lost when that ends, as in Jinja. */
#include "jinja/jinja.h"
#include "jinja/tree.h"
#include "util/mem.h"
#include "util/quota.h"

#include <stdlib.h>
#include <string.h>

/* --- variables ----------------------------------------------------------- */

struct scope *scope_push(struct jin *r)
{
	struct scope *s = jin_alloc(r, 1, sizeof *s);
	s->up = r->scope;
	r->scope = s;
	return s;
}

void scope_set(struct jin *r, uint32_t name, struct jv v)
{
	struct scope *s = r->scope;
	if (!s) {
		r->root[name] = v;
		r->root_set[name] = 1;
		return;
	}
	for (uint32_t i = 0; i < s->n; i++)
		if (s->vars[i].name == name) {
			s->vars[i].v = v;
			return;
		}
	if (s->n == s->size) {
		uint32_t size = s->size ? s->size * 2 : 4;
		struct scope_var *more = jin_alloc(r, size, sizeof *more);
		if (s->n)
			memcpy(more, s->vars, s->n * sizeof *more);
		s->vars = more;
		s->size = size;
	}
	s->vars[s->n++] = (struct scope_var){name, v};
}

static struct jv scope_get(struct jin *r, uint32_t name)
{
	for (const struct scope *s = r->scope; s; s = s->up)
		for (uint32_t i = 0; i < s->n; i++)
			if (s->vars[i].name == name)
				return s->vars[i].v;
	if (r->root_set[name])
		return r->root[name];
	return jv_undef(UNDEF_NAME, r->t->names[name].s, r->t->names[name].len, 0);
}

static void assign(struct jin *r, const struct jinja_node *target, struct jv v)
{
	if (target->kind == N_NAME) {
		scope_set(r, target->name, v);
	} else if (target->kind == N_NSREF) {
		struct jv ns = scope_get(r, target->name);
		if (ns.type != J_NAMESPACE)
			jin_fail(r, "cannot assign attribute on non-namespace object");
		dict_set(r, ns.dict, target->value, v);
	} else {
		if (!jv_can_iterate(v))
			jin_fail(r, "cannot unpack non-iterable %s object", jv_type_name((enum jv_type)v.type));
		const struct jlist *l = jv_items(r, v);
		if (l->n > target->list.n)
			jin_fail(r, "too many values to unpack (expected %u)", target->list.n);
		if (l->n < target->list.n)
			jin_fail(r, "not enough values to unpack (expected %u, got %zu)", target->list.n, l->n);
		for (uint32_t i = 0; i < target->list.n; i++)
			assign(r, target->list.v[i], l->v[i]);
	}
}

/* --- expressions --------------------------------------------------------- */

static struct jlist *eval_list(struct jin *r, const struct node_list *from)
{
	struct jlist *l = list_new(r, from->n);
	for (uint32_t i = 0; i < from->n; i++)
		list_push(r, l, eval(r, from->v[i]));
	return l;
}

/* Evaluates the arguments; `first`, if not NULL, comes before them. */
static struct jargs eval_args(struct jin *r, const struct node_args *from, const struct jv *first)
{
	struct jargs a = {0};
	if (!from) {
		a.v = first;
		a.n = first != NULL;
		return a;
	}
	struct jlist *all = list_new(r, from->args.n + (first != NULL)),
				 *kw = list_new(r, from->kw_values.n);
	if (first)
		list_push(r, all, *first);
	for (uint32_t i = 0; i < from->args.n; i++)
		list_push(r, all, eval(r, from->args.v[i]));
	for (uint32_t i = 0; i < from->kw_values.n; i++)
		list_push(r, kw, eval(r, from->kw_values.v[i]));
	a.kw_names = from->kw_names;
	if (from->star) {
		struct jlist *more = jv_items(r, eval(r, from->star));
		for (size_t i = 0; i < more->n; i++)
			list_push(r, all, more->v[i]);
	}
	if (from->star_star) {
		struct jv more = eval(r, from->star_star);
		if (more.type != J_DICT)
			jin_fail(r, "argument after ** must be a mapping, not %s",
			         jv_type_name((enum jv_type)more.type));
		struct jlist *names = list_new(r, kw->n + more.dict->n);
		for (size_t i = 0; i < kw->n; i++)
			list_push(r, names, from->kw_names[i]);
		for (size_t i = 0; i < more.dict->n; i++) {
			if (more.dict->keys[i].type != J_STR)
				jin_fail(r, "keywords must be strings");
			list_push(r, names, more.dict->keys[i]);
			list_push(r, kw, more.dict->vals[i]);
		}
		a.kw_names = names->v;
	}
	a.v = all->v;
	a.n = all->n;
	a.kw = kw->v;
	a.n_kw = kw->n;
	return a;
}

static int compare(struct jin *r, uint8_t op, struct jv a, struct jv b)
{
	switch (op) {
	case CMP_EQ: return jv_equal(r, a, b);
	case CMP_NE: return !jv_equal(r, a, b);
	case CMP_LT: return jv_less(r, a, b, "<");
	case CMP_GT: return jv_less(r, b, a, ">");
	case CMP_LE: return jv_less(r, a, b, "<=") || jv_equal(r, a, b);
	case CMP_GE: return jv_less(r, b, a, ">=") || jv_equal(r, a, b);
	case CMP_IN: return jv_contains(r, a, b);
	default: return !jv_contains(r, a, b);
	}
}

static struct jv eval_compare(struct jin *r, const struct jinja_node *n)
{
	struct jv a = eval(r, n->a);
	for (uint32_t i = 0; i < n->list.n; i++) {
		struct jv b = eval(r, n->list.v[i]);
		if (!compare(r, n->ops[i], a, b))
			return jv_bool(0);
		a = b;
	}
	return jv_bool(1);
}

static struct jv eval_dict(struct jin *r, const struct jinja_node *n)
{
	struct jdict *d = dict_new(r, n->list.n);
	for (uint32_t i = 0; i < n->list.n; i++) {
		struct jv key = eval(r, n->list.v[i]);
		dict_set(r, d, key, eval(r, n->more.v[i]));
	}
	return (struct jv){.type = J_DICT, .dict = d};
}

static struct jv eval_slice(struct jin *r, const struct jinja_node *n)
{
	struct jv o = eval(r, n->a), part[3];
	for (int i = 0; i < 3; i++)
		part[i] = n->list.v[i] ? eval(r, n->list.v[i]) : jv_none();
	return jv_slice(r, o, part);
}

static struct jv eval_concat(struct jin *r, const struct jinja_node *n)
{
	struct jv v = jv_to_str(r, eval(r, n->list.v[0]));
	for (uint32_t i = 1; i < n->list.n; i++)
		v = str_concat(r, v, jv_to_str(r, eval(r, n->list.v[i])));
	return v;
}

/* Applies a filter or test. input: value of the innermost input; NULL: the input is an
 * expression. */
static struct jv eval_builtin(struct jin *r, const struct jinja_node *n, const struct jv *input)
{
	const char *kind = n->kind == N_FILTER ? "filter" : "test";
	struct jv first = n->a ? (n->kind == N_FILTER && input && n->a->kind == N_FILTER
	                              ? eval_builtin(r, n->a, input)
	                              : eval(r, n->a))
	                       : *input;
	r->line = n->line;
	if (!n->builtin)
		jin_fail(r, "No %s named '%.*s' found.", kind, n->value.len < 100 ? (int)n->value.len : 100,
		         n->value.s);
	struct jargs a = eval_args(r, n->args, &first);
	return builtin_call(r, n->builtin, kind, &a);
}

static struct jv eval_cond(struct jin *r, const struct jinja_node *n)
{
	if (jv_truth(r, eval(r, n->a)))
		return eval(r, n->b);
	if (n->c)
		return eval(r, n->c);
	return jv_undef_printf(
		r,
		"the inline if-expression on line %u evaluated to false and no else section was defined.",
		n->line);
}

static struct jv eval_call(struct jin *r, const struct jinja_node *n)
{
	struct jv f = eval(r, n->a);
	struct jargs a = eval_args(r, n->args, NULL);
	r->line = n->line;
	return jv_call(r, f, &a);
}

struct jv eval(struct jin *r, const struct jinja_node *n)
{
	struct jv v;
	jin_step(r, 1);
	jin_stack(r);
	r->line = n->line;
	switch (n->kind) {
	case N_CONST: return n->value;
	case N_NAME: return scope_get(r, n->name);
	case N_LIST: return jv_list(eval_list(r, &n->list));
	case N_TUPLE: return (struct jv){.type = J_TUPLE, .list = eval_list(r, &n->list)};
	case N_DICT: return eval_dict(r, n);
	case N_ATTR: return jv_attr(r, eval(r, n->a), n->value);
	case N_ITEM: v = eval(r, n->a); return jv_item(r, v, eval(r, n->b));
	case N_SLICE: return eval_slice(r, n);
	case N_CALL: return eval_call(r, n);
	case N_FILTER:
	case N_TEST: return eval_builtin(r, n, NULL);
	case N_BINARY: v = eval(r, n->a); return op_binary(r, n->op, v, eval(r, n->b));
	case N_AND: v = eval(r, n->a); return jv_truth(r, v) ? eval(r, n->b) : v;
	case N_OR: v = eval(r, n->a); return jv_truth(r, v) ? v : eval(r, n->b);
	case N_NOT: return jv_bool(!jv_truth(r, eval(r, n->a)));
	case N_NEG: return op_negate(r, eval(r, n->a));
	case N_POS:
		v = eval(r, n->a);
		return jv_is_number(v) ? (v.type == J_BOOL ? jv_int(v.i) : v) : op_negate(r, v);
	case N_CONCAT: return eval_concat(r, n);
	case N_COMPARE: return eval_compare(r, n);
	default: return eval_cond(r, n);
	}
}

/* --- bodies whose output is captured ------------------------------------- */

static struct jv catch_body(struct jin *r, const struct node_list *body)
{
	struct buf *out = r->out;
	struct scope *scope = r->scope;
	r->out = buf_open(r);
	scope_push(r);
	exec_list(r, body);
	r->scope = scope;
	r->out = out;
	return buf_close(r);
}

/* Number of a name that the parser always enters. */
static uint32_t special_name(const struct jin *r, const char *word)
{
	size_t len = strlen(word);
	uint32_t i = 0;
	while (r->t->names[i].len != len || memcmp(r->t->names[i].s, word, len))
		i++;
	return i;
}

static const struct jv *keyword(const struct jargs *a, struct jinja_name name)
{
	for (size_t i = 0; i < a->n_kw; i++)
		if (a->kw_names[i].len == name.len && !memcmp(a->kw_names[i].s, name.s, name.len))
			return &a->kw[i];
	return NULL;
}

static int is_param(const struct jin *r, const struct node_params *p, struct jv name)
{
	for (uint32_t i = 0; i < p->n; i++) {
		struct jinja_name own = r->t->names[p->names[i]];
		if (own.len == name.len && !memcmp(own.s, name.s, name.len))
			return 1;
	}
	return 0;
}

/* Binds arguments without a parameter: varargs, kwargs and caller. Fails if the macro uses none of
 * these. */
static void bind_rest(struct jin *r, const struct jinja_node *def, const struct jargs *a)
{
	const struct node_params *p = def->params;
	int name_len = def->value.len < 80 ? (int)def->value.len : 80;
	struct jdict *rest = dict_new(r, 0);
	for (size_t i = 0; i < a->n_kw; i++) {
		struct jv name = a->kw_names[i];
		int is_caller = name.len == 6 && !memcmp(name.s, "caller", 6);
		if (is_param(r, p, name))
			continue;
		if (is_caller && p->uses_caller)
			scope_set(r, special_name(r, "caller"), a->kw[i]);
		else if (p->uses_kwargs)
			dict_set(r, rest, name, a->kw[i]);
		else if (is_caller)
			jin_fail(r,
			         "macro '%.*s' was invoked with two values for the special caller argument or "
			         "without using it",
			         name_len, def->value.s);
		else
			jin_fail(r, "macro '%.*s' takes no keyword argument '%.*s'", name_len, def->value.s,
			         name.len < 80 ? (int)name.len : 80, name.s);
	}
	if (p->uses_kwargs)
		scope_set(r, special_name(r, "kwargs"), (struct jv){.type = J_DICT, .dict = rest});
	if (a->n > p->n && !p->uses_varargs)
		jin_fail(r, "macro '%.*s' takes not more than %u argument(s)", name_len, def->value.s,
		         p->n);
	if (p->uses_varargs) {
		struct jlist *more = list_new(r, 0);
		for (size_t i = p->n; i < a->n; i++)
			list_push(r, more, a->v[i]);
		scope_set(r, special_name(r, "varargs"), (struct jv){.type = J_TUPLE, .list = more});
	}
}

static void bind_params(struct jin *r, const struct jinja_node *def, const struct jargs *a)
{
	const struct node_params *p = def->params;
	if (p->uses_caller)
		scope_set(r, special_name(r, "caller"), jv_undef(UNDEF_TEXT, "No caller defined", 17, 0));
	for (uint32_t i = 0; i < p->n; i++) {
		struct jinja_name name = r->t->names[p->names[i]];
		const struct jv *kw = keyword(a, name);
		if (i < a->n && kw)
			jin_fail(r, "macro '%.*s' got multiple values for argument '%.*s'",
			         def->value.len < 80 ? (int)def->value.len : 80, def->value.s,
			         name.len < 80 ? (int)name.len : 80, name.s);
		if (i < a->n || kw)
			scope_set(r, p->names[i], i < a->n ? a->v[i] : *kw);
		else if (p->defaults[i])
			scope_set(r, p->names[i], eval(r, p->defaults[i]));
		else
			scope_set(r, p->names[i],
			          jv_undef_printf(r, "parameter '%.*s' was not provided",
			                          name.len < 80 ? (int)name.len : 80, name.s));
	}
	bind_rest(r, def, a);
}

struct jv macro_call(struct jin *r, const struct jmacro *m, const struct jargs *a)
{
	struct scope *scope = r->scope;
	struct buf *out = r->out;
	jin_stack(r);
	if (++r->macros > MACRO_DEPTH_MAX)
		jin_over(r, "macro calls are nested deeper than %d", MACRO_DEPTH_MAX);
	r->scope = m->scope;
	scope_push(r);
	bind_params(r, m->def, a);
	r->out = buf_open(r);
	exec_list(r, &m->def->list);
	r->out = out;
	r->scope = scope;
	r->macros--;
	return buf_close(r);
}

static struct jv make_macro(struct jin *r, const struct jinja_node *def)
{
	struct jmacro *m = jin_alloc(r, 1, sizeof *m);
	m->def = def;
	m->scope = r->scope;
	for (struct scope *s = r->scope; s && !s->captured; s = s->up)
		s->captured = 1;
	return (struct jv){.type = J_MACRO, .macro = m};
}

/* --- statements ---------------------------------------------------------- */

static void exec_print(struct jin *r, const struct jinja_node *n)
{
	jv_show(r, r->out, eval(r, n->a));
}

static struct jlist *loop_items(struct jin *r, const struct jinja_node *n, struct jv from)
{
	if (!jv_can_iterate(from))
		jin_fail(r, "'%s' object is not iterable", jv_type_name((enum jv_type)from.type));
	struct jlist *all = jv_items(r, from);
	if (!n->c)
		return all;
	struct scope *scope = r->scope;
	struct jlist *some = list_new(r, 0);
	for (size_t i = 0; i < all->n; i++) {
		scope_push(r);
		assign(r, n->a, all->v[i]);
		if (jv_truth(r, eval(r, n->c)))
			list_push(r, some, all->v[i]);
		r->scope = scope;
	}
	return some;
}

static enum flow run_loop(struct jin *r, const struct jinja_node *n, struct jloop *loop)
{
	struct scope *around = r->scope, *s = NULL;
	struct jv loop_value = {.type = J_LOOP, .loop = loop};
	enum flow flow = FLOW_ON;
	for (; loop->at < loop->items->n && flow != FLOW_BREAK; loop->at++) {
		if (s && !s->captured) {
			s->n = 0;
			r->scope = s;
		} else {
			s = scope_push(r);
		}
		scope_set(r, n->name, loop_value);
		assign(r, n->a, loop->items->v[loop->at]);
		flow = exec_list(r, &n->list);
		r->scope = around;
	}
	return FLOW_ON;
}

static enum flow exec_for(struct jin *r, const struct jinja_node *n)
{
	enum flow flow = FLOW_ON;
	struct jlist *items = loop_items(r, n, eval(r, n->b));
	if (items->n) {
		struct jloop *loop = jin_alloc(r, 1, sizeof *loop);
		loop->def = n;
		loop->items = items;
		loop->scope = r->scope;
		loop->depth = 1;
		run_loop(r, n, loop);
	} else if (n->more.n) {
		struct scope *scope = r->scope;
		scope_push(r);
		flow = exec_list(r, &n->more);
		r->scope = scope;
	}
	return flow;
}

struct jv loop_call(struct jin *r, struct jloop *l, const struct jargs *a)
{
	struct scope *scope = r->scope;
	struct buf *out = r->out;
	if (!l->def->op)
		jin_fail(r, "The loop must have the 'recursive' marker to be called recursively.");
	if (a->n != 1 || a->n_kw)
		jin_fail(r, "loop() takes one argument");
	if (++r->macros > MACRO_DEPTH_MAX)
		jin_over(r, "recursive loops are deeper than %d", MACRO_DEPTH_MAX);
	struct jloop *loop = jin_alloc(r, 1, sizeof *loop);
	*loop = (struct jloop){.def = l->def, .scope = l->scope, .depth = l->depth + 1};
	r->scope = l->scope;
	loop->items = loop_items(r, l->def, a->v[0]);
	r->out = buf_open(r);
	if (loop->items->n) {
		run_loop(r, l->def, loop);
	} else {
		scope_push(r);
		exec_list(r, &l->def->more);
	}
	r->out = out;
	r->scope = scope;
	r->macros--;
	return buf_close(r);
}

static enum flow exec_if(struct jin *r, const struct jinja_node *n)
{
	for (;;) {
		if (jv_truth(r, eval(r, n->a)))
			return exec_list(r, &n->list);
		if (!n->op)
			return exec_list(r, &n->more);
		n = n->more.v[0];
		jin_step(r, 1);
	}
}

static void exec_set_block(struct jin *r, const struct jinja_node *n)
{
	struct jv v = catch_body(r, &n->list);
	assign(r, n->a, n->b ? eval_builtin(r, n->b, &v) : v);
}

static void exec_call_block(struct jin *r, const struct jinja_node *n)
{
	struct jv f = eval(r, n->a->a), caller = make_macro(r, n);
	struct jargs a = eval_args(r, n->a->args, NULL);
	struct jv *names = jin_alloc(r, a.n_kw + 1, sizeof *names),
			  *values = jin_alloc(r, a.n_kw + 1, sizeof *values);
	for (size_t i = 0; i < a.n_kw; i++) {
		names[i] = a.kw_names[i];
		values[i] = a.kw[i];
	}
	names[a.n_kw] = jv_text("caller");
	values[a.n_kw++] = caller;
	a.kw_names = names;
	a.kw = values;
	jv_show(r, r->out, jv_call(r, f, &a));
}

static void exec_filter_block(struct jin *r, const struct jinja_node *n)
{
	struct jv v = catch_body(r, &n->list);
	jv_show(r, r->out, eval_builtin(r, n->a, &v));
}

static enum flow exec_scope(struct jin *r, const struct jinja_node *n)
{
	struct scope *scope = r->scope;
	struct jlist *values = n->kind == N_WITH ? eval_list(r, &n->args->args) : NULL;
	scope_push(r);
	for (uint32_t i = 0; values && i < n->more.n; i++)
		assign(r, n->more.v[i], values->v[i]);
	enum flow flow = exec_list(r, &n->list);
	r->scope = scope;
	return flow;
}

static enum flow exec(struct jin *r, const struct jinja_node *n)
{
	jin_step(r, 1);
	r->line = n->line;
	switch (n->kind) {
	case N_TEXT: text_add(r, r->out, n->value.s, n->value.len); break;
	case N_PRINT: exec_print(r, n); break;
	case N_FOR: return exec_for(r, n);
	case N_IF: return exec_if(r, n);
	case N_SET: assign(r, n->a, eval(r, n->b)); break;
	case N_SET_BLOCK: exec_set_block(r, n); break;
	case N_MACRO: scope_set(r, n->name, make_macro(r, n)); break;
	case N_CALL_BLOCK: exec_call_block(r, n); break;
	case N_FILTER_BLOCK: exec_filter_block(r, n); break;
	case N_SCOPE:
	case N_WITH: return exec_scope(r, n);
	case N_BREAK: return FLOW_BREAK;
	default: return FLOW_CONTINUE;
	}
	return FLOW_ON;
}

enum flow exec_list(struct jin *r, const struct node_list *l)
{
	jin_stack(r);
	for (uint32_t i = 0; i < l->n; i++) {
		enum flow flow = exec(r, l->v[i]);
		if (flow != FLOW_ON)
			return flow;
	}
	return FLOW_ON;
}

/* --- a rendering --------------------------------------------------------- */

static void set_variables(struct jin *r, const struct jinja_run *in)
{
	for (uint32_t i = 0; i < r->t->n_names; i++) {
		struct jv global = global_find(r->t->names[i].s, r->t->names[i].len);
		if (global.type != J_UNDEF)
			scope_set(r, i, global);
		for (size_t k = in->n_layers; k-- > 0;) {
			const json_t *v = json_object_getn(in->layers[k], r->t->names[i].s, r->t->names[i].len);
			if (v) {
				scope_set(r, i, jv_from_json(r, v, 0));
				break;
			}
		}
	}
}

int jinja_render(const struct jinja_template *t, const struct jinja_run *in, struct buf *out,
                 struct err *err)
{
	struct jin *r = mem_zalloc(sizeof *r);
	r->t = t;
	r->arena = arena_new();
	r->out = out;
	r->err = err;
	r->steps_max = in->steps_max ? in->steps_max : JINJA_STEPS_MAX;
	r->memory_max = in->memory_max ? in->memory_max : JINJA_MEMORY_MAX;
	r->quota = in->quota;
	r->now_s = in->now_s;
	r->stack = __builtin_frame_address(0);
	r->line = 1;
	if (setjmp(r->bad) == 0) {
		r->root = jin_alloc(r, t->n_names + 1, sizeof *r->root);
		r->root_set = jin_alloc(r, t->n_names + 1, 1);
		set_variables(r, in);
		exec_list(r, &t->body);
	}
	int code = r->code;
	for (struct jbuf *b = r->bufs; b; b = b->up)
		buf_fini(&b->b);
	for (struct jbuf *b = r->spare; b; b = b->up)
		buf_fini(&b->b);
	arena_destroy(&r->arena);
	quota_give(r->quota, r->memory);
	free(r);
	return code;
}
