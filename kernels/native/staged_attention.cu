// Attention of one query row a sequence over pages in two stages, FP8 and three bits, and the encoder of the latter.
//
// kernels/paged_attention/README.md has the arithmetic. A block of four warps takes one row, one KV head and one run of pages,
// unit by unit (32 tokens in FP8, a page in three bits), in three stages: scores of unit u (a warp takes a quarter of its tokens),
// weights of unit u - 1, sums of the values of unit u - 2 (a warp takes a quarter of the dimensions). So each byte of a page is
// decoded once, straight into the operand of the product that wants it, and one barrier a unit is enough.
//
// Three-bit codes become bytes by one permutation of four at a time, since centroids are whole numbers (over 49), and meet
// queries and weights of 16 bits, each as two rows of eight: the products are exact integers.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "launch.cuh"

namespace {

constexpr int kSize = 256, kPage = 64, kQueries = 8, kWarps = 4, kThreads = kWarps * 32;
constexpr int kSlot = 8192;  // bytes of the keys, or the values, of one unit
constexpr int kKeySlots = 2, kValueSlots = 3;
constexpr int kSigns = kPage * kSize / 4, kScales = kSigns + kPage * kSize / 8;  // offsets in a slot of a three-bit page
constexpr int kValueScales = kScales + kPage * 2;                               // of the values', in the slot of the keys
constexpr int kHalfPitch = kSize + 8, kScorePitch = kPage + 8;                  // keep lanes off one bank

// What warps hand each other, by the parity of the unit.
struct Exchange {
  float scores[kQueries][kScorePitch];
  uint4 weights[2][32];  // by lane: four words of the weights as an operand; three-bit: their high bytes, then their low ones
  float value_scales[kPage];
  float most[kQueries][kWarps];  // of the scores
  float widest[kWarps];          // of the value scales
};

struct Shared {
  uint8_t keys[kKeySlots][kSlot], values[kValueSlots][kSlot];
  uint4 q_codes[8][32];  // by step of a product and lane: high bytes, low bytes, and again for the other half of the step
  __half q_half[kQueries][kHalfPitch];
  Exchange exchange[2];
  float q_unit[kQueries];
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
  const uint8_t *key_low, *key_signs;  // [pages, kv_heads, 64 tokens, 64], [.., 64 tokens, 32]
  const __half* key_scale;             // [pages, kv_heads, 64]
  const uint8_t *value_low, *value_signs;  // [pages, kv_heads, 256 dimensions, 16], [.., 256 dimensions, 8]
  const __half* value_scale;
  const int *fp8_table, *three_bit_table;  // [sequences, table_width]
  const int64_t* positions;                // [sequences]: of the first row
  float* acc;                              // [sequences * rows * kv_heads * splits, 16, 256]
  float* most_total;                       // [.., 32]: maxima of 16 heads, then their sums
  float scale;
  int rows, table_width, anchors, recent, splits, kv_heads, group, run_pages, level_runs, levels;
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

__device__ __forceinline__ void multiply_weights(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The centroids as bytes in registers: as constants each permutation would have to copy one first.
struct Centroids {
  uint32_t positive, negative;
};

// Magnitudes from the lower two bits of each nibble of a, the sign and a clear bit from b.
__device__ __forceinline__ uint32_t choose(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(out) : "r"(a), "r"(b), "r"(0x33333333u));  // c ? a : b
  return out;
}

// Four bytes of magnitudes, each of elements e, e + n, e + 2n, e + 3n, and their signs at even bits, to centroids. out[0] has
// elements (0, 0 + 2n, 1, 1 + 2n), out[1] (2, 2 + 2n, 3, 3 + 2n); out[2] and out[3] the same n further.
__device__ __forceinline__ void decode16(const Centroids& c, uint32_t low, uint32_t signs, uint32_t (&out)[4]) {
  // Bits of another sign, where a magnitude goes, are covered by it; the top bit of each nibble must be clear.
  const uint32_t clear = signs & 0x55555555u;
  const uint32_t even = choose(low, clear << 2), odd = choose(low >> 2, clear);
  out[0] = permute(c.positive, c.negative, even);
  out[1] = permute(c.positive, c.negative, even >> 16);
  out[2] = permute(c.positive, c.negative, odd);
  out[3] = permute(c.positive, c.negative, odd >> 16);
}

// Where 16-byte chunks of a token of an FP8 unit stand: off one bank both for the rows of a key operand and for ldmatrix.
__device__ __forceinline__ int swizzle(int token) { return (token & 1) << 2 | (token >> 2 & 3); }

struct Unit {
  int page, half;  // page of the run; half of an FP8 page
  bool fp8;
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

// How sums of the values so far, and of one unit, join: factors of head lane / 4.
struct Join {
  float shrink, fold;
};

__device__ __forceinline__ void score_fp8(Shared& shared, Exchange& to, const uint8_t* keys, int at, int position, float scale, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, token = warp * 8 + g;
  float even[4] = {}, odd[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 k = read<uint4>(keys + token * kSize + ((i * 4 + t) ^ swizzle(token)) * 16);
    const uint4* const q = reinterpret_cast<const uint4*>(&shared.q_half[g][i * 64 + t * 16]);
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

__device__ __forceinline__ void score_three_bit(const Centroids& centroids, Shared& shared, Exchange& to, const uint8_t* keys, float scale, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  uint32_t low[2][4], signs[2][4];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int token = warp * 16 + n * 8 + g;
    *reinterpret_cast<uint4*>(low[n]) = read<uint4>(keys + token * (kSize / 4) + t * 16);
    *reinterpret_cast<uint4*>(signs[n]) = read<uint4>(keys + kSigns + token * (kSize / 8) + (t & 1) * 16);
  }
  int sums[2][2][4] = {};
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const uint4 q0 = shared.q_codes[2 * word][lane], q1 = shared.q_codes[2 * word + 1][lane];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t k[4];
      decode16(centroids, low[n][word], signs[n][word] >> (t >> 1), k);
      multiply_signed(sums[n][0], q0, k[0], k[1]);
      multiply_signed(sums[n][1], q1, k[2], k[3]);
    }
  }
  const float unit = shared.q_unit[g] * scale;
  float most = kNothing;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int token = warp * 16 + n * 8 + 2 * t;
    const float2 k_scale = __half22float2(read<__half2>(keys + kScales + token * 2));
    int whole[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) whole[i] = (sums[n][0][i] + sums[n][1][i]) * 256 + (sums[n][0][2 + i] + sums[n][1][2 + i]);
    const float2 s = {static_cast<float>(whole[0]) * (unit * k_scale.x), static_cast<float>(whole[1]) * (unit * k_scale.y)};
    *reinterpret_cast<float2*>(&to.scores[g][token]) = s;
    most = fmaxf(most, fmaxf(s.x, s.y));
  }
  most = quad_max(most);
  if (t == 0) to.most[g][warp] = most;
  const float v = __half2float(read<__half>(keys + kValueScales + (warp * 16 + lane % 16) * 2));
  const uint32_t widest = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(v));  // scales are not negative
  if (lane < 16) to.value_scales[warp * 16 + lane] = v;
  if (lane == 0) to.widest[warp] = __uint_as_float(widest);
}

