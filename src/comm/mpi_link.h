/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/mpi_link.h - what the groups of one process share over MPI: a communicator of their own, and
 * notes between processes. Notes are small messages that come at any time: a group failed, a rank
 * closed it, a rank asks whether this one is alive. They are read while a rank waits.
 */
#ifndef PLAIT_COMM_MPI_LINK_H
#define PLAIT_COMM_MPI_LINK_H

#include <mpi.h>

#include "comm/comm.h"
#include "core/memory.h"

enum { PLAIT_MPI_ERROR_BYTES = 640 };

typedef enum plait_mpi_note_kind {
    PLAIT_MPI_FAILED, /* the group is of no use any more; with the sentence */
    PLAIT_MPI_CLOSED, /* this rank closed its handle of the group */
    PLAIT_MPI_BYE,    /* this process closed all its handles */
    PLAIT_MPI_ASK,    /* is this process alive? */
    PLAIT_MPI_ALIVE
} plait_mpi_note_kind;

typedef struct plait_mpi_note {
    int32_t kind, group;
    int32_t from;   /* rank of the process in the link */
    int32_t broken; /* BYE: a group failed, so nothing collective can follow */
    char text[PLAIT_MPI_ERROR_BYTES];
} plait_mpi_note;

typedef struct plait_mpi_group plait_mpi_group;

typedef struct plait_mpi_link {
    MPI_Comm comm;
    int32_t rank, n;
    int32_t num_open;    /* groups that are not closed */
    int32_t next_group;  /* a number that no group of this process had */
    int32_t owns_mpi;    /* MPI was started here and ends with the last group */
    int32_t broken;      /* a group failed: a collective call of MPI might never return */
    double timeout_s;    /* for the others to close */
    MPI_Request request; /* receives `in` */
    plait_mpi_note in;
    plait_mpi_note *out;        /* [n], for the note that is on its way to each process */
    MPI_Request *out_requests;  /* [n] */
    unsigned char *bye, *alive; /* [n] */
    plait_mpi_group *groups;
    plait_allocator allocator;
    plait_arena arena;
} plait_mpi_link;

/* What notes change in a group; its first member, the rest is in mpi.c. Ranks of a group are
   consecutive in the link. */
struct plait_mpi_group {
    plait_mpi_link *link;
    plait_mpi_group *next;
    int32_t id, first, rank, n;
    int32_t failed;
    char error[PLAIT_MPI_ERROR_BYTES];
    unsigned char *closed; /* [n] */
    int32_t num_closed;
};

int64_t plait_mpi_now_ns(void);

/* Rests between two looks at what is waited for since `start`: spins for 20 us, then gives the CPU
   away, then sleeps. MPI has no wait with a deadline. */
void plait_mpi_rest(int64_t start);

/* Opens a link over a duplicate of comm; collective. */
plait_status plait_mpi_link_open(MPI_Comm comm, int32_t owns_mpi, double timeout_s,
                                 const plait_allocator *allocator, plait_mpi_link **out);

/* Waits for the other processes to close theirs, at most the deadline, and frees the link. Where
   one is lost, the communicator is left to the end of the process, and so is MPI itself. */
void plait_mpi_link_close(plait_mpi_link *link);

/* Reads the notes that came. */
void plait_mpi_link_read(plait_mpi_link *link);

/* Sends a note to process `to` of the link; gives up after a while if it takes none. */
void plait_mpi_link_send(plait_mpi_link *link, int32_t to, plait_mpi_note_kind kind, int32_t group,
                         const char *text);

/* The same to all other ranks of a group. */
void plait_mpi_tell(plait_mpi_group *group, plait_mpi_note_kind kind, const char *text);

/* Fails the group, once, and tells the others. */
void plait_mpi_fail(plait_mpi_group *group, const char *sentence);

/* PLAIT_E_COMM with the group's sentence. */
plait_status plait_mpi_group_error(const plait_mpi_group *group);

/* Asks suspects[n], by rank of the group, whether they are alive, and waits a while. Returns
   whether all answered; else suspects that did are cleared. */
int plait_mpi_all_alive(plait_mpi_group *group, unsigned char *suspects);

#endif
