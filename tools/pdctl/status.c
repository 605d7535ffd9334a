/* status.c - `pdctl status`: every daemon of the run directory, also those that have ended.
 *
 * Each is asked itself and at once, so what is shown is as old as the answer. A daemon that does
 * not answer is shown with the time since another one has heard it. One that has stopped in order
 * is shown as long as another one misses it. */
#include "pdctl.h"

#include "util/mem.h"
#include "util/version.h"

#include <stdlib.h>
#include <string.h>

/* The shortest time since a daemon or the router's registry has heard `name`, or NULL. */
static json_t *heard_us_ago(const json_t *all, const char *name)
{
	const json_t *status, *peer, *least = NULL;
	size_t i, k;
	json_array_foreach(all, i, status)
		json_array_foreach(json_object_get(status, "peers"), k, peer) {
			const char *is = json_string_value(json_object_get(peer, "name"));
			const json_t *us = json_object_get(peer, "heard_us_ago");
			if (is && strcmp(is, name) == 0 && json_integer_value(us) >= 0 && json_is_integer(us) &&
			    (!least || json_integer_value(us) < json_integer_value(least)))
				least = us;
		}
	return least ? json_integer(json_integer_value(least)) : NULL;
}

static const char *state_of(const struct target *t, int code)
{
	if (!t->alive)
		return t->left ? "stopped" : "down";
	if (t->left)
		return "starting";
	return code == EXIT_UNREACHABLE ? "no answer" : "refused";
}

/* The daemons that -d or -e names, else all. */
static size_t find(const struct options *o, struct target **ret_list)
{
	size_t n;
	if (!o->daemon || o->endpoint) {
		if ((n = targets_scan(o, ret_list)) == 0)
			targets_find(o, ret_list); /* says why */
		return n;
	}
	*ret_list = mem_zalloc(sizeof **ret_list);
	if (target_one(o, "", *ret_list) == EXIT_DONE)
		return 1;
	free(*ret_list);
	return 0;
}

/* When a router has heard its workers, in the form of a status. */
static json_t *heard_by_router(const struct options *o, const struct target *router)
{
	char *text;
	json_t *peers = json_array(), *worker;
	int code = ask_text(o, router, "workers", NULL, 0, &text);
	json_t *workers = code == EXIT_DONE ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
	size_t i;
	json_array_foreach(workers, i, worker)
		json_array_append_new(
			peers, json_pack("{s:O?,s:I}", "name", json_object_get(worker, "name"), "heard_us_ago",
		                     1000 * json_integer_value(json_object_get(worker, "heard_ms_ago"))));
	json_decref(workers);
	free(text);
	return json_pack("{s:o}", "peers", peers);
}

/* Completes the objects of those that did not answer; drops those that nobody misses. */
static void complete(const struct options *o, json_t *all, const struct target *list, size_t n)
{
	json_t *witnesses = json_copy(all);
	size_t silent = 0;
	for (size_t i = 0; i < n; i++)
		silent += !json_object_get(json_array_get(all, i), "pid");
	for (size_t i = 0; i < n && silent; i++) {
		const char *program = json_string_value(json_object_get(json_array_get(all, i), "program"));
		if (program && strcmp(program, "pdrouterd") == 0)
			json_array_append_new(witnesses, heard_by_router(o, &list[i]));
	}
	for (size_t i = n; i-- > 0;) {
		json_t *status = json_array_get(all, i), *heard;
		if (json_object_get(status, "pid"))
			continue;
		heard = heard_us_ago(witnesses, list[i].name);
		if (heard)
			json_object_set_new(status, "heard_us_ago", heard);
		else if (list[i].left && !list[i].alive)
			json_array_remove(all, i);
	}
	json_decref(witnesses);
}

json_t *status_of_all(const struct options *o, char *const *args, size_t n_args, int *ret_code)
{
	struct target *list;
	size_t n = find(o, &list);
	json_t *all = json_array();
	*ret_code = n ? EXIT_DONE : EXIT_UNREACHABLE;
	struct ctl_answer *got = mem_zalloc((n + 1) * sizeof *got);
	ask_each(o, list, n, "status", args, n_args, got);
	for (size_t i = 0; i < n; i++) {
		json_t *j = NULL;
		if (list[i].left)
			free(got[i].text);
		else
			answer_json(&list[i], "status", &got[i], &j);
		if (!list[i].left && got[i].code > *ret_code)
			*ret_code = got[i].code;
		json_array_append_new(all, j ? j
		                             : json_pack("{s:s,s:s}", "name", list[i].name, "state",
		                                         state_of(&list[i], got[i].code)));
	}
	complete(o, all, list, n);
	free(got);
	if (n)
		free(list);
	if (n && !json_array_size(all))
		*ret_code = targets_find(o, &list) ? EXIT_DONE : EXIT_UNREACHABLE; /* says why */
	return all;
}

/* In a suite that is being upgraded: who runs which version. 80 columns each. */
static void show_other_versions(const json_t *all)
{
	const char *own = build_version();
	json_t *by_version = json_object(), *status, *names;
	const char *version;
	size_t i;
	json_array_foreach(all, i, status) {
		version = json_string_value(json_object_get(status, "version"));
		if (!version || strcmp(version, own) == 0)
			continue;
		if (!(names = json_object_get(by_version, version)))
			json_object_set_new(by_version, version, names = json_array());
		json_array_append(names, json_object_get(status, "name"));
	}
	if (json_object_size(by_version))
		printf("\nother versions than this pdctl's (%s):\n", own);
	json_object_foreach(by_version, version, names) {
		int at = printf("  %s:", version);
		json_array_foreach(names, i, status) {
			const char *name = json_string_value(status);
			int rest = (int)(json_array_size(names) - i);
			if (i && at + (int)strlen(name) > 80 - (int)sizeof ", and 999 more") {
				printf(", and %d more", rest);
				break;
			}
			at += printf("%s %s", i ? "," : "", name ? name : "?");
		}
		putchar('\n');
	}
	json_decref(by_version);
}

/* Links that one side refuses: of another protocol, another model, without a key. */
static void show_refused_links(const json_t *all)
{
	json_t *status, *peer;
	size_t i, k;
	int n = 0;
	json_array_foreach(all, i, status)
		json_array_foreach(json_object_get(status, "peers"), k, peer) {
			const char *name = json_string_value(json_object_get(status, "name")),
					   *to = json_string_value(json_object_get(peer, "name")),
					   *at = json_string_value(json_object_get(peer, "endpoint")),
					   *why = json_string_value(json_object_get(peer, "refused"));
			if (!name || !to || !why)
				continue;
			if (n++ == 0)
				puts("\nrefused links:");
			printf("  %s to %s: %s\n", name, strcmp(to, "?") == 0 && at ? at : to, why);
		}
}

int status_command(const struct options *o, char *const *args, size_t n_args)
{
	int code;
	json_t *all = status_of_all(o, args, n_args, &code), *row;
	size_t i;
	if (o->json && (o->daemon || o->endpoint)) {
		print_json(json_array_get(all, 0));
	} else if (o->json) {
		print_json(all);
	} else if (json_array_size(all)) {
		struct table *t = table_new();
		show_status_head(t);
		json_array_foreach(all, i, row)
			show_status_row(t, row);
		table_print(&t);
		show_other_versions(all);
		show_refused_links(all);
	}
	json_decref(all);
	return code;
}
