// One decode step of a Gated DeltaNet layer between its two projections: causal convolution, l2 norms, gates, the
// recurrence for `tokens` rows a sequence, and the gated norm, in one launch that reads and writes each state once.
//
// kernels/gated_delta_rule/README.md has the formulas. A block of four warps takes one value head of one sequence; three
// blocks fit a processor, so at batch 8 every state of a layer is under way at once, and a block that ends makes room for one of
// the next launch, which fetches its state before its inputs are there. The state S [128 keys, 128 values] comes by four bulk
// copies into shared memory. A warp owns 32 values: each lane four of them in every fourth row, so that Sᵀk, Sᵀq and the update
// stay within the warp; only the inputs and the norm of the output cross the block.
// Rows beyond the first repeat the same arithmetic in the same order: verifying drafts gives the bits of plain decoding.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "launch.cuh"

namespace {

constexpr int kDim = 128, kWarps = 4, kThreads = kWarps * 32;
constexpr int kParts = 4, kPartRows = kDim / kParts;  // of the state's way into shared memory
constexpr int kSharedBytes = kDim * kDim * 4;

struct Args {
  const void* mixed;            // [parts, sequences * tokens, mixed_width]: q | k | v | z | b | a, parts to be summed
  const __nv_bfloat16* gates;   // null, or [sequences * tokens, b | a]: then mixed ends with z
  float* state;                 // [slots, value_heads, 128, 128]
  const int64_t* state_in;      // [sequences]
  const int64_t* state_out;     // [sequences, tokens]; negative: not kept
  __nv_bfloat16* conv;          // [slots, ring, channels]: the inputs of position p stand at p % ring
  const int64_t* conv_slot;     // [sequences]
  const int64_t* positions;     // [sequences]: of the first row, below 2^32
  const float* conv_weight;     // [4, channels]
  const float* a_log;           // [value_heads]
  const float* dt_bias;         // [value_heads]
  const float* norm_weight;     // [128]
  void* out;                    // [sequences * tokens, value_heads * 128], bf16 or float16
  const float4* square_sums;    // null, or [sequences * tokens]: a deferred RMS norm of the layer's input, in four parts
  float square_scale;
  int sequences, tokens, key_heads, value_heads, ring, parts, mixed_width;
  int per_key;                  // value heads of a key head
  Divisor by_per_key;
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

// Over the four lanes that hold the same values of different rows.
__device__ __forceinline__ float rows_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 8);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 16);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void wait_for(uint32_t barrier) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(barrier)
      : "memory");
}

template <typename T>
__device__ __forceinline__ float load_row(const Args& a, int row, int column) {
  const T* const from = static_cast<const T*>(a.mixed) + int64_t(row) * a.mixed_width + column;
  float sum = static_cast<float>(*from);
  for (int p = 1; p < a.parts; ++p) sum += static_cast<float>(from[int64_t(p) * a.sequences * a.tokens * a.mixed_width]);
  return sum;
}

__device__ __forceinline__ int wrap(int place, int ring) { return place < 0 ? place + ring : place >= ring ? place - ring : place; }

template <typename T, bool half_out>
__global__ void __launch_bounds__(kThreads, 3) gdn_step(const Args a) {
  extern __shared__ __align__(128) float4 state[];  // [128 rows][32 chunks of four values]
  __shared__ __align__(8) uint64_t arrived[kParts];
  __shared__ __align__(16) float inputs[4][kDim];  // q, k, v, z after convolution and SiLU
  __shared__ float squares[2][kWarps], out_squares[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = threadIdx.x;
  const int head = blockIdx.x, sequence = blockIdx.y, key_head = a.by_per_key(head);
  const bool keeps_key = head == key_head * a.per_key;  // q and k serve several value heads, of which the first keeps their inputs
  const int channels = (2 * a.key_heads + a.value_heads) * kDim, gate_base = channels + a.value_heads * kDim;
  const int columns[4] = {key_head * kDim + d, (a.key_heads + key_head) * kDim + d, (2 * a.key_heads + head) * kDim + d, channels + head * kDim + d};

  asm volatile("griddepcontrol.launch_dependents;");
  if (threadIdx.x == 0) {
    const float* const from = a.state + (a.state_in[sequence] * a.value_heads + head) * int64_t(kDim) * kDim;
    for (int part = 0; part < kParts; ++part) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrived + part)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int part = 0; part < kParts; ++part) {
      constexpr int kBytes = kPartRows * kDim * 4;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrived + part)), "n"(kBytes) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(state) + part * kBytes),
                   "l"(from + part * kPartRows * kDim), "n"(kBytes), "r"(shared_address(arrived + part))
                   : "memory");
    }
  }
  // What does not depend on the kernel before this one.
  const int64_t conv_slot = a.conv_slot[sequence];
  const int place = static_cast<int>(static_cast<uint32_t>(a.positions[sequence]) % static_cast<uint32_t>(a.ring));
  const float rate = __expf(a.a_log[head]), bias = a.dt_bias[head];
  __nv_bfloat16 taps[3][3];
  float weights[3][4];
