/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cpus.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

int plait_cpus_affinity(void)
{
    /* CPU_SETSIZE is 1024; on a larger host the plain call fails and the set has to grow. */
    for (int n_cpus = CPU_SETSIZE; n_cpus <= 1 << 20; n_cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)n_cpus);
        if (!set)
            return 1;
        const size_t bytes = CPU_ALLOC_SIZE((size_t)n_cpus);
        const int failed = sched_getaffinity(0, bytes, set);
        const int count = failed ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
    return 1;
}

/* The first line of a small file without its newline, or false. */
static bool read_line(const char *path, char *line, int capacity)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const bool got = fgets(line, capacity, file) != NULL;
    fclose(file);
    if (got)
        line[strcspn(line, "\n")] = 0;
    return got;
}

/* A quota over a period as whole CPUs, at least 1; 0 when either is no positive number. */
static int whole_cpus(const char *quota_text, const char *period_text)
{
    const long long quota = strtoll(quota_text, NULL, 10);
    const long long period = strtoll(period_text, NULL, 10);
    if (quota <= 0 || period <= 0)
        return 0;
    const long long cpus = quota / period;
    return cpus < 1 ? 1 : cpus > INT_MAX ? INT_MAX : (int)cpus;
}

static bool join(char *path, const char *a, const char *b, const char *c, const char *d)
{
    return snprintf(path, PATH_BYTES, "%s%s%s%s", a, b, c, d) < PATH_BYTES;
}

/* Version 2: cpu.max holds "quota period", the quota may be "max", which reads as no number. */
static int quota_v2(const char *root, const char *group)
{
    char path[PATH_BYTES], line[128];
    if (!join(path, root, "/sys/fs/cgroup", group, "/cpu.max") ||
        !read_line(path, line, sizeof line))
        return 0;
    char *space = strchr(line, ' ');
    return space ? whole_cpus(line, space + 1) : 0;
}

/* Version 1: two files, and the controller may be mounted under three names. Quota -1: no limit. */
static int quota_v1(const char *root, const char *group)
{
    static const char *const mounts[] = {"/cpu", "/cpu,cpuacct", "/cpuacct,cpu"};
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++) {
        char folder[PATH_BYTES], path[PATH_BYTES], quota[128], period[128];
        if (!join(folder, root, "/sys/fs/cgroup", mounts[i], group) ||
            !join(path, folder, "/cpu.cfs_quota_us", "", "") ||
            !read_line(path, quota, sizeof quota) ||
            !join(path, folder, "/cpu.cfs_period_us", "", "") ||
            !read_line(path, period, sizeof period))
            continue;
        return whole_cpus(quota, period);
    }
    return 0;
}

/* The tightest limit from `group` up to the root. A container often does not see its own group's
 * folder, only the root, which then holds its limits; the walk ends there in any case. */
static int tightest(const char *root, char *group, int (*quota)(const char *, const char *))
{
    int limit = 0;
    for (;;) {
        if (strcmp(group, "/") == 0)
            *group = 0;
        const int here = quota(root, group);
        if (here > 0 && (limit == 0 || here < limit))
            limit = here;
        char *slash = strrchr(group, '/');
        if (!slash)
            return limit;
        *slash = 0;
    }
}

/* Whether a comma separated list of controllers names "cpu". */
static bool names_cpu(const char *list)
{
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (strncmp(at, "cpu", 3) == 0 && (at[3] == 0 || at[3] == ','))
            return true;
    }
    return false;
}

int plait_cpus_quota(const char *root)
{
    char path[PATH_BYTES], line[PATH_BYTES];
    if (!join(path, root, "/proc/self/cgroup", "", ""))
        return 0;
    FILE *file = fopen(path, "re");
    int limit = 0;
    /* Lines are "id:controllers:/group"; version 2 has id 0 and no controllers. */
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *controllers++ = 0;
        *group++ = 0;
        int here = 0;
        if (*controllers == 0)
            here = tightest(root, group, quota_v2);
        else if (names_cpu(controllers))
            here = tightest(root, group, quota_v1);
        if (here > 0 && (limit == 0 || here < limit))
            limit = here;
    }
    if (file)
        fclose(file);
    return limit;
}

int plait_cpus_share(int affinity, int quota, int n_local_ranks)
{
    const int cpus = quota > 0 && quota < affinity ? quota : affinity;
    const int share = n_local_ranks > 1 ? cpus / n_local_ranks : cpus;
    return share < 1 ? 1 : share;
}

cpu_set_t plait_cpus_of_rank(const cpu_set_t *mask, int rank, int n_workers)
{
    const int n_cpus = CPU_COUNT(mask);
    const int64_t first = (int64_t)rank * n_workers % n_cpus;
    cpu_set_t chosen;
    CPU_ZERO(&chosen);
    int64_t at = 0; /* among the CPUs of the mask */
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, mask))
            continue;
        if ((at + n_cpus - first) % n_cpus < n_workers)
            CPU_SET(cpu, &chosen);
        at++;
    }
    return chosen;
}
