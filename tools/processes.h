/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/processes.h - a command that mpirun started once for each rank (--comm mpi). Process 0
 * reads files and prints; all exit with the same code.
 */
#ifndef PLAIT_TOOLS_PROCESSES_H
#define PLAIT_TOOLS_PROCESSES_H

#include <stddef.h>

#include <plait/comm.h>

/* The group of all processes. Returns 0, or an exit code after a sentence on stderr. */
int plait_processes_open(const char *command, double timeout_s, plait_comm **comm);

/* Whether this process is the one that reads and prints; without a group it is. */
int plait_processes_first(const plait_comm *comm);

/* Whether `good` holds in all processes. */
int plait_processes_all(plait_comm *comm, int good);

/* Gives all processes what process 0 read: text of *bytes, or NULL when it read nothing. Returns a
   new text, which the caller frees, or NULL; frees the old one. Without a group text comes back. */
char *plait_processes_share(plait_comm *comm, char *text, size_t *bytes);

/*
 * Ends the group and tells of a status that is not PLAIT_OK, with the sentence of the last failure:
 * process 0 does where all processes stand together, else every one that is left, with its number.
 * Returns the exit code. Without a group it is plait_tool_fail.
 */
int plait_processes_end(const char *command, plait_comm **comm, plait_status status);

#endif
