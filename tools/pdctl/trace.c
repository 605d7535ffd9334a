/* trace.c - `pdctl trace ID`: one request's way through all daemons, from their logs
 * (RUNDIR/logs/NAME.log, or RUNDIR/NAME.log).
 *
 * Every line with req=ID is an event. The bars come from the router's summary line
 * (event=request_done); the list shows each event with the time since the first. Logs are untrusted
 * text: lines that do not parse are skipped. */
#include "pdctl.h"

#include "util/err.h"
#include "util/log.h"
#include "util/mem.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EVENTS_MAX 10000
#define BAR_COLUMNS 44

struct event {
	uint64_t at_us; /* since 1970 */
	char daemon[64], name[64], *fields;
};

struct trace {
	char id[33];
	struct event *events;
	size_t n;
};

/* Finds the 32 hex digits in "chatcmpl-<hex>", "cmpl-<hex>-0", or a bare id with or without
 * dashes. */
static int find_id(const char *s, char out[33])
{
	struct reqid id;
	if (reqid_parse(s, &id) == 0) {
		snprintf(out, 33, "%016llx%016llx", (unsigned long long)id.hi, (unsigned long long)id.lo);
		return 1;
	}
	for (; *s; s++) {
		size_t n = strspn(s, "0123456789abcdefABCDEF");
		if (n == 32) {
			for (size_t i = 0; i < 32; i++)
				out[i] = s[i] >= 'A' && s[i] <= 'F' ? (char)(s[i] + 32) : s[i];
			out[32] = 0;
			return 1;
		}
		s += n ? n - 1 : 0;
	}
	return 0;
}

/* The value of key=... in a logfmt line, into out. */
static int field(const char *line, const char *key, char *out, size_t size)
{
	size_t n = strlen(key);
	for (const char *p = line; (p = strstr(p, key)); p += n) {
		if ((p != line && p[-1] != ' ') || p[n] != '=')
			continue;
		p += n + 1;
		size_t len = 0;
		if (*p == '"') {
			for (p++; *p && *p != '"'; p++) {
				p += *p == '\\' && p[1];
				if (len + 1 < size)
					out[len++] = *p;
			}
		} else {
			for (; *p && *p != ' ' && *p != '\n'; p++)
				if (len + 1 < size)
					out[len++] = *p;
		}
		out[len] = 0;
		return 1;
	}
	return 0;
}

static uint64_t stamp_us(const char *text)
{
	struct tm tm = {0};
	unsigned us = 0;
	if (sscanf(text, "%d-%d-%dT%d:%d:%d.%6uZ", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour,
	           &tm.tm_min, &tm.tm_sec, &us) != 7)
		return 0;
	tm.tm_year -= 1900;
	tm.tm_mon -= 1;
	time_t s = timegm(&tm);
	return s < 0 ? 0 : (uint64_t)s * 1000000 + us;
}

static void take_line(struct trace *t, const char *file, char *line)
{
	char text[64];
	struct event e = {0};
	if (t->n == EVENTS_MAX || !field(line, "ts", text, sizeof text) ||
	    !(e.at_us = stamp_us(text)) || !field(line, "event", e.name, sizeof e.name))
		return;
	if (!field(line, "name", e.daemon, sizeof e.daemon))
		snprintf(e.daemon, sizeof e.daemon, "%.*s", (int)(strlen(file) - 4), file);
	char *rest = strstr(line, " event=");
	rest = rest ? strchr(rest + 1, ' ') : NULL;
	e.fields = mem_strdup(rest ? rest + 1 : "");
	e.fields[strcspn(e.fields, "\n")] = 0;
	t->events = mem_grow(t->events, t->n + 1, sizeof *t->events);
	t->events[t->n++] = e;
}

static void read_log(struct trace *t, const char *dir, const char *file)
{
	char *path = mem_printf("%s/%s", dir, file), *want = mem_printf(" req=%s ", t->id),
		 *line = NULL;
	size_t size = 0;
	FILE *f = fopen(path, "re");
	while (f && getline(&line, &size, f) >= 0)
		if (strstr(line, want))
			take_line(t, file, line);
	if (f)
		fclose(f);
	free(line);
	free(path);
	free(want);
}

/* Returns the number of logs. */
static size_t read_dir(struct trace *t, const char *dir)
{
	size_t logs = 0;
	DIR *d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));) {
		size_t n = strlen(e->d_name);
		if (n > 4 && strcmp(e->d_name + n - 4, ".log") == 0) {
			read_log(t, dir, e->d_name);
			logs++;
		}
	}
	if (d)
		closedir(d);
	return logs;
}

