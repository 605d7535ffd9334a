/* show.c - prints answers of daemons as text. Every function accepts any JSON: a missing member is
 * shown as "-", an unknown one under its own name. */
#include "pdctl.h"

#include <stdio.h>
#include <string.h>

static int ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);
	return n >= m && strcmp(s + n - m, end) == 0;
}

/* One value as text; the unit in the key selects the format of a number. */
static void value_text(const char *key, const json_t *v, char *out, size_t size)
{
	if (!v || json_is_null(v))
		snprintf(out, size, "-");
	else if (json_is_string(v))
		snprintf(out, size, "%s", *json_string_value(v) ? json_string_value(v) : "-");
	else if (json_is_boolean(v))
		snprintf(out, size, "%s", json_is_true(v) ? "yes" : "no");
	else if (json_is_number(v) && ends_with(key, "_us"))
		text_us(out, size, json_number_value(v));
	else if (json_is_number(v) && ends_with(key, "_ms"))
		text_us(out, size, json_number_value(v) * 1e3);
	else if (json_is_number(v) && (ends_with(key, "bytes") || ends_with(key, "bytes_per_s")))
		text_bytes(out, size, json_number_value(v));
	else if (json_is_integer(v))
		snprintf(out, size, "%lld", (long long)json_integer_value(v));
	else if (json_is_real(v))
		snprintf(out, size, "%.6g", json_real_value(v));
	else {
		char *text = json_dumps(v, JSON_COMPACT | JSON_PRESERVE_ORDER);
		snprintf(out, size, "%s", text ? text : "?");
		free(text);
	}
}

static void cell_of(struct table *t, const json_t *object, const char *key)
{
	char text[256];
	value_text(key, json_object_get(object, key), text, sizeof text);
	table_cell(t, "%s", text);
}

static void head_of(struct table *t, const char *key)
{
	char text[64];
	snprintf(text, sizeof text, "%s", key);
	for (char *p = text; *p; p++)
		*p = *p >= 'a' && *p <= 'z' ? (char)(*p - 32) : *p == '_' ? '-' : *p;
	table_cell(t, "%s", text);
}

/* The members of the first object become the columns. */
static void show_list(const json_t *list)
{
	const json_t *first = json_array_get(list, 0), *row, *v;
	const char *key;
	size_t i;
	struct table *t = table_new();
	json_object_foreach((json_t *)first, key, v)
		head_of(t, key);
	table_end_row(t);
	json_array_foreach(list, i, row) {
		json_object_foreach((json_t *)first, key, v)
			cell_of(t, row, key);
		table_end_row(t);
	}
	table_print(&t);
}

static int is_list_of_objects(const json_t *j)
{
	return json_is_array(j) && json_is_object(json_array_get(j, 0));
}

static void show_object(const json_t *j)
{
	struct table *t = table_new();
	const char *key;
	json_t *v;
	table_cell(t, "KEY");
	table_cell(t, "VALUE");
	table_end_row(t);
	json_object_foreach((json_t *)j, key, v)
		if (!is_list_of_objects(v)) {
			table_cell(t, "%s", key);
			cell_of(t, j, key);
			table_end_row(t);
		}
	table_print(&t);
	json_object_foreach((json_t *)j, key, v)
		if (is_list_of_objects(v)) {
			printf("\n%s:\n", key);
			show_list(v);
		}
}

void show_any(const json_t *j)
{
	if (is_list_of_objects(j))
		show_list(j);
	else if (json_is_array(j) && json_array_size(j) == 0)
		puts("none");
	else if (json_is_object(j))
		show_object(j);
	else
		print_json(j);
}

/* As the configuration file has it. */
static void config_cell(struct table *t, const json_t *k, const char *what)
{
	double min = json_number_value(json_object_get(k, "min")),
		   max = json_number_value(json_object_get(k, "max"));
	const json_t *v = json_object_get(k, what);
	if (json_is_boolean(v))
		table_cell(t, json_is_true(v) ? "true" : "false");
	else if (strcmp(what, "range") != 0)
		cell_of(t, k, what);
	else if (json_object_get(k, "choices"))
		cell_of(t, k, "choices");
	else if (min != 0 || max != 0)
		table_cell(t, "%.16g to %.16g", min, max);
	else
		table_cell(t, "-");
}

