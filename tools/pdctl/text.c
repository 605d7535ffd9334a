/* text.c - `pdctl render`, `tokenize` and `detokenize`: a model's prompts and tokens from its own
 * files, without any daemon.
 *
 * All three use the router's functions (common/text), so they print exactly what the router would
 * build. Model, template and request are as untrusted here as there, with the same bounds. Bad
 * input is refused with one line, exit status 1. */
#include "pdctl.h"

#include "text/chat_request.h"
#include "text/text_model.h"
#include "text/toolcall.h"
#include "text/unicode.h"
#include "util/err.h"
#include "util/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define INPUT_BYTES_MAX (64u << 20)

static int refuse(const char *text)
{
	fprintf(stderr, "pdctl: %s\n", text);
	return EXIT_REFUSED;
}

static int open_model(const struct options *o, char *const *args, size_t n_args, const char *usage,
                      struct text_model *ret)
{
	struct err err = {0};
	if (!n_args) {
		fprintf(stderr, "pdctl: %s; MODEL is a GGUF file or a model's folder\n", usage);
		return EXIT_USAGE;
	}
	int r = text_model_open(args[0], ret, &err);
	if (r == 0 && o->chat_template &&
	    (r = text_model_use_template(ret, o->chat_template, &err)) < 0)
		text_model_close(ret);
	return r < 0 ? refuse(*err.text ? err.text : err_name(r)) : EXIT_DONE;
}

static int need_tokenizer(const struct text_model *m, const char *path)
{
	if (m->tokenizer)
		return EXIT_DONE;
	fprintf(stderr, "pdctl: %s has no tokenizer\n", path);
	return EXIT_REFUSED;
}

/* A whole file, or standard input for "-" and NULL. */
static int read_input(const char *path, struct buf *out)
{
	char piece[65536];
	int own = path && strcmp(path, "-") != 0;
	FILE *f = own ? fopen(path, "r") : stdin;
	size_t n;
	buf_init(out, INPUT_BYTES_MAX);
	while (f && !out->full && (n = fread(piece, 1, sizeof piece, f)) > 0)
		buf_add(out, piece, n);
	int failed = !f || ferror(f) ? errno : 0;
	if (own && f)
		fclose(f);
	if (!failed && !out->full)
		return EXIT_DONE;
	fprintf(stderr, "pdctl: %s: ", own ? path : "standard input");
	if (failed)
		fprintf(stderr, "%s\n", strerror(failed));
	else
		fprintf(stderr, "more than %u bytes\n", INPUT_BYTES_MAX);
	return EXIT_REFUSED;
}

/* The text unchanged; on a terminal followed by a line feed. */
static void print_text(const struct buf *b)
{
	if (b->len)
		fwrite(b->data, 1, b->len, stdout);
	if (isatty(STDOUT_FILENO) && b->len && b->data[b->len - 1] != '\n')
		putchar('\n');
}

static void print_out(struct buf *out)
{
	printf("%s\n", out->data);
	buf_fini(out);
}

static void add_string(struct buf *out, const char *name, const struct buf *text)
{
	buf_printf(out, "\"%s\":", name);
	buf_add_json(out, text->data ? text->data : "", text->len);
}

static void add_tokens(struct buf *out, const struct token_list *l)
{
	buf_printf(out, "\"count\":%zu,\"tokens\":[", l->n);
	for (size_t i = 0; i < l->n; i++)
		buf_printf(out, i ? ",%u" : "%u", l->ids[i]);
	buf_addc(out, ']');
}

/* add_special_tokens of the body, which includes the members of -s; else def. */
static int encode(const struct text_model *m, const json_t *body, int def, const struct buf *text,
                  struct token_list *ret)
{
	struct body_error bad;
	int add;
	if (body_bool(body, "add_special_tokens", def, &add, &bad) < 0)
		return refuse(bad.text);
	int r = tokenizer_encode_prompt(m->tokenizer, text->data ? text->data : "", text->len, add, 0,
	                                ret);
	return r < 0 ? refuse(r == ERR_NOMEM
	                          ? "the tokenizer would need more memory for this text than its limit"
	                          : "the text is too long")
	             : EXIT_DONE;
}

/* --- render -------------------------------------------------------------- */

