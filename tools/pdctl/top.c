/* top.c - `pdctl top`: the whole suite on one screen, again and again.
 *
 * On a terminal it has the alternate screen until q or Ctrl-C, and gives the terminal back on every
 * signal that can be caught, also when it is suspended. Elsewhere, and on a terminal that cannot
 * move its cursor, it prints one screen after the other; without a number of them just one, except
 * on a terminal. */
#include "top.h"

#include "term.h"
#include "util/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#define FIRST_US 300000u /* longest wait for the first answers before the first screen */

static struct {
	struct termios before;
	int keys, entered;
} terminal;

static void terminal_leave(void)
{
	if (!terminal.entered)
		return;
	terminal.entered = 0;
	fputs("\033[?7h\033[?25h\033[?1049l", stdout);
	fflush(stdout);
	if (terminal.keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &terminal.before);
}

/* Alternate screen, no cursor, no line wrap; keys come at once and are not shown. */
static void terminal_enter(void)
{
	terminal.keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &terminal.before) == 0;
	if (terminal.keys) {
		struct termios raw = terminal.before;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	terminal.entered = 1;
	fputs("\033[?1049h\033[?25l\033[?7l\033[2J", stdout);
}

static struct screen screen_now(void)
{
	struct winsize size = {0};
	struct screen s = {24, 80, 1, term_has_colour(stdout), terminal.keys};
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col) {
		s.rows = size.ws_row;
		s.columns = size.ws_col;
	}
	return s;
}

static void draw(struct watcher *w, const struct options *o)
{
	const struct screen s = screen_now();
	json_t *view = top_view(w, o);
	top_draw(view, &s);
	json_decref(view);
}

/* Returns the signal that ends us, or 0. */
static int take_signal(int fd)
{
	struct signalfd_siginfo got;
	if (read(fd, &got, sizeof got) != sizeof got)
		return 0;
	if (got.ssi_signo == SIGTSTP) {
		terminal_leave();
		raise(SIGSTOP);
		terminal_enter();
	} else if (got.ssi_signo == SIGWINCH) {
		fputs("\033[2J", stdout);
	} else if (got.ssi_signo != SIGCONT) {
		return (int)got.ssi_signo;
	}
	return 0;
}

/* Returns 1 if a key was pressed that ends us. */
static int take_key(void)
{
	char key = 0;
	ssize_t n = read(STDIN_FILENO, &key, 1);
	return n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN) || key == 'q' || key == 'Q' ||
	       key == 3 || key == 4;
}

/* Until a key or a signal ends it; returns that signal or 0. */
static int show_live(struct watcher *w, const struct options *o, uint64_t interval_us, int signals)
{
	for (uint64_t due = clock_us();;) {
		if (!clock_left_us(due)) {
			watch_find(w);
			due = clock_us() + interval_us;
		}
		draw(w, o);
		struct pollfd p[2] = {{.fd = signals, .events = POLLIN},
		                      {.fd = terminal.keys ? STDIN_FILENO : -1, .events = POLLIN}};
		if (poll(p, 2, (int)((clock_left_us(due) + 999) / 1000)) <= 0)
			continue;
		int by = p[0].revents ? take_signal(signals) : 0;
		if (by || (p[1].revents && take_key()))
			return by;
	}
}

static int live(const struct options *o, uint64_t interval_us)
{
	static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};
	sigset_t set, before;
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
		sigaddset(&set, caught[i]);
	sigprocmask(SIG_BLOCK, &set, &before); /* also for the threads of the watch */
	int signals = signalfd(-1, &set, SFD_CLOEXEC);
	struct watcher *w = watch_new(o, interval_us);
	watch_find(w);
	watch_wait(w, 1, FIRST_US);
	atexit(terminal_leave);
	terminal_enter();
	int by = show_live(w, o, interval_us, signals);
	terminal_leave();
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (by && by != SIGINT) {
		signal(by, SIG_DFL);
		raise(by);
	}
	return EXIT_DONE;
}

static int worst_code(struct watcher *w)
{
	size_t n;
	int code = EXIT_DONE;
	struct watched *const *list = watch_lock(w, &n);
	for (size_t i = 0; i < n; i++)
		if (!list[i]->at.left && list[i]->code > code)
			code = list[i]->code;
	watch_unlock(w);
	return code;
}

/* Each screen has the figures of the interval before it. Only the first screen waits for a daemon
 * that hangs. */
static int print(const struct options *o, uint64_t interval_us)
{
	const struct screen s = {0};
	struct watcher *w = watch_new(o, interval_us);
	for (unsigned i = 0; !o->count || i < (unsigned long)o->count; i++) {
		watch_find(w);
		if (i)
			watch_wait(w, 1, interval_us);
		else
			watch_wait(w, 2, 2 * interval_us + 4 * o->timeout_us);
		json_t *view = top_view(w, o);
		if (o->json) {
			print_json(view);
		} else {
			fputs(i ? "\n" : "", stdout);
			top_draw(view, &s);
		}
		fflush(stdout);
		json_decref(view);
	}
	return worst_code(w);
}

int top_command(const struct options *o, char *const *args, size_t n_args)
{
	/* for the threads, which run until the process ends */
	static struct options own;
	uint64_t interval_us = (uint64_t)(o->interval_s * 1e6);
	struct target *list;
	(void)args;
	(void)n_args;
	if (!targets_find(o, &list))
		return EXIT_UNREACHABLE;
	free(list);
	own = *o;
	term_init();
	if (!own.count && !own.json && term_is_screen(stdout))
		return live(&own, interval_us);
	if (!own.count && (own.json || !isatty(STDOUT_FILENO)))
		own.count = 1;
	return print(&own, interval_us);
}
