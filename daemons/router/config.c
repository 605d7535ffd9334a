/* config.c - the router's keys, and where their values are kept. */
#include "daemons/router/router.h"

#define TO(field) CONF_TO(struct router_conf, field)
#define US(field) CONF_US(struct router_conf, field)
#define BYTES(field) CONF_BYTES(struct router_conf, field)

const struct conf_key router_keys[] = {
	{"http_listen", CONF_STRING, "127.0.0.1:8080", 2, 255, "HOST:PORT", 0, "where clients connect",
     NULL, TO(http.listen)},
	{"http_tls_cert", CONF_STRING, "", 0, 1023, "path", 1,
     "PEM file with the certificate of the HTTP interface and its chain: clients then use "
     "https://; "
     "empty: plain HTTP. After a reload new connections get the new one",
     NULL, TO(http.tls_cert)},
	{"http_tls_key", CONF_STRING, "", 0, 1023, "path", 1,
     "PEM file with the private key of http_tls_cert, without a password", NULL, TO(http.tls_key)},
	{"model", CONF_STRING, "", 0, 1023, "path", 0,
     "GGUF file (or folder) whose tokenizer and chat template are used; empty: token ids only",
     NULL, TO(model)},
	{"chat_template", CONF_STRING, "", 0, 1023, "path", 0,
     "file with a chat template to use instead of the model's own; empty: the model's own", NULL,
     TO(chat_template)},
	{"tool_parser", CONF_STRING, "auto", 1, 32, "", 0,
     "how the model writes calls of tools; auto: as its chat template shows, else generic",
     TOOL_PARSERS, TO(tool_parser)},
	{"reasoning_parser", CONF_STRING, "auto", 1, 32, "", 0,
     "how the model marks its thoughts; auto: as its chat template shows", REASONING_PARSERS,
     TO(reasoning_parser)},
	{"served_model_name", CONF_STRING, "", 0, 127, "", 0,
     "name of the model in the API; empty: that of its file or folder", NULL,
     TO(served_model_name)},
	{"model_aliases", CONF_LIST, "", 0, 64, "", 0,
     "further names that requests may have for the model, [\"gpt-4o\", \"small\"]; \"*\": any. "
     "Answers and metrics have served_model_name",
     NULL, TO(model_aliases)},
	{"api_keys_file", CONF_STRING, "", 0, 1023, "path", 1,
     "file with a line for each access key of clients: name, hash, limits (pdctl apikey makes "
     "one); "
     "clients send the key as Authorization: Bearer KEY; empty: no key needed",
     NULL, TO(api_keys_file)},
	{"unknown_parameters", CONF_STRING, "warn", 0, 0, "", 1,
     "what a request has that this server does not know: warn (a log line, and warnings in the "
     "answer) or refuse (400)",
     "warn|refuse", TO(refuse_unknown)},
	{"max_model_len", CONF_INT, "0", 0, 2147483647, "tokens", 1,
     "limit on prompt and answer together; 0: as long as the model and the workers' KV blocks "
     "allow",
     NULL, TO(max_model_len)},
	{"default_max_tokens", CONF_INT, "0", 0, 2147483647, "tokens", 1,
     "length of an answer whose request does not limit it; 0: 16 for completions, for chat what "
     "the context leaves",
     NULL, TO(default_max_tokens)},
	{"cors_allow_origin", CONF_STRING, "", 0, 255, "", 0,
     "origin whose web pages may use the API, or *: any; empty: none", NULL, TO(cors_allow_origin)},
	{"max_requests", CONF_INT, "4096", 1, 100000, "answers", 1,
     "answers in progress at once; beyond that the reply is 429, and for one access key or address "
     "already when it would leave less than about an eighth to others",
     NULL, TO(max_requests)},
	{"max_choices", CONF_INT, "128", 1, 4096, "answers", 1,
     "answers of one request (prompts times n)", NULL, TO(max_choices)},
	{"embedding_pooling", CONF_STRING, "last", 0, 0, "", 1,
     "how an embedding is made of the hidden states of an input's tokens, unless the request says "
     "so: last (only the last token has seen all others) or mean",
     "last|mean", TO(embeds_mean)},
	{"max_connections", CONF_INT, "8192", 1, 500000, "connections", 0,
     "open client connections; beyond that an idle one is closed to make room, or the reply is 503",
     NULL, TO(http.max_connections)},
	{"max_connections_per_address", CONF_INT, "0", 0, 500000, "connections", 0,
     "connections of one client address (IPv6: one /64); 0: at most as many as remain free, so a "
     "single address gets half of max_connections",
     NULL, TO(http.max_per_address)},
	{"max_header_bytes", CONF_INT, "65536", 1024, 1048576, "bytes", 0,
     "size limit of a request's head", NULL, TO(http.max_header_bytes)},
	{"max_body_bytes", CONF_INT, "4194304", 1024, 1073741824, "bytes", 0,
     "size limit of a request's body", NULL, TO(http.max_body_bytes)},
	{"input_bytes_max", CONF_INT, "67108864", 65536, 1099511627776, "bytes", 0,
     "total size of requests being received or waiting to be parsed, all clients together; beyond "
     "that all but small ones get 503. One client address may hold at most as much as remains "
     "free, so a single one gets half",
     NULL, TO(http.in_bytes_max)},
	{"max_memory_mb", CONF_INT, "128", 8, 1048576, "MiB", 1,
     "memory of all requests together: JSON, prompts, log-probabilities, unsent answers; beyond "
     "that the reply is 429",
     NULL, BYTES(memory_bytes)},
	{"max_request_memory_mb", CONF_INT, "64", 1, 1048576, "MiB", 1,
     "memory of one request; a request that certainly needs more is refused, an answer that grows "
     "beyond it ends with finish_reason length",
     NULL, BYTES(request_memory_bytes)},
	{"client_buffer_bytes", CONF_INT, "8388608", 65536, 1073741824, "bytes", 0,
     "output that one client has not read yet; beyond that its request is given up", NULL,
     TO(http.out_bytes_max)},
	{"output_bytes_max", CONF_INT, "50331648", 1048576, 1099511627776, "bytes", 0,
     "output that all clients together have not read yet; an address, and a connection within its "
     "address, may hold at most as much as remains free; 4096 bytes always fit. Beyond that a "
     "stream is given up, and a whole answer waits or becomes 503",
     NULL, TO(http.out_total_max)},
	{"request_timeout_ms", CONF_INT, "600000", 100, 86400000, "ms", 1,
     "time from a request's arrival to its last token", NULL, US(request_timeout_us)},
	{"idle_timeout_ms", CONF_INT, "75000", 100, 3600000, "ms", 0,
     "a connection without a request is closed after this time", NULL, US(http.idle_us)},
	{"read_timeout_ms", CONF_INT, "30000", 100, 3600000, "ms", 0,
     "time from a request's first byte to its last", NULL, US(http.read_us)},
	{"write_timeout_ms", CONF_INT, "60000", 100, 3600000, "ms", 0,
     "a client that reads nothing for this long is disconnected", NULL, US(http.write_us)},
	{"max_attempts", CONF_INT, "3", 1, 100, "attempts", 1,
     "consecutive failed attempts allowed for an answer; progress resets the count; at most 4 "
     "times as many in total",
     NULL, TO(max_attempts)},
	{"retry_wait_ms", CONF_INT, "10000", 0, 3600000, "ms", 1,
     "how long an answer waits for a worker: after a failed attempt, or while the only workers "
     "that "
     "could take it restart; 0: not at all",
     NULL, US(retry_wait_us)},
	{"stuck_ms", CONF_INT, "30000", 100, 3600000, "ms", 0,
     "a worker that has work but completes no layer of a step within this time loses its requests "
     "to others, and is chosen last",
     NULL, US(stuck_us)},
	{"text_threads", CONF_INT, "2", 1, 64, "threads", 0,
     "threads that parse and tokenize long prompts; one access key or address has at most half of "
     "them while others wait",
     NULL, TO(text_threads)},
	{"prefill_policy", CONF_STRING, "kv_aware", 1, 32, "", 1,
     "which prefill (or mixed) worker takes a request", POLICY_CHOICES, TO(policy[PLACE_PREFILL])},
	{"decode_policy", CONF_STRING, "kv_aware", 1, 32, "", 1,
     "which decode worker takes over, and in which order the others are candidates", POLICY_CHOICES,
     TO(policy[PLACE_DECODE])},
	{"kv_load_weight", CONF_FLOAT, "0.5", 0, 1000, "", 1,
     "kv_aware: cost of a token waiting at a prefill worker, relative to an uncached token of the "
     "request",
     NULL, TO(kv_load_weight)},
	{"kv_index_entries", CONF_INT, "262144", 1024, 16777216, "blocks", 1,
     "blocks known of each worker's prefix index, and of its host's storage; up to 43 bytes each; "
     "further blocks are not tracked",
     NULL, TO(index_entries_max)},
	{"allow_pinning", CONF_BOOL, "false", 0, 0, "", 1,
     "accept X-Pdserve-Prefill: NAME and X-Pdserve-Decode: NAME,NAME, for tests and benchmarks",
     NULL, TO(allow_pinning)},
	{"breaker_error_pct", CONF_INT, "50", 0, 100, "percent", 1,
     "share of a worker's outcomes that are its own failures, from which on it is taken out for a "
     "while; 0: never",
     NULL, TO(breaker_error_pct)},
	{"breaker_open_ms", CONF_INT, "5000", 10, 3600000, "ms", 1,
     "time until a worker that was taken out is tried with one request; doubles up to 16 times "
     "while trials fail. Also how long a prefill and a decode worker are not paired after a "
     "hand-over between them has failed",
     NULL, US(breaker_open_us)},
	CONF_GONE("kv_restore_weight",
              "workers measure what reading from storage costs; remove the key"),
	CONF_GONE("kv_disk_weight", "workers measure what reading from storage costs; remove the key"),
	CONF_GONE("kv_room_weight", "it is 4 now; remove the key"),
	CONF_GONE("kv_sequence_tokens", "it is 256 now; remove the key"),
	CONF_GONE("text_queue",
              "it is 1024 now (text_threads and max_memory_mb can be set); remove the key"),
	CONF_GONE("max_embedding_inputs", "it is 2048 now; remove the key"),
	CONF_GONE("retry_after_s", "it is 1 now, and rises with the backlog; remove the key"),
	CONF_GONE("retry_after_max_s", "it is 60 now; remove the key"),
	CONF_GONE("text_inline_bytes", "it is 4096 now (text_threads can be set); remove the key"),
	CONF_GONE("session_fallback", "it is kv_aware now; remove the key"),
	CONF_GONE("session_overload", "it is 2 now; remove the key"),
	CONF_GONE("kv_transfer_weight", "it is 0.1 now (kv_load_weight can be set); remove the key"),
	CONF_GONE("kv_predict_ms", "it is 5000 now; remove the key"),
	CONF_GONE("policy_seed", "random policies draw a seed of their own; remove the key"),
	CONF_GONE("breaker_min_requests",
              "it is 10 now (breaker_error_pct can be set); remove the key"),
	CONF_GONE("breaker_window_ms",
              "it is 30000 now (breaker_error_pct can be set); remove the key"),
	CONF_END,
};
