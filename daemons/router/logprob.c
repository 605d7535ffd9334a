/* logprob.c - log-probabilities of tokens as JSON, in both of OpenAI's shapes.
 *
 * Completions: parallel arrays; a token that is no UTF-8 by itself is written bytes:\xe2\x80, as OpenAI did, so that keys of top_logprobs stay apart.
 * Chat: objects with the token's exact bytes. Infinite values become -9999, because JSON has none. */
#include "call.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void add_number(struct buf *b, float v)
{
	char text[32];
	int n = snprintf(text, sizeof text, "%.7g", isfinite(v) ? (double)v : -9999.0);
	buf_add(b, text, (size_t)n);
}

static void token_bytes(const struct choice *ch, uint32_t id, struct buf *out)
{
	if (!ch->call->model->tokenizer || tokenizer_decode(ch->call->model->tokenizer, &id, 1, DECODE_CONTINUES, out) < 0)
		buf_printf(out, "token_id:%u", id);
}

static int is_utf8(const char *s, size_t n)
{
	uint32_t cp;
	while (n) {
		int step = utf8_step(s, n, &cp);
		if (step <= 0)
			return 0;
		s += step;
		n -= (size_t)step;
	}
	return 1;
}

/* The token's text as a JSON string of the completions shape. */
static void add_name(const struct choice *ch, uint32_t id, struct buf *out)
{
	char room[64];
	struct buf piece, shown;
	buf_init(&piece, 0);
	buf_init(&shown, 0);
	token_bytes(ch, id, &piece);
	if (piece.len == 0 || is_utf8(piece.data, piece.len)) {
		buf_add_json(out, piece.data ? piece.data : "", piece.len);
	} else {
		buf_adds(&shown, "bytes:");
		for (size_t i = 0; i < piece.len; i++) {
			snprintf(room, sizeof room, "\\x%02x", (unsigned char)piece.data[i]);
			buf_adds(&shown, room);
		}
		buf_add_json(out, shown.data, shown.len);
	}
	buf_fini(&piece);
	buf_fini(&shown);
}

static void comma(struct buf *b)
{
	if (b->len)
		buf_addc(b, ',');
}

/* --- completions ----------------------------------------------------------------------------------------------------------- */

static void add_top(const struct choice *ch, const Pds__Token *t, struct buf *out)
{
	int seen = 0;
	buf_addc(out, '{');
	for (size_t i = 0; i < t->n_top && i < (size_t)ch->call->p.logprobs; i++) {
		seen |= t->top[i]->id == t->id;
		buf_adds(out, i ? "," : "");
		add_name(ch, t->top[i]->id, out);
		buf_addc(out, ':');
		add_number(out, t->top[i]->logprob);
	}
	if (!seen) {
		buf_adds(out, t->n_top && ch->call->p.logprobs ? "," : "");
		add_name(ch, t->id, out);
		buf_addc(out, ':');
		add_number(out, t->logprob);
	}
	buf_addc(out, '}');
}

static void add_completion(struct choice *ch, uint32_t id, const Pds__Token *t, size_t offset)
{
	struct logprob_parts *p = &ch->parts;
	comma(&p->content);
	add_name(ch, id, &p->content);
	comma(&p->values);
	comma(&p->top);
	if (t) {
		add_number(&p->values, t->logprob);
		add_top(ch, t, &p->top);
	} else {
		buf_adds(&p->values, "null");
		buf_adds(&p->top, "null");
	}
	comma(&p->offsets);
	buf_printf(&p->offsets, "%zu", offset);
}

/* --- chat ------------------------------------------------------------------------------------------------------------------ */

static void add_object(const struct choice *ch, uint32_t id, float logprob, struct buf *out)
{
	struct buf piece;
	buf_init(&piece, 0);
	token_bytes(ch, id, &piece);
	buf_adds(out, "{\"token\":");
	buf_add_json(out, piece.data ? piece.data : "", piece.len);
	buf_adds(out, ",\"logprob\":");
	add_number(out, logprob);
	buf_adds(out, ",\"bytes\":[");
	for (size_t i = 0; i < piece.len; i++)
		buf_printf(out, i ? ",%u" : "%u", (unsigned char)piece.data[i]);
	buf_addc(out, ']');
	buf_fini(&piece);
}

static void add_chat(struct choice *ch, const Pds__Token *t)
{
	struct buf *out = &ch->parts.content;
	comma(out);
	add_object(ch, t->id, t->logprob, out);
	buf_adds(out, ",\"top_logprobs\":[");
	for (size_t i = 0; i < t->n_top && i < (size_t)ch->call->p.logprobs; i++) {
		buf_adds(out, i ? "," : "");
		add_object(ch, t->top[i]->id, t->top[i]->logprob, out);
		buf_addc(out, '}');
	}
	buf_adds(out, "]}");
}

void logprob_add(struct choice *ch, const Pds__Token *t)
{
	if (ch->call->p.logprobs < 0)
		return;
	if (ch->call->kind == CALL_CHAT)
		add_chat(ch, t);
	else
		add_completion(ch, t->id, t, ch->chars);
}

void logprob_add_prompt(struct choice *ch, uint32_t id, const Pds__Token *t, size_t chars_before)
{
	add_completion(ch, id, t, chars_before);
}

/* --- prompt_logprobs, as vLLM has them: {"ID": {"logprob", "rank", "decoded_token"}, ...}, the prompt's own token first ------------- */

static void add_entry(const struct choice *ch, uint32_t id, float logprob, uint32_t rank, struct buf *out)
{
	struct buf piece;
	buf_init(&piece, 0);
	token_bytes(ch, id, &piece);
	buf_printf(out, "\"%u\":{\"logprob\":", id);
	add_number(out, logprob);
	buf_printf(out, ",\"rank\":%u,\"decoded_token\":", rank);
	buf_add_json(out, piece.data ? piece.data : "", piece.len);
	buf_addc(out, '}');
	buf_fini(&piece);
}

void logprob_add_prompt_entry(struct choice *ch, const Pds__Token *t)
{
	struct buf *out = &ch->parts.prompt;
	comma(out);
	if (!t) {
		buf_adds(out, "null");
		return;
	}
	buf_addc(out, '{');
	add_entry(ch, t->id, t->logprob, t->rank, out);
	for (size_t i = 0; i < t->n_top && i < (size_t)ch->call->p.prompt_logprobs; i++) {
		if (t->top[i]->id == t->id)
			continue;
		buf_addc(out, ',');
		add_entry(ch, t->top[i]->id, t->top[i]->logprob, (uint32_t)i + 1, out);
	}
	buf_addc(out, '}');
}
