/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors checkpoints: values, slices, scales, and everything that must be refused (case 42,
   the loader's part of case 43). */
#include "engine/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <plait/log.h>

#include "core/convert.h"
#include "engine/safetensors.h"
#include "folder.h"
#include "unit.h"

enum { ROWS = 130, COLS = 200 }; /* partial blocks on both sides */

static char root[PLAIT_TEST_PATH];
static uint8_t codes[ROWS * COLS];
static uint16_t halves[ROWS * COLS], f16s[ROWS * COLS];
static float floats[ROWS * COLS];
static const float block_scales[4] = {0.5f, 0.25f, 2.0f, 0.0625f};

static int setup(void **state)
{
    (void)state;
    plait_test_folder_make(root);
    for (int i = 0; i < ROWS * COLS; i++) {
        const uint8_t code = (uint8_t)(i * 37 + i / 7);
        codes[i] = (code & 0x7f) == 0x7f ? 0x30 : code; /* no NaN */
        floats[i] = (float)(i % 997) / 64 - 7;
        halves[i] = plait_bf16_from_f32(floats[i]);
        f16s[i] = plait_f16_from_f32(floats[i] / 3);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    plait_test_folder_remove(root);
    return 0;
}

static void refused(plait_status got, plait_status want, const char *a, const char *b)
{
    assert_int_equal(got, want);
    if (!strstr(plait_last_error(), a) || !strstr(plait_last_error(), b))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", plait_last_error(), a, b);
}

#define FP8(name)                                                                                  \
    {                                                                                              \
        name, "F8_E4M3", "130,200", codes, sizeof codes                                            \
    }
#define SCALES(name)                                                                               \
    {                                                                                              \
        name, "F32", "2,2", block_scales, sizeof block_scales                                      \
    }
#define BF16(name)                                                                                 \
    {                                                                                              \
        name, "BF16", "130,200", halves, sizeof halves                                             \
    }
#define F16(name)                                                                                  \
    {                                                                                              \
        name, "F16", "130,200", f16s, sizeof f16s                                                  \
    }
#define F32(name)                                                                                  \
    {                                                                                              \
        name, "F32", "130,200", floats, sizeof floats                                              \
    }

static void put(const char *file, const plait_test_tensor *tensors, size_t n)
{
    plait_test_put_safetensors(root, file, tensors, n);
}

static plait_checkpoint *open_ok(void)
{
    plait_checkpoint *c;
    if (plait_checkpoint_open(root, NULL, &c) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return c;
}

static plait_status open_fails(void)
{
    plait_checkpoint *c = (plait_checkpoint *)root;
    const plait_status status = plait_checkpoint_open(root, NULL, &c);
    assert_null(c); /* no partial object */
    return status;
}

static float wanted(const char *name, int r, int c)
{
    const int i = r * COLS + c;
    if (strcmp(name, "fp8.weight") == 0)
        return plait_e4m3_to_f32(codes[i]) * block_scales[r / 128 * 2 + c / 128];
    if (strcmp(name, "f16") == 0)
        return plait_f16_to_f32(f16s[i]);
    return strcmp(name, "bf16") == 0 ? plait_bf16_to_f32(halves[i]) : floats[i];
}

static void test_slices_of_each_type(void **state)
{
    (void)state;
    static const char *const names[] = {"fp8.weight", "bf16", "f16", "f32"};
    const plait_test_tensor tensors[] = {{"pad", "U8", "1", codes, 1}, /* misaligns what follows */
                                         FP8("fp8.weight"),
                                         SCALES("fp8.weight_scale_inv"),
                                         BF16("bf16"),
                                         F16("f16"),
                                         F32("f32"),
                                         {"vector", "F32", "200", floats, 4 * COLS}};
    const plait_slice slices[] = {
        PLAIT_SLICE_MATRIX(ROWS, COLS),         PLAIT_SLICE_ROWS(ROWS, COLS, 120, 10),
        PLAIT_SLICE_COLS(ROWS, COLS, 100, 100), PLAIT_SLICE_COLS(ROWS, COLS, 127, 2),
        PLAIT_SLICE_ROWS(ROWS, COLS, 130, 0),   {ROWS, COLS, 127, 3, 126, 4}};
    put("model.safetensors", tensors, 7);
    plait_checkpoint *ckpt = open_ok();
    assert_int_equal(plait_checkpoint_count(ckpt), 7);
    static float f32[ROWS * 256];
    static uint16_t bf16[ROWS * 256];
    for (int t = 0; t < 4; t++)
        for (size_t i = 0; i < sizeof slices / sizeof *slices; i++) {
            const plait_slice *s = &slices[i];
            memset(f32, 0xff, sizeof f32);
            assert_int_equal(plait_checkpoint_load(ckpt, names[t], s, PLAIT_F32, f32, 256), 0);
            assert_int_equal(plait_checkpoint_load(ckpt, names[t], s, PLAIT_BF16, bf16, 256), 0);
            for (int r = 0; r < s->n_rows; r++) {
                for (int c = 0; c < s->n_cols; c++) {
                    const float want = wanted(names[t], (int)s->row0 + r, (int)s->col0 + c);
                    assert_true(f32[r * 256 + c] == want);
                    assert_int_equal(bf16[r * 256 + c], plait_bf16_from_f32(want));
                }
                assert_true(isnan(f32[r * 256 + s->n_cols])); /* nothing beyond the slice */
            }
        }
    assert_int_equal(
        plait_checkpoint_load(ckpt, "vector", &PLAIT_SLICE_VECTOR(COLS), PLAIT_F32, f32, COLS), 0);
    assert_memory_equal(f32, floats, 4 * COLS);
    plait_checkpoint_close(&ckpt);
    assert_null(ckpt);
}

static void test_case42_scale_suffixes(void **state)
{
    (void)state;
    static const char *const good[] = {"fp8.weight_scale_inv", "fp8.weight_scale",
                                       "fp8.weight.scale", "fp8.scale", "fp8.scale_weight"};
    static float out[ROWS * COLS];
    const plait_slice all = PLAIT_SLICE_MATRIX(ROWS, COLS);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const plait_test_tensor tensors[] = {FP8("fp8.weight"), SCALES(good[i])};
        put("model.safetensors", tensors, 2);
        plait_checkpoint *ckpt = open_ok();
        assert_int_equal(plait_checkpoint_load(ckpt, "fp8.weight", &all, PLAIT_F32, out, COLS), 0);
        float absmax = 0;
        for (int e = 0; e < ROWS * COLS; e++) {
            assert_true(out[e] == wanted("fp8.weight", e / COLS, e % COLS));
            absmax = fmaxf(absmax, fabsf(out[e]));
        }
        assert_true(absmax <= 448 * 2.0f);
        plait_checkpoint_close(&ckpt);
    }
    const plait_test_tensor none[] = {FP8("fp8.weight"), SCALES("fp8.weight_zero")};
    const plait_test_tensor wrong[] = {FP8("fp8.weight"),
                                       {"fp8.weight_scale_inv", "F32", "1,4", block_scales, 16}};
    const plait_test_tensor *const bad[] = {none, wrong};
    for (int i = 0; i < 2; i++) {
        put("model.safetensors", bad[i], 2);
        plait_checkpoint *ckpt = open_ok();
        refused(plait_checkpoint_load(ckpt, "fp8.weight", &all, PLAIT_F32, out, COLS),
                PLAIT_E_FORMAT, "fp8.weight", i == 0 ? "no scale" : "[2, 2]");
        plait_checkpoint_close(&ckpt);
    }
}

static void test_one_scale_for_the_tensor(void **state)
{
    (void)state;
    static float out[ROWS * COLS];
    const plait_test_tensor tensors[] = {FP8("fp8.weight"),
                                         {"fp8.weight_scale", "BF16", "", &(uint16_t){0x4000}, 2}};
    put("model.safetensors", tensors, 2);
    plait_checkpoint *ckpt = open_ok();
    assert_int_equal(plait_checkpoint_load(ckpt, "fp8.weight", &PLAIT_SLICE_MATRIX(ROWS, COLS),
                                           PLAIT_F32, out, COLS),
                     0);
    for (int e = 0; e < ROWS * COLS; e++)
        assert_true(out[e] == 2 * plait_e4m3_to_f32(codes[e]));
    plait_checkpoint_close(&ckpt);
}

static void put_index(const char *map)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":1},\"weight_map\":{%s}}", map);
    plait_test_put_text(root, "model.safetensors.index.json", text);
}

