/* svc_leave.c - ends the process without draining. Not in svc.c, because tests replace that
 * file. */
#include "svc/svc.h"
#include "util/log.h"

#include <unistd.h>

void svc_leave(const char *why)
{
	enum { LOG_WAIT_MS = 300 }; /* for the last lines of the log */
	log_error("give_up", "why=%s", log_quote(why));
	log_stop(LOG_WAIT_MS);
	_exit(1);
}