#pragma unroll
  for (int kind = 0; kind < 3; ++kind) {
#pragma unroll
    for (int tap = 0; tap < 4; ++tap) weights[kind][tap] = a.conv_weight[tap * channels + columns[kind]];
#pragma unroll
    for (int tap = 0; tap < 3; ++tap) taps[kind][tap] = a.conv[(conv_slot * a.ring + wrap(place - 3 + tap, a.ring)) * channels + columns[kind]];
  }
  const int chunk = warp * 8 + lane % 8, first_row = lane / 8;
  const float4 norm_weight = reinterpret_cast<const float4*>(a.norm_weight)[chunk];
  asm volatile("griddepcontrol.wait;" ::: "memory");

  for (int t = 0; t < a.tokens; ++t) {
    const int row = sequence * a.tokens + t;
    const int64_t slot = a.state_out[row];
    float now[4];
#pragma unroll
    for (int kind = 0; kind < 4; ++kind) now[kind] = load_row<T>(a, row, columns[kind]);
    float gate_a, gate_b, scale = 1.0f;
    if (a.gates) {
      const __nv_bfloat16* const gates = a.gates + int64_t(row) * 2 * a.value_heads + head;
      gate_b = __bfloat162float(gates[0]), gate_a = __bfloat162float(gates[a.value_heads]);
    } else {
      gate_b = load_row<T>(a, row, gate_base + head), gate_a = load_row<T>(a, row, gate_base + a.value_heads + head);
    }
    if (a.square_sums) {
      const float4 sums = a.square_sums[row];
      scale = rsqrtf((sums.x + sums.y + sums.z + sums.w) * a.square_scale + 1e-6f);
    }
    // Four taps, oldest first, then SiLU. Inputs are rounded to bf16 before use, as later steps find them in the ring.
#pragma unroll
    for (int kind = 0; kind < 4; ++kind) {
      float x = now[kind] * scale;
      if (kind < 3) {
        const __nv_bfloat16 input = __float2bfloat16(x);
        if (kind == 2 || keeps_key) a.conv[(conv_slot * a.ring + wrap(place + t, a.ring)) * channels + columns[kind]] = input;
        x = __bfloat162float(taps[kind][0]) * weights[kind][0];
        x = fmaf(__bfloat162float(taps[kind][1]), weights[kind][1], x), x = fmaf(__bfloat162float(taps[kind][2]), weights[kind][2], x);
        x = fmaf(__bfloat162float(input), weights[kind][3], x);
        taps[kind][0] = taps[kind][1], taps[kind][1] = taps[kind][2], taps[kind][2] = input;
      }
      x *= sigmoid(x);
      inputs[kind][d] = x;
      if (kind < 2) {
        const float sum = warp_sum(x * x);
        if (lane == 0) squares[kind][warp] = sum;
      }
    }
    const float pre = fmaf(gate_a, scale, bias);
    const float alpha = __expf(-rate * (pre > 20.0f ? pre : log1pf(__expf(pre)))), beta = sigmoid(gate_b * scale);
    __syncthreads();
    const float q_norm = rsqrtf(squares[0][0] + squares[0][1] + squares[0][2] + squares[0][3] + 1e-6f) * 0.08838834764831845f;
    const float k_norm = rsqrtf(squares[1][0] + squares[1][1] + squares[1][2] + squares[1][3] + 1e-6f);

    // Sᵀk, Sᵀq and q·k before the norms of q and k, and before the decay.
    float by_k[4] = {}, by_q[4] = {}, qk = 0.0f;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (t == 0) wait_for(shared_address(arrived + part));
#pragma unroll
      for (int i = 0; i < kPartRows / 4; ++i) {
        const int r = part * kPartRows + i * 4 + first_row;
        const float4 s = state[r * (kDim / 4) + chunk];
        const float q = inputs[0][r], k = inputs[1][r];
        by_k[0] = fmaf(s.x, k, by_k[0]), by_k[1] = fmaf(s.y, k, by_k[1]), by_k[2] = fmaf(s.z, k, by_k[2]), by_k[3] = fmaf(s.w, k, by_k[3]);
        by_q[0] = fmaf(s.x, q, by_q[0]), by_q[1] = fmaf(s.y, q, by_q[1]), by_q[2] = fmaf(s.z, q, by_q[2]), by_q[3] = fmaf(s.w, q, by_q[3]);
        qk = fmaf(q, k, qk);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) by_k[i] = rows_sum(by_k[i]), by_q[i] = rows_sum(by_q[i]);
    qk = rows_sum(qk) * (q_norm * k_norm);
    const float4 value = reinterpret_cast<const float4*>(inputs[2])[chunk];
    const float values[4] = {value.x, value.y, value.z, value.w};
    float change[4], o[4], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      change[i] = beta * (values[i] - by_k[i] * (alpha * k_norm));
      o[i] = fmaf(qk, change[i], by_q[i] * (alpha * q_norm));
      sum = fmaf(o[i], o[i], sum);
      change[i] *= k_norm;
    }