__device__ __forceinline__ Join weigh_fp8(Exchange& x, Softmax& softmax, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  const float2 s = *reinterpret_cast<const float2*>(&x.scores[g][16 * (warp / 2) + 4 * t + 2 * (warp % 2)]);
  const float most = fmaxf(softmax.most, most_of(*reinterpret_cast<const float4*>(x.most[g])));
  const float shrink = exp2_fast(softmax.most - most), a = exp2_fast(s.x - most), b = exp2_fast(s.y - most);
  softmax.most = most;
  softmax.total = fmaf(softmax.total, shrink, a + b);
  reinterpret_cast<uint32_t*>(&x.weights[0][lane])[warp] = pack_half(a, b);
  return {shrink, 0.0f};
}

// Weights of the page's tokens, scales of the values included, in 16 bits of their bound. Word `warp` of the operand has the
// tokens 16 (warp / 2) + 4 t + 2 (warp % 2), the one 32 after it, and the two after these.
__device__ __forceinline__ Join weigh_three_bit(Exchange& x, Softmax& softmax, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, token = 16 * (warp / 2) + 4 * t + 2 * (warp % 2);
  const float2 s0 = *reinterpret_cast<const float2*>(&x.scores[g][token]), s1 = *reinterpret_cast<const float2*>(&x.scores[g][token + 32]);
  const float2 v0 = *reinterpret_cast<const float2*>(&x.value_scales[token]), v1 = *reinterpret_cast<const float2*>(&x.value_scales[token + 32]);
  const float tile = most_of(*reinterpret_cast<const float4*>(x.most[g])), widest = most_of(*reinterpret_cast<const float4*>(x.widest));
  const float most = fmaxf(softmax.most, tile), shrink = exp2_fast(softmax.most - most), part = exp2_fast(tile - most);
  const float steps = widest > 0.0f ? __fdividef(kWeightSteps, widest) : 0.0f;
  const float e[4] = {exp2_fast(s0.x - tile), exp2_fast(s1.x - tile), exp2_fast(s0.y - tile), exp2_fast(s1.y - tile)}, v[4] = {v0.x, v1.x, v0.y, v1.y};
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = __float_as_uint(fmaf(e[i] * v[i], steps, 8388608.0f));
  const uint32_t a = permute(w[0], w[1], 0x5410), b = permute(w[2], w[3], 0x5410);
  reinterpret_cast<uint32_t*>(&x.weights[0][lane])[warp] = permute(a, b, 0x7531);
  reinterpret_cast<uint32_t*>(&x.weights[1][lane])[warp] = permute(a, b, 0x6420);
  softmax.most = most;
  softmax.total = fmaf(softmax.total, shrink, ((e[0] + e[1]) + (e[2] + e[3])) * part);
  return {shrink, part * widest * (kCentroidUnit / kWeightSteps)};
}

