/* report.h - writes the result for people, for scripts and for other programs. */
#ifndef PDBENCH_REPORT_H
#define PDBENCH_REPORT_H

#include "figures.h"
#include "work.h"

struct bench_report {
	const struct bench_options *o;
	const struct server_info *server;
	const struct result *r;
	const struct figures *f;
	int argc;
	char *const *argv;
};

/* "closed loop of 8 requests", "open loop of 5 requests/s (poisson)" ... */
void report_load(const struct bench_options *o, char *out, size_t size);
void report_table(const struct bench_report *p, FILE *f);
void report_results(const struct bench_report *p, FILE *f); /* RESULT lines */
/* "-" is stdout. Returns 0, or ERR_IO naming the file. */
int report_json(const struct bench_report *p, const char *path, struct err *err);
int report_requests(const struct bench_report *p, const char *path, struct err *err);
int report_svg(const struct bench_report *p, const char *path, struct err *err);

#endif
