// Decode GEMM: y[m, n] = multiplier[n] * sum_k x[m, k] * w[n, k] for a few rows of x, as fast as w can be read once.
//
// README.md of kernels/nvfp4 explains the layout. In short: each lane of a warp finds in one 16-byte load exactly the
// weights that its own mma.m16n8k16 operand needs, so weights never change lanes. They travel through a ring in shared
// memory that belongs to the warp alone: the main loop has no barrier of the block. Some warps of a block divide K, the
// others its rows; sums over K meet once per 48 rows (FP8: 32), in a fixed order, so the same row gives the same bits in any batch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include <algorithm>
#include <type_traits>

#include "launch.cuh"

namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr int kTileK = 64;
constexpr int kTokens = 8;  // of one mma

enum Format { kNvfp4 = 0, kFp8 = 1 };
enum Output { kFloat = 0, kSiluMul = 1, kBfloat16 = 2 };

struct Args {
  const void* x;            // [m, k] in 16 bits: bf16 for nvfp4, float16 for fp8, whose weights become float16
  const char* codes;        // [n / 16][k / 64][32 lanes] of 16 bytes; fp8: [n / 16][k / 64][2][32 lanes] of 16 bytes
  const char* scales;       // nvfp4: [n / 16][k / 64][32 lanes] of 2 bytes
  const float* multiplier;  // [n]
  void* y;                  // kFloat: f32 [splits, m, n]; kSiluMul: x's type [m, n / 2]; kBfloat16: [m, n]
  const float4* square_sums;  // null, or [m]: sums of squares in four parts; row m of y is divided by its root mean square
  float square_scale;       // 1 / width of the norm
  int m, n, k, splits;
  int fewest_tiles;         // of rows, that a group of warps has; others have one more
  Divisor by_splits, by_groups, by_sets, by_more_sets;  // the last two: sets of a group with the fewest tiles, and with one more
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void copy16(uint32_t to, const char* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

__device__ __forceinline__ uint4 load16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from));
  return v;
}

__device__ __forceinline__ void store16(uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Eight e2m1 codes of one word, in the bit plan of pack.py, to four pairs of bf16, times a scale given as a bf16 pair.
__device__ __forceinline__ void decode8(uint32_t w, uint32_t scale, uint32_t (&out)[4]) {
  constexpr uint32_t kMask = 0x81C081C0u;  // sign and the three magnitude bits, at the bottom of bf16's exponent
  out[0] = w & kMask;
  out[1] = __funnelshift_r(w, w, 3) & kMask;
  out[2] = __funnelshift_r(w, w, 6) & kMask;
  out[3] = ((w & 0x001B001Bu) * 0x4108u) & kMask;
#pragma unroll
  for (int i = 0; i < 4; ++i) asm("mul.bf16x2 %0, %0, %1;" : "+r"(out[i]) : "r"(scale));
}

// Byte `index` of the word is an unsigned e5m3 scale; the result is that scale times 2^118 as a pair of bf16.
template <int index>
__device__ __forceinline__ uint32_t scale_pair(uint32_t word) {
  return __byte_perm(word, 0, 0x4040u | index | (index << 8)) * 16u + 0x75807580u;
}

__device__ __forceinline__ uint32_t load2(uint32_t from) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from));
  return v;
}

template <int threads>
__device__ __forceinline__ void barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(threads) : "memory");
}

__device__ __forceinline__ uint32_t half_pair(uint32_t two_bytes) {
  uint32_t out;
  asm("{ .reg .b16 t; cvt.u16.u32 t, %1; cvt.rn.f16x2.e4m3x2 %0, t; }" : "=r"(out) : "r"(two_bytes));
  return out;
}

template <Format format>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (format == kNvfp4) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

template <Format format>
constexpr int kPieces = format == kNvfp4 ? 3 : 2;  // tiles of 16 rows that a warp works on at a time
template <Format format>
constexpr int kStage = kPieces<format> * kTileK * 16 * (format == kNvfp4 ? 9 : 16) / 16;  // bytes, of one warp
constexpr int kStages = 3;

