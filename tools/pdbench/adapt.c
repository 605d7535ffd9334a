/* adapt.c - adapt_to_server (probe.h): the requests are made as those of the run are (work.h), but
 * short, from the richest form to the poorest; the first that is answered with tokens decides. */
#include "event.h"
#include "probe.h"

#include <math.h>
#include <string.h>

#define WAIT_S 60
#define ASKED_TOKENS 32u     /* length of the prompts */
#define LONGER_TOKENS 256u   /* of the second one, to measure words */
#define BESIDE_TOKENS 8u     /* a server may add to a prompt of token ids */
#define SEED_APART 0x9d5eedu /* other prompts than those of the run */

/* How an attempt ended, and what the server counted. */
struct trial {
	int status; /* 0: not sent, or no answer */
	int done, is_error, has_usage;
	int timed_out; /* no answer within WAIT_S */
	uint32_t tokens;
	uint64_t prompt_tokens;
	char why[160];
};

static int on_event(void *arg, const char *data, size_t n)
{
	struct trial *t = arg;
	struct event_parts e;
	if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
		t->done = 1;
		return 0;
	}
	if (event_scan(data, n, &e) < 0)
		return 1;
	t->is_error |= e.is_error;
	t->has_usage |= e.has_usage && e.prompt_tokens;
	if (e.prompt_tokens)
		t->prompt_tokens = e.prompt_tokens;
	t->tokens += e.n_choices && (e.n_ids || e.text.n);
	return 0;
}

/* Appends the request of `tokens` tokens. 0, or ERR_*: it does not fit the server. */
static int make_request(const struct bench_options *o, const struct server_info *server,
                        uint32_t tokens, int streams, struct buf *out, struct err *err)
{
	struct bench_options one = *o;
	struct work *w = NULL;
	one.input = (struct dist){.kind = DIST_FIXED, .a = tokens, .max = tokens};
	one.output = (struct dist){.kind = DIST_FIXED, .a = 4, .max = 4};
	one.has_rounds = 0;
	one.trace = one.lengths = NULL;
	one.prefix_tokens = one.max_input = one.max_output = 0;
	one.seed += SEED_APART;
	one.extra = o->extra ? json_copy(o->extra) : json_object();
	if (!streams)
		json_object_set_new(one.extra, "stream", json_false());
	int r = work_new(&one, server, &w, err);
	struct bench_turn *t = r == 0 ? work_next(w) : NULL;
	if (t) {
		work_request(w, &o->urls[0], t, out);
		work_drop(w, t);
	} else if (r == 0) {
		r = err_set(err, ERR_INVALID, "%u tokens are more than the context", tokens);
	}
	work_destroy(&w);
	json_decref(one.extra);
	return r;
}

static void take_reason(struct trial *t, const struct buf *body)
{
	struct event_parts e;
	int told = event_scan(body->data ? body->data : "", body->len, &e) == 0 && e.error.n;
	const char *text = told ? e.error.at : body->data ? body->data : "";
	size_t n = told ? e.error.n : body->len;
	snprintf(t->why, sizeof t->why, "%.*s", n < 100 ? (int)n : 100, text);
	for (char *c = t->why; *c; c++)
		if ((unsigned char)*c < ' ')
			*c = ' ';
}

static void try_once(const struct bench_options *o, const struct server_info *server,
                     uint32_t tokens, int streams, struct trial *t)
{
	struct probe_answer a = {0};
	struct buf request;
	struct err err = {0};
	struct sse sse;
	*t = (struct trial){0};
	buf_init(&request, 0);
	buf_init(&a.body, 0);
	if (make_request(o, server, tokens, streams, &request, &err) < 0 ||
	    probe_exchange(o, &request, WAIT_S, &a, &err) < 0) {
		snprintf(t->why, sizeof t->why, "%.150s", err.text);
		t->timed_out = err.code == ERR_TIMEOUT;
	} else {
		t->status = a.status;
		if (a.status != 200)
			take_reason(t, &a.body);
		sse_init(&sse);
		if (a.status == 200 && streams)
			sse_feed(&sse, a.body.data ? a.body.data : "", a.body.len, on_event, t);
		else if (a.status == 200 && a.body.data)
			on_event(t, a.body.data, a.body.len);
		sse_fini(&sse);
	}
	buf_fini(&request);
	buf_fini(&a.body);
}

/* The server has taken the token ids for something else: it counts more or fewer. */
static int is_misread(const struct bench_options *o, const struct trial *t)
{
	return !o->text && t->has_usage &&
	       (t->prompt_tokens < ASKED_TOKENS || t->prompt_tokens > ASKED_TOKENS + BESIDE_TOKENS);
}

static int is_taken(const struct trial *t)
{
	return t->status == 200 && t->done && !t->is_error && (t->tokens || t->has_usage);
}

struct request_form {
	int chat, text;
	enum body_level level;
};