#define MAP_AB "\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\""

static void test_case42_shards(void **state)
{
    (void)state;
    const plait_test_tensor a[] = {F32("a"), F32("x")}, b[] = {F32("b")};
    const plait_test_tensor ab[] = {F32("b"), F32("a")};
    put("s1.safetensors", a, 2); /* x is not in the index either */
    put("s2.safetensors", b, 1);
    put("stray.safetensors", ab, 2); /* not in the index: ignored */
    put_index(MAP_AB);
    plait_checkpoint *ckpt = open_ok();
    assert_int_equal(plait_checkpoint_count(ckpt), 2);
    assert_true(plait_checkpoint_has(ckpt, "a") && plait_checkpoint_has(ckpt, "b"));
    assert_false(plait_checkpoint_has(ckpt, "x"));
    plait_checkpoint_close(&ckpt);

    put("s2.safetensors", ab, 2);
    refused(open_fails(), PLAIT_E_FORMAT, "tensor a is there twice", "s2.safetensors");
    put("s2.safetensors", a, 1);
    put_index("\"b\":\"s2.safetensors\"");
    refused(open_fails(), PLAIT_E_FORMAT, "tensor b is in s2.safetensors", "lacks");
    put_index("\"a\":\"s1.safetensors\",\"a\":\"s1.safetensors\"");
    refused(open_fails(), PLAIT_E_FORMAT, "tensor a", "twice");
    put("s2.safetensors", b, 1);
    put_index("\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"");
    refused(open_fails(), PLAIT_E_FORMAT, "tensor a is in s2.safetensors", "it is in s1");
    put_index("\"a\":\"../s1.safetensors\"");
    refused(open_fails(), PLAIT_E_FORMAT, "../s1.safetensors", "file name");
    put_index("");
    refused(open_fails(), PLAIT_E_FORMAT, "index.json", "no tensors");
    plait_test_put_text(root, "model.safetensors.index.json", "{\"weight_map\":3}");
    refused(open_fails(), PLAIT_E_FORMAT, "index.json", "weight_map");
}

static void test_case42_missing_shards_are_all_listed(void **state)
{
    (void)state;
    const plait_test_tensor a[] = {F32("a")};
    put("s1.safetensors", a, 1);
    put_index(MAP_AB ",\"c\":\"s3.safetensors\"");
    refused(open_fails(), PLAIT_E_IO, "2 of 3 shards", "s2.safetensors, s3.safetensors");
}

static void test_case42_truncated_shard_tells_sizes(void **state)
{
    (void)state;
    char path[128];
    const plait_test_tensor tensors[] = {F32("a"), F32("b")};
    put("model.safetensors", tensors, 2);
    snprintf(path, sizeof path, "%s/model.safetensors", root);
    FILE *f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    const long size = ftell(f);
    fclose(f);
    assert_int_equal(truncate(path, size - 1), 0);
    refused(open_fails(), PLAIT_E_IO, "truncated", "207999"); /* of 2 * 130 * 200 * 4 bytes */
    for (long n = 300; n >= 0; n -= 7) {
        assert_int_equal(truncate(path, n), 0);
        refused(open_fails(), PLAIT_E_IO, "truncated", "model.safetensors");
    }
    plait_test_folder_remove(root);
    plait_test_folder_make(root);
    refused(open_fails(), PLAIT_E_IO, root, "neither");
}

static void test_headers_that_lie(void **state)
{
    (void)state;
#define T(dtype, shape, offsets)                                                                   \
    "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}}"
    static const struct {
        const char *header, *says;
        plait_status status;
    } table[] = {
        {T("F32", "4", "0,15"), "15 bytes", PLAIT_E_FORMAT},
        {T("F32", "4", "0,32"), "32 bytes", PLAIT_E_FORMAT},
        {T("F32", "4", "16,0"), "data_offsets", PLAIT_E_FORMAT},
        {T("F32", "4", "-16,0"), "data_offsets", PLAIT_E_FORMAT},
        {T("F32", "4", "0,1e300"), "data_offsets", PLAIT_E_FORMAT},
        {T("F32", "4", "0"), "data_offsets", PLAIT_E_FORMAT},
        {T("F32", "4", "0,16,16"), "data_offsets", PLAIT_E_FORMAT},
        {T("F32", "4", "64,80"), "truncated", PLAIT_E_IO},
        {T("F32", "8", "48,80"), "truncated", PLAIT_E_IO},
        {T("F32", "-4", "0,16"), "dimension of -4", PLAIT_E_FORMAT},
        {T("F32", "2.5", "0,10"), "dimension of 2.5", PLAIT_E_FORMAT},
        {T("F32", "4294967296,4294967296", "0,16"), "overflows", PLAIT_E_FORMAT},
        {T("F32", "1,1,1,1,1,1,1,1,4", "0,16"), "dimensions", PLAIT_E_FORMAT},
        {T("F13", "8", "0,16"), "F13", PLAIT_E_UNSUPPORTED},
        {"{\"t\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "dtype", PLAIT_E_UNSUPPORTED},
        {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "shape", PLAIT_E_FORMAT},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4]}}", "data_offsets", PLAIT_E_FORMAT},
        {"{\"t\":7}", "dtype", PLAIT_E_UNSUPPORTED},
        {"[]", "object", PLAIT_E_FORMAT},
        {"{", "JSON", PLAIT_E_FORMAT},
        {"{} {}", "more text", PLAIT_E_FORMAT},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[8,17]}}",
         "share bytes", PLAIT_E_FORMAT},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[9,18]}}",
         "twice", PLAIT_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        plait_test_put_header(root, "model.safetensors", table[i].header, codes, 64);
        refused(open_fails(), table[i].status, table[i].says, table[i].says);
    }
    plait_test_put(root, "model.safetensors", "\0\0\0\0\0\0\0\1{}", 10);
    refused(open_fails(), PLAIT_E_FORMAT, "header length", "safetensors");
}

