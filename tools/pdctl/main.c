/* main.c - pdctl, the operator's command line: options, the table of commands, exit codes.
 *
 * Exit status: 0 done; 1 a daemon refused, or the item does not exist; 2 wrong usage; 3 a daemon
 * could not be reached. Answers go to stdout, everything else to stderr. */
#include "pdctl.h"
#include "term.h"

#include "msg/codec.h"
#include "util/log.h"
#include "util/machine.h"
#include "util/mem.h"
#include "util/near.h"
#include "util/version.h"

#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_US 2000000u
#define FLUSH_WAIT_US 130000000u /* storage waits up to two minutes for a Redis */

typedef int command_fn(const struct options *o, char *const *args, size_t n_args);

static int worse(int a, int b)
{
	return a > b ? a : b;
}

/* The targets of a command: the daemon that -d or -e names, else all. */
static size_t chosen(const struct options *o, struct target **ret_list)
{
	struct target one;
	if (!o->daemon && !o->endpoint)
		return targets_find(o, ret_list);
	if (target_one(o, "", &one) != EXIT_DONE)
		return 0;
	*ret_list = malloc(sizeof one);
	if (!*ret_list)
		return 0;
	**ret_list = one;
	return 1;
}

/* --- kv, requests -------------------------------------------------------- */

/* Asks all daemons that know the command; a daemon named by -d or -e must know it. ret_all: {name:
 * answer}. */
static int ask_all(const struct options *o, const char *command, char *const *args, size_t n_args,
                   json_t **ret_all)
{
	struct target *list;
	size_t n = chosen(o, &list), answers = 0;
	int code = n ? EXIT_DONE : EXIT_UNREACHABLE;
	char refused[400] = "";
	*ret_all = json_object();
	if (!n)
		return code;
	struct ctl_answer *got = mem_zalloc(n * sizeof *got);
	ask_each(o, list, n, command, args, n_args, got);
	for (size_t i = 0; i < n; i++) {
		char *text = got[i].text;
		int r = got[i].code;
		json_t *j = r == EXIT_DONE ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
		if (j)
			answers += json_object_set_new(*ret_all, list[i].name, j) == 0;
		/* of several, skip those without the command */
		else if (r != EXIT_REFUSED || n == 1)
			fprintf(stderr, "pdctl: %s: %s\n", list[i].name,
			        r == EXIT_DONE ? "the answer is not JSON" : text);
		if (r != EXIT_REFUSED || n == 1)
			code = worse(code, r);
		else if (!strstr(text, "has no command")) /* it knows the command: what it says counts */
			snprintf(refused, sizeof refused, "%s", text);
		free(text);
	}
	if (!answers && *refused)
		fprintf(stderr, "pdctl: %s\n", refused);
	else if (!answers && code == EXIT_DONE)
		fprintf(stderr, "pdctl: no daemon in %s knows the command %s\n", o->rundir, command);
	if (!answers && code == EXIT_DONE)
		code = EXIT_REFUSED;
	free(got);
	free(list);
	return code;
}

/* For --json: the answer of a single daemon, or {name: answer}. */
static void print_answers(const struct options *o, const json_t *all)
{
	if (!o->daemon && !o->endpoint)
		print_json(all);
	else if (json_object_size(all))
		print_json(json_object_iter_value(json_object_iter((json_t *)all)));
}

static void show_tiers(const json_t *all);

/* The storage tiers as the workers see them; nothing without storage, or for a single worker. */
static void show_stored(const struct options *o)
{
	struct target *list;
	if (o->daemon || o->endpoint)
		return;
	json_t *all = json_object();
	size_t n = chosen(o, &list);
	struct ctl_answer *got = mem_zalloc((n + 1) * sizeof *got);
	ask_each(o, list, n, "storage", NULL, 0, got);
	for (size_t i = 0; i < n; i++) {
		json_t *j = got[i].code == EXIT_DONE ? json_loads(got[i].text, JSON_DECODE_ANY, NULL)
		                                     : NULL;
		if (j)
			json_object_set_new(all, list[i].name, j);
		free(got[i].text);
	}
	free(got);
	if (n)
		free(list);
	if (json_object_size(all)) {
		puts("\nstored:");
		show_tiers(all);
	}
	json_decref(all);
}

