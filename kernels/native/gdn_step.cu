// One decode step of a Gated DeltaNet layer between its two projections: causal convolution, l2 norms, gates, the
// recurrence for `tokens` rows a sequence, and the gated norm, in one launch that reads and writes each state once.
//
// kernels/gated_delta_rule/README.md has the formulas. A block takes one value head of one sequence; three fit a processor, so at
// batch 8 every state of a layer has its place at once, and a block that ends makes room for one of the next launch, which fetches
// its state before its inputs are there. A warp of its own fetches the state S [128 keys, 128 values] into shared memory, by boxes
// of half the values, the first half first, and asks for no more at a time than keeps the memory busy: whatever else is read or
// written waits behind what has been asked for. Four warps compute. At first each makes one input: q, k, v, or z and the gates.
// Then a warp owns 32 values: each lane four of them in every fourth group of four rows, so that Sᵀk, Sᵀq and the update stay
// within the warp, and the first two warps write their half while the other half still comes.
// Rows beyond the first repeat the same arithmetic in the same order: verifying drafts gives the bits of plain decoding.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include <type_traits>

#include "launch.cuh"

namespace {

constexpr int kDim = 128, kWarps = 4, kThreads = kWarps * 32, kBlocks = 3;
constexpr int kSlices = 2, kColumns = kDim / kSlices, kChunks = kColumns / 4;  // of the state by values; chunks of a row of a slice
constexpr int kBoxRows = 32, kBoxes = kDim / kBoxRows, kBoxBytes = kBoxRows * kColumns * 4;  // of a slice
constexpr int kSharedBytes = kDim * kDim * 4;

struct Args {
  CUtensorMap boxes;            // of the state
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
  int64_t part_stride;          // values of a part of mixed
  int tokens, key_heads, value_heads, ring, parts, mixed_width;
  int per_key;                  // value heads of a key head
  int window;                   // boxes that a block asks for at a time
  Divisor by_per_key;
};

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

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

__device__ __forceinline__ int wrap(int place, int ring) { return place < 0 ? place + ring : place >= ring ? place - ring : place; }

struct Four {  // bfloat16
  uint2 bits;
};

__device__ __forceinline__ float4 widen(const float4& x) { return x; }
__device__ __forceinline__ float4 widen(const Four& x) {
  return {__uint_as_float(x.bits.x << 16), __uint_as_float(x.bits.x & 0xFFFF0000u), __uint_as_float(x.bits.y << 16), __uint_as_float(x.bits.y & 0xFFFF0000u)};
}
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ Four narrow(const float4& x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y), high = __floats2bfloat162_rn(x.z, x.w);
  return {{reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high)}};
}
__device__ __forceinline__ void add(float4& sum, const float4& x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; }
__device__ __forceinline__ float4 multiply_add(const float4& x, const float4& y, const float4& z) {
  return {fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y), fmaf(x.z, y.z, z.z), fmaf(x.w, y.w, z.w)};
}
__device__ __forceinline__ float dot(const float4& x, const float4& y) { return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, x.x * y.x))); }
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Sᵀk and Sᵀq, without the norms of q and k, grow by four rows of S.
__device__ __forceinline__ void add_rows(const float4 (&s)[4], const float4& q4, const float4& k4, float (&by_k)[4], float (&by_q)[4]) {
  const float q[4] = {q4.x, q4.y, q4.z, q4.w}, k[4] = {k4.x, k4.y, k4.z, k4.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    by_k[0] = fmaf(s[j].x, k[j], by_k[0]), by_k[1] = fmaf(s[j].y, k[j], by_k[1]), by_k[2] = fmaf(s[j].z, k[j], by_k[2]), by_k[3] = fmaf(s[j].w, k[j], by_k[3]);
    by_q[0] = fmaf(s[j].x, q[j], by_q[0]), by_q[1] = fmaf(s[j].y, q[j], by_q[1]), by_q[2] = fmaf(s[j].z, q[j], by_q[2]), by_q[3] = fmaf(s[j].w, q[j], by_q[3]);
  }
}

__device__ __forceinline__ void step_row(float4& s, float k, float alpha, const float (&change)[4]) {
  s.x = fmaf(k, change[0], __fmul_rn(s.x, alpha)), s.y = fmaf(k, change[1], __fmul_rn(s.y, alpha));
  s.z = fmaf(k, change[2], __fmul_rn(s.z, alpha)), s.w = fmaf(k, change[3], __fmul_rn(s.w, alpha));
}

