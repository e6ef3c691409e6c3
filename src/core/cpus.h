/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many CPUs this process may use: the affinity mask and the cgroup quota, versions 1 and 2.
 * The number of CPUs of the host plays no part, since a container is often given far fewer.
 */
#ifndef PLAIT_CORE_CPUS_H
#define PLAIT_CORE_CPUS_H

#include <sched.h>

/* CPUs in the affinity mask of the calling thread, at least 1. */
int plait_cpus_affinity(void);

/* The cgroup CPU quota rounded down, at least 1; 0 when there is no limit. Every level from the
 * process's group up to the root counts, the tightest wins. `root` is put before /proc/self/cgroup
 * and /sys/fs/cgroup: "" on a live system, another folder in tests. */
int plait_cpus_quota(const char *root);

/* Threads for one rank: min(affinity, quota) divided among the host's ranks, at least 1.
 * quota 0 means no limit. */
int plait_cpus_share(int affinity, int quota, int n_local_ranks);

/* The CPUs of a rank with n_workers workers: that many of a mask that is not empty, rank after
 * rank, round the mask. */
cpu_set_t plait_cpus_of_rank(const cpu_set_t *mask, int rank, int n_workers);

#endif
