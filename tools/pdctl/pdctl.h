/* pdctl.h - shared by the parts of pdctl: finding and asking daemons, tables, the commands. */
#ifndef PDCTL_PDCTL_H
#define PDCTL_PDCTL_H

#include "util/buf.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum exit_code { EXIT_DONE = 0, EXIT_REFUSED = 1, EXIT_USAGE = 2, EXIT_UNREACHABLE = 3 };

struct options {
	const char *rundir, *daemon, *endpoint, *system, *chat_template;
	const char *keys, *identity; /* folder of keys; name of our own, for other hosts */
	int json, wide;
	uint64_t timeout_us;
	struct { /* of an access key that is made; NULL: none */
		const char *requests, *tokens, *concurrent;
		int shared_cache;
	} limit;
	const char *replace; /* of apikey: the file whose key of that name is replaced; NULL: none */
	struct {
		const char *from, *last, *svg, *chrome; /* NULL: not given */
	} trace;
	double interval_s; /* of top */
	long count;        /* screens that top prints; 0: until it is ended */
	struct {           /* of chat */
		const char *url, *key, *cacert;
		int insecure;
	} http;
	json_t *members; /* -s: members of a chat request or of render's or tokenize's body, or NULL */
};

/* --- ask.c: the daemons of a run directory, or the one of an endpoint --- */
struct target {
	char name[64], endpoint[320];
	int alive; /* 0: its process is gone */
	int left;  /* its socket is gone: it has stopped in order, or, if alive, starts or stops */
};
/* As targets_find, with those that left, and without a word. */
size_t targets_scan(const struct options *o, struct target **ret_list);
/* Sorted by name, the router first. Returns their number; 0 after printing the reason to stderr.
 * The caller frees *ret_list. */
size_t targets_find(const struct options *o, struct target **ret_list);
/* The daemon that -d or -e names, else the one called `standard`, else the only one whose name
 * begins with `standard`-. If there is none, prints the reason to stderr and returns an exit code.
 */
int target_one(const struct options *o, const char *standard, struct target *ret);
/* Returns an exit code; *ret_text (malloc'd) is the answer, or the reason if the code is not 0. */
int ask_text(const struct options *o, const struct target *t, const char *command,
             char *const *args, size_t n_args, char **ret_text);
struct ctl_answer {
	int code;   /* exit code */
	char *text; /* malloc'd: the answer, or the reason if the code is not 0 */
};
/* Asks all at once, so that one that does not answer delays none. ret: one for each. */
void ask_each(const struct options *o, const struct target *list, size_t n, const char *command,
              char *const *args, size_t n_args, struct ctl_answer *ret);
/* The answer parsed; frees its text. Returns and prints as ask_json. */
int answer_json(const struct target *t, const char *command, struct ctl_answer *a,
                json_t **ret_json);
/* As ask_text, with the answer parsed. If the code is not 0, the reason has been printed and
 * *ret_json is NULL. */
int ask_json(const struct options *o, const struct target *t, const char *command,
             char *const *args, size_t n_args, json_t **ret_json);

/* --- table.c --- */
struct table;
struct table *table_new(void);
void table_cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_end_row(struct table *t);
void table_destroy(struct table **t);
/* The width of tables that are printed from now on; 0: any. */
void table_fit(size_t columns);
/* The first row is the header; columns of numbers are right-aligned. Frees the table. */
void table_print(struct table **t);
void table_write(struct table **t, FILE *f);           /* as wide as it is */
void text_bytes(char *out, size_t size, double bytes); /* "1.5 GiB" */
void text_us(char *out, size_t size, double us);       /* "12.3 ms" */
void print_json(const json_t *j);

/* --- show.c: answers as text --- */
void show_any(const json_t *j);
void show_config(const json_t *j);
void show_config_key(const char *key, const json_t *k);
void show_workers(const json_t *list);
void show_links(const json_t *list);
void show_kv_head(struct table *t);
void show_kv_row(struct table *t, const char *name, const json_t *kv);
void show_kv_below_head(struct table *t);
int show_kv_below_rows(struct table *t, const char *name, const json_t *kv); /* rows */
void show_kv_owners(const char *name, const json_t *kv);
void show_tiers_head(struct table *t);
void show_tiers_rows(struct table *t, const char *name, const json_t *storage);
void show_tier_workers(const char *name, const json_t *storage);
void show_status_head(struct table *t);
void show_status_row(struct table *t, const json_t *status);

/* --- commands --- */
/* status.c: one object for each daemon. One that does not answer has only name, state (down,
 * stopped, starting, no answer, refused) and, if another daemon has heard it, heard_us_ago. The
 * caller frees it. *ret_code: an exit code. */
json_t *status_of_all(const struct options *o, char *const *args, size_t n_args, int *ret_code);
int status_command(const struct options *o, char *const *args, size_t n_args);
int role_command(const struct options *o, char *const *args, size_t n_args);
int drain_command(const struct options *o, char *const *args, size_t n_args);
int undrain_command(const struct options *o, char *const *args, size_t n_args);
int top_command(const struct options *o, char *const *args, size_t n_args);
int trace_command(const struct options *o, char *const *args, size_t n_args);
int chat_command(const struct options *o, char *const *args, size_t n_args);
int render_command(const struct options *o, char *const *args, size_t n_args);
int tokenize_command(const struct options *o, char *const *args, size_t n_args);
int keygen_command(const struct options *o, char *const *args, size_t n_args);
int apikey_command(const struct options *o, char *const *args, size_t n_args);
int keys_command(const struct options *o, char *const *args, size_t n_args);
int detokenize_command(const struct options *o, char *const *args, size_t n_args);

/* --- http.c: one POST, the answer's body passed on in pieces --- */
struct http_peer {
	char base[300];     /* http[s]://HOST:PORT */
	const char *key;    /* sent as Authorization: Bearer; NULL: none */
	const char *cacert; /* file of the authorities to trust; NULL: the system's */
	int insecure;       /* any certificate will do */
};
struct http_hooks {
	void *arg;
	/* status: HTTP status of the answer; n is 0 at the end of the body. Nonzero ends it. */
	int (*body)(void *arg, int status, const char *data, size_t n);
	int stop_fd; /* readable: end it; -1: none */
};
#define HTTP_STOPPED 1 /* ended by `body` or stop_fd; the connection is closed */
/* 0, HTTP_STOPPED, or -1 with the reason in *ret_why (malloc'd). */
int http_post(const struct http_peer *s, const char *path, const char *body,
              const struct http_hooks *hooks, char **ret_why);

#endif
