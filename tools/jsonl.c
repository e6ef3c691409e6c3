/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of tools/jsonl.h. One pass over the text; nothing in it is trusted. */
#include "tools/jsonl.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/json.h"

enum { MOST_ERRORS = 10, WHY = 160, KEY = 32 };

/* A line in progress; why[0] is not 0 once it is refused. */
typedef struct reader {
    const char *at, *end;
    char why[WHY];
} reader;

static int refuse(reader *r, const char *why)
{
    if (!r->why[0])
        snprintf(r->why, sizeof r->why, "%s", why);
    return -1;
}

static void skip_blanks(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
}

/* Whether `c` comes next; it is taken. */
static int take(reader *r, char c)
{
    skip_blanks(r);
    if (r->at == r->end || *r->at != c)
        return 0;
    r->at++;
    return 1;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Four hexadecimal digits, or -1. */
static int32_t hex4(reader *r)
{
    static const char digits[] = "0123456789abcdef";
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digit =
            r->at < r->end && *r->at ? strchr(digits, *r->at | (*r->at >= 'A' ? 0x20 : 0)) : NULL;
        if (!digit)
            return -1;
        value = value * 16 + (int32_t)(digit - digits);
        r->at++;
    }
    return value;
}

static size_t put_utf8(char *to, int32_t c)
{
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const int lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; --i > 0; c >>= 6)
        to[i] = (char)(0x80 | (c & 0x3f));
    to[0] = (char)(lead[n] | c);
    return n;
}

/* What follows a backslash, at most 4 bytes; 0 when it is no escape. */
static size_t read_escape(reader *r, char *to)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char c = r->at < r->end ? *r->at++ : 0;
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        *to = values[letter - letters];
        return 1;
    }
    int32_t code = c == 'u' ? hex4(r) : -1;
    if (code >= 0xd800 && code < 0xdc00) {
        const int paired = r->end - r->at > 2 && r->at[0] == '\\' && r->at[1] == 'u';
        r->at += paired ? 2 : 0;
        const int32_t low = paired ? hex4(r) : -1;
        code =
            low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + low - 0xdc00 : -1;
    } else if (code >= 0xdc00 && code < 0xe000) {
        code = -1;
    }
    return code < 0 ? 0 : put_utf8(to, code);
}

/* A string, which the caller frees; NULL when the line is refused. */
static char *read_string(reader *r, size_t *bytes)
{
    if (!take(r, '"')) {
        refuse(r, "a text in quotes was wanted");
        return NULL;
    }
    /* No escape is shorter than what it stands for. */
    char *text = malloc((size_t)(r->end - r->at) + 1);
    size_t n = 0, more = 1;
    for (; more && text && r->at < r->end && *r->at != '"'; n += more) {
        if (*r->at == '\\') {
            r->at++;
            more = read_escape(r, text + n);
        } else {
            const int length = plait_json_character(r->at, (size_t)(r->end - r->at));
            more = length > 0 && (unsigned char)*r->at >= 0x20 ? (size_t)length : 0;
            memcpy(text + n, r->at, more);
            r->at += more;
        }
    }
    if (more && text && r->at < r->end && *r->at == '"') {
        char *fit = realloc(text, n + 1);
        r->at++;
        text = fit ? fit : text;
        text[n] = 0;
        *bytes = n;
        return text;
    }
    refuse(r, !text  ? "no memory for it"
              : more ? "a text has no end"
                     : "a text has a wrong escape, a control character or no UTF-8");
    free(text);
    return NULL;
}

