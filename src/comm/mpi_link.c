/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/mpi_link.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/status.h"

enum { NOTE_TAG = 0, SPIN_NS = 20000, YIELD_NS = 1000000, GIVE_UP_NS = 200000000 };

int64_t plait_mpi_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void plait_mpi_rest(int64_t start)
{
    const int64_t waited = plait_mpi_now_ns() - start;
    if (waited < SPIN_NS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return;
    }
    if (waited < YIELD_NS) {
        sched_yield();
        return;
    }
    /* A sixteenth of what it took so far costs little more; at most a millisecond. */
    const int64_t ns = waited / 16 < 1000000 ? waited / 16 : 1000000;
    const struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

/* ---- notes ------------------------------------------------------------------------------------*/

static void listen(plait_mpi_link *l)
{
    MPI_Irecv(&l->in, (int)sizeof l->in, MPI_BYTE, MPI_ANY_SOURCE, NOTE_TAG, l->comm, &l->request);
}

static plait_mpi_group *find_group(const plait_mpi_link *l, int32_t id)
{
    plait_mpi_group *g = l->groups;
    while (g && g->id != id)
        g = g->next;
    return g;
}

static void take_note(plait_mpi_link *l, const plait_mpi_note *note)
{
    plait_mpi_group *g = find_group(l, note->group);
    const int32_t rank = g ? note->from - g->first : 0;
    switch ((plait_mpi_note_kind)note->kind) {
    case PLAIT_MPI_FAILED:
        if (g && !g->failed) {
            g->failed = 1;
            memcpy(g->error, note->text, sizeof g->error);
        }
        l->broken = 1;
        break;
    case PLAIT_MPI_CLOSED:
        if (g && rank >= 0 && rank < g->n && !g->closed[rank]) {
            g->closed[rank] = 1;
            g->num_closed++;
        }
        break;
    case PLAIT_MPI_BYE:
        l->bye[note->from] = 1;
        l->broken |= note->broken;
        break;
    case PLAIT_MPI_ASK:
        plait_mpi_link_send(l, note->from, PLAIT_MPI_ALIVE, note->group, "");
        break;
    case PLAIT_MPI_ALIVE:
        l->alive[note->from] = 1;
    }
}

void plait_mpi_link_read(plait_mpi_link *l)
{
    for (int came = 1; came;) {
        came = 0;
        if (MPI_Test(&l->request, &came, MPI_STATUS_IGNORE) != MPI_SUCCESS || !came)
            return;
        const plait_mpi_note note = l->in;
        listen(l);
        if (note.from >= 0 && note.from < l->n)
            take_note(l, &note);
    }
}

/* Whether the last note to this process is on its way. A process that takes none, since it is
   stopped or gone, is not waited for long. */
static int is_sent(plait_mpi_link *l, int32_t to)
{
    const int64_t start = plait_mpi_now_ns();
    for (;;) {
        int done = 0;
        if (MPI_Test(&l->out_requests[to], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done)
            return 1;
        if (plait_mpi_now_ns() - start > GIVE_UP_NS / 4)
            return 0;
        plait_mpi_rest(start);
    }
}

void plait_mpi_link_send(plait_mpi_link *l, int32_t to, plait_mpi_note_kind kind, int32_t group,
                         const char *text)
{
    if (!is_sent(l, to))
        return;
    plait_mpi_note *note = &l->out[to];
    *note = (plait_mpi_note){.kind = kind, .group = group, .from = l->rank, .broken = l->broken};
    snprintf(note->text, sizeof note->text, "%s", text);
    MPI_Isend(note, (int)sizeof *note, MPI_BYTE, to, NOTE_TAG, l->comm, &l->out_requests[to]);
}

void plait_mpi_tell(plait_mpi_group *g, plait_mpi_note_kind kind, const char *text)
{
    for (int32_t i = 0; i < g->n; i++)
        if (i != g->rank)
            plait_mpi_link_send(g->link, g->first + i, kind, g->id, text);
    for (int32_t i = 0; i < g->n; i++)
        if (i != g->rank)
            (void)is_sent(g->link, g->first + i);
}

void plait_mpi_fail(plait_mpi_group *g, const char *sentence)
{
    if (g->failed)
        return;
    g->failed = g->link->broken = 1;
    snprintf(g->error, sizeof g->error, "%s", sentence);
    plait_mpi_tell(g, PLAIT_MPI_FAILED, g->error);
}

plait_status plait_mpi_group_error(const plait_mpi_group *g)
{
    return plait_fail(PLAIT_E_COMM, "%s", g->error);
}

int plait_mpi_all_alive(plait_mpi_group *g, unsigned char *suspects)
{
    plait_mpi_link *l = g->link;
    int32_t asked = 0, answered = 0;
    for (int32_t i = 0; i < g->n; i++) {
        if (!suspects[i])
            continue;
        l->alive[g->first + i] = 0;
        plait_mpi_link_send(l, g->first + i, PLAIT_MPI_ASK, g->id, "");
        asked++;
    }
    const int64_t start = plait_mpi_now_ns();
    while (answered < asked && !g->failed && plait_mpi_now_ns() - start < GIVE_UP_NS) {
        plait_mpi_link_read(l);
        answered = 0;
        for (int32_t i = 0; i < g->n; i++)
            answered += suspects[i] && l->alive[g->first + i];
        plait_mpi_rest(start);
    }
    for (int32_t i = 0; i < g->n && answered < asked; i++)
        suspects[i] = suspects[i] && !l->alive[g->first + i];
    return answered == asked;
}

/* ---- opening and closing ----------------------------------------------------------------------*/

static void lay_out(plait_arena *arena, plait_mpi_link *l)
{
    const size_t n = (size_t)l->n;
    l->out = plait_arena_take(arena, n, sizeof *l->out);
    l->out_requests = plait_arena_take(arena, n, sizeof(MPI_Request));
    l->bye = plait_arena_take(arena, n, 1);
    l->alive = plait_arena_take(arena, n, 1);
}

/* Its own communicator, so that its messages meet no others'. */
static plait_status duplicate(plait_mpi_link *l, MPI_Comm comm)
{
    MPI_Request request;
    int done = 0;
    const int64_t start = plait_mpi_now_ns();
    MPI_Comm_idup(comm, &l->comm, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        if ((double)(plait_mpi_now_ns() - start) > l->timeout_s * 1e9)
            break;
        plait_mpi_rest(start);
    }
    if (!done)
        return plait_fail(PLAIT_E_COMM, "comm: not all of %d ranks opened their group within %g s",
                          l->n, l->timeout_s);
    MPI_Comm_set_errhandler(l->comm, MPI_ERRORS_RETURN);
    return PLAIT_OK;
}

plait_status plait_mpi_link_open(MPI_Comm comm, int32_t owns_mpi, double timeout_s,
                                 const plait_allocator *allocator, plait_mpi_link **out)
{
    plait_mpi_link *l;
    int n = 0, rank = 0;
    *out = NULL;
    MPI_Comm_size(comm, &n);
    MPI_Comm_rank(comm, &rank);
    if (n > PLAIT_COMM_MAX_RANKS)
        return plait_fail(PLAIT_E_ARG, "comm: %d processes, wanted 1 to %d", n,
                          PLAIT_COMM_MAX_RANKS);
    PLAIT_TRY(plait_mem_zalloc(allocator, sizeof *l, "link of processes", (void **)&l));
    l->allocator = allocator ? *allocator : *plait_allocator_default();
    l->n = n;
    l->rank = rank;
    l->owns_mpi = owns_mpi;
    l->timeout_s = timeout_s;
    lay_out(&l->arena, l);
    plait_status status = plait_arena_reserve(&l->arena, &l->allocator, "link of processes");
    if (status == PLAIT_OK)
        status = duplicate(l, comm);
    if (status != PLAIT_OK) {
        plait_arena_free(&l->arena, &l->allocator);
        plait_mem_free(&l->allocator, l, sizeof *l);
        return status;
    }
    lay_out(&l->arena, l);
    memset(l->bye, 0, (size_t)n);
    for (int32_t i = 0; i < n; i++)
        l->out_requests[i] = MPI_REQUEST_NULL;
    listen(l);
    *out = l;
    return PLAIT_OK;
}

/* Whether all other processes closed their links and nothing failed: only then do collective calls
   of MPI return. */
static int all_left(plait_mpi_link *l)
{
    const int64_t start = plait_mpi_now_ns();
    int32_t left = 0;
    while (!l->broken && (double)(plait_mpi_now_ns() - start) < l->timeout_s * 1e9) {
        plait_mpi_link_read(l);
        left = 0;
        for (int32_t i = 0; i < l->n; i++)
            left += l->bye[i] || i == l->rank;
        if (left == l->n)
            return 1;
        plait_mpi_rest(start);
    }
    return 0;
}

void plait_mpi_link_close(plait_mpi_link *l)
{
    int sent = 1;
    for (int32_t i = 0; i < l->n; i++)
        if (i != l->rank)
            plait_mpi_link_send(l, i, PLAIT_MPI_BYE, -1, "");
    for (int32_t i = 0; i < l->n; i++)
        sent &= i == l->rank || is_sent(l, i);
    const int whole = sent && all_left(l);
    MPI_Cancel(&l->request);
    MPI_Wait(&l->request, MPI_STATUS_IGNORE);
    if (whole) {
        MPI_Comm_free(&l->comm);
        if (l->owns_mpi)
            MPI_Finalize();
    }
    if (!sent) /* MPI may still read the notes; their memory goes with the process */
        return;
    const plait_allocator allocator = l->allocator;
    plait_arena_free(&l->arena, &allocator);
    plait_mem_free(&allocator, l, sizeof *l);
}
