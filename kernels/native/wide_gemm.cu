// Decode GEMM for 9 to 128 rows of x: y[m, n] = multiplier[n] * sum_k x[m, k] * w[n, k]. stream_gemm.cu has the same for fewer.
//
// The weights are packed as there: each lane finds in one 16-byte load what its own operand of wgmma.m64nNk16 needs, so weights
// go from memory to registers and are decoded there; x is the operand in shared memory, in the order of K that the weights have.
// A block works on 256 rows of w, sixteen a warp, and walks along K in stages of 256. All blocks have equal shares of (rows of
// w) x K, so a set of rows may be shared by blocks that follow one another: each writes a part of the sum, and the parts are
// added in order by whichever kernel comes next. Which part of K a block has does not depend on m: the same row gives the same
// bits in any batch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "launch.cuh"

namespace {

constexpr int kWarps = 16;                  // each has sixteen of the 256 rows that a block works on at a time
constexpr int kThreads = kWarps * 32;
constexpr int kTileK = 64;
constexpr int kTiles = 4;  // of 64 along K: one stage
constexpr int kFetched = 2;  // stages that the L2 is told of before they are loaded, the one being loaded among them

enum Format { kNvfp4 = 0, kFp8 = 1 };

struct Args {
  const char* x;            // [m, k] in 16 bits: bf16 for nvfp4, float16 for fp8, whose weights become float16
  const char* codes;        // [n / 16][k / 64][32 lanes] of 16 bytes; fp8: [n / 16][k / 64][2][32 lanes] of 16 bytes
  const char* scales;       // nvfp4: [n / 16][k / 64][32 lanes] of 2 bytes
  const float* multiplier;  // [n]
  float* y;                 // [m, n] of the first part
  int64_t part_stride;      // from one part to the next
  const float4* square_sums;  // null, or [m]: sums of squares in four parts; row m of y is divided by its root mean square
  float square_scale;       // 1 / width of the norm
  int m, n, k, parts;       // k is a multiple of 256
  Divisor by_blocks, by_stages, by_units;  // blocks, stages of 256 along K, and all units of (256 rows, stage)
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four bytes, or zeros.
__device__ __forceinline__ void copy4_or_zero(uint32_t to, const char* from, bool live) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(live ? 4 : 0));
}

// Weights are read once: they pass by the L1.
__device__ __forceinline__ uint4 load16(const char* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

__device__ __forceinline__ uint32_t load2(const char* from) {
  uint16_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(from));
  return v;
}

__device__ __forceinline__ uint32_t times(uint32_t a, __nv_bfloat162 b) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a), b);
  return *reinterpret_cast<const uint32_t*>(&product);
}

// Eight e2m1 codes of one word, in the bit plan of pack.py, to four pairs of bf16, times a scale.
__device__ __forceinline__ void decode8(uint32_t w, __nv_bfloat162 scale, uint32_t (&out)[4]) {
  constexpr uint32_t kMask = 0x81C081C0u;  // sign and the three magnitude bits, at the bottom of bf16's exponent
  out[0] = times(w & kMask, scale);
  out[1] = times(__funnelshift_r(w, w, 3) & kMask, scale);
  out[2] = times(__funnelshift_r(w, w, 6) & kMask, scale);
  out[3] = times(((w & 0x001B001Bu) * 0x4108u) & kMask, scale);
}

__device__ __forceinline__ uint32_t half_pair(uint32_t two_bytes) {
  uint32_t out;
  asm("{ .reg .b16 t; cvt.u16.u32 t, %1; cvt.rn.f16x2.e4m3x2 %0, t; }" : "=r"(out) : "r"(two_bytes));
  return out;
}

// What a lane holds of one warp's 16 rows by 64 of K: sixteen columns of rows g and g + 8, and their scales.
template <Format format>
struct Raw {
  uint4 codes[format == kNvfp4 ? 1 : 2];
  uint32_t scales;
};

template <Format format>
__device__ __forceinline__ void load_raw(Raw<format>& raw, const char* codes, const char* scales) {
  raw.codes[0] = load16(codes);
  if constexpr (format == kFp8) raw.codes[1] = load16(codes + 512);
  else raw.scales = load2(scales);
}

