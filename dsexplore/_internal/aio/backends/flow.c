/* The steady part of a transfer: wait, look at what came, start as many again.

   compiled_loop.py compiles this file and calls it. The queue stays full: each request that has finished whole is
   replaced by the next one. A result that is not whole, a refused submission, a signal and the last request end the
   call with the results left over, for Python. */

#include <stdint.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct steady {
    int64_t first, end;  /* requests to be started, in order; `first` moves on */
    int64_t minimum;     /* finished requests that each wait is for */
    int64_t depth;       /* requests in flight */
    int64_t step;        /* requests per submission, at most */
    int64_t length;      /* bytes that each result should be */
    double until;        /* when the call ends; times are seconds by the monotonic clock */
    int64_t *addresses;  /* NULL; or of each request, which then gets the memory of the one that it replaces */
    double *begun;       /* NULL; or when each request was started */
    double *latencies;   /* of each request that has finished, in order */
    int64_t finished;    /* how many those are */
    int64_t ready;       /* results that are left over */
    double now;          /* when the last wait ended */
};

struct iocb {
    uint64_t data, key, operation, address, nbytes, offset, reserved, flags;
};

struct event {
    uint64_t index, object;
    int64_t result, more;
};

struct aio {
    uint64_t context;
    struct iocb *table, **pointers;
    struct event *events;
};

struct sqe {
    uint64_t operation, offset, address, length, index, rest[3];
};

struct cqe {
    uint64_t index;
    int32_t result, flags;
};

struct uring {
    int64_t fd;
    struct sqe *table, *entries;
    struct cqe *results;
    uint32_t *sq_tail, *cq_head, *cq_tail;
    uint32_t sq_mask, cq_mask;
};

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Whether what is ready can be replaced. */
static int goes_on(const struct steady *s)
{
    return s->ready >= s->minimum && s->ready <= s->end - s->first && s->now < s->until;
}

/* How many of the requests that are ready are offered in one submission, if so many have been started. */
static int64_t offered(const struct steady *s, int64_t started)
{
    return s->ready - started < s->step ? s->ready - started : s->step;
}

/* Note that request `index` has finished, and that the next one has been started in its place. */
static void replaced(struct steady *s, uint64_t index)
{
    if (s->begun) {
        s->begun[s->first] = s->now;
        s->latencies[s->finished] = s->now - s->begun[index];
    }
    s->finished++;
    s->first++;
}

/* Over Linux's native asynchronous I/O. */
void aio_flow(struct steady *s, struct aio *a)
{
    do {
        int64_t i, whole = 1, started = 0, taken = 1;
        int64_t got = syscall(SYS_io_getevents, a->context, s->minimum, s->depth, a->events, NULL);
        s->now = seconds();
        s->ready = got > 0 ? got : 0;
        for (i = 0; i < s->ready; i++)
            whole &= a->events[i].result == s->length;
        if (!whole || !goes_on(s))
            return;
        for (i = 0; s->addresses && i < s->ready; i++)
            s->addresses[s->first + i] = a->table[s->first + i].address = s->addresses[a->events[i].index];
        while (started < s->ready && taken > 0) {
            taken = syscall(SYS_io_submit, a->context, offered(s, started), a->pointers + s->first);
            for (i = 0; i < taken; i++)
                replaced(s, a->events[started++].index);
        }
        s->ready -= started;
        for (i = 0; i < s->ready; i++)
            a->events[i] = a->events[started + i];
    } while (s->ready == 0);
}

static int64_t enter(const struct uring *u, int64_t submit, int64_t minimum)
{
    return syscall(SYS_io_uring_enter, u->fd, (uint32_t)submit, (uint32_t)minimum, minimum > 0, NULL, 0);
}

static struct cqe *result(const struct uring *u, int64_t at)
{
    return &u->results[(*u->cq_head + at) & u->cq_mask];
}

static int64_t finished(const struct uring *u)
{
    return (uint32_t)(__atomic_load_n(u->cq_tail, __ATOMIC_ACQUIRE) - *u->cq_head);
}

/* Over io_uring. The submission that replaces the last of what is ready waits for more, too: results are given back
   to the ring only after it, so that they count among those that it waits for. */
void uring_flow(struct steady *s, struct uring *u)
{
    if (finished(u) < s->minimum)
        enter(u, 0, s->minimum);
    do {
        int64_t i, whole = 1, started = 0, taken = 1;
        s->now = seconds();
        s->ready = finished(u);
        for (i = 0; i < s->ready; i++)
            whole &= result(u, i)->result == s->length;
        if (!whole || !goes_on(s))
            return;
        while (started < s->ready && taken > 0) {
            uint32_t tail = *u->sq_tail;
            int64_t count = offered(s, started);
            int is_last = started + count == s->ready;
            for (i = 0; i < count; i++) {
                struct sqe *next = &u->table[s->first + i];
                if (s->addresses)
                    s->addresses[s->first + i] = next->address = s->addresses[result(u, started + i)->index];
                u->entries[(tail + i) & u->sq_mask] = *next;
            }
            __atomic_store_n(u->sq_tail, tail + (uint32_t)count, __ATOMIC_RELEASE);
            taken = enter(u, count, is_last ? s->ready + s->minimum : 0);
            taken = taken > 0 ? taken : 0;
            for (i = 0; i < taken; i++)
                replaced(s, result(u, started++)->index);
            if (taken < count)
                __atomic_store_n(u->sq_tail, tail + (uint32_t)taken, __ATOMIC_RELEASE);
        }
        __atomic_store_n(u->cq_head, *u->cq_head + (uint32_t)started, __ATOMIC_RELEASE);
        s->ready -= started;
    } while (s->ready == 0);
}
