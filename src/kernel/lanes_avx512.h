/* SPDX-License-Identifier: Apache-2.0 */
/* Values of storage types, 16 at a time: what rows_tmpl.h needs, with AVX-512. The bits are those
   of core/convert.h; VCVTNEPS2BF16 is no use here, because it drops subnormal numbers. */
#ifndef PLAIT_KERNEL_LANES_AVX512_H
#define PLAIT_KERNEL_LANES_AVX512_H

#include <immintrin.h>

#include <plait/dtype.h>

typedef __m512 lanes;
enum { n_lanes = 16 };

static inline lanes lanes_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline lanes lanes_mul(lanes a, lanes b)
{
    return _mm512_mul_ps(a, b);
}

static inline lanes lanes_add(lanes a, lanes b)
{
    return _mm512_add_ps(a, b);
}

static inline lanes lanes_div(lanes a, lanes b)
{
    return _mm512_div_ps(a, b);
}

/* max(top, min(|x|, most)), where a NaN of x leaves top. */
static inline lanes lanes_raise(lanes top, lanes x, lanes most)
{
    return _mm512_max_ps(_mm512_min_ps(most, _mm512_abs_ps(x)), top); /* NaN: the second operand */
}

static inline float lanes_largest(lanes x)
{
    return _mm512_reduce_max_ps(x);
}

/* e4m3 has the exponent and mantissa of a float that is 2^120 times smaller. */
static inline lanes lanes_from_e4m3(__m512i b)
{
    const __m512i size = _mm512_and_si512(b, _mm512_set1_epi32(0x7f));
    const __m512i sign = _mm512_slli_epi32(_mm512_xor_si512(b, size), 24);
    const __m512 y =
        _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(size, 20)), _mm512_set1_ps(0x1p120f));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(size, _mm512_set1_epi32(0x7f));
    const __m512i x =
        _mm512_mask_mov_epi32(_mm512_castps_si512(y), nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_castsi512_ps(_mm512_or_si512(x, sign));
}

static inline lanes lanes_load(const void *p, plait_dtype dtype)
{
    switch (dtype) {
    case PLAIT_BF16:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
    case PLAIT_F16:
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
    case PLAIT_FP8_E4M3:
    case PLAIT_FP8_DS656:
        return lanes_from_e4m3(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
    default:
        return _mm512_loadu_ps(p);
    }
}

static inline __m512i lanes_to_bf16(lanes x)
{
    const __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i near = _mm512_srli_epi32(
        _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    return _mm512_mask_or_epi32(near, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), high,
                                _mm512_set1_epi32(0x40));
}

static inline __m512i lanes_to_e4m3(lanes x)
{
    const __m512i u = _mm512_castps_si512(x);
    const __m512i a = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(u, 24), _mm512_set1_epi32(0x80));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(a, 20), _mm512_set1_epi32(1));
    const __m512 magic = _mm512_set1_ps(8388608.0f); /* 2^23, as in plait_round_scaled */
    const __m512 steps =
        _mm512_add_ps(_mm512_mul_ps(_mm512_castsi512_ps(a), _mm512_set1_ps(512.0f)), magic);
    __m512i code = _mm512_sub_epi32(
        _mm512_srli_epi32(_mm512_add_epi32(a, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff))),
                          20),
        _mm512_set1_epi32(120 << 3));
    code = _mm512_mask_sub_epi32(code, _mm512_cmplt_epi32_mask(a, _mm512_set1_epi32(0x3c800000)),
                                 _mm512_castps_si512(steps), _mm512_castps_si512(magic));
    code = _mm512_mask_mov_epi32(code, _mm512_cmpge_epi32_mask(a, _mm512_set1_epi32(0x43e00000)),
                                 _mm512_set1_epi32(0x7e));
    code = _mm512_mask_mov_epi32(code, _mm512_cmpgt_epi32_mask(a, _mm512_set1_epi32(0x7f800000)),
                                 _mm512_set1_epi32(0x7f));
    return _mm512_or_si512(code, sign);
}

static inline void lanes_store(void *p, plait_dtype dtype, lanes x)
{
    switch (dtype) {
    case PLAIT_BF16:
        _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(lanes_to_bf16(x)));
        break;
    case PLAIT_F16:
        _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        break;
    case PLAIT_FP8_E4M3:
    case PLAIT_FP8_DS656:
        _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(lanes_to_e4m3(x)));
        break;
    default:
        _mm512_storeu_ps(p, x);
        break;
    }
}

#endif
