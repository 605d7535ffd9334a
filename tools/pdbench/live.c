/* live.c - see live.h. Writes to stderr, and only if that is a terminal. */
#include "live.h"

#include <stdio.h>
#include <unistd.h>

#define EVERY_US 500000u

void live_init(struct live *l, const struct bench_options *o)
{
	*l = (struct live){.on = !o->quiet && isatty(STDERR_FILENO)};
	hist_init(&l->ttft);
}

void live_fini(struct live *l)
{
	if (l->on)
		fputs("\r\033[K", stderr);
	hist_fini(&l->ttft);
}

void live_show(struct live *l, const struct live_now *now)
{
	uint64_t passed = now->since_us - l->shown_us;
	if (!l->on || passed < EVERY_US)
		return;
	fprintf(stderr,
	        "\r\033[K%6.1f s  %llu sent  %u in flight (%u waiting for the first token)  %llu done  "
	        "%llu "
	        "failed  %.0f tokens/s",
	        (double)now->since_us / 1e6, (unsigned long long)now->sent, now->in_flight,
	        now->waiting, (unsigned long long)now->done, (unsigned long long)now->failed,
	        (double)(now->tokens - l->shown_tokens) * 1e6 / (double)passed);
	if (l->ttft.n)
		fprintf(stderr, "  ttft p50 %.1f ms", hist_percentile(&l->ttft, 50) / 1e3);
	fprintf(stderr, "  %s", now->phase);
	fflush(stderr);
	l->shown_us = now->since_us;
	l->shown_tokens = now->tokens;
}