static const char *const config_columns[] = {"value", "source", "default", "unit", "range", "help"};
#define CONFIG_COLUMNS (sizeof config_columns / sizeof *config_columns)

/* Sources without their folders. */
void show_config(const json_t *j)
{
	struct table *t = table_new();
	const char *key;
	json_t *k;
	head_of(t, "key");
	for (size_t i = 0; i < CONFIG_COLUMNS; i++)
		head_of(t, strcmp(config_columns[i], "help") == 0 ? "meaning" : config_columns[i]);
	table_end_row(t);
	json_object_foreach((json_t *)j, key, k) {
		table_cell(t, "%s", key);
		for (size_t i = 0; i < CONFIG_COLUMNS; i++) {
			const char *source = json_string_value(json_object_get(k, "source"));
			const char *slash = source ? strrchr(source, '/') : NULL;
			if (slash && strcmp(config_columns[i], "source") == 0)
				table_cell(t, "%s", slash + 1);
			else
				config_cell(t, k, config_columns[i]);
		}
		table_end_row(t);
	}
	table_print(&t);
}

/* One key, whole. */
void show_config_key(const char *key, const json_t *k)
{
	struct table *t = table_new();
	table_cell(t, "key");
	table_cell(t, "%s", key);
	table_end_row(t);
	for (size_t i = 0; i < CONFIG_COLUMNS; i++) {
		table_cell(t, "%s", strcmp(config_columns[i], "help") == 0 ? "meaning" : config_columns[i]);
		config_cell(t, k, config_columns[i]);
		table_end_row(t);
	}
	table_print(&t);
}

static void show_columns(const json_t *list, const char *const *columns, size_t n)
{
	const json_t *row;
	size_t i;
	struct table *t = table_new();
	for (size_t c = 0; c < n; c++)
		head_of(t, columns[c]);
	table_end_row(t);
	json_array_foreach(list, i, row) {
		for (size_t c = 0; c < n; c++)
			cell_of(t, row, columns[c]);
		table_end_row(t);
	}
	table_print(&t);
}

/* A copy in which workers that are down have no numbers of the moment: those are over. */
static json_t *workers_now(const json_t *list)
{
	static const char *const over[] = {"running", "waiting", "blocks_free", "blocks_held"};
	json_t *now = json_deep_copy(list), *worker;
	size_t i;
	json_array_foreach(now, i, worker) {
		const char *state = json_string_value(json_object_get(worker, "state"));
		for (size_t c = 0; state && strcmp(state, "down") == 0 && c < sizeof over / sizeof *over;
		     c++)
			json_object_del(worker, over[c]);
	}
	return now;
}

void show_workers(const json_t *list)
{
	static const char *const columns[] = {
		"name",     "role",          "state",         "requests",         "running",
		"blocks",   "blocks_free",   "heard_ms_ago",  "waiting",          "blocks_held",
		"handover", "prompt_tokens", "cached_tokens", "generated_tokens", "preemptions",
		"kv_index", "kv_memory",     "kv_disk",       "memory_weight",    "disk_weight",
		"breaker"};
	json_t *now = workers_now(list);
	show_columns(now, columns, sizeof columns / sizeof *columns);
	json_decref(now);
}

void show_links(const json_t *list)
{
	static const char *const columns[] = {
		"direction",     "messager",      "transport", "up",     "bytes",      "canary_us",
		"canary_mbit_s", "canaries_lost", "restarts",  "errors", "last_error", "via"};
	show_columns(list, columns, sizeof columns / sizeof *columns);
}

static const char *const kv_columns[] = {
	"blocks",         "free",    "held",          "cached",        "hit_rate", "evictions",
	"leased",         "due",     "writing",       "cached_stored", "sum",      "evictable",
	"evicted_stored", "readers", "oldest_pin_ms", "oldest_pin"};
#define KV_COLUMNS (sizeof kv_columns / sizeof *kv_columns)

void show_kv_head(struct table *t)
{
	head_of(t, "name");
	for (size_t c = 0; c < KV_COLUMNS; c++)
		head_of(t, kv_columns[c]);
	table_end_row(t);
}

