/* test_sock.c - who may listen, whole messages, descriptors handed over, and the death of a
 * peer. */
/* run: threads */
#include "util/sock.h"
#include "tempdir.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[TEST_FOLDER_BYTES], path[96];

static void setup(void)
{
	test_folder(dir, "sock");
	snprintf(path, sizeof path, "%s/w.sock", dir);
}

static void teardown(void)
{
	char lock[128];
	snprintf(lock, sizeof lock, "%s.lock", path);
	unlink(path);
	unlink(lock);
	ck_assert_int_eq(rmdir(dir), 0);
}

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void pair(int *a, int *b)
{
	int p[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p), 0);
	*a = p[0];
	*b = p[1];
}

TEST_CASE("sock", .timeout_s = 60, .setup = setup, .teardown = teardown);

TEST(path_length_is_checked)
{
	char longest[110];
	struct err e;
	memset(longest, 'a', sizeof longest);
	longest[108] = 0;
	ck_assert_int_eq(sock_listen(longest, 0600, &e), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(e.text, "108 bytes"));
	ck_assert_ptr_nonnull(strstr(e.text, "107"));
	ck_assert_int_eq(sock_connect(longest, &e), ERR_INVALID);
	ck_assert_int_eq(sock_connect("", &e), ERR_INVALID);
}

TEST(second_listener_is_refused_while_the_first_lives)
{
	struct err e = {0};
	struct stat st;
	int a = sock_listen(path, 0600, &e);
	ck_assert_msg(a >= 0, "%s", e.text);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	ck_assert_int_eq(sock_listen(path, 0600, &e), ERR_EXISTS);
	ck_assert_ptr_nonnull(strstr(e.text, path));
	int c = sock_connect(path, &e); /* the first one is still reached */
	ck_assert_int_ge(c, 0);
	close(c);
	close(a); /* dead: its file is there, nobody behind it */
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(sock_connect(path, &e), ERR_NOTFOUND);
	mode_t old = umask(0077);
	int b = sock_listen(path, 0660, &e);
	umask(old);
	ck_assert_msg(b >= 0, "%s", e.text);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0660);
	close(b);
}

TEST(another_file_is_never_removed)
{
	struct err e;
	struct stat st;
	int fd = open(path, O_CREAT | O_WRONLY, 0600);
	close(fd);
	ck_assert_int_eq(sock_listen(path, 0600, &e), ERR_EXISTS);
	ck_assert_int_eq(stat(path, &st), 0);
	unlink(path);
	int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); /* alive, of another type */
	struct sockaddr_storage a = {.ss_family = AF_UNIX};
	strcpy((char *)&a + 2, path);
	ck_assert_int_eq(bind(other, (struct sockaddr *)&a, (socklen_t)(2 + strlen(path) + 1)), 0);
	ck_assert_int_eq(listen(other, 1), 0);
	ck_assert_int_eq(sock_listen(path, 0600, &e), ERR_EXISTS);
	close(other);
}

TEST(connect_never_waits)
{
	struct err e;
	ck_assert_int_eq(sock_connect(path, &e), ERR_NOTFOUND);
	ck_assert_ptr_nonnull(strstr(e.text, path));
	int l = sock_listen(path, 0600, &e), fd[256], n = 0;
	while (n < 256 && (fd[n] = sock_connect(path, &e)) >= 0)
		n++;
	ck_assert_int_lt(n, 256);
	ck_assert_int_eq(fd[n], ERR_FULL);
	ck_assert_int_eq(sock_listen(path, 0600, &e), ERR_EXISTS); /* flooded is not dead */
	while (n)
		close(fd[--n]);
	close(l);
}

TEST(descriptors_are_handed_over)
{
	struct err e;
	int l = sock_listen(path, 0600, &e);
	int c = sock_connect(path, &e), s = sock_accept(l);
	ck_assert_int_ge(s, 0);
	int m = memfd_create("shared", MFD_CLOEXEC), give[2] = {m, c}, got[4];
	ck_assert_int_eq(ftruncate(m, 4096), 0);
	unsigned n = 9;
	char msg[16];
	ck_assert_int_eq(sock_send(c, "hello", 5, give, 2), 0);
	ck_assert_int_eq(sock_recv(s, msg, sizeof msg, got, 4, &n), 5);
	ck_assert_mem_eq(msg, "hello", 5);
	ck_assert_uint_eq(n, 2);
	for (unsigned i = 0; i < n; i++)
		ck_assert_int_eq(fcntl(got[i], F_GETFD), FD_CLOEXEC);
	char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, m, 0),
		 *q = mmap(NULL, 4096, PROT_READ, MAP_SHARED, got[0], 0);
	p[7] = 42;
	ck_assert_int_eq(q[7], 42);
	munmap(p, 4096);
	munmap(q, 4096);
	close(got[0]), close(got[1]), close(m), close(c);
	ck_assert_int_eq(sock_recv(s, msg, sizeof msg, got, 4, &n), 0);
	ck_assert_uint_eq(n, 0);
	close(s), close(l);
}