// Bytes from one row of x to the next in shared memory: eight lanes that read sixteen bytes each meet all banks.
__host__ __device__ constexpr int x_pitch(int tiles) { return tiles * kTileK * 2 + 16; }

// This part of the rows of x, two warps a row of eight, else one. Ten loads a thread are under way before the first is stored;
// `meanwhile` is called once, behind the first of them. Rows that are not there stay as they are: nobody reads their sums.
template <int token_tiles, typename Meanwhile>
__device__ __forceinline__ void stage_x(const Args& a, uint32_t xs, int tile0, int tiles, Meanwhile meanwhile) {
  constexpr int kRows = kTokens * token_tiles, kShared = kRows < kWarps ? kWarps / kRows : 1, kBatch = 10;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunks = tiles * 8, first = warp / kRows * 32 + lane;
  bool called = false;
#pragma unroll
  for (int row = warp % kRows; row < kRows; row += kWarps) {
    const char* const from = static_cast<const char*>(a.x) + (int64_t(row) * a.k + tile0 * kTileK) * 2;
    const uint32_t to = xs + row * x_pitch(tiles);
    for (int chunk0 = first; chunk0 < chunks && row < a.m; chunk0 += kBatch * kShared * 32) {
      uint4 loaded[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int chunk = chunk0 + b * kShared * 32;
        if (chunk < chunks) loaded[b] = *reinterpret_cast<const uint4*>(from + chunk * 16);
      }
      if (!called) meanwhile();
      called = true;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int chunk = chunk0 + b * kShared * 32;
        if (chunk < chunks) store16(to + chunk * 16, loaded[b]);
      }
    }
  }
  if (!called) meanwhile();
}

