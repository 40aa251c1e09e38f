// Attention of one query row a sequence over pages in two stages, FP8 and three bits, and the encoder of the latter.
//
// kernels/paged_attention/README.md has the arithmetic. A block of four warps takes one row, one KV head and one run of pages.
//
// Three-bit pages come first, each warp by itself over every fourth of them: it fetches a page into room of its own, computes the
// scores of all 64 tokens, keeps them in registers, where the weights stand as the operand of the next product, and sums all 256
// dimensions. No warp waits for another until the four are joined. Codes become bytes by one permutation of four at a time, since
// centroids are whole numbers (over 49), and meet queries and weights of 16 bits, each as two rows of eight: the products are
// exact integers.
//
// FP8 pages follow, 32 tokens at a time, in three stages: scores of unit u (a warp takes a quarter of its tokens), weights of unit
// u - 1, sums of the values of unit u - 2 (a warp takes a quarter of the dimensions). So each byte of a page is decoded once,
// straight into the operand of the product that wants it, and one barrier a unit is enough.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "launch.cuh"

namespace {

constexpr int kSize = 256, kPage = 64, kQueries = 8, kWarps = 4, kThreads = kWarps * 32;
constexpr int kSlot = 8192;  // bytes of the keys, or the values, of one FP8 unit
constexpr int kKeySlots = 2, kValueSlots = 3;
constexpr int kCodes = kPage * kSize * 3 / 8;                       // bytes of the keys, or the values, of a three-bit page
constexpr int kHalfPitch = kSize + 8, kScorePitch = kPage / 2 + 8;  // keep lanes off one bank

// What warps hand each other, by the parity of the unit.
struct Exchange {
  float scores[kQueries][kScorePitch];
  uint4 weights[32];             // by lane: four words of the weights as an operand
  float most[kQueries][kWarps];  // of the scores
};

struct Fp8Room {
  uint8_t keys[kKeySlots][kSlot], values[kValueSlots][kSlot];
  __half q[kQueries][kHalfPitch];
  Exchange exchange[2];
};

// As bytes, in registers: as constants each permutation would have to copy one first.
struct Centroids {
  uint32_t positive, negative;
};

// A page on its way to one warp; scales by the parity of the page.
struct Ring {
  uint8_t keys[kCodes], values[kCodes];
  __half scales[2][2][kPage];  // of the keys, of the values
};

struct ThreeBitRoom {
  Ring rings[kWarps];
  uint4 q[8][32];  // by step of a product and lane: high bytes, low bytes, and again for the other half of the step
  float q_unit[kQueries];
  Centroids centroids;
};

// What each warp found over its own three-bit pages.
struct Parts {
  float sums[kWarps][kQueries][kHalfPitch];
  float most[kWarps][kQueries], totals[kWarps][kQueries];
};

struct Shared {
  union {
    Fp8Room fp8;
    ThreeBitRoom three_bit;
    Parts parts;
  };
  float totals[kWarps][kQueries];
  int page_ids[32];
};
static_assert(sizeof(Shared) <= 57344 - 16, "four blocks a processor");
constexpr int kMostPages = 32;  // of one run
constexpr float kLog2e = 1.4426950408889634f, kNothing = -1e30f;
constexpr float kQuerySteps = 32512.0f, kWeightSteps = 65280.0f;
constexpr uint32_t kPositive = 0x6942250Cu, kNegative = 0x97BEDBF4u;  // 12, 37, 66, 105 and their negatives
constexpr float kCentroidUnit = 1.0f / 49.0f;

struct Args {
  const float* q;  // [sequences * rows, kv_heads * group, 256], rotated
  const uint8_t *keys, *values;  // e4m3 [pages, kv_heads, 64, 256]
  const uint8_t *key_codes, *value_codes;    // [pages, kv_heads, 6144]
  const __half *key_scale, *value_scale;     // [pages, kv_heads, 64]
  const int *fp8_table, *three_bit_table;  // [sequences, table_width]
  const int64_t* positions;                // [sequences]: of the first row
  float* acc;                              // [sequences * rows * kv_heads * splits, 16, 256]
  float* most_total;                       // [.., 32]: maxima of 16 heads, then their sums
  float scale;
  int rows, table_width, anchors, recent, splits, kv_heads, group, run_pages, level_runs, levels, recent_runs;
};

__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
  return out;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

template <typename T>
__device__ __forceinline__ T read(const uint8_t* from) {
  return *reinterpret_cast<const T*>(from);
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two e4m3 values in the low 16 bits to a pair of float16.
__device__ __forceinline__ uint32_t half_pair(uint32_t two_bytes) {
  uint32_t out;
  asm("{ .reg .b16 t; cvt.u16.u32 t, %1; cvt.rn.f16x2.e4m3x2 %0, t; }" : "=r"(out) : "r"(two_bytes));
  return out;
}

__device__ __forceinline__ uint32_t pack_half(float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ void multiply_half(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_signed(int (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_weights(int (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

template <uint32_t kMask>
__device__ __forceinline__ uint32_t choose(uint32_t a, uint32_t b) {  // kMask ? a : b
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(out) : "r"(a), "r"(b), "r"(kMask));
  return out;
}

// Three words of eight codes, and eight more over their top bits, to four pairs of words of four centroids.
__device__ __forceinline__ void decode32(const Centroids& c, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t (&out)[8]) {
  const uint32_t spread = choose<0xCCCCCCCCu>(choose<0x88888888u>(w0, w1 >> 1), w2 >> 2) >> 1;
  const uint32_t codes[4] = {w0 & 0x77777777u, w1 & 0x77777777u, w2 & 0x77777777u, spread & 0x77777777u};  // the top bit must be clear
#pragma unroll
  for (int i = 0; i < 4; ++i) out[2 * i] = permute(c.positive, c.negative, codes[i]), out[2 * i + 1] = permute(c.positive, c.negative, codes[i] >> 16);
}

// A quarter of a page's codes for this lane: words of four decode32.
__device__ __forceinline__ void read_group(const uint8_t* codes, int group, int lane, uint32_t (&out)[3][4]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) *reinterpret_cast<uint4*>(out[i]) = read<uint4>(codes + (group * 3 + i) * 512 + lane * 16);
}

// Where 16-byte chunks of a token of an FP8 unit stand: off one bank both for the rows of a key operand and for ldmatrix.
__device__ __forceinline__ int swizzle(int token) { return (token & 1) << 2 | (token >> 2 & 3); }

struct Unit {
  int page, half;  // page of the run, and which half of it
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}

__device__ __forceinline__ float most_of(const float4& s) { return fmaxf(fmaxf(s.x, s.y), fmaxf(s.z, s.w)); }

// Of head lane / 4. `most` is the same in every warp, `total` is of this lane's tokens.
struct Softmax {
  float most, total;
};

__device__ __forceinline__ void score_fp8(const Fp8Room& room, Exchange& to, const uint8_t* keys, int at, int position, float scale, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, token = warp * 8 + g;
  float even[4] = {}, odd[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 k = read<uint4>(keys + token * kSize + ((i * 4 + t) ^ swizzle(token)) * 16);
    const uint4* const q = reinterpret_cast<const uint4*>(&room.q[g][i * 64 + t * 16]);
    const uint4 q0 = q[0], q1 = q[1];
    multiply_half(even, q0.x, 0, q0.y, 0, half_pair(k.x), half_pair(k.x >> 16));
    multiply_half(odd, q0.z, 0, q0.w, 0, half_pair(k.y), half_pair(k.y >> 16));
    multiply_half(even, q1.x, 0, q1.y, 0, half_pair(k.z), half_pair(k.z >> 16));
    multiply_half(odd, q1.z, 0, q1.w, 0, half_pair(k.w), half_pair(k.w >> 16));
  }
  at += warp * 8 + 2 * t;
  float2 s = {(even[0] + odd[0]) * scale, (even[1] + odd[1]) * scale};
  if (at > position) s.x = kNothing;
  if (at + 1 > position) s.y = kNothing;
  *reinterpret_cast<float2*>(&to.scores[g][warp * 8 + 2 * t]) = s;
  const float most = quad_max(fmaxf(s.x, s.y));
  if (t == 0) to.most[g][warp] = most;
}

// Returns the factor of what was summed before.
__device__ __forceinline__ float weigh_fp8(Exchange& x, Softmax& softmax, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  const float2 s = *reinterpret_cast<const float2*>(&x.scores[g][16 * (warp / 2) + 4 * t + 2 * (warp % 2)]);
  const float most = fmaxf(softmax.most, most_of(*reinterpret_cast<const float4*>(x.most[g])));
  const float shrink = exp2_fast(softmax.most - most), a = exp2_fast(s.x - most), b = exp2_fast(s.y - most);
  softmax.most = most;
  softmax.total = fmaf(softmax.total, shrink, a + b);
  reinterpret_cast<uint32_t*>(&x.weights[lane])[warp] = pack_half(a, b);
  return shrink;
}

// acc: [16 dimensions][dimension 2g of heads 2t, 2t + 1; dimension 2g + 1].
__device__ __forceinline__ void shrink_sums(float (&acc)[4][4], float shrink, int t) {
  if (__all_sync(0xFFFFFFFFu, shrink == 1.0f)) return;
  const float a = __shfl_sync(0xFFFFFFFFu, shrink, t * 8), b = __shfl_sync(0xFFFFFFFFu, shrink, t * 8 + 4);
#pragma unroll
  for (int m = 0; m < 4; ++m) acc[m][0] *= a, acc[m][1] *= b, acc[m][2] *= a, acc[m][3] *= b;
}

__device__ __forceinline__ void sum_fp8(float (&acc)[4][4], const Exchange& x, const uint8_t* values, float shrink, int warp, int lane) {
  const uint4 weights = x.weights[lane];
  const uint32_t p[2][2] = {{weights.x, weights.y}, {weights.z, weights.w}};
  shrink_sums(acc, shrink, lane % 4);
  const int row = lane % 8, token = row / 2 * 4 + row % 2 + (lane / 8 & 1) * 2;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const int chunk = warp * 4 + pair * 2 + lane / 16;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t from = shared_address(values + (16 * j + token) * kSize + (chunk ^ swizzle(token)) * 16);
      uint32_t r[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t x = permute(r[2 * m], 0, 0x3120), y = permute(r[2 * m + 1], 0, 0x3120);
        multiply_half(acc[2 * pair + m], half_pair(x), half_pair(x >> 16), half_pair(y), half_pair(y >> 16), p[j][0], p[j][1]);
      }
    }
  }
}

__device__ __forceinline__ float4 four_floats(const __half* from) {
  const uint2 raw = *reinterpret_cast<const uint2*>(from);
  const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&raw.x)), b = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
  return {a.x, a.y, b.x, b.y};
}

// What a warp has found so far: of head g the dimensions 8 m + 2 t and the one after it, and of the total its own tokens.
struct Found {
  float sums[kSize / 8][2];
  Softmax softmax;
};

// Scores of the page for head g, of tokens 16 q + 4 t + r at 4 q + r, over q_unit times the scale. Tile 2 q + j of eight tokens has
// those at which a lane's two sums are two of its own.
__device__ __forceinline__ void score_three_bit(const Centroids& centroids, const uint4 (&queries)[8][32], const Ring& ring, const __half* scales, float (&s)[16], int lane) {
  int sums[8][4] = {};
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    uint32_t codes[3][4];
    read_group(ring.keys, group, lane, codes);
    const uint4 q0 = queries[2 * group][lane], q1 = queries[2 * group + 1][lane];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      uint32_t k[8];
      decode32(centroids, codes[0][q], codes[1][q], codes[2][q], k);
      multiply_signed(sums[2 * q], q0, k[0], k[1]);
      multiply_signed(sums[2 * q], q1, k[2], k[3]);
      multiply_signed(sums[2 * q + 1], q0, k[4], k[5]);
      multiply_signed(sums[2 * q + 1], q1, k[6], k[7]);
    }
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float4 k_scale = four_floats(scales + q * 16 + lane % 4 * 4);
    const int(&a)[4] = sums[2 * q], (&b)[4] = sums[2 * q + 1];
    s[4 * q] = static_cast<float>(a[0] * 256 + a[2]) * k_scale.x, s[4 * q + 1] = static_cast<float>(a[1] * 256 + a[3]) * k_scale.y;
    s[4 * q + 2] = static_cast<float>(b[0] * 256 + b[2]) * k_scale.z, s[4 * q + 3] = static_cast<float>(b[1] * 256 + b[3]) * k_scale.w;
  }
}

