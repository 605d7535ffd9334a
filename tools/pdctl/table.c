/* table.c - aligned columns of text, and numbers in readable units. Widths count characters, not
 * bytes.
 *
 * A table that is printed takes no more columns than table_fit allows, and loses nothing without a
 * word: texts are cut, with "…" at their end, the last column is continued on further lines, and
 * columns that still have no room, from the right, are named below the table. So the most important
 * ones are to the left. */
#include "pdctl.h"

#include "util/mem.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MOST 32u  /* what a text is cut to if the table is too wide */
#define LAST_LEAST 20u /* what the last column needs to be continued on further lines */
#define GAP 2u         /* between columns */

static size_t room; /* 0: any width */

struct table {
	char **cells;
	size_t n, *row_end, rows;
};

struct table *table_new(void)
{
	return mem_zalloc(sizeof(struct table));
}

void table_cell(struct table *t, const char *fmt, ...)
{
	va_list ap, again;
	va_start(ap, fmt);
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	char *text = mem_zalloc((size_t)(n < 0 ? 0 : n) + 1);
	vsnprintf(text, (size_t)(n < 0 ? 0 : n) + 1, fmt, ap);
	va_end(ap);
	t->cells = mem_grow(t->cells, t->n + 1, sizeof *t->cells);
	t->cells[t->n++] = text;
}

void table_end_row(struct table *t)
{
	t->row_end = mem_grow(t->row_end, t->rows + 1, sizeof *t->row_end);
	t->row_end[t->rows++] = t->n;
}

static size_t width(const char *s)
{
	size_t n = 0;
	for (; *s; s++)
		n += ((unsigned char)*s & 0xC0) != 0x80;
	return n;
}

/* "12", "1.5 ms" and "-" count as numbers; "1p1d" does not. */
static int is_number(const char *s)
{
	if (strcmp(s, "-") == 0 || !*s)
		return 1;
	char *end;
	strtod(s, &end);
	return end != s && (!*end || *end == ' ' || *end == '%');
}

static const char *cell(const struct table *t, size_t row, size_t column)
{
	size_t begin = row ? t->row_end[row - 1] : 0;
	return begin + column < t->row_end[row] ? t->cells[begin + column] : "";
}

static int is_number_column(const struct table *t, size_t column)
{
	int some = 0;
	for (size_t r = 1; r < t->rows; r++) {
		const char *s = cell(t, r, column);
		if (!is_number(s))
			return 0;
		some |= isdigit((unsigned char)*s) || *s == '-';
	}
	return some;
}

/* The bytes of the first n characters. */
static size_t first_bytes(const char *s, size_t n)
{
	size_t i = 0;
	for (; s[i]; i++)
		if (((unsigned char)s[i] & 0xC0) != 0x80 && n-- == 0)
			break;
	return i;
}

static size_t column_width(const struct table *t, size_t column)
{
	size_t w = 0;
	for (size_t r = 0; r < t->rows; r++) {
		size_t c = width(cell(t, r, column));
		w = c > w ? c : w;
	}
	return w;
}

/* The number of columns that are shown; sets their widths. */
static size_t lay_out(const struct table *t, size_t columns, size_t most, const int *right,
                      size_t *widths)
{
	size_t total = 0, before, natural;
	for (size_t c = 0; c < columns; c++) {
		widths[c] = column_width(t, c);
		total += widths[c] + (c ? GAP : 0);
	}
	if (!most || total <= most)
		return columns;
	for (size_t n = columns; n > 1; n--) {
		before = 0;
		for (size_t c = 0; c + 1 < n; c++)
			before += (right[c] || !c || widths[c] < TEXT_MOST ? widths[c] : TEXT_MOST) + GAP;
		natural = widths[n - 1];
		if (before + (right[n - 1] || natural < LAST_LEAST ? natural : LAST_LEAST) > most)
			continue;
		for (size_t c = 1; c + 1 < n; c++)
			if (!right[c] && widths[c] > TEXT_MOST)
				widths[c] = TEXT_MOST;
		widths[n - 1] = natural < most - before ? natural : most - before;
		return n;
	}
	return 1;
}

