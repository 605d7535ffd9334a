/* log_file.h - the log's own file, limited in size: PATH, and PATH.1 with what came before.
 *
 * The file is what stdout and stderr refer to, so it also gets backtraces and what libraries print.
 * Only the log's thread starts a new one: it renames PATH to PATH.1, which is atomic, so a kill -9
 * loses nothing, and what other threads write to stderr meanwhile goes to one of the two. If
 * somebody else renames or removes PATH (logrotate), it is created again. */
#ifndef UTIL_LOG_FILE_H
#define UTIL_LOG_FILE_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

/* Points stdout and stderr to the end of this file, which is created if it is missing. max_bytes: 0
 * for no limit. Call it once, before log_start. 0, ERR_INVALID (not a regular file) or ERR_IO. */
int log_file_open(const char *path, uint64_t max_bytes, struct err *err);
const char *log_file_path(void); /* NULL: none */
/* Before n bytes are written: starts a new file if they would exceed max_bytes. Returns 0, or the
 * errno to report of a rename or open that failed: once, and again each time that the file was
 * emptied at twice max_bytes because it could not be replaced. Only the log's thread. */
int log_file_make_room(size_t n);
/* Opens PATH again if stderr is no longer that file. Returns 0 or an errno. Any thread, also while
 * the process ends. */
int log_file_follow(void);

#endif
