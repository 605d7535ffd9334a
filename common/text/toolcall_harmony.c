/* toolcall_harmony.c - calls in the harmony format, see harmony.h. */
#include "text/harmony.h"
#include "text/toolcall_int.h"

#include <string.h>

/* Parses a head whose recipient is a function, and its JSON object. A message that ends without a
 * body has the arguments {}; if the answer was cut off there, the call has no arguments. */
enum tc_go tc_harmony_open(struct toolcall *t)
{
	size_t at = t->at - (t->is_bare ? 0 : strlen(t->f->triggers[t->trigger])), len = 0;
	struct harmony_head h;
	struct tc_cursor c;
	int r = harmony_head_read(t->in.data + at, t->in.len - at, t->final, &h);
	if (r == 0)
		return TC_MORE;
	if (r < 0 || h.kind != HARMONY_CALL)
		return tc_break(t, r < 0 ? at + 1 : at + h.len);
	tc_cursor_init(&c, t, at + h.len);
	tc_cursor_space(&c);
	if (tc_cursor_peek(&c) == '{')
		return tc_begin_object(t, &c, at + h.name, h.name_len);
	enum harmony_mark m = harmony_mark_at(t->in.data + c.at, t->in.len - c.at, t->final, &len);
	if (!t->final && (c.part || m == HARMONY_PART))
		return TC_MORE;
	if ((m != HARMONY_ENDS && c.at < t->in.len) ||
	    !tc_take_name(t, t->in.data + at + h.name, h.name_len))
		return tc_break(t, at + h.len);
	tc_begin(t);
	if (m != HARMONY_ENDS && !t->ended)
		return tc_break(t, c.at);
	tc_give(t, "{}", 2);
	tc_end(t);
	t->start = t->at = c.at;
	t->step = tc_close;
	return TC_GO;
}