// As the left operands of four steps of 16 along K.
template <Format format>
__device__ __forceinline__ void decode_tile(const Raw<format>& raw, uint32_t (&a)[16]) {
  if constexpr (format == kNvfp4) {
    // Both bytes are unsigned e5m3 scales; here they are times 2^118, as a pair of bf16.
    const uint32_t pair = __byte_perm(raw.scales, 0, 0x4140u) * 16u + 0x75807580u;
    const __nv_bfloat162 both = *reinterpret_cast<const __nv_bfloat162*>(&pair);
    const uint4 c = raw.codes[0];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t low[4], high[4];
      decode8(half ? c.y : c.x, __low2bfloat162(both), low);
      decode8(half ? c.w : c.z, __high2bfloat162(both), high);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[half * 8 + i * 2] = low[i], a[half * 8 + i * 2 + 1] = high[i];
    }
  } else {
    const uint4 l = raw.codes[0], h = raw.codes[1];
    const uint32_t low[4] = {l.x, l.y, l.z, l.w}, high[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      a[j * 4] = half_pair(low[j] & 0xFFFFu), a[j * 4 + 1] = half_pair(high[j] & 0xFFFFu);
      a[j * 4 + 2] = half_pair(low[j] >> 16), a[j * 4 + 3] = half_pair(high[j] >> 16);
    }
  }
}

// c += a x, where x lies in shared memory as [tokens][128 bytes of K], sixteen-byte chunk c of token t at c ^ (t % 8).
template <Format format, int tokens>
struct Wide;

#define C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define C16(i) C4(i), C4(i + 4), C4(i + 8), C4(i + 12)
#define R4 "%0,%1,%2,%3"
#define R8 R4 ",%4,%5,%6,%7"
#define R16 R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define R32 R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WIDE(FORMAT, TYPE, TOKENS, REGISTERS, A0, A1, A2, A3, D, ...)                                                      \
  template <>                                                                                                              \
  struct Wide<FORMAT, TOKENS> {                                                                                            \
    static __device__ __forceinline__ void multiply(float* c, const uint32_t* a, uint64_t b) {                             \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #TOKENS "k16.f32." TYPE "." TYPE " {" REGISTERS "}, {" A0 "," A1    \
                   "," A2 "," A3 "}, " D ", 1, 1, 1, 0;"                                                                   \
                   : __VA_ARGS__                                                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                  \
    }                                                                                                                      \
  };
#define WIDE_SIZES(FORMAT, TYPE)                                                                                           \
  WIDE(FORMAT, TYPE, 8, R4, "%4", "%5", "%6", "%7", "%8", C4(0))                                                           \
  WIDE(FORMAT, TYPE, 16, R8, "%8", "%9", "%10", "%11", "%12", C4(0), C4(4))                                                \
  WIDE(FORMAT, TYPE, 32, R16, "%16", "%17", "%18", "%19", "%20", C16(0))                                                   \
  WIDE(FORMAT, TYPE, 64, R32, "%32", "%33", "%34", "%35", "%36", C16(0), C16(16))
WIDE_SIZES(kNvfp4, "bf16")
WIDE_SIZES(kFp8, "f16")
#undef WIDE_SIZES
#undef WIDE

template <Format format, int tokens>
struct Plan {
  static constexpr int kCodes = format == kNvfp4 ? 512 : 1024;  // bytes of one tile of sixteen rows
  static constexpr int kStage = kTiles * tokens * kTileK * 2;
  static constexpr int kStages = 131072 / kStage < 6 ? 131072 / kStage : 6;
  static constexpr int kAhead = kStages / 2;  // stages of x under way; the rest is room for warps to drift apart
  static constexpr int kBytes = kStages * (kStage + 16) + tokens * 4;
};

__device__ __forceinline__ void wait_for(uint32_t barrier, int parity) {
  asm volatile(
      "{ .reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
      "@!p bra again; }" ::"r"(barrier), "r"(parity) : "memory");
}