// Weights of the page's tokens, scales of the values included, in 16 bits of their bound, as operands of the two steps: high bytes in
// rows of the heads, low bytes in the eight rows after them. Returns what a sum of them is worth.
__device__ __forceinline__ float weigh_three_bit(const float (&s)[16], float unit, const __half* scales, Found& found, uint4 (&weights)[2], int lane) {
  const int t = lane % 4;
  float v[16], tile = s[0], widest = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) *reinterpret_cast<float4*>(v + 4 * i) = four_floats(scales + i * 16 + t * 4);
#pragma unroll
  for (int i = 0; i < 16; ++i) tile = fmaxf(tile, s[i]), widest = fmaxf(widest, v[i]);
  tile = quad_max(tile) * unit, widest = quad_max(widest);
  const float most = fmaxf(found.softmax.most, tile), shrink = exp2_fast(found.softmax.most - most), part = exp2_fast(tile - most);
  const float steps = widest > 0.0f ? __fdividef(kWeightSteps, widest) : 0.0f;
  float total = 0.0f;
  uint32_t w[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float e = exp2_fast(fmaf(s[i], unit, -tile));
    total += e;
    w[i] = __float_as_uint(fmaf(e * v[i], steps, 8388608.0f));
  }
  found.softmax.most = most;
  found.softmax.total = fmaf(found.softmax.total, shrink, total * part);
  if (!__all_sync(0xFFFFFFFFu, shrink == 1.0f)) {
#pragma unroll
    for (int m = 0; m < kSize / 8; ++m) found.sums[m][0] *= shrink, found.sums[m][1] *= shrink;
  }
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    uint32_t high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t* const from = w + 8 * step + 4 * i;
      const uint32_t a = permute(from[0], from[1], 0x5410), b = permute(from[2], from[3], 0x5410);
      high[i] = permute(a, b, 0x7531), low[i] = permute(a, b, 0x6420);
    }
    weights[step] = {high[0], low[0], high[1], low[1]};
  }
  return part * widest * (kCentroidUnit / kWeightSteps);
}