template <Format format, int token_tiles, int k_warps, Output output>
__global__ void __launch_bounds__(kThreads, 1) stream_gemm(const Args a) {
  constexpr int kParts = kPieces<format>, kGroups = kWarps / k_warps, kGroupThreads = k_warps * 32;
  constexpr int kPieceBytes = format == kNvfp4 ? 512 : 1024;
  constexpr int kPitch = kParts * 16 + 4;  // of one token in the exchange buffer; keeps stores off one bank
  constexpr int kReducers = kTokens * kParts * 4;  // threads that sum up, four rows of one token each
  static_assert(kReducers <= kGroupThreads);
  extern __shared__ __align__(16) char shared[];
  float* const exchange = reinterpret_cast<float*>(shared + kStages * kWarps * kStage<format>);  // [warps][tokens][pitch]
  const uint32_t xs = shared_address(exchange + kWarps * kTokens * kPitch);  // [rows of x][this part of K]

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k_warp = warp % k_warps, group = warp / k_warps;
  const int tiles_k = a.k / kTileK, row_tiles = a.n / 16;
  const int block = a.by_splits(blockIdx.x), slice = blockIdx.x - block * a.splits, index = block * kGroups + group;
  const int k0 = a.by_splits(slice * tiles_k), k1 = a.by_splits((slice + 1) * tiles_k);
  const int steps = (k1 - k0 - k_warp + k_warps - 1) / k_warps;  // of this warp, for each set of rows
  const int row0 = a.by_groups(index * row_tiles), row1 = a.by_groups((index + 1) * row_tiles);

  // A group's tiles in sets of up to kParts, as even as they go: a last set of one tile would leave the memory idle.
  const int tiles = row1 - row0, sets = (tiles + kParts - 1) / kParts;
  Divisor by_sets = a.by_sets;
  if (tiles > a.fewest_tiles) by_sets = a.by_more_sets;
  const auto set_start = [&](int set) { return row0 + by_sets(set * tiles); };

  const uint32_t ring = shared_address(shared) + warp * kStages * kStage<format>;
  const int64_t piece_stride = int64_t(tiles_k) * kPieceBytes, scale_stride = int64_t(tiles_k) * 64;
  const int64_t first = int64_t(row0) * tiles_k + k0 + k_warp;

  // The next load, running ahead of the arithmetic from one set of rows to the next.
  const char* codes_from = a.codes + first * kPieceBytes + lane * 16;
  // Lanes 4 p … 4 p + 3 fetch the 64 scale bytes of piece p.
  const char* scales_from = a.scales + first * 64 + (lane / 4) * scale_stride + (lane % 4) * 16;
  int load_set = 0, load_step = 0, load_pieces = sets ? set_start(1) - row0 : 0;
  uint32_t load_to = ring + lane * 16;
  const auto issue = [&]() {
    if (load_set < sets && steps > 0) {
#pragma unroll
      for (int p = 0; p < kParts; ++p)
        if (p < load_pieces) {
          copy16(load_to + p * kPieceBytes, codes_from + p * piece_stride);
          if constexpr (format == kFp8) copy16(load_to + p * kPieceBytes + 512, codes_from + p * piece_stride + 512);
        }
      if (format == kNvfp4 && lane < 4 * load_pieces) copy16(load_to + kParts * kPieceBytes, scales_from);
      if (++load_step < steps) {
        codes_from += k_warps * kPieceBytes, scales_from += k_warps * 64;
      } else {
        load_step = 0, ++load_set;
        codes_from += load_pieces * piece_stride - int64_t(steps - 1) * (k_warps * kPieceBytes);
        scales_from += load_pieces * scale_stride - int64_t(steps - 1) * (k_warps * 64);
        load_pieces = set_start(load_set + 1) - set_start(load_set);
      }
    }
    asm volatile("cp.async.commit_group;");
    load_to += kStage<format>;
    if (load_to == ring + lane * 16 + kStages * kStage<format>) load_to -= kStages * kStage<format>;
  };

  asm volatile("griddepcontrol.launch_dependents;");
  issue();
  // Which token and rows this thread sums up, when it is the turn of its part of the group.
  const int worker = threadIdx.x % kGroupThreads, role = worker % kReducers, token = role / (kParts * 4), quad = role % (kParts * 4);
  // Weights do not depend on the kernel before this one; everything below does. One stage of them goes ahead of x, the
  // others follow it: x is needed first, and would otherwise wait for them all.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  float4 squares[token_tiles];
#pragma unroll
  for (int nt = 0; nt < token_tiles; ++nt)
    if (a.square_sums && nt * kTokens + token < a.m) squares[nt] = a.square_sums[nt * kTokens + token];
  stage_x<token_tiles>(a, xs, k0, k1 - k0, [&]() {
#pragma unroll
    for (int i = 1; i < kStages - 1; ++i) issue();
  });
  float token_scale[token_tiles];
#pragma unroll
  for (int nt = 0; nt < token_tiles; ++nt) {
    token_scale[nt] = format == kNvfp4 ? 256.0f : 1.0f;  // decode8 leaves 2^-8
    if (a.square_sums && nt * kTokens + token < a.m) {
      const float4 part = squares[nt];
      token_scale[nt] *= rsqrtf((part.x + part.y + part.z + part.w) * a.square_scale + 1e-6f);
    }
  }
  __syncthreads();

  uint32_t at = ring + lane * 16, scales_at = ring + kParts * kPieceBytes + lane * 2;
  const uint32_t ring_end = at + kStages * kStage<format>;
  int turn = 0;
  for (int set = 0; set < sets; ++set) {
    const int row = set_start(set), pieces = set_start(set + 1) - row;
    float4 row_scale = make_float4(0, 0, 0, 0);
    if (quad < pieces * 4) row_scale = *reinterpret_cast<const float4*>(a.multiplier + row * 16 + quad * 4);
    float acc[kParts][token_tiles][4] = {};
    uint32_t x_at = xs + lane / 4 * x_pitch(k1 - k0) + (k_warp * 4 + lane % 4) * 32;
    // A loop for each size of a set, without branches, so that the tiles' instructions interleave.
    const auto accumulate = [&](auto size) {
      for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
        __syncwarp();  // the scales were fetched by other lanes, and the slot to be refilled was read by all
        issue();
        // With four token tiles registers hold x for one half of the step only: then the tiles are passed twice.
        constexpr int kHeld = token_tiles <= 2 ? 2 : 1;
#pragma unroll
        for (int pass = 0; pass < 2 / kHeld; ++pass) {
          uint4 xv[kHeld][token_tiles];
#pragma unroll
          for (int half = 0; half < kHeld; ++half)
#pragma unroll
            for (int nt = 0; nt < token_tiles; ++nt) xv[half][nt] = load16(x_at + nt * kTokens * x_pitch(k1 - k0) + (pass + half) * 16);
#pragma unroll
          for (int p = 0; p < decltype(size)::value; ++p) {
            const uint4 w = load16(at + p * kPieceBytes);
            [[maybe_unused]] uint4 w8;
            [[maybe_unused]] uint32_t scale_low, scale_high;
            if constexpr (format == kNvfp4) {
              const uint32_t scales = load2(scales_at + p * 64);
              scale_low = scale_pair<0>(scales), scale_high = scale_pair<1>(scales);
            } else {
              w8 = load16(at + p * kPieceBytes + 512);
            }
#pragma unroll
            for (int held = 0; held < kHeld; ++held) {
              const bool second = pass + held;
              uint32_t low[4], high[4];  // rows g and g + 8: eight values each
              if constexpr (format == kNvfp4) {
                decode8(second ? w.y : w.x, scale_low, low);
                decode8(second ? w.w : w.z, scale_high, high);
              } else {
                const uint32_t l0 = second ? w.z : w.x, l1 = second ? w.w : w.y, h0 = second ? w8.z : w8.x, h1 = second ? w8.w : w8.y;
                low[0] = half_pair(l0 & 0xFFFFu), low[1] = half_pair(l0 >> 16), low[2] = half_pair(l1 & 0xFFFFu), low[3] = half_pair(l1 >> 16);
                high[0] = half_pair(h0 & 0xFFFFu), high[1] = half_pair(h0 >> 16), high[2] = half_pair(h1 & 0xFFFFu), high[3] = half_pair(h1 >> 16);
              }
#pragma unroll
              for (int j = 0; j < 2; ++j) {
                const uint32_t operand[4] = {low[2 * j], high[2 * j], low[2 * j + 1], high[2 * j + 1]};
#pragma unroll
                for (int nt = 0; nt < token_tiles; ++nt) {
                  const uint4& x4 = xv[held][nt];
                  multiply<format>(acc[p][nt], operand, j ? x4.z : x4.x, j ? x4.w : x4.y);
                }
              }
            }
          }
        }
        at += kStage<format>, scales_at += kStage<format>;
        if (at == ring_end) at -= kStages * kStage<format>, scales_at -= kStages * kStage<format>;
        x_at += k_warps * kTileK * 2;
      }
    };
    if (pieces == 3) accumulate(std::integral_constant<int, kParts>{});
    else if (pieces == 2) accumulate(std::integral_constant<int, 2>{});
    else accumulate(std::integral_constant<int, 1>{});

#pragma unroll
    for (int nt = 0; nt < token_tiles; ++nt) {
      float* const sums = exchange + group * k_warps * kTokens * kPitch;
      float* const mine = sums + k_warp * kTokens * kPitch + (lane % 4) * 2 * kPitch + lane / 4;
      barrier<kGroupThreads>(1 + group);  // the last sums have been read
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        mine[p * 16] = acc[p][nt][0];
        mine[kPitch + p * 16] = acc[p][nt][1];
        mine[p * 16 + 8] = acc[p][nt][2];
        mine[kPitch + p * 16 + 8] = acc[p][nt][3];
      }
      barrier<kGroupThreads>(1 + group);
      // Parts of the group take turns, so that no warp falls behind.
      const int m = nt * kTokens + token;
      const bool my_turn = worker / kReducers == turn % (kGroupThreads / kReducers);
      ++turn;
      if (!my_turn || m >= a.m || quad >= pieces * 4) continue;
      float4 sum = *reinterpret_cast<const float4*>(sums + token * kPitch + quad * 4);
#pragma unroll
      for (int w = 1; w < k_warps; ++w) {
        const float4 part = *reinterpret_cast<const float4*>(sums + (w * kTokens + token) * kPitch + quad * 4);
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
      }
      const float scale = token_scale[nt];
      sum.x *= row_scale.x * scale, sum.y *= row_scale.y * scale, sum.z *= row_scale.z * scale, sum.w *= row_scale.w * scale;
      const int n = row * 16 + quad * 4;
      if constexpr (output == kFloat) {
        *reinterpret_cast<float4*>(static_cast<float*>(a.y) + (int64_t(slice) * a.m + m) * a.n + n) = sum;
      } else if constexpr (output == kBfloat16) {
        __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(sum.x, sum.y), __floats2bfloat162_rn(sum.z, sum.w)};
        *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.y) + int64_t(m) * a.n + n) = *reinterpret_cast<uint2*>(pair);
      } else {
        // Rows 0 to 7 of a tile are gates, rows 8 to 15 their partners, two quads further on.
        const unsigned peers = __activemask();
        float4 up;
        up.x = __shfl_down_sync(peers, sum.x, 2), up.y = __shfl_down_sync(peers, sum.y, 2);
        up.z = __shfl_down_sync(peers, sum.z, 2), up.w = __shfl_down_sync(peers, sum.w, 2);
        if (quad % 4 < 2) {
          float v[4] = {sum.x, sum.y, sum.z, sum.w};
          const float u[4] = {up.x, up.y, up.z, up.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) v[i] = v[i] / (1.0f + __expf(-v[i])) * u[i];
          const int64_t to = int64_t(m) * (a.n / 2) + (row + quad / 4) * 8 + quad % 4 * 4;
          if constexpr (format == kNvfp4) {
            __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v[0], v[1]), __floats2bfloat162_rn(v[2], v[3])};
            *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.y) + to) = *reinterpret_cast<uint2*>(pair);
          } else {
            __half2 pair[2] = {__floats2half2_rn(v[0], v[1]), __floats2half2_rn(v[2], v[3])};
            *reinterpret_cast<uint2*>(static_cast<__half*>(a.y) + to) = *reinterpret_cast<uint2*>(pair);
          }
        }
      }
    }
  }
}

