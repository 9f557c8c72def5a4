/* Stops a process, or fails, at the n-th change that it makes to files below a folder.

   Preloaded (LD_PRELOAD). It reads the environment, so that a forked child can set it:
     CRASH_UNDER  the folder; without it nothing is counted
     CRASH_AT     n, from 1; 0 to count only
     CRASH_HOW    exit: end the process, in the middle of a write; EIO: fail once;
                  ENOSPC: fail whatever needs room, from then on
     CRASH_LOG    a file that gets a line for each change */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENDED 99
static int changes;

static void log_line(const char *what, const char *path) {
  const char *log = getenv("CRASH_LOG");
  if (!log) return;
  char line[2 * PATH_MAX];
  int length = snprintf(line, sizeof line, "%s %s\n", what, path);
  int file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT, 0600);
  if (file >= 0) {
    syscall(SYS_write, file, line, length);
    syscall(SYS_close, file);
  }
}

/* Count a change; return 0 to go on, 1 if the process is to end, or -1 with errno set. */
static int change(const char *what, const char *path, int needs_room) {
  const char *under = getenv("CRASH_UNDER"), *at = getenv("CRASH_AT"), *how = getenv("CRASH_HOW");
  if (!under || !at || strncmp(path, under, strlen(under))) return 0;
  log_line(what, path);
  int number = __sync_add_and_fetch(&changes, 1), place = atoi(at);
  if (!place || number < place) return 0;
  if (how && !strcmp(how, "ENOSPC")) {
    if (!needs_room) return 0;
    errno = ENOSPC;
    return -1;
  }
  if (number > place) return 0;
  if (how && !strcmp(how, "EIO")) {
    errno = EIO;
    return -1;
  }
  return 1;
}

static int change_of_file(const char *what, int file, int needs_room) {
  if (!getenv("CRASH_UNDER")) return 0;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = syscall(SYS_readlink, link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return change(what, path, needs_room);
}

static int change_at(const char *what, int folder, const char *path, int needs_room) {
  if (path[0] == '/' || folder == AT_FDCWD) return change(what, path, needs_room);
  char link[64], whole[2 * PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  ssize_t length = syscall(SYS_readlink, link, whole, PATH_MAX - 1);
  if (length < 0) return 0;
  snprintf(whole + length, PATH_MAX, "/%s", path);
  return change(what, whole, needs_room);
}

#define STOP(call)                 \
  do {                             \
    int found = (call);            \
    if (found > 0) _exit(ENDED);   \
    if (found < 0) return -1;      \
  } while (0)
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                  \
  int name(const char *path, int flags, ...) {                      \
    va_list rest;                                                   \
    va_start(rest, flags);                                          \
    int mode = va_arg(rest, int);                                   \
    va_end(rest);                                                   \
    if (flags & O_CREAT) STOP(change("create", path, 1));           \
    return NEXT(name)(path, flags, mode);                           \
  }
OPEN(open)
OPEN(open64)

ssize_t write(int file, const void *content, size_t count) {
  int found = change_of_file("write", file, 1);
  if (found > 0) {
    syscall(SYS_write, file, content, count / 2);
    _exit(ENDED);
  }
  return found < 0 ? -1 : NEXT(write)(file, content, count);
}

int fsync(int file) {
  STOP(change_of_file("fsync", file, 0));
  return NEXT(fsync)(file);
}

int ftruncate(int file, off_t size) {
  STOP(change_of_file("truncate", file, 0));
  return NEXT(ftruncate)(file, size);
}

int ftruncate64(int file, off64_t size) {
  STOP(change_of_file("truncate", file, 0));
  return NEXT(ftruncate64)(file, size);
}

int rename(const char *from, const char *to) {
  STOP(change("rename", to, 0));
  return NEXT(rename)(from, to);
}

int unlink(const char *path) {
  STOP(change("unlink", path, 0));
  return NEXT(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags) {
  STOP(change_at("unlink", folder, path, 0));
  return NEXT(unlinkat)(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
  STOP(change("mkdir", path, 1));
  return NEXT(mkdir)(path, mode);
}

int rmdir(const char *path) {
  STOP(change("rmdir", path, 0));
  return NEXT(rmdir)(path);
}
