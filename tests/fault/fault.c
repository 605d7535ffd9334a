/* fault.c - see fault.h. The same seed, rules and messages give the same verdicts; the order of the
 * messages is not controlled here. */
#include "tests/fault/fault.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RULES_MAX 64u
#define TIME_MAX_US 60000000u

struct chance {
	double share;            /* probability, 0 to 1 */
	uint64_t from_us, to_us; /* range of an effect with a duration */
};

struct rule {
	enum msg_type type; /* 0: all */
	int dir;            /* -1: both */
	char peer[48];      /* "": all */
	uint64_t nth, seen; /* nth 0: all; seen: matching messages so far */
	struct chance drop, repeat, delay, late, noack, cut;
};

struct fault {
	uint64_t state;
	unsigned n;
	struct rule rules[RULES_MAX];
};

/* splitmix64: all seeds are equally good */
static uint64_t draw(struct fault *f)
{
	uint64_t z = f->state += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* --- reading the rules --------------------------------------------------- */

static const char *parse_time(const char *s, struct chance *c)
{
	static const struct {
		const char *unit;
		double us;
	} units[] = {{"us", 1}, {"ms", 1000}, {"s", 1000000}};
	char *end;
	double from = strtod(s, &end), to = from;
	if (end != s && *end == '-')
		to = strtod(s = end + 1, &end);
	if (end == s)
		return "expected a time such as 5ms, 200us, 1s, or a range such as 1-20ms";
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		if (strcmp(end, units[i].unit) != 0)
			continue;
		if (!(from >= 0 && to >= from && to * units[i].us <= TIME_MAX_US))
			return "a time is at most 60s, and a range must not decrease";
		c->from_us = (uint64_t)(from * units[i].us);
		c->to_us = (uint64_t)(to * units[i].us);
		return NULL;
	}
	return "a time must end in us, ms or s";
}

static const char *parse_share(const char *s, struct chance *c)
{
	char *end;
	double v = strtod(s, &end);
	if (end == s || strcmp(end, "%") != 0 || !(v >= 0 && v <= 100))
		return "expected a share from 0% to 100%";
	c->share = v / 100;
	return NULL;
}

static const char *parse_type(const char *s, struct rule *r)
{
	for (uint32_t i = 1; i < 256; i++) {
		const struct msg_type_info *info = msg_type_find(i);
		if (info && strcmp(info->name, s) == 0) {
			r->type = info->type;
			return NULL;
		}
	}
	return "unknown message type";
}

static const char *parse_dir(const char *s, struct rule *r)
{
	r->dir = strcmp(s, "in") == 0 ? FAULT_IN : strcmp(s, "out") == 0 ? FAULT_OUT : -1;
	return r->dir < 0 ? "dir must be in or out" : NULL;
}

static const char *parse_peer(const char *s, struct rule *r)
{
	if (!*s || strlen(s) >= sizeof r->peer)
		return "a peer's name has 1 to 47 bytes";
	snprintf(r->peer, sizeof r->peer, "%s", s);
	return NULL;
}

static const char *parse_nth(const char *s, struct rule *r)
{
	char *end;
	r->nth = strtoull(s, &end, 10);
	return end == s || *end || !r->nth ? "nth must be a number from 1" : NULL;
}

/* Parses one part "key=value" of a rule. *rest is the remainder of the word; it advances past a
 * time that belongs to the part. */
static const char *parse_part(char *part, char **rest, struct rule *r)
{
	const struct {
		const char *key;
		struct chance *chance;
		int lasts;
	} effects[] = {{"drop", &r->drop, 0}, {"repeat", &r->repeat, 0}, {"delay", &r->delay, 1},
	               {"late", &r->late, 1}, {"noack", &r->noack, 0},   {"cut", &r->cut, 0}};
	char *value = strchr(part, '=');
	if (!value)
		return "expected KEY=VALUE";
	*value++ = 0;
	if (strcmp(part, "type") == 0)
		return parse_type(value, r);
	if (strcmp(part, "dir") == 0)
		return parse_dir(value, r);
	if (strcmp(part, "peer") == 0)
		return parse_peer(value, r);
	if (strcmp(part, "nth") == 0)
		return parse_nth(value, r);
	for (size_t i = 0; i < sizeof effects / sizeof *effects; i++) {
		if (strcmp(part, effects[i].key) != 0)
			continue;
		const char *why = parse_share(value, effects[i].chance);
		if (why || !effects[i].lasts)
			return why;
		char *time = strsep(rest, ":");
		return time ? parse_time(time, effects[i].chance)
		            : "a time must follow, as in delay=5%:20ms";
	}
	return "unknown key; known are type, dir, peer, nth, drop, repeat, delay, late, noack, cut";
}

static const char *parse_rule(struct fault *f, char *word)
{
	if (strncmp(word, "seed=", 5) == 0) {
		char *end;
		f->state = strtoull(word + 5, &end, 10);
		return end == word + 5 || *end ? "the seed must be a number" : NULL;
	}
	if (f->n == RULES_MAX)
		return "more than 64 rules";
	struct rule *r = &f->rules[f->n];
	*r = (struct rule){.dir = -1};
	const char *why = NULL;
	for (char *part; !why && (part = strsep(&word, ":"));)
		why = parse_part(part, &word, r);
	if (!why && r->late.share > 0 && r->dir == FAULT_OUT)
		why = "late applies to incoming messages only";
	f->n++;
	return why;
}

int fault_new(const char *text, struct fault **ret, struct err *err)
{
	*ret = NULL;
	if (!text || !text[strspn(text, " ")])
		return 0;
	struct fault *f = mem_zalloc(sizeof *f);
	char *copy = mem_strdup(text), *rest = copy;
	int r = 0;
	for (char *word; r == 0 && (word = strsep(&rest, " "));) {
		char shown[64];
		snprintf(shown, sizeof shown, "%s", word);
		const char *why = *word ? parse_rule(f, word) : NULL;
		if (why)
			r = err_set(err, ERR_INVALID, "fault: \"%s\": %s", shown, why);
	}
	free(copy);
	if (r < 0)
		free(f);
	else
		*ret = f;
	return r;
}

void fault_destroy(struct fault **f)
{
	free(*f);
	*f = NULL;
}

/* --- verdicts ------------------------------------------------------------ */

static int hits(struct fault *f, const struct chance *c)
{
	return c->share > 0 && (double)(draw(f) >> 11) * 0x1p-53 < c->share;
}

static uint64_t lasting(struct fault *f, const struct chance *c)
{
	if (!hits(f, c))
		return 0;
	return c->from_us + (c->to_us > c->from_us ? draw(f) % (c->to_us - c->from_us + 1) : 0);
}

void fault_judge(struct fault *f, enum fault_dir dir, enum msg_type type, const char *peer,
                 struct fault_verdict *ret)
{
	*ret = (struct fault_verdict){0};
	if (type == MSG_CTL_REQUEST || type == MSG_CTL_REPLY)
		return;
	for (unsigned i = 0; i < f->n; i++) {
		struct rule *r = &f->rules[i];
		if ((r->type && r->type != type) || (r->dir >= 0 && r->dir != (int)dir) ||
		    (r->peer[0] && strcmp(r->peer, peer) != 0))
			continue;
		if (r->nth && ++r->seen != r->nth)
			continue;
		ret->drop |= hits(f, &r->drop);
		ret->repeat |= hits(f, &r->repeat);
		ret->noack |= hits(f, &r->noack);
		ret->cut |= hits(f, &r->cut);
		ret->delay_us += lasting(f, &r->delay);
		if (dir == FAULT_IN)
			ret->late_us += lasting(f, &r->late);
	}
}
