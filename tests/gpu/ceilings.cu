/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what a GPU can do at most: "B F", its read bandwidth in TB/s (bulk copies into shared
 * memory) and a bf16 product of 8192^3 by cuBLAS in TFLOP/s; 0 where cuBLAS is not found. Medians
 * of 20 after warming up.
 */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

enum { piece = 32768, depth = 6, timed = 20 };

static void must(cudaError_t e)
{
    if (e != cudaSuccess) {
        fprintf(stderr, "ceilings: %s\n", cudaGetErrorString(e));
        exit(1);
    }
}

__global__ void __launch_bounds__(32, 1) read_all(const char *from, int64_t pieces)
{
    extern __shared__ __align__(128) char room[];
    __shared__ uint64_t bars[depth];
    uint32_t bar = (uint32_t)__cvta_generic_to_shared(bars);
    uint32_t to = (uint32_t)__cvta_generic_to_shared(room);
    if (threadIdx.x)
        return;
    for (int i = 0; i < depth; i++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar + 8 * i) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    int64_t issued = blockIdx.x, n = 0;
    for (int64_t i = blockIdx.x; i < pieces; i += gridDim.x, n++) {
        for (; issued < pieces && issued < i + (int64_t)depth * gridDim.x; issued += gridDim.x) {
            uint32_t slot = (uint32_t)((issued - blockIdx.x) / gridDim.x % depth);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                             bar + 8 * slot),
                         "r"((uint32_t)piece)
                         : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                         "[%1], %2, [%3];" ::"r"(to + slot * piece),
                         "l"(from + issued * piece), "r"((uint32_t)piece), "r"(bar + 8 * slot)
                         : "memory");
        }
        uint32_t slot = (uint32_t)(n % depth), parity = (uint32_t)(n / depth & 1);
        asm volatile("{\n.reg .pred p;\nagain:\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                     "@!p bra again;\n}" ::"r"(bar + 8 * slot),
                     "r"(parity)
                     : "memory");
    }
}

/* 8192^3 of bf16 through cuBLAS, which is looked up at run time; its values are pinned. */
struct blas {
    void *handle;
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
};

static bool open_blas(blas *b)
{
    void *lib = dlopen("libcublas.so.13", RTLD_NOW);
    if (!lib)
        lib = dlopen("libcublas.so", RTLD_NOW);
    if (!lib)
        return false;
    auto create = (int (*)(void **))dlsym(lib, "cublasCreate_v2");
    b->gemm = (decltype(b->gemm))dlsym(lib, "cublasGemmEx");
    return create && b->gemm && create(&b->handle) == 0;
}

template <typename Fn> static double median_ms(Fn fn)
{
    cudaEvent_t begin, end;
    float ms[timed];
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    for (int i = -5; i < timed; i++) {
        must(cudaEventRecord(begin));
        fn();
        must(cudaEventRecord(end));
        must(cudaEventSynchronize(end));
        must(cudaEventElapsedTime(&ms[i < 0 ? 0 : i], begin, end));
    }
    std::sort(ms, ms + timed);
    return ms[timed / 2];
}

__global__ void randomise(uint16_t *x, int64_t n)
{
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        uint64_t z = (uint64_t)i * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        x[i] = (uint16_t)(0x3f00 | (z >> 40 & 0x80ff)); /* of either sign, 0.5 to 2 */
    }
}

int main()
{
    const int64_t bytes = (int64_t)4 << 30;
    const int n = 8192, bf16 = 14, compute_f32 = 68, any = -1;
    char *data;
    int sms;
    must(cudaMalloc(&data, bytes));
    must(cudaMemset(data, 1, bytes));
    must(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    must(cudaFuncSetAttribute(read_all, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              piece * depth));
    double ms = median_ms([&] { read_all<<<sms, 32, piece * depth>>>(data, bytes / piece); });
    must(cudaGetLastError());
    double b = (double)bytes / ms * 1e-9, f = 0;
    blas blas;
    if (open_blas(&blas)) {
        const float one = 1, zero = 0;
        int64_t size = (int64_t)n * n * 2;
        randomise<<<1024, 256>>>((uint16_t *)data, 2 * size / 2);
        int bad = 0;
        ms = median_ms([&] {
            bad |= blas.gemm(blas.handle, 1, 0, n, n, n, &one, data, bf16, n, data + size, bf16, n,
                             &zero, data + 2 * size, bf16, n, compute_f32, any);
        });
        f = bad ? 0 : 2.0 * n * n * n / ms * 1e-9;
    }
    printf("%.3f %.1f\n", b, f);
    return 0;
}
