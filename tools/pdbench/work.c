/* work.c - see work.h. */
#include "work.h"

#include "draw.h"
#include "prompt.h"
#include "trace.h"
#include "util/check.h"
#include "util/list.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define SKIPS_IN_A_ROW_MAX 100000u
#define VOCAB_UNKNOWN 256u
#define VOCAB_FIRST 3u /* lower ids are often special tokens */

enum stream_kind { STREAM_FRESH = 1, STREAM_PREFIX, STREAM_BLOCK };

/* A conversation, or a single request. All its random values come from its own generator, so they
 * do not depend on other conversations. */
struct talk {
	struct list node;
	struct draw draw;
	size_t record; /* --lengths: record of the current round */
	uint64_t number;
	struct buf history; /* everything before the current round's new tokens: a piece of JSON */
	uint64_t history_tokens;
	uint32_t rounds_left;
};

struct work {
	const struct bench_options *o;
	struct prompt_maker maker;
	uint32_t beside; /* tokens that the server adds to a prompt's words */
	struct bench_trace trace;
	size_t next_record;
	uint64_t next_number, next_conversation;
	uint32_t max_input, max_output, max_total; /* UINT32_MAX: no limit */
	/* members common to all bodies, without the closing brace */
	char *fixed;
	char *headers;
	int no_seed; /* 1: --extra-body sets one for all requests, or the server takes none */
	struct work_counts counts;
	struct list talks;
};

/* --- set-up -------------------------------------------------------------- */

static uint32_t limit_or_none(uint32_t v)
{
	return v ? v : UINT32_MAX;
}

static void make_fixed(struct work *w, const struct server_info *server)
{
	const struct bench_options *o = w->o;
	json_t *j = json_object();
	const char *model = o->model ? o->model : server->model;
	int ids = !o->text && (o->token_ids || o->has_rounds);
	if (*model)
		json_object_set_new(j, "model", json_string(model));
	json_object_set_new(j, "temperature", json_real(o->temperature));
	if (!o->natural_end && server->level < BODY_PLAIN)
		json_object_set_new(j, "ignore_eos", json_true());
	if ((ids || o->token_ids) && server->level < BODY_PLAIN)
		json_object_set_new(j, "return_token_ids", json_true());
	json_object_set_new(j, "stream", json_true());
	if (server->level < BODY_BARE)
		json_object_set_new(j, "stream_options", json_pack("{s:b}", "include_usage", 1));
	if (server->level < BODY_PLAIN)
		json_object_set_new(json_object_get(j, "stream_options"), "continuous_usage_stats",
		                    json_boolean(!(ids || o->token_ids)));
	if (o->extra)
		json_object_update(j, o->extra);
	w->no_seed = server->level >= BODY_BARE || json_object_get(j, "seed");
	w->fixed = json_dumps(j, JSON_COMPACT);
	CHECK(w->fixed != NULL);
	w->fixed[strlen(w->fixed) - 1] = 0;
	json_decref(j);
	w->headers = mem_printf("%s%s%s%s%s", o->api_key ? "Authorization: Bearer " : "",
	                        o->api_key ? o->api_key : "", o->api_key ? "\r\n" : "",
	                        o->headers.data ? o->headers.data : "",
	                        o->fresh_connections ? "Connection: close\r\n" : "");
}

static int read_files(struct work *w, struct err *err)
{
	const struct bench_options *o = w->o;
	if (o->trace) {
		if (trace_read(o->trace, o->trace_block, &w->trace, err) < 0)
			return ERR_INVALID;
		trace_sample(&w->trace, o->sample, o->seed);
		if (!w->trace.n)
			return err_set(err, ERR_INVALID, "--sample %g selects no records of %s", o->sample,
			               o->trace);
	}
	return o->lengths ? trace_read(o->lengths, 0, &w->trace, err) : 0;
}

static int check_vocab(struct work *w, const struct server_info *server, struct err *err)
{
	const struct bench_options *o = w->o;
	uint32_t low = o->vocab_high ? o->vocab_low : VOCAB_FIRST, high = o->vocab_high ? o->vocab_high
	                                                                  : server->vocab
	                                                                      ? server->vocab
	                                                                      : VOCAB_UNKNOWN;
	if (server->vocab && high > server->vocab)
		return err_set(err, ERR_INVALID,
		               "--vocab goes up to %u, but the server's vocabulary has %u tokens", high,
		               server->vocab);
	if (low + 2 > high)
		low = 0;
	prompt_maker_init(&w->maker, o->seed, low, high, o->text);
	w->maker.per_token = server->tokens_per_word > 0 ? 1 / server->tokens_per_word : 0;
	w->beside = server->tokens_beside;
	return 0;
}

int work_new(const struct bench_options *o, const struct server_info *server, struct work **ret,
             struct err *err)
{
	struct work *w = mem_zalloc(sizeof *w);
	w->o = o;
	w->max_input = limit_or_none(o->max_input);
	w->max_output = limit_or_none(o->max_output);
	/* words are not tokens: only the server knows the limit */
	w->max_total = o->text ? UINT32_MAX : limit_or_none(server->context);
	list_init(&w->talks);
	if (check_vocab(w, server, err) < 0 || read_files(w, err) < 0) {
		work_destroy(&w);
		return ERR_INVALID;
	}
	make_fixed(w, server);
	*ret = w;
	return 0;
}