/* A tensor that is not finite, in the weights, in a scale, or in bf16 only. */
static void test_nan_and_infinity_name_the_tensor(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float values[4] = {1, 2, 3, 4}, out[4];
    uint8_t nan_code[4] = {0x30, 0x31, 0x7f, 0x30};
    const plait_test_tensor tensors[] = {{"plain", "F32", "2,2", values, 16},
                                         {"code.weight", "F8_E4M3", "2,2", nan_code, 4},
                                         {"code.weight_scale_inv", "F32", "1,1", block_scales, 4},
                                         {"scaled.weight", "F8_E4M3", "2,2", codes + 64, 4},
                                         {"scaled.weight_scale_inv", "F32", "1,1", values, 4}};
    const plait_slice all = PLAIT_SLICE_MATRIX(2, 2);
    for (int i = 0; i < 4; i++) {
        values[0] = i < 3 ? bad[i] : 3.4e38f;
        put("model.safetensors", tensors, 5);
        plait_checkpoint *ckpt = open_ok();
        refused(plait_checkpoint_load(ckpt, "plain", &all, PLAIT_BF16, out, 2), PLAIT_E_FORMAT,
                "plain", "row 0, column 0");
        if (i == 3)
            assert_int_equal(plait_checkpoint_load(ckpt, "plain", &all, PLAIT_F32, out, 2), 0);
        else
            refused(plait_checkpoint_load(ckpt, "plain", &all, PLAIT_F32, out, 2), PLAIT_E_FORMAT,
                    "plain", "finite");
        refused(plait_checkpoint_load(ckpt, "scaled.weight", &all, PLAIT_F32, out, 2),
                PLAIT_E_FORMAT, "scaled.weight", "finite");
        refused(plait_checkpoint_load(ckpt, "code.weight", &all, PLAIT_F32, out, 2), PLAIT_E_FORMAT,
                "code.weight", "row 1, column 0");
        plait_checkpoint_close(&ckpt);
    }
}

