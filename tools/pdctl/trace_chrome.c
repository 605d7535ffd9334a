/* trace_chrome.c - requests in the JSON format of chrome://tracing and Perfetto: a process for each
 * daemon, in it a thread for each request (and one for what runs beside its other spans). */
#include "pdctl.h"
#include "trace.h"

#define ROWS 2

static size_t thread_of(size_t request, unsigned row)
{
	return request * ROWS + row + 1;
}

/* A new event; its thread is that of the row. */
static json_t *add(json_t *list, const char *ph, const char *name, size_t lane, size_t thread)
{
	json_t *j = json_pack("{s:s,s:s,s:I,s:I}", "ph", ph, "name", name, "pid", (json_int_t)lane + 1,
	                      "tid", (json_int_t)thread);
	json_array_append_new(list, j);
	return j;
}

static void add_name(json_t *list, const char *kind, size_t lane, size_t thread, const char *name)
{
	json_t *j = add(list, "M", kind, lane, thread);
	json_object_set_new(j, "args", json_pack("{s:s}", "name", name));
}

static void add_spans(json_t *list, const struct trace_picture *p)
{
	for (size_t i = 0; i < p->n_spans; i++) {
		const struct trace_span *s = &p->spans[i];
		size_t thread = thread_of(s->request, s->row);
		if (s->kind == SPAN_WHOLE || (i && s->row && !p->spans[i - 1].row))
			add_name(list, "thread_name", s->lane, thread, p->trace->ids[s->request]);
		json_t *j = add(list, "X", s->kind == SPAN_WHOLE ? "request" : s->name, s->lane, thread);
		json_object_set_new(j, "cat", json_string("span"));
		json_object_set_new(j, "ts", json_real(s->from_us));
		json_object_set_new(j, "dur", json_real(s->to_us - s->from_us));
		json_object_set_new(j, "args",
		                    json_pack("{s:s,s:s}", "request", p->trace->ids[s->request], "fields",
		                              s->kind == SPAN_WHOLE ? "" : s->of->fields));
	}
}

static void add_instants(json_t *list, const struct trace_picture *p)
{
	for (size_t i = 0; i < p->trace->n; i++) {
		const struct event *e = &p->trace->events[i];
		json_t *j = add(list, "i", e->name, e->lane, thread_of(e->request, 0));
		json_object_set_new(j, "cat", json_string("event"));
		json_object_set_new(j, "ts", json_real(trace_picture_at(p, e)));
		json_object_set_new(j, "s", json_string("t"));
		json_object_set_new(j, "args", json_pack("{s:s}", "fields", e->fields));
	}
}

static void add_arrows(json_t *list, const struct trace_picture *p)
{
	for (size_t i = 0; i < p->n_arrows; i++) {
		const struct arrow *a = &p->arrows[i];
		size_t thread = thread_of(a->request, 0);
		json_t *from = add(list, "s", a->name, a->from_lane, thread),
			   *to = add(list, "f", a->name, a->to_lane, thread);
		json_object_set_new(from, "ts", json_real(a->from_us));
		json_object_set_new(to, "ts", json_real(a->to_us));
		json_object_set_new(to, "bp", json_string("e"));
		json_object_set_new(from, "cat", json_string("sent"));
		json_object_set_new(to, "cat", json_string("sent"));
		json_object_set_new(from, "id", json_integer((json_int_t)i + 1));
		json_object_set_new(to, "id", json_integer((json_int_t)i + 1));
	}
}

int trace_write_chrome(const struct trace_picture *p, const char *path)
{
	FILE *f = trace_file_open(path);
	if (!f)
		return -1;
	json_t *list = json_array();
	for (size_t i = 0; i < p->n_lanes; i++) {
		add_name(list, "process_name", i, 0, p->lanes[i].daemon);
		json_object_set_new(add(list, "M", "process_sort_index", i, 0), "args",
		                    json_pack("{s:I}", "sort_index", (json_int_t)i));
	}
	add_spans(list, p);
	add_instants(list, p);
	add_arrows(list, p);
	json_t *all = json_pack("{s:s,s:{s:f},s:o}", "displayTimeUnit", "ms", "otherData",
	                        "begin_us_since_1970", p->first_us - p->before_us, "traceEvents", list);
	json_dumpf(all, f, JSON_COMPACT | JSON_PRESERVE_ORDER);
	json_decref(all);
	return trace_file_close(f, path);
}