static void talk_free(struct talk *k)
{
	list_remove(&k->node);
	buf_fini(&k->history);
	free(k);
}

void work_destroy(struct work **pw)
{
	struct work *w = *pw;
	if (!w)
		return;
	list_each_safe(it, nx, &w->talks)
		talk_free(list_entry(it, struct talk, node));
	trace_fini(&w->trace);
	free(w->fixed);
	free(w->headers);
	free(w);
	*pw = NULL;
}

/* --- lengths ------------------------------------------------------------- */

struct lengths {
	uint64_t input; /* the whole prompt */
	uint32_t output;
};

static uint32_t draw_length(struct talk *k, const struct dist *d)
{
	double v = floor(draw_dist(&k->draw, d) + 0.5);
	return v < 1 ? 1 : (uint32_t)v;
}

static uint32_t scaled(const struct work *w, uint32_t n)
{
	return (n + w->o->length_scale - 1) / w->o->length_scale;
}

/* Returns 0: it fits, maybe after clipping; -1: skip it. */
static int fit(struct work *w, struct lengths *l)
{
	struct lengths was = *l;
	uint64_t room = w->max_total;
	if (l->output > w->max_output)
		l->output = w->max_output;
	if (l->output >= room)
		l->output = (uint32_t)(room > 1 ? room - 1 : 1);
	if (l->input > w->max_input)
		l->input = w->max_input;
	if (l->input + l->output > room)
		l->input = room - l->output;
	if (l->input == was.input && l->output == was.output)
		return 0;
	if (!w->o->clip) {
		w->counts.skipped++;
		return -1;
	}
	w->counts.clipped++;
	return l->input ? 0 : -1;
}

static struct bench_turn *turn_new(struct work *w, struct talk *k, const struct lengths *l)
{
	struct bench_turn *t = mem_zalloc(sizeof *t);
	t->talk = k;
	t->number = w->next_number++;
	t->input_tokens = (uint32_t)l->input;
	t->output_tokens = l->output;
	buf_init(&t->prompt, 0);
	return t;
}

/* The user's message, or what there is of it without chat. */
static void message_begin(const struct work *w, struct buf *out)
{
	if (w->o->chat)
		buf_adds(out, out->len ? ",{\"role\":\"user\",\"content\":\""
		                       : "{\"role\":\"user\",\"content\":\"");
}

static void message_end(const struct work *w, struct buf *out)
{
	buf_adds(out, w->o->chat ? "\"}" : "");
}

/* --- the trace ----------------------------------------------------------- */

static void trace_prompt(struct work *w, const struct trace_record *r, struct bench_turn *t)
{
	uint32_t block = w->o->trace_block / w->o->length_scale, left = t->input_tokens;
	message_begin(w, &t->prompt);
	for (uint32_t i = 0; i < r->n_hashes && left; i++) {
		uint32_t n = left < block ? left : block;
		prompt_add(&w->maker, &t->prompt, STREAM_BLOCK, r->hashes[i], n);
		left -= n;
	}
	message_end(w, &t->prompt);
}

static struct bench_turn *next_of_trace(struct work *w)
{
	while (w->next_record < w->trace.n) {
		const struct trace_record *r = &w->trace.records[w->next_record++];
		struct lengths l = {scaled(w, r->input_tokens), scaled(w, r->output_tokens)};
		if (fit(w, &l) < 0)
			continue;
		struct bench_turn *t = turn_new(w, NULL, &l);
		t->at_us = (uint64_t)((double)r->at_us / w->o->time_scale);
		t->conversation = trace_conversation(r);
		t->seed = w->next_record;
		trace_prompt(w, r, t);
		return t;
	}
	return NULL;
}

/* --- drawn requests and conversations ------------------------------------ */

static void draw_lengths(struct work *w, struct talk *k, struct lengths *l)
{
	if (w->o->lengths) {
		const struct trace_record *r = &w->trace.records[k->record % w->trace.n];
		*l = (struct lengths){scaled(w, r->input_tokens), scaled(w, r->output_tokens)};
		return;
	}
	l->input = draw_length(k, &w->o->input);
	l->output = draw_length(k, &w->o->output);
}

/* Appends prefix and new tokens to the history; the prompt is the whole history. */
static void set_prompt(struct work *w, struct bench_turn *t, uint64_t prefix, uint64_t fresh)
{
	struct talk *k = t->talk;
	uint64_t group = draw_below(&k->draw, w->o->prefix_groups);
	uint64_t beside = t->round ? 0 : w->beside;
	message_begin(w, &k->history);
	prompt_add(&w->maker, &k->history, STREAM_PREFIX, group, (uint32_t)prefix);
	prompt_add(&w->maker, &k->history, STREAM_FRESH, k->number << 16 | t->round,
	           (uint32_t)(fresh > beside ? fresh - beside : 1));
	message_end(w, &k->history);
	k->history_tokens += prefix + fresh;
	buf_add(&t->prompt, k->history.data, k->history.len);
}

