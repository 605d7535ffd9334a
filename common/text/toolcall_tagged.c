/* toolcall_tagged.c - calls written as a name, a separator and a JSON object: DeepSeek V3 and V3.1,
 * Kimi K2, Mistral.
 *
 * The head consists of the name, the separator and the first { after it; then the call starts and
 * the object is copied up to its end. */
#include "text/toolcall_int.h"

#include <string.h>

/* Kimi K2 writes a name as functions.NAME:12. */
static void bare_name(const struct toolcall *t, size_t *from, size_t *n)
{
	static const char head[] = "functions.";
	const char *s = t->in.data + *from;
	size_t skip = *n > sizeof head - 1 && memcmp(s, head, sizeof head - 1) == 0 ? sizeof head - 1
	                                                                            : 0,
		   len = *n;
	while (len && s[len - 1] >= '0' && s[len - 1] <= '9')
		len--;
	if (skip && len > skip + 1 && s[len - 1] == ':')
		*n = len - 1;
	*from += skip;
	*n -= skip;
}

enum tc_go tc_begin_object(struct toolcall *t, const struct tc_cursor *c, size_t from, size_t n)
{
	if (!tc_take_name(t, t->in.data + from, n))
		return tc_break(t, c->at);
	tc_begin(t);
	t->start = t->at = c->at;
	tc_json_start(t);
	t->step = tc_json_arguments;
	return TC_GO;
}

/* V3: function<sep>NAME\n```json\n{ */
static int fenced_name(struct tc_cursor *c, size_t *from, size_t *n)
{
	if (!tc_cursor_name(c, from, n))
		return 0;
	tc_cursor_space(c);
	if (tc_cursor_literal(c, "```json") || tc_cursor_literal(c, "```"))
		tc_cursor_space(c);
	return tc_cursor_peek(c) == '{';
}

enum tc_go tc_tagged_open(struct toolcall *t)
{
	const struct tc_tagged *f = &t->f->tagged;
	size_t from, n;
	struct tc_cursor c;
	tc_cursor_init(&c, t, t->at);
	if (strcmp(t->f->triggers[t->trigger], f->call) != 0) {
		/* the trigger opened a section of calls */
		tc_cursor_space(&c);
		if (!tc_cursor_literal(&c, f->call))
			return tc_cursor_mismatch(t, &c);
	}
	tc_cursor_space(&c);
	if (!tc_cursor_name(&c, &from, &n) || !tc_cursor_literal(&c, f->sep))
		return tc_cursor_mismatch(t, &c);
	tc_cursor_space(&c);
	if (tc_cursor_peek(&c) != '{' &&
	    !(n == 8 && memcmp(t->in.data + from, "function", 8) == 0 && fenced_name(&c, &from, &n)))
		return tc_cursor_mismatch(t, &c);
	bare_name(t, &from, &n);
	return tc_begin_object(t, &c, from, n);
}

/* A JSON array or object (up to v7), or NAME, optionally [CALL_ID]ID, optionally [ARGS], and an
 * object. */
enum tc_go tc_mistral_open(struct toolcall *t)
{
	size_t from, n, id, id_len;
	struct tc_cursor c;
	tc_cursor_init(&c, t, t->at);
	tc_cursor_space(&c);
	int next = tc_cursor_peek(&c);
	if (next == '[' || next == '{')
		return tc_json_open(t);
	if (!tc_cursor_name(&c, &from, &n))
		return tc_cursor_mismatch(t, &c);
	if (tc_cursor_literal(&c, "[CALL_ID]") && !tc_cursor_name(&c, &id, &id_len))
		return tc_cursor_mismatch(t, &c);
	tc_cursor_literal(&c, "[ARGS]");
	tc_cursor_space(&c);
	if (tc_cursor_peek(&c) != '{')
		return tc_cursor_mismatch(t, &c);
	return tc_begin_object(t, &c, from, n);
}