void show_kv_row(struct table *t, const char *name, const json_t *kv)
{
	table_cell(t, "%s", name);
	for (size_t c = 0; c < KV_COLUMNS; c++)
		cell_of(t, kv, kv_columns[c]);
	table_end_row(t);
}

static const char *const below_columns[] = {"tier",          "cached_stored",    "found_blocks",
                                            "read_blocks",   "written_blocks",   "read_bytes_per_s",
                                            "read_begin_us", "break_even_blocks"};
#define BELOW_COLUMNS (sizeof below_columns / sizeof *below_columns)

void show_kv_below_head(struct table *t)
{
	static const char *const heads[BELOW_COLUMNS] = {"tier",       "cached",    "found",
	                                                 "read",       "written",   "read/s",
	                                                 "first byte", "break-even"};
	head_of(t, "name");
	for (size_t c = 0; c < BELOW_COLUMNS; c++)
		head_of(t, heads[c]);
	head_of(t, "write/s");
	head_of(t, "compute/s");
	table_end_row(t);
}

/* The tiers as one worker sees them: those where it has found, read or written a block. */
int show_kv_below_rows(struct table *t, const char *name, const json_t *kv)
{
	const json_t *storage = json_object_get(kv, "storage"), *tier;
	size_t i;
	int rows = 0;
	json_array_foreach(json_object_get(storage, "tiers"), i, tier) {
		if (!json_integer_value(json_object_get(tier, "found_blocks")) &&
		    !json_integer_value(json_object_get(tier, "written_blocks")))
			continue;
		table_cell(t, "%s", name);
		for (size_t c = 0; c < BELOW_COLUMNS; c++)
			cell_of(t, tier, below_columns[c]);
		cell_of(t, storage, "write_bytes_per_s");
		table_cell(t, "%.0f tokens",
		           json_number_value(json_object_get(storage, "compute_tokens_per_s")));
		table_end_row(t);
		rows++;
	}
	return rows;
}

void show_kv_owners(const char *name, const json_t *kv)
{
	static const char *const columns[] = {"block",  "owner", "state",   "reason",
	                                      "age_ms", "refs",  "readers", "generation"};
	const json_t *owners = json_object_get(kv, "owners");
	if (!is_list_of_objects(owners))
		return;
	printf("\nblocks in use at %s:\n", name);
	show_columns(owners, columns, sizeof columns / sizeof *columns);
}

static const char *const tier_columns[] = {
	"tier",      "state",     "blocks",      "bytes",    "capacity_bytes",   "hit_rate",
	"queued",    "lost",      "errors",      "eviction", "read_bytes_per_s", "write_bytes_per_s",
	"oldest_us", "evictions", "copied_down", "promoted", "corrupt"};
#define TIER_COLUMNS (sizeof tier_columns / sizeof *tier_columns)

void show_tiers_head(struct table *t)
{
	static const struct {
		const char *column, *head;
	} shorter[] = {{"capacity_bytes", "capacity"},
	               {"read_bytes_per_s", "read/s"},
	               {"write_bytes_per_s", "write/s"},
	               {"oldest_us", "oldest"}};
	head_of(t, "name");
	for (size_t c = 0; c < TIER_COLUMNS; c++) {
		const char *head = tier_columns[c];
		for (size_t i = 0; i < sizeof shorter / sizeof *shorter; i++)
			head = strcmp(head, shorter[i].column) == 0 ? shorter[i].head : head;
		head_of(t, head);
	}
	table_end_row(t);
}

void show_tiers_rows(struct table *t, const char *name, const json_t *storage)
{
	const json_t *tier;
	size_t i;
	json_array_foreach(json_object_get(storage, "tiers"), i, tier) {
		table_cell(t, "%s", name);
		for (size_t c = 0; c < TIER_COLUMNS; c++)
			cell_of(t, tier, tier_columns[c]);
		table_end_row(t);
	}
}

void show_tier_workers(const char *name, const json_t *storage)
{
	const json_t *workers = json_object_get(storage, "workers");
	if (!is_list_of_objects(workers))
		return;
	printf("\nworkers attached to %s:\n", name);
	show_list(workers);
}

