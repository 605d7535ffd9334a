/* child.c - see child.h. */
#include "util/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int spawn(const char *program, char *const *argv, int theirs, pid_t *ret_pid)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, all;
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, theirs, CHILD_FD);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	extern char **environ;
	int rc = posix_spawn(ret_pid, program, &files, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	return rc;
}

int child_start(const char *program, char *const *argv, pid_t *ret_pid, int *ret_fd,
                struct err *err)
{
	int pair[2];
	pid_t pid = 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return err_set(err, ERR_IO, "cannot make a socket for %.200s: %s", program,
		               strerror(errno));
	/* dup2 of a descriptor onto itself would leave it close-on-exec */
	int theirs = pair[1] == CHILD_FD ? fcntl(pair[1], F_DUPFD_CLOEXEC, CHILD_FD + 1) : pair[1];
	int rc = theirs < 0 ? errno : spawn(program, argv, theirs, &pid);
	if (theirs >= 0 && theirs != pair[1])
		close(theirs);
	close(pair[1]);
	if (rc) {
		close(pair[0]);
		return err_set(err, ERR_IO, "cannot start %.200s: %s", program, strerror(rc));
	}
	*ret_pid = pid;
	*ret_fd = pair[0];
	return 0;
}
