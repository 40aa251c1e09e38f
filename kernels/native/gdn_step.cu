// One decode step of a Gated DeltaNet layer between its two projections: causal convolution, l2 norms, gates, the
// recurrence for `tokens` rows a sequence, and the gated norm, in one launch that reads and writes each state once.
//
// kernels/gated_delta_rule/README.md has the formulas. One block runs on each processor and takes one value head of one
// sequence after another: sixteen warps hold eight rows of S [128 keys, 128 values] each, four columns a lane, so that every
// access to S is 512 bytes of a row. The next head's small inputs, and behind them its state, are requested before the present
// head is computed: a small load that is issued behind the states of a full device would wait for all of them.
// Rows beyond the first repeat the same arithmetic in the same order: verifying drafts gives the bits of plain decoding.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kDim = 128;
constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = kDim / kWarps;

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
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

__device__ __forceinline__ float4 decayed(float4 s, float alpha) {
  return make_float4(__fmul_rn(s.x, alpha), __fmul_rn(s.y, alpha), __fmul_rn(s.z, alpha), __fmul_rn(s.w, alpha));
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

// What one thread needs of a head for its first row: threads 0 to 127 a channel of q, then k, then v, then z. Loads are kept as
// they come: arithmetic on one would wait for it.
struct Inputs {
  int64_t state_slot, conv_slot;
  int place;  // of the row in the ring
  float now, gate_a, gate_b;
  float4 squares;
  __nv_bfloat16 taps[3];
  float weights[4];
  float rate, bias;
};

template <typename T>
__device__ __forceinline__ float load_row(const Args& a, int row, int column) {
  const T* const from = static_cast<const T*>(a.mixed) + int64_t(row) * a.mixed_width + column;
  float sum = static_cast<float>(*from);
  for (int p = 1; p < a.parts; ++p) sum += static_cast<float>(from[int64_t(p) * a.sequences * a.tokens * a.mixed_width]);
  return sum;
}

__device__ __forceinline__ int wrap(int place, int ring) { return place < 0 ? place + ring : place >= ring ? place - ring : place; }

template <typename T, bool half_out>
__global__ void __launch_bounds__(kThreads, 1) gdn_step(const Args a) {
  extern __shared__ __align__(16) float4 buffers[];  // [2][kRows][kThreads]
  __shared__ float q[kDim], k[kDim], z[kDim], delta[kDim], by_query[kDim], norms[kWarps / 2];
  __shared__ float4 by_k[kWarps][32], by_q[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = threadIdx.x % kDim, kind = threadIdx.x / kDim;
  const int per_key = a.value_heads / a.key_heads, items = a.sequences * a.value_heads;
  const int value_base = 2 * a.key_heads * kDim, z_base = value_base + a.value_heads * kDim, gate_base = z_base + a.value_heads * kDim;
  const int channels = z_base;
  const int64_t head_size = int64_t(kDim) * kDim;
  const float4 norm_weight = *reinterpret_cast<const float4*>(a.norm_weight + lane * 4);

  const auto column_of = [&](int head) {
    return kind == 0 ? head / per_key * kDim + d : kind == 1 ? (a.key_heads + head / per_key) * kDim + d
         : kind == 2 ? value_base + head * kDim + d : z_base + head * kDim + d;
  };
  // What does not depend on the kernel before this one.
  const auto load_kept = [&](int item, Inputs& in) {
    const int head = item % a.value_heads, sequence = item / a.value_heads, column = column_of(head);
    in.state_slot = a.state_in[sequence], in.conv_slot = a.conv_slot[sequence];
    in.place = static_cast<int>(static_cast<uint32_t>(a.positions[sequence]) % static_cast<uint32_t>(a.ring));
    in.rate = a.a_log[head], in.bias = a.dt_bias[head];
    if (kind < 3) {
#pragma unroll
      for (int tap = 0; tap < 4; ++tap) in.weights[tap] = a.conv_weight[tap * channels + column];
#pragma unroll
      for (int tap = 0; tap < 3; ++tap)
        in.taps[tap] = a.conv[(in.conv_slot * a.ring + wrap(in.place - 3 + tap, a.ring)) * channels + column];
    }
  };
  const auto load_new = [&](int item, int t, Inputs& in) {
    const int head = item % a.value_heads, row = item / a.value_heads * a.tokens + t;
    in.now = load_row<T>(a, row, column_of(head));
    if (a.gates) {
      const __nv_bfloat16* const gates = a.gates + int64_t(row) * 2 * a.value_heads + head;
      in.gate_b = __bfloat162float(gates[0]), in.gate_a = __bfloat162float(gates[a.value_heads]);
    } else {
      in.gate_b = load_row<T>(a, row, gate_base + head), in.gate_a = load_row<T>(a, row, gate_base + a.value_heads + head);
    }
    if (a.square_sums) in.squares = a.square_sums[row];
  };
  const auto load_state = [&](int item, int buffer, const Inputs& in) {
    const float* from = a.state + (in.state_slot * a.value_heads + item % a.value_heads) * head_size + warp * kRows * kDim + lane * 4;
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(buffers + buffer * kRows * kThreads + threadIdx.x));
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * kThreads * 16), "l"(from + i * kDim));
  };

  asm volatile("griddepcontrol.launch_dependents;");
  int item = blockIdx.x, buffer = 0;
  if (item >= items) return;
  Inputs in;
  load_kept(item, in);
  load_state(item, 0, in);
  asm volatile("cp.async.commit_group;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  load_new(item, 0, in);

  for (; item < items; item += gridDim.x, buffer ^= 1) {
    const int head = item % a.value_heads, sequence = item / a.value_heads, next = item + gridDim.x;
    Inputs following;
    if (next < items) {
      load_kept(next, following);
      load_new(next, 0, following);
      load_state(next, buffer ^ 1, following);
    }
    asm volatile("cp.async.commit_group;");
    float4* const kept = buffers + buffer * kRows * kThreads + threadIdx.x;
    for (int t = 0; t < a.tokens; ++t) {
      const int row = sequence * a.tokens + t;
      if (t > 0) load_new(item, t, in);
      const int64_t slot = a.state_out[row];
      // Four taps, oldest first, then SiLU. Inputs are rounded to bf16 before use, as later steps find them in the ring. q and
      // k serve several value heads, of which the first keeps their inputs.
      const float scale = a.square_sums ? rsqrtf((in.squares.x + in.squares.y + in.squares.z + in.squares.w) * a.square_scale + 1e-6f) : 1.0f;
      float x = in.now * scale;
      if (kind < 3) {
        const __nv_bfloat16 input = __float2bfloat16(x);
        const float now = __bfloat162float(input);
        if (kind == 2 || head % per_key == 0)
          a.conv[(in.conv_slot * a.ring + wrap(in.place + t, a.ring)) * channels + column_of(head)] = input;
        x = __bfloat162float(in.taps[0]) * in.weights[0];
        x = fmaf(__bfloat162float(in.taps[1]), in.weights[1], x), x = fmaf(__bfloat162float(in.taps[2]), in.weights[2], x);
        x = fmaf(now, in.weights[3], x);
        in.taps[0] = in.taps[1], in.taps[1] = in.taps[2], in.taps[2] = input;
      }
      x *= sigmoid(x);
      const float pre = fmaf(in.gate_a, scale, in.bias);
      const float alpha = __expf(-__expf(in.rate) * (pre > 20.0f ? pre : log1pf(__expf(pre))));
      const float beta = sigmoid(in.gate_b * scale);
      if (kind < 2) {
        const float squares = warp_sum(x * x);
        if (lane == 0) norms[warp] = squares;
      }
      __syncthreads();
      if (kind < 2) {
        const float* const n = norms + kind * 4;
        (kind ? k : q)[d] = x * (rsqrtf(n[0] + n[1] + n[2] + n[3] + 1e-6f) * (kind ? 1.0f : 0.08838834764831845f));
      } else if (kind == 2) {
        delta[d] = x;  // v, until the prediction is known
      } else {
        z[d] = x;
      }
      if (t == 0) asm volatile("cp.async.wait_group 1;" ::: "memory");
      __syncthreads();

      float4 s[kRows], sum_k = make_float4(0, 0, 0, 0), sum_q = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        s[i] = decayed(kept[i * kThreads], alpha);
        const float ki = k[warp * kRows + i], qi = q[warp * kRows + i];
        sum_k.x += s[i].x * ki, sum_k.y += s[i].y * ki, sum_k.z += s[i].z * ki, sum_k.w += s[i].w * ki;
        sum_q.x += s[i].x * qi, sum_q.y += s[i].y * qi, sum_q.z += s[i].z * qi, sum_q.w += s[i].w * qi;
      }
      by_k[warp][lane] = sum_k;
      by_q[warp][lane] = sum_q;
      __syncthreads();
      if (kind < 2) {
        const float* const parts = reinterpret_cast<const float*>(kind ? by_q : by_k) + d;
        float sum = parts[0];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) sum += parts[w * kDim];
        if (kind) by_query[d] = sum;
        else delta[d] = beta * (delta[d] - sum);
      }
      __syncthreads();
      const float4 change = *reinterpret_cast<const float4*>(&delta[lane * 4]);
      float* const to = a.state + (slot * a.value_heads + head) * head_size + warp * kRows * kDim + lane * 4;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float ki = k[warp * kRows + i];
        s[i].x = fmaf(ki, change.x, s[i].x), s[i].y = fmaf(ki, change.y, s[i].y);
        s[i].z = fmaf(ki, change.z, s[i].z), s[i].w = fmaf(ki, change.w, s[i].w);
        if (t + 1 < a.tokens) kept[i * kThreads] = s[i];
        if (slot >= 0) __stcs(reinterpret_cast<float4*>(to + i * kDim), s[i]);
      }
      if (warp == 0) {
        float qk = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) qk += q[lane * 4 + i] * k[lane * 4 + i];
        qk = warp_sum(qk);
        const float4 sums = *reinterpret_cast<const float4*>(&by_query[lane * 4]), gate = *reinterpret_cast<const float4*>(&z[lane * 4]);
        const float o[4] = {fmaf(qk, change.x, sums.x), fmaf(qk, change.y, sums.y), fmaf(qk, change.z, sums.z), fmaf(qk, change.w, sums.w)};
        const float inverse = rsqrtf(warp_sum(o[0] * o[0] + o[1] * o[1] + o[2] * o[2] + o[3] * o[3]) * (1.0f / kDim) + 1e-6f);
        const float weights[4] = {norm_weight.x, norm_weight.y, norm_weight.z, norm_weight.w}, gates[4] = {gate.x, gate.y, gate.z, gate.w};
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) y[i] = __bfloat162float(__float2bfloat16(o[i] * inverse)) * weights[i] * gates[i];
        const int64_t at = int64_t(row) * a.value_heads * kDim + head * kDim + lane * 4;
        if constexpr (half_out) {
          __half2 pair[2] = {__floats2half2_rn(y[0], y[1]), __floats2half2_rn(y[2], y[3])};
          *reinterpret_cast<uint2*>(static_cast<__half*>(a.out) + at) = *reinterpret_cast<uint2*>(pair);
        } else {
          __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(y[0], y[1]), __floats2bfloat162_rn(y[2], y[3])};
          *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.out) + at) = *reinterpret_cast<uint2*>(pair);
        }
      }
      __syncthreads();  // before the next row's q, k, v and z
    }
    in = following;
  }
}

}  // namespace

