/* SPDX-License-Identifier: Apache-2.0 */
/* plait check: proves the kernels on this machine; the cases themselves are in tests/check. */
#include <math.h>
#include <stdio.h>

#include <plait/plugin.h>

#include "tests/check/check.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/tools.h"

static int any_kernel(const char *pattern)
{
    plait_check_item item;
    for (int32_t i = 0; plait_check_item_get(i, &item); i++)
        if (plait_kernel_match(item.name, pattern))
            return 1;
    return 0;
}

static void list(const char *pattern, plait_cpu_features features)
{
    plait_check_item item;
    for (int32_t i = 0; plait_check_item_get(i, &item); i++) {
        if (!plait_kernel_match(item.name, pattern))
            continue;
        if (item.needs & ~features)
            printf("%-20s not with these CPU features\n", item.name);
        else
            printf("%s\n", item.name);
    }
}

static void list_json(const char *pattern, plait_cpu_features features)
{
    plait_emit j = {stdout, 0};
    plait_emit_open(&j, '{');
    plait_emit_key(&j, "kernels");
    plait_emit_open(&j, '[');
    plait_check_item item;
    for (int32_t i = 0; plait_check_item_get(i, &item); i++) {
        if (!plait_kernel_match(item.name, pattern))
            continue;
        plait_emit_open(&j, '{');
        plait_emit_key(&j, "name");
        plait_emit_text(&j, item.name);
        plait_emit_key(&j, "runs");
        plait_emit_bool(&j, !(item.needs & ~features));
        plait_emit_close(&j, '}');
    }
    plait_emit_close(&j, ']');
    plait_emit_close(&j, '}');
    printf("\n");
}

static void json_counts(plait_emit *j, plait_check_counts n)
{
    plait_emit_key(j, "passed");
    plait_emit_int(j, n.passed);
    plait_emit_key(j, "failed");
    plait_emit_int(j, n.failed);
    plait_emit_key(j, "skipped");
    plait_emit_int(j, n.skipped);
    plait_emit_key(j, "worst");
    plait_emit_number(j, n.worst);
}

static void tell(plait_emit *j, const char *name, plait_check_counts n)
{
    if (!j) {
        printf("%-20s %4lld passed %3lld failed %3lld skipped, worst error %.3f of the "
               "tolerance\n",
               name, (long long)n.passed, (long long)n.failed, (long long)n.skipped, n.worst);
        return;
    }
    plait_emit_open(j, '{');
    plait_emit_key(j, "name");
    plait_emit_text(j, name);
    json_counts(j, n);
    plait_emit_close(j, '}');
}

static void start(plait_emit *j, int as_json, const char *key)
{
    if (!as_json)
        return;
    plait_emit_open(j, '{');
    plait_emit_key(j, key);
    plait_emit_open(j, '[');
}

static int finish(plait_emit *j, int as_json, plait_check_counts all)
{
    if (as_json) {
        plait_emit_close(j, ']');
        json_counts(j, all);
        plait_emit_close(j, '}');
        printf("\n");
    } else {
        printf("%lld passed, %lld failed, %lld skipped\n", (long long)all.passed,
               (long long)all.failed, (long long)all.skipped);
    }
    return all.failed ? PLAIT_EXIT_FAILED : PLAIT_EXIT_OK;
}

static void add(plait_check_counts *all, plait_check_counts n)
{
    all->passed += n.passed;
    all->failed += n.failed;
    all->skipped += n.skipped;
    all->worst = fmax(all->worst, n.worst);
}

static int check(const char *pattern, plait_cpu_features features, uint64_t seed, int32_t cases,
                 int as_json)
{
    plait_check_counts all = {0, 0, 0, 0};
    plait_emit j = {stdout, 0};
    start(&j, as_json, "kernels");
    plait_check_item item;
    for (int32_t i = 0; plait_check_item_get(i, &item); i++) {
        if (!plait_kernel_match(item.name, pattern))
            continue;
        plait_check_counts n = plait_check_run(&item, features, seed, cases, stderr);
        add(&all, n);
        tell(as_json ? &j : NULL, item.name, n);
    }
    return finish(&j, as_json, all);
}

static int check_plugin(const char *path, plait_cpu_features features, uint64_t seed, int32_t cases,
                        int as_json)
{
    const plait_plugin *plugin;
    plait_check_counts all = {0, 0, 0, 0};
    plait_emit j = {stdout, 0};
    plait_status status = plait_plugin_load(path, &plugin);
    if (status != PLAIT_OK)
        return plait_tool_fail("check", status);
    start(&j, as_json, "backends");
    for (int32_t i = 0; i < plugin->n_backends; i++) {
        const plait_backend *b = &plugin->backends[i];
        plait_check_counts n = plait_check_backend(b, features, seed, cases, stderr);
        add(&all, n);
        tell(as_json ? &j : NULL, b->name, n);
    }
    if (!all.passed && !all.failed) {
        fprintf(stderr, "plait check: no case fits the plug-in's rows, nothing is proved\n");
        all.failed = 1;
    }
    return finish(&j, as_json, all);
}

int plait_cmd_check(int argc, char **argv)
{
    const char *pattern = NULL, *mask = "all", *plugin = NULL;
    int32_t seed = 0, cases = PLAIT_CHECK_CASES;
    int as_list = 0, as_json = 0;
    plait_option options[] = {
        {.name = "--kernel",
         .kind = PLAIT_OPTION_TEXT,
         .to = &pattern,
         .value = "PATTERN",
         .help = "kernels whose name matches; * stands for any text"},
        {.name = "--cpu-mask",
         .kind = PLAIT_OPTION_TEXT,
         .to = &mask,
         .value = "LEVEL",
         .help = "use no more than none, avx2, avx512, avx512bf16, amx or all"},
        {.name = "--seed",
         .kind = PLAIT_OPTION_INT,
         .to = &seed,
         .value = "S",
         .least = 0,
         .most = INT32_MAX,
         .help = "other cases"},
        {.name = "--cases",
         .kind = PLAIT_OPTION_INT,
         .to = &cases,
         .value = "N",
         .least = 1,
         .most = PLAIT_CHECK_CASES,
         .help = "only the first N cases of each kernel"},
        {.name = "--plugin",
         .kind = PLAIT_OPTION_TEXT,
         .to = &plugin,
         .value = "FILE",
         .help = "the backends of a plug-in, instead of the kernels"},
        {.name = "--list", .kind = PLAIT_OPTION_FLAG, .to = &as_list, .help = "names only"},
        {.name = "--json", .kind = PLAIT_OPTION_FLAG, .to = &as_json, .help = "one JSON object"},
    };
    plait_options_result read =
        plait_options_read(options, sizeof options / sizeof *options, argc, argv);
    if (read != PLAIT_OPTIONS_GO)
        return read == PLAIT_OPTIONS_HELP ? PLAIT_EXIT_OK : PLAIT_EXIT_USAGE;
    plait_cpu_features level;
    plait_status status = plait_cpu_level(mask, &level);
    if (status != PLAIT_OK)
        return plait_tool_fail("check", status);
    level &= plait_cpu_detect();
    if (plugin)
        return check_plugin(plugin, level, (uint64_t)seed, cases, as_json);
    if (!any_kernel(pattern)) {
        fprintf(stderr, "plait check: no kernel is named '%s'; --list shows the names\n", pattern);
        return PLAIT_EXIT_USAGE;
    }
    if (as_list) {
        if (as_json)
            list_json(pattern, level);
        else
            list(pattern, level);
        return PLAIT_EXIT_OK;
    }
    return check(pattern, level, (uint64_t)seed, cases, as_json);
}