static void test_what_the_model_wants_is_checked(void **state)
{
    (void)state;
    static float out[ROWS * COLS];
    const plait_test_tensor tensors[] = {F32("w"), {"n", "I32", "2", codes, 8}};
    put("model.safetensors", tensors, 2);
    plait_checkpoint *ckpt = open_ok();
    refused(plait_checkpoint_load(ckpt, "x", &PLAIT_SLICE_VECTOR(2), PLAIT_F32, out, 2),
            PLAIT_E_FORMAT, "no tensor", "x");
    refused(plait_checkpoint_load(ckpt, "n", &PLAIT_SLICE_VECTOR(2), PLAIT_F32, out, 2),
            PLAIT_E_UNSUPPORTED, "I32", "BF16");
    refused(plait_checkpoint_load(ckpt, "w", &PLAIT_SLICE_MATRIX(COLS, ROWS), PLAIT_F32, out, ROWS),
            PLAIT_E_FORMAT, "[130, 200]", "[200, 130]");
    refused(plait_checkpoint_load(ckpt, "w", &PLAIT_SLICE_VECTOR(ROWS), PLAIT_F32, out, ROWS),
            PLAIT_E_FORMAT, "[130, 200]", "rank 1");
    const plait_slice outside[] = {
        PLAIT_SLICE_ROWS(ROWS, COLS, 130, 1), PLAIT_SLICE_ROWS(ROWS, COLS, -1, 1),
        PLAIT_SLICE_COLS(ROWS, COLS, 199, 2), PLAIT_SLICE_COLS(ROWS, COLS, INT64_MAX, 1)};
    for (int i = 0; i < 4; i++)
        refused(plait_checkpoint_load(ckpt, "w", &outside[i], PLAIT_F32, out, COLS), PLAIT_E_ARG,
                "slice", "w");
    refused(plait_checkpoint_load(ckpt, "w", &PLAIT_SLICE_MATRIX(ROWS, COLS), PLAIT_F16, out, COLS),
            PLAIT_E_ARG, "f16", "bf16");
    plait_checkpoint_close(&ckpt);
}

