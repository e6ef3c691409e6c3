/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutation of JSON text that mostly stays JSON, so that inputs get past the parser: a value or a
 * key is replaced, removed, doubled or changed inside.
 */
#include "fuzz.h"

typedef struct span {
    size_t begin, end;
} span;

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static size_t string_end(const uint8_t *s, size_t n, size_t at)
{
    for (at++; at < n && s[at] != '"'; at++)
        at += s[at] == '\\';
    return at < n ? at + 1 : n;
}

/* The end of what begins at `at`: a string, a bracket with its partner, or a word. */
static size_t value_end(const uint8_t *s, size_t n, size_t at)
{
    int depth = 0;
    if (s[at] == '"')
        return string_end(s, n, at);
    if (s[at] != '{' && s[at] != '[') {
        while (at < n && !strchr(",:]} \t\r\n", s[at]))
            at++;
        return at;
    }
    while (at < n) {
        if (s[at] == '"') {
            at = string_end(s, n, at);
            continue;
        }
        depth += s[at] == '{' || s[at] == '[';
        depth -= s[at] == '}' || s[at] == ']';
        at++;
        if (depth == 0)
            break;
    }
    return at;
}

/* A value or key somewhere in the text, chosen by counting the places where one begins. */
static span any_span(const uint8_t *s, size_t n, uint32_t *seed)
{
    span found = {0, n};
    size_t count = 0;
    for (size_t at = 0; at < n;) {
        if (strchr(",:]} \t\r\n", s[at])) {
            at++;
            continue;
        }
        if (next(seed) % ++count == 0)
            found = (span){at, value_end(s, n, at)};
        at = s[at] == '{' || s[at] == '[' ? at + 1 : value_end(s, n, at);
    }
    return found;
}

/* Replaces [at.begin, at.end) by `text`; the size stays where there is no room. */
static size_t replace(uint8_t *s, size_t n, size_t most, span at, const void *text, size_t length)
{
    if (n - (at.end - at.begin) + length > most)
        return n;
    memmove(s + at.begin + length, s + at.end, n - at.end);
    memcpy(s + at.begin, text, length);
    return n - (at.end - at.begin) + length;
}

/* Changes the inside of a string; what would end it becomes a letter. */
static size_t mutate_inside(uint8_t *s, size_t n, size_t most, span at)
{
    uint8_t inside[256];
    if (at.end - at.begin < 2 || s[at.begin] != '"')
        return n;
    size_t length = at.end - at.begin - 2;
    length = length < sizeof inside / 2 ? length : sizeof inside / 2;
    memcpy(inside, s + at.begin + 1, length);
    length = LLVMFuzzerMutate(inside, length, sizeof inside);
    for (size_t i = 0; i < length; i++)
        if (inside[i] < ' ' || inside[i] == '"' || inside[i] == '\\')
            inside[i] = 'a' + inside[i] % 26;
    return replace(s, n, most, (span){at.begin + 1, at.end - 1}, inside, length);
}

static size_t mutate_value(uint8_t *s, size_t n, size_t most, uint32_t *seed)
{
    static const char *const values[] = {"0",
                                         "1",
                                         "2",
                                         "3",
                                         "7",
                                         "64",
                                         "-1",
                                         "1.5",
                                         "1e308",
                                         "1e-308",
                                         "4096",
                                         "2147483647",
                                         "2147483648",
                                         "9007199254740993",
                                         "-9223372036854775808",
                                         "null",
                                         "true",
                                         "false",
                                         "\"\"",
                                         "[]",
                                         "{}",
                                         "[0,16]",
                                         "[[]]",
                                         "\"\\u0000\"",
                                         "\"\\ud800\"",
                                         "[1,2,3,4,5,6,7,8,9]",
                                         "{\"a\":1}"};
    const span at = any_span(s, n, seed), other = any_span(s, n, seed);
    uint8_t text[2048];
    size_t length = other.end - other.begin;
    switch (next(seed) % 6) {
    case 0:
    case 1: {
        const char *value = values[next(seed) % (sizeof values / sizeof *values)];
        return replace(s, n, most, at, value, strlen(value));
    }
    case 2: /* another value of the text */
        length = length < sizeof text ? length : sizeof text;
        memcpy(text, s + other.begin, length);
        return replace(s, n, most, at, text, length);
    case 3: { /* out, with a colon and its value, and the comma after it */
        size_t end = at.end;
        if (end < n && s[end] == ':')
            end = end + 1 < n ? value_end(s, n, end + 1) : n;
        end += end < n && s[end] == ',';
        return replace(s, n, most, (span){at.begin, end}, "", 0);
    }
    case 4: /* once more, after itself */
        length = at.end - at.begin;
        if (length + 1 > sizeof text)
            return n;
        memcpy(text, s + at.begin, length);
        text[length] = ',';
        return replace(s, n, most, (span){at.begin, at.begin}, text, length + 1);
    default:
        return mutate_inside(s, n, most, at);
    }
}

size_t fuzz_mutate_json(uint8_t *data, size_t size, size_t max_size, uint32_t seed)
{
    if (next(&seed) % 8 == 0 || size == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    for (uint32_t times = 1 + next(&seed) % 4; times > 0 && size > 0; times--)
        size = mutate_value(data, size, max_size, &seed);
    return size;
}
