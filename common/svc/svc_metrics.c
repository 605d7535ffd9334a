/* svc_metrics.c - a daemon's metrics as a page of Prometheus text, and the HTTP endpoint for it
 * (metrics_listen): GET and HEAD of /metrics and /health, nothing else.
 *
 * The endpoint runs on the loop. A client costs it at most one page, and all clients together, also
 * those of the router's own port, at most one rendering each PAGE_LIFE_US; what they make it hold
 * is bounded by the limits below. */
#include "http/http.h"
#include "svc/svc_int.h"
#include "util/clock.h"
#include "util/descriptors.h"
#include "util/mem.h"
#include "util/version.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define PAGE_LIFE_US 100000u
#define PAGE_BYTES_MAX (8u << 20) /* twice what a router with the most keys has */
#define HEAD_BYTES 1024u          /* of an answer */
#define CONNECTIONS_MAX 32u
#define HEADER_BYTES_MAX 8192u
#define BODY_BYTES_MAX 4096u /* ignored */
#define INPUT_BYTES_MAX (CONNECTIONS_MAX * (HEADER_BYTES_MAX + BODY_BYTES_MAX))
#define OUTPUT_BYTES_MAX (4 * (PAGE_BYTES_MAX + HEAD_BYTES)) /* one connection gets a quarter */
#define COUNT_US 5000000u /* descriptors are listed at most this often */
#define IDLE_US 90000000u /* longer than the usual scrape intervals */
#define READ_US 5000000u
#define WRITE_US 10000000u

/* --- the page ------------------------------------------------------------ */

static const char *role_of(struct svc *s)
{
	return s->hooks->role ? s->hooks->role(s) : s->hooks->default_name;
}

static uint64_t resident_bytes(void)
{
	unsigned long long pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");
	if (!f)
		return 0;
	if (fscanf(f, "%*u %llu", &pages) != 1)
		pages = 0;
	fclose(f);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int64_t list_descriptors(void)
{
	int64_t n = -3; /* ".", "..", and the folder's own */
	DIR *d = opendir("/proc/self/fd");
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return d ? n : 0;
}

/* Since Linux 6.2 the folder's size is their number. Before, they are listed, which takes
 * milliseconds if there are thousands. */
static int64_t open_descriptors(void)
{
	static uint64_t listed_us;
	static int64_t n;
	struct stat st;
	uint64_t now = clock_us();
	if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0)
		return st.st_size;
	if (!listed_us || now - listed_us > COUNT_US) {
		n = list_descriptors();
		listed_us = now;
	}
	return n;
}

