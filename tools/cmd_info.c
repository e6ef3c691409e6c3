/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait info: what this build and this machine offer. The support matrix (--markdown) is derived
 * from the table of kernels alone, so that it is the same on every machine.
 */
#include <stdio.h>
#include <string.h>

#include <plait/cpu.h>
#include <plait/threads.h>
#include <plait/version.h>

#include "tools/json.h"
#include "tools/options.h"
#include "tools/tools.h"

typedef struct plait_part {
    const char *name;
    int on;
} plait_part;

static const plait_part parts[] = {
    {"engine", PLAIT_HAVE_ENGINE},
    {"mpi", PLAIT_HAVE_MPI},
    {"cuda", PLAIT_HAVE_CUDA},
};
#define N_PARTS (sizeof parts / sizeof *parts)

static void text(void)
{
    char names[128];
    printf("version   %s\n", plait_version());
    printf("cpu       %s, %d threads\n", plait_cpu_names(plait_cpu_detect(), names, sizeof names),
           (int)plait_threads_default(1));
    printf("built     ");
    for (size_t i = 0; i < N_PARTS; i++)
        printf("%s%s %s", i ? ", " : "", parts[i].name, parts[i].on ? "on" : "off");
    printf("\n");
}

static void json(void)
{
    char names[128];
    plait_json j = {stdout, 0};
    plait_json_open(&j, '{');
    plait_json_key(&j, "version");
    plait_json_text(&j, plait_version());
    plait_json_key(&j, "cpu");
    plait_json_text(&j, plait_cpu_names(plait_cpu_detect(), names, sizeof names));
    plait_json_key(&j, "threads");
    plait_json_int(&j, plait_threads_default(1));
    plait_json_key(&j, "built");
    plait_json_open(&j, '{');
    for (size_t i = 0; i < N_PARTS; i++) {
        plait_json_key(&j, parts[i].name);
        plait_json_bool(&j, parts[i].on);
    }
    plait_json_close(&j, '}');
    plait_json_close(&j, '}');
    printf("\n");
}

int plait_cmd_info(int argc, char **argv)
{
    int as_json = 0;
    plait_option options[] = {
        {.name = "--json", .kind = PLAIT_OPTION_FLAG, .to = &as_json, .help = "one JSON object"},
    };
    plait_options_result read =
        plait_options_read(options, sizeof options / sizeof *options, argc, argv);
    if (read != PLAIT_OPTIONS_GO)
        return read == PLAIT_OPTIONS_HELP ? PLAIT_EXIT_OK : PLAIT_EXIT_USAGE;
    if (as_json)
        json();
    else
        text();
    return PLAIT_EXIT_OK;
}
