/* SPDX-License-Identifier: Apache-2.0 */
/* Scalar conversions: every code of each storage type, and the rounding between any two. */
#include "core/convert.h"

#include <math.h>

#include "unit.h"

/* One storage type behind common types, so that one test serves all three. */
struct format {
    uint32_t n_positive; /* codes 0 .. n_positive-1 are finite, rising and non-negative */
    uint32_t sign, nan;
    float (*decode)(uint32_t code);
    uint32_t (*encode)(float x);
};

static float bf16_decode(uint32_t code)
{
    return plait_bf16_to_f32((uint16_t)code);
}

static uint32_t bf16_encode(float x)
{
    return plait_bf16_from_f32(x);
}

static float f16_decode(uint32_t code)
{
    return plait_f16_to_f32((uint16_t)code);
}

static uint32_t f16_encode(float x)
{
    return plait_f16_from_f32(x);
}

static float e4m3_decode(uint32_t code)
{
    return plait_e4m3_to_f32((uint8_t)code);
}

static uint32_t e4m3_encode(float x)
{
    return plait_e4m3_from_f32(x);
}

static const struct format bf16 = {0x7f80, 0x8000, 0x7fc0, bf16_decode, bf16_encode};
static const struct format f16 = {0x7c00, 0x8000, 0x7e00, f16_decode, f16_encode};
static const struct format e4m3 = {0x7f, 0x80, 0x7f, e4m3_decode, e4m3_encode};

static void check_every_code(const struct format *f)
{
    for (uint32_t code = 0; code < f->n_positive; code++) {
        assert_int_equal(f->encode(f->decode(code)), code);
        assert_int_equal(f->encode(f->decode(code | f->sign)), code | f->sign);
        assert_true(code == 0 || f->decode(code) > f->decode(code - 1));
    }
    assert_true(isnan(f->decode(f->nan)) && isnan(f->decode(f->nan | f->sign)));
    assert_true(isnan(f->decode(f->encode(NAN))));
}

/* Halfway between two neighbours goes to the even code, anything nearer to the nearer one. */
static void check_rounding(const struct format *f)
{
    for (uint32_t code = 0; code + 1 < f->n_positive; code++) {
        const double low = f->decode(code), high = f->decode(code + 1);
        const float middle = (float)((low + high) / 2);
        assert_true((double)middle == (low + high) / 2);
        assert_int_equal(f->encode(middle), code + (code & 1));
        assert_int_equal(f->encode(nextafterf(middle, 0)), code);
        assert_int_equal(f->encode(nextafterf(middle, INFINITY)), code + 1);
        assert_int_equal(f->encode(-middle), f->sign | (code + (code & 1)));
    }
}

static void test_every_code_survives_a_round_trip(void **state)
{
    (void)state;
    check_every_code(&bf16);
    check_every_code(&f16);
    check_every_code(&e4m3);
}

static void test_ties_go_to_even(void **state)
{
    (void)state;
    check_rounding(&bf16);
    check_rounding(&f16);
    check_rounding(&e4m3);
}

static void test_known_values(void **state)
{
    (void)state;
    assert_int_equal(plait_bf16_from_f32(1.0f), 0x3f80);
    assert_int_equal(plait_f16_from_f32(1.0f), 0x3c00);
    assert_int_equal(plait_e4m3_from_f32(1.0f), 0x38);
    assert_true(plait_f16_to_f32(0x7bff) == 65504.0f);
    assert_true(plait_f16_to_f32(0x0001) == 0x1p-24f);
    assert_true(plait_e4m3_to_f32(0x7e) == 448.0f);
    assert_true(plait_e4m3_to_f32(0x01) == 0x1p-9f);
    assert_true(signbit(plait_e4m3_to_f32(0x80)) && signbit(plait_f16_to_f32(0x8000)));
}

static void test_beyond_the_largest_value(void **state)
{
    (void)state;
    assert_int_equal(plait_bf16_from_f32(3.4028235e38f), 0x7f80);
    assert_int_equal(plait_bf16_from_f32(-INFINITY), 0xff80);
    assert_int_equal(plait_f16_from_f32(65519.0f), 0x7bff);
    assert_int_equal(plait_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(plait_f16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(plait_e4m3_from_f32(449.0f), 0x7e);
    assert_int_equal(plait_e4m3_from_f32(1e30f), 0x7e);
    assert_int_equal(plait_e4m3_from_f32(-INFINITY), 0xfe);
}

/* A NaN whose payload sits only in the low bits must not turn into an infinity. */
static void test_nan_with_a_low_payload_stays_nan(void **state)
{
    (void)state;
    const float nan = plait_f32_from_bits(0x7f800001u);
    assert_true(isnan(plait_bf16_to_f32(plait_bf16_from_f32(nan))));
    assert_true(isnan(plait_f16_to_f32(plait_f16_from_f32(nan))));
    assert_true(isnan(plait_e4m3_to_f32(plait_e4m3_from_f32(nan))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_survives_a_round_trip),
        cmocka_unit_test(test_ties_go_to_even),
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_beyond_the_largest_value),
        cmocka_unit_test(test_nan_with_a_low_payload_stays_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
