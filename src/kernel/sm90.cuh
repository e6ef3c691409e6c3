/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/sm90.cuh - the PTX of sm_90a that the GPU kernels use, one function each: barriers in
 * shared memory, bulk tensor copies, warpgroup matrix products, and small helpers.
 *
 * Shared-memory matrices are chunks of 64 two-byte columns: row r lies at r * 128 bytes, its
 * 16-byte units swizzled (unit u at u ^ (r % 8)), as bulk tensor copies and products expect.
 */
#ifndef PLAIT_KERNEL_SM90_CUH
#define PLAIT_KERNEL_SM90_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define PLAIT_DEVICE static __device__ __forceinline__

PLAIT_DEVICE uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers ------------------------------------------------------------------------------- */

PLAIT_DEVICE void barrier_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

PLAIT_DEVICE void barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

PLAIT_DEVICE void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

PLAIT_DEVICE void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity is over. */
PLAIT_DEVICE void barrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Whether the phase of this parity is over. */
PLAIT_DEVICE bool barrier_test(uint32_t bar, uint32_t parity)
{
    uint32_t over;
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, over;\n"
                 "}"
                 : "=r"(over)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return over != 0;
}

/* Barriers among `threads` threads by number, 1 .. 15. */
PLAIT_DEVICE void group_sync(uint32_t id, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

PLAIT_DEVICE void group_arrive(uint32_t id, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* group_sync that tells whether x holds in all threads. */
PLAIT_DEVICE bool group_all(uint32_t id, uint32_t threads, bool x)
{
    uint32_t all;
    asm volatile("{\n"
                 ".reg .pred x, all;\n"
                 "setp.ne.u32 x, %1, 0;\n"
                 "bar.red.and.pred all, %2, %3, x;\n"
                 "selp.b32 %0, 1, 0, all;\n"
                 "}"
                 : "=r"(all)
                 : "r"((uint32_t)x), "r"(id), "r"(threads)
                 : "memory");
    return all != 0;
}

/* Makes ordinary writes to shared memory visible to copies and products that follow a barrier. */
PLAIT_DEVICE void fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- copies --------------------------------------------------------------------------------- */

/* Copies the box at (column, token, page); its bytes count on the barrier. */
PLAIT_DEVICE void copy_box(uint32_t to, const void *map, uint32_t bar, int32_t column,
                           int32_t token, int32_t page)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(column), "r"(token), "r"(page)
                 : "memory");
}

PLAIT_DEVICE void prefetch_map(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

PLAIT_DEVICE void copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

PLAIT_DEVICE void copy_16_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

PLAIT_DEVICE void store_16(uint32_t to, uint4 x)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

PLAIT_DEVICE uint4 load_16(uint32_t from)
{
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

/* Four 8x8 matrices of two-byte values, held as products hold them; each lane gives a row. */
PLAIT_DEVICE void store_matrices(uint32_t to, const uint32_t x[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* ---- launches that overlap ------------------------------------------------------------------ */

PLAIT_DEVICE void dependents_may_start(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Waits until the kernel before this one has ended and its writes can be seen. */
PLAIT_DEVICE void wait_for_previous(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* ---- products ------------------------------------------------------------------------------- */

template <int N> PLAIT_DEVICE void registers_grow(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> PLAIT_DEVICE void registers_shrink(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

PLAIT_DEVICE void products_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

PLAIT_DEVICE void products_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> PLAIT_DEVICE void products_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving uses of accumulators across a wait. */
template <int N> PLAIT_DEVICE void pin(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

/* Descriptor of a swizzled matrix; lead: bytes from one chunk of 64 columns to the next where the
   columns are not the summed dimension. */
PLAIT_DEVICE uint64_t matrix(uint32_t address, uint32_t lead)
{
    return (uint64_t)(address >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

#define PLAIT_R4(x, i)  "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define PLAIT_R16(x, i) PLAIT_R4(x, i), PLAIT_R4(x, i + 4), PLAIT_R4(x, i + 8), PLAIT_R4(x, i + 12)
#define PLAIT_R32(x, i) PLAIT_R16(x, i), PLAIT_R16(x, i + 16)
#define PLAIT_D32                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PLAIT_D128                                                                                 \
    PLAIT_D32 ", "                                                                                 \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "       \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
    "%126, %127"

/* The instruction for each element type; T is __nv_bfloat16 or __half. A macro because inline
   assembly takes its text as a literal. */
#define PLAIT_PRODUCTS(T, TYPE)                                                                    \
    /* s[64][64] (+)= a[64][16] * b[64][16]^T */                                                   \
    PLAIT_DEVICE void product_64x64(T, float(&s)[32], uint64_t a, uint64_t b, int32_t add)         \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "               \
                     "{" PLAIT_D32 "}, %32, %33, p, 1, 1, 0, 0;\n}"                                \
                     : PLAIT_R32(s, 0)                                                             \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }                                                                                              \
    /* o[64][256] (+)= a[64][16] * b[16][256], a in shared memory */                               \
    PLAIT_DEVICE void product_64x256(T, float(&o)[128], uint64_t a, uint64_t b, int32_t add)       \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                 \
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " "              \
                     "{" PLAIT_D128 "}, %128, %129, p, 1, 1, 0, 1;\n}"                             \
                     : PLAIT_R32(o, 0), PLAIT_R32(o, 32), PLAIT_R32(o, 64), PLAIT_R32(o, 96)       \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }                                                                                              \
    /* the same with a in registers */                                                             \
    PLAIT_DEVICE void product_64x256(T, float(&o)[128], const uint32_t *a, uint64_t b,             \
                                     int32_t add)                                                  \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"                                 \
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " "              \
                     "{" PLAIT_D128 "}, {%128, %129, %130, %131}, %132, p, 1, 1, 1;\n}"            \
                     : PLAIT_R32(o, 0), PLAIT_R32(o, 32), PLAIT_R32(o, 64), PLAIT_R32(o, 96)       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
    }
PLAIT_PRODUCTS(__nv_bfloat16, "bf16")
PLAIT_PRODUCTS(__half, "f16")

/* ---- values --------------------------------------------------------------------------------- */

PLAIT_DEVICE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

PLAIT_DEVICE uint32_t pack(__nv_bfloat16, float low, float high)
{
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

PLAIT_DEVICE uint32_t pack(__half, float low, float high)
{
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

/* Whether one of the two values is an infinity or NaN. */
PLAIT_DEVICE bool not_finite(__nv_bfloat16, uint32_t x)
{
    return (x & 0x7f80u) == 0x7f80u || (x & 0x7f800000u) == 0x7f800000u;
}

PLAIT_DEVICE bool not_finite(__half, uint32_t x)
{
    return (x & 0x7c00u) == 0x7c00u || (x & 0x7c000000u) == 0x7c000000u;
}

#endif
