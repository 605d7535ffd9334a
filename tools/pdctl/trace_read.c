/* trace_read.c - where `pdctl trace` reads log lines: log files (each NAME.log.1 before NAME.log),
 * standard input, or the systemd journal, from the newest line back.
 *
 * Memory is bounded: a line longer than LINE_MAX_BYTES, which no daemon writes, is cut. */
#include "pdctl.h"
#include "trace.h"

#include "util/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-id128.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#define LINE_MAX_BYTES 8192

/* --- files --------------------------------------------------------------- */

static void read_stream(FILE *f, trace_line_fn *fn, void *arg)
{
	char line[LINE_MAX_BYTES];
	size_t n = 0;
	for (int c; (c = getc_unlocked(f)) != EOF || n;) {
		if (c != EOF && c != '\n') {
			if (n + 1 < sizeof line)
				line[n++] = c ? (char)c : '?';
			continue;
		}
		line[n] = 0;
		fn(arg, line);
		n = 0;
	}
}

static int same_file(FILE *a, FILE *b)
{
	struct stat x, y;
	return a && b && fstat(fileno(a), &x) == 0 && fstat(fileno(b), &y) == 0 &&
	       x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

/* Reads PATH.1 and PATH. The daemon may rename PATH between the two opens: both are then the same
 * file, and are opened again. Returns the number of files. */
static size_t read_log(const char *path, trace_line_fn *fn, void *arg)
{
	char *old = mem_printf("%s.1", path);
	FILE *now, *before;
	for (;;) {
		now = fopen(path, "re");
		before = fopen(old, "re");
		if (!same_file(now, before))
			break;
		fclose(now);
		fclose(before);
	}
	size_t n = (before != NULL) + (now != NULL);
	if (before) {
		read_stream(before, fn, arg);
		fclose(before);
	}
	if (now) {
		read_stream(now, fn, arg);
		fclose(now);
	}
	free(old);
	return n;
}

static int ends_in(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);
	return n > m && strcmp(s + n - m, end) == 0;
}

/* A log that was renamed and not yet created again has only its NAME.log.1. */
static size_t read_folder(const char *folder, trace_line_fn *fn, void *arg)
{
	size_t n = 0;
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d));) {
		char *path = mem_printf("%s/%s", folder, e->d_name);
		int old = ends_in(path, ".log.1");
		if (old)
			path[strlen(path) - 2] = 0;
		if (ends_in(path, ".log") && (!old || access(path, F_OK) != 0))
			n += read_log(path, fn, arg);
		free(path);
	}
	if (d)
		closedir(d);
	return n;
}

/* --- the journal --------------------------------------------------------- */

static void read_journal(sd_journal *j, trace_line_fn *fn, void *arg)
{
	char line[LINE_MAX_BYTES];
	const void *data;
	size_t n;
	sd_journal_set_data_threshold(j, LINE_MAX_BYTES);
	for (int i = 0; i < PROGRAMS; i++) {
		char match[64];
		snprintf(match, sizeof match, "_COMM=%s", trace_program_names[i]);
		sd_journal_add_match(j, match, 0);
	}
	SD_JOURNAL_FOREACH_BACKWARDS(j)
	{
		if (sd_journal_get_data(j, "MESSAGE", &data, &n) < 0)
			continue;
		size_t skip = strlen("MESSAGE="), len = n - skip < sizeof line ? n - skip : sizeof line - 1;
		memcpy(line, (const char *)data + skip, len);
		line[len] = 0;
		if (fn(arg, line))
			return;
	}
}

/* sd_journal leaves out files that the user may not read. */
static int system_journal_is_hidden(void)
{
	static const char *const folders[] = {"/var/log/journal", "/run/log/journal"};
	char id[SD_ID128_STRING_MAX], path[128];
	sd_id128_t machine;
	if (sd_id128_get_machine(&machine) < 0)
		return 0;
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%s/system.journal", folders[i],
		         sd_id128_to_string(machine, id));
		if (access(path, R_OK) != 0 && errno == EACCES)
			return 1;
	}
	return 0;
}