template <Format format, int tokens>
__global__ void __launch_bounds__(kThreads, 1) wide_gemm(const Args a) {
  using P = Plan<format, tokens>;
  extern __shared__ __align__(1024) char shared[];
  const uint32_t ring = shared_address(shared), full = ring + P::kStages * P::kStage, empty = full + P::kStages * 8;
  float* const token_scales = reinterpret_cast<float*>(shared + P::kStages * (P::kStage + 16));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int stages_k = a.k / (kTiles * kTileK), row_tiles = a.n / 16, tiles = (row_tiles + kWarps - 1) / kWarps;
  // This block's share of (tile of 256 rows, stage of K); with one part, whole tiles.
  const int total = tiles * stages_k, block = blockIdx.x;
  const auto boundary = [&](int b) { return a.parts == 1 ? a.by_blocks(tiles * b) * stages_k : a.by_blocks(total * b); };
  const int unit0 = boundary(block);
  int left = boundary(block + 1) - unit0, tile = a.by_stages(unit0), k = unit0 - tile * stages_k;

  asm volatile("griddepcontrol.launch_dependents;");
  if (threadIdx.x == 0) {
    for (int s = 0; s < P::kStages; ++s) {
      asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(full + s * 8), "n"(kThreads));
      asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(empty + s * 8), "n"(kWarps));
    }
  }

  // Weights do not depend on the kernel before this one: the first of them go ahead. Everything else does.
  constexpr int kCodes = kTiles * P::kCodes, kScales = format == kNvfp4 ? kTiles * 64 : 0;
  const int64_t first = (int64_t(tile) * kWarps + warp) * stages_k + k;
  const char* codes = a.codes + first * kCodes + lane * 16;
  const char* scales = a.scales + first * kScales + lane * 2;
  Raw<format> raw[kTiles] = {};
  // Only as far as the row goes: the next one is another warp's, sixteen rows further on this one's.
  const auto tell_l2 = [&](int ahead) {
    const char* const line = lane * 128 < kCodes ? codes + ahead * kCodes + lane * 112 : scales + ahead * kScales - lane * 2 + (lane * 128 - kCodes);
    if (k + ahead < stages_k && lane * 128 < kCodes + kScales) asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
  };
  if (left > 0 && tile * kWarps + warp < row_tiles) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) load_raw(raw[i], codes + i * P::kCodes, scales + i * 64);
    for (int ahead = 1; ahead < kFetched && format == kNvfp4; ++ahead) tell_l2(ahead);
  }
  __syncthreads();
  asm volatile("griddepcontrol.wait;" ::: "memory");

  // x as [64 of K][tokens] of 128 bytes, a warp a row at a time, once all warps have read what stood there before. Pair q of a
  // row's 32 goes where the lanes' weights have it: lane 4 g + t works on columns 16 t to 16 t + 15, four a step. The sixteen
  // bytes that hold it then stand where wgmma's 128-byte swizzle puts them.
  constexpr int kRows = kTiles * tokens / kWarps, kGap = tokens < kWarps ? 1 : tokens / kWarps;  // rows of a warp; until its token returns
  const int token = warp % tokens, sixteen = lane / 2 % 4 * 2 + lane % 2;
  const uint32_t x_to = ring + warp * 128 + (sixteen ^ warp % 8) * 16 + lane / 8 * 4;
  const char* x_from = a.x + (int64_t(token) * a.k + k * (kTiles * kTileK) + (tokens < kWarps ? warp / tokens * kTileK : 0)) * 2 + lane * 4;
  int x_k = k, x_left = left, x_slot = 0, x_parity = 1;
  const auto fetch_x = [&]() {
    if (x_left-- <= 0) return;
    wait_for(empty + x_slot * 8, x_parity);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int of = token + i % kGap * kWarps, tile = tokens < kWarps ? i * (kWarps / tokens) : i / kGap;
      const char* const from = x_from + int64_t(i % kGap * kWarps) * a.k * 2 + tile * 128;
      copy4_or_zero(x_to + x_slot * P::kStage + i * (kWarps * 128), of < a.m ? from : a.x, of < a.m);
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full + x_slot * 8) : "memory");
    x_from += kTiles * 128;
    if (++x_k == stages_k) x_k = 0, x_from -= a.k * 2;
    if (++x_slot == P::kStages) x_slot = 0, x_parity ^= 1;
  };
#pragma unroll
  for (int i = 0; i < P::kAhead; ++i) fetch_x();
  if (threadIdx.x < tokens) {
    float scale = format == kNvfp4 ? 256.0f : 1.0f;  // decode8 leaves 2^-8
    if (a.square_sums && threadIdx.x < a.m) {
      const float4 part = a.square_sums[threadIdx.x];
      scale *= rsqrtf((part.x + part.y + part.z + part.w) * a.square_scale + 1e-6f);
    }
    token_scales[threadIdx.x] = scale;
  }
  __syncthreads();

  float acc[tokens / 2] = {};
  int slot = 0, parity = 0;
  while (left > 0) {
    fetch_x();
    // Where the next stage lies, whose weights are loaded while this one's are used.
    codes += kCodes, scales += kScales, ++k, --left;
    const bool is_end = k == stages_k;
    const int done_tile = tile;
    if (is_end) {
      k = 0, ++tile;
      codes += int64_t(kWarps - 1) * stages_k * kCodes, scales += int64_t(kWarps - 1) * stages_k * kScales;
    }
    const bool more = left > 0 && tile * kWarps + warp < row_tiles;
    if (format == kNvfp4 && more) tell_l2(kFetched - 1);
    // Rows of 128 bytes in the 128-byte swizzle, eights of tokens 1024 bytes apart.
    const uint64_t x = uint64_t((ring + slot * P::kStage & 0x3FFFF) >> 4) | (uint64_t(1) << 16) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 62);
    wait_for(full + slot * 8, parity);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    // While the product of one tile runs, the next is decoded into other registers.
