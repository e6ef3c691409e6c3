/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run allocates nothing: the C library's allocator is replaced by one that counts, and the linker
 * puts this file between the engine and its session (where a run begins) and oneDNN. oneDNN makes a
 * list of arguments for each product and drops it again; that is counted apart.
 */
#include "unit.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <dnnl.h>
#include <plait/engine.h>

#include "engine/session.h"

enum { RANKS = 2, REQUESTS = PLAIT_SESSION_BATCH, PROMPT = 40, NEW = 14 };

static atomic_int counting;             /* a run is in progress on all ranks */
static atomic_long run_bytes, run_num;  /* allocated by it, oneDNN apart */
static atomic_long list_num, list_kept; /* by oneDNN, and not freed when it returned */
static _Thread_local int in_onednn;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS 0
#else
#define COUNTS 1
#define HOOK   __attribute__((visibility("default")))

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void count(size_t bytes)
{
    if (in_onednn) {
        atomic_fetch_add(&list_num, 1);
        atomic_fetch_add(&list_kept, 1);
    } else if (atomic_load(&counting)) {
        atomic_fetch_add(&run_num, 1);
        atomic_fetch_add(&run_bytes, (long)bytes);
    }
}

HOOK void *malloc(size_t bytes);
HOOK void *calloc(size_t n, size_t bytes);
HOOK void *realloc(void *ptr, size_t bytes);
HOOK void *aligned_alloc(size_t align, size_t bytes);
HOOK void *memalign(size_t align, size_t bytes);
HOOK int posix_memalign(void **out, size_t align, size_t bytes);
HOOK void free(void *ptr);

void *malloc(size_t bytes)
{
    count(bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    count(n * bytes);
    return __libc_calloc(n, bytes);
}

void *realloc(void *ptr, size_t bytes)
{
    count(bytes);
    return __libc_realloc(ptr, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    count(bytes);
    return __libc_memalign(align, bytes);
}

void *memalign(size_t align, size_t bytes)
{
    return aligned_alloc(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    *out = aligned_alloc(align, bytes);
    return *out ? 0 : ENOMEM;
}

void free(void *ptr)
{
    if (ptr && in_onednn)
        atomic_fetch_sub(&list_kept, 1);
    __libc_free(ptr);
}
#endif

dnnl_status_t __real_dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream,
                                            int n, const dnnl_exec_arg_t *args);
dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream,
                                            int n, const dnnl_exec_arg_t *args);

dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream,
                                            int n, const dnnl_exec_arg_t *args)
{
    in_onednn = atomic_load(&counting);
    const dnnl_status_t status = __real_dnnl_primitive_execute(primitive, stream, n, args);
    in_onednn = 0;
    return status;
}

static void meet(atomic_int *entered)
{
    atomic_fetch_add(entered, 1);
    while (atomic_load(entered) % RANKS)
        sched_yield();
}

plait_status __real_plait_session_run(plait_session *s, const plait_job *jobs, int32_t num);
plait_status __wrap_plait_session_run(plait_session *s, const plait_job *jobs, int32_t num);

/* All planning is done when the last rank is here, and all runs when the last one is back. */
plait_status __wrap_plait_session_run(plait_session *s, const plait_job *jobs, int32_t num)
{
    static atomic_int before, after;
    meet(&before);
    atomic_store(&counting, 1);
    const plait_status status = __real_plait_session_run(s, jobs, num);
    meet(&after);
    atomic_store(&counting, 0);
    return status;
}

/* The caller's allocator: what it gave, and how often. The call of number *refused fails. */
static atomic_long given_bytes, given_num;

