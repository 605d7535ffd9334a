/* trace.c - `pdctl trace ID...`: requests' way through all daemons, from their logs.
 *
 * Every line with req=ID is an event. Logs are untrusted text: lines that do not parse are
 * skipped. */
#include "pdctl.h"
#include "trace.h"

#include "util/clock.h"
#include "util/err.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVENTS_MAX 10000
#define LATE_US 1000000u    /* by how much a log line may be late */
#define CLOCKS_US 10000000u /* by how much the clocks of several hosts may differ */

FILE *trace_file_open(const char *path)
{
	FILE *f = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
	if (!f)
		fprintf(stderr, "pdctl: cannot write %s: %s\n", path, strerror(errno));
	return f;
}

int trace_file_close(FILE *f, const char *path)
{
	int bad = fflush(f) != 0 || ferror(f), why = errno;
	if (f != stdout && fclose(f) != 0 && !bad) {
		bad = 1;
		why = errno;
	}
	if (bad)
		fprintf(stderr, "pdctl: cannot write %s: %s\n", path, strerror(why));
	return bad ? -1 : 0;
}

static const char *partial(const struct trace_source *from)
{
	return from->is_partial ? "; the system's journal is not among them: use sudo, or join the "
	                          "group systemd-journal"
	                        : "";
}

/* --- which requests ------------------------------------------------------ */

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

static size_t index_of(const struct trace *t, const char *id)
{
	size_t i = 0;
	while (i < t->n_ids && strcmp(t->ids[i], id) != 0)
		i++;
	return i;
}

static void add_id(struct trace *t, const char id[33])
{
	if (index_of(t, id) == t->n_ids && t->n_ids < TRACE_REQUESTS_MAX)
		memcpy(t->ids[t->n_ids++], id, 33);
}

/* Names that clients and proxies gave to requests; one name may be that of several. */
struct outside {
	struct trace *t;
	char *const *args;
	size_t n_args;
	char *found; /* (n_args) */
};

static int take_outside(void *arg, char *line)
{
	struct outside *s = arg;
	struct line_head h;
	char client[256] = "", trace[64] = "";
	if ((!strstr(line, " client_id=") && !strstr(line, " trace_id=")) ||
	    trace_line_split(line, &h) < 0)
		return 0;
	trace_field(h.fields, "client_id", client, sizeof client);
	trace_field(h.fields, "trace_id", trace, sizeof trace);
	for (size_t i = 0; i < s->n_args; i++)
		if (strcmp(s->args[i], client) == 0 || strcmp(s->args[i], trace) == 0) {
			s->found[i] = 1;
			add_id(s->t, h.req);
		}
	return 0;
}

/* An answer's id names itself. All else may be a name from outside, also 32 digits alone. */
static int is_own(const char *arg, char id[33])
{
	return find_id(arg, id) && strpbrk(arg, "-_");
}

/* Returns an exit code. */
static int named_ids(struct trace *t, struct trace_source *from, char *const *args, size_t n_args)
{
	char id[33], *found = mem_array(n_args, 1);
	struct outside s = {t, args, n_args, found};
	size_t own = 0, files = 1;
	int code = EXIT_DONE;
	memset(found, 0, n_args);
	for (size_t i = 0; i < n_args; i++)
		own += (size_t)is_own(args[i], id);
	if (own < n_args)
		files = trace_source_read(from, take_outside, &s);
	for (size_t i = 0; i < n_args && files; i++) {
		if (found[i])
			continue;
		if (find_id(args[i], id)) {
			add_id(t, id);
			continue;
		}
		fprintf(
			stderr,
			"pdctl: \"%s\" is no request's id: an answer's (chatcmpl-..., cmpl-..., resp_..., "
			"msg_...), its 32 hexadecimal digits, or an X-Request-Id or trace id that these logs "
			"have (%zu read)%s\n",
			args[i], files, partial(from));
		code = EXIT_REFUSED;
	}
	free(found);
	return files ? code : EXIT_UNREACHABLE;
}