static void print_cell(FILE *f, const char *s, size_t w, int right)
{
	size_t n = width(s);
	if (n > w) {
		fprintf(f, "%.*s…", (int)first_bytes(s, w - 1), s);
		n = w;
	} else {
		fprintf(f, "%*s%s", right ? (int)(w - n) : 0, "", s);
		n = right ? w : n;
	}
	fprintf(f, "%*s", (int)(w - n + GAP), "");
}

/* Where s is broken so that a line has at most w characters: before a word, if that is possible. */
static size_t line_bytes(const char *s, size_t w)
{
	size_t n = first_bytes(s, w), at = n;
	if (!s[n])
		return n;
	while (at && s[at] != ' ')
		at--;
	return at ? at : n;
}

/* To the end of the line, from the column `indent`, and on further lines from there on. */
static void print_last(FILE *f, const char *s, size_t w, int right, size_t indent)
{
	size_t n = width(s) > w ? line_bytes(s, w) : strlen(s);
	fprintf(f, "%*s%.*s\n", right && width(s) < w ? (int)(w - width(s)) : 0, "", (int)n, s);
	for (s += n + strspn(s + n, " "); *s; s += n + strspn(s + n, " ")) {
		n = line_bytes(s, w);
		fprintf(f, "%*s%.*s\n", (int)indent, "", (int)n, s);
	}
}

static void print_left_out(FILE *f, const struct table *t, size_t shown, size_t columns)
{
	size_t at = (size_t)fprintf(f, "not shown:"), n;
	for (size_t c = shown; c < columns; c++, at += n + 1) {
		const char *name = cell(t, 0, c);
		n = width(name) + 1;
		if (at + 1 + n > room)
			at = (size_t)fprintf(f, "\n ");
		fprintf(f, " %s%s", name, c + 1 < columns ? "," : "");
	}
	fputs(at + 1 + strlen("(-w shows all)") > room ? "\n  (-w shows all)\n" : " (-w shows all)\n",
	      f);
}

void table_destroy(struct table **tp)
{
	struct table *t = *tp;
	for (size_t i = 0; i < t->n; i++)
		free(t->cells[i]);
	free(t->cells);
	free(t->row_end);
	free(t);
	*tp = NULL;
}

/* most: columns of the terminal, 0: any number */
static void write_table(struct table **tp, FILE *f, size_t most)
{
	const struct table *t = *tp;
	size_t columns = 0;
	for (size_t r = 0; r < t->rows; r++) {
		size_t n = t->row_end[r] - (r ? t->row_end[r - 1] : 0);
		columns = n > columns ? n : columns;
	}
	size_t *widths = mem_array(columns, sizeof *widths);
	int *right = mem_array(columns, sizeof *right);
	for (size_t c = 0; c < columns; c++)
		right[c] = is_number_column(t, c);
	size_t shown = lay_out(t, columns, most, right, widths);
	for (size_t r = 0; r < t->rows; r++) {
		size_t at = 0;
		for (size_t c = 0; c + 1 < shown; at += widths[c++] + GAP)
			print_cell(f, cell(t, r, c), widths[c], right[c]);
		if (shown)
			print_last(f, cell(t, r, shown - 1), widths[shown - 1], right[shown - 1], at);
	}
	if (shown < columns)
		print_left_out(f, t, shown, columns);
	free(widths);
	free(right);
	table_destroy(tp);
}

void table_write(struct table **tp, FILE *f)
{
	write_table(tp, f, 0);
}

void table_print(struct table **tp)
{
	write_table(tp, stdout, room);
}

void table_fit(size_t columns)
{
	room = columns;
}

void text_bytes(char *out, size_t size, double bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	int u = 0;
	while (bytes >= 1024 && u < 4) {
		bytes /= 1024;
		u++;
	}
	snprintf(out, size, "%.*f %s", u ? 1 : 0, bytes, units[u]);
}

void text_us(char *out, size_t size, double us)
{
	if (us < 1000)
		snprintf(out, size, "%.0f us", us);
	else if (us < 1e6)
		snprintf(out, size, "%.*f ms", us < 1e5 ? 2 : 1, us / 1e3);
	else if (us < 120e6)
		snprintf(out, size, "%.2f s", us / 1e6);
	else if (us < 7200e6)
		snprintf(out, size, "%.0f min", us / 60e6);
	else
		snprintf(out, size, "%.1f h", us / 3600e6);
}

void print_json(const json_t *j)
{
	json_dumpf(j, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_ENCODE_ANY);
	putchar('\n');
}