static void show_below(const json_t *all)
{
	const char *name;
	json_t *kv;
	int rows = 0;
	struct table *t = table_new();
	show_kv_below_head(t);
	json_object_foreach((json_t *)all, name, kv)
		rows += show_kv_below_rows(t, name, kv);
	if (rows)
		puts("\nblocks of storage, as the workers see it:");
	if (rows)
		table_print(&t);
	else
		table_destroy(&t);
}

static int kv_command(const struct options *o, char *const *args, size_t n_args)
{
	json_t *all, *kv;
	const char *name;
	int code = ask_all(o, "kv", args, n_args, &all);
	if (o->json) {
		print_answers(o, all);
	} else if (json_object_size(all)) {
		struct table *t = table_new();
		show_kv_head(t);
		json_object_foreach(all, name, kv)
			show_kv_row(t, name, kv);
		table_print(&t);
		show_below(all);
		json_object_foreach(all, name, kv)
			show_kv_owners(name, kv);
		show_stored(o);
	}
	json_decref(all);
	return code;
}

/* The tiers of every storage daemon. */
static void show_tiers(const json_t *all)
{
	const char *name;
	json_t *answer;
	struct table *t = table_new();
	show_tiers_head(t);
	json_object_foreach((json_t *)all, name, answer)
		show_tiers_rows(t, name, answer);
	table_print(&t);
}

static int storage_command(const struct options *o, char *const *args, size_t n_args)
{
	json_t *all, *answer;
	const char *name;
	int code = ask_all(o, "storage", args, n_args, &all);
	if (o->json) {
		print_answers(o, all);
	} else if (json_object_size(all)) {
		show_tiers(all);
		json_object_foreach(all, name, answer)
			show_tier_workers(name, answer);
	}
	json_decref(all);
	return code;
}

/* The answer comes when the flush is done; a Redis with millions of keys takes a while. */
static int flush_command(const struct options *o, char *const *args, size_t n_args)
{
	struct options patient = *o;
	struct target t;
	json_t *j;
	if (o->timeout_us == WAIT_US)
		patient.timeout_us = FLUSH_WAIT_US;
	int r = target_one(o, "storage", &t);
	if (r == EXIT_DONE)
		r = ask_json(&patient, &t, "flush", args, n_args, &j);
	if (r != EXIT_DONE)
		return r;
	if (o->json)
		print_json(j);
	else
		printf("%s: %lld blocks dropped\n", json_string_value(json_object_get(j, "tier")),
		       (long long)json_integer_value(json_object_get(j, "blocks")));
	json_decref(j);
	return EXIT_DONE;
}

static int show_answers(const struct options *o, const char *command, char *const *args,
                        size_t n_args)
{
	json_t *all, *j;
	const char *name;
	int code = ask_all(o, command, args, n_args, &all);
	if (o->json) {
		print_answers(o, all);
	} else {
		size_t i = 0;
		json_object_foreach(all, name, j) {
			if (json_object_size(all) > 1)
				printf("%s%s:\n", i++ ? "\n" : "", name);
			show_any(j);
		}
	}
	json_decref(all);
	return code;
}

/* --- questions to one daemon --------------------------------------------- */

static int workers_command(const struct options *o, char *const *args, size_t n_args)
{
	struct target t;
	json_t *j;
	int r = target_one(o, "router", &t);
	if (r != EXIT_DONE || (r = ask_json(o, &t, "workers", args, n_args, &j)) != EXIT_DONE)
		return r;
	const json_t *list = json_is_object(j) && json_object_get(j, "workers")
	                         ? json_object_get(j, "workers")
	                         : j;
	if (o->json)
		print_json(j);
	else if (json_array_size(list))
		show_workers(list);
	else
		puts("no worker is registered");
	json_decref(j);
	return r;
}

/* Shows a list that one daemon answers with; `none`: what an empty one means. */
static int list_command(const struct options *o, const char *daemon, const char *command,
                        char *const *args, size_t n_args, void (*show)(const json_t *list),
                        const char *none)
{
	struct target t;
	json_t *j;
	int r = target_one(o, daemon, &t);
	if (r != EXIT_DONE || (r = ask_json(o, &t, command, args, n_args, &j)) != EXIT_DONE)
		return r;
	if (o->json)
		print_json(j);
	else if (json_array_size(j))
		show(j);
	else
		puts(none);
	json_decref(j);
	return r;
}