// The warps that compute; the one that fetches the state is not among them.
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }

template <typename T, bool half_out>
__global__ void __launch_bounds__(kThreads + 32, kBlocks) gdn_step(const __grid_constant__ Args a) {
  using T4 = std::conditional_t<std::is_same_v<T, float>, float4, Four>;
  extern __shared__ __align__(128) float4 state[];  // [slices][128 rows][chunks of four values]
  __shared__ __align__(8) uint64_t arrived[kSlices * kBoxes];
  __shared__ __align__(16) float inputs[4][kDim];  // q, k, v, z after convolution and SiLU, made by a warp each
  __shared__ __align__(16) float norm_weights[kDim];
  __shared__ float squares[2], gates[2], out_squares[kWarps];  // Σq² and Σk²; β and α
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.x, sequence = blockIdx.y, key_head = a.by_per_key(head);
  const int channels = (2 * a.key_heads + a.value_heads) * kDim;
  const int first_head = warp == 0 ? 0 : warp == 1 ? a.key_heads : warp == 2 ? 2 * a.key_heads : 2 * a.key_heads + a.value_heads;
  const int channel = (first_head + (warp < 2 ? key_head : head)) * kDim + lane * 4;
  // q and k serve several value heads, of which the first keeps their inputs.
  const bool convolves = warp < 3, keeps = warp == 2 || (warp < 2 && head == key_head * a.per_key);
  const int chunk = warp * 8 + lane % 8, first_row = lane / 8 * 4;
  const int slice = warp * kSlices / kWarps;
  float4* const mine = state + slice * kDim * kChunks + chunk % kChunks;

  asm volatile("griddepcontrol.launch_dependents;");
  if (threadIdx.x == 0) {
    for (int box = 0; box < kSlices * kBoxes; ++box) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrived + box)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp == kWarps) {
    if (lane == 0) {
      asm volatile("prefetch.tensormap [%0];" ::"l"(&a.boxes) : "memory");
      const int from = static_cast<int>(a.state_in[sequence]) * a.value_heads + head;
#pragma unroll 1
      for (int box = 0; box < kSlices * kBoxes; ++box) {
        if (box >= a.window) wait_for(shared_address(arrived + box - a.window));
        const uint32_t barrier = shared_address(arrived + box);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "n"(kBoxBytes) : "memory");
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
                         shared_address(state) + box * kBoxBytes),
                     "l"(&a.boxes), "r"(box / kBoxes * kColumns), "r"(box % kBoxes * kBoxRows), "r"(from), "r"(barrier)
                     : "memory");
      }
    }
    return;
  }
  // What else does not depend on the kernel before this one.
  int64_t slot = a.state_out[sequence * a.tokens];
  const float rate = __expf(a.a_log[head]), bias = a.dt_bias[head];
  norm_weights[threadIdx.x] = a.norm_weight[threadIdx.x];
  const int place = static_cast<int>(static_cast<uint32_t>(a.positions[sequence]) % static_cast<uint32_t>(a.ring));
  __nv_bfloat16* const ring = a.conv + a.conv_slot[sequence] * a.ring * channels + channel;
  const T4* mixed = reinterpret_cast<const T4*>(static_cast<const T*>(a.mixed) + int64_t(sequence) * a.tokens * a.mixed_width + channel);
  // An even lane of the last warp takes b, an odd one a.
  const int gate = head + lane % 2 * a.value_heads;
  const bool gated = !convolves && !a.gates, gated_late = !convolves && a.gates;
  const T* gate_at = static_cast<const T*>(a.mixed) + int64_t(sequence) * a.tokens * a.mixed_width + channels + a.value_heads * kDim + gate;
  const __nv_bfloat16* late_at = a.gates + int64_t(sequence) * a.tokens * 2 * a.value_heads + gate;
  // The sum over the three taps before the next, and the last two inputs.
  float4 weights[4], early{};
  Four last[2];
  if (convolves) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = *reinterpret_cast<const float4*>(a.conv_weight + i * channels + channel);
    Four taps[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) taps[i] = *reinterpret_cast<const Four*>(ring + int64_t(wrap(place - 3 + i, a.ring)) * channels);
    last[0] = taps[1], last[1] = taps[2];
    early = multiply_add(widen(taps[2]), weights[2], multiply_add(widen(taps[1]), weights[1], multiply_add(widen(taps[0]), weights[0], early)));
  }
  asm volatile("griddepcontrol.wait;" ::: "memory");

  for (int t = 0; t < a.tokens; ++t, mixed += a.mixed_width / 4, gate_at += a.mixed_width, late_at += 2 * a.value_heads) {
    const int row = sequence * a.tokens + t;
    if (t > 0) slot = a.state_out[row];
    // All that is read, of two parts at most, in one trip.
    const bool second = a.parts > 1;
    float4 deferred{};
    T4 more{};
    T gate_part{}, gate_more{};
    __nv_bfloat16 gate_late{};
    const T4 part = mixed[0];
    if (second) more = mixed[a.part_stride / 4];
    if (gated) gate_part = gate_at[0];
    if (gated && second) gate_more = gate_at[a.part_stride];
    if (gated_late) gate_late = late_at[0];
    if (a.square_sums) deferred = a.square_sums[row];
    float4 x = widen(part);
    float gate_sum = widen(gate_part) + widen(gate_more) + widen(gate_late);
    add(x, widen(more));
#pragma unroll 1
    for (int p = 2; p < a.parts; ++p) {
      add(x, widen(mixed[p * (a.part_stride / 4)]));
      if (gated) gate_sum += widen(gate_at[p * a.part_stride]);
    }
    const float scale = a.square_sums ? rsqrtf((deferred.x + deferred.y + deferred.z + deferred.w) * a.square_scale + 1e-6f) : 1.0f;
    x = {x.x * scale, x.y * scale, x.z * scale, x.w * scale};
    if (convolves) {
      // Four taps, oldest first. Inputs are rounded to bf16 before use, as later steps find them in the ring.
      const Four rounded = narrow(x);
      if (keeps) *reinterpret_cast<Four*>(ring + int64_t(wrap(place + t, a.ring)) * channels) = rounded;
      const float4 input = widen(rounded);
      x = multiply_add(input, weights[3], early);
      early = multiply_add(input, weights[2], multiply_add(widen(last[1]), weights[1], multiply_add(widen(last[0]), weights[0], float4{})));
      last[0] = last[1], last[1] = rounded;
    } else {
      const float pre = fmaf(gate_sum, scale, bias), beta = sigmoid(gate_sum * scale);
      const float alpha = __expf(-rate * (pre > 20.0f ? pre : log1pf(__expf(pre))));
      if (lane < 2) gates[lane] = lane == 0 ? beta : alpha;
    }
    x = {silu(x.x), silu(x.y), silu(x.z), silu(x.w)};
    reinterpret_cast<float4*>(inputs[warp])[lane] = x;
    if (warp < 2) {
      const float sum = warp_sum(dot(x, x));
      if (lane == 0) squares[warp] = sum;
    }
    meet();

    // Before the norms of q and k, and before the decay.
    float qk = warp_sum(dot(reinterpret_cast<const float4*>(inputs[0])[lane], reinterpret_cast<const float4*>(inputs[1])[lane]));
    float by_k[4] = {}, by_q[4] = {};
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      wait_for(shared_address(arrived + slice * kBoxes + box));
#pragma unroll
      for (int r = box * kBoxRows; r < (box + 1) * kBoxRows; r += 16) {
        float4 s[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) s[j] = mine[(r + first_row + j) * kChunks];
        add_rows(s, *reinterpret_cast<const float4*>(inputs[0] + r + first_row), *reinterpret_cast<const float4*>(inputs[1] + r + first_row), by_k, by_q);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) by_k[i] = rows_sum(by_k[i]), by_q[i] = rows_sum(by_q[i]);
    const float q_norm = rsqrtf(squares[0] + 1e-6f) * 0.08838834764831845f, k_norm = rsqrtf(squares[1] + 1e-6f);
    const float alpha = gates[1], beta = gates[0];
    qk *= q_norm * k_norm;
    const float4 value = reinterpret_cast<const float4*>(inputs[2])[chunk];
    const float values[4] = {value.x, value.y, value.z, value.w};
    float change[4], o[4], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      change[i] = beta * fmaf(-by_k[i], alpha * k_norm, values[i]);
      o[i] = fmaf(qk, change[i], by_q[i] * (alpha * q_norm));
      sum = fmaf(o[i], o[i], sum);
      change[i] *= k_norm;
    }
