// What the kernels of a decode step share: how they are launched, and divisions that the host prepares.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

// Division by a number that the host knows. A block that starts late holds up the launch behind it, and each plain division
// costs it a tenth of a microsecond. Exact for numerators from 0 to 2^48 / divisor.
struct Divisor {
  uint64_t factor = 0;
  Divisor() = default;
  __host__ explicit Divisor(int by) : factor(((uint64_t(1) << 48) + by - 1) / by) {}
  __device__ __forceinline__ int operator()(int of) const { return static_cast<int>(__umul64hi(uint64_t(of) << 16, factor)); }
};

// With `overlap` the launch may begin before the one in front of it on the stream has ended.
template <typename Args>
cudaError_t launch_kernel(void (*kernel)(Args), const Args& args, dim3 blocks, int threads, int shared_bytes, bool overlap, cudaStream_t stream) {
  if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes)) return e;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}