/* Only routers know whose a request is. */
static int requests_command(const struct options *o, char *const *args, size_t n_args)
{
	if (n_args)
		return list_command(o, "router", "requests", args, n_args, show_any,
		                    "no request of this key is at work");
	return show_answers(o, "requests", args, n_args);
}

static int links_command(const struct options *o, char *const *args, size_t n_args)
{
	return list_command(o, "messager", "links", args, n_args, show_links,
	                    "no messager of another host is known");
}

static int tenants_command(const struct options *o, char *const *args, size_t n_args)
{
	return list_command(o, "router", "tenants", args, n_args, show_any,
	                    "no access keys (api_keys_file)");
}

static int config_command(const struct options *o, char *const *args, size_t n_args)
{
	struct target t;
	json_t *j;
	int r = target_one(o, "router", &t);
	if (r != EXIT_DONE || (r = ask_json(o, &t, "config", NULL, 0, &j)) != EXIT_DONE)
		return r;
	const char *only = n_args ? args[0] : NULL;
	if (only && !json_object_get(j, only)) {
		fprintf(stderr, "pdctl: %s has no configuration key \"%s\"\n", t.name, only);
		r = EXIT_REFUSED;
	} else if (o->json) {
		print_json(only ? json_object_get(j, only) : j);
	} else if (only) {
		show_config_key(only, json_object_get(j, only));
	} else {
		show_config(j);
	}
	json_decref(j);
	return r;
}

static int metrics_command(const struct options *o, char *const *args, size_t n_args)
{
	struct target t;
	char *text;
	int r = target_one(o, "router", &t);
	if (r != EXIT_DONE)
		return r;
	r = ask_text(o, &t, "metrics", args, n_args, &text);
	if (r != EXIT_DONE)
		fprintf(stderr, "pdctl: %s: %s\n", t.name, text);
	else if (!o->json)
		fputs(text, stdout);
	else {
		json_t *j = json_pack("{s:s,s:s}", "name", t.name, "text", text);
		print_json(j);
		json_decref(j);
	}
	free(text);
	return r;
}

static int log_level_command(const struct options *o, char *const *args, size_t n_args)
{
	return show_answers(o, "log-level", args, n_args);
}

static int stop_command(const struct options *o, char *const *args, size_t n_args)
{
	struct options one = *o;
	if (n_args && !o->daemon && strcmp(args[0], "all") != 0)
		one.daemon = args[0];
	if (!n_args && !o->daemon && !o->endpoint) {
		fprintf(stderr, "pdctl: stop needs a name: `pdctl stop NAME`, or `pdctl stop all`\n");
		return EXIT_USAGE;
	}
	return show_answers(&one, "stop", NULL, 0);
}

static int machine_command(const struct options *o, char *const *args, size_t n_args)
{
	(void)o;
	(void)args;
	(void)n_args;
	printf("threads=%u memory_mb=%llu\n", machine_threads(""),
	       (unsigned long long)(machine_memory("") >> 20));
	return EXIT_DONE;
}

/* --- options ------------------------------------------------------------- */

