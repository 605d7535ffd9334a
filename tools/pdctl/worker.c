/* worker.c - commands that change a worker and wait until it is done: its role, whether it takes
 * requests. */
#include "pdctl.h"

#include "util/clock.h"

#include <string.h>
#include <unistd.h>

#define ROLE_WAIT_S 120u
#define POLL_US 20000

/* Starts the switch and waits until it is done. */
int role_command(const struct options *o, char *const *args, size_t n_args)
{
	struct options one = *o;
	struct target t;
	json_t *j;
	size_t skip = n_args && !o->daemon && !o->endpoint;
	if (skip)
		one.daemon = args[0];
	if (!one.daemon && !o->endpoint) {
		fprintf(stderr, "pdctl: role needs a name: `pdctl role NAME [prefill|decode|mixed]`\n");
		return EXIT_USAGE;
	}
	int r = target_one(&one, "", &t);
	if (r != EXIT_DONE ||
	    (r = ask_json(&one, &t, "role", args + skip, n_args - skip, &j)) != EXIT_DONE)
		return r;
	for (uint64_t begun = clock_us();
	     json_is_string(json_object_get(j, "switching")) && n_args > skip;) {
		if (clock_us() - begun >= ROLE_WAIT_S * 1000000u) {
			fprintf(stderr,
			        "pdctl: %s: still switching to %s after %u s; `pdctl -d %s requests` shows "
			        "the requests that it waits for\n",
			        t.name, json_string_value(json_object_get(j, "switching")), ROLE_WAIT_S,
			        t.name);
			r = EXIT_REFUSED;
			break;
		}
		usleep(POLL_US);
		json_decref(j);
		if ((r = ask_json(&one, &t, "role", NULL, 0, &j)) != EXIT_DONE)
			return r;
	}
	if (o->json)
		print_json(j);
	else
		show_any(j);
	json_decref(j);
	return r;
}

/* Names of the routers that know, or of those that do not. */
static size_t routers_that(const json_t *answer, int know, char *out, size_t size)
{
	const json_t *router;
	size_t i, n = 0, at = 0;
	out[0] = 0;
	json_array_foreach(json_object_get(answer, "routers"), i, router) {
		const char *name = json_string_value(json_object_get(router, "name"));
		if (!name || json_is_true(json_object_get(router, "knows")) != know)
			continue;
		if (at < size)
			at += (size_t)snprintf(out + at, size - at, "%s%s", n ? ", " : "", name);
		n++;
	}
	return n;
}

/* Waits until all routers that the worker has a link to know it. The command goes out once, so that
 * the last of several operators' counts. The name of the worker is the argument, or by -d. */
static int drain_by(const struct options *o, const char *command, char *const *args, size_t n_args)
{
	struct options one = *o;
	struct target t;
	json_t *j;
	char names[400];
	if (n_args && !o->daemon && !o->endpoint)
		one.daemon = args[0];
	if (!one.daemon && !o->endpoint) {
		fprintf(stderr, "pdctl: %s needs a name: `pdctl %s NAME`\n", command, command);
		return EXIT_USAGE;
	}
	int r = target_one(&one, "", &t);
	if (r != EXIT_DONE || (r = ask_json(&one, &t, command, NULL, 0, &j)) != EXIT_DONE)
		return r;
	for (uint64_t begun = clock_us(); routers_that(j, 0, names, sizeof names);) {
		if (clock_us() - begun >= o->timeout_us) {
			fprintf(stderr, "pdctl: %s: done, but not acknowledged within %llu ms by: %s\n", t.name,
			        (unsigned long long)o->timeout_us / 1000, names);
			r = EXIT_REFUSED;
			break;
		}
		usleep(POLL_US);
		json_decref(j);
		if ((r = ask_json(&one, &t, "status", NULL, 0, &j)) != EXIT_DONE)
			return r;
		if (json_is_true(json_object_get(j, "drained")) != (strcmp(command, "drain") == 0)) {
			fprintf(stderr, "pdctl: %s: somebody has %sed it meanwhile\n", t.name,
			        strcmp(command, "drain") == 0 ? "undrain" : "drain");
			r = EXIT_REFUSED;
			break;
		}
	}
	routers_that(j, 1, names, sizeof names);
	json_t *said = json_pack("{s:O*,s:O*}", "drained", json_object_get(j, "drained"), "routers",
	                         json_object_get(j, "routers"));
	if (o->json)
		print_json(said);
	else if (r == EXIT_DONE)
		printf("%s: %sed; known to: %s\n", t.name, command, *names ? names : "no router yet");
	json_decref(said);
	json_decref(j);
	return r;
}

int drain_command(const struct options *o, char *const *args, size_t n_args)
{
	return drain_by(o, "drain", args, n_args);
}

int undrain_command(const struct options *o, char *const *args, size_t n_args)
{
	return drain_by(o, "undrain", args, n_args);
}
