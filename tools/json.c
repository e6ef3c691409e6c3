/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON writer of tools/json.h. */
#include "tools/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void separate(plait_emit *j)
{
    if (j->need_comma)
        fputs(", ", j->to);
    j->need_comma = 1;
}

void plait_emit_open(plait_emit *j, char bracket)
{
    separate(j);
    fputc(bracket, j->to);
    j->need_comma = 0;
}

void plait_emit_close(plait_emit *j, char bracket)
{
    fputc(bracket, j->to);
    j->need_comma = 1;
}

int plait_json_character(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned char least = 0x80, most = 0xbf; /* bounds of the second byte */
    int len;
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf) {
        len = 2;
    } else if (s[0] >= 0xe0 && s[0] <= 0xef) {
        len = 3;
        least = s[0] == 0xe0 ? 0xa0 : 0x80;
        most = s[0] == 0xed ? 0x9f : 0xbf;
    } else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        len = 4;
        least = s[0] == 0xf0 ? 0x90 : 0x80;
        most = s[0] == 0xf4 ? 0x8f : 0xbf;
    } else {
        return -1;
    }
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n || s[i] < least || s[i] > most)
            return -i;
        least = 0x80;
        most = 0xbf;
    }
    return len;
}

static void escape(FILE *to, unsigned char c)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *at = c ? strchr(plain, c) : NULL;
    if (at)
        fprintf(to, "\\%c", letter[at - plain]);
    else if (c < 0x20 || c == 0x7f)
        fprintf(to, "\\u%04x", c);
    else
        fputc(c, to);
}

void plait_emit_text_n(plait_emit *j, const char *text, size_t n)
{
    separate(j);
    fputc('"', j->to);
    for (size_t i = 0; i < n;) {
        int len = plait_json_character(text + i, n - i);
        if (len == 1)
            escape(j->to, (unsigned char)text[i]);
        else if (len > 1)
            fwrite(text + i, 1, (size_t)len, j->to);
        else
            fputs("\\ufffd", j->to);
        i += (size_t)(len > 0 ? len : -len);
    }
    fputc('"', j->to);
}

void plait_emit_text(plait_emit *j, const char *text)
{
    plait_emit_text_n(j, text, strlen(text));
}

void plait_emit_key(plait_emit *j, const char *key)
{
    plait_emit_text(j, key);
    fputs(": ", j->to);
    j->need_comma = 0;
}

void plait_emit_int(plait_emit *j, int64_t value)
{
    separate(j);
    fprintf(j->to, "%" PRId64, value);
}

void plait_emit_number(plait_emit *j, double value)
{
    separate(j);
    if (isfinite(value))
        fprintf(j->to, "%.6g", value);
    else
        fputs("null", j->to);
}

void plait_emit_bool(plait_emit *j, int value)
{
    separate(j);
    fputs(value ? "true" : "false", j->to);
}