/* The last requests that ended, the earliest first. */
struct last {
	struct trace *t;
	size_t want;
	uint64_t at_us[TRACE_REQUESTS_MAX];
};

static int take_last(void *arg, char *line)
{
	struct last *l = arg;
	struct trace *t = l->t;
	struct line_head h;
	if (!strstr(line, " event=request_done ") || trace_line_split(line, &h) < 0 ||
	    strcmp(h.event, "request_done") != 0 || index_of(t, h.req) < t->n_ids)
		return 0;
	if (t->n_ids == l->want && h.at_us <= l->at_us[0])
		return 1;
	size_t i = t->n_ids;
	if (t->n_ids < l->want)
		t->n_ids++;
	else /* the earliest goes */
		for (i = 0; i + 1 < t->n_ids && l->at_us[i + 1] < h.at_us; i++) {
			l->at_us[i] = l->at_us[i + 1];
			memcpy(t->ids[i], t->ids[i + 1], sizeof *t->ids);
		}
	for (; i > 0 && l->at_us[i - 1] > h.at_us; i--) {
		l->at_us[i] = l->at_us[i - 1];
		memcpy(t->ids[i], t->ids[i - 1], sizeof *t->ids);
	}
	l->at_us[i] = h.at_us;
	memcpy(t->ids[i], h.req, sizeof *t->ids);
	return 0;
}

/* --- their events -------------------------------------------------------- */

struct trace_search {
	struct trace *t;
	size_t begun; /* requests whose first line was seen */
	uint64_t oldest_us;
	uint64_t newest_us;
	size_t found[TRACE_REQUESTS_MAX]; /* events of each request */
	size_t ended[TRACE_REQUESTS_MAX]; /* its last ones: request_done */
};

static int take_event(void *arg, char *line)
{
	struct trace_search *s = arg;
	struct trace *t = s->t;
	struct line_head h;
	if (!strstr(line, " req=") || trace_line_split(line, &h) < 0)
		return 0;
	if (s->begun == t->n_ids && h.at_us + CLOCKS_US < s->oldest_us)
		return 1;
	size_t request = index_of(t, h.req);
	if (request == t->n_ids)
		return 0;
	if (t->n == EVENTS_MAX) {
		t->full = 1;
		return 1;
	}
	struct event e = {.at_us = h.at_us, .request = request, .program = h.program};
	snprintf(e.daemon, sizeof e.daemon, "%s", h.name);
	snprintf(e.name, sizeof e.name, "%s", h.event);
	e.fields = mem_strdup(h.fields);
	t->events = mem_grow(t->events, t->n + 1, sizeof *t->events);
	t->events[t->n++] = e;
	s->found[request]++;
	s->begun += strcmp(e.name, "submitted") == 0 && trace_number(e.fields, "attempt") == 1;
	s->ended[request] += strcmp(e.name, "request_done") == 0;
	s->newest_us = e.at_us > s->newest_us ? e.at_us : s->newest_us;
	s->oldest_us = !s->oldest_us || e.at_us < s->oldest_us ? e.at_us : s->oldest_us;
	return 0;
}

static int by_time(const void *a, const void *b)
{
	const struct event *x = a, *y = b;
	if (x->request != y->request)
		return x->request > y->request ? 1 : -1;
	return x->at_us != y->at_us ? (x->at_us > y->at_us) - (x->at_us < y->at_us)
	                            : strcmp(x->daemon, y->daemon);
}

/* --- the command --------------------------------------------------------- */

static int usage_error(const char *text)
{
	fprintf(stderr, "pdctl: %s\n", text);
	return EXIT_USAGE;
}

