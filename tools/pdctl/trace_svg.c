/* trace_svg.c - requests as a drawing: a panel for each request, in it a lane for each daemon, all
 * on one time axis.
 *
 * Plain SVG 1.1 without script or font, like pdbench's. Each span is a rectangle with a tooltip; a
 * line below its lane names all spans with their times, also those too short for a label. */
#include "pdctl.h"
#include "trace.h"

#include "util/mem.h"
#include "util/svg.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_W 1180
#define LEFT 130
#define RIGHT 40
#define TOP 70
#define HEAD_H 48 /* of a panel: its title and the axis */
#define ROW_H 22
#define NAMES_H 17
#define LANE_GAP 10
#define LETTER_W 6.3

static const char *const colours[] = {
	[SPAN_WHOLE] = "#e8ebf0", [SPAN_WAIT] = "#b9bfca",   [SPAN_PREFILL] = "#2563a8",
	[SPAN_KV] = "#d9822b",    [SPAN_DECODE] = "#2e8b57", [SPAN_STORED] = "#7b5aa6",
};

struct page {
	const struct trace_picture *p;
	FILE *f;
	double y; /* of the next panel or lane */
	/* the middle of each lane in the current panel; 0: it is not there */
	double *lane_y;
};

static double at_x(const struct page *g, double us)
{
	double t = g->p->end_us > 0 ? us / g->p->end_us : 0;
	return LEFT + (PAGE_W - LEFT - RIGHT) * (t < 0 ? 0 : t > 1 ? 1 : t);
}

static unsigned rows_of(const struct trace_picture *p, size_t request, size_t lane)
{
	unsigned rows = 0;
	for (size_t i = 0; i < p->n_spans; i++)
		if (p->spans[i].request == request && p->spans[i].lane == lane &&
		    p->spans[i].row + 1 > rows)
			rows = p->spans[i].row + 1;
	return rows;
}

static void draw_span(const struct page *g, const struct trace_span *s)
{
	char time[32];
	double x = at_x(g, s->from_us), w = at_x(g, s->to_us) - x, y = g->y + ROW_H * s->row;
	int is_whole = s->kind == SPAN_WHOLE, is_dark = s->kind != SPAN_WAIT && !is_whole;
	text_us(time, sizeof time, s->to_us - s->from_us);
	fprintf(g->f, "<g><title>%s %s, %s\n", is_whole ? "request" : s->name, is_whole ? s->name : "",
	        time);
	svg_text(g->f, is_whole ? "" : s->of->fields);
	fprintf(g->f,
	        "</title><rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"%s/>", x,
	        y + (is_whole ? 0 : 2), w < 1 ? 1 : w, is_whole ? ROW_H : ROW_H - 4, colours[s->kind],
	        is_whole ? "" : " rx=\"2\"");
	if (!is_whole && w > (double)strlen(s->name) * LETTER_W + 8)
		fprintf(g->f, "<text class=\"in%s\" x=\"%.1f\" y=\"%.1f\">%s</text>",
		        is_dark ? " dark" : "", x + 5, y + ROW_H - 7, s->name);
	fputs("</g>\n", g->f);
}

/* Events that are no spans are marked: the tooltip has their fields. */
static void draw_marks(const struct page *g, size_t request, size_t lane)
{
	const struct trace *t = g->p->trace;
	for (size_t i = 0; i < t->n; i++) {
		const struct event *e = &t->events[i];
		if (e->request != request || e->lane != lane)
			continue;
		fputs("<g><title>", g->f);
		svg_text(g->f, e->name);
		fputc('\n', g->f);
		svg_text(g->f, e->fields);
		fprintf(g->f, "</title><path class=\"mark\" d=\"M%.2f %.1fl3 5h-6z\"/></g>\n",
		        at_x(g, trace_picture_at(g->p, e)), g->y - 1);
	}
}

static void draw_names(const struct page *g, size_t request, size_t lane, double y)
{
	int n = 0;
	fprintf(g->f, "<text class=\"names\" x=\"%d\" y=\"%.1f\">", LEFT, y);
	for (size_t i = 0; i < g->p->n_spans; i++) {
		const struct trace_span *s = &g->p->spans[i];
		char time[32];
		if (s->request != request || s->lane != lane || s->kind == SPAN_WHOLE)
			continue;
		text_us(time, sizeof time, s->to_us - s->from_us);
		fprintf(g->f, "%s<tspan fill=\"%s\">&#9632;</tspan> %s %s", n++ ? "   " : "",
		        colours[s->kind], s->name, time);
	}
	fputs("</text>\n", g->f);
}

static void draw_lane(struct page *g, size_t request, size_t lane)
{
	unsigned rows = rows_of(g->p, request, lane);
	g->lane_y[lane] = 0;
	if (!rows)
		return;
	g->lane_y[lane] = g->y + ROW_H / 2.0;
	fprintf(g->f, "<text class=\"lane\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 12,
	        g->y + ROW_H - 7);
	svg_text(g->f, g->p->lanes[lane].daemon);
	fputs("</text>\n", g->f);
	for (size_t i = 0; i < g->p->n_spans; i++)
		if (g->p->spans[i].request == request && g->p->spans[i].lane == lane)
			draw_span(g, &g->p->spans[i]);
	draw_marks(g, request, lane);
	g->y += ROW_H * rows;
	draw_names(g, request, lane, g->y + NAMES_H - 4);
	g->y += NAMES_H + LANE_GAP;
}

