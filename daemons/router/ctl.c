/* ctl.c - commands that pdctl sends to the router. */
#include "daemons/router/request/request.h"
#include "util/clock.h"

#include <string.h>

static int ctl_workers(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                       struct err *err)
{
	struct router *r = svc_data(s);
	(void)args;
	(void)n_args;
	(void)err;
	registry_json(&r->registry, clock_us(), out);
	return 0;
}

/* No argument, or the name of an access key. */
static int check_key(const struct router *r, char *const *args, size_t n_args, struct err *err)
{
	size_t i = 0;
	while (n_args == 1 && i < r->keys.n_tenants && strcmp(args[0], r->keys.tenant[i]->name) != 0)
		i++;
	if (n_args > 1)
		return err_set(err, ERR_INVALID, "this takes the name of one access key, got %zu", n_args);
	if (n_args && i == r->keys.n_tenants)
		return err_set(err, ERR_NOTFOUND, "no access key has the name \"%.80s\" (api_keys_file)",
		               args[0]);
	return 0;
}

static int ctl_requests(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                        struct err *err)
{
	struct router *r = svc_data(s);
	if (check_key(r, args, n_args, err) < 0)
		return err->code;
	attempts_json(&r->attempts, n_args ? args[0] : NULL, clock_us(), out);
	return 0;
}

static int ctl_tenants(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                       struct err *err)
{
	struct router *r = svc_data(s);
	uint64_t now = clock_us();
	if (check_key(r, args, n_args, err) < 0)
		return err->code;
	buf_addc(out, '[');
	for (size_t i = 0, n = 0; i < r->keys.n_tenants; i++) {
		struct tenant *t = r->keys.tenant[i];
		if (n_args && strcmp(args[0], t->name) != 0)
			continue;
		if (n++)
			buf_addc(out, ',');
		tenant_json(t, now, out);
	}
	buf_addc(out, ']');
	return 0;
}

static int ctl_cancel(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                      struct err *err)
{
	struct router *r = svc_data(s);
	struct reqid id;
	const char *text = n_args == 1 ? args[0] : "";
	if (request_id_parse(text, &id) < 0)
		return err_set(err, ERR_INVALID,
		               "cancel takes one request id, 32 hexadecimal digits behind a prefix or "
		               "none, got \"%.80s\"",
		               text);
	if (request_abort(r, &id, NULL) < 0)
		return err_set(err, ERR_NOTFOUND, "no request %.80s is in progress here", text);
	buf_adds(out, "{\"cancelled\":true}");
	return 0;
}

const struct svc_ctl router_ctl[] = {
	{"workers", ctl_workers, "workers that the router knows, with their load", 0},
	{"requests", ctl_requests,
     "[KEY] requests in progress: whose, state, age, attempt, tokens, workers", 0},
	{"tenants", ctl_tenants,
     "[KEY] the access keys by name: limits, what is left and what was used", 0},
	{"cancel", ctl_cancel, "ID: ends a request everywhere; its client gets the tokens so far", 1},
	{0},
};