#pragma unroll
    for (int offset = 4; offset; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    if (lane == 0) out_squares[warp] = sum;

    float4* const to = reinterpret_cast<float4*>(a.state + (slot * a.value_heads + head) * int64_t(kDim) * kDim);
#pragma unroll 2
    for (int r = first_row; r < kDim; r += 16) {
      const float4 k4 = *reinterpret_cast<const float4*>(inputs[1] + r);
      const float k[4] = {k4.x, k4.y, k4.z, k4.w};
      float4 s[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) s[j] = mine[(r + j) * kChunks];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        step_row(s[j], k[j], alpha, change);
        if (t + 1 < a.tokens) mine[(r + j) * kChunks] = s[j];
        if (slot >= 0) __stcs(to + (r + j) * (kDim / 4) + chunk, s[j]);
      }
    }
    meet();
    if (first_row == 0) {
      const float inverse = rsqrtf((out_squares[0] + out_squares[1] + out_squares[2] + out_squares[3]) * (1.0f / kDim) + 1e-6f);
      const float4 gate4 = reinterpret_cast<const float4*>(inputs[3])[chunk], norm = reinterpret_cast<const float4*>(norm_weights)[chunk];
      const float norms[4] = {norm.x, norm.y, norm.z, norm.w}, z[4] = {gate4.x, gate4.y, gate4.z, gate4.w};
      float y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = __bfloat162float(__float2bfloat16(o[i] * inverse)) * norms[i] * z[i];
      const int64_t at = (int64_t(row) * a.value_heads + head) * kDim + chunk * 4;
      if constexpr (half_out) {
        __half2 pair[2] = {__floats2half2_rn(y[0], y[1]), __floats2half2_rn(y[2], y[3])};
        *reinterpret_cast<uint2*>(static_cast<__half*>(a.out) + at) = *reinterpret_cast<uint2*>(pair);
      } else {
        __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(y[0], y[1]), __floats2bfloat162_rn(y[2], y[3])};
        *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.out) + at) = *reinterpret_cast<uint2*>(pair);
      }
    }
    if (t + 1 < a.tokens) meet();  // before the next row's q, k, v and z
  }
}

