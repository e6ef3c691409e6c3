/* SPDX-License-Identifier: Apache-2.0 */
/* generate_trace.c: the engine's spans in the Trace Event Format that chrome://tracing and Perfetto
   read: complete events ("X") in microseconds, one thread for each rank. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tools/generate.h"

#if PLAIT_HAVE_ENGINE

/* begin: of the first span of all ranks. */
static void emit_span(FILE *file, int32_t rank, const plait_trace_span *s, int64_t begin)
{
    fprintf(file,
            ",\n{\"name\": \"%s\", \"ph\": \"X\", \"pid\": 0, \"tid\": %d, \"ts\": %.3f, "
            "\"dur\": %.3f, \"args\": {\"rows\": %d}}",
            s->name, (int)rank, 1e-3 * (double)(s->begin_ns - begin), 1e-3 * (double)s->ns,
            (int)s->rows);
}

static void emit_rank(FILE *file, const plait_engine *engine, int32_t rank, int64_t begin)
{
    int64_t num, dropped;
    const plait_trace_span *spans = plait_engine_trace(engine, rank, &num, &dropped);
    if (!spans)
        return;
    fprintf(file,
            ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 0, \"tid\": %d, \"args\": "
            "{\"name\": \"rank %d\", \"dropped\": %" PRId64 "}}",
            (int)rank, (int)rank, dropped);
    for (int64_t i = 0; i < num; i++)
        emit_span(file, rank, &spans[i], begin);
}

static int64_t first_begin(const plait_engine *engine, int32_t ranks)
{
    int64_t first = INT64_MAX, num, dropped;
    for (int32_t r = 0; r < ranks; r++) {
        const plait_trace_span *spans = plait_engine_trace(engine, r, &num, &dropped);
        for (int64_t i = 0; spans && i < num; i++)
            first = spans[i].begin_ns < first ? spans[i].begin_ns : first;
    }
    return first;
}

int plait_generate_trace(const plait_generate *g, const plait_engine *engine, FILE *file)
{
    plait_engine_info info = {.tp = 0};
    if (engine && plait_engine_get_info(engine, &info) != PLAIT_OK)
        info.tp = 0;
    const int64_t begin = engine ? first_begin(engine, info.tp) : 0;
    fprintf(file, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{\"name\": \"process_name\", "
                  "\"ph\": \"M\", \"pid\": 0, \"args\": {\"name\": \"plait generate\"}}");
    for (int32_t r = 0; r < info.tp; r++)
        emit_rank(file, engine, r, begin);
    fprintf(file, "\n]}\n");
    const int bad = ferror(file);
    if (fclose(file) == 0 && !bad)
        return 0;
    fprintf(stderr, "plait generate: --trace %s could not be written: %s\n", g->trace,
            strerror(errno));
    return -1;
}

#endif
