/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools - the plait command: one file per subcommand, its table (commands.def), the reader of
 * options (options.c) and the JSON writer (json.c).
 */
#include <stdio.h>
#include <string.h>

#include <plait/log.h>
#include <plait/version.h>

#include "tools/tools.h"

static const struct {
    const char *name, *help;
    int (*function)(int argc, char **argv);
} commands[] = {
/* One row for each line of the table; a macro because the table also makes the prototypes. */
#define COMMAND(name, help, function) {#name, help, function},
#include "tools/commands.def"
#undef COMMAND
};

static void usage(FILE *to)
{
    fprintf(to, "usage: plait COMMAND [options]\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(to, "\n`plait COMMAND --help` lists the options of a command.\n");
}

int plait_tool_fail(const char *command, plait_status status)
{
    fflush(stdout);
    fprintf(stderr, "plait %s: %s\n", command, plait_last_error());
    return status == PLAIT_E_ARG ? PLAIT_EXIT_USAGE : PLAIT_EXIT_FAILED;
}

/* Notices and warnings go to standard error, where they do not mix with results. */
static void print_message(void *user, plait_log_level level, const char *text)
{
    (void)user;
    (void)level;
    fprintf(stderr, "plait: %s\n", text);
}

int main(int argc, char **argv)
{
    plait_log_set_sink(print_message, NULL, PLAIT_LOG_NOTICE);
    if (argc < 2) {
        usage(stderr);
        return PLAIT_EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return PLAIT_EXIT_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("plait %s\n", plait_version());
        return PLAIT_EXIT_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name))
            continue;
        int code = commands[i].function(argc - 1, argv + 1);
        if (fflush(stdout) || ferror(stdout)) {
            fprintf(stderr, "plait %s: the output could not be written\n", argv[1]);
            return PLAIT_EXIT_FAILED;
        }
        return code;
    }
    fprintf(stderr, "plait: there is no command '%s'; `plait --help` lists those that are\n",
            argv[1]);
    return PLAIT_EXIT_USAGE;
}