static void draw_arrows(const struct page *g, size_t request)
{
	for (size_t i = 0; i < g->p->n_arrows; i++) {
		const struct arrow *a = &g->p->arrows[i];
		double y0 = g->lane_y[a->from_lane], y1 = g->lane_y[a->to_lane];
		double edge = y1 > y0 ? ROW_H / 2.0 : -ROW_H / 2.0;
		if (a->request == request)
			fprintf(g->f,
			        "<path class=\"arrow\" marker-end=\"url(#head)\" d=\"M%.2f %.1fL%.2f %.1f\">"
			        "<title>%s</title></path>\n",
			        at_x(g, a->from_us), y0 + edge, at_x(g, a->to_us), y1 - edge, a->name);
	}
}

static double panel_height(const struct trace_picture *p, size_t request)
{
	double h = HEAD_H;
	for (size_t lane = 0; lane < p->n_lanes; lane++) {
		unsigned rows = rows_of(p, request, lane);
		h += rows ? ROW_H * rows + NAMES_H + LANE_GAP : 0;
	}
	return h;
}

static void draw_axis(const struct page *g, double bottom)
{
	char time[32];
	double step = svg_step(g->p->end_us > 0 ? g->p->end_us : 1, 8);
	for (int i = 0; i * step <= g->p->end_us; i++) {
		double x = at_x(g, i * step);
		text_us(time, sizeof time, i * step);
		fprintf(g->f,
		        "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/><text class=\"tick\" x=\"%.1f\" "
		        "y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
		        x, g->y + 34, bottom, x, g->y + 30, i ? time : "0");
	}
}

static void draw_title(const struct page *g, size_t request)
{
	const struct trace *t = g->p->trace;
	char prompt[24] = "", output[24] = "", finish[32] = "", total[32];
	fprintf(g->f, "<text class=\"title\" x=\"12\" y=\"%.1f\">%s</text>\n", g->y + 12,
	        t->ids[request]);
	for (size_t i = 0; i < t->n; i++) {
		const struct event *e = &t->events[i];
		if (e->request != request || strcmp(e->name, "request_done") != 0)
			continue;
		trace_field(e->fields, "prompt_tokens", prompt, sizeof prompt);
		trace_field(e->fields, "output_tokens", output, sizeof output);
		trace_field(e->fields, "finish", finish, sizeof finish);
		text_us(total, sizeof total, trace_number(e->fields, "total_us"));
		fprintf(g->f, "<text class=\"names\" x=\"330\" y=\"%.1f\">", g->y + 12);
		svg_text(g->f, prompt);
		fputs(" prompt tokens, ", g->f);
		svg_text(g->f, output);
		fprintf(g->f, " generated in %s, finish ", total);
		svg_text(g->f, finish);
		fputs("</text>\n", g->f);
		return;
	}
}

static void draw_page(struct page *g)
{
	const struct trace_picture *p = g->p;
	double height = TOP;
	for (size_t r = 0; r < p->trace->n_ids; r++)
		height += panel_height(p, r);
	fprintf(
		g->f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
		"height=\"%.0f\">\n<style>text{font-family:Helvetica,Arial,sans-serif;fill:#222}"
		".big{font-size:18px;font-weight:bold}.title{font-size:13px;font-weight:bold}"
		".lane{font-size:13px}.in{font-size:11px}.dark{fill:#fff}.names{font-size:11px;"
		"white-space:pre}.tick{font-size:11px;fill:#667}.grid{stroke:#dde;fill:none}"
		".mark{fill:#444;fill-opacity:.7}.arrow{stroke:#555;stroke-width:1;fill:none;"
		"stroke-opacity:.7}</style>\n<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" "
		"refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 1L7 4L0 7z\" "
		"fill=\"#555\"/></marker></defs>\n<rect width=\"100%%\" height=\"100%%\" "
		"fill=\"#fff\"/>\n<text class=\"big\" x=\"12\" y=\"30\">pdctl trace</text>\n",
		PAGE_W, height, PAGE_W, height);
	g->y = TOP - 20;
	for (size_t r = 0; r < p->trace->n_ids; r++) {
		double bottom = g->y + panel_height(p, r);
		draw_title(g, r);
		draw_axis(g, bottom - LANE_GAP);
		g->y += HEAD_H;
		for (size_t lane = 0; lane < p->n_lanes; lane++)
			draw_lane(g, r, lane);
		draw_arrows(g, r);
		g->y = bottom;
	}
	fputs("</svg>\n", g->f);
}

int trace_write_svg(const struct trace_picture *p, const char *path)
{
	struct page g = {.p = p, .f = trace_file_open(path)};
	if (!g.f)
		return -1;
	g.lane_y = mem_array(p->n_lanes, sizeof *g.lane_y);
	draw_page(&g);
	free(g.lane_y);
	return trace_file_close(g.f, path);
}
