/* harmony.c - see harmony.h. */
#include "text/harmony.h"
#include "text/space.h"

#include <string.h>

#define NAMESPACE "functions."

/* Does s start with `with`? 1: yes; 0: no; -1: more text is needed to decide. */
static int begins(const char *s, size_t n, int final, const char *with)
{
	size_t len = strlen(with);
	if (memcmp(s, with, n < len ? n : len) != 0)
		return 0;
	return n >= len ? 1 : final ? 0 : -1;
}

enum harmony_mark harmony_mark_at(const char *s, size_t n, int final, size_t *ret_len)
{
	static const struct {
		const char *text;
		enum harmony_mark mark;
	} marks[] = {{"<|start|>", HARMONY_STARTS},
	             {"<|channel|>", HARMONY_CHANNEL},
	             {"<|end|>", HARMONY_ENDS},
	             {"<|call|>", HARMONY_ENDS},
	             {"<|return|>", HARMONY_ENDS}};
	enum harmony_mark found = HARMONY_TEXT;
	for (size_t i = 0; n && *s == '<' && i < sizeof marks / sizeof *marks; i++) {
		int b = begins(s, n, final, marks[i].text);
		if (b > 0) {
			*ret_len = strlen(marks[i].text);
			return marks[i].mark;
		}
		found = b < 0 ? HARMONY_PART : found;
	}
	return found;
}

/* --- heads --------------------------------------------------------------- */

static size_t skip_space(const char *s, size_t n, size_t at)
{
	while (at < n && text_is_space(s[at]))
		at++;
	return at;
}

static size_t word_end(const char *s, size_t n, size_t at)
{
	while (at < n && s[at] != '<' && skip_space(s, n, at) == at)
		at++;
	return at;
}

/* Is it a recipient other than a tool? */
static int is_person(const char *s, size_t n)
{
	static const char *const names[] = {"assistant", "user", "all"};
	for (size_t i = 0; i < 3; i++)
		if (n == strlen(names[i]) && memcmp(s, names[i], n) == 0)
			return 1;
	return 0;
}

/* Is it a recipient that the format defines, or the start of a function's? */
static int is_recipient(const char *s, size_t n)
{
	return begins(s, n, 0, NAMESPACE) || is_person(s, n);
}

/* Do words that may open a message without <|start|> stand before its first marker, or before the
 * end of the answer (cut)? Returns 1, 0 or -1 like harmony_head_read. */
static int words_lead(const char *s, size_t n, int final, int cut)
{
	static const char *const markers[] = {"<|channel|>", "<|message|>", "<|constrain|>"};
	size_t at = 0;
	int b = 0, part = 0, named = 0;
	for (;;) {
		at = skip_space(s, n, at);
		if ((b = begins(s + at, n - at, final, "assistant")) > 0)
			at += strlen("assistant");
		else if (b == 0 && (b = begins(s + at, n - at, final, "to=")) > 0) {
			size_t from = at + strlen("to=");
			at = word_end(s, n, at);
			named = is_recipient(s + from, at - from);
		}
		if (b < 0)
			return 0;
		if (b == 0)
			break;
	}
	if (cut && named && at == n)
		return 1;
	for (size_t i = 0; i < 3; i++) {
		if ((b = begins(s + at, n - at, final, markers[i])) > 0)
			return 1;
		part |= b < 0;
	}
	return part ? 0 : -1;
}

/* Finds the end of the head's words. *ret_len: length of the head if <|message|> follows, else 0.
 * Returns 0 if more text is needed. */
static int words_end(const char *s, size_t n, int final, size_t *ret_end, size_t *ret_len)
{
	size_t at = *s == '<', len;
	*ret_len = 0;
	for (; at < n; at++) {
		if (s[at] != '<')
			continue;
		int b = begins(s + at, n - at, final, "<|message|>");
		enum harmony_mark m = harmony_mark_at(s + at, n - at, final, &len);
		if (b < 0 || m == HARMONY_PART)
			return 0;
		if (b > 0)
			*ret_len = at + strlen("<|message|>");
		if (b > 0 || m == HARMONY_ENDS || m == HARMONY_STARTS)
			break;
	}
	*ret_end = at;
	return at < n || final;
}

static size_t letters_end(const char *s, size_t n, size_t at)
{
	while (at < n && s[at] >= 'a' && s[at] <= 'z')
		at++;
	return at;
}

static size_t find(const char *s, size_t n, size_t from, const char *what)
{
	const char *hit = from < n ? memmem(s + from, n - from, what, strlen(what)) : NULL;
	return hit ? (size_t)(hit - s) : n;
}

/* Uses the first channel with a known name; a channel with an unknown name is not shown to the
 * user. Returns where the name ends, or 0 if there is no channel. cut: the answer ends with s. */