/* Sets t->ids. Returns an exit code. */
static int choose(struct trace *t, struct trace_source *from, const struct options *o,
                  char *const *args, size_t n_args)
{
	struct last l = {.t = t};
	char *end = NULL;
	if (!o->trace.last && !n_args)
		return usage_error("trace needs a request id, or --last N");
	if (!o->trace.last)
		return named_ids(t, from, args, n_args);
	l.want = strtoul(o->trace.last, &end, 10);
	if (n_args || *end || l.want < 1 || l.want > TRACE_REQUESTS_MAX) {
		fprintf(stderr, "pdctl: --last %s: a number from 1 to %d, and no request id\n",
		        o->trace.last, TRACE_REQUESTS_MAX);
		return EXIT_USAGE;
	}
	size_t files = trace_source_read(from, take_last, &l);
	if (files && !t->n_ids)
		fprintf(stderr, "pdctl: no request has ended in these logs (%zu read)%s\n", files,
		        partial(from));
	return t->n_ids ? EXIT_DONE : files ? EXIT_REFUSED : EXIT_UNREACHABLE;
}

/* Log lines lie with their daemon and with the journal for a moment: an answer may be here before
 * its request's end is there. */
static int comes_late(const struct trace_search *s)
{
	for (size_t i = 0; i < s->t->n_ids; i++)
		if (s->found[i] && !s->ended[i])
			return clock_unix_us() < s->newest_us + LATE_US;
	return 0;
}

static void forget_events(struct trace *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->events[i].fields);
	t->n = 0;
}

/* Reads the events of t->ids. Returns an exit code. */
static int find_events(struct trace *t, struct trace_source *from)
{
	struct trace_search s = {.t = t};
	size_t files = trace_source_read(from, take_event, &s);
	/* the clock of another host, which newest_us is by, may be ahead */
	uint64_t end = clock_us() + LATE_US;
	while (files && comes_late(&s) && clock_us() < end) {
		usleep(LATE_US / 10);
		forget_events(t);
		s = (struct trace_search){.t = t};
		files = trace_source_read(from, take_event, &s);
	}
	int code = files ? EXIT_DONE : EXIT_UNREACHABLE;
	if (t->n)
		qsort(t->events, t->n, sizeof *t->events, by_time);
	for (size_t i = 0; files && i < t->n_ids; i++) {
		if (s.found[i])
			continue;
		fprintf(stderr, "pdctl: request %s is not in these logs (%zu read)%s\n", t->ids[i], files,
		        partial(from));
		code = EXIT_REFUSED;
	}
	if (t->full)
		fprintf(stderr, "pdctl: more than %d events: the others are left out\n", EVENTS_MAX);
	return code;
}

static int write_pictures(struct trace *t, const struct options *o)
{
	struct trace_picture p;
	int bad = trace_picture_init(&p, t);
	if (!bad && o->trace.svg)
		bad |= trace_write_svg(&p, o->trace.svg);
	if (!bad && o->trace.chrome)
		bad |= trace_write_chrome(&p, o->trace.chrome);
	trace_picture_fini(&p);
	return bad ? EXIT_REFUSED : EXIT_DONE;
}

static int is_stdout(const char *path)
{
	return path && strcmp(path, "-") == 0;
}

int trace_command(const struct options *o, char *const *args, size_t n_args)
{
	struct trace t = {.ids = mem_array(TRACE_REQUESTS_MAX, sizeof *t.ids)};
	struct trace_source from = {.from = o->trace.from, .rundir = o->rundir};
	int code = choose(&t, &from, o, args, n_args);
	if (code == EXIT_DONE)
		code = find_events(&t, &from);
	if (t.n) {
		if (o->trace.svg || o->trace.chrome) {
			int written = write_pictures(&t, o);
			code = written > code ? written : code;
		}
		if (!is_stdout(o->trace.svg) && !is_stdout(o->trace.chrome)) {
			if (o->json)
				trace_print_json(&t, o->trace.last || n_args > 1);
			else
				trace_print(&t);
		}
	}
	forget_events(&t);
	free(t.events);
	free(t.ids);
	if (from.input)
		fclose(from.input);
	return code;
}
