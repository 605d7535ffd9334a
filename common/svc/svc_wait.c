/* svc_wait.c - a daemon that waits for others in its start: pdctl and the service manager see it
 * waiting, and can end it. */
#include "svc/svc_int.h"
#include "util/log.h"

#include <event2/event.h>

#define TELL_US 10000000u   /* between two words to systemd */
#define START_US 600000000u /* TimeoutStartSec of the units */

static void tell_wait(struct svc *s, void *what)
{
	(void)s;
	/* systemd must not take the start for one that hangs */
	svc_notify("EXTEND_TIMEOUT_USEC=%llu\nSTATUS=%s", 4ull * TELL_US, (const char *)what);
}

void svc_wait(struct svc *s, const struct svc_hooks *hooks, void *data, const char *what)
{
	const struct svc_hooks *own = s->hooks;
	void *own_data = s->data;
	struct svc_hooks meanwhile = *hooks;
	meanwhile.program = own->program;
	meanwhile.default_name = own->default_name;
	meanwhile.stats = own->stats;
	svc_set_hooks(s, &meanwhile);
	s->data = data;
	s->waiting = 1;
	struct svc_timer *tell = svc_timer_add(s, TELL_US, tell_wait, (void *)(uintptr_t)what);
	tell_wait(s, (void *)(uintptr_t)what);
	while (s->waiting && !event_base_got_break(s->base))
		event_base_loop(s->base, EVLOOP_ONCE);
	svc_timer_del(&tell);
	/* what follows may take as long as without the wait */
	svc_notify("EXTEND_TIMEOUT_USEC=%u", START_US);
	if (s->draining) {          /* told by pdctl: nothing has started that would have to end */
		chan_destroy(&s->chan); /* sends the answer */
		log_stop(SVC_LOG_WAIT_MS);
		svc_early_leave(0);
	}
	svc_set_hooks(s, own);
	s->data = own_data;
}

void svc_wait_end(struct svc *s)
{
	s->waiting = 0;
}