extern "C" int gdn_step_launch(const void* mixed, int mixed_is_float, const void* gates, float* state, const int64_t* state_in, const int64_t* state_out,
                               void* conv, const int64_t* conv_slot, const int64_t* positions, const float* conv_weight,
                               const float* a_log, const float* dt_bias, const float* norm_weight, void* out, int out_is_half,
                               const void* square_sums, float square_scale, int sequences, int tokens,
                               int key_heads, int value_heads, int ring, int parts, int mixed_width,
                               int blocks, int overlap, void* stream) {
  const Args args{mixed, static_cast<const __nv_bfloat16*>(gates), state, state_in, state_out, static_cast<__nv_bfloat16*>(conv), conv_slot, positions, conv_weight, a_log,
                  dt_bias, norm_weight, out, static_cast<const float4*>(square_sums), square_scale, sequences, tokens, key_heads, value_heads,
                  ring, parts, mixed_width};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(sequences * value_heads < blocks ? sequences * value_heads : blocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = 2 * kDim * kDim * sizeof(float);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  const auto choose = [&](auto type) {
    using T = decltype(type);
    const auto kernel = out_is_half ? gdn_step<T, true> : gdn_step<T, false>;
    const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, config.dynamicSmemBytes);
    return status ? status : cudaLaunchKernelEx(&config, kernel, args);
  };
  return mixed_is_float ? choose(float{}) : choose(__nv_bfloat16{});
}
