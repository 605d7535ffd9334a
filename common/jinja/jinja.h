/* jinja.h - the template language Jinja as chat templates use it: renders a template with JSON
 * variables to text.
 *
 * Output is byte for byte that of Jinja2 3.1 in the environment of Hugging Face's
 * apply_chat_template: the immutable sandbox, trim_blocks and lstrip_blocks on, autoescape off,
 * loop controls, a `generation` block that renders its body, `tojson` as Python's
 * json.dumps(ensure_ascii=False), raise_exception and strftime_now. Not supported: everything that
 * needs other templates (include, import, extends) and integers beyond 64 bits.
 *
 * A template is immutable and may be rendered by several threads at once. Every rendering ends,
 * whatever the template and data: steps, memory, output, depth, range() and repetition are bounded,
 * and each limit has an error that names it. */
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
	/* objects whose members are the variables; later layers win. Read only, during the call. */
	const json_t *const *layers;
	size_t n_layers;
	int64_t now_s; /* for strftime_now: seconds since 1970, shown in the local time zone */
	/* 0: JINJA_STEPS_MAX. A step is an expression, a statement, or about 64 bytes processed. */
	uint64_t steps_max;
	size_t memory_max; /* bytes of values and of text being built; 0: JINJA_MEMORY_MAX */
	/* also accounts for these bytes until the rendering ends; NULL: no limit */
	struct quota *quota;
};

#define JINJA_STEPS_MAX 50000000u
#define JINJA_MEMORY_MAX (64u << 20)

/* Copies the text. ERR_INVALID: "line N: ..." with the cause. */
int jinja_template_new(const char *text, size_t len, struct jinja_template **ret_t,
                       struct err *err);
void jinja_template_destroy(struct jinja_template **t);

/* Appends to out, whose limit bounds the output. ERR_INVALID: after raise_exception, err->text is
 * exactly the template's text; otherwise "line N: ..." with Python's message. ERR_FULL: a limit was
 * reached, which err names. After an error discard what was appended. */
int jinja_render(const struct jinja_template *t, const struct jinja_run *in, struct buf *out,
                 struct err *err);

#endif