// acc: [16 dimensions][dimension 2g of heads 2t, 2t + 1; dimension 2g + 1].
__device__ __forceinline__ void shrink_sums(float (&acc)[4][4], float shrink, int t) {
  if (__all_sync(0xFFFFFFFFu, shrink == 1.0f)) return;
  const float a = __shfl_sync(0xFFFFFFFFu, shrink, t * 8), b = __shfl_sync(0xFFFFFFFFu, shrink, t * 8 + 4);
#pragma unroll
  for (int m = 0; m < 4; ++m) acc[m][0] *= a, acc[m][1] *= b, acc[m][2] *= a, acc[m][3] *= b;
}

__device__ __forceinline__ void sum_fp8(float (&acc)[4][4], const Exchange& x, const uint8_t* values, const Join& join, int warp, int lane) {
  const uint4 weights = x.weights[0][lane];
  const uint32_t p[2][2] = {{weights.x, weights.y}, {weights.z, weights.w}};
  shrink_sums(acc, join.shrink, lane % 4);
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

__device__ __forceinline__ void sum_three_bit(const Centroids& centroids, float (&acc)[4][4], const Exchange& x, const uint8_t* values, const Join& join, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  const uint4 high = x.weights[0][lane], low = x.weights[1][lane];
  uint32_t codes[4][2], signs[4][2];
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int d = (warp * 4 + m) * 16 + 2 * g + i;
      codes[m][i] = read<uint32_t>(values + d * 16 + t * 4), signs[m][i] = read<uint32_t>(values + kSigns + d * 8 + (t & 1) * 4);
    }
  shrink_sums(acc, join.shrink, t);
  const float fold_a = __shfl_sync(0xFFFFFFFFu, join.fold, t * 8), fold_b = __shfl_sync(0xFFFFFFFFu, join.fold, t * 8 + 4);
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    uint32_t even[4], odd[4];
    decode16(centroids, codes[m][0], signs[m][0] >> (t >> 1), even);
    decode16(centroids, codes[m][1], signs[m][1] >> (t >> 1), odd);
    int sums[4] = {};
    multiply_weights(sums, even[0], odd[0], even[1], odd[1], high.x, high.y);
    multiply_weights(sums, even[2], odd[2], even[3], odd[3], high.z, high.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] *= 256;
    multiply_weights(sums, even[0], odd[0], even[1], odd[1], low.x, low.y);
    multiply_weights(sums, even[2], odd[2], even[3], odd[3], low.z, low.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[m][i] = fmaf(static_cast<float>(sums[i]), i % 2 ? fold_b : fold_a, acc[m][i]);
  }
}

