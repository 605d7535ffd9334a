/* bench_template.c - renders one conversation with one chat template often: prints processor time
 * per rendering in seconds, and the rendering's bytes.
 *
 *   bench_template TEMPLATE CONVERSATION N        CONVERSATION: JSON with messages, tools,
 *   special_tokens */
#include "text/chat.h"
#include "util/check.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double cpu_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void read_template(const char *path, struct chat_template **ret)
{
	struct buf b;
	struct err err = {0};
	char piece[4096];
	FILE *f = fopen(path, "r");
	if (!f)
		check_fatal("cannot open %s", path);
	buf_init(&b, 0);
	for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
		buf_add(&b, piece, n);
	fclose(f);
	if (chat_template_new(b.data ? b.data : "", b.len, ret, &err) < 0)
		check_fatal("%s: %s", path, err.text);
	buf_fini(&b);
}

int main(int argc, char **argv)
{
	struct chat_template *c;
	struct err err = {0};
	json_error_t bad;
	struct buf out;
	if (argc != 4)
		check_fatal("usage: bench_template TEMPLATE CONVERSATION N");
	json_t *o = json_load_file(argv[2], 0, &bad);
	if (!o)
		check_fatal("%s: %s", argv[2], bad.text);
	read_template(argv[1], &c);
	struct chat_render in = {.messages = json_object_get(o, "messages"),
	                         .tools = json_object_get(o, "tools"),
	                         .special_tokens = json_object_get(o, "special_tokens"),
	                         .add_generation_prompt = 1,
	                         .now_s = 1721997296};
	int n = atoi(argv[3]);
	double begin = cpu_s();
	buf_init(&out, 0);
	for (int i = 0; i < n; i++) {
		buf_reset(&out);
		if (chat_template_render(c, &in, &out, &err) < 0)
			check_fatal("%s: %s", argv[1], err.text);
	}
	printf("%.9f %zu\n", (cpu_s() - begin) / n, out.len);
	buf_fini(&out);
	chat_template_destroy(&c);
	json_decref(o);
	return 0;
}
