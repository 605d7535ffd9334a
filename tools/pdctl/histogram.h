/* histogram.h - a histogram of Prometheus text, and what was added to it between two texts. */
#ifndef PDCTL_HISTOGRAM_H
#define PDCTL_HISTOGRAM_H

#include <stddef.h>

#define HISTOGRAM_BUCKETS 128

struct histogram {
	size_t n;
	double le[HISTOGRAM_BUCKETS];    /* upper bounds, increasing; the last may be infinite */
	double count[HISTOGRAM_BUCKETS]; /* cumulative */
};

/* Adds sign times the histogram `name` of the text, the first with these bounds if *h is empty. A
 * text without it, or with other bounds, adds nothing. text may be NULL. */
void histogram_add(struct histogram *h, const char *text, const char *name, double sign);
/* The value below which a share of q lies, interpolated within its bucket; negative: no values. */
double histogram_quantile(const struct histogram *h, double q);

#endif
