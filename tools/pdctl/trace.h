/* trace.h - `pdctl trace`: the parts that read logs, place spans on a time axis, and draw them. */
#ifndef PDCTL_TRACE_H
#define PDCTL_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TRACE_REQUESTS_MAX 100
#define TRACE_LANES_MAX 256
#define TRACE_NAME_BYTES 64

/* Programs in the order of their lanes. */
enum trace_program {
	PROGRAM_ROUTER,
	PROGRAM_PREFILL,
	PROGRAM_MESSAGER,
	PROGRAM_DECODE,
	PROGRAM_STORAGE,
	PROGRAMS
};
extern const char *const trace_program_names[PROGRAMS];

struct event {
	uint64_t at_us; /* since 1970 */
	size_t request; /* index in trace.ids */
	size_t lane;    /* of a trace_picture */
	enum trace_program program;
	char daemon[TRACE_NAME_BYTES], name[TRACE_NAME_BYTES]; /* printable ASCII */
	char *fields; /* valid UTF-8 without control characters */
};

struct trace {
	char (*ids)[33];
	size_t n_ids;
	struct event *events; /* by request, then by time */
	size_t n;
	int full; /* more events than we keep */
};

/* --- trace_read.c: where the lines come from --- */

/* One log line without its line break. Returns 1 if the caller has seen enough: sources that are
 * read from the newest line back then stop. */
typedef int trace_line_fn(void *arg, char *line);
struct trace_source {
	const char *from; /* --from: "journal", "-", a file, or a folder of logs or journals; or NULL */
	const char *rundir; /* without --from: its logs, else the journal */
	FILE *input;        /* what was read from "-", for the second pass */
	int is_partial;     /* the system's journal was left out: this user may not read it */
};
/* Calls fn for each line. Returns the number of files that were read, 0 after printing why not. */
size_t trace_source_read(struct trace_source *s, trace_line_fn *fn, void *arg);

/* --- trace_line.c: one line --- */

struct line_head {
	uint64_t at_us;
	enum trace_program program;
	const char *name, *req, *event, *fields;
};
/* Splits a log line in place. -1: it is none of a request. */
int trace_line_split(char *line, struct line_head *ret);
/* The value of a field, without quotes, into out; 0: there is none. */
int trace_field(const char *fields, const char *key, char *out, size_t size);
double trace_number(const char *fields, const char *key); /* 0 if there is none */

/* --- trace_spans.c: what took how long, and who sent what to whom --- */

enum span_kind { SPAN_WHOLE, SPAN_WAIT, SPAN_PREFILL, SPAN_KV, SPAN_DECODE, SPAN_STORED };

struct trace_span {
	size_t request, lane;
	unsigned row; /* 0, or 1 for what runs beside the spans of row 0 */
	enum span_kind kind;
	const char *name;
	double from_us, to_us; /* since the picture begins */
	const struct event *of;
};

struct arrow {
	const char *name;
	size_t request, from_lane, to_lane;
	double from_us, to_us;
};

struct lane {
	const char *daemon;
	enum trace_program program;
};

struct trace_picture {
	const struct trace *trace;
	double first_us;  /* the earliest event, since 1970 */
	double before_us; /* the picture begins so much before it */
	double end_us;    /* since the picture begins */
	struct lane *lanes;
	struct trace_span *spans; /* those of a lane and row nest */
	struct arrow *arrows;
	size_t n_lanes, n_spans, n_arrows;
};

/* Sets the lane of t's events; t must live as long as the picture. 0, or -1 after printing that
 * there are more than TRACE_LANES_MAX daemons. */
int trace_picture_init(struct trace_picture *p, struct trace *t);
void trace_picture_fini(struct trace_picture *p);
double trace_picture_at(const struct trace_picture *p, const struct event *e);

/* --- trace.c: a file to write, "-" for stdout; NULL or -1 after printing why not --- */
FILE *trace_file_open(const char *path);
int trace_file_close(FILE *f, const char *path);

/* --- trace_show.c: to stdout --- */
void trace_print(const struct trace *t);
void trace_print_json(const struct trace *t, int as_list);

/* --- trace_svg.c, trace_chrome.c: 0, or -1 after printing why not --- */
int trace_write_svg(const struct trace_picture *p, const char *path);
int trace_write_chrome(const struct trace_picture *p, const char *path);

#endif