static int read_body(const struct options *o, const char *path, json_t **ret)
{
	struct buf text;
	json_error_t why = {0};
	int code = read_input(path, &text);
	if (code == EXIT_DONE) {
		*ret = json_loadb(text.data ? text.data : "", text.len, JSON_ALLOW_NUL, &why);
		if (!*ret) {
			fprintf(stderr, "pdctl: the body is not valid JSON: %s (line %d, column %d)\n",
			        why.text, why.line, why.column);
			code = EXIT_REFUSED;
		} else if (!json_is_object(*ret)) {
			fprintf(stderr, "pdctl: the body must be a JSON object, got %s\n", body_show(*ret));
			code = EXIT_REFUSED;
		} else if (o->members) {
			json_object_update(*ret, o->members);
		}
	}
	buf_fini(&text);
	return code;
}

static int render_with(const struct text_model *m, const json_t *body,
                       const struct chat_tools *tools, struct buf *out)
{
	struct body_error bad;
	if (!chat_set_choose(&m->chats, tools->tools != NULL)) {
		fprintf(stderr, "pdctl: %s; --template FILE names one\n",
		        m->chats_error.code ? m->chats_error.text : "the model has no chat template");
		return EXIT_REFUSED;
	}
	if (chat_request_render(&m->chats, body, tools, (int64_t)time(NULL), out, &bad) < 0)
		return refuse(bad.text);
	return EXIT_DONE;
}

/* As a router sees it that has no other tool_parser. */
static int calls_are_generic(const struct text_model *m)
{
	const struct chat_template *t = chat_set_choose(&m->chats, 1);
	size_t len;
	const char *text = t ? chat_template_text(t, &len) : NULL;
	return text && toolcall_format_is_generic(toolcall_format_detect(text, len));
}

static int render(const struct text_model *m, const json_t *body, struct buf *out)
{
	struct chat_tools tools;
	struct body_error bad;
	if (chat_tools_read(body, &tools, &bad) < 0)
		return refuse(bad.text);
	tools.generic = calls_are_generic(m);
	int code = render_with(m, body, &tools, out);
	chat_tools_fini(&tools);
	return code;
}

static int show_prompt(const struct options *o, const struct text_model *m, const char *path,
                       const json_t *body, const struct buf *prompt)
{
	struct token_list tokens = {0};
	struct buf out;
	if (!o->json) {
		print_text(prompt);
		return EXIT_DONE;
	}
	int code = need_tokenizer(m, path);
	if (code == EXIT_DONE && (code = encode(m, body, 0, prompt, &tokens)) == EXIT_DONE) {
		buf_init(&out, 0);
		buf_addc(&out, '{');
		add_string(&out, "prompt", prompt);
		buf_addc(&out, ',');
		add_tokens(&out, &tokens);
		buf_addc(&out, '}');
		print_out(&out);
	}
	token_list_fini(&tokens);
	return code;
}

int render_command(const struct options *o, char *const *args, size_t n_args)
{
	struct text_model m;
	json_t *body = NULL;
	int code = open_model(o, args, n_args, "render takes: MODEL [FILE|-]", &m);
	if (code != EXIT_DONE)
		return code;
	code = read_body(o, n_args > 1 ? args[1] : NULL, &body);
	if (code == EXIT_DONE) {
		char *text = json_dumps(body, JSON_COMPACT);
		struct buf prompt;
		buf_init(&prompt, chat_request_text_max(text ? strlen(text) : 0));
		free(text);
		code = render(&m, body, &prompt);
		if (code == EXIT_DONE)
			code = show_prompt(o, &m, args[0], body, &prompt);
		buf_fini(&prompt);
	}
	json_decref(body);
	text_model_close(&m);
	return code;
}

/* --- tokenize ------------------------------------------------------------ */

/* A token's bytes in readable form: invalid UTF-8 and control characters as \xNN. */
static void print_piece(const char *s, size_t n)
{
	putchar('"');
	for (size_t i = 0; i < n;) {
		uint32_t cp;
		int step = utf8_step(s + i, n - i, &cp);
		size_t len = step > 0 ? (size_t)step : 1;
		int control = step <= 0 || cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
		if (control && s[i] == '\n')
			fputs("\\n", stdout);
		else if (control)
			for (size_t k = 0; k < len; k++)
				printf("\\x%02x", (unsigned char)s[i + k]);
		else
			printf("%s%.*s", s[i] == '"' || s[i] == '\\' ? "\\" : "", (int)len, s + i);
		i += len;
	}
	puts("\"");
}

