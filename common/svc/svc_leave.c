/* svc_leave.c - the end of a process that has nothing left to wait for. Apart from svc.c, which
 * tests replace. */
#include "svc/svc.h"
#include "util/log.h"

#include <unistd.h>

void svc_leave(const char *why)
{
	enum { LOG_WAIT_MS = 300 }; /* for the log's last lines */
	log_error("give_up", "why=%s", log_quote(why));
	log_stop(LOG_WAIT_MS);
	_exit(1);
}
