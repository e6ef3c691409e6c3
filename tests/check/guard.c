/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers between guard pages, calls that may die, and the random numbers of the cases. */
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/check/check.h"

int plait_guard_open(plait_guard *g, size_t bytes, size_t align, int at_end, int fill)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room = (bytes + align - 1) / align * align;
    size_t body = (room + page) / page * page;
    g->bytes = bytes;
    g->map_bytes = body + 2 * page;
    g->map = mmap(NULL, g->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g->map == MAP_FAILED) {
        g->map = NULL;
        return 0;
    }
    unsigned char *first = (unsigned char *)g->map + page;
    if (mprotect(first, body, PROT_READ | PROT_WRITE) != 0)
        return 0;
    memset(first, fill, body);
    g->data = at_end ? first + body - room : first;
    return 1;
}

void plait_guard_read_only(plait_guard *g)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (g->map)
        mprotect((unsigned char *)g->map + page, g->map_bytes - 2 * page, PROT_READ);
}

void plait_guard_close(plait_guard *g)
{
    if (g->map)
        munmap(g->map, g->map_bytes);
    memset(g, 0, sizeof *g);
}

int plait_guard_clean(const plait_guard *g, int fill)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const unsigned char *first = (const unsigned char *)g->map + page;
    const unsigned char *end = (const unsigned char *)g->map + g->map_bytes - page;
    for (const unsigned char *p = first; g->map && p < end; p++)
        if ((p < g->data || p >= g->data + g->bytes) && *p != fill)
            return 0;
    return 1;
}

static sigjmp_buf back;

static void on_signal(int number)
{
    siglongjmp(back, number);
}

/* Apart from plait_guard_call, so that no local lives across sigsetjmp. */
static int call_or_jump(int (*fn)(void *arg), void *arg)
{
    int number = sigsetjmp(back, 1);
    return number ? -1000 - number : fn(arg);
}

int plait_guard_call(int (*fn)(void *arg), void *arg)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    enum { n = sizeof numbers / sizeof *numbers };
    struct sigaction old[n], now;
    memset(&now, 0, sizeof now);
    now.sa_handler = on_signal;
    for (int i = 0; i < n; i++)
        sigaction(numbers[i], &now, &old[i]);
    int result = call_or_jump(fn, arg);
    for (int i = 0; i < n; i++)
        sigaction(numbers[i], &old[i], NULL);
    return result;
}

uint64_t plait_random_next(plait_random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int32_t plait_random_int(plait_random *r, int32_t least, int32_t most)
{
    return least + (int32_t)(plait_random_next(r) % (uint64_t)(most - least + 1));
}

double plait_random_real(plait_random *r)
{
    return (double)(plait_random_next(r) >> 11) * 0x1p-52 - 1;
}
