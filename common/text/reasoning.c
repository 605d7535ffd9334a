/* reasoning.c - see reasoning.h.
 *
 * The parts of an answer form a state machine (step): each part says which marker may open it and
 * which ends it. Undecided text is held back: a run of white space that may have to be dropped,
 * which is scanned once, and after it a possible marker or harmony head, which is short and parsed
 * again whenever more text arrives. So time is linear in the text. */
#include "text/reasoning_int.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define NEWLINES "\\n{0,2}"

/* The first format of the table whose marker the template contains is used. */
static const struct reasoning_format formats[] = {
	/* Constrained reasoning contains no other marker, which would start an unconstrained
	 * message. */
	{"harmony",
     {"<|channel|>analysis<|message|>", "<|", "end\\|><\\|start\\|>assistant",
      "<|channel|>final<|message|>"},
     NULL,
     NULL,
     {"<|channel|>analysis", "<|channel|>final"},
     {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>",
      "<|return|>"}},
	{"mistral", {"[THINK]", "[/THINK]", NEWLINES, ""}, NULL, NULL, {"[THINK]"}, {NULL}},
	{"cohere",
     {"<|START_THINKING|>", "<|END_THINKING|>", NEWLINES, ""},
     "<|START_RESPONSE|>",
     "<|END_RESPONSE|>",
     {"<|START_THINKING|>"},
     {NULL}},
	{"granite",
     {"Here is my thought process:", "Here is my response:", NEWLINES, ""},
     NULL,
     NULL,
     {"Here is my thought process:"},
     {NULL}},
	{"ernie",
     {"<think>", "</think>", NEWLINES, ""},
     "<response>",
     "</response>",
     {"<response>"},
     {NULL}},
	{"think", {"<think>", "</think>", NEWLINES, ""}, NULL, NULL, {"<think>", "</think>"}, {NULL}},
};

#define N_FORMATS (sizeof formats / sizeof *formats)

const struct reasoning_format *reasoning_format_find(const char *name)
{
	for (size_t i = 0; i < N_FORMATS; i++)
		if (strcmp(formats[i].name, name) == 0)
			return &formats[i];
	return NULL;
}

const struct reasoning_format *reasoning_format_detect(const char *text, size_t len)
{
	for (size_t i = 0; i < N_FORMATS; i++)
		for (const char *const *d = formats[i].detect; *d; d++)
			if (memmem(text, len, *d, strlen(*d)))
				return &formats[i];
	return NULL;
}

const struct reasoning_format *reasoning_format_at(size_t i)
{
	return i < N_FORMATS ? &formats[i] : NULL;
}

const char *reasoning_format_name(const struct reasoning_format *f)
{
	return f->name;
}

const struct reasoning_form *reasoning_format_form(const struct reasoning_format *f)
{
	return &f->form;
}

/* The closing marker may continue in `next`, a regex: appends its text up to the first operator. */
static int closes_with(const struct reasoning_form *f, const char *marker)
{
	char text[128];
	size_t n = strlen(f->close);
	CHECK(n + strlen(f->next) < sizeof text);
	memcpy(text, f->close, n);
	for (const char *s = f->next; *s && !strchr("{*+?([", *s); s++)
		if (*s != '\\')
			text[n++] = *s;
	text[n] = 0;
	return strstr(text, marker) != NULL;
}

int reasoning_form_spells(const char *marker)
{
	for (size_t i = 0; i < N_FORMATS; i++) {
		const struct reasoning_form *f = &formats[i].form;
		if (strstr(f->open, marker) || strstr(f->answer, marker) || closes_with(f, marker))
			return 1;
	}
	return 0;
}

const char *reasoning_format_marker(const struct reasoning_format *f, size_t i)
{
	const char *const all[] = {f->form.open, f->form.close, f->answer_open, f->answer_close, NULL};
	if (*f->channels)
		return i < 8 ? f->channels[i] : NULL;
	return i < 5 ? all[i] : NULL;
}

static int ends_with(const char *s, size_t len, const char *with)
{
	size_t n = strlen(with);
	return len >= n && memcmp(s + len - n, with, n) == 0;
}

enum reasoning_at reasoning_opened(const struct reasoning_format *f, const char *prompt, size_t len)
{
	if (*f->channels)
		return reasoning_last_message(prompt, len);
	while (len && text_is_space(prompt[len - 1]))
		len--;
	if (ends_with(prompt, len, f->form.open))
		return REASONING_WITHIN_THOUGHTS;
	return ends_with(prompt, len, f->form.close) ? REASONING_WITHIN_ANSWER : REASONING_BEFORE;
}

