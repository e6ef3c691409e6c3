/* SPDX-License-Identifier: Apache-2.0 */
/* Values of storage types, 8 at a time: what rows_tmpl.h needs, with AVX2. The bits are those of
   core/convert.h. */
#ifndef PLAIT_KERNEL_LANES_AVX2_H
#define PLAIT_KERNEL_LANES_AVX2_H

#include <immintrin.h>

#include <plait/dtype.h>

typedef __m256 lanes;
enum { n_lanes = 8 };

static inline lanes lanes_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline lanes lanes_mul(lanes a, lanes b)
{
    return _mm256_mul_ps(a, b);
}

static inline lanes lanes_add(lanes a, lanes b)
{
    return _mm256_add_ps(a, b);
}

static inline lanes lanes_div(lanes a, lanes b)
{
    return _mm256_div_ps(a, b);
}

/* max(top, min(|x|, most)), where a NaN of x leaves top. */
static inline lanes lanes_raise(lanes top, lanes x, lanes most)
{
    const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    return _mm256_max_ps(_mm256_min_ps(most, size), top); /* NaN: the second operand */
}

static inline float lanes_largest(lanes x)
{
    float v[n_lanes], top = 0;
    _mm256_storeu_ps(v, x);
    for (int i = 0; i < n_lanes; i++)
        top = v[i] > top ? v[i] : top;
    return top;
}

static inline lanes lanes_pick(__m256i mask, lanes yes, lanes no)
{
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(mask));
}

/* e4m3 has the exponent and mantissa of a float that is 2^120 times smaller. */
static inline lanes lanes_from_e4m3(__m256i b)
{
    const __m256i size = _mm256_and_si256(b, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(b, size), 24);
    const __m256 y =
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(size, 20)), _mm256_set1_ps(0x1p120f));
    const __m256i nan = _mm256_cmpeq_epi32(size, _mm256_set1_epi32(0x7f));
    const __m256 x = lanes_pick(nan, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), y);
    return _mm256_or_ps(x, _mm256_castsi256_ps(sign));
}

static inline lanes lanes_load(const void *p, plait_dtype dtype)
{
    switch (dtype) {
    case PLAIT_BF16:
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
    case PLAIT_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
    case PLAIT_FP8_E4M3:
    case PLAIT_FP8_DS656:
        return lanes_from_e4m3(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
    default:
        return _mm256_loadu_ps((const float *)p);
    }
}

/* 16 bits of each dword. */
static inline void lanes_put16(void *p, __m256i x)
{
    const __m256i packed = _mm256_packus_epi32(x, x);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}

static inline __m256i lanes_to_bf16(lanes x)
{
    const __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i near = _mm256_srli_epi32(
        _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(near, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}

static inline __m256i lanes_to_e4m3(lanes x)
{
    const __m256i u = _mm256_castps_si256(x);
    const __m256i a = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(u, 24), _mm256_set1_epi32(0x80));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(a, 20), _mm256_set1_epi32(1));
    const __m256 magic = _mm256_set1_ps(8388608.0f); /* 2^23, as in plait_round_scaled */
    const __m256 steps =
        _mm256_add_ps(_mm256_mul_ps(_mm256_castsi256_ps(a), _mm256_set1_ps(512.0f)), magic);
    __m256i code = _mm256_sub_epi32(
        _mm256_srli_epi32(_mm256_add_epi32(a, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff))),
                          20),
        _mm256_set1_epi32(120 << 3));
    const __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), a);
    const __m256i large = _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x43dfffff));
    const __m256i nan = _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x7f800000));
    code = _mm256_blendv_epi8(
        code, _mm256_sub_epi32(_mm256_castps_si256(steps), _mm256_castps_si256(magic)), tiny);
    code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7e), large);
    code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), nan);
    return _mm256_or_si256(code, sign);
}

static inline void lanes_put8(void *p, __m256i x)
{
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
    const __m128i low = _mm256_castsi256_si128(words);
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(low, low));
}

static inline void lanes_store(void *p, plait_dtype dtype, lanes x)
{
    switch (dtype) {
    case PLAIT_BF16:
        lanes_put16(p, lanes_to_bf16(x));
        break;
    case PLAIT_F16:
        _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        break;
    case PLAIT_FP8_E4M3:
    case PLAIT_FP8_DS656:
        lanes_put8(p, lanes_to_e4m3(x));
        break;
    default:
        _mm256_storeu_ps((float *)p, x);
        break;
    }
}

#endif