#pragma unroll
    for (int pass = 0; pass < kTiles; pass += 2) {
      uint32_t w[2][16];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        decode_tile<format>(raw[pass + i], w[i]);
        if (more) load_raw(raw[pass + i], codes + (pass + i) * P::kCodes, scales + (pass + i) * 64);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int j = 0; j < 4; ++j) Wide<format, tokens>::multiply(acc, w[i] + j * 4, x + (pass + i) * (tokens * 128 >> 4) + j * 2);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      }
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      // Nothing below may use the sums before this point.
#pragma unroll
      for (int i = 0; i < tokens / 2; ++i) asm volatile("" : "+f"(acc[i])::"memory");
    }
    if (lane == 0) asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(empty + slot * 8) : "memory");
    if (++slot == P::kStages) slot = 0, parity ^= 1;
    if (left > 0 && !is_end) continue;

    // The end of this block's share of 256 rows: one part of their sums.
    const int first_block = a.parts == 1 ? block : a.by_units((done_tile * stages_k + 1) * static_cast<int>(gridDim.x) - 1);
    const int part = block - first_block, parts = is_end ? a.parts : part + 1;
    const int row_tile = done_tile * kWarps + warp, row = row_tile * 16 + lane / 4;
    if (row_tile < row_tiles) {
      const float low = a.multiplier[row], high = a.multiplier[row + 8];
#pragma unroll
      for (int i = 0; i < tokens / 4; ++i) {
        const int of = i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (of >= a.m) continue;
        const float scale = token_scales[of];
        float* to = a.y + part * a.part_stride + int64_t(of) * a.n + row;
        to[0] = acc[i / 2 * 4 + i % 2] * (low * scale);
        to[8] = acc[i / 2 * 4 + i % 2 + 2] * (high * scale);
        for (int p = part + 1; p < parts; ++p) to += a.part_stride, to[0] = 0.0f, to[8] = 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < tokens / 2; ++i) acc[i] = 0.0f;
  }
}

template <Format format, int tokens>
int launch(Args args, int blocks, bool overlap, cudaStream_t stream) {
  const int stages_k = args.k / (kTiles * kTileK), tiles = (args.n + kWarps * 16 - 1) / (kWarps * 16);
  args.by_blocks = Divisor(blocks), args.by_stages = Divisor(stages_k), args.by_units = Divisor(tiles * stages_k);
  return launch_kernel(wide_gemm<format, tokens>, args, dim3(blocks), kThreads, Plan<format, tokens>::kBytes, overlap, stream);
}

template <Format format>
int choose(const Args& args, int blocks, bool overlap, cudaStream_t stream) {
  if (args.m <= 8) return launch<format, 8>(args, blocks, overlap, stream);
  if (args.m <= 16) return launch<format, 16>(args, blocks, overlap, stream);
  if (args.m <= 32) return launch<format, 32>(args, blocks, overlap, stream);
  if (args.m <= 64) return launch<format, 64>(args, blocks, overlap, stream);
  // More sums than registers hold: the weights are read once for each 64 rows.
  Args rest = args;
  while (rest.m > 64) {
    Args first = rest;
    first.m = 64;
    if (const int status = launch<format, 64>(first, blocks, overlap, stream)) return status;
    rest.m -= 64, rest.y += int64_t(64) * args.n, rest.x += int64_t(64) * args.k * 2;
    if (rest.square_sums) rest.square_sums += 64;
  }
  return choose<format>(rest, blocks, overlap, stream);
}

}  // namespace

extern "C" int wide_gemm_launch(int format, const void* x, const void* codes, const void* scales, const float* multiplier,
                                  float* y, const void* square_sums, float square_scale, int m, int n, int k, int parts,
                                  int blocks, int overlap, void* stream) {
  const Args args{static_cast<const char*>(x), static_cast<const char*>(codes), static_cast<const char*>(scales), multiplier, y, int64_t(m) * n,
                  static_cast<const float4*>(square_sums), square_scale, m, n, k, parts, {}, {}, {}};
  const auto s = static_cast<cudaStream_t>(stream);
  return format == kNvfp4 ? choose<kNvfp4>(args, blocks, overlap, s) : choose<kFp8>(args, blocks, overlap, s);
}
