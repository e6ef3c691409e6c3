/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's allocator and arenas with a measuring pass. */
#include "core/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "unit.h"

/* An allocator that counts, and has nothing left once `left` calls were served. */
struct counter {
    int left, live;
    size_t live_bytes;
};

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    struct counter *counter = user;
    if (counter->left-- <= 0)
        return NULL;
    counter->live++;
    counter->live_bytes += bytes;
    return plait_allocator_default()->alloc(NULL, bytes, align);
}

static void counted_free(void *user, void *ptr, size_t bytes)
{
    struct counter *counter = user;
    counter->live--;
    counter->live_bytes -= bytes;
    free(ptr);
}

static plait_allocator counting(struct counter *counter)
{
    return (plait_allocator){sizeof(plait_allocator), counter, counted_alloc, counted_free};
}

static void test_default_allocator_aligns(void **state)
{
    (void)state;
    for (size_t bytes = 1; bytes < 300; bytes += 37) {
        void *ptr;
        assert_int_equal(plait_mem_alloc(NULL, bytes, "test", &ptr), PLAIT_OK);
        assert_int_equal((uintptr_t)ptr % 64, 0);
        memset(ptr, 1, bytes);
        plait_mem_free(NULL, ptr, bytes);
    }
    plait_mem_free(NULL, NULL, 8);
}

static void test_bytes_beyond_memory_are_refused_with_the_number(void **state)
{
    (void)state;
    void *ptr = &ptr;
    assert_int_equal(plait_mem_alloc(NULL, SIZE_MAX - 3, "page table", &ptr), PLAIT_E_NOMEM);
    assert_null(ptr);
    assert_non_null(strstr(plait_last_error(), "page table"));
    assert_non_null(strstr(plait_last_error(), "18446744073709551612"));
}

static void test_callers_allocator_gets_back_what_it_gave(void **state)
{
    (void)state;
    struct counter counter = {.left = 2};
    const plait_allocator allocator = counting(&counter);
    void *a, *b, *c;
    assert_int_equal(plait_mem_zalloc(&allocator, 100, "a", &a), PLAIT_OK);
    for (int i = 0; i < 100; i++)
        assert_int_equal(((unsigned char *)a)[i], 0);
    assert_int_equal(plait_mem_alloc(&allocator, 200, "b", &b), PLAIT_OK);
    assert_int_equal(plait_mem_zalloc(&allocator, 300, "c", &c), PLAIT_E_NOMEM);
    assert_null(c);
    assert_int_equal(counter.live_bytes, 300);
    plait_mem_free(&allocator, a, 100);
    plait_mem_free(&allocator, b, 200);
    assert_int_equal(counter.live, 0);
    assert_int_equal(counter.live_bytes, 0);
}

static void test_allocator_without_size_is_refused(void **state)
{
    (void)state;
    struct counter counter = {.left = 2};
    plait_allocator allocator = counting(&counter);
    void *ptr;
    allocator.size = 0;
    assert_int_equal(plait_mem_alloc(&allocator, 8, "x", &ptr), PLAIT_E_ARG);
    assert_int_equal(counter.live, 0);
}

struct layout {
    int32_t *rows;
    double *weights;
    char *nothing;
    unsigned char *tail;
};

static void lay_out(plait_arena *arena, struct layout *l)
{
    l->rows = plait_arena_take(arena, 5, sizeof *l->rows);
    l->weights = plait_arena_take(arena, 9, sizeof *l->weights);
    l->nothing = plait_arena_take(arena, 0, sizeof *l->nothing);
    l->tail = plait_arena_take(arena, 1, 1);
}

static void test_measured_size_is_exactly_what_the_layout_takes(void **state)
{
    (void)state;
    struct counter counter = {.left = 1};
    const plait_allocator allocator = counting(&counter);
    plait_arena arena = {0};
    struct layout l;
    lay_out(&arena, &l);
    assert_null(l.rows);
    const size_t measured = arena.used;
    assert_int_equal(plait_arena_reserve(&arena, &allocator, "test"), PLAIT_OK);
    assert_int_equal(counter.live_bytes, measured);
    lay_out(&arena, &l);
    assert_int_equal(arena.used, measured);
    assert_false(arena.overflow);
    assert_null(l.nothing);
    assert_int_equal((uintptr_t)l.rows % 64, 0);
    assert_int_equal((uintptr_t)l.weights % 64, 0);
    memset(l.rows, 1, 5 * sizeof *l.rows);
    memset(l.weights, 2, 9 * sizeof *l.weights);
    *l.tail = 3;
    assert_int_equal(l.rows[4], 0x01010101); /* nothing overlaps */

    assert_null(plait_arena_take(&arena, 1, 1));
    assert_true(arena.overflow);
    plait_arena_free(&arena, &allocator);
    assert_int_equal(counter.live, 0);
    plait_arena_free(&arena, &allocator);
}

static void test_arena_over_the_callers_memory(void **state)
{
    (void)state;
    plait_arena measure = {0};
    struct layout l;
    lay_out(&measure, &l);
    void *block;
    assert_int_equal(plait_mem_alloc(NULL, measure.used, "block", &block), PLAIT_OK);
    plait_arena exact = plait_arena_over(block, measure.used);
    lay_out(&exact, &l);
    assert_false(exact.overflow);
    plait_arena tight = plait_arena_over(block, measure.used - 1);
    lay_out(&tight, &l);
    assert_true(tight.overflow);
    assert_null(l.tail);
    plait_mem_free(NULL, block, measure.used);
}

static void test_products_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    plait_arena arena = {0};
    assert_null(plait_arena_take(&arena, SIZE_MAX / 2, 3));
    assert_true(arena.overflow);
    assert_int_equal(plait_arena_reserve(&arena, NULL, "plan"), PLAIT_E_NOMEM);
    arena = (plait_arena){0};
    plait_arena_take(&arena, 1, SIZE_MAX - 200);
    plait_arena_take(&arena, 1, 300);
    assert_int_equal(plait_arena_reserve(&arena, NULL, "plan"), PLAIT_E_NOMEM);
    assert_non_null(strstr(plait_last_error(), "plan"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_allocator_aligns),
        cmocka_unit_test(test_bytes_beyond_memory_are_refused_with_the_number),
        cmocka_unit_test(test_callers_allocator_gets_back_what_it_gave),
        cmocka_unit_test(test_allocator_without_size_is_refused),
        cmocka_unit_test(test_measured_size_is_exactly_what_the_layout_takes),
        cmocka_unit_test(test_arena_over_the_callers_memory),
        cmocka_unit_test(test_products_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