// For boxes of kBoxRows rows and kColumns values of a state.
cudaError_t describe_boxes(CUtensorMap* boxes, float* state) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry) : nullptr;
  }();
  if (!encode) return cudaErrorNotSupported;
  const cuuint64_t sizes[3] = {kDim, kDim, cuuint64_t(1) << 31}, strides[2] = {kDim * 4, kDim * kDim * 4};
  const cuuint32_t box[3] = {kColumns, kBoxRows, 1}, steps[3] = {1, 1, 1};
  const CUresult r = encode(boxes, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, state, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

extern "C" int gdn_step_launch(const void* mixed, int mixed_is_float, const void* gates, float* state, const int64_t* state_in, const int64_t* state_out,
                               void* conv, const int64_t* conv_slot, const int64_t* positions, const float* conv_weight,
                               const float* a_log, const float* dt_bias, const float* norm_weight, void* out, int out_is_half,
                               const void* square_sums, float square_scale, int sequences, int tokens,
                               int key_heads, int value_heads, int ring, int parts, int mixed_width, int overlap, void* stream) {
  Args args{{}, mixed, static_cast<const __nv_bfloat16*>(gates), state, state_in, state_out, static_cast<__nv_bfloat16*>(conv), conv_slot, positions,
            conv_weight, a_log, dt_bias, norm_weight, out, static_cast<const float4*>(square_sums), square_scale,
            int64_t(sequences) * tokens * mixed_width, tokens, key_heads, value_heads, ring, parts, mixed_width,
            value_heads / key_heads, 0, Divisor(value_heads / key_heads)};
  if (const cudaError_t e = describe_boxes(&args.boxes, state)) return e;
  int device, processors;
  if (const cudaError_t e = cudaGetDevice(&device)) return e;
  if (const cudaError_t e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return e;
  args.window = value_heads * sequences > 2 * processors ? 2 : 3;
  const auto choose = [&](auto type) {
    using T = decltype(type);
    const auto kernel = out_is_half ? gdn_step<T, true> : gdn_step<T, false>;
    return launch_kernel(kernel, args, dim3(value_heads, sequences), kThreads + 32, kSharedBytes, overlap, static_cast<cudaStream_t>(stream));
  };
  return mixed_is_float ? choose(float{}) : choose(__nv_bfloat16{});
}