__device__ __forceinline__ void sum_three_bit(const Centroids& centroids, const uint4 (&weights)[2], const Ring& ring, float fold, Found& found, int lane) {
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    uint32_t codes[3][4];
    read_group(ring.values, group, lane, codes);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      uint32_t v[8];
      decode32(centroids, codes[0][p], codes[1][p], codes[2][p], v);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int sums[4] = {};
        multiply_weights(sums, weights[0], v[4 * j], v[4 * j + 1]);
        multiply_weights(sums, weights[1], v[4 * j + 2], v[4 * j + 3]);
        float(&to)[2] = found.sums[group * 8 + p * 2 + j];
#pragma unroll
        for (int i = 0; i < 2; ++i) to[i] = fmaf(static_cast<float>(sums[i] * 256 + sums[2 + i]), fold, to[i]);
      }
    }
  }
}

// The four warps' findings join, and go on as sums of FP8 units do.
__device__ __forceinline__ void join_warps(Parts& parts, const Found& found, float (&acc)[4][4], Softmax& softmax, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  float total = found.softmax.total;
  total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
  total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
  __syncthreads();
  if (t == 0) parts.most[warp][g] = found.softmax.most, parts.totals[warp][g] = total;
#pragma unroll
  for (int m = 0; m < kSize / 8; ++m) *reinterpret_cast<float2*>(&parts.sums[warp][g][m * 8 + 2 * t]) = {found.sums[m][0], found.sums[m][1]};
  __syncthreads();
  const auto most_of_head = [&](int head) { return fmaxf(fmaxf(parts.most[0][head], parts.most[1][head]), fmaxf(parts.most[2][head], parts.most[3][head])); };
  softmax.most = most_of_head(g);
  if (warp == 0 && t == 0) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) softmax.total = fmaf(parts.totals[w][g], exp2_fast(parts.most[w][g] - softmax.most), softmax.total);
  }
  const float most[2] = {most_of_head(2 * t), most_of_head(2 * t + 1)};
