/* table.c - aligned columns of text, and numbers in readable units. Widths count characters, not
 * bytes. */
#include "pdctl.h"

#include "util/mem.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static size_t column_width(const struct table *t, size_t column)
{
	size_t w = 0;
	for (size_t r = 0; r < t->rows; r++) {
		size_t c = width(cell(t, r, column));
		w = c > w ? c : w;
	}
	return w;
}

static void print_cell(FILE *f, const char *s, size_t w, int right, int last)
{
	int pad = (int)(w - width(s));
	fprintf(f, "%*s%s%*s", right ? pad : 0, "", s, right || last ? 0 : pad, "");
	fputs(last ? "\n" : "  ", f);
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

void table_write(struct table **tp, FILE *f)
{
	const struct table *t = *tp;
	size_t columns = 0;
	for (size_t r = 0; r < t->rows; r++) {
		size_t n = t->row_end[r] - (r ? t->row_end[r - 1] : 0);
		columns = n > columns ? n : columns;
	}
	size_t *widths = mem_array(columns, sizeof *widths);
	int *right = mem_array(columns, sizeof *right);
	for (size_t c = 0; c < columns; c++) {
		widths[c] = column_width(t, c);
		right[c] = is_number_column(t, c);
	}
	for (size_t r = 0; r < t->rows; r++)
		for (size_t c = 0; c < columns; c++)
			print_cell(f, cell(t, r, c), widths[c], right[c], c + 1 == columns);
	free(widths);
	free(right);
	table_destroy(tp);
}

void table_print(struct table **tp)
{
	table_write(tp, stdout);
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
