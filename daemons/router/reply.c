/* reply.c - answers in OpenAI's JSON, whole and as stream events. Written by hand into one buffer: an event costs a few microseconds. */
#include "call.h"

#include <stdio.h>
#include <string.h>

void reply_head(struct call *c)
{
	const char *object = c->kind != CALL_CHAT ? "text_completion" : c->p.stream ? "chat.completion.chunk" : "chat.completion";
	buf_printf(&c->head, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id, object, (long long)c->created_s);
	buf_add_json(&c->head, c->model->name, strlen(c->model->name));
}

static void add_prompt_ids(const struct prompt *p, struct buf *out)
{
	buf_adds(out, ",\"prompt_token_ids\":[");
	for (size_t i = 0; i < p->tokens.n; i++)
		buf_printf(out, i ? ",%u" : "%u", p->tokens.ids[i]);
	buf_addc(out, ']');
}

static void add_logprobs(const struct choice *ch, struct buf *out)
{
	const struct logprob_parts *p = &ch->parts;
	const struct call *c = ch->call;
	buf_adds(out, ",\"logprobs\":");
	if (c->p.logprobs < 0 || (c->streaming && !p->content.len)) {
		buf_adds(out, "null");
		return;
	}
	buf_adds(out, c->kind == CALL_CHAT ? "{\"content\":[" : "{\"tokens\":[");
	buf_add(out, p->content.data, p->content.len);
	if (c->kind != CALL_CHAT) {
		buf_adds(out, "],\"token_logprobs\":[");
		buf_add(out, p->values.data, p->values.len);
		buf_adds(out, "],\"top_logprobs\":[");
		buf_add(out, p->top.data, p->top.len);
		buf_adds(out, "],\"text_offset\":[");
		buf_add(out, p->offsets.data, p->offsets.len);
	}
	buf_adds(out, "]}");
}

static void add_finish(const struct choice *ch, struct buf *out)
{
	size_t len;
	if (ch->finish == SEQ_FINISH_NONE) {
		buf_adds(out, ",\"finish_reason\":null");
		return;
	}
	int calls = ch->finish == SEQ_FINISH_STOP && ch->message && message_count(ch->message) && !ch->call->message.named;
	buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", calls ? "tool_calls" : seq_finish_name(ch->finish));
	if (ch->stopped >= 0) {
		const char *s = stop_string(ch->call->p.stop, (size_t)ch->stopped, &len);
		buf_add_json(out, s, len);
	} else if (ch->stop_id >= 0) {
		buf_printf(out, "%lld", (long long)ch->stop_id);
	} else {
		buf_adds(out, "null");
	}
}

static void add_prompt_logprobs(const struct choice *ch, struct buf *out)
{
	if (ch->call->p.prompt_logprobs < 0)
		return;
	buf_adds(out, ",\"prompt_logprobs\":[");
	buf_add(out, ch->parts.prompt.data, ch->parts.prompt.len);
	buf_addc(out, ']');
}

static void add_ids(const struct choice *ch, struct buf *out)
{
	if (!ch->call->p.return_token_ids)
		return;
	buf_adds(out, ",\"token_ids\":[");
	buf_add(out, ch->ids.data, ch->ids.len);
	buf_addc(out, ']');
}

static void add_usage(const struct call *c, struct buf *out)
{
	uint32_t in = call_prompt_tokens(c), gen = call_output_tokens(c);
	buf_printf(out, "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u}}", in, gen,
	           in + gen, call_cached_tokens(c));
}

/* --- streams ----------------------------------------------------------------------------------------------------------------- */

static void add_completion_delta(struct choice *ch, size_t text_len, struct buf *out)
{
	buf_printf(out, ",\"choices\":[{\"index\":%u,\"text\":", ch->index);
	buf_add_json(out, ch->text.data ? ch->text.data : "", text_len);
	add_logprobs(ch, out);
	add_finish(ch, out);
	if (ch->call->p.return_token_ids && !ch->prompt_sent)
		add_prompt_ids(ch->prompt, out);
	add_ids(ch, out);
	buf_adds(out, "}]");
}

