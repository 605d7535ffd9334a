/* config_file.c - see config_file.h.
 *
 * libconfig 1.5 cuts a number without the suffix L to 32 bits, and one beyond 64 bits to the
 * nearest that has as many, without an error. So it gets a copy of the text in which every whole
 * number has the suffix, and numbers beyond 64 bits are refused here. The words of the text are
 * told apart as libconfig does; what is wrong with them otherwise is left to libconfig. It would
 * read an included file as it is: @include is refused. */
#include "util/config_file.h"
#include "util/buf.h"
#include "util/mem.h"

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DIGITS "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

/* The functions *_length return the length of what the text begins with; 0: of nothing such. */

static size_t comment_length(const char *s)
{
	if (s[0] == '#' || (s[0] == '/' && s[1] == '/'))
		return strcspn(s, "\n");
	if (s[0] != '/' || s[1] != '*')
		return 0;
	const char *end = strstr(s + 2, "*/");
	return end ? (size_t)(end - s) + 2 : strlen(s);
}

static size_t string_length(const char *s)
{
	if (*s != '"')
		return 0;
	size_t n = 1;
	while (s[n] && s[n] != '"')
		n += s[n] == '\\' && s[n + 1] ? 2 : 1;
	return n + (s[n] == '"');
}

static size_t name_length(const char *s)
{
	return *s && strchr(LETTERS "*", *s) ? strspn(s, LETTERS DIGITS "*_-") : 0;
}

/* Without the suffix L. *ret_whole: it has neither a point nor an exponent. */
static size_t number_length(const char *s, int *ret_whole)
{
	size_t sign = *s == '-' || *s == '+', n = sign + strspn(s + sign, DIGITS);
	*ret_whole = n > sign;
	if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X') && isxdigit((unsigned char)s[2]))
		return 2 + strspn(s + 2, DIGITS "abcdefABCDEF");
	if (s[n] == '.') {
		n += 1 + strspn(s + n + 1, DIGITS);
		*ret_whole = 0;
	}
	if (n > sign && (s[n] == 'e' || s[n] == 'E')) {
		size_t e = n + 1 + (s[n + 1] == '-' || s[n + 1] == '+'), digits = strspn(s + e, DIGITS);
		if (digits) {
			n = e + digits;
			*ret_whole = 0;
		}
	}
	return n;
}

static int is_too_large(const char *number)
{
	errno = 0;
	(void)strtoll(number, NULL, number[0] == '0' && (number[1] | 32) == 'x' ? 16 : 10);
	return errno == ERANGE;
}

/* Adds the text to out, with the suffix L behind each whole number. */
static int copy_text(const char *path, const char *s, struct buf *out, struct err *err)
{
	const char *name = "";
	unsigned line = 1;
	for (size_t n; *s; s += n) {
		int whole = 0;
		if (!(n = comment_length(s)))
			n = string_length(s);
		if (!n && (n = name_length(s)))
			name = s;
		if (!n && !(n = number_length(s, &whole)))
			n = 1;
		if (*s == '@')
			return err_set(err, ERR_INVALID,
			               "%s:%u: @include is not supported: all settings are in one file", path,
			               line);
		if (whole && *name && is_too_large(s))
			return err_set(err, ERR_INVALID,
			               "%s:%u: %.*s = %.*s is out of range: whole numbers are %lld to %lld",
			               path, line, (int)name_length(name), name, n < 100 ? (int)n : 100, s,
			               (long long)INT64_MIN, (long long)INT64_MAX);
		size_t suffix = whole ? strspn(s + n, "L") : 0;
		n += suffix;
		buf_add(out, s, n);
		if (whole && !suffix)
			buf_addc(out, 'L');
		for (size_t i = 0; i < n; i++)
			line += s[i] == '\n';
	}
	buf_addc(out, '\n'); /* libconfig 1.5 takes no comment that ends with the file */
	return 0;
}

static int read_text(const char *path, char **ret_text, struct err *err)
{
	struct stat st;
	if (stat(path, &st) == 0 && (!S_ISREG(st.st_mode) || st.st_size > CONFIG_FILE_BYTES_MAX))
		return err_set(err, ERR_INVALID,
		               "the configuration file %s is not a regular file of at most %d bytes", path,
		               CONFIG_FILE_BYTES_MAX);
	FILE *f = fopen(path, "re");
	if (!f)
		return err_set(err, ERR_IO, "cannot read the configuration file %s: %s", path,
		               strerror(errno));
	char *text = mem_alloc(CONFIG_FILE_BYTES_MAX + 1);
	size_t n = fread(text, 1, CONFIG_FILE_BYTES_MAX, f);
	text[n] = 0;
	int r = 0;
	if (ferror(f))
		r = err_set(err, ERR_IO, "cannot read the configuration file %s: %s", path,
		            strerror(errno));
	else if (strlen(text) < n)
		r = err_set(err, ERR_INVALID, "%s: byte %zu is NUL, which no text has", path, strlen(text));
	fclose(f);
	if (r < 0)
		free(text);
	else
		*ret_text = text;
	return r;
}

int config_file_read(config_t *cfg, const char *path, struct err *err)
{
	char *text = NULL;
	int r = read_text(path, &text, err);
	if (r < 0)
		return r;
	struct buf whole;
	buf_init(&whole, 0);
	buf_adds(&whole, "");
	r = copy_text(path, text, &whole, err);
	if (r == 0 && !config_read_string(cfg, whole.data))
		r = err_set(err, ERR_INVALID, "%s:%d: %s", path, config_error_line(cfg),
		            config_error_text(cfg));
	buf_fini(&whole);
	free(text);
	return r;
}
