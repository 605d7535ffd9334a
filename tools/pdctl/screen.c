/* screen.c - the figures of `pdctl top` as lines, cut to the terminal's size.
 *
 * Order within a table: what is in trouble first, so that it is never cut; then by name, pairs by
 * their traffic. A line is at most as wide as the terminal, and no line feed follows the last one,
 * so that nothing scrolls. */
#include "term.h"
#include "top.h"

#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HEAD_LINES 5
#define WIDE 105 /* columns from which workers have more figures */

struct text {
	char s[40];
};

static const json_t *at(const json_t *o, const char *key)
{
	return json_object_get(o, key);
}

static const char *word(const json_t *o, const char *key)
{
	const char *s = json_string_value(at(o, key));
	return s && *s ? s : "-";
}

static struct text count(const json_t *v)
{
	struct text t = {"-"};
	if (json_is_number(v))
		snprintf(t.s, sizeof t.s, "%.0f", json_number_value(v));
	return t;
}

static struct text rate(const json_t *v)
{
	struct text t = {"-"};
	double x = json_number_value(v);
	if (json_is_number(v))
		snprintf(t.s, sizeof t.s, "%.*f", x > 0 && x < 9.95 ? 1 : 0, x);
	return t;
}

static struct text percent(const json_t *v)
{
	struct text t = {"-"};
	if (json_is_number(v))
		snprintf(t.s, sizeof t.s, "%.0f %%", 100 * json_number_value(v));
	return t;
}

static struct text duration(const json_t *v)
{
	struct text t = {"-"};
	if (json_is_number(v))
		text_us(t.s, sizeof t.s, json_number_value(v));
	return t;
}

static struct text size(const json_t *v)
{
	struct text t = {"-"};
	if (json_is_number(v))
		text_bytes(t.s, sizeof t.s, json_number_value(v));
	return t;
}

static int in_trouble(const json_t *row)
{
	const char *state = word(row, "state");
	return strcmp(state, "running") != 0 && strcmp(state, "up") != 0;
}

/* --- the lines above the tables ----------------------------------------------- */

static void quantile_pair(struct buf *out, const char *name, const json_t *q)
{
	buf_printf(out, "%-9s p50 %-8s  p99 %-8s", name, duration(at(q, "p50")).s,
	           duration(at(q, "p99")).s);
}

/* "2 of 6 daemons are not running" */
static void add_state(const json_t *view, struct buf *out)
{
	static const char *const lists[] = {"workers", "daemons"};
	const json_t *row;
	size_t i, all = 0, bad = 0;
	for (size_t k = 0; k < 2; k++)
		json_array_foreach(at(view, lists[k]), i, row) {
			all++;
			bad += (size_t)in_trouble(row);
		}
	if (bad)
		buf_printf(out, "%zu of %zu daemons not running", bad, all);
	else
		buf_printf(out, "%zu daemons", all);
}

/* Waiting requests by what they wait for; a mixed worker has one queue for both. */
static void add_queues(const json_t *view, struct buf *out)
{
	static const char *const queues[][2] = {{"waiting_prefill", "prefill"},
	                                        {"waiting_decode", "decode"},
	                                        {"waiting_mixed", "mixed"}};
	const char *between = ", waiting: ";
	for (size_t i = 0; i < 3; i++) {
		if (json_is_null(at(view, queues[i][0])))
			continue;
		buf_printf(out, "%s%s %s", between, queues[i][1], count(at(view, queues[i][0])).s);
		between = ", ";
	}
}