static void add_chat_delta(struct choice *ch, size_t text_len, struct buf *out)
{
	buf_printf(out, ",\"choices\":[{\"index\":%u,\"delta\":{", ch->index);
	if (ch->message) {
		message_add_json(ch->message, 0, out);
	} else {
		buf_adds(out, "\"content\":");
		buf_add_json(out, ch->text.data ? ch->text.data : "", text_len);
	}
	buf_addc(out, '}');
	add_logprobs(ch, out);
	add_finish(ch, out);
	add_ids(ch, out);
	buf_adds(out, "}]");
}

static void event_begin(const struct call *c, struct buf *out)
{
	buf_adds(out, "data: ");
	buf_add(out, c->head.data, c->head.len);
}

static void event_end(const struct call *c, struct buf *out)
{
	if (c->p.continuous_usage) {
		buf_adds(out, ",\"usage\":");
		add_usage(c, out);
	} else if (c->p.include_usage) {
		buf_adds(out, ",\"usage\":null");
	}
	buf_adds(out, "}\n\n");
}

static void add_role_event(struct choice *ch, struct buf *out)
{
	const struct call *c = ch->call;
	event_begin(c, out);
	buf_printf(out, ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]",
	           ch->index);
	if (c->p.return_token_ids)
		add_prompt_ids(ch->prompt, out);
	event_end(c, out);
}

void reply_chunk(struct call *c, struct choice *ch, size_t text_len, struct buf *out)
{
	if (c->kind == CALL_CHAT && !ch->role_sent)
		add_role_event(ch, out);
	ch->role_sent = 1;
	event_begin(c, out);
	if (c->kind == CALL_CHAT)
		add_chat_delta(ch, text_len, out);
	else
		add_completion_delta(ch, text_len, out);
	ch->prompt_sent = 1;
	event_end(c, out);
}

int reply_is_empty(const struct choice *ch)
{
	const struct call *c = ch->call;
	return ch->finish == SEQ_FINISH_NONE && message_is_empty(ch->message) && !ch->parts.content.len && !ch->ids.len && !c->p.continuous_usage;
}

void reply_usage_chunk(struct call *c, struct buf *out)
{
	event_begin(c, out);
	buf_adds(out, ",\"choices\":[],\"usage\":");
	add_usage(c, out);
	buf_adds(out, "}\n\n");
}

/* --- whole ------------------------------------------------------------------------------------------------------------------ */

static void add_choice(struct choice *ch, struct buf *out)
{
	const struct call *c = ch->call;
	const char *text = ch->text.data ? ch->text.data : "";
	buf_printf(out, "{\"index\":%u,", ch->index);
	if (ch->message) {
		buf_adds(out, "\"message\":{\"role\":\"assistant\",");
		message_add_json(ch->message, 1, out);
		buf_addc(out, '}');
	} else {
		buf_adds(out, c->kind == CALL_CHAT ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
		buf_add_json(out, text, ch->text.len);
		buf_adds(out, c->kind == CALL_CHAT ? ",\"refusal\":null}" : "");
	}
	add_logprobs(ch, out);
	add_finish(ch, out);
	if (c->kind != CALL_CHAT && c->p.return_token_ids)
		add_prompt_ids(ch->prompt, out);
	if (c->kind != CALL_CHAT)
		add_prompt_logprobs(ch, out);
	add_ids(ch, out);
	buf_addc(out, '}');
}

void reply_whole(struct call *c, struct buf *out)
{
	buf_add(out, c->head.data, c->head.len);
	buf_adds(out, ",\"choices\":[");
	for (uint32_t i = 0; i < c->n_choices; i++) {
		buf_adds(out, i ? "," : "");
		add_choice(&c->choices[i], out);
	}
	buf_addc(out, ']');
	if (c->kind == CALL_CHAT && c->p.return_token_ids)
		add_prompt_ids(&c->prompts[0], out);
	if (c->kind == CALL_CHAT)
		add_prompt_logprobs(&c->choices[0], out);
	buf_adds(out, ",\"usage\":");
	add_usage(c, out);
	buf_addc(out, '}');
}
