/* links.c - see links.h. */
#include "tests/conform/links.h"
#include "tests/conform/conform.h"

#include <sys/socket.h>

void link_new(int ret_ends[2])
{
	EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret_ends) == 0, "no sockets");
}

static void message_of(struct msghdr *h, struct iovec *io, void *control, size_t room, void *data,
                       size_t bytes)
{
	*io = (struct iovec){data, bytes};
	*h = (struct msghdr){
		.msg_iov = io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
}

static bool give(int socket, const void *data, size_t bytes, int fd)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} c = {.head = {CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS}};
	char copy[KERN_EXCHANGE_MAX + 1] = "";
	struct msghdr h;
	struct iovec io;
	if (bytes)
		memcpy(copy, data, bytes);
	memcpy(CMSG_DATA(&c.head), &fd, sizeof fd);
	message_of(&h, &io, &c, fd < 0 ? 0 : sizeof c.room, copy, bytes + 1);
	return sendmsg(socket, &h, MSG_NOSIGNAL) == (ssize_t)bytes + 1;
}

static bool take(int socket, void *data, size_t bytes, int *fd)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} c;
	char copy[KERN_EXCHANGE_MAX + 1];
	struct msghdr h;
	struct iovec io;
	message_of(&h, &io, &c, sizeof c.room, copy, bytes + 1);
	*fd = -1;
	if (recvmsg(socket, &h, MSG_CMSG_CLOEXEC) != (ssize_t)bytes + 1)
		return false;
	if (h.msg_controllen)
		memcpy(fd, CMSG_DATA(&c.head), sizeof *fd);
	if (bytes)
		memcpy(data, copy, bytes);
	return true;
}

int links_exchange(const int *socket, unsigned self, unsigned n, const void *mine, size_t bytes,
                   int fd, void *ret_all, int *ret_fds)
{
	bool fine = bytes <= KERN_EXCHANGE_MAX;
	for (unsigned i = 0; i < n && fine; i++)
		fine = i == self || give(socket[i], mine, bytes, fd);
	for (unsigned i = 0; i < n && fine; i++) {
		void *at = (char *)ret_all + i * bytes;
		if (i != self)
			fine = take(socket[i], at, bytes, &ret_fds[i]);
		else {
			ret_fds[i] = -1;
			if (bytes)
				memcpy(at, mine, bytes);
		}
	}
	return fine ? 0 : -1;
}
