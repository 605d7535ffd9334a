/* svc_opts.c - the command line of all daemons. A wrong option is reported on stderr and returned
 * as an error; nothing exits here. */
#include "svc/svc_int.h"
#include "util/mem.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct option long_options[] = {
	{"config", required_argument, 0, 'c'},
	{"test", no_argument, 0, 't'},
	{"option", required_argument, 0, 'o'},
	{"version", no_argument, 0, 'V'},
	{"help", no_argument, 0, 'h'},
	{"print-config", no_argument, 0, 'P'},
	{"print-metrics", no_argument, 0, 'M'},
	{"plan-memory", optional_argument, 0, 'L'},
	{"die-with-parent", required_argument, 0, 'D'},
	{0},
};

void svc_opts_usage(const struct svc_hooks *hooks, struct buf *out)
{
	buf_printf(
		out,
		"usage: %s [-c FILE] [-o KEY=VALUE]... [-t]\n"
		"  -c, --config FILE          read this configuration (usually /etc/pdserve/%s.conf); "
		"without it: the defaults\n"
		"  -o, --option KEY=VALUE     set one key, overriding the file; lists: items separated "
		"by spaces\n"
		"  -t, --test                 check the configuration, and the files it names that can be "
		"read (keys, certificates,\n"
		"                             the model's header); print OK, exit with 0 or 1\n"
		"      --print-config         print a configuration file with every key and its default\n"
		"      --print-metrics        print the name, labels, type and meaning of each metric\n"
		"%s"
		"      --die-with-parent PID  stop when this parent process ends\n"
		"  -V, --version              print the version\n"
		"  -h, --help                 print this and all keys\n"
		"signals: SIGTERM, SIGINT shut down in order (a second one at once); SIGHUP reads the "
		"configuration again\n",
		hooks->program, hooks->default_name,
		hooks->plan
			? "      --plan-memory[=GIB]    print what the model takes of the memory of 1 to 16 "
			  "GPUs, and whether it fits (GIB: what is\n"
			  "                             free on each); the model may be a config.json "
			  "without its weights\n"
			: "");
}

int svc_opts_parse(int argc, char **argv, const char *program, struct svc_opts *ret_o)
{
	struct svc_opts o = {.overrides = mem_array((size_t)argc + 1, sizeof(char *))};
	int c;
	while ((c = getopt_long(argc, argv, "c:to:Vh", long_options, NULL)) != -1) {
		if (c == 'c')
			o.conf_path = optarg;
		else if (c == 't')
			o.check_only = 1;
		else if (c == 'o')
			o.overrides[o.n_overrides++] = optarg;
		else if (c == 'V')
			o.print_version = 1;
		else if (c == 'h')
			o.print_help = 1;
		else if (c == 'P')
			o.print_config = 1;
		else if (c == 'M')
			o.print_metrics = 1;
		else if (c == 'L')
			o.plan = 1, o.plan_arg = optarg;
		else if (c == 'D')
			o.die_with_parent = atoi(optarg);
		else
			goto bad;
	}
	if (optind < argc) {
		fprintf(stderr, "%s: unexpected argument \"%s\"\n", program, argv[optind]);
		goto bad;
	}
	*ret_o = o;
	return 0;
bad:
	fprintf(stderr, "%s: try %s --help\n", program, program);
	free(o.overrides);
	return -1;
}
