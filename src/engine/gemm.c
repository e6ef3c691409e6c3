/* SPDX-License-Identifier: Apache-2.0 */
/* src/engine - checkpoints, model, cache, generation. gemm.c: matrix products by oneDNN. */
#include "engine/gemm.h"

#include <dnnl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/convert.h"
#include "core/memory.h"
#include "core/status.h"
#include "kernel/routine.h"

/* oneDNN's CPU runtime is OpenMP. Only this setting is used: one thread for each caller. */
extern void omp_set_num_threads(int n);

enum {
    MAX_BUCKETS = 32,
    LAYOUT_BUCKET = 16,
    OPEN_BYTES = 16 << 20, /* more than any one primitive needs, for several ranks */
    RUN_BYTES = 4 << 20
};

/* What one worker passes to one primitive. */
struct binding {
    dnnl_memory_t a, c, scratch;
};

/* The primitives of one weight shape, one for each bucket of m, and the layout of its weights. */
struct shape {
    plait_dtype dtype, held; /* of the values, and of the memory that holds them */
    int64_t k, n;
    dnnl_memory_desc_t layout;
    dnnl_primitive_t primitives[MAX_BUCKETS];
    struct binding *bindings; /* [buckets][workers] */
    int32_t warm;             /* each primitive ran once */
    struct shape *next;
};

struct plait_gemm {
    plait_gemm_set *set;
    struct shape *shape;
    dnnl_memory_t weights;
    void *data;
    plait_gemm *next;
};

struct worker_memory {
    dnnl_stream_t stream;
    void *a, *c, *scratch;
};

struct plait_gemm_set {
    dnnl_engine_t engine;
    plait_dtype bf16_held; /* what holds bf16: float32 where oneDNN has no products of bf16 */
    int32_t n_workers, max_m, n_buckets;
    int32_t buckets[MAX_BUCKETS];
    const plait_allocator *allocator;       /* of the workers' memory */
    size_t a_bytes, c_bytes, scratch_bytes; /* of each worker */
    struct worker_memory *workers;
    struct shape *shapes;
    plait_gemm *gemms;
};

static plait_status check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return PLAIT_OK;
    return plait_fail(status == dnnl_out_of_memory ? PLAIT_E_NOMEM : PLAIT_E_UNSUPPORTED,
                      "oneDNN: %s failed with status %d", what, (int)status);
}

/* oneDNN crashes where memory for its objects or code is refused. So that it is not, its calls that
   need some are made only while this much more can be had. */
static plait_status check_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return plait_fail(PLAIT_E_NOMEM,
                          "no memory for matrix products: oneDNN is to have %zu more bytes of "
                          "address space, which the system refuses (ulimit -v)",
                          bytes);
    munmap(p, bytes);
    return PLAIT_OK;
}

static dnnl_data_type_t type_of(plait_dtype dtype)
{
    return dtype == PLAIT_BF16 ? dnnl_bf16 : dnnl_f32;
}

static void *new_bytes(size_t bytes)
{
    return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
}

/* The primitive for `rows` rows. layout NULL: the library chooses that of the weights. */
static plait_status describe(const plait_gemm_set *set, const struct shape *s, int64_t rows,
                             const dnnl_memory_desc_t *layout, dnnl_primitive_desc_t *out)
{
    dnnl_memory_desc_t a, w, c;
    dnnl_matmul_desc_t op;
    dnnl_dims_t a_dims = {rows, s->k}, w_dims = {s->k, s->n}, c_dims = {rows, s->n};
    PLAIT_TRY(check(dnnl_memory_desc_init_by_tag(&a, 2, a_dims, type_of(s->held), dnnl_ab),
                    "describing rows"));
    PLAIT_TRY(
        check(dnnl_memory_desc_init_by_tag(&w, 2, w_dims, type_of(s->held), dnnl_format_tag_any),
              "describing weights"));
    PLAIT_TRY(check(dnnl_memory_desc_init_by_tag(&c, 2, c_dims, dnnl_f32, dnnl_ab),
                    "describing a result"));
    PLAIT_TRY(check(dnnl_matmul_desc_init(&op, &a, layout ? layout : &w, NULL, &c),
                    "describing a product"));
    dnnl_primitive_attr_t attr;
    PLAIT_TRY(check(dnnl_primitive_attr_create(&attr), "making attributes"));
    dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    dnnl_status_t status = dnnl_primitive_desc_create(out, &op, attr, set->engine, NULL);
    dnnl_primitive_attr_destroy(attr);
    return check(status, "choosing a product");
}

