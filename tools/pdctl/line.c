/* line.c - input lines: libedit at a terminal, else plain ones.
 *
 * The history is a file of the user alone (libedit: mode 0600) with at most HISTORY_LINES lines. It
 * is read and written for every line, as a new file that replaces the old one, so a kill loses
 * nothing; a lock on its folder keeps several chats apart. A file that cannot be read as a history
 * is left unchanged, and none is kept; so it is without a home. Ctrl-C and Ctrl-Z are keys while a
 * line is edited, and signals at any other time. */
#include "line.h"

#include "util/buf.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define HISTORY_LINES 1000
#define HISTORY_LINE_BYTES 8192 /* longer lines are not kept */
#define INPUT_BYTES_MAX (4u << 20)

struct lines {
	EditLine *edit; /* NULL: no terminal */
	History *history;
	char *path; /* NULL: the history is not kept */
	const char *prompt;
	int interrupted, interrupted_empty; /* Ctrl-C ended the line; an empty one */
};

static char *prompt_of(EditLine *e)
{
	struct lines *l;
	el_get(e, EL_CLIENTDATA, &l);
	return (char *)l->prompt;
}

static unsigned char on_interrupt(EditLine *e, int key)
{
	struct lines *l;
	(void)key;
	el_get(e, EL_CLIENTDATA, &l);
	l->interrupted = 1;
	l->interrupted_empty = el_line(e)->lastchar == el_line(e)->buffer;
	return CC_NEWLINE;
}

/* libedit gives the terminal back while we are stopped. */
static unsigned char on_suspend(EditLine *e, int key)
{
	(void)e;
	(void)key;
	kill(0, SIGTSTP);
	return CC_NORM;
}

/* ${XDG_STATE_HOME:-~/.local/state}/pdserve/chat_history, its folders made; NULL: no home. */
static char *history_path(void)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char *path;
	if (state && *state == '/')
		path = mem_printf("%s/pdserve/chat_history", state);
	else if (home && *home == '/')
		path = mem_printf("%s/.local/state/pdserve/chat_history", home);
	else
		return NULL;
	for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		mkdir(path, 0700);
		*p = '/';
	}
	return path;
}

static void history_drop(struct lines *l, const char *why)
{
	fprintf(stderr, "pdctl: no history is kept: %s: %s\n", l->path, why);
	free(l->path);
	l->path = NULL;
}

/* Replaces the history in memory by the one in the file, if there is one. */
static void history_load(struct lines *l)
{
	HistEvent ev;
	struct stat st;
	if (!l->path || (stat(l->path, &st) == 0 ? st.st_size == 0 : errno == ENOENT))
		return;
	history(l->history, &ev, H_CLEAR);
	if (access(l->path, R_OK) < 0)
		history_drop(l, strerror(errno));
	else if (history(l->history, &ev, H_LOAD, l->path) < 0)
		history_drop(l, "the file is not a history");
}

static void history_open(struct lines *l)
{
	HistEvent ev;
	l->history = history_init();
	history(l->history, &ev, H_SETSIZE, HISTORY_LINES);
	history(l->history, &ev, H_SETUNIQUE, 1);
	el_set(l->edit, EL_HIST, history, l->history);
	l->path = history_path();
	char *target = l->path ? realpath(l->path, NULL) : NULL; /* a link is kept */
	if (target) {
		free(l->path);
		l->path = target;
	}
	history_load(l);
}

/* Held until the returned file is closed; -1: the folder cannot be locked. */
static int lock_folder(const char *path)
{
	char *folder = mem_strdup(path);
	*strrchr(folder, '/') = 0;
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		flock(fd, LOCK_EX);
	free(folder);
	return fd;
}

static void history_save(struct lines *l)
{
	HistEvent ev;
	if (!l->path)
		return;
	char *fresh = mem_printf("%s.new", l->path);
	errno = 0;
	int bad = history(l->history, &ev, H_SAVE, fresh) < 0 || rename(fresh, l->path) < 0;
	if (bad) {
		int why = errno;
		unlink(fresh);
		history_drop(l, strerror(why));
	}
	free(fresh);
}

static void history_enter(struct lines *l, const char *line)
{
	HistEvent ev;
	if (strspn(line, " \t\n") == strlen(line) || strlen(line) > HISTORY_LINE_BYTES)
		return;
	int lock = l->path ? lock_folder(l->path) : -1;
	history_load(l);
	history(l->history, &ev, H_ENTER, line);
	history_save(l);
	if (lock >= 0)
		close(lock);
}