static bool noticed(const char *text)
{
    for (size_t i = 0; i < plait_notice_count(); i++)
        if (strstr(plait_notice_get(i, NULL), text))
            return true;
    return false;
}

/* Case 43: layers beyond the declared ones are skipped with one notice, MTP layers silently. */
static void test_case43_unused_tensors_give_notices(void **state)
{
    (void)state;
    const plait_config config = {.num_layers = 2, .num_mtp_layers = 1};
    float out[ROWS];
    const plait_test_tensor tensors[] = {{"model.layers.1.a", "F32", "2", floats, 8},
                                         {"model.layers.2.a", "F32", "2", floats, 8},
                                         {"model.layers.3.a", "F32", "2", floats, 8},
                                         {"model.layers.4.a", "F32", "2", floats, 8},
                                         {"odd.tensor", "F32", "2", floats, 8}};
    put("model.safetensors", tensors, 5);
    plait_checkpoint *ckpt = open_ok();
    const size_t before = plait_notice_count();
    assert_int_equal(
        plait_checkpoint_load(ckpt, "model.layers.1.a", &PLAIT_SLICE_VECTOR(2), PLAIT_F32, out, 2),
        0);
    plait_checkpoint_finish(ckpt, &config);
    assert_int_equal(plait_notice_count(), before + 2);
    assert_true(noticed("2 tensors of layers beyond the 2 layers and 1 MTP"));
    assert_true(noticed("1 tensors of the checkpoint are not used, the first is odd.tensor"));
    plait_checkpoint_close(&ckpt);
}