static void show_tokens(const struct options *o, const struct text_model *m,
                        const struct token_list *l)
{
	struct buf piece, out;
	buf_init(&piece, 0);
	buf_init(&out, 0);
	buf_addc(&out, '{');
	add_tokens(&out, l);
	buf_adds(&out, ",\"token_strs\":[");
	for (size_t i = 0; i < l->n; i++) {
		buf_reset(&piece);
		tokenizer_decode(m->tokenizer, &l->ids[i], 1, DECODE_CONTINUES, &piece);
		if (o->json) {
			buf_adds(&out, i ? "," : "");
			buf_add_json(&out, piece.data ? piece.data : "", piece.len);
		} else {
			printf("%8u  ", l->ids[i]);
			print_piece(piece.data ? piece.data : "", piece.len);
		}
	}
	buf_adds(&out, "]}");
	if (o->json)
		print_out(&out);
	else
		buf_fini(&out);
	buf_fini(&piece);
}

int tokenize_command(const struct options *o, char *const *args, size_t n_args)
{
	struct text_model m;
	struct token_list tokens = {0};
	struct buf text;
	int code = open_model(o, args, n_args, "tokenize takes: MODEL [TEXT|-]", &m);
	if (code != EXIT_DONE)
		return code;
	buf_init(&text, 0);
	code = need_tokenizer(&m, args[0]);
	if (code == EXIT_DONE && n_args > 1 && strcmp(args[1], "-") != 0)
		buf_adds(&text, args[1]);
	else if (code == EXIT_DONE)
		code = read_input(NULL, &text);
	if (code == EXIT_DONE && (code = encode(&m, o->members, 1, &text, &tokens)) == EXIT_DONE)
		show_tokens(o, &m, &tokens);
	token_list_fini(&tokens);
	buf_fini(&text);
	text_model_close(&m);
	return code;
}

/* --- detokenize ---------------------------------------------------------- */

/* Ids separated by spaces, commas and brackets, as people paste them. */
static int read_ids(const struct text_model *m, const char *s, struct token_list *l)
{
	uint32_t size = tokenizer_size(m->tokenizer);
	for (;;) {
		char *end;
		s += strspn(s, "[], \t\r\n");
		if (!*s)
			return EXIT_DONE;
		errno = 0;
		unsigned long id = strtoul(s, &end, 10);
		size_t word = strcspn(s, "[], \t\r\n");
		if (*s < '0' || *s > '9' || (size_t)(end - s) != word || errno || id >= size) {
			fprintf(stderr, "pdctl: token ids of this model are numbers from 0 to %u, got %.*s\n",
			        size - 1, word < 40 ? (int)word : 40, s);
			return EXIT_REFUSED;
		}
		s = end;
		if (l->n == l->size) {
			l->size = l->size ? 2 * l->size : 64;
			l->ids = mem_grow(l->ids, l->size, sizeof *l->ids);
		}
		l->ids[l->n++] = (uint32_t)id;
	}
}

static int read_all_ids(const struct text_model *m, char *const *words, size_t n,
                        struct token_list *l)
{
	struct buf text;
	int code = EXIT_DONE;
	for (size_t i = 0; i < n && code == EXIT_DONE && strcmp(words[0], "-") != 0; i++)
		code = read_ids(m, words[i], l);
	if (n && strcmp(words[0], "-") != 0)
		return code;
	code = read_input(NULL, &text);
	if (code == EXIT_DONE && text.data)
		code = read_ids(m, text.data, l);
	buf_fini(&text);
	return code;
}

int detokenize_command(const struct options *o, char *const *args, size_t n_args)
{
	struct text_model m;
	struct token_list tokens = {0};
	struct buf text, out;
	int code = open_model(o, args, n_args, "detokenize takes: MODEL [ID...|-]", &m);
	if (code != EXIT_DONE)
		return code;
	buf_init(&text, 0);
	code = need_tokenizer(&m, args[0]);
	if (code == EXIT_DONE)
		code = read_all_ids(&m, args + 1, n_args - 1, &tokens);
	if (code == EXIT_DONE)
		tokenizer_decode(m.tokenizer, tokens.ids, tokens.n, 0, &text);
	if (code == EXIT_DONE && o->json) {
		buf_init(&out, 0);
		buf_addc(&out, '{');
		add_string(&out, "prompt", &text);
		buf_addc(&out, '}');
		print_out(&out);
	} else if (code == EXIT_DONE) {
		print_text(&text);
	}
	token_list_fini(&tokens);
	buf_fini(&text);
	text_model_close(&m);
	return code;
}
