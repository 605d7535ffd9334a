/* svc_ctl.c - the pdctl commands that every daemon has, and the dispatch to the daemon's own.
 * Answers are JSON, except `metrics`, which is Prometheus text. An answer is bounded
 * (ANSWER_BYTES_MAX); nothing that is asked ends the daemon. */
#include "svc/svc_int.h"
#include "util/clock.h"
#include "util/descriptors.h"
#include "util/mem.h"
#include "util/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_BYTES_MAX (32u << 20)

static void json_member(struct buf *out, const char *key, const char *value)
{
	buf_printf(out, "\"%s\":", key);
	buf_add_json(out, value, strlen(value));
}

static void status_peers(struct svc *s, struct buf *out)
{
	uint64_t now = clock_us();
	int first = 1;
	buf_adds(out, ",\"peers\":[");
	for (struct peer *p = chan_next(s->chan, NULL); p; p = chan_next(s->chan, p)) {
		buf_adds(out, first ? "{" : ",{");
		first = 0;
		const char *refusal = peer_refusal(p), *name = peer_name(p);
		if (refusal && *peer_expected(p))
			name = peer_expected(p);
		json_member(out, "name", name);
		buf_addc(out, ',');
		json_member(out, "program", peer_program(p) ? peer_program(p) : "?");
		if (refusal) {
			buf_addc(out, ',');
			json_member(out, "endpoint", peer_endpoint(p));
			buf_addc(out, ',');
			json_member(out, "refused", refusal);
		}
		uint64_t heard = peer_heard_us(p);
		buf_printf(out, ",\"up\":%s,\"epoch\":%llu,\"heard_us_ago\":%lld}",
		           peer_is_up(p) ? "true" : "false", (unsigned long long)peer_epoch(p),
		           heard ? (long long)(now > heard ? now - heard : 0) : -1LL);
	}
	buf_addc(out, ']');
}

static int ctl_status(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                      struct err *err)
{
	struct chan_counts c;
	(void)args;
	(void)n_args;
	(void)err;
	chan_counts(s->chan, &c);
	buf_addc(out, '{');
	json_member(out, "program", s->hooks->program);
	buf_addc(out, ',');
	json_member(out, "name", s->name);
	buf_addc(out, ',');
	json_member(out, "version", build_version());
	buf_addc(out, ',');
	json_member(out, "endpoint", s->endpoint);
	buf_printf(out, ",\"pid\":%ld,\"epoch\":%llu,\"uptime_us\":%llu,\"state\":\"%s\"",
	           (long)getpid(), (unsigned long long)s->epoch,
	           (unsigned long long)(clock_us() - s->started_us), svc_state(s));
	buf_printf(out,
	           ",\"messages\":{\"sent\":%llu,\"received\":%llu,\"resent\":%llu,\"duplicates\":%llu,"
	           "\"bad\":%llu,\"dropped\":%llu}",
	           (unsigned long long)c.sent, (unsigned long long)c.received,
	           (unsigned long long)c.resent, (unsigned long long)c.duplicates,
	           (unsigned long long)c.bad, (unsigned long long)c.dropped);
	buf_printf(out,
	           ",\"refused\":{\"keys\":%llu,\"hellos\":%llu,\"messages\":%llu,\"commands\":%llu,"
	           "\"connections\":%llu}",
	           (unsigned long long)c.keys_refused, (unsigned long long)c.hellos_refused,
	           (unsigned long long)s->messages_refused, (unsigned long long)s->commands_refused,
	           (unsigned long long)descriptors_refused());
	status_peers(s, out);
	if (s->hooks->status)
		s->hooks->status(s, out);
	buf_addc(out, '}');
	return 0;
}

static int ctl_config(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                      struct err *err)
{
	(void)args;
	(void)n_args;
	(void)err;
	conf_json(s->conf, out);
	return 0;
}

static int ctl_reload(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                      struct err *err)
{
	char *changed = NULL, *refused = NULL;
	(void)args;
	(void)n_args;
	int r = svc_reload_now(s, &changed, &refused, err);
	if (r == 0) {
		buf_addc(out, '{');
		json_member(out, "changed", changed ? changed : "");
		buf_addc(out, ',');
		json_member(out, "needs_restart", refused ? refused : "");
		buf_addc(out, '}');
	}
	free(changed);
	free(refused);
	return r;
}

static int ctl_metrics(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                       struct err *err)
{
	(void)args;
	(void)n_args;
	(void)err;
	svc_metrics(s, out);
	return 0;
}

static int ctl_log_level(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                         struct err *err)
{
	(void)s;
	if (n_args > 1)
		return err_set(err, ERR_INVALID, "log-level takes at most one argument, of " LOG_LEVELS);
	if (n_args == 1) {
		const char *old = log_level_name();
		if (log_set_level(args[0]) < 0)
			return err_set(err, ERR_INVALID, "log level \"%.40s\" is not one of " LOG_LEVELS,
			               args[0]);
		log_warn("log_level", "old=%s new=%s", old, log_level_name());
	}
	buf_addc(out, '{');
	json_member(out, "level", log_level_name());
	buf_addc(out, '}');
	return 0;
}