/* oneDNN has products of bf16 from AVX-512 on. Elsewhere float32 holds the same rounded values:
   their products are exact in it, so that results differ by the order of sums alone. */
static plait_status choose_bf16(plait_gemm_set *set)
{
    const struct shape some = {.held = PLAIT_BF16, .k = 64, .n = 64};
    dnnl_primitive_desc_t pd = NULL;
    plait_status status = describe(set, &some, LAYOUT_BUCKET, NULL, &pd);
    set->bf16_held = status == PLAIT_OK ? PLAIT_BF16 : PLAIT_F32;
    if (status == PLAIT_OK)
        dnnl_primitive_desc_destroy(pd);
    return status == PLAIT_E_UNSUPPORTED ? PLAIT_OK : status;
}

/* 1, 2, 3, 4, 6, 8, 12, 16, ...: at most a third of what is computed is dropped. */
static void list_buckets(plait_gemm_set *set)
{
    int32_t last = 0;
    for (int32_t m = 1; last < set->max_m && set->n_buckets < MAX_BUCKETS; m *= 2) {
        set->buckets[set->n_buckets++] = last = m;
        if (m > 1 && last < set->max_m && set->n_buckets < MAX_BUCKETS)
            set->buckets[set->n_buckets++] = last = m / 2 * 3;
    }
}

plait_status plait_gemm_set_open(int32_t n_workers, int32_t max_m, const plait_allocator *allocator,
                                 plait_gemm_set **out)
{
    *out = NULL;
    omp_set_num_threads(1);
    plait_gemm_set *set = calloc(1, sizeof *set);
    if (!set)
        return plait_fail(PLAIT_E_NOMEM, "no memory for matrix products");
    set->workers = calloc((size_t)n_workers, sizeof *set->workers);
    set->n_workers = n_workers;
    set->max_m = max_m;
    set->allocator = allocator;
    list_buckets(set);
    plait_status status = set->workers ? PLAIT_OK : plait_fail(PLAIT_E_NOMEM, "no memory");
    if (status == PLAIT_OK)
        status = check_memory(OPEN_BYTES);
    if (status == PLAIT_OK)
        status = check(dnnl_engine_create(&set->engine, dnnl_cpu, 0), "making an engine");
    if (status == PLAIT_OK)
        status = choose_bf16(set);
    for (int32_t w = 0; w < n_workers && status == PLAIT_OK; w++)
        status = check(
            dnnl_stream_create(&set->workers[w].stream, set->engine, dnnl_stream_default_flags),
            "making a stream");
    if (status != PLAIT_OK)
        plait_gemm_set_close(&set);
    *out = set;
    return status;
}

static void close_shape(plait_gemm_set *set, struct shape *shape)
{
    for (int32_t i = 0; shape->bindings && i < set->n_buckets * set->n_workers; i++) {
        dnnl_memory_destroy(shape->bindings[i].a);
        dnnl_memory_destroy(shape->bindings[i].c);
        dnnl_memory_destroy(shape->bindings[i].scratch);
    }
    for (int32_t b = 0; b < set->n_buckets; b++)
        dnnl_primitive_destroy(shape->primitives[b]);
    free(shape->bindings);
    free(shape);
}

static void free_worker(const plait_gemm_set *set, struct worker_memory *m)
{
    plait_mem_free(set->allocator, m->a, set->a_bytes);
    plait_mem_free(set->allocator, m->c, set->c_bytes);
    plait_mem_free(set->allocator, m->scratch, set->scratch_bytes);
    m->a = m->c = m->scratch = NULL;
}