static void add_head(const json_t *view, const struct screen *s, struct buf *out)
{
	time_t now = (time_t)json_integer_value(at(view, "time"));
	char clock[16];
	struct tm tm;
	strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&now, &tm));
	buf_printf(out, "pdserve  %s  every %g s  ", clock, json_number_value(at(view, "interval_s")));
	add_state(view, out);
	buf_printf(out, "%s\n", s->keys ? "  (q ends)" : "");
	buf_printf(out, "requests  %s running", count(at(view, "running")).s);
	add_queues(view, out);
	buf_printf(out, "; %s/s done, %s/s failed\n", rate(at(view, "done_per_s")).s,
	           rate(at(view, "failed_per_s")).s);
	buf_printf(out, "tokens/s  %s in (computed), %s out  prefix hits %s, since start %s\n",
	           rate(at(view, "in_per_s")).s, rate(at(view, "out_per_s")).s,
	           percent(at(view, "prefix_hit_rate")).s,
	           percent(at(view, "prefix_hit_rate_total")).s);
	quantile_pair(out, "TTFT", at(view, "ttft_us"));
	quantile_pair(out, "   ITL", at(view, "itl_us"));
	char moved[96];
	snprintf(moved, sizeof moved, "%s open, %s/s", count(at(view, "transfers")).s,
	         size(at(view, "transfer_bytes_per_s")).s);
	buf_printf(out, "\nKV moved  %-26s", moved);
	quantile_pair(out, "   tail", at(view, "tail_us"));
	buf_addc(out, '\n');
}

/* --- tables ---------------------------------------------------------------- */

/* Heads are padded so that columns stay where they are while numbers change. */
static void head_cells(struct table *t, const char *const *names, const int *widths, size_t n)
{
	for (size_t i = 0; i < n; i++)
		table_cell(t, "%*s", widths[i], names[i]);
	table_end_row(t);
}

static void worker_head(struct table *t, int wide)
{
	static const char *const names[] = {"WORKER", "ROLE",   "STATE",    "RUN",   "WAIT",
	                                    "FREE",   "OF",     "IN/S",     "OUT/S", "FOR",
	                                    "HITS",   "CACHED", "PREEMPTED"};
	static const int widths[] = {-9, -7, -9, 3, 4, 5, 5, 5, 5, 6, 5, 6, 9};
	head_cells(t, names, widths, wide ? 13 : 10);
}

/* For how long a daemon has been running, or not. */
static struct text life(const json_t *row)
{
	const json_t *since = at(row, "since_us");
	struct text t = {"-"};
	double s = json_number_value(json_is_number(since) ? since : at(row, "uptime_us")) / 1e6;
	if (s > 0)
		snprintf(t.s, sizeof t.s,
		         s < 120    ? "%.0f s"
		         : s < 7200 ? "%.0f min"
		                    : "%.0f h",
		         s < 120    ? s
		         : s < 7200 ? s / 60
		                    : s / 3600);
	return t;
}

static void worker_cells(struct table *t, const json_t *row, int wide)
{
	table_cell(t, "%s", word(row, "name"));
	table_cell(t, "%s", word(row, "role"));
	table_cell(t, "%s", word(row, "state"));
	table_cell(t, "%s", count(at(row, "running")).s);
	table_cell(t, "%s", count(at(row, "waiting")).s);
	table_cell(t, "%s", count(at(row, "blocks_free")).s);
	table_cell(t, "%s", count(at(row, "blocks")).s);
	table_cell(t, "%s", rate(at(row, "in_per_s")).s);
	table_cell(t, "%s", rate(at(row, "out_per_s")).s);
	table_cell(t, "%s", life(row).s);
	if (wide) {
		table_cell(t, "%s", percent(at(row, "hit_rate")).s);
		table_cell(t, "%s", count(at(row, "blocks_cached")).s);
		table_cell(t, "%s", count(at(row, "preemptions")).s);
	}
	table_end_row(t);
}

static void daemon_head(struct table *t, int wide)
{
	static const char *const names[] = {"DAEMON", "STATE", "FOR", "WHAT IT DOES"};
	static const int widths[] = {-9, -9, 6, 0};
	(void)wide;
	head_cells(t, names, widths, 4);
}