TEST(surplus_descriptors_and_long_messages_leave_nothing_behind)
{
	int a, b, got[SOCK_FDS_MAX], many[SOCK_FDS_MAX + 1];
	unsigned n;
	char msg[8];
	pair(&a, &b);
	for (unsigned i = 0; i <= SOCK_FDS_MAX; i++)
		many[i] = a;
	int before = open_fds();
	ck_assert_int_eq(sock_send(a, "x", 1, many, SOCK_FDS_MAX + 1), ERR_INVALID);
	ck_assert_int_eq(sock_send(a, "x", 0, NULL, 0), ERR_INVALID);
	ck_assert_int_eq(sock_send(a, "surplus", 7, many, 5), 0);
	ck_assert_int_eq(sock_recv(b, msg, sizeof msg, got, 2, &n), 7);
	ck_assert_uint_eq(n, 2);
	close(got[0]), close(got[1]);
	ck_assert_int_eq(sock_send(a, "none", 4, many, 5), 0);
	ck_assert_int_eq(sock_recv(b, msg, sizeof msg, NULL, 0, NULL), 4);
	ck_assert_int_eq(sock_send(a, "too long!", 9, many, 5), 0);
	ck_assert_int_eq(sock_recv(b, msg, sizeof msg, got, 2, &n), ERR_INVALID);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(sock_send(a, "exactly8", 8, many, SOCK_FDS_MAX), 0);
	ck_assert_int_eq(sock_recv(b, msg, sizeof msg, got, SOCK_FDS_MAX, &n), 8);
	ck_assert_uint_eq(n, SOCK_FDS_MAX);
	while (n)
		close(got[--n]);
	ck_assert_int_eq(open_fds(), before);
	close(a), close(b);
}

/* A sender that does not use sock_send puts 40 descriptors into one message. */
TEST(flood_of_descriptors_is_an_error)
{
	int a, b, got[SOCK_FDS_MAX];
	unsigned n = 9;
	char msg[8], control[CMSG_SPACE(40 * sizeof(int))] __attribute__((aligned(8))) = {0};
	pair(&a, &b);
	struct iovec iov = {"x", 1};
	struct msghdr h = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *m = CMSG_FIRSTHDR(&h);
	m->cmsg_level = SOL_SOCKET;
	m->cmsg_type = SCM_RIGHTS;
	m->cmsg_len = CMSG_LEN(40 * sizeof(int));
	for (int i = 0; i < 40; i++)
		memcpy(CMSG_DATA(m) + (size_t)i * sizeof(int), &a, sizeof a);
	int before = open_fds();
	ck_assert_int_eq(sendmsg(a, &h, 0), 1);
	ck_assert_int_eq(sock_recv(b, msg, sizeof msg, got, SOCK_FDS_MAX, &n), ERR_INVALID);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(open_fds(), before);
	ck_assert_int_eq(sock_send(a, "after", 5, NULL, 0), 0);
	ck_assert_int_eq(sock_recv(b, msg, sizeof msg, got, 1, &n), 5);
	close(a), close(b);
}

TEST(non_blocking_ends_and_closed_peers)
{
	int a, b, r;
	unsigned n;
	char msg[64] = {0};
	pair(&a, &b);
	fcntl(a, F_SETFL, O_NONBLOCK);
	ck_assert_int_eq(sock_recv(a, msg, sizeof msg, NULL, 0, &n), ERR_TIMEOUT);
	while ((r = sock_send(a, msg, sizeof msg, NULL, 0)) == 0)
		;
	ck_assert_int_eq(r, ERR_FULL);
	close(b);
	ck_assert_int_eq(sock_send(a, msg, 1, NULL, 0), ERR_CLOSED); /* and no SIGPIPE */
	close(a);
	struct err e;
	int l = sock_listen(path, 0600, &e);
	fcntl(l, F_SETFL, O_NONBLOCK);
	ck_assert_int_eq(sock_accept(l), ERR_TIMEOUT);
	close(l);
	ck_assert_int_eq(sock_accept(l), ERR_IO);
}

static int is_dead(int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};
	return poll(&p, 1, 0) > 0;
}

TEST(death_of_a_peer_is_seen)
{
	struct err e;
	int l = sock_listen(path, 0600, &e);
	pid_t child = fork(), pid = 0;
	if (child == 0) {
		int c = sock_connect(path, NULL);
		if (c < 0)
			_exit(1);
		for (;;)
			pause();
	}
	int s = sock_accept(l);
	ck_assert_int_ge(s, 0);
	int p = sock_peer_pidfd(s, &pid);
	ck_assert_int_ge(p, 0);
	ck_assert_int_eq(pid, child);
	ck_assert_int_eq(fcntl(p, F_GETFD), FD_CLOEXEC);
	ck_assert_int_eq(is_dead(p), 0);
	kill(child, SIGSTOP);
	ck_assert_int_eq(is_dead(p), 0); /* stopped is not dead: it may still write */
	kill(child, SIGKILL);
	siginfo_t info;
	ck_assert_int_eq(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
	ck_assert_int_eq(is_dead(p), 1); /* also before anyone has waited for it */
	waitpid(child, NULL, 0);
	ck_assert_int_eq(is_dead(p), 1);
	close(p);
	pid = 0;
	/* gone: an error, or a descriptor of a dead process, never one that lives */
	p = sock_peer_pidfd(s, &pid);
	ck_assert(p == ERR_CLOSED || (p >= 0 && is_dead(p)));
	if (p >= 0)
		close(p);
	close(s), close(l);
}
