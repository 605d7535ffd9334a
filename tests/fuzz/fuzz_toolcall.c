/* fuzz_toolcall.c - calls of tools in any text. The first byte says which format, the second how
 * the text is cut: what comes out of the pieces must be what comes out of the whole, calls one
 * after the other, and no more text than five bytes for each that went in (a control character
 * becomes six) and what a call itself needs. */
#include "tests/fuzz/fuzz.h"
#include "text/toolcall.h"
#include "util/buf.h"

#include <stdlib.h>
#include <string.h>

static const char TOOLS[] =
	"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},"
	"\"u\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"string\"}]},\"o\":{\"type\":\"object\"}}}}},"
	"{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";
static const char *const formats[] = {"hermes",   "qwen3_coder",  "llama3_json", "mistral",
                                      "deepseek", "deepseek_v32", "glm",         "kimi_k2",
                                      "granite",  "cohere",       "pythonic",    "harmony",
                                      "generic"};

struct seen {
	struct buf text;
	int open;
	unsigned calls;
};

static void sink(void *arg, const struct toolcall_event *e)
{
	struct seen *s = arg;
	if (s->open != (e->kind == TOOLCALL_ARGUMENTS || e->kind == TOOLCALL_END) ||
	    (e->kind != TOOLCALL_END && !e->len))
		abort();
	if (e->kind == TOOLCALL_BEGIN &&
	    (e->index != s->calls++ || !toolcall_name_good(e->text, e->len) || e->text[e->len]))
		abort();
	if (e->kind == TOOLCALL_BEGIN || e->kind == TOOLCALL_END) {
		s->open = e->kind == TOOLCALL_BEGIN;
		buf_addc(&s->text, s->open ? '\1' : '\2');
	}
	buf_add(&s->text, e->text, e->len);
}

static void run(const char *format, const struct toolcall_tools *tools, const uint8_t *data,
                size_t size, unsigned cuts, struct seen *s)
{
	struct toolcall *t = toolcall_new(toolcall_format_find(format), tools, NULL, sink, s);
	memset(s, 0, sizeof *s);
	buf_init(&s->text, 0);
	for (size_t at = 0, n; at < size; at += n) {
		n = cuts ? 1 + (cuts = cuts * 1103515245u + 12345u) / 65536u % 23 : size;
		n = at + n > size ? size - at : n;
		toolcall_feed(t, (const char *)data + at, n);
	}
	toolcall_finish(t, (int)(size & 1));
	if (s->open || toolcall_count(t) != s->calls || s->calls > TOOLCALL_COUNT_MAX ||
	    s->text.len > 6 * size + 16 * s->calls)
		abort();
	if (s->calls)
		fuzz_accepted();
	toolcall_destroy(&t);
}

FUZZ(toolcall, 1 << 13)
{
	struct seen whole, parts;
	if (size < 2)
		return 0;
	json_t *o = json_loads(TOOLS, 0, NULL);
	struct toolcall_tools *tools = toolcall_tools_new(o);
	const char *format = formats[data[0] % (sizeof formats / sizeof *formats)];
	run(format, tools, data + 2, size - 2, 0, &whole);
	run(format, tools, data + 2, size - 2, data[1] + 1u, &parts);
	if (whole.text.len != parts.text.len ||
	    (whole.text.len && memcmp(whole.text.data, parts.text.data, whole.text.len) != 0))
		abort();
	buf_fini(&whole.text);
	buf_fini(&parts.text);
	toolcall_tools_destroy(&tools);
	json_decref(o);
	return 0;
}