// Packed weights back to bf16 code x scale [n, k], for products of many rows. One warp a tile.
__global__ void __launch_bounds__(256) dequantize(const char* codes, const char* scales, __nv_bfloat16* w, int k, int64_t tiles) {
  const int64_t tile = int64_t(blockIdx.x) * 8 + threadIdx.x / 32;
  if (tile >= tiles) return;
  const int lane = threadIdx.x % 32, tiles_k = k / kTileK;
  const uint4 c = *reinterpret_cast<const uint4*>(codes + tile * 512 + lane * 16);
  const uint32_t s = *reinterpret_cast<const uint16_t*>(scales + tile * 64 + lane * 2);
  __nv_bfloat16* const to = w + (tile / tiles_k * 16 + lane / 4) * int64_t(k) + tile % tiles_k * kTileK + lane % 4 * 16;
  const uint32_t words[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t v[4];
    decode8(words[i], i < 2 ? scale_pair<0>(s) : scale_pair<1>(s), v);
#pragma unroll
    for (int j = 0; j < 4; ++j) asm("mul.bf16x2 %0, %0, %1;" : "+r"(v[j]) : "r"(0x43804380u));  // decode8 leaves 2^-8
    *reinterpret_cast<uint4*>(to + (i < 2 ? 0 : int64_t(8) * k) + i % 2 * 8) = make_uint4(v[0], v[1], v[2], v[3]);
  }
}

