/* main.c - pdprefilld: a worker whose role is prefill unless its configuration says otherwise. */
#include "daemons/worker/worker.h"

int main(int argc, char **argv)
{
	return worker_main(argc, argv, "pdprefilld", "prefill", ROLE_PREFILL);
}