static const struct command {
	const char *name, *args, *help;
	command_fn *fn;
	size_t args_max;
} commands[] = {
	{"status", "", "all daemons: state, process, links, load", status_command, 0},
	{"top", "",
     "the whole suite on one screen, again and again: rates, times, queues, blocks, transfers",
     top_command, 0},
	{"workers", "", "the workers that the router knows", workers_command, 0},
	{"tenants", "[KEY]",
     "the access keys of clients by name: limits, what is left and what was used", tenants_command,
     1},
	{"requests", "[KEY]", "what each daemon has of the requests under way; or of an access key's",
     requests_command, 1},
	{"kv", "", "KV blocks by state; owner, age and reason of every block in use", kv_command, 0},
	{"storage", "",
     "stored blocks by tier: state, hits, rates, queues, losses; the attached workers",
     storage_command, 0},
	{"links", "",
     "the messager's ways to other hosts: transport, latency and rate of its canary, errors",
     links_command, 0},
	{"flush", "[TIER]", "drop stored blocks, in all tiers or in memory, disk or redis",
     flush_command, 1},
	{"trace", "[ID...]", "timelines of requests, from the logs of all daemons", trace_command, 100},
	{"config", "[KEY]", "configuration of the router, or of the daemon that -d names",
     config_command, 1},
	{"metrics", "", "metrics of the router, or of the daemon that -d names, as Prometheus text",
     metrics_command, 0},
	{"role", "NAME [ROLE]",
     "show a worker's role, or switch it to prefill, decode or mixed and wait until it is done",
     role_command, 2},
	{"drain", "NAME",
     "let a worker take no new requests, also after a restart; what it has goes on", drain_command,
     1},
	{"undrain", "NAME", "let it take requests again", undrain_command, 1},
	{"log-level", "[LEVEL]", "show or set the log level: debug, info, notice, warn, error",
     log_level_command, 1},
	{"chat", "[TEXT]",
     "ask the model; without TEXT: a conversation, /help in it lists its commands", chat_command,
     64},
	{"render", "MODEL [FILE|-]",
     "the prompt for the body of a chat request; needs no daemon; MODEL: a GGUF file or a folder",
     render_command, 2},
	{"tokenize", "MODEL [TEXT|-]", "a text's token ids and pieces; needs no daemon",
     tokenize_command, 2},
	{"detokenize", "MODEL [ID...|-]", "the text of token ids; needs no daemon", detokenize_command,
     SIZE_MAX},
	{"keygen", "NAME ROLE",
     "make a key for links between hosts; ROLE: router, worker, rank, messager, storage, operator",
     keygen_command, 2},
	{"apikey", "NAME",
     "make an access key for a client: its line for the router's api_keys_file on stdout, the key "
     "itself on stderr",
     apikey_command, 1},
	{"keys", "", "the keys of other hosts' daemons and operators that this host knows",
     keys_command, 0},
	{"machine", "",
     "cores and memory that affinity and control groups leave to daemons started here; needs no "
     "daemon",
     machine_command, 0},
	{"stop", "NAME|all", "stop daemons in order", stop_command, 1},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static const struct command *command_find(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static int unknown_command(const char *name)
{
	struct nearest n = {.word = name};
	for (size_t i = 0; i < COMMANDS; i++)
		nearest_try(&n, commands[i].name);
	const char *near = n.best;
	fprintf(stderr,
	        "pdctl: unknown command \"%s\"%s%s%s; `pdctl help` lists them, -d NAME asks one "
	        "daemon\n",
	        name, near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
	return EXIT_USAGE;
}

/* `of`: the commands that look at it; ASK: and all that ask daemons, which ALONE do not. */
#define ASK "*"
#define ALONE "trace render tokenize detokenize keygen apikey keys machine"
static const struct {
	const char *names, *of, *help;
} option_texts[] = {
	{"-r, --rundir DIR", ASK " trace",
     "folder of the daemons' sockets (default: PDSERVE_RUNDIR, else the launcher's, else "
     "/run/pdserve)"},
	{"-e, --endpoint ADDR", ASK,
     "one daemon's ZeroMQ address: ipc:///run/pdserve/router.ipc, or NAME@tcp://HOST:PORT on "
     "another host"},
	{"-k, --keys FOLDER", ASK " keygen keys", "folder of keys (default /etc/pdserve/keys)"},
	{"-i, --identity NAME", ASK, "our own key there, for another host (default operator)"},
	{"-d, --daemon NAME", ASK, "only this daemon"},
	{"-u, --url URL", "chat",
     "the router's address for chat, http:// or https:// (default: from the router's "
     "configuration)"},
	{"    --api-key KEY", "chat", "chat's access key (default: OPENAI_API_KEY)"},
	{"    --cacert FILE", "chat",
     "certificates of the authorities that chat trusts, PEM (default: the system's)"},
	{"    --insecure", "chat", "chat: accept any certificate"},
	{"-S, --system TEXT", "chat", "the system message of a chat"},
	{"-s, --set KEY=VALUE", "chat render tokenize",
     "sets a member of the chat request, for instance temperature=0 (VALUE is JSON, otherwise "
     "text; default: temperature=0.7, min_p=0.05),\n"
     "                       of render's body, or add_special_tokens of tokenize"},
	{"    --requests N, --tokens N, --concurrent N", "apikey",
     "limits of an apikey: requests and tokens a minute, answers at once"},
	{"    --shared-cache", "apikey", "apikey: use the cached prefixes of all keys that say so"},
	{"    --replace FILE", "apikey",
     "apikey: a new key for NAME in this file, at once; limits stay, older keys end"},
	{"    --template FILE", "render", "chat template for render, instead of the model's own"},
	{"    --from SOURCE", "trace",
     "trace: read \"journal\", a folder of logs or journals, a file, or - (default: logs in "
     "RUNDIR, else the journal)"},
	{"    --last N", "trace", "trace: the last N requests that ended, instead of IDs"},
	{"    --svg FILE", "trace", "trace: also draw it (- for stdout)"},
	{"    --chrome FILE", "trace",
     "trace: also write JSON for Perfetto and chrome://tracing (- for stdout)"},
	{"-j, --json", ASK " trace keys render tokenize detokenize", "JSON instead of text"},
	{"    --interval S", "top", "top: seconds between screens (default 1)"},
	{"-n, --count N", "top", "top: print N screens and end"},
	{"    --once", "top", "top: print one screen and end"},
	{"-w, --wide", ASK " trace keys",
     "tables with all columns, wider than the terminal if need be (as when stdout is no terminal)"},
	{"-t, --timeout MS", ASK, "longest wait for an answer (default 2000; flush: 130000)"},
};

static int is_word_of(const char *words, const char *word)
{
	size_t n = strlen(word);
	for (const char *at = words; (at = strstr(at, word)); at += n)
		if ((at == words || at[-1] == ' ') && (!at[n] || at[n] == ' '))
			return 1;
	return 0;
}

/* c: only those that the command looks at; NULL: all. */
static void print_options(FILE *f, const struct command *c)
{
	for (size_t i = 0; i < sizeof option_texts / sizeof *option_texts; i++)
		if (!c || is_word_of(option_texts[i].of, c->name) ||
		    (!is_word_of(ALONE, c->name) && is_word_of(option_texts[i].of, ASK)))
			fprintf(f, "  %-19s  %s\n", option_texts[i].names, option_texts[i].help);
}

static void usage(FILE *f)
{
	fputs("usage: pdctl [-r RUNDIR | -e ENDPOINT] [-d NAME] [--json] COMMAND [ARGUMENT]...\n", f);
	fputs("  help       [COMMAND]        this list, or one command of it\n", f);
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(f, "  %-10s %-16s %s\n", commands[i].name, commands[i].args, commands[i].help);
	fputs("  Any other command goes to the daemon that -d names (`pdctl -d NAME help` lists "
	      "them).\noptions:\n",
	      f);
	print_options(f, NULL);
	fputs("  -h, --help, -V, --version\n"
	      "exit status: 0 done, 1 refused or not found, 2 wrong usage, 3 a daemon could not be "
	      "reached\n",
	      f);
}

static const char *default_rundir(void)
{
	static char path[256];
	const char *env = getenv("PDSERVE_RUNDIR"), *xdg = getenv("XDG_RUNTIME_DIR");
	if (env && *env)
		return env;
	if (xdg && *xdg)
		snprintf(path, sizeof path, "%s/pdserve", xdg);
	else
		snprintf(path, sizeof path, "/tmp/pdserve-%ld", (long)getuid());
	return access(path, F_OK) == 0 || access("/run/pdserve", F_OK) != 0 ? path : "/run/pdserve";
}

static void set_member(struct options *o, const char *text)
{
	const char *eq = strchr(text, '=');
	char *key = strndup(text, (size_t)(eq - text));
	json_t *v = json_loads(eq + 1, JSON_DECODE_ANY, NULL);
	if (!o->members)
		o->members = json_object();
	json_object_set_new(o->members, key ? key : "", v ? v : json_string(eq + 1));
	free(key);
}

/* options without a letter */
enum {
	OPTION_API_KEY = 256,
	OPTION_CACERT,
	OPTION_INSECURE,
	OPTION_REQUESTS,
	OPTION_TOKENS,
	OPTION_CONCURRENT,
	OPTION_SHARED_CACHE,
	OPTION_REPLACE,
	OPTION_FROM,
	OPTION_LAST,
	OPTION_SVG,
	OPTION_CHROME,
	OPTION_INTERVAL,
	OPTION_ONCE
};

/* A number from least to most as the value of an option; else says so and returns -1. */
static double number_of(const char *option, const char *text, double least, double most)
{
	char *end;
	double v = strtod(text, &end);
	if (end != text && !*end && v >= least && v <= most)
		return v;
	fprintf(stderr, "pdctl: %s takes a number from %.15g to %.15g, not \"%s\"\n", option, least,
	        most, text);
	return -1;
}

/* Options that set one text. */
static const struct {
	int option;
	size_t at;
} texts[] = {
	{'r', offsetof(struct options, rundir)},
	{'e', offsetof(struct options, endpoint)},
	{'d', offsetof(struct options, daemon)},
	{'k', offsetof(struct options, keys)},
	{'i', offsetof(struct options, identity)},
	{'u', offsetof(struct options, http.url)},
	{OPTION_API_KEY, offsetof(struct options, http.key)},
	{OPTION_CACERT, offsetof(struct options, http.cacert)},
	{'S', offsetof(struct options, system)},
	{'T', offsetof(struct options, chat_template)},
	{OPTION_REQUESTS, offsetof(struct options, limit.requests)},
	{OPTION_REPLACE, offsetof(struct options, replace)},
	{OPTION_TOKENS, offsetof(struct options, limit.tokens)},
	{OPTION_CONCURRENT, offsetof(struct options, limit.concurrent)},
	{OPTION_FROM, offsetof(struct options, trace.from)},
	{OPTION_LAST, offsetof(struct options, trace.last)},
	{OPTION_SVG, offsetof(struct options, trace.svg)},
	{OPTION_CHROME, offsetof(struct options, trace.chrome)},
};

/* 1 if the option sets a text. */
static int take_text(struct options *o, int c)
{
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (c == texts[i].option) {
			*(const char **)(void *)((char *)o + texts[i].at) = optarg;
			return 1;
		}
	return 0;
}

/* 1 if the option is taken; 0: it is none, or its value is wrong and nothing was said; -1: it
 * was. */
static int take_option(struct options *o, int c)
{
	double v;
	switch (c) {
	case OPTION_SHARED_CACHE: o->limit.shared_cache = 1; return 1;
	case OPTION_INSECURE: o->http.insecure = 1; return 1;
	case OPTION_ONCE: o->count = 1; return 1;
	case 'j': o->json = 1; return 1;
	case 'w': o->wide = 1; return 1;
	case 'n':
		v = number_of("-n", optarg, 1, 1e6);
		o->count = (long)v;
		return v < 0 ? -1 : 1;
	case OPTION_INTERVAL:
		v = o->interval_s = number_of("--interval", optarg, 0.1, 3600);
		return v < 0 ? -1 : 1;
	case 's':
		if (strchr(optarg, '='))
			set_member(o, optarg);
		return strchr(optarg, '=') != NULL;
	case 't': o->timeout_us = (uint64_t)atol(optarg) * 1000; return atol(optarg) > 0;
	default: return take_text(o, c);
	}
}

static const struct option longs[] = {
	{"rundir", required_argument, 0, 'r'},
	{"endpoint", required_argument, 0, 'e'},
	{"daemon", required_argument, 0, 'd'},
	{"keys", required_argument, 0, 'k'},
	{"identity", required_argument, 0, 'i'},
	{"url", required_argument, 0, 'u'},
	{"api-key", required_argument, 0, OPTION_API_KEY},
	{"cacert", required_argument, 0, OPTION_CACERT},
	{"insecure", no_argument, 0, OPTION_INSECURE},
	{"json", no_argument, 0, 'j'},
	{"wide", no_argument, 0, 'w'},
	{"set", required_argument, 0, 's'},
	{"system", required_argument, 0, 'S'},
	{"timeout", required_argument, 0, 't'},
	{"template", required_argument, 0, 'T'},
	{"requests", required_argument, 0, OPTION_REQUESTS},
	{"tokens", required_argument, 0, OPTION_TOKENS},
	{"concurrent", required_argument, 0, OPTION_CONCURRENT},
	{"shared-cache", no_argument, 0, OPTION_SHARED_CACHE},
	{"replace", required_argument, 0, OPTION_REPLACE},
	{"from", required_argument, 0, OPTION_FROM},
	{"last", required_argument, 0, OPTION_LAST},
	{"svg", required_argument, 0, OPTION_SVG},
	{"chrome", required_argument, 0, OPTION_CHROME},
	{"interval", required_argument, 0, OPTION_INTERVAL},
	{"count", required_argument, 0, 'n'},
	{"once", no_argument, 0, OPTION_ONCE},
	{"help", no_argument, 0, 'h'},
	{"version", no_argument, 0, 'V'},
	{0},
};

static int parse(int argc, char **argv, struct options *o)
{
	int c, taken;
	while ((c = getopt_long(argc, argv, "+r:e:d:k:i:n:u:jws:S:t:hV", longs, NULL)) != -1) {
		if (c == 'V') {
			printf("pdctl %s, protocol version %u\n", build_version(), PROTOCOL_VERSION);
			return -1;
		}
		if ((taken = take_option(o, c)) > 0)
			continue;
		if (taken == 0 && c == 'h')
			usage(stdout);
		else if (taken == 0) /* the whole list would scroll the mistake away */
			fputs("pdctl: `pdctl help` lists commands and options, `pdctl help COMMAND` those of "
			      "one\n",
			      stderr);
		return c == 'h' ? -1 : EXIT_USAGE;
	}
	return 0;
}

/* Arguments after "--" are not options, but a further getopt call would parse them as options. */
static int options_ended(char **argv)
{
	return optind > 1 && strcmp(argv[optind - 1], "--") == 0;
}

static int help(char **words, size_t n)
{
	const struct command *c = n ? command_find(words[0]) : NULL;
	if (n && !c)
		return unknown_command(words[0]);
	if (!c) {
		usage(stdout);
		return EXIT_DONE;
	}
	printf("usage: pdctl %s %s%s[OPTION]...\n  %s\noptions:\n", c->name, c->args,
	       *c->args ? " " : "", c->help);
	print_options(stdout, c);
	return EXIT_DONE;
}

static int pass_through(const struct options *o, char **words, size_t n)
{
	if (!o->daemon && !o->endpoint)
		return strcmp(words[0], "help") == 0 ? help(words + 1, n - 1) : unknown_command(words[0]);
	return show_answers(o, words[0], words + 1, n - 1);
}

int main(int argc, char **argv)
{
	struct options o = {.rundir = default_rundir(),
	                    .timeout_us = WAIT_US,
	                    .interval_s = 1,
	                    .keys = "/etc/pdserve/keys",
	                    .identity = "operator"};
	log_set_level("error");
	int r = parse(argc, argv, &o);
	if (r)
		return r < 0 ? EXIT_DONE : r;
	/* options may also follow the command, as in `pdctl status --json` */
	size_t n = 0;
	char **words = calloc((size_t)argc + 1, sizeof *words);
	int plain = options_ended(argv);
	while (words && optind < argc && !r) {
		words[n++] = argv[optind++];
		if (plain)
			continue;
		r = parse(argc, argv, &o);
		plain = options_ended(argv);
	}
	if (!words || r || !n) {
		if (!r)
			usage(stderr);
		free(words);
		return r < 0 ? EXIT_DONE : EXIT_USAGE;
	}
	table_fit(o.wide ? 0 : term_columns());
	const struct command *command = command_find(words[0]);
	if (!command) {
		r = pass_through(&o, words, n);
	} else if (n - 1 > command->args_max) {
		fprintf(stderr, "pdctl: %s takes: %s\n", words[0],
		        *command->args ? command->args : "no argument");
		r = EXIT_USAGE;
	} else {
		r = command->fn(&o, words + 1, n - 1);
	}
	free(words);
	json_decref(o.members);
	return fflush(stdout) == 0 && !ferror(stdout) ? r : EXIT_REFUSED;
}