#pragma unroll
  for (int w = 0; w < kWarps; ++w)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float factor = exp2_fast(parts.most[w][2 * t + i] - most[i]);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float2 two = *reinterpret_cast<const float2*>(&parts.sums[w][2 * t + i][(warp * 4 + m) * 16 + 2 * g]);
        acc[m][i] = fmaf(two.x, factor, acc[m][i]), acc[m][2 + i] = fmaf(two.y, factor, acc[m][2 + i]);
      }
    }
}

__global__ void __launch_bounds__(kThreads, 4) attend(const Args a) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;

  asm volatile("griddepcontrol.launch_dependents;");
  const int head = blockIdx.x, sequence = blockIdx.y / a.rows;
  const int64_t row = blockIdx.y;
  const int settled = static_cast<int>(a.positions[sequence] / kPage);  // pages before it are not written by this step
  const int position = static_cast<int>(a.positions[sequence]) + static_cast<int>(row) % a.rows, own = position / kPage;
  // Runs of recent pages stand behind the others and start first, then long ones: what short ones leave idle at the end is little.
  const int boundary = own - a.recent + 1, others = a.splits - a.recent_runs, start = static_cast<int>(blockIdx.z);
  const bool is_cut = a.recent_runs > 0 && boundary > a.anchors, is_recent = start < a.recent_runs;
  const int split = is_recent ? others + start : a.splits - 1 - start;
  // Where pages are stale the context is long: its runs begin with the second length, half as many of each.
  const int shortest = a.run_pages << is_cut, level_runs = a.level_runs >> is_cut;
  const int level = min(split / level_runs, a.levels - 1 - is_cut), size = is_recent ? shortest : shortest << level;
  const int first = is_recent ? boundary + start * size : level_runs * shortest * ((1 << level) - 1) + (split - level_runs * level) * size;
  const int last = is_recent && !is_cut ? first : min(first + size, is_cut && !is_recent ? boundary : own + 1);
  if (first >= last) return;
  // Anchors, then stale pages, then recent ones: three runs in order of position, any of them empty.
  const int stale = min(max(first, a.anchors), last), fresh = min(max(stale, boundary), last);
  const int before = 2 * (stale - first), between = fresh - stale;
  const int units = before + 2 * (last - fresh) - (last == own + 1 && position % kPage < kPage / 2 ? 1 : 0);
  if (threadIdx.x < last - first) {
    const int page = first + threadIdx.x;
    const bool fp8 = page < stale || page >= fresh;
    shared.page_ids[threadIdx.x] = (fp8 ? a.fp8_table : a.three_bit_table)[int64_t(sequence) * a.table_width + page];
  }
  __syncthreads();

  const int at16 = threadIdx.x * 16, copy_token = threadIdx.x / 16, copy_to = copy_token * kSize + (threadIdx.x % 16 ^ swizzle(copy_token)) * 16;
  // Half a page of one pool: eight tokens further each time, which changes one bit of the swizzle.
  const auto load_fp8 = [&](uint8_t* to, const uint8_t* pool, int u) {
    const Unit unit = u < before ? Unit{u / 2, u % 2} : Unit{fresh - first + (u - before) / 2, (u - before) % 2};
    const int64_t page = int64_t(shared.page_ids[unit.page]) * a.kv_heads + head;
    const uint8_t* const from = pool + (page * kPage + unit.half * (kPage / 2)) * kSize + at16;
#pragma unroll
    for (int i = 0; i < 4; ++i) copy16(to + i * 8 * kSize + (copy_to ^ (i & 1) * 32), from + i * 8 * kSize);
  };
  const auto load_keys = [&](int u) {
    if (u < units) load_fp8(shared.fp8.keys[u % kKeySlots], a.keys, u);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  const auto load_values = [&](int u) {
    if (u < units) load_fp8(shared.fp8.values[u % kValueSlots], a.values, u);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  // Three-bit page i of the run to this warp: a group with the keys and both scales, one with the values.
  Ring& ring = shared.three_bit.rings[warp];
  const auto load_codes = [&](uint8_t* to, const uint8_t* pool, int64_t page) {
#pragma unroll
    for (int i = 0; i < kCodes / 512; ++i) copy16(to + i * 512 + lane * 16, pool + page * kCodes + i * 512 + lane * 16);
  };
  const auto load_three_bit_keys = [&](int i) {
    if (i < between) {
      const int64_t page = int64_t(shared.page_ids[stale - first + i]) * a.kv_heads + head;
      load_codes(ring.keys, a.key_codes, page);
      if (lane < 16) copy16(&ring.scales[i / kWarps % 2][lane / 8][lane % 8 * 8], (lane < 8 ? a.key_scale : a.value_scale) + page * kPage + lane % 8 * 8);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  const auto load_three_bit_values = [&](int i) {
    if (i < between) load_codes(ring.values, a.value_codes, int64_t(shared.page_ids[stale - first + i]) * a.kv_heads + head);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  const bool early = first < settled;
  const auto load_first = [&] {
    if (between > 0) load_three_bit_keys(warp), load_three_bit_values(warp);
    else load_keys(0);
  };
  if (early) load_first();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (!early) load_first();

  const float scale = a.scale * kLog2e;
  Softmax softmax = {kNothing, 0.0f};
  float acc[4][4] = {};
  const auto query_of = [&](int h, float (&v)[8]) {
    if (h >= a.group) return;
    const float4* const from = reinterpret_cast<const float4*>(a.q + ((row * a.kv_heads + head) * a.group + h) * kSize) + lane * 2;
    const float4 x = from[0], y = from[1];
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
  };
  if (between > 0) {
    // Queries in 16 bits of their largest, as two signed bytes.
#pragma unroll
    for (int h = warp; h < kQueries; h += kWarps) {
      float v[8] = {}, widest = 0.0f;
      query_of(h, v);
#pragma unroll
      for (int i = 0; i < 8; ++i) widest = fmaxf(widest, fabsf(v[i]));
      widest = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(widest)));
      const float steps = widest > 0.0f ? kQuerySteps / widest : 0.0f;
      if (lane == 0) shared.three_bit.q_unit[h] = widest * (kCentroidUnit / kQuerySteps);
      // Of eight dimensions each lane has two words of both rows: steps have 32, a word's lane four.
      uint32_t* const to = reinterpret_cast<uint32_t*>(&shared.three_bit.q[lane / 4][h * 4 + lane % 2 * 2]) + lane % 4 / 2 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t high = 0, low = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int n = __float2int_rn(v[i * 4 + j] * steps), lower = static_cast<int8_t>(n & 255);
          low |= static_cast<uint32_t>(lower & 255) << 8 * j, high |= static_cast<uint32_t>((n - lower) >> 8 & 255) << 8 * j;
        }
        to[i * 4] = high, to[i * 4 + 1] = low;
      }
    }
    // By way of shared memory, so that the compiler does not know them.
    if (threadIdx.x == 0) shared.three_bit.centroids = {kPositive, kNegative};
    __syncthreads();
    const Centroids centroids = shared.three_bit.centroids;
    const float unit = shared.three_bit.q_unit[g] * scale;
    Found found = {{}, {kNothing, 0.0f}};
    for (int i = warp; i < between; i += kWarps) {
      const __half(&scales)[2][kPage] = ring.scales[i / kWarps % 2];
      float s[16];
      uint4 weights[2];
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      __syncwarp();
      score_three_bit(centroids, shared.three_bit.q, ring, scales[0], s, lane);
      __syncwarp();
      load_three_bit_keys(i + kWarps);
      const float fold = weigh_three_bit(s, unit, scales[1], found, weights, lane);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      __syncwarp();
      sum_three_bit(centroids, weights, ring, fold, found, lane);
      __syncwarp();
      load_three_bit_values(i + kWarps);
    }
    join_warps(shared.parts, found, acc, softmax, warp, lane);
    __syncthreads();
    load_keys(0);
  }

  if (units > 0) {
    for (int h = warp; h < kQueries; h += kWarps) {
      float v[8] = {};
      query_of(h, v);
      const uint4 halves = {pack_half(v[0], v[1]), pack_half(v[2], v[3]), pack_half(v[4], v[5]), pack_half(v[6], v[7])};
      *reinterpret_cast<uint4*>(&shared.fp8.q[h][lane * 8]) = halves;
    }
    float shrink = 1.0f;
    for (int u = 0; u < units + 2; ++u) {
      // Keys of unit u are here, and values of unit u - 2; those of u - 1 may still be on their way.
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      if (u == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
      __syncthreads();
      load_keys(u + 1);
      load_values(u);
      Exchange &even = shared.fp8.exchange[u % 2], &odd = shared.fp8.exchange[(u + 1) % 2];
      if (u >= 2) sum_fp8(acc, even, shared.fp8.values[(u + 1) % kValueSlots], shrink, warp, lane);
      if (u >= 1 && u <= units) shrink = weigh_fp8(odd, softmax, warp, lane);
      if (u < units) {
        const int page = u < before ? first + u / 2 : fresh + (u - before) / 2;
        score_fp8(shared.fp8, even, shared.fp8.keys[u % kKeySlots], page * kPage + (u < before ? u : u - before) % 2 * (kPage / 2), position, scale, warp, lane);
      }
    }
  }

  softmax.total += __shfl_xor_sync(0xFFFFFFFFu, softmax.total, 1);
  softmax.total += __shfl_xor_sync(0xFFFFFFFFu, softmax.total, 2);
  if (t == 0) shared.totals[warp][g] = softmax.total;
  __syncthreads();
  const int64_t cell = (row * a.kv_heads + head) * a.splits + split;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    float* const to = a.acc + (cell * 16 + 2 * t) * kSize + (warp * 4 + m) * 16 + 2 * g;
    if (2 * t < a.group) *reinterpret_cast<float2*>(to) = {acc[m][0], acc[m][2]};
    if (2 * t + 1 < a.group) *reinterpret_cast<float2*>(to + kSize) = {acc[m][1], acc[m][3]};
  }
  if (warp == 0 && t == 0 && g < a.group) {
    a.most_total[cell * 32 + g] = softmax.most / kLog2e;
    a.most_total[cell * 32 + 16 + g] = (shared.totals[0][g] + shared.totals[1][g]) + (shared.totals[2][g] + shared.totals[3][g]);
  }
}

