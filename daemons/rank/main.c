/* main.c - pdrank: one rank of a worker with tensor_parallel above 1. The worker starts it with a
 * socket as descriptor 3. */
#include "engine/engine.h"
#include "util/check.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { RANK_FD = 3 };

int main(int argc, char **argv)
{
	if (argc > 1 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0)) {
		puts("usage: pdrank\n"
		     "Computes its share of a model's heads and columns. A worker with tensor_parallel\n"
		     "above 1 starts it and hands it a socket; it cannot be run by hand.");
		return 0;
	}
	int type = 0;
	socklen_t size = sizeof type;
	if (getsockopt(RANK_FD, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_SEQPACKET) {
		fprintf(stderr, "pdrank: started by workers with tensor_parallel above 1; it cannot be run "
		                "by hand\n");
		return 2;
	}
	check_crashes();
	return engine_rank_main(RANK_FD);
}
