/* For flow.c: every so manieth of its calls is refused, taken in part, or interrupted; 0 is never. */
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

int refused, halved, interrupted;
int submissions, waits;

static long scripted(long number, ...)
{
    long given[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        given[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_io_submit || (number == SYS_io_uring_enter && given[1])) {
        submissions++;
        if (refused && submissions % refused == 0) {
            errno = EAGAIN;
            return -1;
        }
        if (halved && submissions % halved == 0 && given[1] > 1) {
            given[1] /= 2;
            if (number == SYS_io_uring_enter)
                given[2] = given[3] = 0; /* the kernel does not wait then */
        }
    } else {
        waits++;
        if (interrupted && waits % interrupted == 0) {
            errno = EINTR;
            return -1;
        }
    }
    return syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

#define syscall scripted