void plait_gemm_set_close(plait_gemm_set **set_ptr)
{
    plait_gemm_set *set = *set_ptr;
    if (!set)
        return;
    while (set->gemms) {
        plait_gemm *gemm = set->gemms;
        set->gemms = gemm->next;
        dnnl_memory_destroy(gemm->weights);
        free(gemm->data);
        free(gemm);
    }
    while (set->shapes) {
        struct shape *shape = set->shapes;
        set->shapes = shape->next;
        close_shape(set, shape);
    }
    for (int32_t w = 0; set->workers && w < set->n_workers; w++) {
        dnnl_stream_destroy(set->workers[w].stream);
        free_worker(set, &set->workers[w]);
    }
    dnnl_engine_destroy(set->engine);
    free(set->workers);
    free(set);
    *set_ptr = NULL;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Enlarges each worker's memory. Its content does not outlive a run, so nothing is copied. */
static plait_status grow(plait_gemm_set *set, size_t a, size_t c, size_t scratch)
{
    static const char *const what = "rows of matrix products";
    if (a <= set->a_bytes && c <= set->c_bytes && scratch <= set->scratch_bytes)
        return PLAIT_OK;
    for (int32_t w = 0; w < set->n_workers; w++)
        free_worker(set, &set->workers[w]);
    set->a_bytes = larger(a, set->a_bytes);
    set->c_bytes = larger(c, set->c_bytes);
    /* Some primitives need none. */
    set->scratch_bytes = larger(larger(scratch, set->scratch_bytes), PLAIT_ALIGN);
    for (int32_t w = 0; w < set->n_workers; w++) {
        struct worker_memory *m = &set->workers[w];
        PLAIT_TRY(plait_mem_alloc(set->allocator, set->a_bytes, what, &m->a));
        PLAIT_TRY(plait_mem_alloc(set->allocator, set->c_bytes, what, &m->c));
        PLAIT_TRY(plait_mem_alloc(set->allocator, set->scratch_bytes, what, &m->scratch));
        /* Rows beyond m in a bucket are computed and dropped; they need only be numbers. */
        memset(m->a, 0, set->a_bytes);
    }
    return PLAIT_OK;
}

static plait_status bind(plait_gemm_set *set, struct shape *s, int32_t bucket,
                         const_dnnl_primitive_desc_t pd)
{
    const dnnl_memory_desc_t *a = dnnl_primitive_desc_query_md(pd, dnnl_query_src_md, 0);
    const dnnl_memory_desc_t *c = dnnl_primitive_desc_query_md(pd, dnnl_query_dst_md, 0);
    const dnnl_memory_desc_t *t = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    PLAIT_TRY(grow(set, dnnl_memory_desc_get_size(a), dnnl_memory_desc_get_size(c),
                   dnnl_memory_desc_get_size(t)));
    for (int32_t w = 0; w < set->n_workers; w++) {
        struct binding *b = &s->bindings[bucket * set->n_workers + w];
        PLAIT_TRY(check(dnnl_memory_create(&b->a, a, set->engine, DNNL_MEMORY_NONE), "memory"));
        PLAIT_TRY(check(dnnl_memory_create(&b->c, c, set->engine, DNNL_MEMORY_NONE), "memory"));
        PLAIT_TRY(
            check(dnnl_memory_create(&b->scratch, t, set->engine, DNNL_MEMORY_NONE), "memory"));
    }
    return check(dnnl_primitive_create(&s->primitives[bucket], pd), "compiling a product");
}

static plait_status find_shape(plait_gemm_set *set, plait_dtype dtype, int64_t k, int64_t n,
                               struct shape **out)
{
    for (struct shape *s = set->shapes; s; s = s->next) {
        if (s->dtype == dtype && s->k == k && s->n == n) {
            *out = s;
            return PLAIT_OK;
        }
    }
    struct shape *s = calloc(1, sizeof *s);
    if (!s)
        return plait_fail(PLAIT_E_NOMEM, "no memory for matrix products");
    s->dtype = dtype;
    s->held = dtype == PLAIT_BF16 ? set->bf16_held : dtype;
    s->k = k;
    s->n = n;
    s->next = set->shapes;
    set->shapes = s;
    s->bindings = calloc((size_t)set->n_buckets * (size_t)set->n_workers, sizeof *s->bindings);
    if (!s->bindings)
        return plait_fail(PLAIT_E_NOMEM, "no memory for matrix products");
    dnnl_primitive_desc_t pd;
    PLAIT_TRY(check_memory(OPEN_BYTES));
    PLAIT_TRY(describe(set, s, LAYOUT_BUCKET, NULL, &pd));
    s->layout = *dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_primitive_desc_destroy(pd);
    for (int32_t b = 0; b < set->n_buckets; b++) {
        PLAIT_TRY(check_memory(OPEN_BYTES));
        PLAIT_TRY(describe(set, s, set->buckets[b], &s->layout, &pd));
        plait_status status = bind(set, s, b, pd);
        dnnl_primitive_desc_destroy(pd);
        PLAIT_TRY(status);
    }
    *out = s;
    return PLAIT_OK;
}

static float round_to_bf16(float x)
{
    return plait_bf16_to_f32(plait_bf16_from_f32(x));
}

/* Rounds weights that float32 holds to the values that they have in bf16. */
static void round_weights(const plait_gemm *gemm)
{
    float *w = gemm->data;
    const size_t n = dnnl_memory_desc_get_size(&gemm->shape->layout) / sizeof *w;
    for (size_t i = 0; i < n; i++)
        w[i] = round_to_bf16(w[i]);
}

/* Converts and lays out the weights. */
static plait_status fill(plait_gemm *gemm, const float *w, int64_t k_stride, int64_t n_stride)
{
    plait_gemm_set *set = gemm->set;
    struct shape *s = gemm->shape;
    dnnl_dims_t dims = {s->k, s->n}, strides = {k_stride, n_stride};
    dnnl_memory_desc_t plain;
    PLAIT_TRY(check(dnnl_memory_desc_init_by_strides(&plain, 2, dims, dnnl_f32, strides),
                    "describing weights"));
    PLAIT_TRY(check_memory(OPEN_BYTES));
    dnnl_memory_t from;
    PLAIT_TRY(check(dnnl_memory_create(&from, &plain, set->engine, (void *)(uintptr_t)w),
                    "describing weights"));
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t reorder = NULL;
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, gemm->weights}};
    plait_status status = check(
        dnnl_reorder_primitive_desc_create(&pd, &plain, set->engine, &s->layout, set->engine, NULL),
        "choosing a layout");
    if (status == PLAIT_OK)
        status = check(dnnl_primitive_create(&reorder, pd), "compiling a layout");
    if (status == PLAIT_OK)
        status = check(dnnl_primitive_execute(reorder, set->workers[0].stream, 2, args),
                       "laying out weights");
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(pd);
    dnnl_memory_destroy(from);
    if (status == PLAIT_OK && s->dtype != s->held)
        round_weights(gemm);
    return status;
}