static void daemon_cells(struct table *t, const json_t *row, int wide)
{
	struct buf what;
	(void)wide;
	buf_init(&what, 0);
	if (at(row, "requests"))
		buf_printf(&what, "requests %s, connections %s, workers %s, retries %s",
		           count(at(row, "requests")).s, count(at(row, "connections")).s,
		           count(at(row, "workers")).s, count(at(row, "retries")).s);
	else if (at(row, "open_transfers"))
		buf_printf(&what, "open %s, moved %s", count(at(row, "open_transfers")).s,
		           size(at(row, "bytes")).s);
	else if (at(row, "blocks"))
		buf_printf(&what, "blocks %s, %s of %s, hits %s, misses %s", count(at(row, "blocks")).s,
		           size(at(row, "bytes")).s, size(at(row, "capacity_bytes")).s,
		           count(at(row, "hits")).s, count(at(row, "misses")).s);
	table_cell(t, "%s", word(row, "name"));
	table_cell(t, "%s", word(row, "state"));
	table_cell(t, "%s", life(row).s);
	table_cell(t, "%s", what.len ? what.data : "");
	table_end_row(t);
	buf_fini(&what);
}

static void pair_head(struct table *t, int wide)
{
	static const char *const names[] = {"FROM", "TO",    "MOVES/S", "BYTES/S",
	                                    "TAIL", "MOVES", "BYTES"};
	static const int widths[] = {-9, -9, 7, 10, 8, 9, 10};
	(void)wide;
	head_cells(t, names, widths, 7);
}

static void pair_cells(struct table *t, const json_t *row, int wide)
{
	(void)wide;
	table_cell(t, "%s", word(row, "from"));
	table_cell(t, "%s", word(row, "to"));
	table_cell(t, "%s", rate(at(row, "transfers_per_s")).s);
	table_cell(t, "%s", size(at(row, "bytes_per_s")).s);
	table_cell(t, "%s", duration(at(row, "tail_us")).s);
	table_cell(t, "%s", count(at(row, "transfers")).s);
	table_cell(t, "%s", size(at(row, "bytes")).s);
	table_end_row(t);
}

static int by_trouble(const void *a, const void *b)
{
	const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
	int bad = in_trouble(y) - in_trouble(x), role = strcmp(word(y, "role"), word(x, "role"));
	return bad ? bad : role ? role : strverscmp(word(x, "name"), word(y, "name"));
}

static int by_traffic(const void *a, const void *b)
{
	static const char *const keys[] = {"bytes_per_s", "bytes"};
	for (size_t i = 0; i < 2; i++) {
		double x = json_number_value(at(*(json_t *const *)a, keys[i])),
			   y = json_number_value(at(*(json_t *const *)b, keys[i]));
		if (x != y)
			return x < y ? 1 : -1;
	}
	return 0;
}

static const struct part {
	const char *list;
	int (*order)(const void *a, const void *b);
	void (*head)(struct table *t, int wide);
	void (*cells)(struct table *t, const json_t *row, int wide);
	unsigned share, least; /* of the lines for rows if not all fit: percent, number */
} parts[] = {
	{"workers", by_trouble, worker_head, worker_cells, 100, 3},
	{"daemons", by_trouble, daemon_head, daemon_cells, 25, 3},
	{"pairs", by_traffic, pair_head, pair_cells, 25, 2},
};
#define PARTS (sizeof parts / sizeof *parts)

/* How many lines the rows of each part get; its head and the empty line before it not counted. */
static void share_lines(const json_t *view, unsigned rows, size_t got[PARTS])
{
	size_t left = rows > HEAD_LINES ? rows - HEAD_LINES : 0, lines;
	for (size_t i = 0; i < PARTS; i++) {
		got[i] = json_array_size(at(view, parts[i].list));
		left -= got[i] && left > 2 ? 2 : 0;
	}
	if (!rows)
		return;
	lines = left;
	/* the last ones are bounded first, so the workers have what is left */
	for (size_t done = 0; done < PARTS; done++) {
		size_t i = PARTS - 1 - done;
		size_t most = lines * parts[i].share / 100, others = 0;
		for (size_t k = 0; k < i; k++)
			others += got[k];
		if (others + got[i] > left) { /* not all fit */
			most = most > parts[i].least ? most : parts[i].least;
			most = left > others && left - others > most ? left - others : most;
			got[i] = got[i] < most ? got[i] : most;
		}
		got[i] = got[i] < left ? got[i] : left;
		left -= got[i];
	}
}