static void stop_later(struct svc *s, void *arg)
{
	(void)arg;
	svc_drain_begin(s, "pdctl stop");
}

static int ctl_stop(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                    struct err *err)
{
	(void)args;
	(void)n_args;
	(void)err;
	svc_post(s, stop_later, NULL); /* after the answer was sent */
	buf_adds(out, "{\"stopping\":true}");
	return 0;
}

static int ctl_help(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                    struct err *err);

static const struct svc_ctl common_commands[] = {
	{"status", ctl_status, "state of the daemon, its links and its work", 0},
	{"config", ctl_config, "every configuration key with value, default, range and source", 1},
	{"reload", ctl_reload, "read the configuration again, as SIGHUP does", 1},
	{"metrics", ctl_metrics, "all metrics as Prometheus text", 0},
	{"log-level", ctl_log_level, "[debug|info|notice|warn|error] show or set the log level", 1},
	{"stop", ctl_stop, "shut down in order", 1},
	{"help", ctl_help, "list the commands", 0},
	{0},
};

static void help_table(const struct svc_ctl *table, const char **comma, struct buf *out)
{
	for (; table && table->name; table++) {
		buf_printf(out, "%s{", *comma);
		json_member(out, "command", table->name);
		buf_addc(out, ',');
		json_member(out, "help", table->help ? table->help : "");
		buf_addc(out, '}');
		*comma = ",";
	}
}

static int ctl_help(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                    struct err *err)
{
	const char *comma = "";
	(void)args;
	(void)n_args;
	(void)err;
	buf_addc(out, '[');
	help_table(common_commands, &comma, out);
	help_table(s->hooks->ctl, &comma, out);
	buf_addc(out, ']');
	return 0;
}

static const struct svc_ctl *ctl_find(const struct svc_ctl *table, const char *command)
{
	for (; table && table->name; table++)
		if (strcmp(table->name, command) == 0)
			return table;
	return NULL;
}

static int is_operator(const struct svc *s, const struct process_origin *who)
{
	const struct key *k = who->key[0] && s->keys ? keys_printed(s->keys, who->key) : NULL;
	if (k)
		return k->role == KEY_OPERATOR;
	return who->is_local &&
	       (who->uid == geteuid() || who->uid == 0 ||
	        (s->control_gid >= 0 && process_origin_in_group(who, (uint32_t)s->control_gid)));
}

static int refuse_stranger(struct svc *s, const struct process_origin *who, const char *command,
                           struct err *err)
{
	char what[128];
	s->commands_refused++;
	snprintf(what, sizeof what, "%s %u %u %s", command, who->uid, who->gid, who->key);
	if (once_may_log(&s->command_log, what, strlen(what)))
		log_warn("command_refused", "command=%s uid=%u gid=%u pid=%u key=%s total=%llu", command,
		         who->uid, who->gid, who->pid, who->key[0] ? who->key : "-",
		         (unsigned long long)s->commands_refused);
	if (who->key[0])
		return err_set(err, ERR_INVALID, "%s from another host needs a key of the role operator",
		               command);
	return err_set(err, ERR_INVALID,
	               "%s is for user %u, root and the group control_group (%s); you are user %u",
	               command, (unsigned)geteuid(),
	               *s->values.control_group ? s->values.control_group : "none is set", who->uid);
}

struct chan_asked *svc_asked(const struct svc *s)
{
	return s->asked;
}

int svc_ctl_call(void *arg, struct chan_asked *asked, const struct process_origin *who,
                 const char *command, char *const *args, size_t n_args, char **ret_text)
{
	struct svc *s = arg;
	const struct svc_ctl *c = ctl_find(s->hooks->ctl, command);
	struct err err = {0};
	struct buf out;
	buf_init(&out, ANSWER_BYTES_MAX);
	s->asked = asked;
	if (!c)
		c = ctl_find(common_commands, command);
	int r;
	if (!c)
		r = err_set(&err, ERR_NOTFOUND, "%s has no command \"%.60s\"; `help` lists its commands",
		            s->hooks->program, command);
	else if (c->operator_only && !is_operator(s, who))
		r = refuse_stranger(s, who, c->name, &err);
	else
		r = c->fn(s, args, n_args, &out, &err);
	if (r == 0 && out.full)
		r = err_set(&err, ERR_FULL, "the answer to \"%.60s\" is longer than %u bytes", command,
		            ANSWER_BYTES_MAX);
	s->asked = NULL;
	if (r != 0)
		buf_fini(&out);
	if (r < 0) {
		*ret_text = mem_strdup(err.text[0] ? err.text : err_name(r));
		return r;
	}
	if (r == 0)
		*ret_text = out.data ? out.data : mem_strdup("");
	return r;
}