struct DemoteArgs {
  const uint8_t* pool[2];        // keys, values: e4m3 [pages, kv_heads, 64, 256]
  uint8_t* codes[2];
  __half* scale[2];
  const int64_t *from, *to;      // pages of each pool
  int kv_heads;
};

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

// One block a page, head and kind: each warp encodes eight vectors, then all pack codes along dimensions (keys) or tokens (values).
__global__ void __launch_bounds__(256) demote(const DemoteArgs a) {
  constexpr int kPitch = kSize + 4;
  __shared__ uint8_t codes[kPage * kPitch];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kind = blockIdx.z;
  const int64_t from = a.from[blockIdx.x] * a.kv_heads + blockIdx.y, to = a.to[blockIdx.x] * a.kv_heads + blockIdx.y;
  for (int token = warp * 8; token < warp * 8 + 8; ++token) {
    const uint2 bytes = *reinterpret_cast<const uint2*>(a.pool[kind] + (from * kPage + token) * kSize + lane * 8);
    const uint32_t pairs[4] = {half_pair(bytes.x), half_pair(bytes.x >> 16), half_pair(bytes.y), half_pair(bytes.y >> 16)};
    float y[8], squared = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
      y[2 * i] = two.x, y[2 * i + 1] = two.y;
      squared += two.x * two.x + two.y * two.y;
    }
    const float length = sqrtf(warp_sum(squared)), inverse = length > 0.0f ? 16.0f / length : 0.0f;
    float along = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float u = y[i] * inverse, size = fabsf(u);
      const int magnitude = (size > 0.499714f) + (size > 1.047457f) + (size > 1.740958f);
      const float c = (kPositive >> (8 * magnitude) & 255) * kCentroidUnit;
      along += size * c, squares += c * c;
      codes[token * kPitch + lane * 8 + i] = static_cast<uint8_t>(magnitude | (signbit(u) ? 4 : 0));
    }
    along = warp_sum(along), squares = warp_sum(squares);
    const float unbiased = along > 0.0f ? length * 16.0f / along : 0.0f, least_squares = length * along / (squares * 16.0f);
    if (lane == 0) a.scale[kind][to * kPage + token] = __float2half_rn(kind == 0 ? unbiased : least_squares);
  }
  __syncthreads();
  // Each thread packs four eights of codes, of which a lane of a product takes two words each; the fourth stands in top bits.
  for (int at = threadIdx.x; at < kPage * kSize / 32; at += 256) {
    const int part = at % 4, to_lane = at / 4 % 32, group = at / 128, g_of = to_lane / 4, t_of = to_lane % 4;
    uint32_t words[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int along = j % 2 * 32 + i / 4 * 16 + t_of * 4 + i % 4;  // of the axis that the product sums over
        const int token = kind == 0 ? part * 16 + g_of / 2 * 4 + j / 2 * 2 + g_of % 2 : along;
        const int dimension = kind == 0 ? group * 64 + along : group * 64 + part * 16 + j / 2 * 8 + g_of;
        words[j] |= uint32_t(codes[token * kPitch + dimension]) << 4 * i;
      }
    }
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      const uint32_t word = words[j] | (words[3] >> (2 - j) & 0x11111111u) << 3;
      *reinterpret_cast<uint32_t*>(a.codes[kind] + to * kCodes + (group * 3 + j) * 512 + to_lane * 16 + part * 4) = word;
    }
  }
}

}  // namespace

