/* main.c - pdrank: one rank of a worker with tensor_parallel above 1. The worker starts it with a
 * socket as descriptor 3. */
#include "engine/engine.h"

#include <stdio.h>
#include <sys/socket.h>

enum { RANK_FD = 3 };

int main(void)
{
	int type = 0;
	socklen_t size = sizeof type;
	if (getsockopt(RANK_FD, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_SEQPACKET) {
		fprintf(stderr, "pdrank: started by workers with tensor_parallel above 1; it cannot be run "
		                "by hand\n");
		return 2;
	}
	return engine_rank_main(RANK_FD);
}
