/* bench_router.c - what the router adds: a whole router with workers that answer at once, and
 * clients, all on one thread. Figures are that thread's processor time by request or by token, so
 * they contain the clients' and the workers' own part too and are an upper bound.
 *
 *   bench_router [MODEL.gguf]     with a model: also prompts as text, and chat
 */
#include "tests/unit/registry_defaults.h"
#include "tests/unit/router_world.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

struct client {
	struct bufferevent *bev;
	struct bench *b;
	uint64_t sent_us;
};

struct bench {
	struct world *w;
	const char *name;
	char *request;
	size_t len;
	const char *end; /* the answer is complete when this was seen */
	unsigned left, running, done;
	uint64_t *took_us;
};

static void send_next(struct client *c)
{
	struct bench *b = c->b;
	if (!b->left) {
		if (--b->running == 0)
			event_base_loopbreak(b->w->base);
		return;
	}
	b->left--;
	c->sent_us = clock_us();
	bufferevent_write(c->bev, b->request, b->len);
}

static void on_data(struct bufferevent *bev, void *arg)
{
	struct client *c = arg;
	struct evbuffer *in = bufferevent_get_input(bev);
	size_t n = strlen(c->b->end), have = evbuffer_get_length(in);
	char tail[16];
	struct evbuffer_ptr at;
	if (have < n)
		return;
	evbuffer_ptr_set(in, &at, have - n, EVBUFFER_PTR_SET);
	evbuffer_copyout_from(in, &at, tail, n);
	if (memcmp(tail, c->b->end, n) != 0)
		return;
	evbuffer_drain(in, have);
	c->b->took_us[c->b->done++] = clock_us() - c->sent_us;
	send_next(c);
}

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static void run(struct world *w, const char *name, const char *path, const char *body,
                const char *end, unsigned clients, unsigned requests, unsigned tokens)
{
	struct bench b = {.w = w,
	                  .name = name,
	                  .end = end,
	                  .left = requests,
	                  .running = clients,
	                  .took_us = mem_array(requests, sizeof(uint64_t))};
	struct client *c = mem_array(clients, sizeof *c);
	struct sockaddr_in to = {.sin_family = AF_INET,
	                         .sin_port = htons((uint16_t)http_port(w->r.http)),
	                         .sin_addr = {htonl(INADDR_LOOPBACK)}};
	b.request = mem_printf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %zu\r\n\r\n%s",
	                       path, strlen(body), body);
	b.len = strlen(b.request);
	uint64_t t0 = clock_us(), cpu = cpu_ns();
	for (unsigned i = 0; i < clients; i++) {
		int one = 1;
		c[i].b = &b;
		c[i].bev = bufferevent_socket_new(w->base, -1, BEV_OPT_CLOSE_ON_FREE);
		bufferevent_setcb(c[i].bev, on_data, NULL, NULL, &c[i]);
		bufferevent_enable(c[i].bev, EV_READ | EV_WRITE);
		bufferevent_socket_connect(c[i].bev, (struct sockaddr *)&to, sizeof to);
		setsockopt(bufferevent_getfd(c[i].bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		send_next(&c[i]);
	}
	event_base_dispatch(w->base);
	cpu = cpu_ns() - cpu;
	double wall = (double)(clock_us() - t0);
	qsort(b.took_us, b.done, sizeof *b.took_us, by_value);
	printf("%-34s clients=%-3u requests/s=%-7.0f cpu_us/request=%-7.2f", name, clients,
	       b.done * 1e6 / wall, (double)cpu / 1e3 / b.done);
	if (tokens > 1)
		printf(" cpu_us/token=%-6.3f", (double)cpu / 1e3 / b.done / tokens);
	printf(" p50_us=%llu p99_us=%llu\n", (unsigned long long)b.took_us[b.done / 2],
	       (unsigned long long)b.took_us[b.done * 99 / 100]);
	for (unsigned i = 0; i < clients; i++)
		bufferevent_free(c[i].bev);
	free(c);
	free(b.took_us);
	free(b.request);
}

/* --- placement alone ----------------------------------------------------- */

#define FLEET 12u

/* FLEET prefill and as many decode workers, each with `others` blocks of other prompts and the
 * first half of this one's. */
static void fill(struct registry *g, const uint64_t *hashes, size_t n, size_t others)
{
	uint64_t *h = mem_array(others, sizeof *h);
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	list_each(it, &g->workers) {
		struct worker_record *w = list_entry(it, struct worker_record, node);
		randombytes_buf(h, others * sizeof *h);
		m.stored = h;
		m.n_stored = others;
		registry_kv_events(g, w, &m);
		m.stored = (uint64_t *)hashes;
		m.n_stored = n / 2;
		registry_kv_events(g, w, &m);
	}
	free(h);
}

static void place(const char *policy, uint32_t n_tokens, unsigned times)
{
	struct registry g;
	struct prefixes p = {0};
	struct placement got;
	uint32_t *tokens = mem_array(n_tokens, sizeof *tokens);
	char name[16];
	registry_defaults(&g, 1000000);
	for (unsigned i = 0; i < POLICIES; i++)
		if (strcmp(policies[i].name, policy) == 0)
			g.policy.policy[PLACE_PREFILL] = g.policy.policy[PLACE_DECODE] = i;
	randombytes_buf(tokens, n_tokens * sizeof *tokens);
	for (unsigned i = 0; i < 2 * FLEET; i++) {
		Pds__WorkerInfo info = PDS__WORKER_INFO__INIT;
		snprintf(name, sizeof name, "w%u", i);
		info.role = (char *)(i < FLEET ? "prefill" : "decode");
		info.model_fingerprint = info.numerics = info.layout = info.site = (char *)"x";
		info.block_tokens = 64;
		registry_up(&g, (struct peer *)&g, name, 1, &info, clock_us());
	}
	uint64_t t = cpu_ns();
	for (unsigned i = 0; i < times; i++) {
		prefixes_fini(&p);
		prefixes_make(&g.roots, NULL, tokens, n_tokens, &p);
	}
	double hash_us = (double)(cpu_ns() - t) / 1e3 / times;
	fill(&g, p.of[0].hashes, p.of[0].n, 100000);
	struct place_query query = {.tokens = n_tokens,
	                            .total_tokens = n_tokens + 100,
	                            .prefixes = policy_uses_prefixes(&g.policy) ? &p : NULL};
	t = cpu_ns();
	for (unsigned i = 0; i < times; i++)
		place_choose(&g, &query, clock_us(), &got);
	printf("placement, %-12s %6u tokens, %ux%u workers: hashing %.1f us, placing %.1f us\n", policy,
	       n_tokens, FLEET, FLEET, query.prefixes ? hash_us : 0,
	       (double)(cpu_ns() - t) / 1e3 / times);
	prefixes_fini(&p);
	registry_fini(&g);
	free(tokens);
}

static void placements(void)
{
	static const char *const which[] = {"kv_aware", "least_tokens", "power_of_two"};
	for (unsigned i = 0; i < sizeof which / sizeof *which; i++) {
		place(which[i], 1280, 20000);
		place(which[i], 60000, 1000);
	}
}

int main(int argc, char **argv)
{
	struct model *m = NULL;
	struct err err = {0};
	log_init("bench", NULL);
	log_set_level("error");
	if (argc > 1 && served_model_open(argv[1], "", &m, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	struct world *w = world_new(m, 1u << 24);
	const char *ids = "{\"prompt\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],\"max_tokens\":%u%s}";
	char one[256], stream[256], lp[256];
	snprintf(one, sizeof one, ids, 1, "");
	snprintf(stream, sizeof stream, ids, 256, ",\"stream\":true");
	snprintf(lp, sizeof lp, ids, 256, ",\"stream\":true,\"logprobs\":0");
	run(w, "completion, ids, 1 token", "/v1/completions", one, "}", 1, 20000, 1);
	run(w, "completion, ids, 1 token", "/v1/completions", one, "}", 32, 40000, 1);
	run(w, "stream, ids, 256 tokens", "/v1/completions", stream, "0\r\n\r\n", 1, 500, 256);
	run(w, "stream, ids, 256 tokens", "/v1/completions", stream, "0\r\n\r\n", 64, 1000, 256);
	run(w, "stream with logprobs, 256 tokens", "/v1/completions", lp, "0\r\n\r\n", 64, 1000, 256);
	if (m) {
		run(w, "completion, text, 1 token", "/v1/completions",
		    "{\"prompt\":\"What is the capital of France?\",\"max_tokens\":1}", "}", 32, 40000, 1);
		run(w, "chat, 1 token", "/v1/chat/completions",
		    "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of "
		    "France?\"}],\"max_tokens\":1}",
		    "}", 32, 40000, 1);
		run(w, "chat stream, 256 tokens", "/v1/chat/completions",
		    "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of "
		    "France?\"}],\"max_tokens\":256,\"stream\":true,\"stop\":[\"###\"]}",
		    "0\r\n\r\n", 64, 1000, 256);
	}
	placements();
	world_free(w);
	served_model_close(&m);
	return 0;
}
