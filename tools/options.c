/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of tools/options.h. */
#include "tools/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void help(const char *command, const plait_option *options, size_t n)
{
    printf("usage: plait %s [options]\n\n", command);
    for (size_t i = 0; i < n; i++) {
        const plait_option *o = &options[i];
        if (o->kind == PLAIT_OPTION_LATER)
            continue;
        char left[128];
        snprintf(left, sizeof left, "%s %s", o->name, o->kind == PLAIT_OPTION_FLAG ? "" : o->value);
        printf("  %-38s %s\n", left, o->help);
    }
}

/* Whether `word` is one of the words in `words`, "a|b|c". */
static int is_word(const char *words, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = words; len && at && *at;) {
        size_t n = strcspn(at, "|");
        if (n == len && !memcmp(at, word, n))
            return 1;
        at += n + (at[n] == '|');
    }
    return 0;
}

static int bad_range(const char *command, const plait_option *o, const char *value)
{
    fprintf(stderr, "plait %s: %s %s is out of range; it takes %.15g to %.15g\n", command, o->name,
            value, o->least, o->most);
    return -1;
}

/* A whole number or a decimal one, with a unit where the kind has one. 0, or -1 when told. */
static int read_number(const char *command, const plait_option *o, const char *text, double *out)
{
    const char *want = o->kind == PLAIT_OPTION_NUMBER  ? "a number"
                       : o->kind == PLAIT_OPTION_BYTES ? "bytes, as 64M or 2G"
                                                       : "a whole number";
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    int good = end != text && !strpbrk(text, " xXnN"); /* no blanks, hexadecimal, inf, nan */
    if (o->kind == PLAIT_OPTION_BYTES && good && *end) {
        static const char units[] = "KMG";
        const char *unit = strchr(units, *end);
        good = unit != NULL;
        if (good) {
            value = ldexp(value, 10 * (int)(unit - units + 1));
            end++;
        }
    }
    good = good && !*end && (o->kind != PLAIT_OPTION_INT || !strpbrk(text, ".eE"));
    if (!good) {
        fprintf(stderr, "plait %s: %s takes %s, not '%s'\n", command, o->name, want, text);
        return -1;
    }
    if (!(value >= o->least && value <= o->most))
        return bad_range(command, o, text);
    *out = value;
    return 0;
}

static int read_choice(const char *command, plait_option *o, const char *value)
{
    if (is_word(o->value, value)) {
        *(const char **)o->to = value;
        return 0;
    }
    if (is_word(o->later, value))
        fprintf(stderr, "plait %s: %s %s is not in this release step; it takes %s\n", command,
                o->name, value, o->value);
    else
        fprintf(stderr, "plait %s: %s takes %s, not '%s'\n", command, o->name, o->value, value);
    return -1;
}

static int store(const char *command, plait_option *o, const char *value)
{
    double number = 0;
    plait_option_list *list = o->to;
    switch (o->kind) {
    case PLAIT_OPTION_TEXT:
        *(const char **)o->to = value;
        return 0;
    case PLAIT_OPTION_CHOICE:
        return read_choice(command, o, value);
    case PLAIT_OPTION_LIST:
        if (list->n == PLAIT_OPTION_LIST_MAX) {
            fprintf(stderr, "plait %s: %s can be given %d times at most\n", command, o->name,
                    PLAIT_OPTION_LIST_MAX);
            return -1;
        }
        list->items[list->n++] = value;
        return 0;
    case PLAIT_OPTION_INT:
        if (o->word && !strcmp(value, o->word)) {
            *(int32_t *)o->to = o->word_value;
            return 0;
        }
        if (read_number(command, o, value, &number))
            return -1;
        *(int32_t *)o->to = (int32_t)number;
        return 0;
    case PLAIT_OPTION_NUMBER:
        return read_number(command, o, value, o->to);
    case PLAIT_OPTION_BYTES:
        if (read_number(command, o, value, &number))
            return -1;
        *(int64_t *)o->to = (int64_t)number;
        return 0;
    default:
        return -1;
    }
}

/* The option that argument names; *value is set to what follows its '=', or NULL. */
static plait_option *find(plait_option *options, size_t n, char *argument, const char **value)
{
    size_t len = strcspn(argument, "=");
    *value = argument[len] ? argument + len + 1 : NULL;
    for (size_t i = 0; i < n; i++)
        if (strlen(options[i].name) == len && !memcmp(options[i].name, argument, len))
            return &options[i];
    return NULL;
}

/* Reads the option at argv[*i] and moves *i past its value. */
static int read_one(plait_option *options, size_t n, int argc, char **argv, int *i)
{
    const char *command = argv[0], *value;
    plait_option *o = find(options, n, argv[*i], &value);
    if (!o) {
        fprintf(stderr,
                "plait %s: there is no option '%s'; `plait %s --help` lists those that are\n",
                command, argv[*i], command);
        return -1;
    }
    if (o->kind == PLAIT_OPTION_LATER) {
        fprintf(stderr, "plait %s: %s is not in this release step: %s\n", command, o->name,
                o->help);
        return -1;
    }
    if (o->given && o->kind != PLAIT_OPTION_LIST) {
        fprintf(stderr, "plait %s: %s is given twice\n", command, o->name);
        return -1;
    }
    o->given = 1;
    if (o->kind == PLAIT_OPTION_FLAG) {
        if (value) {
            fprintf(stderr, "plait %s: %s takes no value\n", command, o->name);
            return -1;
        }
        *(int *)o->to = 1;
        return 0;
    }
    if (!value && *i + 1 >= argc) {
        fprintf(stderr, "plait %s: %s needs a value: %s\n", command, o->name, o->value);
        return -1;
    }
    return store(command, o, value ? value : argv[++*i]);
}

plait_options_result plait_options_read(plait_option *options, size_t n, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) {
            help(argv[0], options, n);
            return PLAIT_OPTIONS_HELP;
        }
        if (read_one(options, n, argc, argv, &i))
            return PLAIT_OPTIONS_BAD;
    }
    return PLAIT_OPTIONS_GO;
}