/* --- splitting ----------------------------------------------------------- */

enum match { NO, YES, PART };

static enum match compare(const struct reasoning *r, size_t at, const char *s)
{
	size_t n = strlen(s), have = r->in.len - at;
	if (have && memcmp(r->in.data + at, s, have < n ? have : n) != 0)
		return NO;
	return have >= n ? YES : r->final ? NO : PART;
}

static void give(struct reasoning *r, size_t to)
{
	if (to > r->start)
		r->sink(r->arg, r->part == THOUGHTS, r->in.data + r->start, to - r->start);
	r->start = to;
}

/* A part that may start with white space and a marker. Enters `with` if the marker is there,
 * `without` if not; then keeps_space tells whether the white space belongs to the answer. */
static int lead(struct reasoning *r, const char *marker, enum reasoning_part with,
                enum reasoning_part without, int keeps_space)
{
	size_t at = reasoning_skip_space(r);
	if (at == r->in.len && !r->final)
		return 0;
	enum match m = marker ? compare(r, at, marker) : NO;
	if (m == PART)
		return 0;
	r->part = m == YES ? with : without;
	r->start = m == YES ? at + strlen(marker) : keeps_space ? r->start : at;
	return 1;
}

/* Emits text up to the marker, without the white space before it. */
static int body(struct reasoning *r, const char *marker, enum reasoning_part next)
{
	size_t at = reasoning_skip_space(r), keep = r->start;
	while (at < r->in.len) {
		if (text_is_space(r->in.data[at])) {
			at++;
			continue;
		}
		enum match m = r->in.data[at] == *marker ? compare(r, at, marker) : NO;
		if (m == PART)
			break;
		if (m == YES) {
			give(r, keep);
			r->start = at + strlen(marker);
			r->part = next;
			return 1;
		}
		keep = ++at;
	}
	give(r, keep);
	r->space = at;
	if (r->final) /* white space at the end of an answer belongs to it */
		give(r, r->part == THOUGHTS ? keep : r->in.len);
	return 0;
}

/* Returns 0 if more text is needed. */
static int step(struct reasoning *r)
{
	const struct reasoning_format *f = r->f;
	if (r->start == r->in.len)
		return 0;
	switch (r->part) {
	case BEGIN: return lead(r, f->form.open, FIRST, ANSWER, 1);
	case LEAD: return lead(r, f->form.open, FIRST, THOUGHTS, 0);
	case FIRST: return lead(r, NULL, THOUGHTS, THOUGHTS, 0);
	case THOUGHTS: return body(r, f->form.close, ANSWER_LEAD);
	case ANSWER_LEAD: return lead(r, f->answer_open, ANSWER_FIRST, ANSWER, 0);
	case ANSWER_FIRST: return lead(r, NULL, WRAPPED, WRAPPED, 0);
	case ANSWER: give(r, r->in.len); return 0;
	case WRAPPED: return body(r, f->answer_close, TAIL);
	case TAIL: return lead(r, NULL, ANSWER, ANSWER, 0);
	default: return reasoning_message_step(r);
	}
}

struct reasoning *reasoning_new(const struct reasoning_format *f, enum reasoning_at at,
                                struct quota *q, reasoning_sink *sink, void *arg)
{
	struct reasoning *r = mem_zalloc(sizeof *r);
	r->f = f;
	r->sink = sink;
	r->arg = arg;
	if (*f->channels)
		r->part = reasoning_message_part(at);
	else if (at == REASONING_WITHIN_ANSWER)
		r->part = f->answer_open ? ANSWER_LEAD : ANSWER;
	else
		r->part = at == REASONING_WITHIN_THOUGHTS ? LEAD : BEGIN;
	buf_init_quota(&r->in, 0, q);
	return r;
}

int reasoning_is_full(const struct reasoning *r)
{
	return r->in.full;
}

void reasoning_destroy(struct reasoning **rp)
{
	if (!*rp)
		return;
	buf_fini(&(*rp)->in);
	free(*rp);
	*rp = NULL;
}

void reasoning_feed(struct reasoning *r, const char *text, size_t len)
{
	CHECK(!r->final);
	if (r->start) {
		memmove(r->in.data, r->in.data + r->start, r->in.len - r->start);
		r->in.len -= r->start;
		r->space -= r->space > r->start ? r->start : r->space;
		r->start = 0;
	}
	buf_add(&r->in, text, len);
	while (step(r))
		;
}

void reasoning_finish(struct reasoning *r)
{
	CHECK(!r->final);
	r->final = 1;
	while (step(r))
		;
}
