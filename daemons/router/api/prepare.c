/* prepare.c - the body of a request becomes prompts and parameters: on the event loop, or on a text
 * thread if that may take long. Nothing here sees more of the request than its request_prepare. An
 * invalid body is an error for the client. */
#include "prepare.h"
#include "util/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static int check_model(struct request_prepare *q, const json_t *o)
{
	const json_t *v = json_object_get(o, "model");
	if (!v || json_is_null(v))
		return 0; /* the server has one model */
	if (!json_is_string(v))
		return api_bad(&q->error, "model", "model must be a string, got %s", param_show(v));
	if (model_has_name(q->model, json_string_value(v)))
		return 0;
	api_fault(&q->error, 404, "the model %s does not exist; this server has %s", param_show(v),
	          q->model->name);
	snprintf(q->error.param, sizeof q->error.param, "model");
	q->error.code = "model_not_found";
	return -1;
}

/* Returns 1 if v is or contains a number beyond 64 bits. */
static int has_huge(const json_t *v)
{
	const char *name;
	const json_t *member;
	size_t i;
	if (json_is_object(v)) {
		json_object_foreach((json_t *)v, name, member)
			if (has_huge(member))
				return 1;
	} else if (json_is_array(v)) {
		json_array_foreach((json_t *)v, i, member)
			if (has_huge(member))
				return 1;
	}
	return json_is_real(v) && fabs(json_real_value(v)) >= 0x1p63;
}

/* Decompresses at most body_max bytes into out. 0, or -1 with the error set. */
static int inflate_body(struct request_prepare *q, struct buf *out)
{
	unsigned char piece[16384];
	z_stream z = {.next_in = (unsigned char *)q->body.data, .avail_in = (uInt)q->body.len};
	int r = inflateInit2(&z, 16 + MAX_WBITS); /* 16: gzip's frame alone */
	if (r != Z_OK)
		return budget_refuse(q, NULL, "its body");
	do {
		z.next_out = piece;
		z.avail_out = sizeof piece;
		r = inflate(&z, Z_NO_FLUSH);
		buf_add(out, piece, sizeof piece - z.avail_out);
	} while (r == Z_OK && !out->full);
	int rest = z.avail_in != 0;
	inflateEnd(&z);
	if (q->quota.over || r == Z_MEM_ERROR)
		return budget_refuse(q, NULL, "its body");
	if (out->full)
		return api_fault(&q->error, 413, "the body has more than %zu bytes (max_body_bytes)",
		                 q->body_max);
	if (r != Z_STREAM_END || rest)
		return api_fault(&q->error, 415, "the body is not what its Content-Encoding says: %s",
		                 r == Z_STREAM_END ? "there is more behind the gzip data"
		                 : r == Z_DATA_ERROR || r == Z_NEED_DICT ? "no gzip data"
		                                                         : "it ends within the gzip data");
	return 0;
}

/* Returns NULL with the error set. */
static json_t *parse_body(struct request_prepare *q, const char *text, size_t len)
{
	json_error_t bad, again;
	const char *name;
	const json_t *v;
	json_t *o = json_load(text, len, JSON_ALLOW_NUL, &bad);
	if (json_is_object(o))
		return o;
	if (o) {
		api_bad(&q->error, NULL, "the body must be a JSON object, got %s", param_show(o));
	} else if (json_error_code(&bad) == json_error_out_of_memory) {
		budget_refuse(q, NULL, "its body as JSON");
	} else {
		api_bad(&q->error, NULL, "the body is not valid JSON: %s (line %d, column %d)", bad.text,
		        bad.line, bad.column);
		/* an integer beyond 64 bits is reported like any other value that is out of range */
		if (json_error_code(&bad) == json_error_numeric_overflow)
			o = json_load(text, len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &again);
		json_object_foreach(o, name, v) {
			if (!has_huge(v))
				continue;
			api_bad(&q->error, name,
			        "%.64s has a number out of range: integers are from %lld to %lld, got %s", name,
			        (long long)INT64_MIN, (long long)INT64_MAX, param_show(v));
			break;
		}
	}
	json_decref(o);
	return NULL;
}

