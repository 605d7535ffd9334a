/* main.c - pdrank: a process of a worker's engine. Started by a worker with a socket as descriptor
 * 3 it is a rank of its group (tensor_parallel, pipeline_parallel); with a configuration it is a
 * daemon that offers itself as a stage of a pipeline on this host (rank.h), whose process it
 * starts. */
#include "rank.h"

#include "engine/engine.h"
#include "util/check.h"
#include "util/child.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* A worker or pdrank says what the process is to be in one word: "stage", or a rank's number. */
static int is_started(int argc, char **argv)
{
	int type = 0;
	socklen_t size = sizeof type;
	return argc == 2 && argv[1][0] != '-' &&
	       getsockopt(CHILD_FD, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

int main(int argc, char **argv)
{
	if (!is_started(argc, argv))
		return rank_daemon(argc, argv);
	check_crashes();
	return strcmp(argv[1], "stage") == 0 ? engine_stage_main(CHILD_FD) : engine_rank_main(CHILD_FD);
}