void show_status_head(struct table *t)
{
	static const char *const columns[] = {"name", "state", "pid", "up", "links", "what it does"};
	for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
		head_of(t, columns[c]);
	table_end_row(t);
}

static void links_text(const json_t *status, char *out, size_t size)
{
	const json_t *peers = json_object_get(status, "peers"), *p;
	size_t i, up = 0;
	json_array_foreach(peers, i, p)
		up += json_is_true(json_object_get(p, "up"));
	snprintf(out, size, "%zu/%zu", up, json_array_size(peers));
}

static uint64_t count_of(const json_t *o, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

/* A worker's GPU, or nothing. Temperature and clocks are 0 without the driver's library. */
static void device_text(const json_t *status, char *out, size_t size)
{
	const json_t *d = json_object_get(status, "device"), *name = json_object_get(d, "name");
	int n;
	out[0] = 0;
	if (!json_is_string(name))
		return;
	const char *kernels = json_string_value(json_object_get(status, "kernels"));
	n = snprintf(out, size, ", device %llu %s, kernels %s, %llu of %llu MiB free",
	             (unsigned long long)count_of(d, "index"), json_string_value(name),
	             kernels ? kernels : "unknown", (unsigned long long)count_of(d, "free_mb"),
	             (unsigned long long)count_of(d, "memory_mb"));
	if (count_of(d, "temperature_c") && n > 0 && (size_t)n < size)
		n += snprintf(out + n, size - (size_t)n, ", %llu C, %llu W, %llu MHz",
		              (unsigned long long)count_of(d, "temperature_c"),
		              (unsigned long long)count_of(d, "power_w"),
		              (unsigned long long)count_of(d, "clock_mhz"));
	if (count_of(d, "memory_errors") && n > 0 && (size_t)n < size)
		snprintf(out + n, size - (size_t)n, ", %llu memory errors",
		         (unsigned long long)count_of(d, "memory_errors"));
}

/* The important members of any daemon's status, those that it has: as "12 running", or as a
 * word. */
static void doing_text(const json_t *status, char *out, size_t size)
{
	static const struct {
		const char *key, *shown; /* shown NULL: the value alone */
	} parts[] = {{"role", NULL},           {"doing", NULL},
	             {"requests", "requests"}, {"workers_up", "workers"},
	             {"running", "run"},       {"waiting", "wait"},
	             {"blocks_held", "held"},  {"open_transfers", "transfers"},
	             {"hits", "hits"},         {"misses", "misses"}};
	size_t at = 0;
	out[0] = 0;
	for (size_t k = 0; k < sizeof parts / sizeof *parts && at < size; k++) {
		const json_t *v = json_object_get(status, parts[k].key);
		char text[128];
		if (!v || json_is_null(v) || json_is_array(v) || json_is_object(v))
			continue;
		value_text(parts[k].key, v, text, sizeof text);
		at += (size_t)snprintf(out + at, size - at, "%s%s%s%s", at ? ", " : "", text,
		                       parts[k].shown ? " " : "", parts[k].shown ? parts[k].shown : "");
	}
	if (json_is_string(json_object_get(status, "switching")) && at < size)
		at += (size_t)snprintf(out + at, size - at, ", to %s",
		                       json_string_value(json_object_get(status, "switching")));
	if (json_is_true(json_object_get(status, "drained")) && at < size)
		at += (size_t)snprintf(out + at, size - at, ", drained");
	if (at < size)
		device_text(status, out + at, size - at);
}

void show_status_row(struct table *t, const json_t *status)
{
	static const char *const columns[] = {"name", "state", "pid", "uptime_us"};
	const json_t *heard = json_object_get(status, "heard_us_ago");
	char text[400];
	for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
		cell_of(t, status, columns[i]);
	if (json_object_get(status, "pid")) {
		links_text(status, text, sizeof text);
		table_cell(t, "%s", text);
		doing_text(status, text, sizeof text);
		table_cell(t, "%s", text);
	} else {
		table_cell(t, "-");
		text_us(text, sizeof text, json_number_value(heard));
		table_cell(t, "%s%s%s", heard ? "last heard " : "", heard ? text : "", heard ? " ago" : "");
	}
	table_end_row(t);
}