/* A number as JSON writes it. */
static int read_number(reader *r, double *value)
{
    char digits[64];
    skip_blanks(r);
    size_t n = 0;
    while (r->at + n < r->end && r->at[n] && strchr("+-.0123456789eE", r->at[n]))
        n++;
    const char *d = r->at;
    const size_t sign = n && *d == '-';
    if (n <= sign || n >= sizeof digits || d[sign] < '0' || d[sign] > '9' ||
        (d[sign] == '0' && n > sign + 1 && d[sign + 1] >= '0' && d[sign + 1] <= '9'))
        return refuse(r, "a number was wanted");
    memcpy(digits, d, n);
    digits[n] = 0;
    char *stop;
    *value = strtod(digits, &stop);
    if (*stop || digits[n - 1] == '.' || strstr(digits, ".e") || strstr(digits, ".E"))
        return refuse(r, "a number was wanted");
    r->at += n;
    return 0;
}

static int read_whole(reader *r, double least, double most, double *value)
{
    if (read_number(r, value))
        return -1;
    if (*value >= least && *value <= most && floor(*value) == *value)
        return 0;
    char why[WHY];
    snprintf(why, sizeof why, "it is %.15g; a whole number from %.0f to %.0f was wanted", *value,
             least, most);
    return refuse(r, why);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int add_stop(reader *r, plait_line *l)
{
    size_t bytes;
    char *text = read_string(r, &bytes);
    if (!text)
        return -1;
    if (l->num_stops == PLAIT_LINE_STOPS || bytes == 0 || strlen(text) != bytes) {
        free(text);
        return refuse(r, bytes == 0                         ? "a stop text is empty"
                         : l->num_stops == PLAIT_LINE_STOPS ? "at most 64 stop texts are possible"
                                                            : "a stop text has a NUL character");
    }
    l->stops[l->num_stops++] = text;
    return 0;
}

static int read_stop(reader *r, plait_line *l)
{
    l->own_stops = 1;
    l->num_stops = 0;
    l->stops = calloc(PLAIT_LINE_STOPS, sizeof *l->stops);
    if (!l->stops)
        return refuse(r, "no memory for it");
    skip_blanks(r);
    if (r->at < r->end && *r->at == '"')
        return add_stop(r, l);
    if (!take(r, '['))
        return refuse(r, "a text or a list of texts was wanted");
    if (take(r, ']'))
        return 0;
    do {
        if (add_stop(r, l))
            return -1;
    } while (take(r, ','));
    return take(r, ']') ? 0 : refuse(r, "a list of texts has no end");
}

static int read_prompt(reader *r, plait_line *l)
{
    l->prompt = read_string(r, &l->prompt_bytes);
    if (!l->prompt)
        return -1;
    return l->prompt_bytes ? 0 : refuse(r, "it is empty");
}

static int read_max_new_tokens(reader *r, plait_line *l)
{
    double value;
    if (read_whole(r, 1, INT32_MAX, &value))
        return -1;
    l->max_new_tokens = (int32_t)value;
    return 0;
}

static int read_temperature(reader *r, plait_line *l)
{
    if (read_number(r, &l->temperature))
        return -1;
    return l->temperature >= 0 && l->temperature <= 1e6 ? 0 : refuse(r, "0 to 1e6 was wanted");
}

static int read_top_k(reader *r, plait_line *l)
{
    double value;
    if (read_whole(r, 0, INT32_MAX, &value))
        return -1;
    l->top_k = (int32_t)value;
    return 0;
}

static int read_top_p(reader *r, plait_line *l)
{
    if (read_number(r, &l->top_p))
        return -1;
    return l->top_p > 0 && l->top_p <= 1 ? 0 : refuse(r, "a number above 0, at most 1, was wanted");
}

static int read_seed(reader *r, plait_line *l)
{
    double value;
    if (read_whole(r, 0, 9007199254740992.0, &value))
        return -1;
    l->seed = (uint64_t)value;
    return 0;
}

typedef struct key {
    const char *name;
    int (*read)(reader *r, plait_line *l);
} key;

static const key keys[] = {
    {"prompt", read_prompt}, {"max_new_tokens", read_max_new_tokens},
    {"stop", read_stop},     {"temperature", read_temperature},
    {"top_k", read_top_k},   {"top_p", read_top_p},
    {"seed", read_seed},
};

enum { KEYS = sizeof keys / sizeof *keys };

/* ---- lines ----------------------------------------------------------------------------------- */

/* A key and its value. seen: bits of the keys that the line had. */
static int read_member(reader *r, plait_line *l, uint32_t *seen)
{
    char why[WHY], value_why[WHY];
    size_t bytes;
    char *name = read_string(r, &bytes);
    if (!name)
        return -1;
    int k = 0;
    while (k < KEYS && strcmp(keys[k].name, name))
        k++;
    const int known = k < KEYS && strlen(name) == bytes;
    if (!known)
        snprintf(why, sizeof why, "there is no key \"%.40s\"", name);
    else
        snprintf(why, sizeof why, "\"%s\" is given twice", name);
    free(name);
    if (!known || *seen >> k & 1)
        return refuse(r, why);
    *seen |= 1u << k;
    if (!take(r, ':'))
        return refuse(r, "a key is not followed by ':'");
    if (keys[k].read(r, l) == 0)
        return 0;
    memcpy(value_why, r->why, sizeof value_why);
    snprintf(r->why, sizeof r->why, "%s: %.*s", keys[k].name, WHY - KEY, value_why);
    return -1;
}

static int read_object(reader *r, plait_line *l)
{
    uint32_t seen = 0;
    if (!take(r, '{'))
        return refuse(r, "an object was wanted");
    if (!take(r, '}')) {
        do {
            if (read_member(r, l, &seen))
                return -1;
        } while (take(r, ','));
        if (!take(r, '}'))
            return refuse(r, "',' or '}' was wanted");
    }
    skip_blanks(r);
    if (r->at != r->end)
        return refuse(r, "there is more text after the object");
    return l->prompt ? 0 : refuse(r, "\"prompt\" is missing");
}

static void free_line(plait_line *l)
{
    free(l->prompt);
    for (int32_t i = 0; l->own_stops && i < l->num_stops; i++)
        free((void *)(uintptr_t)l->stops[i]);
    if (l->own_stops)
        free(l->stops);
}

static int is_blank(reader r)
{
    skip_blanks(&r);
    return r.at == r.end;
}

static plait_line *add_line(plait_lines *lines, const plait_line *defaults, int64_t number)
{
    /* Doubled at powers of two. */
    if ((lines->n & (lines->n - 1)) == 0) {
        plait_line *more = lines->n < INT32_MAX / 2
                               ? realloc(lines->lines, (2 * (size_t)lines->n + 1) * sizeof *more)
                               : NULL;
        if (!more)
            return NULL;
        lines->lines = more;
    }
    plait_line *l = &lines->lines[lines->n++];
    *l = *defaults;
    l->prompt = NULL;
    l->own_stops = 0;
    l->number = number;
    return l;
}

int plait_lines_read(const char *text, size_t bytes, const char *name, const plait_line *defaults,
                     FILE *errors, plait_lines *out)
{
    int bad = 0;
    int64_t number = 1;
    const char *end = text + bytes;
    memset(out, 0, sizeof *out);
    for (const char *at = text; at < end && bad < MOST_ERRORS; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        reader r = {at, newline ? newline : end, {0}};
        at = newline ? newline + 1 : end;
        if (is_blank(r))
            continue;
        plait_line *l = add_line(out, defaults, number);
        if (l ? read_object(&r, l) == 0 : refuse(&r, "no memory for it") == 0)
            continue;
        fprintf(errors, "plait generate: %s line %lld: %s\n", name, (long long)number, r.why);
        bad++;
    }
    if (!bad && out->n == 0) {
        fprintf(errors, "plait generate: %s has no line with a prompt\n", name);
        bad = 1;
    }
    if (bad)
        plait_lines_free(out);
    return bad ? -1 : 0;
}

void plait_lines_free(plait_lines *lines)
{
    for (int32_t i = 0; i < lines->n; i++)
        free_line(&lines->lines[i]);
    free(lines->lines);
    memset(lines, 0, sizeof *lines);
}
