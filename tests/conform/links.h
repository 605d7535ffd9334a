/* links.h - sockets between the processes of a test, over which they exchange what a group or a
 * pipeline of devices exchanges (kern_group.exchange). */
#ifndef TESTS_CONFORM_LINKS_H
#define TESTS_CONFORM_LINKS_H

#include <stdbool.h>
#include <stddef.h>

/* Two ends that keep messages apart; for a child each. */
void link_new(int ret_ends[2]);
/* As kern_group.exchange, among n processes of which this is number `self`; socket[i]: to number
 * i. */
int links_exchange(const int *socket, unsigned self, unsigned n, const void *mine, size_t bytes,
                   int fd, void *ret_all, int *ret_fds);

#endif
