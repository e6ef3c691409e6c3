/* SPDX-License-Identifier: Apache-2.0 */
/* The default thread count (case 45): affinity, cgroup quota and the ranks of one host. */
#include "core/cpus.h"

#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "unit.h"

static char root[64];

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/plait-cpus-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info, (void)kind, (void)ftw;
    return remove(path);
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Writes root/path with its parent folders. */
static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_v2_quota_2(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "200000 100000\n");
    assert_int_equal(plait_cpus_quota(root), 2);
}

static void test_v2_quota_7_65_rounds_down(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "765000 100000\n");
    assert_int_equal(plait_cpus_quota(root), 7);
}

static void test_v2_max_is_no_limit(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/app\n");
    put("sys/fs/cgroup/app/cpu.max", "max 100000\n");
    assert_int_equal(plait_cpus_quota(root), 0);
}

static void test_v2_tightest_ancestor_wins(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/a/b/c\n");
    put("sys/fs/cgroup/a/cpu.max", "300000 100000\n");
    put("sys/fs/cgroup/a/b/cpu.max", "250000 50000\n");
    put("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
    assert_int_equal(plait_cpus_quota(root), 3);
}

/* A container that kept the host's group path sees its limit at the root of the mount. */
static void test_v2_group_that_is_not_visible(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/host/only/path\n");
    put("sys/fs/cgroup/cpu.max", "400000 100000\n");
    assert_int_equal(plait_cpus_quota(root), 4);
}

static void test_v1_quota(void **state)
{
    (void)state;
    put("proc/self/cgroup", "5:memory:/x\n3:cpu,cpuacct:/job\n2:cpuset:/y\n");
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "765000\n");
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_int_equal(plait_cpus_quota(root), 7);
}

static void test_v1_minus_one_is_no_limit(void **state)
{
    (void)state;
    put("proc/self/cgroup", "3:cpu:/\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(plait_cpus_quota(root), 0);
}

static void test_quota_below_one_gives_one(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "50000 100000\n");
    assert_int_equal(plait_cpus_quota(root), 1);
}

static void test_nonsense_is_no_limit(void **state)
{
    (void)state;
    assert_int_equal(plait_cpus_quota(root), 0);
    put("proc/self/cgroup", "garbage\n0::/\n");
    put("sys/fs/cgroup/cpu.max", "x y\n");
    assert_int_equal(plait_cpus_quota(root), 0);
    put("sys/fs/cgroup/cpu.max", "100000 0\n");
    assert_int_equal(plait_cpus_quota(root), 0);
}

static void test_affinity_counts_the_mask_not_the_host(void **state)
{
    (void)state;
    cpu_set_t saved, one;
    assert_int_equal(sched_getaffinity(0, sizeof saved, &saved), 0);
    assert_int_equal(plait_cpus_affinity(), CPU_COUNT(&saved));
    int first = 0;
    while (!CPU_ISSET(first, &saved))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    const int count = plait_cpus_affinity();
    assert_int_equal(sched_setaffinity(0, sizeof saved, &saved), 0);
    assert_int_equal(count, 1);
}

static void test_share_is_the_smaller_divided_among_ranks(void **state)
{
    (void)state;
    assert_int_equal(plait_cpus_share(4, 0, 1), 4); /* affinity 4 of 8 */
    assert_int_equal(plait_cpus_share(8, 2, 1), 2);
    assert_int_equal(plait_cpus_share(8, 7, 1), 7);
    assert_int_equal(plait_cpus_share(2, 7, 1), 2);
    assert_int_equal(plait_cpus_share(8, 0, 8), 1); /* two processes of 4 ranks */
    assert_int_equal(plait_cpus_share(8, 7, 2), 3);
    assert_int_equal(plait_cpus_share(2, 0, 4), 1); /* never 0 */
}

/* The CPUs of a mask of 2, 3, 5, 7 and 8 that a rank gets, as bits. */
static unsigned cpus_of(int rank, int n_workers)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(2, &mask), CPU_SET(3, &mask), CPU_SET(5, &mask), CPU_SET(7, &mask), CPU_SET(8, &mask);
    const cpu_set_t set = plait_cpus_of_rank(&mask, rank, n_workers);
    unsigned bits = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        bits |= CPU_ISSET(cpu, &set) ? 1u << cpu : 0;
    return bits;
}

static void test_ranks_take_cpus_in_turn_round_the_mask(void **state)
{
    (void)state;
    assert_int_equal(cpus_of(0, 2), 1 << 2 | 1 << 3);
    assert_int_equal(cpus_of(1, 2), 1 << 5 | 1 << 7);
    assert_int_equal(cpus_of(2, 2), 1 << 8 | 1 << 2);
    assert_int_equal(cpus_of(0, 5), cpus_of(3, 5));
    assert_int_equal(cpus_of(1, 99), cpus_of(0, 5));
    assert_int_equal(cpus_of(INT_MAX, 1), 1 << 5); /* 2147483647 mod 5 = 2 */
}

#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ROOT(test_v2_quota_2),
        WITH_ROOT(test_v2_quota_7_65_rounds_down),
        WITH_ROOT(test_v2_max_is_no_limit),
        WITH_ROOT(test_v2_tightest_ancestor_wins),
        WITH_ROOT(test_v2_group_that_is_not_visible),
        WITH_ROOT(test_v1_quota),
        WITH_ROOT(test_v1_minus_one_is_no_limit),
        WITH_ROOT(test_quota_below_one_gives_one),
        WITH_ROOT(test_nonsense_is_no_limit),
        cmocka_unit_test(test_affinity_counts_the_mask_not_the_host),
        cmocka_unit_test(test_ranks_take_cpus_in_turn_round_the_mask),
        cmocka_unit_test(test_share_is_the_smaller_divided_among_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