template <Format format, int token_tiles, int k_warps, Output output>
int launch(Args args, int blocks, bool overlap, cudaStream_t stream) {
  constexpr int kParts = kPieces<format>;
  const int groups = blocks / args.splits * (kWarps / k_warps), fewest = args.n / 16 / groups;
  args.fewest_tiles = fewest, args.by_splits = Divisor(args.splits), args.by_groups = Divisor(groups);
  args.by_sets = Divisor(std::max((fewest + kParts - 1) / kParts, 1)), args.by_more_sets = Divisor(fewest / kParts + 1);
  const int slice_tiles = (args.k / kTileK + args.splits - 1) / args.splits;
  const int bytes = kStages * kWarps * kStage<format> + kWarps * kTokens * (kParts * 16 + 4) * 4 +
                    kTokens * token_tiles * x_pitch(slice_tiles);
  if (bytes > 232448) return -1;
  return launch_kernel(stream_gemm<format, token_tiles, k_warps, output>, args, dim3(blocks), kThreads, bytes, overlap, stream);
}

template <Format format, int token_tiles, int k_warps>
int choose_output(const Args& args, int output, int blocks, bool overlap, cudaStream_t stream) {
  if (output == kFloat) return launch<format, token_tiles, k_warps, kFloat>(args, blocks, overlap, stream);
  if (output == kSiluMul) return launch<format, token_tiles, k_warps, kSiluMul>(args, blocks, overlap, stream);
  if (output == kBfloat16) return launch<format, token_tiles, k_warps, kBfloat16>(args, blocks, overlap, stream);
  return -2;
}