static dnnl_status_t execute(const plait_gemm *g, int32_t worker, int32_t bucket, void *a, void *c)
{
    const plait_gemm_set *set = g->set;
    const struct worker_memory *memory = &set->workers[worker];
    struct binding *bind_to = &g->shape->bindings[bucket * set->n_workers + worker];
    dnnl_memory_set_data_handle(bind_to->a, a);
    dnnl_memory_set_data_handle(bind_to->c, c);
    dnnl_memory_set_data_handle(bind_to->scratch, memory->scratch);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, bind_to->a},
                              {DNNL_ARG_WEIGHTS, g->weights},
                              {DNNL_ARG_DST, bind_to->c},
                              {DNNL_ARG_SCRATCHPAD, bind_to->scratch}};
    return dnnl_primitive_execute(g->shape->primitives[bucket], memory->stream, 4, args);
}

/* What oneDNN makes once, at the first use of a shape or of the tile unit, is made now. */
static plait_status warm_up(const plait_gemm *g)
{
    const struct worker_memory *memory = &g->set->workers[0];
    for (int32_t b = 0; b < g->set->n_buckets && !g->shape->warm; b++)
        PLAIT_TRY(check(execute(g, 0, b, memory->a, memory->c), "a first product"));
    g->shape->warm = 1;
    return PLAIT_OK;
}

