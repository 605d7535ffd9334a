/* main.c - pddecoded: a worker whose role is decode unless its configuration says otherwise. */
#include "daemons/worker/worker.h"

int main(int argc, char **argv)
{
	return worker_main(argc, argv, "pddecoded", "decode", ROLE_DECODE);
}
