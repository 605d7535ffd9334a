/* role.h - the roles of a worker, by their names in HELLO, WORKER_UPDATE and the configuration. */
#ifndef MSG_ROLE_H
#define MSG_ROLE_H

enum worker_role { ROLE_PREFILL, ROLE_DECODE, ROLE_MIXED, ROLE_COUNT };

const char *worker_role_name(enum worker_role r);
/* 0 or ERR_INVALID; s may be NULL. */
int worker_role_parse(const char *s, enum worker_role *ret);

#endif