__global__ void __launch_bounds__(kThreads, 4) attend(const Args a) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;

  asm volatile("griddepcontrol.launch_dependents;");
  // Long runs of all sequences start first: what short ones leave idle at the end is little.
  const int split = a.splits - 1 - static_cast<int>(blockIdx.z), head = blockIdx.x, sequence = blockIdx.y / a.rows;
  const int64_t row = blockIdx.y;
  const int settled = static_cast<int>(a.positions[sequence] / kPage);  // pages before it are not written by this step
  const int position = static_cast<int>(a.positions[sequence]) + static_cast<int>(row) % a.rows, own = position / kPage;
  const int level = min(split / a.level_runs, a.levels - 1), size = a.run_pages << level;
  const int first = a.level_runs * a.run_pages * ((1 << level) - 1) + (split - a.level_runs * level) * size;
  const int last = min(first + size, own + 1);
  if (first >= last) return;
  // Anchors, then stale pages, then recent ones: three runs in order of position, any of them empty.
  const int stale = min(max(first, a.anchors), last), fresh = min(max(stale, own - a.recent + 1), last);
  const int before = 2 * (stale - first), between = fresh - stale;
  const int units = before + between + 2 * (last - fresh) - (last == own + 1 && position % kPage < kPage / 2 ? 1 : 0);
  const auto unit_at = [&](int u) -> Unit {
    if (u < before) return {u / 2, u % 2, true};
    if (u < before + between) return {stale - first + u - before, 0, false};
    u -= before + between;
    return {fresh - first + u / 2, u % 2, true};
  };
  if (threadIdx.x < last - first) {
    const int page = first + threadIdx.x;
    const bool fp8 = page < stale || page >= fresh;
    shared.page_ids[threadIdx.x] = (fp8 ? a.fp8_table : a.three_bit_table)[int64_t(sequence) * a.table_width + page];
  }
  __syncthreads();

  const int copy_token = threadIdx.x / 16, copy_to = copy_token * kSize + (threadIdx.x % 16 ^ swizzle(copy_token)) * 16, at16 = threadIdx.x * 16;
  // Half a page of one pool: eight tokens further each time, which changes one bit of the swizzle.
  const auto load_fp8 = [&](uint8_t* to, const uint8_t* pool, int64_t page, int half) {
    const uint8_t* const from = pool + (page * kPage + half * (kPage / 2)) * kSize + at16;
#pragma unroll
    for (int i = 0; i < 4; ++i) copy16(to + i * 8 * kSize + (copy_to ^ (i & 1) * 32), from + i * 8 * kSize);
  };
  const auto load_three_bit = [&](uint8_t* to, const uint8_t* low, const uint8_t* signs, int64_t page) {
    copy16(to + at16, low + page * kSigns + at16), copy16(to + at16 + kThreads * 16, low + page * kSigns + at16 + kThreads * 16);
    copy16(to + kSigns + at16, signs + page * (kScales - kSigns) + at16);
  };
  const auto load_keys = [&](int u) {
    if (u < units) {
      const Unit unit = unit_at(u);
      const int64_t page = int64_t(shared.page_ids[unit.page]) * a.kv_heads + head;
      uint8_t* const to = shared.keys[u % kKeySlots];
      if (unit.fp8) {
        load_fp8(to, a.keys, page, unit.half);
      } else {
        load_three_bit(to, a.key_low, a.key_signs, page);
        if (threadIdx.x < kPage * 2 / 16) copy16(to + kScales + at16, reinterpret_cast<const char*>(a.key_scale) + page * kPage * 2 + at16);
        else if (threadIdx.x < kPage * 4 / 16) copy16(to + kScales + at16, reinterpret_cast<const char*>(a.value_scale) + page * kPage * 2 + at16 - kPage * 2);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  const auto load_values = [&](int u) {
    if (u < units) {
      const Unit unit = unit_at(u);
      const int64_t page = int64_t(shared.page_ids[unit.page]) * a.kv_heads + head;
      uint8_t* const to = shared.values[u % kValueSlots];
      if (unit.fp8) load_fp8(to, a.values, page, unit.half);
      else load_three_bit(to, a.value_low, a.value_signs, page);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  const bool early = first < settled;
  if (early) load_keys(0);
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (!early) load_keys(0);

  // Queries in float16 for FP8 pages, and in 16 bits of their largest as two signed bytes for three-bit ones.
  for (int h = warp; h < kQueries; h += kWarps) {
    float v[8] = {};
    if (h < a.group) {
      const float4* const from = reinterpret_cast<const float4*>(a.q + ((row * a.kv_heads + head) * a.group + h) * kSize) + lane * 2;
      const float4 x = from[0], y = from[1];
      v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
    }
    const uint4 halves = {pack_half(v[0], v[1]), pack_half(v[2], v[3]), pack_half(v[4], v[5]), pack_half(v[6], v[7])};
    *reinterpret_cast<uint4*>(&shared.q_half[h][lane * 8]) = halves;
    if (between == 0) continue;
    float widest = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) widest = fmaxf(widest, fabsf(v[i]));
    widest = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(widest)));
    const float steps = widest > 0.0f ? kQuerySteps / widest : 0.0f;
    if (lane == 0) shared.q_unit[h] = widest * (kCentroidUnit / kQuerySteps);
    const int quarter = lane / 8, column = lane % 8 / 2;  // dimension = 64 quarter + 16 column + 4 word + place
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int n = __float2int_rn(v[i] * steps), low = static_cast<int8_t>(n & 255), high = (n - low) >> 8;
      const int word = lane % 2 * 2 + i / 4, place = i % 4;
      uint8_t* const to = reinterpret_cast<uint8_t*>(&shared.q_codes[2 * word + quarter % 2][h * 4 + column]) + place / 2 * 8 + place % 2 * 2 + quarter / 2;
      to[0] = static_cast<uint8_t>(high), to[4] = static_cast<uint8_t>(low);
    }
  }

  const float scale = a.scale * kLog2e;
  // By way of a shuffle, so that the compiler does not know them.
  const Centroids centroids = {__shfl_sync(0xFFFFFFFFu, kPositive, 0), __shfl_sync(0xFFFFFFFFu, kNegative, 0)};
  Softmax softmax = {kNothing, 0.0f};
  Join join = {1.0f, 0.0f};
  float acc[4][4] = {};
  for (int u = 0; u < units + 2; ++u) {
    // Keys of unit u are here, and values of unit u - 2; those of u - 1 may still be on their way.
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    if (u == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    load_keys(u + 1);
    load_values(u);
    const uint8_t* const keys = shared.keys[u % kKeySlots];
    const uint8_t* const values = shared.values[(u + 1) % kValueSlots];  // of unit u - 2
    Exchange &even = shared.exchange[u % 2], &odd = shared.exchange[(u + 1) % 2];
    if (u >= before + 2 && u < before + between) {  // all three are three-bit pages: one block of code, to be interleaved
      sum_three_bit(centroids, acc, even, values, join, warp, lane);
      // The sums above have read the weights of unit u - 2, whose room those of unit u take only after the next barrier.
      join = weigh_three_bit(odd, softmax, warp, lane);
      score_three_bit(centroids, shared, even, keys, scale, warp, lane);
      continue;
    }
    if (u >= 2) {
      if (unit_at(u - 2).fp8) sum_fp8(acc, even, values, join, warp, lane);
      else sum_three_bit(centroids, acc, even, values, join, warp, lane);
    }
    if (u >= 1 && u <= units) join = unit_at(u - 1).fp8 ? weigh_fp8(odd, softmax, warp, lane) : weigh_three_bit(odd, softmax, warp, lane);
    if (u < units) {
      const Unit unit = unit_at(u);
      if (unit.fp8) score_fp8(shared, even, keys, (first + unit.page) * kPage + unit.half * (kPage / 2), position, scale, warp, lane);
      else score_three_bit(centroids, shared, even, keys, scale, warp, lane);
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
  uint8_t *low[2], *signs[2];
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
  // Vector v of n codes: keys have 64 of 256, values 256 of 64.
  const int n = kind == 0 ? kSize : kPage, vectors = kPage * kSize / n;
  const auto code = [&](int v, int i) -> uint32_t { return kind == 0 ? codes[v * kPitch + i] : codes[i * kPitch + v]; };
  for (int at = threadIdx.x; at < vectors * n / 4; at += 256) {
    const int v = at / (n / 4), b = at % (n / 4);
    uint32_t byte = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) byte |= (code(v, b + j * (n / 4)) & 3) << (2 * j);
    a.low[kind][to * kSigns + at] = static_cast<uint8_t>(byte);
  }
  for (int at = threadIdx.x; at < vectors * n / 8; at += 256) {
    const int v = at / (n / 8), b = at % (n / 8);
    uint32_t byte = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) byte |= (code(v, b + i * (n / 8)) >> 2) << i;
    a.signs[kind][to * (kScales - kSigns) + at] = static_cast<uint8_t>(byte);
  }
}

}  // namespace

