/* main.c - pdbench: generates load on a server with OpenAI's HTTP interface and reports how it
 * performed.
 *
 * Exit status: 0 done; 1 more requests failed than --allow-errors permits, the run was interrupted,
 * or a file could not be written; 2 wrong usage; 3 no server, or access denied. Figures go to
 * stdout, everything else to stderr. */
#include "client.h"
#include "probe.h"
#include "report.h"
#include "run.h"
#include "util/log.h"
#include "util/version.h"

#include <signal.h>
#include <string.h>

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NO_SERVER = 3 };

static int complain(int code, const struct err *e)
{
	fprintf(stderr, "pdbench: %s\n", e->text);
	return code;
}

static int find_server(struct bench_options *o, struct server_info *server, struct err *err)
{
	struct err why = {0};
	for (unsigned i = 0; i < o->n_urls; i++)
		if (url_resolve(&o->urls[i], err) < 0 ||
		    (o->urls[i].tls && !o->tls && client_tls(o->cacert, o->insecure, &o->tls, err) < 0))
			return -1;
	if (probe_server(o, server, &why) < 0) {
		*err = why;
		return -1;
	}
	if (why.code && !o->quiet)
		fprintf(stderr,
		        "pdbench: %s: continuing without the model's name, context and vocabulary\n",
		        why.text);
	why.code = 0;
	if (adapt_to_server(o, server, &why) < 0) {
		*err = why;
		return -1;
	}
	if (why.code && !o->quiet)
		fprintf(stderr, "pdbench: %s: continuing with requests as they were asked for\n", why.text);
	if (*server->adapted && !o->quiet)
		fprintf(stderr, "pdbench: adapted to the server: %s\n", server->adapted);
	return 0;
}

/* Fails before the run, not after it, if an output file cannot be written. */
static int check_files(const struct bench_options *o, struct err *err)
{
	const char *const paths[] = {o->json, o->requests, o->svg};
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
		FILE *f = paths[i] && strcmp(paths[i], "-") != 0 ? fopen(paths[i], "ae") : NULL;
		if (paths[i] && strcmp(paths[i], "-") != 0 && !f)
			return err_set(err, ERR_IO, "cannot write %s: %m", paths[i]);
		if (f)
			fclose(f);
	}
	return 0;
}

static int write_out(const struct bench_report *p)
{
	const struct bench_options *o = p->o;
	struct err e = {0};
	int bad = 0;
	int to_stdout = (o->json && strcmp(o->json, "-") == 0) ||
	                (o->requests && strcmp(o->requests, "-") == 0) ||
	                (o->svg && strcmp(o->svg, "-") == 0);
	if (!o->quiet)
		report_table(p, to_stdout ? stderr : stdout);
	if (o->json && report_json(p, o->json, &e) < 0)
		bad = complain(EXIT_FAILED, &e);
	if (o->requests && report_requests(p, o->requests, &e) < 0)
		bad = complain(EXIT_FAILED, &e);
	if (o->svg && report_svg(p, o->svg, &e) < 0)
		bad = complain(EXIT_FAILED, &e);
	if (o->result_prefix)
		report_results(p, to_stdout ? stderr : stdout);
	return bad;
}

static int verdict(const struct bench_report *p)
{
	const struct figures *f = p->f;
	double allowed = (double)p->o->allow_count + p->o->allow_fraction * (double)f->requests;
	struct err e;
	if (p->r->interrupted)
		return EXIT_FAILED;
	if ((double)f->failed > allowed) {
		err_set(&e, ERR_IO,
		        "%llu of %llu requests failed, more than the %.0f that --allow-errors permits",
		        (unsigned long long)f->failed, (unsigned long long)f->requests, allowed);
		return complain(EXIT_FAILED, &e);
	}
	if (f->ok == 0 && f->left == 0) {
		err_set(&e, ERR_IO, "no request completed in the measured part of the run");
		return complain(EXIT_FAILED, &e);
	}
	return EXIT_DONE;
}

static int bench(struct bench_options *o, int argc, char **argv)
{
	struct err e = {0};
	struct server_info server;
	struct result r;
	struct figures f;
	if (check_files(o, &e) < 0)
		return complain(EXIT_FAILED, &e);
	if (find_server(o, &server, &e) < 0)
		return complain(EXIT_NO_SERVER, &e);
	if (run_load(o, &server, &r, &e) < 0) {
		result_fini(&r);
		return complain(EXIT_USAGE, &e);
	}
	figures_make(&r, o, &f);
	struct bench_report p = {o, &server, &r, &f, argc, argv};
	int bad = write_out(&p), code = verdict(&p);
	result_fini(&r);
	return code ? code : bad;
}

int main(int argc, char **argv)
{
	struct bench_options o;
	struct err e = {0};
	signal(SIGPIPE, SIG_IGN);
	log_set_level("error");
	int r = options_parse(argc, argv, &o, &e), code = EXIT_DONE;
	if (r == OPTIONS_HELP)
		options_help(stdout);
	else if (r == OPTIONS_VERSION)
		printf("pdbench %s\n", build_version());
	else if (r < 0)
		code = complain(EXIT_USAGE, &e);
	else
		code = bench(&o, argc, argv);
	options_fini(&o);
	return fflush(stdout) == 0 ? code : EXIT_FAILED;
}
