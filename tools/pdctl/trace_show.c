/* trace_show.c - requests as text and as JSON: the stages of each as bars, from the router's
 * summary line (event=request_done), then all its events. */
#include "pdctl.h"
#include "trace.h"

#include <string.h>

#define BAR_COLUMNS 44

/* The events of one request. */
struct part {
	const char *id;
	const struct event *events;
	size_t n;
};

static struct part part_of(const struct trace *t, size_t request)
{
	struct part p = {.id = t->ids[request]};
	for (size_t i = 0; i < t->n; i++) {
		if (t->events[i].request != request)
			continue;
		p.events = p.n++ ? p.events : &t->events[i];
	}
	return p;
}

/* --- the summary's bars -------------------------------------------------- */

enum {
	STAGE_QUEUE,
	STAGE_PREPARE,
	STAGE_RESERVE,
	STAGE_PREFILL,
	STAGE_TRANSFER,
	STAGE_FIRST,
	STAGE_DECODE,
	STAGES
};

struct bar {
	const char *name;
	double from_us, len_us;
};

/* Places the stages on the request's time axis. The summary has durations: prepare, reserve and
 * prefill follow each other and end with the first token; the transfer runs beside prefill, from
 * the grant on; decode ends the request. */
static void bars_of(const char *fields, struct bar bars[STAGES])
{
	double queue = trace_number(fields, "queue_us"), prepare = trace_number(fields, "prepare_us"),
		   reserve = trace_number(fields, "reserve_us");
	double prefill = trace_number(fields, "prefill_us"),
		   transfer = trace_number(fields, "transfer_us"),
		   first = trace_number(fields, "first_token_us");
	double decode = trace_number(fields, "decode_us");
	bars[STAGE_QUEUE] = (struct bar){"queue", 0, queue};
	bars[STAGE_PREPARE] = (struct bar){"prepare", queue, prepare};
	bars[STAGE_RESERVE] = (struct bar){"reserve", queue + prepare, reserve};
	bars[STAGE_PREFILL] = (struct bar){"prefill", queue + prepare + reserve, prefill};
	bars[STAGE_TRANSFER] = (struct bar){"transfer", queue + prepare + reserve, transfer};
	bars[STAGE_FIRST] = (struct bar){"first token", 0, first};
	bars[STAGE_DECODE] = (struct bar){"decode", first, decode};
}

static const struct event *summary_of(const struct part *p)
{
	for (size_t i = p->n; i-- > 0;)
		if (strcmp(p->events[i].name, "request_done") == 0)
			return &p->events[i];
	return NULL;
}

/* The columns that the stage covers: at least one if it took any time. */
static void columns_of(const struct bar *b, double total, int *ret_from, int *ret_len)
{
	int from = (int)(b->from_us / total * BAR_COLUMNS),
		to = (int)((b->from_us + b->len_us) / total * BAR_COLUMNS + 0.5);
	if (from > BAR_COLUMNS - 1)
		from = BAR_COLUMNS - 1;
	if (to > BAR_COLUMNS)
		to = BAR_COLUMNS;
	*ret_from = from;
	*ret_len = to > from ? to - from : b->len_us > 0;
}

static void print_bar(const struct bar *b, double total, int is_mark)
{
	char time[32], line[BAR_COLUMNS + 1];
	int from, len;
	columns_of(b, total, &from, &len);
	memset(line, '.', BAR_COLUMNS);
	line[BAR_COLUMNS] = 0;
	if (is_mark && b->len_us > 0)
		line[from + len - 1 < BAR_COLUMNS ? from + len - 1 : BAR_COLUMNS - 1] = '|';
	else
		memset(line + from, '#', (size_t)len);
	text_us(time, sizeof time, b->len_us);
	printf("  %-12s %10s  %s\n", b->name, time, line);
}

static void print_summary(const struct event *e)
{
	struct bar bars[STAGES];
	char text[64], prefill[64] = "-", decode[64] = "-", finish[64] = "?";
	double total = trace_number(e->fields, "total_us");
	bars_of(e->fields, bars);
	for (int i = 0; i < STAGES; i++)
		total = bars[i].from_us + bars[i].len_us > total ? bars[i].from_us + bars[i].len_us : total;
	trace_field(e->fields, "prefill", prefill, sizeof prefill);
	trace_field(e->fields, "decode", decode, sizeof decode);
	trace_field(e->fields, "finish", finish, sizeof finish);
	text_us(text, sizeof text, trace_number(e->fields, "total_us"));
	printf("%.0f prompt tokens (%.0f cached), %.0f generated in %s; prefill %s, decode %s, finish "
	       "%s\n\n",
	       trace_number(e->fields, "prompt_tokens"), trace_number(e->fields, "cached_tokens"),
	       trace_number(e->fields, "output_tokens"), text, prefill, decode, finish);
	for (int i = 0; total > 0 && i < STAGES; i++)
		print_bar(&bars[i], total, i == STAGE_FIRST);
	putchar('\n');
}

static void print_events(const struct part *p)
{
	struct table *table = table_new();
	static const char *const head[] = {"AT", "DAEMON", "EVENT", "FIELDS"};
	for (int i = 0; i < 4; i++)
		table_cell(table, "%s", head[i]);
	table_end_row(table);
	for (size_t i = 0; i < p->n; i++) {
		const struct event *e = &p->events[i];
		table_cell(table, "%.3f ms", (double)(e->at_us - p->events[0].at_us) / 1e3);
		table_cell(table, "%s", e->daemon);
		table_cell(table, "%s", e->name);
		table_cell(table, "%s", strcmp(e->name, "request_done") == 0 ? "(above)" : e->fields);
		table_end_row(table);
	}
	table_print(&table);
}

/* --- JSON ---------------------------------------------------------------- */

static json_t *stages_json(const struct event *e)
{
	struct bar bars[STAGES];
	json_t *list = json_array();
	if (!e)
		return list;
	bars_of(e->fields, bars);
	for (int i = 0; i < STAGES; i++)
		json_array_append_new(list, json_pack("{s:s,s:f,s:f}", "stage", bars[i].name, "from_us",
		                                      bars[i].from_us, "us", bars[i].len_us));
	return list;
}

static json_t *part_json(const struct part *p)
{
	const struct event *done = summary_of(p);
	json_t *events = json_array();
	for (size_t i = 0; i < p->n; i++) {
		const struct event *e = &p->events[i];
		json_array_append_new(events,
		                      json_pack("{s:I,s:s,s:s,s:s}", "at_us",
		                                (json_int_t)(e->at_us - p->events[0].at_us), "daemon",
		                                e->daemon, "event", e->name, "fields", e->fields));
	}
	return json_pack("{s:s,s:b,s:o,s:o}", "request", p->id, "done", done != NULL, "stages",
	                 stages_json(done), "events", events);
}

void trace_print_json(const struct trace *t, int as_list)
{
	json_t *list = json_array();
	for (size_t i = 0; i < t->n_ids; i++) {
		struct part p = part_of(t, i);
		if (p.n)
			json_array_append_new(list, part_json(&p));
	}
	print_json(as_list ? list : json_array_get(list, 0));
	json_decref(list);
}

void trace_print(const struct trace *t)
{
	int n = 0;
	for (size_t i = 0; i < t->n_ids; i++) {
		struct part p = part_of(t, i);
		const struct event *done = summary_of(&p);
		if (!p.n)
			continue;
		printf("%srequest %s: ", n++ ? "\n" : "", p.id);
		if (done)
			print_summary(done);
		else
			puts("not finished, or its router's log is missing\n");
		print_events(&p);
	}
}
