/* jinja.h - the template language Jinja, as chat templates use it: text and JSON in, text out.
 *
 * What it does, byte for byte, is what Jinja2 3.1 does in the environment of Hugging Face's
 * apply_chat_template: the immutable sandbox, trim_blocks and lstrip_blocks on, autoescape off,
 * loop controls, a `generation` block that renders its body, `tojson` as Python's
 * json.dumps(ensure_ascii=False), raise_exception and strftime_now. Left out: everything that needs
 * other templates (include, import, extends) and integers beyond 64 bits.
 *
 * A template is immutable once made and may be rendered by several threads at once. Whatever
 * template and data say, a rendering ends: steps, memory, output, depth, range() and repetition
 * are bounded, and each bound has an error that names it. */
#ifndef JINJA_JINJA_H
#define JINJA_JINJA_H

#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define JINJA_TEMPLATE_BYTES_MAX (4u << 20)

struct jinja_template;
struct quota;

struct jinja_run {
	/* objects whose members are the variables; a later layer wins. Only read, and only during
	 * the call */
	const json_t *const *layers;
	size_t n_layers;
	int64_t now_s; /* strftime_now: seconds since 1970, shown in the local zone */
	/* 0: JINJA_STEPS_MAX. A step is an expression or statement, or some 64 bytes worked on */
	uint64_t steps_max;
	size_t memory_max; /* bytes of values and of text under way; 0: JINJA_MEMORY_MAX */
	/* that these bytes are also taken from, till the end of the rendering; NULL: none */
	struct quota *quota;
};

#define JINJA_STEPS_MAX 50000000u
#define JINJA_MEMORY_MAX (64u << 20)

/* Copies the text. ERR_INVALID: "line N: what is wrong". */
int jinja_template_new(const char *text, size_t len, struct jinja_template **ret_t,
                       struct err *err);
void jinja_template_destroy(struct jinja_template **t);

/* Appends to out (whose limit bounds the output). ERR_INVALID: the template's raise_exception, then
 * err->text is its text alone, or "line N: ..." with what Python would say; ERR_FULL: a bound
 * was reached, which the text names. After an error what was appended is to be thrown away. */
int jinja_render(const struct jinja_template *t, const struct jinja_run *in, struct buf *out,
                 struct err *err);

#endif
