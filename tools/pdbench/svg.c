/* svg.c - the page of plots: distributions of TTFT and ITL; output tokens and requests in flight
 * over time.
 *
 * One page of fixed size in plain SVG 1.1: no script, no embedded font, colours that also differ in
 * lightness. External text is escaped. */
#include "report.h"

#include "util/mem.h"
#include "util/svg.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_W 1080
#define PAGE_H 820
#define BLUE "#2563a8"
#define ORANGE "#d9822b"
#define GREY "#667"

/* A plot's frame on the page, and its axes. */
struct plot {
	double x, y, w, h;
	double x0, x1, y1; /* values at the edges; the y axis starts at 0 */
	int log_x;
	FILE *f;
};

static double at_x(const struct plot *p, double v)
{
	double t = p->log_x ? log(v / p->x0) / log(p->x1 / p->x0) : (v - p->x0) / (p->x1 - p->x0);
	return p->x + p->w * (t < 0 ? 0 : t > 1 ? 1 : t);
}

static double at_y(const struct plot *p, double v)
{
	double t = v / p->y1;
	return p->y + p->h * (1 - (t < 0 ? 0 : t > 1 ? 1 : t));
}

static void number(char *out, size_t size, double v)
{
	snprintf(out, size,
	         v >= 1e6   ? "%.3gM"
	         : v >= 1e4 ? "%.3gk"
	                    : "%.4g",
	         v >= 1e6   ? v / 1e6
	         : v >= 1e4 ? v / 1e3
	                    : v);
}

static void time_label(char *out, size_t size, double ms)
{
	snprintf(out, size,
	         ms < 1      ? "%.3g us"
	         : ms < 1000 ? "%.3g ms"
	                     : "%.3g s",
	         ms < 1      ? ms * 1e3
	         : ms < 1000 ? ms
	                     : ms / 1e3);
}

static void tick_x(const struct plot *p, double v, const char *label)
{
	fprintf(p->f,
	        "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/><text class=\"tick\" x=\"%.1f\" "
	        "y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
	        at_x(p, v), p->y, p->y + p->h, at_x(p, v), p->y + p->h + 15, label);
}

static void linear_ticks(const struct plot *p, int n, int times)
{
	char label[32];
	double step = svg_step(p->x1 - p->x0, n);
	for (double v = ceil(p->x0 / step) * step; v <= p->x1 * 1.0001; v += step) {
		(times ? time_label : number)(label, sizeof label, v);
		tick_x(p, v, label);
	}
}

/* Ticks at 1, 2 and 5 times each power of ten; only at the powers if there are many. */
static void power_ticks(const struct plot *p)
{
	static const int steps[] = {1, 2, 5};
	char label[32];
	int each = p->x1 / p->x0 > 2000 ? 1 : 3;
	for (double ten = pow(10, floor(log10(p->x0))); ten <= p->x1; ten *= 10) {
		for (int k = 0; k < each; k++) {
			if (ten * steps[k] < p->x0 || ten * steps[k] > p->x1)
				continue;
			time_label(label, sizeof label, ten * steps[k]);
			tick_x(p, ten * steps[k], label);
		}
	}
}