static void set_form(struct request_form f, struct bench_options *o, struct server_info *server)
{
	o->chat = f.chat;
	o->text = f.text;
	server->level = f.level;
}

/* No other form would be taken. */
static int is_hopeless(const struct trial *t)
{
	return t->status == 401 || t->status == 403 || t->timed_out;
}

/* Leaves o and server in the first form that is taken. Returns 1, or 0: none is. *ret: the last
 * attempt. */
static int find_form(struct bench_options *o, struct server_info *server, struct trial *ret)
{
	const struct request_form asked = {o->chat, o->text, BODY_FULL};
	for (struct request_form f = asked; f.chat <= 1; f.chat++) {
		int is_missing = 0;
		for (f.text = f.chat || asked.text; f.text <= 1 && !is_missing; f.text++)
			for (f.level = BODY_FULL; f.level <= BODY_BARE && !is_missing; f.level++) {
				set_form(f, o, server);
				try_once(o, server, ASKED_TOKENS, 1, ret);
				if (is_hopeless(ret)) {
					set_form(asked, o, server);
					return 0;
				}
				if (is_misread(o, ret))
					break;
				if (is_taken(ret))
					return 1;
				is_missing = ret->status == 404 || ret->status == 405 || ret->status == 501;
			}
	}
	set_form(asked, o, server);
	return 0;
}

/* The tokens of a prompt of so many words, as the server counts them; 0: it does not. */
static uint64_t count_words(const struct bench_options *o, const struct server_info *server,
                            uint32_t words)
{
	struct server_info plain = *server;
	struct trial t;
	try_once(o, server, words, 1, &t);
	if (t.status == 200 && t.has_usage)
		return t.prompt_tokens;
	plain.level = BODY_BARE;
	try_once(o, &plain, words, 0, &t);
	return t.status == 200 && t.has_usage ? t.prompt_tokens : 0;
}

static void measure_words(const struct bench_options *o, struct server_info *server)
{
	uint32_t longer = LONGER_TOKENS;
	if (server->context && server->context / 4 < longer)
		longer = server->context / 4 > 2 * ASKED_TOKENS ? server->context / 4 : 2 * ASKED_TOKENS;
	uint64_t few = count_words(o, server, ASKED_TOKENS);
	uint64_t many = few ? count_words(o, server, longer) : 0;
	double per_word = ((double)many - (double)few) / (longer - ASKED_TOKENS);
	if (per_word < 0.25 || per_word > 16)
		return;
	double beside = (double)few - per_word * ASKED_TOKENS;
	server->tokens_per_word = per_word;
	server->tokens_beside = beside > 0 ? (uint32_t)(beside + 0.5) : 0;
}

static void add_note(struct server_info *server, const char *text)
{
	size_t n = strlen(server->adapted);
	snprintf(server->adapted + n, sizeof server->adapted - n, "%s%s", n ? "; " : "", text);
}

/* What of the load is other than asked for. */
static void describe(const struct bench_options *asked, struct bench_options *o,
                     struct server_info *server, int has_usage)
{
	char text[120];
	if (o->chat && !asked->chat)
		add_note(server, "chat, as /v1/completions does not take such requests");
	else if (o->text && !asked->text)
		add_note(server, "text prompts, as the server takes no token ids");
	if (server->level >= BODY_PLAIN && !asked->natural_end)
		add_note(server, "answers may end early, as it takes no ignore_eos");
	if (server->level >= BODY_BARE)
		add_note(server, "no seed and no stream_options, which it does not take");
	if (!has_usage)
		add_note(server, "a piece of text counts as a token, as its streams have no usage");
	if (server->tokens_per_word > 0) {
		snprintf(text, sizeof text, "%.2f tokens per word and %u beside, by its own count",
		         server->tokens_per_word, server->tokens_beside);
		add_note(server, text);
	} else if (o->text) {
		add_note(server, "lengths of prompts are in words, as it does not count tokens");
	}
	o->natural_end |= server->level >= BODY_PLAIN;
	o->any_length = !has_usage;
}

int adapt_to_server(struct bench_options *o, struct server_info *server, struct err *err)
{
	const struct bench_options asked = *o;
	struct trial t = {0};
	if (server->vocab && !o->text)
		return 0;
	if (find_form(o, server, &t)) {
		int has_usage = t.has_usage;
		if (o->text)
			measure_words(o, server);
		describe(&asked, o, server, has_usage);
		return 0;
	}
	if (t.status == 401 || t.status == 403)
		return err_set(err, ERR_CLOSED,
		               "%s denied access with status %d: give --api-key KEY or set OPENAI_API_KEY",
		               o->urls[0].authority, t.status);
	err_set(err, ERR_UNSUPPORTED, "no form of requests was taken (the last: status %d: %s)",
	        t.status, t.why);
	return 0;
}
