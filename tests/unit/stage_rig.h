/* stage_rig.h - a process that is a stage on another host, as the daemon pdrank starts it, but on
 * this one. */
#ifndef TEST_STAGE_RIG_H
#define TEST_STAGE_RIG_H

#include "engine/engine.h"
#include "util/sock.h"
#include "util/wire.h"

#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct stage_process {
	pid_t pid; /* 0: none; the test is the other end itself */
	int fd;    /* its lifeline */
	struct wire *wire;
};

/* Where stages connect to. */
static inline int door_new(uint16_t *ret_port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t size = sizeof a;
	int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert(bind(door, (struct sockaddr *)&a, sizeof a) == 0 && listen(door, 1) == 0 &&
	          getsockname(door, (struct sockaddr *)&a, &size) == 0);
	*ret_port = ntohs(a.sin_port);
	return door;
}

/* Closes the door. */
static inline struct wire *accept_stage(int door, const struct wire_ticket *t)
{
	unsigned char hello[WIRE_HELLO_BYTES];
	struct wire *w = NULL;
	int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC);
	ck_assert_int_eq(recv(fd, hello, sizeof hello, MSG_WAITALL), sizeof hello);
	ck_assert_int_eq(wire_accept(fd, hello, t, &w), 0);
	close(door);
	return w;
}

/* Starts `program` as stage number `stage`. model: its path there, "": the engine's. device: the
 * first one's number. */
static inline void spawn_stage(struct stage_process *ret, const char *program, const char *model,
                               int device, unsigned stage, unsigned stages)
{
	extern char **environ;
	char *argv[] = {(char *)"pdrank", (char *)"stage", NULL};
	struct engine_stage s = {.stage = stage,
	                         .stages = stages,
	                         .host = "127.0.0.1",
	                         .device_index = device,
	                         .threads = 1};
	posix_spawn_file_actions_t files;
	int pair[2], door = door_new(&s.port);
	wire_ticket_make(&s.ticket);
	snprintf(s.model_path, sizeof s.model_path, "%s", model);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, fcntl(pair[1], F_DUPFD_CLOEXEC, 10), 3);
	ck_assert_int_eq(posix_spawn(&ret->pid, program, &files, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&files);
	close(pair[1]);
	ret->fd = pair[0];
	ck_assert_int_eq(sock_send(ret->fd, &s, sizeof s, NULL, 0), 0);
	ret->wire = accept_stage(door, &s.ticket);
}

/* Ends it, also if it is stopped. The wire is the engine's, unless the test is the other end. */
static inline void stage_process_end(struct stage_process *p)
{
	if (p->pid) {
		kill(p->pid, SIGCONT);
		close(p->fd);
		waitpid(p->pid, NULL, 0);
	} else {
		wire_destroy(&p->wire);
	}
	*p = (struct stage_process){0};
}

#endif