plait_status plait_gemm_open(plait_gemm_set *set, plait_dtype dtype, const float *w, int64_t k,
                             int64_t n, int64_t k_stride, int64_t n_stride, plait_gemm **out)
{
    *out = NULL;
    omp_set_num_threads(1);
    plait_gemm *gemm = calloc(1, sizeof *gemm);
    if (!gemm)
        return plait_fail(PLAIT_E_NOMEM, "no memory for weights");
    gemm->set = set;
    gemm->next = set->gemms;
    set->gemms = gemm;
    PLAIT_TRY(find_shape(set, dtype, k, n, &gemm->shape));
    gemm->data = new_bytes(dnnl_memory_desc_get_size(&gemm->shape->layout));
    if (!gemm->data)
        return plait_fail(PLAIT_E_NOMEM, "no memory for weights of %lld x %lld", (long long)k,
                          (long long)n);
    PLAIT_TRY(
        check(dnnl_memory_create(&gemm->weights, &gemm->shape->layout, set->engine, gemm->data),
              "holding weights"));
    PLAIT_TRY(fill(gemm, w, k_stride, n_stride));
    PLAIT_TRY(warm_up(gemm));
    *out = gemm;
    return PLAIT_OK;
}

/* A as the primitive takes it: in place where dtype, stride and bucket allow, else a copy. */
static void *pack_rows(const plait_gemm *g, void *scratch, int32_t m, int32_t bucket,
                       const float *a, int64_t lda)
{
    const struct shape *s = g->shape;
    const plait_routine *round = plait_routine_best(PLAIT_ROUTINE_APPEND);
    const int64_t k = s->k;
    if (s->dtype == PLAIT_F32 && lda == k && m == bucket)
        return (void *)(uintptr_t)a;
    for (int32_t i = 0; i < m; i++) {
        const float *from = a + i * lda;
        float *to = (float *)scratch + i * k;
        if (s->dtype == PLAIT_F32)
            memcpy(to, from, (size_t)k * sizeof(float));
        else if (s->held == PLAIT_F32)
            for (int64_t j = 0; j < k; j++)
                to[j] = round_to_bf16(from[j]);
        else
            round->convert((uint16_t *)scratch + i * k, PLAIT_BF16, from, PLAIT_F32, (int32_t)k,
                           NULL);
    }
    return scratch;
}

plait_status plait_gemm_run(const plait_gemm *g, int32_t worker, int32_t m, const float *a,
                            int64_t lda, float *c, int64_t ldc)
{
    if (m <= 0)
        return PLAIT_OK;
    const plait_gemm_set *set = g->set;
    if (m > set->max_m)
        return plait_fail(PLAIT_E_ARG, "%d rows in a product made for %d", m, set->max_m);
    omp_set_num_threads(1);
    int32_t b = 0;
    while (set->buckets[b] < m)
        b++;
    const struct worker_memory *memory = &set->workers[worker];
    int64_t n = g->shape->n;
    int direct = ldc == n && m == set->buckets[b];
    float *result = direct ? c : memory->c;
    void *rows = pack_rows(g, memory->a, m, set->buckets[b], a, lda);
    const dnnl_status_t status = execute(g, worker, b, rows, result);
    for (int32_t i = 0; i < m && !direct; i++)
        memcpy(c + i * ldc, result + i * n, (size_t)n * sizeof(float));
    return check(status, "a product");
}

plait_status plait_gemm_ready(void *unused, int32_t worker, int32_t n_workers)
{
    (void)unused, (void)worker, (void)n_workers;
    omp_set_num_threads(1);
    return check_memory(RUN_BYTES);
}

int64_t plait_gemm_n(const plait_gemm *gemm)
{
    return gemm->shape->n;
}
