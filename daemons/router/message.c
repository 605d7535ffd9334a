/* message.c - see message.h. Text -> thoughts and the rest -> calls and content. */
#include "message.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static struct message_call *add_call(struct message *m)
{
	if (m->n_calls == m->calls_size) {
		m->calls_size = m->calls_size ? 2 * m->calls_size : 2;
		m->calls = mem_grow(m->calls, m->calls_size, sizeof *m->calls);
	}
	struct message_call *c = &m->calls[m->n_calls++];
	memset(c, 0, sizeof *c);
	buf_init(&c->arguments, 0);
	return c;
}

static void on_event(void *arg, const struct toolcall_event *e)
{
	struct message *m = arg;
	struct message_call *c = m->n_calls ? &m->calls[m->n_calls - 1] : NULL;
	if (m->enough)
		return;
	switch (e->kind) {
	case TOOLCALL_CONTENT:
		buf_add(&m->content, e->text, e->len);
		break;
	case TOOLCALL_BEGIN:
		c = add_call(m);
		c->index = e->index;
		c->begins = 1;
		memcpy(c->name, e->text, e->len + 1);
		toolcall_make_id(m->opts->calls, m->seed, m->choice, e->index, c->id);
		break;
	case TOOLCALL_ARGUMENTS:
		if (!c || c->index != e->index) {
			c = add_call(m);
			c->index = e->index;
		}
		buf_add(&c->arguments, e->text, e->len);
		break;
	case TOOLCALL_END:
		m->enough = m->opts->one_call;
		break;
	}
}

static void answer(struct message *m, const char *text, size_t len)
{
	if (m->toolcall)
		toolcall_feed(m->toolcall, text, len);
	else
		buf_add(&m->content, text, len);
}

static void on_split(void *arg, int thoughts, const char *text, size_t len)
{
	struct message *m = arg;
	if (!thoughts)
		answer(m, text, len);
	else if (!m->opts->drop_reasoning)
		buf_add(&m->reasoning, text, len);
}

struct message *message_new(const struct message_opts *opts, const char *seed, unsigned choice)
{
	if (!opts->calls && !opts->reasoning)
		return NULL;
	struct message *m = mem_zalloc(sizeof *m);
	m->opts = opts;
	m->seed = seed;
	m->choice = choice;
	buf_init(&m->reasoning, 0);
	buf_init(&m->content, 0);
	if (opts->calls)
		m->toolcall = toolcall_new(opts->calls, opts->tools, on_event, m);
	if (opts->reasoning)
		m->split = reasoning_new(opts->reasoning, opts->inside, on_split, m);
	return m;
}

void message_destroy(struct message **mp)
{
	struct message *m = *mp;
	if (!m)
		return;
	message_given(m);
	toolcall_destroy(&m->toolcall);
	reasoning_destroy(&m->split);
	buf_fini(&m->reasoning);
	buf_fini(&m->content);
	free(m->calls);
	free(m);
	*mp = NULL;
}

void message_feed(struct message *m, const char *text, size_t len)
{
	if (!len || m->finished)
		return;
	if (m->split)
		reasoning_feed(m->split, text, len);
	else
		answer(m, text, len);
}

void message_finish(struct message *m)
{
	if (m->finished)
		return;
	m->finished = 1;
	if (m->split)
		reasoning_finish(m->split);
	if (m->toolcall)
		toolcall_finish(m->toolcall);
}

unsigned message_count(const struct message *m)
{
	return m->toolcall ? toolcall_count(m->toolcall) : 0;
}

int message_is_empty(const struct message *m)
{
	return m->reasoning.len == 0 && m->content.len == 0 && m->n_calls == 0;
}

void message_given(struct message *m)
{
	buf_reset(&m->reasoning);
	buf_reset(&m->content);
	for (size_t i = 0; i < m->n_calls; i++)
		buf_fini(&m->calls[i].arguments);
	m->n_calls = 0;
}

/* --- JSON ------------------------------------------------------------------------------------------------------------------------- */

static void add_text(struct buf *out, const char *name, const struct buf *text)
{
	buf_printf(out, "\"%s\":", name);
	buf_add_json(out, text->data ? text->data : "", text->len);
}

static void add_call_json(const struct message_call *c, int whole, struct buf *out)
{
	buf_addc(out, '{');
	if (!whole)
		buf_printf(out, "\"index\":%u%s", c->index, c->begins ? "," : "");
	if (c->begins)
		buf_printf(out, "\"id\":\"%s\",\"type\":\"function\"", c->id);
	buf_adds(out, ",\"function\":{");
	if (c->begins) {
		buf_adds(out, "\"name\":");
		buf_add_json(out, c->name, strlen(c->name));
		buf_addc(out, ',');
	}
	add_text(out, "arguments", &c->arguments);
	buf_adds(out, "}}");
}

/* vLLM and SGLang say reasoning_content, newer vLLM reasoning: clients of both find it. */
void message_add_json(const struct message *m, int whole, struct buf *out)
{
	size_t from = out->len;
	if (m->content.len || (whole && !m->n_calls && !m->reasoning.len))
		add_text(out, "content", &m->content);
	else if (whole)
		buf_adds(out, "\"content\":null");
	if (whole)
		buf_adds(out, ",\"refusal\":null");
	if (m->reasoning.len) {
		buf_adds(out, out->len > from ? "," : "");
		add_text(out, "reasoning_content", &m->reasoning);
		buf_addc(out, ',');
		add_text(out, "reasoning", &m->reasoning);
	}
	if (!m->n_calls)
		return;
	buf_adds(out, out->len > from ? ",\"tool_calls\":[" : "\"tool_calls\":[");
	for (size_t i = 0; i < m->n_calls; i++) {
		buf_adds(out, i ? "," : "");
		add_call_json(&m->calls[i], whole, out);
	}
	buf_addc(out, ']');
}
