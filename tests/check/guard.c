/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers between guard pages, calls that may die or hang, and the random numbers of the cases. */
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "core/status.h"
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

int plait_guard_open_sparse(plait_guard *g, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    g->bytes = bytes;
    g->map_bytes = (bytes + page - 1) / page * page + 2 * page;
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g->map == MAP_FAILED) {
        g->map = NULL;
        return 0;
    }
    g->data = (unsigned char *)g->map + page;
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
    if (!g->map)
        return 1;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const unsigned char *first = (const unsigned char *)g->map + page;
    const unsigned char *end = (const unsigned char *)g->map + g->map_bytes - page;
    for (const unsigned char *p = first; p < end; p++)
        if ((p < g->data || p >= g->data + g->bytes) && *p != fill)
            return 0;
    return 1;
}

/* ---- calls ----------------------------------------------------------------------------------- */

#ifdef __has_feature
#if __has_feature(memory_sanitizer)
#define OWN_CALL 0 /* it follows values through compiled calls only */
#endif
#endif
#if !defined(OWN_CALL)
#if defined(__x86_64__)
#define OWN_CALL 1
#else
#define OWN_CALL 0
#endif
#endif

#if OWN_CALL
/* Calls fn(arg) with patterns in the registers that a function must restore; *changed gets the bits
   that differ after it. */
int plait_guard_trampoline(int (*fn)(void *arg), uint64_t *changed, void *arg);
__asm__(".text\n"
        ".type plait_guard_trampoline, @function\n"
        ".globl plait_guard_trampoline\n"
        ".hidden plait_guard_trampoline\n"
        "plait_guard_trampoline:\n"
        "    endbr64\n"
        "    push %rbx\n"
        "    push %rbp\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    push %rsi\n" /* the stack is aligned to 16 bytes now */
        "    mov %rdi, %rax\n"
        "    mov %rdx, %rdi\n"
        "    movabs $0x5a5a1111deadbeef, %rbx\n"
        "    lea 1(%rbx), %rbp\n"
        "    lea 2(%rbx), %r12\n"
        "    lea 3(%rbx), %r13\n"
        "    lea 4(%rbx), %r14\n"
        "    lea 5(%rbx), %r15\n"
        "    call *%rax\n"
        "    movabs $0x5a5a1111deadbeef, %rcx\n"
        "    xor %rcx, %rbx\n"
        "    inc %rcx\n"
        "    xor %rcx, %rbp\n"
        "    inc %rcx\n"
        "    xor %rcx, %r12\n"
        "    inc %rcx\n"
        "    xor %rcx, %r13\n"
        "    inc %rcx\n"
        "    xor %rcx, %r14\n"
        "    inc %rcx\n"
        "    xor %rcx, %r15\n"
        "    or %rbp, %rbx\n"
        "    or %r12, %rbx\n"
        "    or %r13, %rbx\n"
        "    or %r14, %rbx\n"
        "    or %r15, %rbx\n"
        "    pop %rsi\n"
        "    mov %rbx, (%rsi)\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbp\n"
        "    pop %rbx\n"
        "    ret\n"
        ".size plait_guard_trampoline, . - plait_guard_trampoline\n");

/* MXCSR without its sticky flags: rounding, masks, subnormal numbers. */
static unsigned control(void)
{
    return _mm_getcsr() & ~0x3fu;
}
#endif

/* fn(arg), or what it did to the processor's state. */
static int call_watched(int (*fn)(void *arg), void *arg)
{
#if OWN_CALL
    const unsigned before = control();
    uint64_t changed = 0;
    int result = plait_guard_trampoline(fn, &changed, arg);
    if (control() != before) {
        _mm_setcsr(before);
        return PLAIT_GUARD_MXCSR;
    }
    return changed ? PLAIT_GUARD_REGISTERS : result;
#else
    return fn(arg);
#endif
}

int plait_guard_seconds = 20;

static sigjmp_buf back;

static void on_signal(int number)
{
    siglongjmp(back, number);
}

/* Apart from plait_guard_call, so that no local lives across sigsetjmp. */
static int call_or_jump(int (*fn)(void *arg), void *arg)
{
    int number = sigsetjmp(back, 1);
    return number ? PLAIT_GUARD_SIGNAL - number : call_watched(fn, arg);
}

static void set_alarm(int seconds)
{
    const struct itimerval in = {.it_value.tv_sec = seconds};
    setitimer(ITIMER_REAL, &in, NULL);
}

int plait_guard_call(int (*fn)(void *arg), void *arg)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGALRM};
    enum { n = sizeof numbers / sizeof *numbers };
    struct sigaction old[n], now;
    memset(&now, 0, sizeof now);
    now.sa_handler = on_signal;
    for (int i = 0; i < n; i++)
        sigaction(numbers[i], &now, &old[i]);
    set_alarm(plait_guard_seconds);
    int result = call_or_jump(fn, arg);
    set_alarm(0);
    for (int i = 0; i < n; i++)
        sigaction(numbers[i], &old[i], NULL);
    return result;
}

const char *plait_guard_reason(int result)
{
    if (result == PLAIT_GUARD_MXCSR)
        return "it changed MXCSR";
    if (result == PLAIT_GUARD_REGISTERS)
        return "it changed registers that belong to its caller";
    if (result == PLAIT_GUARD_SIGNAL - SIGALRM)
        return "it did not end in time";
    if (result == PLAIT_GUARD_SIGNAL - SIGILL)
        return "it used an instruction that this processor lacks";
    if (result < PLAIT_GUARD_SIGNAL)
        return "it touched memory outside its buffers, or wrote to its inputs";
    return result == 0 ? NULL : plait_last_error();
}

/* ---- random numbers -------------------------------------------------------------------------- */

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
