/* term.c - text for a terminal.
 *
 * What a model, a server or a file's name says is untrusted: a terminal would obey its escape
 * sequences (move the cursor, set the title, paste). So it never gets them. */
#include "term.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

void term_init(void)
{
	setlocale(LC_CTYPE, "");
	if (MB_CUR_MAX == 1)
		setlocale(LC_CTYPE, "C.UTF-8");
}

int term_is_screen(FILE *f)
{
	const char *term = getenv("TERM");
	return isatty(fileno(f)) && term && *term && strcmp(term, "dumb") != 0;
}

int term_has_colour(FILE *f)
{
	const char *none = getenv("NO_COLOR");
	return term_is_screen(f) && !(none && *none);
}

size_t term_columns(void)
{
	const char *text = getenv("COLUMNS");
	struct winsize size;
	char *end;
	unsigned long n = text ? strtoul(text, &end, 10) : 0;
	if (n && !*end)
		return n;
	return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/* The character at s and its length; U+FFFD and 1 if it is not one. */
static size_t character(const char *s, size_t n, wchar_t *ret)
{
	mbstate_t state = {0};
	size_t k = mbrtowc(ret, s, n, &state);
	if (k == 0) /* a NUL character */
		return 1;
	if (k <= n)
		return k;
	*ret = 0xFFFD;
	return 1;
}

static int is_hidden(wchar_t c)
{
	return (c >= 0x80 && c < 0xA0) || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

void term_add_safe(struct buf *out, const char *s, size_t n)
{
	for (size_t i = 0, k; i < n; i += k) {
		wchar_t c;
		k = character(s + i, n - i, &c);
		if (c == '\r' && i + 1 < n && s[i + 1] == '\n')
			continue;
		if (c == 0xFFFD)
			buf_adds(out, "\xEF\xBF\xBD");
		else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F)
			buf_printf(out, "^%c", (int)c ^ 0x40);
		else if (is_hidden(c))
			buf_printf(out, "<U+%04X>", (unsigned)c);
		else
			buf_add(out, s + i, k);
	}
}

void term_print(FILE *f, const char *s, size_t n)
{
	struct buf safe;
	if (!isatty(fileno(f))) {
		fwrite(s, 1, n, f);
		return;
	}
	buf_init(&safe, 0);
	term_add_safe(&safe, s, n);
	fwrite(safe.data, 1, safe.len, f);
	buf_fini(&safe);
}

size_t term_fit(const char *s, size_t columns, size_t *ret_columns)
{
	size_t n = strlen(s), i = 0, at = 0, k;
	for (; i < n; i += k) {
		wchar_t c;
		k = character(s + i, n - i, &c);
		int width = wcwidth(c);
		if (at + (size_t)(width < 0 ? 1 : width) > columns)
			break;
		at += (size_t)(width < 0 ? 1 : width);
	}
	if (ret_columns)
		*ret_columns = at;
	return i;
}