/* Returns NULL with the error set. Frees the body in any case. */
static json_t *read_body(struct request_prepare *q)
{
	struct buf plain;
	json_t *o = NULL;
	buf_init_quota(&plain, q->body_max, &q->quota);
	if (!q->is_gzip) {
		o = parse_body(q, q->body.data, q->body.len);
	} else if (inflate_body(q, &plain) == 0) {
		q->extra_bytes += plain.len > q->body.len ? plain.len - q->body.len : 0;
		q->body.len = plain.len;
		o = parse_body(q, plain.data ? plain.data : "", plain.len);
	}
	buf_fini(&plain);
	http_body_free(&q->body);
	return o;
}

/* vLLM's parameter, added to the salt of the access key: requests share cached prefixes only if
 * both are the same. It is a secret, so no error and no log shows its value. */
static int read_cache_salt(struct request_prepare *q, const json_t *o)
{
	const json_t *v = body_member(o, "cache_salt");
	size_t len = v ? json_string_length(v) : 0;
	char got[64] = "another type";
	if (json_is_string(v))
		snprintf(got, sizeof got, "%zu bytes", len);
	if (v && (!json_is_string(v) || len == 0 || len > CACHE_SALT_TEXT_MAX))
		return api_bad(&q->error, "cache_salt",
		               "cache_salt must be a string of 1 to %u bytes, got %s", CACHE_SALT_TEXT_MAX,
		               got);
	q->has_salt = tenant_salt(q->salt_name, v ? json_string_value(v) : "", len, q->cache_salt);
	return 0;
}

void request_parse(struct request_prepare *q)
{
	static int (*const by_kind[])(struct request_prepare *, const json_t *) = {
		[KIND_COMPLETION] = api_completions_prepare,    [KIND_CHAT] = api_chat_prepare,
		[KIND_RESPONSES] = api_responses_prepare,       [KIND_MESSAGES] = api_messages_prepare,
		[KIND_COUNT_TOKENS] = api_count_tokens_prepare, [KIND_TOKENIZE] = api_tokenize_prepare,
		[KIND_DETOKENIZE] = api_detokenize_prepare,     [KIND_EMBEDDING] = api_embeddings_prepare,
	};
	json_account_begin(&q->json);
	json_t *o = q->parsed ? q->parsed : read_body(q);
	q->parsed = NULL;
	int r = -1, has_parameters = request_kind_needs_workers(q->kind);
	if (o && check_model(q, o) == 0 && !(has_parameters && params_unknown(q, o) < 0) &&
	    read_cache_salt(q, o) == 0)
		r = by_kind[q->kind](q, o);
	json_decref(o);
	if ((json_account_end() < 0 || q->quota.over) && !q->refused) {
		/* without memory JSON was incomplete, so any other error may be a consequence of that */
		budget_refuse(q, NULL, "its body");
	} else if (r == 0) {
		for (size_t i = 0; q->roots.n && i < q->n_prompts; i++)
			prefixes_make(&q->roots, q->has_salt ? q->cache_salt : NULL, q->prompts[i].tokens.ids,
			              q->prompts[i].tokens.n, &q->prompts[i].prefixes);
		if (prompt_keep(q) == 0)
			budget_keep(q);
	}
	q->prepared_us = clock_us();
}

int request_parse_is_slow(struct request_prepare *q)
{
	json_account_begin(&q->json);
	q->parsed = read_body(q);
	if (json_account_end() < 0)
		budget_refuse(q, NULL, "its body as JSON");
	int has_tools = toolcall_format_is_generic(q->model->calls)
	                    ? param_is_set(q->parsed, "tools")
	                    : param_is_set(q->parsed, "tool_choice");
	if (!q->parsed || !(has_tools || format_is_asked(q->parsed)))
		return 0;
	if (json_account_charge(&q->json, &q->quota) == 0)
		return 1;
	budget_refuse(q, NULL, "its body as JSON");
	return 0;
}

void request_prepare_fini(struct request_prepare *q)
{
	for (size_t i = 0; i < q->n_prompts; i++) {
		struct prompt *p = &q->prompts[i];
		token_list_fini(&p->tokens);
		prefixes_fini(&p->prefixes);
		buf_fini(&p->text);
		buf_fini(&p->ids);
		rows_fini(&p->rows);
	}
	free(q->prompts);
	json_decref(q->parsed);
	toolcall_tools_destroy(&q->message.tools);
	params_fini(&q->p);
	free(q->constraint.text);
	buf_fini(&q->warnings);
	buf_fini(&q->echo);
	buf_fini(&q->out);
	http_body_free(&q->body);
	quota_fini(&q->quota);
}
