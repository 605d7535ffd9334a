/* svc_early.c - ends a daemon that has not started: by a signal, or because it cannot start.
 *
 * Nothing runs yet that would have to end first, but threads may, so nothing is freed: the process
 * exits, after its sockets were deleted. What a signal handler calls here it may call. */
#include "msg/codec.h"
#include "svc/svc_int.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The sockets that only the holder of the name may delete; "" before the name is locked. */
static char own_sockets[2][MSG_ENDPOINT_MAX + 1];

void svc_early_sockets(const struct svc *s)
{
	snprintf(own_sockets[0], sizeof own_sockets[0], "%s", s->endpoint + strlen("ipc://"));
	svc_sock_path(s, s->name, own_sockets[1], sizeof own_sockets[1]);
}

void svc_early_leave(int status)
{
	for (size_t i = 0; i < sizeof own_sockets / sizeof *own_sockets; i++)
		if (own_sockets[i][0])
			unlink(own_sockets[i]);
	_exit(status);
}

/* If stderr blocks, SIGALRM ends the process. */
static void on_signal(int sig)
{
	static const char text[] =
		"level=info event=stopped why=\"told to end before it had started\"\n";
	(void)sig;
	alarm(1);
	ssize_t done = write(STDERR_FILENO, text, sizeof text - 1);
	(void)done;
	svc_start_done();
	svc_early_leave(0);
}

void svc_early_signals(void)
{
	const struct sigaction early = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND | SA_NODEFER};
	sigaction(SIGTERM, &early, NULL);
	sigaction(SIGINT, &early, NULL);
}