static void edit_open(struct lines *l)
{
	static const char *const keys[][2] = {
		{"^C", "pdctl-interrupt"},    {"^Z", "pdctl-suspend"},
		{"^R", "em-inc-search-prev"}, {"\\e[3~", "ed-delete-next-char"},
		{"\\e[1;5D", "ed-prev-word"}, {"\\e[1;5C", "em-next-word"}};
	/* what is typed is shown where the answers are, or beside them if those go to a file */
	l->edit = el_init("pdctl", stdin, isatty(STDOUT_FILENO) ? stdout : stderr, stderr);
	if (!l->edit)
		return;
	el_set(l->edit, EL_CLIENTDATA, l);
	el_set(l->edit, EL_PROMPT, prompt_of);
	el_set(l->edit, EL_EDITOR, "emacs");
	el_set(l->edit, EL_SIGNAL, 1);
	el_set(l->edit, EL_SETTY, "-d", "-isig", NULL);
	/* el_set would copy the names and lose the copies */
	el_wset(l->edit, EL_ADDFN, L"pdctl-interrupt", L"drop the line", on_interrupt);
	el_wset(l->edit, EL_ADDFN, L"pdctl-suspend", L"stop the process", on_suspend);
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		el_set(l->edit, EL_BIND, keys[i][0], keys[i][1], NULL);
	history_open(l);
	el_source(l->edit, NULL);
}

struct lines *lines_open(void)
{
	struct lines *l = mem_zalloc(sizeof *l);
	if (isatty(STDIN_FILENO) && isatty(STDERR_FILENO))
		edit_open(l);
	return l;
}

void lines_close(struct lines **lp)
{
	struct lines *l = *lp;
	if (l->history)
		history_end(l->history);
	if (l->edit)
		el_end(l->edit);
	free(l->path);
	free(l);
	*lp = NULL;
}

int lines_edited(const struct lines *l)
{
	return l->edit != NULL;
}

static char *edited_line(struct lines *l)
{
	int n = 0;
	const char *s = el_gets(l->edit, &n);
	if (s && !l->interrupted)
		return mem_strdup(s);
	if (!l->interrupted)
		fputc('\n', stderr); /* after Ctrl-D */
	return NULL;
}

/* A line longer than any input is cut, to a length that is still refused as an input. */
static char *plain_line(void)
{
	struct buf line;
	int c;
	buf_init(&line, INPUT_BYTES_MAX + 8); /* 8: quotes and a backslash may be dropped */
	while ((c = getchar_unlocked()) != EOF && c != '\n')
		buf_addc(&line, (char)c);
	char *text = c == EOF && !line.len ? NULL : mem_strdup(line.len ? line.data : "");
	buf_fini(&line);
	return text;
}

/* One line, malloc'd; NULL at the end, or if l->interrupted. */
static char *one_line(struct lines *l)
{
	l->interrupted = 0;
	char *line = l->edit ? edited_line(l) : plain_line();
	if (line)
		line[strcspn(line, "\r\n")] = 0;
	if (line && l->edit)
		history_enter(l, line);
	return line;
}

/* Where a text in quotes begins: at the start of the line, or as a command's. NULL: nowhere. */
static const char *quote_of(const char *line)
{
	const char *s = *line == '/' ? strstr(line, " \"\"\"") : NULL;
	return s ? s + 1 : strncmp(line, "\"\"\"", 3) == 0 ? line : NULL;
}

/* Adds a line to the input. Returns 1 if the input goes on with the next line. What
 * is in quotes stays as it is. */
static int add_line(struct buf *input, const char *line, int *quoted)
{
	size_t n;
	const char *open = !input->len && !*quoted ? quote_of(line) : NULL;
	if (open) {
		buf_add(input, line, (size_t)(open - line));
		*quoted = 1;
		line = open + 3;
		if (!*line)
			return 1;
	}
	n = strlen(line);
	if (*quoted && n >= 3 && strcmp(line + n - 3, "\"\"\"") == 0) {
		buf_add(input, line, n - 3);
		if (n == 3 && input->len && input->data[input->len - 1] == '\n')
			input->data[--input->len] = 0;
		return 0;
	}
	int more = *quoted || (n && line[n - 1] == '\\');
	buf_add(input, line, more && !*quoted ? n - 1 : n);
	if (more)
		buf_addc(input, '\n');
	return more;
}

/* 0 at the end, if nothing came before it. */
static int collect(struct lines *l, const char *hint, struct buf *input)
{
	char *line;
	int quoted = 0, more = 1;
	l->prompt = "> ";
	while (more) {
		line = one_line(l);
		if (!line && !l->interrupted)
			return input->len > 0 || input->full;
		if (line) {
			more = add_line(input, line, &quoted);
			l->prompt = "... ";
			free(line);
			continue;
		}
		fprintf(stderr, "^C\n");
		if (l->interrupted_empty && !input->len && !quoted)
			fprintf(stderr, "%s\n", hint);
		buf_reset(input);
		quoted = 0;
		l->prompt = "> ";
	}
	return 1;
}

char *lines_next(struct lines *l, const char *hint)
{
	struct buf input;
	buf_init(&input, INPUT_BYTES_MAX);
	char *text = collect(l, hint, &input) ? mem_strdup(input.len ? input.data : "") : NULL;
	if (input.full) {
		fprintf(stderr, "pdctl: an input of more than %u bytes is dropped\n", INPUT_BYTES_MAX);
		*text = 0;
	}
	buf_fini(&input);
	return text;
}