static struct talk *talk_new(struct work *w)
{
	struct talk *k = mem_zalloc(sizeof *k);
	buf_init(&k->history, 0);
	list_push_back(&w->talks, &k->node);
	k->number = w->next_conversation++;
	k->draw.state = draw_mix(draw_mix(w->o->seed + 1) + k->number);
	k->rounds_left = w->o->has_rounds ? draw_length(k, &w->o->rounds) : 1;
	return k;
}

static struct bench_turn *next_drawn(struct work *w)
{
	struct lengths l;
	unsigned tries = 0;
	struct talk *k = talk_new(w);
	do {
		if (tries++ == SKIPS_IN_A_ROW_MAX) {
			talk_free(k);
			return NULL;
		}
		k->record = w->next_record++;
		draw_lengths(w, k, &l);
		l.input += w->o->prefix_tokens;
	} while (fit(w, &l) < 0);
	struct bench_turn *t = turn_new(w, k, &l);
	uint64_t prefix = l.input > w->o->prefix_tokens ? w->o->prefix_tokens : l.input - 1;
	t->conversation = k->number;
	t->seed = k->number << 16;
	set_prompt(w, t, prefix, l.input - prefix);
	k->rounds_left--;
	return t;
}

struct bench_turn *work_next(struct work *w)
{
	return w->o->trace ? next_of_trace(w) : next_drawn(w);
}

static void turn_free(struct bench_turn *t)
{
	buf_fini(&t->prompt);
	free(t);
}

void work_drop(struct work *w, struct bench_turn *t)
{
	(void)w;
	if (t->talk)
		talk_free(t->talk);
	turn_free(t);
}

int work_wants_answer(const struct work *w, const struct bench_turn *t)
{
	(void)w;
	return t->talk && t->talk->rounds_left > 0;
}

static void add_answer(const struct work *w, struct talk *k, const char *answer, size_t len)
{
	if (w->o->chat) {
		buf_adds(&k->history, ",{\"role\":\"assistant\",\"content\":\"");
		buf_add(&k->history, answer, len);
		buf_adds(&k->history, "\"}");
		return;
	}
	if (!w->o->text && len)
		buf_addc(&k->history, ',');
	buf_add(&k->history, answer, len);
}

struct bench_turn *work_follow(struct work *w, struct bench_turn *t, const char *answer,
                               size_t answer_len, uint32_t n)
{
	struct talk *k = t->talk;
	struct lengths l;
	if (!k || !k->rounds_left) {
		work_drop(w, t);
		return NULL;
	}
	add_answer(w, k, answer, answer_len);
	k->history_tokens += n;
	k->record++;
	draw_lengths(w, k, &l);
	uint64_t fresh = l.input;
	l.input += k->history_tokens;
	if (l.input > w->max_input || l.output > w->max_output || l.input + l.output > w->max_total) {
		w->counts.cut_conversations++;
		work_drop(w, t);
		return NULL;
	}
	struct bench_turn *next = turn_new(w, k, &l);
	next->conversation = t->conversation;
	next->round = t->round + 1;
	next->seed = k->number << 16 | next->round;
	set_prompt(w, next, 0, fresh);
	k->rounds_left--;
	turn_free(t);
	return next;
}

uint64_t work_think_us(struct work *w, struct bench_turn *t)
{
	return (uint64_t)draw_dist(&t->talk->draw, &w->o->think_us);
}

const struct work_counts *work_counts(const struct work *w)
{
	return &w->counts;
}

const char *work_path(const struct work *w)
{
	return w->o->chat ? "/v1/chat/completions" : "/v1/completions";
}

/* --- bodies -------------------------------------------------------------- */

void work_request(struct work *w, const struct url *u, const struct bench_turn *t, struct buf *out)
{
	char tail[96], seed[48] = "", session[80] = "";
	const char *open = w->o->chat   ? ",\"messages\":["
	                   : w->o->text ? ",\"prompt\":\""
	                                : ",\"prompt\":[";
	if (!w->no_seed)
		snprintf(seed, sizeof seed, ",\"seed\":%llu",
		         (unsigned long long)((w->o->seed + t->seed) & INT64_MAX));
	int k = snprintf(tail, sizeof tail, "%s,\"max_tokens\":%u%s}",
	                 w->o->text && !w->o->chat ? "\"" : "]", t->output_tokens, seed);
	if (w->o->sessions)
		snprintf(session, sizeof session, "X-Session-Id: pdbench-%llu-%llu\r\n",
		         (unsigned long long)w->o->seed, (unsigned long long)t->conversation);
	size_t body = strlen(w->fixed) + strlen(open) + t->prompt.len + (size_t)k;
	buf_printf(out,
	           "POST %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: pdbench\r\nContent-Type: "
	           "application/json\r\n%s%sContent-Length: %zu\r\n\r\n",
	           u->path, work_path(w), u->authority, w->headers, session, body);
	buf_adds(out, w->fixed);
	buf_adds(out, open);
	buf_add(out, t->prompt.data ? t->prompt.data : "", t->prompt.len);
	buf_add(out, tail, (size_t)k);
}