static int by_time(const void *a, const void *b)
{
	const struct event *x = a, *y = b;
	return x->at_us != y->at_us ? (x->at_us > y->at_us) - (x->at_us < y->at_us)
	                            : strcmp(x->daemon, y->daemon);
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

static double number(const char *fields, const char *key)
{
	char text[64];
	return field(fields, key, text, sizeof text) ? strtod(text, NULL) : 0;
}

/* Places the stages on the request's time axis. The summary has durations: prepare, reserve and
 * prefill follow each other and end with the first token; the transfer runs beside prefill, from
 * the grant on; decode ends the request. */
static void bars_of(const char *fields, struct bar bars[STAGES])
{
	double queue = number(fields, "queue_us"), prepare = number(fields, "prepare_us"),
		   reserve = number(fields, "reserve_us");
	double prefill = number(fields, "prefill_us"), transfer = number(fields, "transfer_us"),
		   first = number(fields, "first_token_us");
	double decode = number(fields, "decode_us");
	bars[STAGE_QUEUE] = (struct bar){"queue", 0, queue};
	bars[STAGE_PREPARE] = (struct bar){"prepare", queue, prepare};
	bars[STAGE_RESERVE] = (struct bar){"reserve", queue + prepare, reserve};
	bars[STAGE_PREFILL] = (struct bar){"prefill", queue + prepare + reserve, prefill};
	bars[STAGE_TRANSFER] = (struct bar){"transfer", queue + prepare + reserve, transfer};
	bars[STAGE_FIRST] = (struct bar){"first token", 0, first};
	bars[STAGE_DECODE] = (struct bar){"decode", first, decode};
}

static const struct event *summary_of(const struct trace *t)
{
	for (size_t i = t->n; i-- > 0;)
		if (strcmp(t->events[i].name, "request_done") == 0)
			return &t->events[i];
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
	double total = number(e->fields, "total_us");
	bars_of(e->fields, bars);
	for (int i = 0; i < STAGES; i++)
		total = bars[i].from_us + bars[i].len_us > total ? bars[i].from_us + bars[i].len_us : total;
	field(e->fields, "prefill", prefill, sizeof prefill);
	field(e->fields, "decode", decode, sizeof decode);
	field(e->fields, "finish", finish, sizeof finish);
	text_us(text, sizeof text, number(e->fields, "total_us"));
	printf("%.0f prompt tokens (%.0f cached), %.0f generated in %s; prefill %s, decode %s, finish "
	       "%s\n\n",
	       number(e->fields, "prompt_tokens"), number(e->fields, "cached_tokens"),
	       number(e->fields, "output_tokens"), text, prefill, decode, finish);
	for (int i = 0; total > 0 && i < STAGES; i++)
		print_bar(&bars[i], total, i == STAGE_FIRST);
	putchar('\n');
}

static void print_events(const struct trace *t)
{
	struct table *table = table_new();
	static const char *const head[] = {"AT", "DAEMON", "EVENT", "FIELDS"};
	for (int i = 0; i < 4; i++)
		table_cell(table, "%s", head[i]);
	table_end_row(table);
	for (size_t i = 0; i < t->n; i++) {
		const struct event *e = &t->events[i];
		table_cell(table, "%.3f ms", (double)(e->at_us - t->events[0].at_us) / 1e3);
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

static void trace_json(const struct trace *t)
{
	const struct event *done = summary_of(t);
	json_t *events = json_array();
	for (size_t i = 0; i < t->n; i++) {
		const struct event *e = &t->events[i];
		json_array_append_new(events, json_pack("{s:I,s:s,s:s,s:s%}", "at_us",
		                                        (json_int_t)(e->at_us - t->events[0].at_us),
		                                        "daemon", e->daemon, "event", e->name, "fields",
		                                        e->fields, strlen(e->fields)));
	}
	json_t *j = json_pack("{s:s,s:b,s:o,s:o}", "request", t->id, "done", done != NULL, "stages",
	                      stages_json(done), "events", events);
	print_json(j);
	json_decref(j);
}

int trace_command(const struct options *o, char *const *args, size_t n_args)
{
	struct trace t = {0};
	if (!n_args || !find_id(args[0], t.id)) {
		fprintf(stderr, "pdctl: trace needs a request id: 32 hexadecimal digits, or an answer's id "
		                "that contains them (chatcmpl-..., cmpl-...)\n");
		return EXIT_USAGE;
	}
	char *logs = mem_printf("%s/logs", o->rundir);
	size_t files = read_dir(&t, logs) + read_dir(&t, o->rundir);
	free(logs);
	if (!files)
		fprintf(stderr, "pdctl: no logs in %s/logs; name the run directory with -r\n", o->rundir);
	else if (!t.n)
		fprintf(stderr, "pdctl: none of the %zu logs in %s has request %s\n", files, o->rundir,
		        t.id);
	if (t.n) {
		qsort(t.events, t.n, sizeof *t.events, by_time);
		const struct event *done = summary_of(&t);
		if (o->json) {
			trace_json(&t);
		} else {
			printf("request %s: ", t.id);
			if (done)
				print_summary(done);
			else
				puts("not finished, or its router's log is missing\n");
			print_events(&t);
		}
	}
	for (size_t i = 0; i < t.n; i++)
		free(t.events[i].fields);
	free(t.events);
	return t.n ? EXIT_DONE : files ? EXIT_REFUSED : EXIT_UNREACHABLE;
}