static uint64_t processor_us(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* What a page shows of the process and the skeleton. */
struct common_figures {
	uint64_t cpu_us, resident_bytes, max_fds, started_s, uptime_s;
	int64_t open_fds;
	struct chan_counts chan;
	uint64_t log_dropped, without_descriptor, messages_refused, commands_refused;
};
#define ROW(field, type, name, help) STAT_ROW(struct common_figures, field, type, name, help)

/* The same of every daemon; those that client libraries of Prometheus have, by their names. */
static const struct stat_row common_stats[] = {
	ROW(cpu_us, SECONDS_SUM, "process_cpu_seconds_total",
        "Processor time of the process, user and system."),
	ROW(resident_bytes, GAUGE, "process_resident_memory_bytes", "Resident memory of the process."),
	ROW(open_fds, GAUGE, "process_open_fds", "Open file descriptors."),
	ROW(max_fds, GAUGE, "process_max_fds", "Limit on open file descriptors."),
	ROW(started_s, GAUGE, "process_start_time_seconds",
        "Start of the process, in seconds since 1970."),
	ROW(uptime_s, GAUGE, "pdserve_uptime_seconds", "Seconds since the daemon started."),
	ROW(chan.peers_up, GAUGE, "pdserve_peers_up", "Links to other daemons that are up."),
	ROW(chan.sent, COUNTER, "pdserve_messages_sent_total", "Messages sent to other daemons."),
	ROW(chan.received, COUNTER, "pdserve_messages_received_total",
        "Messages received from other daemons."),
	ROW(chan.resent, COUNTER, "pdserve_messages_resent_total",
        "Messages sent again after a reconnect."),
	ROW(chan.bad, COUNTER, "pdserve_messages_bad_total",
        "Messages dropped because they did not decode or broke the protocol."),
	ROW(chan.duplicates, COUNTER, "pdserve_messages_duplicate_total",
        "Messages dropped because they had arrived before."),
	ROW(chan.dropped, COUNTER, "pdserve_messages_gap_total",
        "Messages dropped because an earlier one was missing; they are resent."),
	ROW(log_dropped, COUNTER, "pdserve_log_lines_dropped_total",
        "Log lines lost because stderr blocked or failed."),
	ROW(without_descriptor, COUNTER, "pdserve_connections_without_descriptor_total",
        "Connections closed because the process had no file descriptor left for them."),
	ROW(chan.keys_refused, COUNTER, "pdserve_keys_refused_total",
        "Connections from other hosts with an unknown key."),
	ROW(chan.hellos_refused, COUNTER, "pdserve_hellos_refused_total",
        "Daemons that wanted to connect and were refused, with each repetition."),
	ROW(messages_refused, COUNTER, "pdserve_messages_refused_total",
        "Messages that their sender may not send to this daemon."),
	ROW(commands_refused, COUNTER, "pdserve_commands_refused_total",
        "pdctl commands of users or keys that may not use them."),
	STAT_END,
};

static void common_metrics(struct svc *s, const char *labels, struct buf *out)
{
	struct common_figures f = {.cpu_us = processor_us(),
	                           .resident_bytes = resident_bytes(),
	                           .open_fds = open_descriptors(),
	                           .max_fds = descriptors_limit(),
	                           .started_s = s->started_unix_us / 1000000,
	                           .uptime_s = (clock_us() - s->started_us) / 1000000,
	                           .log_dropped = log_dropped(),
	                           .without_descriptor = descriptors_refused(),
	                           .messages_refused = s->messages_refused,
	                           .commands_refused = s->commands_refused};
	chan_counts(s->chan, &f.chan);
	stat_render(common_stats, &f, "", labels, out);
}

static const struct stat_family build_info = {
	{"build_info", "Program, version and commit; the value is 1.", STAT_GAUGE},
	"name,role,program,version,commit",
};

/* Of the names in hooks->stats; a daemon that renders its metrics itself has whole names. */
static void prefix_of(const struct svc_hooks *hooks, char *out, size_t size)
{
	if (hooks->metrics)
		*out = 0;
	else
		snprintf(out, size, "pdserve_%s_", hooks->default_name);
}

void svc_metrics_describe(const struct svc_hooks *hooks, struct buf *out)
{
	static const char labels[] = "name,role";
	char prefix[64];
	prefix_of(hooks, prefix, sizeof prefix);
	stat_describe(&build_info.def, "pdserve_", build_info.labels, out);
	for (const struct stat_row *r = common_stats; r->def.name; r++)
		stat_describe(&r->def, "", labels, out);
	for (const struct stat_row *r = hooks->stats; r && r->def.name; r++)
		stat_describe(&r->def, prefix, hooks->metrics ? hooks->stats_labels : labels, out);
	for (unsigned i = 0; i < hooks->n_families; i++)
		stat_describe(&hooks->families[i].def, "", hooks->families[i].labels, out);
}

void svc_metrics(struct svc *s, struct buf *out)
{
	char labels[128], prefix[64];
	snprintf(labels, sizeof labels, "name=\"%s\",role=\"%s\"", s->name, role_of(s));
	prefix_of(s->hooks, prefix, sizeof prefix);
	stat_render_head(&build_info.def, "pdserve_", out);
	buf_printf(out, "pdserve_build_info{%s,program=\"%s\",version=\"%s\",commit=\"%s\"} 1\n",
	           labels, s->hooks->program, PDSERVE_VERSION, build_commit());
	common_metrics(s, labels, out);
	if (s->hooks->refresh)
		s->hooks->refresh(s);
	if (s->hooks->metrics)
		s->hooks->metrics(s, out);
	else if (s->hooks->stats && s->stats)
		stat_render(s->hooks->stats, s->stats, prefix, labels, out);
}

const char *svc_state(const struct svc *s)
{
	return s->draining ? "draining" : s->waiting ? "waiting" : "running";
}

/* --- the endpoint -------------------------------------------------------- */

void svc_metrics_reply(struct svc *s, struct http_conn *c)
{
	struct buf *page = &s->metrics.page;
	uint64_t now = clock_us();
	if (!page->len || now - s->metrics.page_us > PAGE_LIFE_US) {
		buf_reset(page);
		svc_metrics(s, page);
		s->metrics.page_us = now;
		log_debug("metrics_rendered", "bytes=%zu took_us=%llu", page->len,
		          (unsigned long long)(clock_us() - now));
	}
	if (page->full)
		http_reply(c, 503, "text/plain", NULL, "no memory for the page\n", 23);
	else
		http_reply(c, 200, PAGE_TYPE, NULL, page->data, page->len);
}

static void reply_health(struct svc *s, struct http_conn *c)
{
	char text[256];
	int n = snprintf(text, sizeof text,
	                 "{\"status\":\"ok\",\"state\":\"%s\",\"name\":\"%s\",\"role\":\"%s\"}\n",
	                 svc_state(s), s->name, role_of(s));
	http_reply(c, 200, "application/json", NULL, text, (size_t)n);
}

static const struct page {
	const char *path;
	void (*reply)(struct svc *s, struct http_conn *c);
} pages[] = {{"/metrics", svc_metrics_reply}, {"/health", reply_health}};

static int on_head(void *arg, struct http_conn *c, struct http_head *head, size_t *body_max)
{
	static const char lost[] = "this port has /metrics and /health\n", wrong[] = "GET or HEAD\n";
	(void)arg;
	(void)body_max;
	for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
		if (strcmp(head->path, pages[i].path) == 0)
			head->route = &pages[i];
	if (!head->route)
		http_reply(c, 404, "text/plain", NULL, lost, sizeof lost - 1);
	else if (strcmp(head->method, "GET") != 0 && strcmp(head->method, "HEAD") != 0)
		http_reply(c, 405, "text/plain", "Allow: GET, HEAD\r\n", wrong, sizeof wrong - 1);
	else
		return 0;
	return 1;
}

static void on_request(void *arg, struct http_conn *c, struct http_request *q)
{
	((const struct page *)q->head->route)->reply(arg, c);
}

/* "HOST:PORT+": the number at the end of the daemon's name is added to the port, so that the
 * instances of one configuration file have ports of their own. */
static int address_of(const struct svc *s, char *out, size_t size, struct err *err)
{
	const char *listen = s->values.metrics_listen, *colon = strrchr(listen, ':');
	const char *digits = s->name + strlen(s->name);
	char *end = NULL;
	long port = colon ? strtol(colon + 1, &end, 10) : 0, number;
	while (digits > s->name && digits[-1] >= '0' && digits[-1] <= '9')
		digits--;
	number = strtol(digits, NULL, 10);
	if (!colon || end == colon + 1 || (*end && strcmp(end, "+") != 0) || port < 0 || port > 65535)
		return err_set(err, ERR_INVALID,
		               "metrics_listen = \"%s\": allowed is HOST:PORT with a port of 0 to 65535, "
		               "or HOST:PORT+",
		               listen);
	if (*end && (!*digits || number > 65535 - port))
		return err_set(err, ERR_INVALID,
		               "metrics_listen = \"%s\" adds the number at the end of the name \"%s\" to "
		               "the port: %s",
		               listen, s->name,
		               *digits ? "that is more than 65535; choose a lower port"
		                       : "there is none; leave out the +");
	snprintf(out, size, "%.*s%ld", (int)(colon + 1 - listen), listen, *end ? port + number : port);
	return 0;
}

static size_t on_refused(void *arg, const char *path, int status, const char *text, char *out,
                         size_t size)
{
	(void)arg;
	(void)path;
	(void)text;
	return (size_t)snprintf(out, size, "{\"error\":\"refused\",\"status\":%d}\n", status);
}

unsigned svc_metrics_descriptors(const struct svc *s)
{
	return *s->values.metrics_listen ? http_descriptors(CONNECTIONS_MAX) : 0;
}

int svc_metrics_check(const struct svc *s, struct err *err)
{
	char address[300];
	if (!*s->values.metrics_listen)
		return 0;
	int r = address_of(s, address, sizeof address, err);
	return r < 0 ? r : http_check_listen("metrics_listen", address, err);
}

int svc_metrics_start(struct svc *s, struct err *err)
{
	static const struct http_handlers handlers = {.head = on_head, .request = on_request};
	char address[300];
	const struct http_opts o = {.setting = "metrics_listen",
	                            .listen = address,
	                            .max_header_bytes = HEADER_BYTES_MAX,
	                            .max_body_bytes = BODY_BYTES_MAX,
	                            .in_bytes_max = INPUT_BYTES_MAX,
	                            .out_bytes_max = PAGE_BYTES_MAX + HEAD_BYTES,
	                            .out_total_max = OUTPUT_BYTES_MAX,
	                            .max_connections = CONNECTIONS_MAX,
	                            .idle_us = IDLE_US,
	                            .read_us = READ_US,
	                            .write_us = WRITE_US,
	                            .error_body = on_refused};
	buf_init(&s->metrics.page, PAGE_BYTES_MAX);
	if (!*s->values.metrics_listen)
		return 0;
	int r = address_of(s, address, sizeof address, err);
	if (r == 0)
		r = http_new(s->base, &o, &handlers, s, &s->metrics.http, err);
	if (r == 0)
		log_notice("metrics", "listen=%s port=%u", log_quote(address), http_port(s->metrics.http));
	return r;
}

void svc_metrics_stop(struct svc *s)
{
	http_destroy(&s->metrics.http);
	buf_fini(&s->metrics.page);
}