// `pools`: keys, values, then low, signs and scale of keys, then of values. The first `level_runs` runs are `run_pages` long, as many
// after them twice that, and so on; those of the last of `levels` go on to the end.
extern "C" int staged_attention_launch(const float* q, void* const* pools, const int* fp8_table, const int* three_bit_table,
                                       const int64_t* positions, float* acc, float* most_total, float scale, int sequences, int rows,
                                       int table_width, int anchors, int recent, int splits, int kv_heads, int group, int run_pages,
                                       int level_runs, int levels, int overlap, void* stream) {
  if (group > kQueries || levels < 1 || run_pages << (levels - 1) > kMostPages) return cudaErrorInvalidValue;
  const auto bytes = [&](int i) { return static_cast<const uint8_t*>(pools[i]); };
  const Args args{q, bytes(0), bytes(1), bytes(2), bytes(3), static_cast<const __half*>(pools[4]), bytes(5), bytes(6),
                  static_cast<const __half*>(pools[7]), fp8_table, three_bit_table, positions, acc, most_total, scale, rows, table_width,
                  anchors, recent, splits, kv_heads, group, run_pages, level_runs, levels};
  return launch_kernel(attend, args, dim3(kv_heads, sequences * rows, splits), kThreads, sizeof(Shared), overlap, static_cast<cudaStream_t>(stream));
}

// Pages `from` of the FP8 pools are encoded into pages `to` of the three-bit ones; `pools` as above.
extern "C" int demote_launch(void* const* pools, const int64_t* from, const int64_t* to, int pages, int kv_heads, void* stream) {
  const auto bytes = [&](int i) { return static_cast<uint8_t*>(pools[i]); };
  const DemoteArgs args{{bytes(0), bytes(1)}, {bytes(2), bytes(5)}, {bytes(3), bytes(6)},
                        {static_cast<__half*>(pools[4]), static_cast<__half*>(pools[7])}, from, to, kv_heads};
  demote<<<dim3(pages, kv_heads, 2), 256, 0, static_cast<cudaStream_t>(stream)>>>(args);
  return cudaGetLastError();
}
