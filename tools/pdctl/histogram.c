/* histogram.c - histograms of Prometheus text. */
#include "histogram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct histogram parse(const char *text, const char *name)
{
	struct histogram h = {0};
	size_t len = strlen(name);
	for (const char *line = text; line && h.n < HISTOGRAM_BUCKETS;
	     line = (line = strchr(line, '\n')) ? line + 1 : NULL) {
		const char *end = line + strcspn(line, "\n"), *le, *value;
		if (strncmp(line, name, len) != 0 || strncmp(line + len, "_bucket{", 8) != 0)
			continue;
		le = strstr(line, "le=\"");
		while (le && le < end && le[-1] != '{' && le[-1] != ',') /* role=, say */
			le = strstr(le + 1, "le=\"");
		value = le ? strstr(le, "} ") : NULL;
		if (!value || value > end)
			continue;
		h.le[h.n] = strtod(le + 4, NULL); /* "+Inf", too */
		h.count[h.n++] = strtod(value + 2, NULL);
	}
	return h;
}

void histogram_add(struct histogram *h, const char *text, const char *name, double sign)
{
	struct histogram more = parse(text, name);
	if (!h->n) {
		*h = more;
		memset(h->count, 0, sizeof h->count);
	}
	if (more.n != h->n || memcmp(more.le, h->le, more.n * sizeof *more.le) != 0)
		return;
	for (size_t i = 0; i < h->n; i++)
		h->count[i] += sign * more.count[i];
}

double histogram_quantile(const struct histogram *h, double q)
{
	double all = h->n ? h->count[h->n - 1] : 0, below = 0;
	size_t i = 0;
	if (all <= 0)
		return -1;
	while (i + 1 < h->n && h->count[i] < q * all)
		i++;
	if (i)
		below = h->count[i - 1];
	double from = i ? h->le[i - 1] : 0, in = h->count[i] - below;
	if (isinf(h->le[i]) || in <= 0)
		return isinf(h->le[i]) ? from : h->le[i];
	return from + (h->le[i] - from) * (q * all - below) / in;
}
