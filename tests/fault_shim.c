/* Makes chosen C library calls of one process fail, for the tests. Loaded by LD_PRELOAD, silent until `fault_arm`.
 * A forked child is disarmed, so that only the process that was armed is hit. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int armed;
static char wanted[32];
static int number, log_fd;
static long first, count, seen;

static void disarm(void) { armed = 0; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, disarm); }

void fault_arm(const char *name, int error, long from, long times, int log) {
    strncpy(wanted, name, sizeof wanted - 1);
    number = error; first = from; count = times; log_fd = log; seen = 0;
    armed = 1;
}

static int fails(const char *name) {
    if (!armed || strcmp(name, wanted)) return 0;
    long turn = __sync_fetch_and_add(&seen, 1);
    if (turn < first || turn - first >= count) return 0;
    if (turn == first) syscall(SYS_write, log_fd, "hit\n", 4);
    errno = number;
    return 1;
}

#define FAIL(kind, result) do { if (fails(kind)) return result; } while (0)
#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        REAL(name); FAIL("open", -1); return real(path, flags, mode); }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        REAL(name); FAIL("open", -1); return real(at, path, flags, mode); }
#define CALL(kind, type, failed, name, parameters, arguments) \
    type name parameters { REAL(name); FAIL(kind, failed); return real arguments; }
#define INT(kind, name, parameters, arguments) CALL(kind, int, -1, name, parameters, arguments)
#define SIZE(kind, name, parameters, arguments) CALL(kind, ssize_t, -1, name, parameters, arguments)

OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)
SIZE("read", read, (int fd, void *b, size_t n), (fd, b, n))
SIZE("read", pread64, (int fd, void *b, size_t n, off64_t at), (fd, b, n, at))
SIZE("write", write, (int fd, const void *b, size_t n), (fd, b, n))
SIZE("write", pwrite64, (int fd, const void *b, size_t n, off64_t at), (fd, b, n, at))
INT("close", close, (int fd), (fd))
INT("mkdir", mkdir, (const char *p, mode_t m), (p, m))
INT("rename", rename, (const char *a, const char *b), (a, b))
INT("unlink", unlink, (const char *p), (p))
INT("chmod", chmod, (const char *p, mode_t m), (p, m))
INT("fsync", fsync, (int fd), (fd))
INT("ftruncate", ftruncate64, (int fd, off64_t n), (fd, n))
INT("fallocate", fallocate64, (int fd, int m, off64_t a, off64_t n), (fd, m, a, n))
INT("stat", stat, (const char *p, struct stat *s), (p, s))
INT("stat", stat64, (const char *p, struct stat64 *s), (p, s))
INT("stat", lstat, (const char *p, struct stat *s), (p, s))
INT("stat", lstat64, (const char *p, struct stat64 *s), (p, s))
INT("stat", fstat, (int fd, struct stat *s), (fd, s))
INT("stat", fstat64, (int fd, struct stat64 *s), (fd, s))
INT("stat", fstatat, (int at, const char *p, struct stat *s, int f), (at, p, s, f))
INT("stat", fstatat64, (int at, const char *p, struct stat64 *s, int f), (at, p, s, f))
INT("statvfs", statvfs64, (const char *p, struct statvfs64 *s), (p, s))
CALL("listdir", DIR *, NULL, opendir, (const char *p), (p))
CALL("listdir", struct dirent64 *, NULL, readdir64, (DIR *d), (d))
CALL("lseek", off64_t, -1, lseek64, (int fd, off64_t n, int w), (fd, n, w))
INT("socket", socket, (int d, int t, int p), (d, t, p))
INT("socketpair", socketpair, (int d, int t, int p, int v[2]), (d, t, p, v))
INT("bind", bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
INT("listen", listen, (int fd, int n), (fd, n))
INT("accept", accept, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
INT("accept", accept4, (int fd, struct sockaddr *a, socklen_t *n, int f), (fd, a, n, f))
INT("connect", connect, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
INT("getsockopt", getsockopt, (int fd, int l, int o, void *v, socklen_t *n), (fd, l, o, v, n))
SIZE("recv", recv, (int fd, void *b, size_t n, int f), (fd, b, n, f))
SIZE("recv", recvmsg, (int fd, struct msghdr *m, int f), (fd, m, f))
SIZE("send", send, (int fd, const void *b, size_t n, int f), (fd, b, n, f))
INT("epoll_create", epoll_create1, (int f), (f))
INT("epoll_ctl", epoll_ctl, (int e, int o, int fd, struct epoll_event *v), (e, o, fd, v))
INT("epoll_wait", epoll_wait, (int e, struct epoll_event *v, int n, int t), (e, v, n, t))
INT("poll", poll, (struct pollfd *p, nfds_t n, int t), (p, n, t))
INT("fork", fork, (void), ())
INT("pipe", pipe, (int v[2]), (v))
INT("pipe", pipe2, (int v[2], int f), (v, f))
INT("dup", dup2, (int a, int b), (a, b))
INT("dup", dup3, (int a, int b, int f), (a, b, f))
INT("flock", flock, (int fd, int o), (fd, o))
INT("kill", kill, (pid_t p, int s), (p, s))
INT("kill", killpg, (pid_t p, int s), (p, s))
INT("wait", waitpid, (pid_t p, int *s, int o), (p, s, o))
CALL("mmap", void *, MAP_FAILED, mmap64, (void *a, size_t n, int p, int f, int fd, off64_t o), (a, n, p, f, fd, o))
CALL("thread", int, number, pthread_create,
     (pthread_t *t, const pthread_attr_t *a, void *(*w)(void *), void *x), (t, a, w, x))

int fcntl64(int fd, int command, ...) {
    va_list list; va_start(list, command); void *argument = va_arg(list, void *); va_end(list);
    REAL(fcntl64); FAIL("fcntl", -1); return real(fd, command, argument);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list list; va_start(list, request); void *argument = va_arg(list, void *); va_end(list);
    static int (*real)(int, unsigned long, ...);
    if (!real) real = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    FAIL("ioctl", -1); return real(fd, request, argument);
}
