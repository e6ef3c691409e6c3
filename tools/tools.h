/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/tools.h - what the subcommands share: their prototypes and exit codes.
 *
 * A subcommand gets its own name as argv[0] and returns the exit code of the process. With --json
 * it prints one object on stdout and nothing else.
 */
#ifndef PLAIT_TOOLS_H
#define PLAIT_TOOLS_H

#include <plait/status.h>

#define PLAIT_EXIT_OK     0
#define PLAIT_EXIT_FAILED 1
#define PLAIT_EXIT_USAGE  2

/* One declaration for each row of the table; a macro because C has no other loop over it. */
#define COMMAND(name, help, function) int function(int argc, char **argv);
#include "tools/commands.def"
#undef COMMAND

/* Says on stderr "plait <command>: <sentence>" and returns the exit code of the status: 2 where
   the caller asked for something outside its domain, 1 for everything else. */
int plait_tool_fail(const char *command, plait_status status);

#endif
