/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/processes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/tools.h"

int plait_processes_open(const char *command, double timeout_s, plait_comm **comm)
{
    *comm = NULL;
#if PLAIT_HAVE_MPI
    /* Set by the launchers of Open MPI, of PMI and of PMIx. */
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
    int launched = 0;
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        launched |= getenv(signs[i]) != NULL;
    if (!launched) {
        fprintf(stderr,
                "plait %s: --comm mpi needs a process for each rank: mpirun -n 2 plait %s ...\n",
                command, command);
        return PLAIT_EXIT_USAGE;
    }
#endif
    const plait_status status = plait_comm_mpi_open(NULL, timeout_s, NULL, comm);
    if (status != PLAIT_OK)
        return plait_tool_fail(command, status);
    if (!plait_processes_first(*comm) && !freopen("/dev/null", "w", stdout))
        fprintf(stderr, "plait %s: /dev/null cannot be opened\n", command);
    return 0;
}

int plait_processes_first(const plait_comm *comm)
{
    return !comm || plait_comm_rank(comm) == 0;
}

int plait_processes_all(plait_comm *comm, int good)
{
    return comm ? plait_comm_agree(comm, "open files", good ? PLAIT_OK : PLAIT_E_IO) == PLAIT_OK
                : good;
}

char *plait_processes_share(plait_comm *comm, char *text, size_t *bytes)
{
    int64_t sizes[PLAIT_COMM_MAX_RANKS], mine = text ? (int64_t)*bytes : -1;
    if (!comm)
        return text;
    char *all = NULL;
    plait_status status =
        plait_comm_exchange(comm, "size of the file", PLAIT_OK, &mine, sizeof mine, sizes);
    if (status == PLAIT_OK && sizes[0] >= 0) {
        all = malloc((size_t)sizes[0] + 1);
        status = plait_comm_agree(comm, "memory for the file", all ? PLAIT_OK : PLAIT_E_NOMEM);
        *bytes = (size_t)sizes[0];
        for (int32_t i = 1; i < plait_comm_size(comm); i++)
            sizes[i] = 0;
        if (status == PLAIT_OK)
            status = plait_comm_all_gather(comm, "the file", -1, NULL, text, sizes, all);
    }
    free(text);
    if (status != PLAIT_OK) {
        free(all);
        all = NULL;
    }
    return all;
}

static int exit_code(plait_status status)
{
    return status == PLAIT_OK      ? PLAIT_EXIT_OK
           : status == PLAIT_E_ARG ? PLAIT_EXIT_USAGE
                                   : PLAIT_EXIT_FAILED;
}

int plait_processes_end(const char *command, plait_comm **comm, plait_status status)
{
    if (!*comm)
        return status == PLAIT_OK ? PLAIT_EXIT_OK : plait_tool_fail(command, status);
    const int rank = (int)plait_comm_rank(*comm);
    char sentence[1024];
    fflush(stdout);
    snprintf(sentence, sizeof sentence, "%s", plait_last_error());
    const int together = plait_comm_agree(*comm, "end", PLAIT_OK) == PLAIT_OK;
    int code = exit_code(status);
    if (together && status != PLAIT_OK && rank == 0)
        fprintf(stderr, "plait %s: %s\n", command, sentence);
    if (!together) {
        code = PLAIT_EXIT_FAILED;
        fprintf(stderr, "plait %s: rank %d: %s\n", command, rank,
                status == PLAIT_OK ? plait_last_error() : sentence);
        /* The launcher may end all processes when one exits: the others get time to tell. */
        const struct timespec half = {0, 500000000};
        nanosleep(&half, NULL);
    }
    plait_comm_close(comm);
    return code;
}