static void add_part(const json_t *view, const struct part *p, size_t lines, int wide,
                     struct buf *out)
{
	const json_t *list = at(view, p->list);
	size_t n = json_array_size(list), shown = n > lines ? lines - (lines > 0) : n;
	const json_t **rows = mem_zalloc((n + 1) * sizeof *rows);
	char *text = NULL;
	size_t len = 0;
	for (size_t i = 0; i < n; i++)
		rows[i] = json_array_get(list, i);
	qsort(rows, n, sizeof *rows, p->order);
	struct table *t = table_new();
	p->head(t, wide);
	for (size_t i = 0; i < shown; i++)
		p->cells(t, rows[i], wide);
	FILE *f = open_memstream(&text, &len);
	if (f) {
		table_write(&t, f);
		fclose(f);
		buf_printf(out, "\n%s", text);
	}
	if (shown < n)
		buf_printf(out, "... %zu more\n", n - shown);
	free(text);
	free(rows);
}

/* --- lines ------------------------------------------------------------------- */

/* The titles, and what is in trouble. */
static const char *style_of(const char *line, int number)
{
	static const char *const bad[] = {"down",    "stopped", "no answer",
	                                  "no link", "refused", "stuck"};
	if (number == 0 || strncmp(line, "WORKER ", 7) == 0 || strncmp(line, "DAEMON ", 7) == 0 ||
	    strncmp(line, "FROM ", 5) == 0)
		return "\033[1m";
	for (size_t i = 0; i < sizeof bad / sizeof *bad && number > HEAD_LINES; i++) {
		const char *s = strstr(line, bad[i]);
		if (s && s > line && s[-1] == ' ' && s[strlen(bad[i])] == ' ')
			return "\033[31m";
	}
	return "";
}

static void put_line(struct buf *out, const char *line, size_t n, int number,
                     const struct screen *s)
{
	struct buf safe;
	size_t width = 0, fits;
	buf_init(&safe, 0);
	term_add_safe(&safe, line, n);
	while (safe.len && safe.data[safe.len - 1] == ' ')
		safe.data[--safe.len] = 0;
	const char *text = safe.len ? safe.data : "", *style = s->colour ? style_of(text, number) : "";
	fits = s->columns ? term_fit(text, s->columns, &width) : safe.len;
	buf_adds(out, style);
	buf_add(out, text, fits);
	buf_adds(out, *style ? "\033[0m" : "");
	if (s->moves && width < s->columns)
		buf_adds(out, "\033[K");
	buf_fini(&safe);
}

static void put_lines(struct buf *out, const char *text, const struct screen *s)
{
	unsigned i = 0;
	for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, i++) {
		if (s->rows && i == s->rows)
			break;
		if (i && s->moves)
			buf_adds(out, "\r\n");
		put_line(out, line, (size_t)(end - line), (int)i, s);
		if (!s->moves)
			buf_addc(out, '\n');
	}
	if (s->moves && i < s->rows)
		buf_adds(out, "\r\n\033[J"); /* what was below */
}

void top_draw(const json_t *view, const struct screen *s)
{
	struct buf text, out;
	size_t lines[PARTS];
	buf_init(&text, 0);
	buf_init(&out, 0);
	add_head(view, s, &text);
	share_lines(view, s->rows, lines);
	for (size_t i = 0; i < PARTS; i++)
		if (lines[i])
			add_part(view, &parts[i], lines[i], s->columns >= WIDE, &text);
	buf_adds(&out, s->moves ? "\033[H" : "");
	put_lines(&out, text.data, s);
	fwrite(out.data, 1, out.len, stdout);
	fflush(stdout);
	buf_fini(&text);
	buf_fini(&out);
}
