/* keys.c - keys of links between hosts: make one, and show whom this host knows. Works on files; no
 * daemon is asked. */
#include "pdctl.h"

#include "msg/keys.h"

#include <stdio.h>
#include <string.h>

int keygen_command(const struct options *o, char *const *args, size_t n_args)
{
	struct err err = {0};
	enum key_role role;
	if (n_args != 2) {
		fprintf(stderr,
		        "pdctl: keygen takes a NAME and a ROLE, as in `pdctl keygen decode-1 worker`\n");
		return EXIT_USAGE;
	}
	if (key_role_parse(args[1], &role) < 0) {
		fprintf(stderr, "pdctl: %s is no role: router, worker, messager, storage, operator\n",
		        args[1]);
		return EXIT_USAGE;
	}
	if (keys_generate(o->keys, args[0], role, &err) < 0) {
		fprintf(stderr, "pdctl: %s\n", err.text);
		return EXIT_REFUSED;
	}
	printf("%s/%s.secret  the key pair; it stays here, readable for the user of the daemon only\n"
	       "%s/%s.pub     copy it into %s/known/ on every host that talks to %s\n",
	       o->keys, args[0], o->keys, args[0], o->keys, args[0]);
	return EXIT_DONE;
}

int keys_command(const struct options *o, char *const *args, size_t n_args)
{
	struct keys *k = NULL;
	struct err err = {0};
	json_t *all = json_array();
	(void)args;
	(void)n_args;
	if (keys_known(o->keys, &k, &err) < 0) {
		fprintf(stderr, "pdctl: %s\n", err.text);
		json_decref(all);
		return EXIT_REFUSED;
	}
	struct table *t = table_new();
	table_cell(t, "name");
	table_cell(t, "role");
	table_cell(t, "fingerprint");
	table_end_row(t);
	for (size_t i = 0; i < keys_count(k); i++) {
		const struct key *key = keys_at(k, i);
		table_cell(t, "%s", key->name);
		table_cell(t, "%s", key_role_name(key->role));
		table_cell(t, "%s", key->print);
		table_end_row(t);
		json_array_append_new(all, json_pack("{s:s,s:s,s:s}", "name", key->name, "role",
		                                     key_role_name(key->role), "fingerprint", key->print));
	}
	if (o->json) {
		print_json(all);
		table_destroy(&t);
	} else {
		table_print(&t);
	}
	json_decref(all);
	keys_close(&k);
	return EXIT_DONE;
}
