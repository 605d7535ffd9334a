/* main.c - the program pdstoraged. */
#include "storage.h"

int main(int argc, char **argv)
{
	return svc_main(argc, argv, &storage_hooks);
}
