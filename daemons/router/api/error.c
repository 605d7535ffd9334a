/* error.c - see error.h. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int api_bad(struct api_error *e, const char *param, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(e->text, sizeof e->text, fmt, ap);
	va_end(ap);
	e->status = 400;
	e->type = "invalid_request_error";
	e->code = NULL;
	snprintf(e->param, sizeof e->param, "%s", param ? param : "");
	return -1;
}

static const struct {
	int status;
	const char *type, *code;
	const char *in_messages; /* the type in Anthropic's shape */
} kinds[] = {
	{400, "invalid_request_error", NULL, "invalid_request_error"},
	{401, "invalid_request_error", "invalid_api_key", "authentication_error"},
	{404, "invalid_request_error", "not_found", "not_found_error"},
	{405, "invalid_request_error", "method_not_allowed", "invalid_request_error"},
	{408, "invalid_request_error", "request_timeout", "timeout_error"},
	{413, "invalid_request_error", "request_too_large", "request_too_large"},
	{415, "invalid_request_error", "unsupported_media_type", "invalid_request_error"},
	{429, "rate_limit_error", "too_many_requests", "rate_limit_error"},
	{431, "invalid_request_error", "request_too_large", "request_too_large"},
	{500, "server_error", "internal_error", "api_error"},
	{501, "invalid_request_error", "not_implemented", "invalid_request_error"},
	{503, "server_error", "unavailable", "overloaded_error"},
	{504, "server_error", "timeout", "timeout_error"},
	{505, "invalid_request_error", "http_version", "invalid_request_error"},
};

int api_fault(struct api_error *e, int status, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(e->text, sizeof e->text, fmt, ap);
	va_end(ap);
	e->status = status;
	e->type = "server_error";
	e->code = NULL;
	e->param[0] = 0;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (kinds[i].status == status) {
			e->type = kinds[i].type;
			e->code = kinds[i].code;
		}
	return -1;
}

void api_error_json(const struct api_error *e, struct buf *out)
{
	buf_adds(out, "{\"error\":{\"message\":");
	buf_add_json(out, e->text, strlen(e->text));
	buf_printf(out, ",\"type\":\"%s\",\"param\":", e->type);
	if (*e->param)
		buf_add_json(out, e->param, strlen(e->param));
	else
		buf_adds(out, "null");
	if (e->code)
		buf_printf(out, ",\"code\":\"%s\"}}", e->code);
	else
		buf_adds(out, ",\"code\":null}}");
}

void api_error_json_messages(const struct api_error *e, struct buf *out)
{
	const char *type = "api_error";
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		type = kinds[i].status == e->status ? kinds[i].in_messages : type;
	buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
	buf_add_json(out, e->text, strlen(e->text));
	buf_adds(out, "}}");
}