// `pools`: keys, values, then codes and scale of three-bit keys, then of values. The first `level_runs` runs are `run_pages` long, as many
// after them twice that, and so on; those of the last of `levels` go on to the end,
// or to the recent pages: the last `recent_runs`, if any, are of twice `run_pages` of those.
extern "C" int staged_attention_launch(const float* q, void* const* pools, const int* fp8_table, const int* three_bit_table,
                                       const int64_t* positions, float* acc, float* most_total, float scale, int sequences, int rows,
                                       int table_width, int anchors, int recent, int splits, int kv_heads, int group, int run_pages,
                                       int level_runs, int levels, int recent_runs, int overlap, void* stream) {
  if (group > kQueries || levels < 1 || run_pages << (levels - 1) > kMostPages || (recent_runs > 0 && (levels < 2 || level_runs < 2))) return cudaErrorInvalidValue;
  const auto bytes = [&](int i) { return static_cast<const uint8_t*>(pools[i]); };
  const Args args{q, bytes(0), bytes(1), bytes(2), bytes(4), static_cast<const __half*>(pools[3]), static_cast<const __half*>(pools[5]),
                  fp8_table, three_bit_table, positions, acc, most_total, scale, rows, table_width, anchors, recent, splits, kv_heads, group, run_pages, level_runs, levels, recent_runs};
  return launch_kernel(attend, args, dim3(kv_heads, sequences * rows, splits), kThreads, sizeof(Shared), overlap, static_cast<cudaStream_t>(stream));
}

// Pages `from` of the FP8 pools are encoded into pages `to` of the three-bit ones; `pools` as above.
extern "C" int demote_launch(void* const* pools, const int64_t* from, const int64_t* to, int pages, int kv_heads, void* stream) {
  const auto bytes = [&](int i) { return static_cast<uint8_t*>(pools[i]); };
  const DemoteArgs args{{bytes(0), bytes(1)}, {bytes(2), bytes(4)}, {static_cast<__half*>(pools[3]), static_cast<__half*>(pools[5])}, from, to, kv_heads};
  demote<<<dim3(pages, kv_heads, 2), 256, 0, static_cast<cudaStream_t>(stream)>>>(args);
  return cudaGetLastError();
}