static void *give(void *user, size_t bytes, size_t align)
{
    const long *refused = user;
    if (refused && atomic_load(&given_num) == *refused)
        return NULL;
    atomic_fetch_add(&given_bytes, (long)bytes);
    atomic_fetch_add(&given_num, 1);
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void take_back(void *user, void *ptr, size_t bytes)
{
    (void)user;
    atomic_fetch_sub(&given_bytes, (long)bytes);
    free(ptr);
}

static int32_t see(void *user, const plait_stream_event *event)
{
    *(int64_t *)user += event->num_ids;
    return 0;
}

struct setting {
    plait_draft_kind draft;
    int32_t spec_tokens, exchange;
    double temperature;
};

static plait_engine_options options_of(const struct setting *setting,
                                       const plait_allocator *allocator)
{
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    o.model_dir = PLAIT_SOURCE_DIR "/models/tiny";
    o.draft_dir =
        setting->draft == PLAIT_DRAFT_EAGLE3 ? PLAIT_SOURCE_DIR "/models/tiny/eagle3" : NULL;
    o.page_size = 8;
    o.draft = setting->draft;
    o.spec_tokens = setting->spec_tokens;
    o.exchange = setting->exchange;
    o.allocator = allocator;
    return o;
}

/* All places of the batch and some that wait, each request up to its limit; chunks of prompts
   between steps, prefixes to share, stop texts to hold, log-probabilities to keep. */
static const plait_request *requests_of(const struct setting *setting)
{
    static const char *const stops[] = {"a stop text that never comes"};
    static int32_t ids[REQUESTS + 4][PROMPT];
    static plait_request q[REQUESTS + 4];
    for (int32_t r = 0; r < REQUESTS + 4; r++) {
        for (int32_t i = 0; i < PROMPT; i++)
            ids[r][i] = i < 16 ? 5 + i : 3 + (i * 37 + r * 101) % 1900;
        q[r] = (plait_request)PLAIT_REQUEST_INIT;
        q[r].ids = ids[r];
        q[r].num_ids = PROMPT;
        q[r].max_new_tokens = NEW;
        q[r].ignore_eos = 1;
        q[r].stop_texts = stops;
        q[r].num_stop_texts = 1;
        q[r].temperature = setting->temperature;
        q[r].top_k = r % 2 ? 50 : 0;
        q[r].seed = (uint64_t)r;
        q[r].num_logprobs = setting->temperature > 0 ? 5 : 0;
    }
    return q;
}

static void generate_twice(plait_engine *e, const struct setting *setting)
{
    for (int32_t call = 0; call < 2; call++) {
        plait_generation *g;
        int64_t seen = 0;
        const long given = atomic_load(&given_num);
        const long caches = (setting->draft == PLAIT_DRAFT_NGRAM ? 2 : 4) * RANKS;
        atomic_store(&run_num, 0);
        atomic_store(&run_bytes, 0);
        atomic_store(&list_num, 0);
        if (plait_engine_generate(e, requests_of(setting), REQUESTS + 4, see, &seen, &g) !=
            PLAIT_OK)
            fail_msg("%s", plait_last_error());
        assert_int_equal(seen, (REQUESTS + 4) * NEW);
        if (setting->draft == PLAIT_DRAFT_MTP && setting->spec_tokens != PLAIT_SPEC_AUTO)
            assert_true(g->results[0].num_drafted > 0);
        /* The caches of the first call serve the second. */
        assert_int_equal(atomic_load(&given_num) - given, call ? 0 : caches);
        assert_int_equal(atomic_load(&run_num), 0);
        assert_int_equal(atomic_load(&run_bytes), 0);
        assert_int_equal(atomic_load(&list_kept), 0);
#if COUNTS
        assert_true(atomic_load(&list_num) > 0);
#endif
        plait_generation_close(&g);
    }
}

/* With 16 drafts each, steps have all the rows that there are. */
static void a_full_run_allocates_nothing(void **state)
{
    (void)state;
    const plait_allocator allocator = {sizeof allocator, NULL, give, take_back};
    const struct setting settings[] = {
        {PLAIT_DRAFT_MTP, PLAIT_MAX_SPEC_TOKENS, PLAIT_EXCHANGE_A2A, 0},
        {PLAIT_DRAFT_MTP, PLAIT_MAX_SPEC_TOKENS, PLAIT_EXCHANGE_AG_RS, 1},
        {PLAIT_DRAFT_MTP, PLAIT_SPEC_AUTO, PLAIT_EXCHANGE_A2A, 0},
        {PLAIT_DRAFT_EAGLE3, PLAIT_MAX_SPEC_TOKENS, PLAIT_EXCHANGE_A2A, 1},
        {PLAIT_DRAFT_NGRAM, PLAIT_MAX_SPEC_TOKENS, PLAIT_EXCHANGE_A2A, 1},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        plait_engine_options o = options_of(&settings[i], &allocator);
        plait_engine *e;
        o.dcp = RANKS;
        o.threads = 2 * RANKS;
        if (plait_engine_open(&o, &e) != PLAIT_OK)
            fail_msg("setting %zu: %s", i, plait_last_error());
        generate_twice(e, &settings[i]);
        plait_engine_close(&e);
        assert_int_equal(atomic_load(&given_bytes), 0);
    }
}

/* What a step needs comes from the caller: each of its refusals is told, and all goes back. */
static void each_refusal_of_the_allocator_is_told(void **state)
{
    (void)state;
    const struct setting settings[] = {{PLAIT_DRAFT_EAGLE3, 3, PLAIT_EXCHANGE_AUTO, 0},
                                       {PLAIT_DRAFT_NGRAM, 3, PLAIT_EXCHANGE_AUTO, 0}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        long refused = 0;
        const plait_allocator allocator = {sizeof allocator, &refused, give, take_back};
        plait_engine_options o = options_of(&settings[i], &allocator);
        plait_engine *e;
        plait_status status = PLAIT_E_NOMEM;
        o.threads = 1;
        for (; status == PLAIT_E_NOMEM; refused++) {
            atomic_store(&given_num, 0);
            status = plait_engine_open(&o, &e);
            if (status == PLAIT_E_NOMEM)
                assert_int_equal(atomic_load(&given_bytes), 0);
        }
        assert_int_equal(status, PLAIT_OK);
        /* Logits and the distributions of drafts alone. */
        assert_true(atomic_load(&given_bytes) > (64 + 256) * 2048 * 4);
        plait_engine_close(&e);
        assert_int_equal(atomic_load(&given_bytes), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_run_allocates_nothing),
        cmocka_unit_test(each_refusal_of_the_allocator_is_told),
    };
    return cmocka_run_group_tests_name("engine_memory", tests, NULL, NULL);
}