/* Any header either parses into tensors that lie inside the data, or is refused. */
static void test_mutated_headers(void **state)
{
    (void)state;
    static const char good[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"a.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[4,8],"
        "\"data_offsets\":[0,32]},\"a.weight_scale_inv\":{\"dtype\":\"F32\",\"shape\":[1,1],"
        "\"data_offsets\":[32,36]},\"n\":{\"dtype\":\"BF16\",\"shape\":[14],\"data_offsets\":"
        "[36,64]}}";
    static const char with[] = "0123456789-.eE[]{},:\"\\ ";
    uint32_t x = 12345;
    int parsed = 0;
    for (int i = 0; i < 20000; i++) {
        char *header = malloc(sizeof good);
        size_t n = sizeof good - 1;
        memcpy(header, good, n);
        for (int k = i % 4; k >= 0; k--) {
            x = x * 1664525u + 1013904223u;
            const size_t at = (x >> 8) % n;
            if (x >> 28 == 0)
                memmove(header + at, header + at + 1, --n - at);
            else
                header[at] = x >> 31 ? (char)(x >> 5) : with[(x >> 5) % (sizeof with - 1)];
        }
        plait_safetensors file = {0};
        if (plait_safetensors_parse(header, n, codes, 64, "fuzz", &file) == PLAIT_OK) {
            parsed++;
            for (size_t t = 0; t < file.count; t++)
                assert_true(file.tensors[t].data >= codes &&
                            file.tensors[t].data + file.tensors[t].bytes <= codes + 64);
        }
        free(header);
        plait_safetensors_close(&file);
    }
    assert_true(parsed > 100 && parsed < 19000); /* both happen */
}

/* The same for an index: opened, every tensor that it names is there. */
static void test_mutated_index(void **state)
{
    (void)state;
    static const char good[] = "{\"weight_map\":{" MAP_AB "}}";
    const plait_test_tensor a[] = {F32("a")}, b[] = {F32("b")};
    uint32_t x = 7;
    int opened = 0;
    put("s1.safetensors", a, 1);
    put("s2.safetensors", b, 1);
    for (int i = 0; i < 600; i++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        x = x * 1664525u + 1013904223u;
        text[(x >> 8) % (sizeof good - 1)] = x >> 31 ? (char)(x >> 3) : "12sab/.{}[],:\"\\"[x % 15];
        plait_test_put(root, "model.safetensors.index.json", text, sizeof good - 1);
        plait_checkpoint *ckpt;
        if (plait_checkpoint_open(root, NULL, &ckpt) == PLAIT_OK) {
            opened++;
            assert_true(plait_checkpoint_has(ckpt, "a") && plait_checkpoint_has(ckpt, "b"));
        }
        plait_checkpoint_close(&ckpt);
    }
    assert_true(opened > 3 && opened < 550); /* both happen */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_slices_of_each_type),
        TEST(test_case42_scale_suffixes),
        TEST(test_one_scale_for_the_tensor),
        TEST(test_case42_shards),
        TEST(test_case42_missing_shards_are_all_listed),
        TEST(test_case42_truncated_shard_tells_sizes),
        TEST(test_headers_that_lie),
        TEST(test_nan_and_infinity_name_the_tensor),
        TEST(test_what_the_model_wants_is_checked),
        TEST(test_case43_unused_tensors_give_notices),
        TEST(test_mutated_headers),
        TEST(test_mutated_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