// More rows of x leave room for less of K, so fewer warps can share it.
template <Format format>
int choose_tokens(const Args& args, int k_warps, int output, int blocks, bool overlap, cudaStream_t stream) {
  if (args.m <= 8 && k_warps == 16) return choose_output<format, 1, 16>(args, output, blocks, overlap, stream);
  if (args.m <= 8 && k_warps == 8) return choose_output<format, 1, 8>(args, output, blocks, overlap, stream);
  if (args.m <= 8 && k_warps == 4) return choose_output<format, 1, 4>(args, output, blocks, overlap, stream);
  if (args.m <= 16 && k_warps == 8) return choose_output<format, 2, 8>(args, output, blocks, overlap, stream);
  if (args.m <= 16 && k_warps == 4) return choose_output<format, 2, 4>(args, output, blocks, overlap, stream);
  if (args.m <= 32 && k_warps == 4) return choose_output<format, 4, 4>(args, output, blocks, overlap, stream);
  return -2;
}

}  // namespace

extern "C" int stream_gemm_launch(int format, const void* x, const void* codes, const void* scales, const float* multiplier,
                                  void* y, const void* square_sums, float square_scale, int m, int n, int k,
                                  int splits, int k_warps, int output, int blocks, int overlap, void* stream) {
  const Args args{x, static_cast<const char*>(codes), static_cast<const char*>(scales), multiplier, y,
                  static_cast<const float4*>(square_sums), square_scale, m, n, k, splits, 0, {}, {}, {}, {}};
  const auto s = static_cast<cudaStream_t>(stream);
  return format == kNvfp4 ? choose_tokens<kNvfp4>(args, k_warps, output, blocks, overlap, s)
                          : choose_tokens<kFp8>(args, k_warps, output, blocks, overlap, s);
}

extern "C" int dequantize_launch(const void* codes, const void* scales, void* w, int n, int k, void* stream) {
  const int64_t tiles = int64_t(n / 16) * (k / kTileK);
  dequantize<<<static_cast<unsigned>((tiles + 7) / 8), 256, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const char*>(codes), static_cast<const char*>(scales), static_cast<__nv_bfloat16*>(w), k, tiles);
  return cudaGetLastError();
}
