/* SPDX-License-Identifier: Apache-2.0
 *
 * Loaded before the C library: the clock that shows the time of day is off by the
 * seconds in a file.  Clocks that count how long something takes are right, as they
 * are where an operator or a time server sets a clock.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("GANTT_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        ahead = found;
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, which, now);
    if (!failed && ahead && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int failed = (int)syscall(SYS_gettimeofday, now, zone);
    if (!failed && now && ahead)
        now->tv_sec += *ahead;
    return failed;
}

time_t time(time_t *told)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told)
        *told = now.tv_sec;
    return now.tv_sec;
}