#pragma unroll
    for (int offset = 4; offset; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    if (lane == 0) out_squares[warp] = sum;

    float4* const to = reinterpret_cast<float4*>(a.state + (slot * a.value_heads + head) * int64_t(kDim) * kDim);
#pragma unroll 8
    for (int i = 0; i < kDim / 4; ++i) {
      const int r = i * 4 + first_row;
      float4 s = state[r * (kDim / 4) + chunk];
      const float k = inputs[1][r];
      s.x = fmaf(k, change[0], __fmul_rn(s.x, alpha)), s.y = fmaf(k, change[1], __fmul_rn(s.y, alpha));
      s.z = fmaf(k, change[2], __fmul_rn(s.z, alpha)), s.w = fmaf(k, change[3], __fmul_rn(s.w, alpha));
      if (t + 1 < a.tokens) state[r * (kDim / 4) + chunk] = s;
      if (slot >= 0) __stcs(to + r * (kDim / 4) + chunk, s);
    }
    __syncthreads();
    if (first_row == 0) {
      const float inverse = rsqrtf((out_squares[0] + out_squares[1] + out_squares[2] + out_squares[3]) * (1.0f / kDim) + 1e-6f);
      const float4 gate = reinterpret_cast<const float4*>(inputs[3])[chunk];
      const float norms[4] = {norm_weight.x, norm_weight.y, norm_weight.z, norm_weight.w}, gates[4] = {gate.x, gate.y, gate.z, gate.w};
      float y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = __bfloat162float(__float2bfloat16(o[i] * inverse)) * norms[i] * gates[i];
      const int64_t at = (int64_t(row) * a.value_heads + head) * kDim + chunk * 4;
      if constexpr (half_out) {
        __half2 pair[2] = {__floats2half2_rn(y[0], y[1]), __floats2half2_rn(y[2], y[3])};
        *reinterpret_cast<uint2*>(static_cast<__half*>(a.out) + at) = *reinterpret_cast<uint2*>(pair);
      } else {
        __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(y[0], y[1]), __floats2bfloat162_rn(y[2], y[3])};
        *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.out) + at) = *reinterpret_cast<uint2*>(pair);
      }
    }
    if (t + 1 < a.tokens) __syncthreads();  // before the next row's q, k, v and z
  }
}

}  // namespace

extern "C" int gdn_step_launch(const void* mixed, int mixed_is_float, const void* gates, float* state, const int64_t* state_in, const int64_t* state_out,
                               void* conv, const int64_t* conv_slot, const int64_t* positions, const float* conv_weight,
                               const float* a_log, const float* dt_bias, const float* norm_weight, void* out, int out_is_half,
                               const void* square_sums, float square_scale, int sequences, int tokens,
                               int key_heads, int value_heads, int ring, int parts, int mixed_width, int overlap, void* stream) {
  const Args args{mixed, static_cast<const __nv_bfloat16*>(gates), state, state_in, state_out, static_cast<__nv_bfloat16*>(conv), conv_slot, positions, conv_weight, a_log,
                  dt_bias, norm_weight, out, static_cast<const float4*>(square_sums), square_scale, sequences, tokens, key_heads, value_heads,
                  ring, parts, mixed_width, value_heads / key_heads, Divisor(value_heads / key_heads)};
  const auto choose = [&](auto type) {
    using T = decltype(type);
    const auto kernel = out_is_half ? gdn_step<T, true> : gdn_step<T, false>;
    return launch_kernel(kernel, args, dim3(value_heads, sequences), kThreads, kSharedBytes, overlap, static_cast<cudaStream_t>(stream));
  };
  return mixed_is_float ? choose(float{}) : choose(__nv_bfloat16{});
}
