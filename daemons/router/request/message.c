/* message.c - see message.h. Text -> thoughts and the rest -> calls and content. */
#include "message.h"
#include "util/mem.h"
#include "util/quota.h"

#include <stdlib.h>
#include <string.h>

/* NULL: no room. */
static struct message_call *add_call(struct message *m)
{
	if (m->n_calls == m->calls_size) {
		size_t size = m->calls_size ? 2 * m->calls_size : 2;
		struct message_call *calls = quota_grow(m->quota, m->calls, m->calls_size, size,
		                                        sizeof *calls);
		if (!calls) {
			m->lost_text = 1;
			return NULL;
		}
		m->calls = calls;
		m->calls_size = size;
	}
	struct message_call *c = &m->calls[m->n_calls++];
	memset(c, 0, sizeof *c);
	buf_init_quota(&c->arguments, 0, m->quota);
	return c;
}

/* After text that cannot be kept nothing is added to the message. */
static void keep(struct message *m, struct buf *to, const char *text, size_t len)
{
	if (!m->lost_text && buf_add(to, text, len) < 0)
		m->lost_text = 1;
}

static void on_event(void *arg, const struct toolcall_event *e)
{
	struct message *m = arg;
	struct message_call *c = m->n_calls ? &m->calls[m->n_calls - 1] : NULL;
	if (m->enough || m->lost_text)
		return;
	switch (e->kind) {
	case TOOLCALL_CONTENT: keep(m, &m->content, e->text, e->len); break;
	case TOOLCALL_BEGIN:
		c = add_call(m);
		if (!c)
			break;
		c->index = e->index;
		c->begins = 1;
		memcpy(c->name, e->text, e->len + 1);
		toolcall_make_id(m->opts->calls, m->seed, m->choice, e->index, c->id);
		break;
	case TOOLCALL_ARGUMENTS:
		if (!c || c->index != e->index) {
			c = add_call(m);
			if (!c)
				break;
			c->index = e->index;
		}
		keep(m, &c->arguments, e->text, e->len);
		break;
	case TOOLCALL_END: m->enough = m->opts->one_call; break;
	}
}

static void answer(struct message *m, const char *text, size_t len)
{
	if (m->toolcall)
		toolcall_feed(m->toolcall, text, len);
	else
		keep(m, &m->content, text, len);
}

static void on_split(void *arg, int thoughts, const char *text, size_t len)
{
	struct message *m = arg;
	if (!thoughts)
		answer(m, text, len);
	else if (!m->opts->drop_reasoning)
		keep(m, &m->reasoning, text, len);
}

struct message *message_new(const struct message_opts *opts, struct quota *q, const char *seed,
                            unsigned choice)
{
	if (!opts->calls && !opts->reasoning)
		return NULL;
	struct message *m = mem_zalloc(sizeof *m);
	m->opts = opts;
	m->quota = q;
	m->seed = seed;
	m->choice = choice;
	buf_init_quota(&m->reasoning, 0, q);
	buf_init_quota(&m->content, 0, q);
	if (opts->calls)
		m->toolcall = toolcall_new(opts->calls, opts->tools, q, on_event, m);
	if (opts->reasoning)
		m->split = reasoning_new(opts->reasoning, opts->at, q, on_split, m);
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
	quota_free(m->quota, m->calls, m->calls_size * sizeof *m->calls);
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

void message_finish(struct message *m, int ended)
{
	if (m->finished)
		return;
	m->finished = 1;
	if (m->split)
		reasoning_finish(m->split);
	if (m->toolcall)
		toolcall_finish(m->toolcall, ended);
}

unsigned message_count(const struct message *m)
{
	return m->toolcall ? toolcall_count(m->toolcall) : 0;
}

int message_is_full(const struct message *m)
{
	return m->lost_text || (m->toolcall && toolcall_is_full(m->toolcall)) ||
	       (m->split && reasoning_is_full(m->split));
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

/* --- JSON ---------------------------------------------------------------- */

static void add_text(struct answer_parts *out, const char *name, const struct buf *text)
{
	buf_printf(&out->text, "\"%s\":", name);
	parts_string(out, text->data ? text->data : "", text->len);
}

static void add_call_json(const struct message_call *c, int whole, struct answer_parts *out)
{
	buf_addc(&out->text, '{');
	if (!whole)
		buf_printf(&out->text, "\"index\":%u%s", c->index, c->begins ? "," : "");
	if (c->begins)
		buf_printf(&out->text, "\"id\":\"%s\",\"type\":\"function\"", c->id);
	buf_adds(&out->text, ",\"function\":{");
	if (c->begins) {
		buf_adds(&out->text, "\"name\":");
		buf_add_json(&out->text, c->name, strlen(c->name));
		buf_addc(&out->text, ',');
	}
	add_text(out, "arguments", &c->arguments);
	buf_adds(&out->text, "}}");
}

/* vLLM and SGLang name it reasoning_content, newer vLLM reasoning: both are sent. */
void message_add(const struct message *m, int whole, struct answer_parts *out)
{
	const char *comma = "";
	if (m->content.len || (whole && !m->n_calls && !m->reasoning.len)) {
		add_text(out, "content", &m->content);
		comma = ",";
	} else if (whole) {
		buf_adds(&out->text, "\"content\":null");
		comma = ",";
	}
	if (whole)
		buf_adds(&out->text, ",\"refusal\":null");
	if (m->reasoning.len) {
		buf_adds(&out->text, comma);
		add_text(out, "reasoning_content", &m->reasoning);
		buf_addc(&out->text, ',');
		add_text(out, "reasoning", &m->reasoning);
		comma = ",";
	}
	if (!m->n_calls)
		return;
	buf_printf(&out->text, "%s\"tool_calls\":[", comma);
	for (size_t i = 0; i < m->n_calls; i++) {
		buf_adds(&out->text, i ? "," : "");
		add_call_json(&m->calls[i], whole, out);
	}
	buf_addc(&out->text, ']');
}
