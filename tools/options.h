/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/options.h - reads the long options of a subcommand into its variables.
 *
 * A table lists the options. Values may follow as `--name VALUE` or `--name=VALUE`. Anything else
 * is refused with one sentence on stderr: an unknown option, a value that is missing, no number, or
 * out of range, an option given twice, and an option of a later step, by name.
 */
#ifndef PLAIT_TOOLS_OPTIONS_H
#define PLAIT_TOOLS_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

typedef enum plait_option_kind {
    PLAIT_OPTION_FLAG,   /* int: 1 if given */
    PLAIT_OPTION_TEXT,   /* const char * */
    PLAIT_OPTION_LIST,   /* plait_option_list: may be given several times */
    PLAIT_OPTION_INT,    /* int32_t in [least, most] */
    PLAIT_OPTION_NUMBER, /* double in [least, most] */
    PLAIT_OPTION_BYTES,  /* int64_t in [least, most], with K, M or G (powers of 1024) after it */
    PLAIT_OPTION_CHOICE, /* const char *, one of the words in `words` */
    PLAIT_OPTION_LATER   /* known, but not built yet; `takes_value` says whether a value follows */
} plait_option_kind;

#define PLAIT_OPTION_LIST_MAX 64

typedef struct plait_option_list {
    const char *items[PLAIT_OPTION_LIST_MAX];
    int32_t n;
} plait_option_list;

typedef struct plait_option {
    const char *name; /* with its dashes */
    plait_option_kind kind;
    void *to;
    const char *value; /* how --help calls the value; for CHOICE the words, "a|b|c" */
    const char *later; /* words of a CHOICE that are known but not built yet, "x|y"; or NULL */
    double least, most;
    const char *help;
    const char *word; /* that an INT takes too, or NULL, and its value */
    int32_t word_value;
    int given; /* set by plait_options_read */
} plait_option;

typedef enum plait_options_result {
    PLAIT_OPTIONS_GO,   /* all were read */
    PLAIT_OPTIONS_HELP, /* --help was printed; exit 0 */
    PLAIT_OPTIONS_BAD   /* the sentence was printed; exit 2 */
} plait_options_result;

/* argv[0] is the subcommand's name. */
plait_options_result plait_options_read(plait_option *options, size_t n, int argc, char **argv);

#endif