static size_t read_channel(const char *s, size_t n, int cut, enum harmony_kind *ret)
{
	static const struct {
		const char *name;
		enum harmony_kind kind;
	} known[] = {{"analysis", HARMONY_THOUGHTS},
	             {"commentary", HARMONY_ANSWER},
	             {"final", HARMONY_ANSWER},
	             {"comment", HARMONY_ANSWER}};
	size_t end = 0;
	*ret = HARMONY_ANSWER;
	for (size_t at = 0; (at = find(s, n, at, "<|channel|>")) < n;) {
		end = at = skip_space(s, n, at + strlen("<|channel|>"));
		*ret = HARMONY_THOUGHTS;
		for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
			int b = begins(s + at, n - at, !cut, known[i].name);
			if (b)
				*ret = known[i].kind;
			if (b)
				return b > 0 ? at + strlen(known[i].name) : n;
		}
	}
	return end;
}

/* For a head without <|message|>: skips known words from `at` on and returns where the body starts,
 * white space included. If the answer ends with s (cut), an incomplete word counts as that word. */
static size_t body_begin(const char *s, size_t n, size_t at, int has_channel, int cut)
{
	enum { ROLE, TO, JSON, CODE, CONSTRAIN, CHANNEL, MESSAGE, N };
	static const char *const words[N] = {
		"assistant", "to=", "json", "code", "<|constrain|>", "<|channel|>", "<|message|>",
	};
	int has_to = find(s, n, 0, "to=") < n || find(s, n, 0, NAMESPACE) < n;
	for (int word = ROLE; word < N;) {
		size_t from = skip_space(s, n, at);
		int b = 0;
		if (from == n)
			return cut ? n : at;
		for (word = has_channel ? TO : ROLE; word < N; word++) {
			int apart = word == ROLE || word >= CONSTRAIN || from > at || at == 0;
			int is_type = word == JSON || word == CODE;
			size_t letters = letters_end(s, n, from) - from;
			int may = apart && (!is_type || (has_to && letters <= strlen(words[word])));
			if (may && (b = begins(s + from, n - from, !cut, words[word])))
				break;
		}
		if (b < 0)
			return n;
		if (word == TO)
			at = word_end(s, n, from);
		else if (word < N)
			at = from + strlen(words[word]);
		if (word == CONSTRAIN || word == CHANNEL)
			at = letters_end(s, n, skip_space(s, n, at));
	}
	return at;
}

/* Interprets the words s[0..n). For a head without <|message|>, also sets len to where the body
 * starts. */
static void read_words(const char *s, size_t n, int cut, struct harmony_head *ret)
{
	size_t channel = read_channel(s, n, cut, &ret->kind), from, to;
	size_t first = begins(s, n, 1, "<|start|>") ? strlen("<|start|>") : 0;
	size_t body = body_begin(s, n, channel ? channel : first, channel > 0, cut);
	from = find(s, n, 0, "to=");
	if (from < n)
		from += strlen("to=");
	else /* some models write only the name */
		from = find(s, n, 0, NAMESPACE);
	to = word_end(s, n, from);
	int is_function = begins(s + from, to - from, 1, NAMESPACE);
	int is_other = to > from && ret->kind != HARMONY_THOUGHTS && !is_person(s + from, to - from);
	size_t object = find(s, n, to, "{");
	if ((is_function || is_other) && (ret->whole || object < n)) {
		ret->kind = HARMONY_CALL;
		body = object;
	}
	ret->name = from + (is_function ? strlen(NAMESPACE) : 0);
	ret->name_len = to - ret->name;
	if (!ret->whole)
		ret->len = body < n ? body : n;
}

int harmony_head_read(const char *s, size_t n, int final, struct harmony_head *ret)
{
	static const char *const first[] = {"<|start|>", "<|channel|>", "<|message|>"};
	size_t end;
	int b = 0, part = 0, cut = final && n < HARMONY_HEAD_MAX;
	if (n >= HARMONY_HEAD_MAX) {
		n = HARMONY_HEAD_MAX;
		final = 1;
	}
	for (size_t i = 0; i < 3 && b <= 0; i++) {
		b = begins(s, n, final, first[i]);
		part |= b < 0;
	}
	if (b <= 0 && part)
		return 0;
	if (b <= 0 && (b = words_lead(s, n, final, cut)) <= 0)
		return b;
	*ret = (struct harmony_head){0};
	if (begins(s, n, 1, "<|message|>")) {
		ret->kind = HARMONY_ANSWER;
		ret->len = strlen("<|message|>");
		ret->whole = 1;
		return 1;
	}
	if (!words_end(s, n, final, &end, &ret->len))
		return 0;
	ret->whole = ret->len > 0;
	read_words(s, end, cut && end == n, ret);
	return 1;
}