static void axes(const struct plot *p, const char *title, const char *y_unit, const char *x_unit)
{
	char label[32];
	double step = svg_step(p->y1, 4);
	fprintf(p->f,
	        "<text class=\"title\" x=\"%.1f\" y=\"%.1f\">%s</text><text class=\"tick\" x=\"%.1f\" "
	        "y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
	        p->x, p->y - 22, title, p->x + p->w, p->y + p->h + 31, x_unit);
	fprintf(p->f, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", p->x, p->y - 7, y_unit);
	for (double v = 0; v <= p->y1 * 1.0001; v += step) {
		number(label, sizeof label, v);
		fprintf(p->f,
		        "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/><text class=\"tick\" x=\"%.1f\" "
		        "y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
		        p->x, at_y(p, v), p->x + p->w, p->x - 6, at_y(p, v) + 4, label);
	}
	if (!p->log_x)
		linear_ticks(p, 6, 0);
	else if (p->x1 / p->x0 < 6)
		linear_ticks(p, 5, 1); /* too narrow for powers of ten */
	else
		power_ticks(p);
}

/* --- distributions ------------------------------------------------------- */

#define BARS 60

struct spread {
	double low, high, bars[BARS]; /* ms; share of each bar in percent */
	size_t n;
};

static void spread_range(struct spread *s, double low, double high)
{
	if (low < 0.001)
		low = 0.001;
	if (high < low * 1.5) {
		double middle = sqrt(low * high);
		low = middle / 1.25;
		high = middle * 1.25;
	}
	s->low = low / 1.03;
	s->high = high * 1.03;
}

static void spread_add(struct spread *s, double ms, double weight)
{
	double t = log((ms < 0.001 ? 0.001 : ms) / s->low) / log(s->high / s->low);
	int i = (int)(t * BARS);
	s->bars[i < 0 ? 0 : i >= BARS ? BARS - 1 : i] += weight;
}

static void marker(const struct plot *p, double ms, const char *name, int level)
{
	char label[32];
	if (isnan(ms) || ms < p->x0 || ms > p->x1)
		return;
	time_label(label, sizeof label, ms);
	double x = at_x(p, ms), y = p->y + 12 + 14 * level;
	int left = x > p->x + p->w * 0.8;
	fprintf(p->f,
	        "<path d=\"M%.1f %.1fV%.1f\" stroke=\"" ORANGE
	        "\" stroke-width=\"1.5\" stroke-dasharray=\"4 3\"/><text class=\"mark\" x=\"%.1f\" "
	        "y=\"%.1f\"%s>%s %s</text>\n",
	        x, p->y, p->y + p->h, left ? x - 4 : x + 4, y, left ? " text-anchor=\"end\"" : "", name,
	        label);
}

static void draw_spread(struct plot *p, const struct spread *s, const struct bench_summary *sum,
                        const char *title)
{
	double most = 0;
	for (int i = 0; i < BARS; i++)
		most = s->bars[i] > most ? s->bars[i] : most;
	p->log_x = 1;
	p->x0 = s->low;
	p->x1 = s->high;
	p->y1 = most > 0 ? most * 1.15 : 1;
	axes(p, title, "% of all", "the outermost bars include everything beyond them");
	for (int i = 0; i < BARS; i++) {
		double x = p->x + p->w * i / BARS, y = at_y(p, s->bars[i]);
		if (s->bars[i] > 0)
			fprintf(p->f,
			        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"" BLUE
			        "\"/>\n",
			        x + 0.5, y, p->w / BARS - 1, p->y + p->h - y);
	}
	marker(p, sum->p50, "p50", 0);
	marker(p, sum->p90, "p90", 1);
	marker(p, sum->p99, "p99", 2);
}

static void ttft_plot(const struct bench_report *rep, struct plot *p)
{
	const struct bench_summary *sum = &rep->f->ttft;
	struct spread s = {.n = sum->n};
	double low = INFINITY;
	for (size_t i = 0; i < rep->r->n; i++) {
		const struct bench_record *r = &rep->r->records[i];
		double v = r->measured && r->outcome == OUTCOME_OK ? record_ttft_ms(r) : NAN;
		low = !isnan(v) && v < low ? v : low;
	}
	spread_range(&s, isinf(low) ? 1 : low, sum->n ? sum->max : 1);
	for (size_t i = 0; i < rep->r->n; i++) {
		const struct bench_record *r = &rep->r->records[i];
		if (r->measured && r->outcome == OUTCOME_OK)
			spread_add(&s, record_ttft_ms(r), 100.0 / (double)sum->n);
	}
	draw_spread(p, &s, sum, "Time to first token (TTFT)");
}

static void gap_plot(const struct bench_report *rep, struct plot *p)
{
	const struct hist *h = &rep->r->gaps;
	const struct bench_summary *sum = &rep->f->itl;
	struct spread s = {.n = h->n};
	/* a few gaps of 0 (two events in one packet) or a single stall must not squeeze all others into
	 * one bar */
	double low = h->n ? fmax(hist_percentile(h, 1), hist_percentile(h, 50) / 20) / 1e3 : 1;
	spread_range(&s, low,
	             h->n ? fmin(sum->max,
	                         fmax(hist_percentile(h, 99.9), hist_percentile(h, 50) * 5) / 1e3)
	                  : 1);
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		if (h->count[i])
			spread_add(&s, ((double)hist_low(i) + (double)(hist_width(i) - 1) / 2) / 1e3,
			           100.0 * (double)h->count[i] / (double)h->n);
	draw_spread(p, &s, sum, "Gap between tokens (ITL)");
}

/* --- over time ----------------------------------------------------------- */

enum series { SERIES_TOKENS, SERIES_IN_FLIGHT, SERIES_WAITING };

static double slot_value(const struct timeline *t, unsigned i, enum series what)
{
	const struct slot *s = &t->slots[i];
	double k = s->samples ? s->samples : 1;
	return what == SERIES_TOKENS ? (double)s->tokens * 1e6 / (double)t->slot_us
	                             : (what == SERIES_IN_FLIGHT ? s->in_flight : s->waiting) / k;
}

static double series_most(const struct timeline *t, enum series what)
{
	double most = 0;
	for (unsigned i = 0; i < t->n; i++)
		most = fmax(most, slot_value(t, i, what));
	return most;
}

/* Slots without a sample are skipped: the line continues to the next one. */
static void draw_series(const struct plot *p, const struct timeline *t, enum series what,
                        const char *colour, int area)
{
	double slot_s = (double)t->slot_us / 1e6;
	fprintf(p->f, "<path fill=\"%s\" fill-opacity=\"0.15\" stroke=\"%s\" stroke-width=\"1.5\" d=\"",
	        area ? colour : "none", colour);
	if (area)
		fprintf(p->f, "M%.1f %.1f", p->x, p->y + p->h);
	for (unsigned i = 0; i < t->n; i++)
		if (what == SERIES_TOKENS || t->slots[i].samples)
			fprintf(p->f, "%c%.1f %.1f", i || area ? 'L' : 'M', at_x(p, (i + 0.5) * slot_s),
			        at_y(p, slot_value(t, i, what)));
	if (area)
		fprintf(p->f, "V%.1fZ", p->y + p->h);
	fputs("\"/>\n", p->f);
}

static void shade_rest(const struct plot *p, const struct result *r)
{
	double begin = at_x(p, (double)r->window_begin_us / 1e6),
		   end = at_x(p, (double)r->window_end_us / 1e6);
	if (begin > p->x + 1)
		fprintf(p->f,
		        "<rect class=\"rest\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
		        p->x, p->y, begin - p->x, p->h);
	if (end < p->x + p->w - 1)
		fprintf(p->f,
		        "<rect class=\"rest\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
		        end, p->y, p->x + p->w - end, p->h);
}

static void time_axis(struct plot *p, const struct timeline *t, double most)
{
	p->x0 = 0;
	p->x1 = fmax((double)t->n * (double)t->slot_us / 1e6, 0.1);
	p->y1 = most > 0 ? most * 1.1 : 1;
}

static void tokens_plot(const struct bench_report *rep, struct plot *p)
{
	const struct timeline *t = &rep->r->timeline;
	time_axis(p, t, series_most(t, SERIES_TOKENS));
	axes(p, "Output tokens per second", "tokens/s",
	     "s since the run began; grey: outside of the measured window");
	shade_rest(p, rep->r);
	draw_series(p, t, SERIES_TOKENS, BLUE, 1);
}

static void requests_plot(const struct bench_report *rep, struct plot *p)
{
	const struct timeline *t = &rep->r->timeline;
	time_axis(p, t, series_most(t, SERIES_IN_FLIGHT));
	axes(p, "Requests in flight", "requests", "s since the run began");
	shade_rest(p, rep->r);
	draw_series(p, t, SERIES_IN_FLIGHT, BLUE, 1);
	draw_series(p, t, SERIES_WAITING, ORANGE, 1);
	fprintf(p->f,
	        "<text class=\"key\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\"><tspan fill=\"" BLUE
	        "\">all</tspan>   <tspan fill=\"" ORANGE
	        "\">waiting for the first token</tspan></text>\n",
	        p->x + p->w, p->y - 22);
}

/* --- the page ------------------------------------------------------------ */

static void head(const struct bench_report *rep, FILE *f)
{
	char load[120];
	const struct figures *g = rep->f;
	report_load(rep->o, load, sizeof load);
	fprintf(f,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
	        "height=\"%d\">\n",
	        PAGE_W, PAGE_H, PAGE_W, PAGE_H);
	fputs("<style>text{font-family:Helvetica,Arial,sans-serif;fill:#222}.title{font-size:15px;font-"
	      "weight:bold}.tick{font-size:11px;fill:" GREY
	      "}.mark{font-size:11px;fill:#a55a10;paint-order:stroke;stroke:#fff;stroke-width:3px}.key{"
	      "font-size:12px}.grid{stroke:#dde;stroke-width:1;fill:none}.rest{fill:#889;fill-opacity:."
	      "12}"
	      ".big{font-size:20px;font-weight:bold}.line{font-size:13px}</style>\n<rect "
	      "width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text class=\"big\" x=\"70\" y=\"38\">",
	      f);
	svg_text(f, rep->o->title         ? rep->o->title
	            : *rep->server->model ? rep->server->model
	                                  : "pdbench");
	fputs("</text>\n<text class=\"line\" x=\"70\" y=\"62\">", f);
	svg_text(f, load);
	fprintf(
		f,
		"; %llu requests completed, %llu failed in %.1f s; %.2f requests/s, %.1f output tokens/s",
		(unsigned long long)g->ok, (unsigned long long)g->failed, g->window_s, g->request_rate,
		g->token_rate);
	if (rep->o->has_slo)
		fprintf(f, "; goodput %.2f requests/s (%.1f %%)", g->goodput_rate, g->goodput_percent);
	fputs("</text>\n", f);
}

int report_svg(const struct bench_report *p, const char *path, struct err *err)
{
	FILE *f = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
	if (!f)
		return err_set(err, ERR_IO, "cannot write %s: %s", path, strerror(errno));
	struct plot a = {.x = 70, .y = 130, .w = 430, .h = 250, .f = f}, b = a, c = a, d = a;
	b.x = d.x = 600;
	c.y = d.y = 500;
	head(p, f);
	ttft_plot(p, &a);
	gap_plot(p, &b);
	tokens_plot(p, &c);
	requests_plot(p, &d);
	fputs("</svg>\n", f);
	int bad = fflush(f) != 0 || ferror(f), e = errno;
	if (f != stdout)
		bad |= fclose(f) != 0;
	return bad ? err_set(err, ERR_IO, "cannot write %s: %s", path, strerror(e)) : 0;
}