/* folder NULL: the journal of this host. Returns the number of journals: 0 or 1. */
static size_t try_journal(const char *folder, trace_line_fn *fn, void *arg, int *ret_why)
{
	sd_journal *j = NULL;
	int r = folder ? sd_journal_open_directory(&j, folder, 0)
	               : sd_journal_open(&j, SD_JOURNAL_LOCAL_ONLY);
	*ret_why = r < 0 ? -r : 0;
	if (r < 0)
		return 0;
	size_t has = sd_journal_has_persistent_files(j) > 0 || sd_journal_has_runtime_files(j) > 0;
	if (has || folder)
		read_journal(j, fn, arg);
	sd_journal_close(j);
	return has || folder;
}

/* In the folder, or in folders named by a machine's id, as in /var/log/journal. */
static int has_journals(const char *folder)
{
	int found = 0;
	DIR *d = opendir(folder);
	for (struct dirent *e; d && !found && (e = readdir(d));) {
		char *path = mem_printf("%s/%s", folder, e->d_name);
		found = ends_in(path, ".journal") ||
		        (strspn(e->d_name, "0123456789abcdef") == 32 && has_journals(path));
		free(path);
	}
	if (d)
		closedir(d);
	return found;
}

/* --- which of them ------------------------------------------------------- */

/* A pipe is kept in a temporary file, because it may have to be read twice. */
static size_t read_input(struct trace_source *s, trace_line_fn *fn, void *arg)
{
	char piece[65536];
	size_t n;
	if (!s->input) {
		s->input = tmpfile();
		while (s->input && (n = fread(piece, 1, sizeof piece, stdin)) > 0)
			if (fwrite(piece, 1, n, s->input) != n)
				break;
		if (!s->input || ferror(s->input)) {
			fprintf(stderr, "pdctl: cannot keep standard input in a temporary file: %s\n",
			        strerror(errno));
			return 0;
		}
	}
	rewind(s->input);
	read_stream(s->input, fn, arg);
	return 1;
}

static size_t read_named(struct trace_source *s, trace_line_fn *fn, void *arg)
{
	struct stat st;
	int why = 0;
	size_t n = 0;
	if (strcmp(s->from, "-") == 0)
		return read_input(s, fn, arg);
	if (strcmp(s->from, "journal") == 0) {
		n = try_journal(NULL, fn, arg, &why);
		s->is_partial = system_journal_is_hidden();
		if (!n)
			fprintf(stderr, "pdctl: no journal that you may read on this host%s%s\n",
			        why ? ": " : "; members of the group systemd-journal may read the system's",
			        why ? strerror(why) : "");
		return n;
	}
	if (stat(s->from, &st) < 0)
		why = errno;
	else if (access(s->from, R_OK) < 0)
		why = errno;
	else if (!S_ISDIR(st.st_mode))
		n = read_log(s->from, fn, arg);
	else if (has_journals(s->from))
		n = try_journal(s->from, fn, arg, &why);
	else
		n = read_folder(s->from, fn, arg);
	if (!n)
		fprintf(stderr, "pdctl: --from %s: %s\n", s->from,
		        why ? strerror(why) : "no *.log and no *.journal in this folder");
	return n;
}

size_t trace_source_read(struct trace_source *s, trace_line_fn *fn, void *arg)
{
	int why;
	if (s->from)
		return read_named(s, fn, arg);
	char *logs = mem_printf("%s/logs", s->rundir);
	size_t n = read_folder(logs, fn, arg) + read_folder(s->rundir, fn, arg);
	free(logs);
	if (n)
		return n;
	s->is_partial = system_journal_is_hidden();
	if (!(n = try_journal(NULL, fn, arg, &why)))
		fprintf(
			stderr,
			"pdctl: no logs in %s/logs, and no journal that you may read on this host (root and "
			"members of the group systemd-journal may); -r names the run directory, --from another "
			"source\n",
			s->rundir);
	return n;
}
