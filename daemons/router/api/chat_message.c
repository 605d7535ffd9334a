/* chat_message.c - see chat_message.h. Text is split into thoughts and the rest, the rest into
 * calls and content. */
#include "chat_message.h"
#include "util/mem.h"
#include "util/quota.h"

#include <stdlib.h>
#include <string.h>

#define PIECES_MIN 2u

static struct message_piece *last_piece(const struct message *m)
{
	return m->n_pieces ? &m->pieces[m->n_pieces - 1] : NULL;
}

/* Ends the last piece and begins another one. NULL: no room. */
static struct message_piece *begin_piece(struct message *m, enum message_kind kind)
{
	struct message_piece *last = last_piece(m);
	if (last && last->kind == MESSAGE_CONTENT) /* it also gets the rows of tokens behind its text */
		last->row_to = m->rows_given = m->n_rows;
	if (m->n_pieces == m->pieces_size) {
		size_t size = m->pieces_size ? 2 * m->pieces_size : PIECES_MIN;
		struct message_piece *pieces = quota_grow(m->quota, m->pieces, m->pieces_size, size,
		                                          sizeof *pieces);
		if (!pieces) {
			m->lost_text = 1;
			return NULL;
		}
		memset(pieces + m->pieces_size, 0, (size - m->pieces_size) * sizeof *pieces);
		m->pieces = pieces;
		m->pieces_size = size;
	}
	struct message_piece *p = &m->pieces[m->n_pieces++];
	struct buf text = p->text; /* memory that message_given has left */
	memset(p, 0, sizeof *p);
	p->kind = kind;
	p->text = text;
	p->row_from = p->row_to = m->rows_given;
	if (!text.data)
		buf_init_quota(&p->text, 0, m->quota);
	return p;
}

/* Appends to a piece. After text for which there is no memory nothing is added to the message. */
static void keep(struct message *m, struct message_piece *to, const char *text, size_t len)
{
	if (to && !m->lost_text && buf_add(&to->text, text, len) < 0)
		m->lost_text = 1;
}

static void keep_text(struct message *m, enum message_kind kind, const char *text, size_t len)
{
	struct message_piece *p = last_piece(m);
	if (!len || m->lost_text)
		return;
	keep(m, p && p->kind == kind ? p : begin_piece(m, kind), text, len);
}

static void on_event(void *arg, const struct toolcall_event *e)
{
	struct message *m = arg;
	struct message_piece *p;
	if (m->enough || m->lost_text)
		return;
	switch (e->kind) {
	case TOOLCALL_CONTENT: keep_text(m, MESSAGE_CONTENT, e->text, e->len); break;
	case TOOLCALL_BEGIN:
		m->is_cut = 1;
		p = begin_piece(m, MESSAGE_CALL);
		if (!p)
			break;
		p->index = e->index;
		p->begins = 1;
		memcpy(p->name, e->text, e->len + 1);
		toolcall_make_id(m->opts->calls, m->seed, m->choice, e->index, p->id);
		break;
	case TOOLCALL_ARGUMENTS:
		p = last_piece(m);
		if (!p || p->kind != MESSAGE_CALL || p->index != e->index) {
			p = begin_piece(m, MESSAGE_CALL);
			if (p)
				p->index = e->index;
		}
		keep(m, p, e->text, e->len);
		break;
	case TOOLCALL_END:
		m->enough = m->opts->one_call;
		m->is_cut = e->is_broken;
		p = last_piece(m);
		if (p && p->kind == MESSAGE_CALL && p->index == e->index)
			p->is_complete = !e->is_broken;
		break;
	}
}

/* Text outside of thoughts. */
static void feed_answer(struct message *m, const char *text, size_t len)
{
	if (m->toolcall)
		toolcall_feed(m->toolcall, text, len);
	else
		keep_text(m, MESSAGE_CONTENT, text, len);
}

static void on_split(void *arg, int thoughts, const char *text, size_t len)
{
	struct message *m = arg;
	if (!thoughts)
		feed_answer(m, text, len);
	else if (!m->opts->drop_reasoning)
		keep_text(m, MESSAGE_THOUGHTS, text, len);
}

struct message *message_new(const struct message_opts *opts, struct quota *q, const char *seed,
                            unsigned choice)
{
	struct message *m = mem_zalloc(sizeof *m);
	m->opts = opts;
	m->quota = q;
	m->seed = seed;
	m->choice = choice;
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
	for (size_t i = 0; i < m->pieces_size; i++)
		buf_fini(&m->pieces[i].text);
	toolcall_destroy(&m->toolcall);
	reasoning_destroy(&m->split);
	quota_free(m->quota, m->pieces, m->pieces_size * sizeof *m->pieces);
	free(m);
	*mp = NULL;
}

/* Rows that belong to no piece yet become the last piece's if it is content, and are skipped if
 * it is not. Tokens are counted as thoughts if it has thoughts. */
static void give_rows(struct message *m)
{
	struct message_piece *p = last_piece(m);
	m->thought_tokens += p && p->kind == MESSAGE_THOUGHTS ? m->n_tokens - m->tokens_given : 0;
	m->tokens_given = m->n_tokens;
	if (!p)
		return;
	m->rows_given = m->n_rows;
	if (p->kind == MESSAGE_CONTENT)
		p->row_to = m->n_rows;
}

void message_feed(struct message *m, const char *text, size_t len, uint32_t n_tokens,
                  uint32_t n_rows)
{
	m->n_tokens = n_tokens;
	m->n_rows = n_rows;
	if (m->finished)
		return;
	if (len && m->split)
		reasoning_feed(m->split, text, len);
	else if (len)
		feed_answer(m, text, len);
	give_rows(m);
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
	give_rows(m);
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
	return m->n_pieces == 0;
}

size_t message_bytes(const struct message *m, enum message_kind kind)
{
	size_t n = 0;
	for (size_t i = 0; i < m->n_pieces; i++)
		n += m->pieces[i].kind == kind ? m->pieces[i].text.len : 0;
	return n;
}

/* The first piece keeps its memory, because most messages are sent one piece at a time. */
void message_given(struct message *m)
{
	if (m->n_pieces)
		buf_reset(&m->pieces[0].text);
	for (size_t i = 1; i < m->n_pieces; i++)
		buf_fini(&m->pieces[i].text);
	m->n_pieces = 0;
}
