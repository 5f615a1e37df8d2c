// Grouped FP8 products of a mixture of experts on sm_90a: gate_up with the activation and rounding, and down.
//
// Contract: op.py beside this file. For every expert, features x tokens: C^T = W X^T, where W [features, K] is the
// expert's weight and X [tokens, K] its rows. Weights are the matrix units' A operand and tokens their B operand,
// since A comes in pieces of 64 rows but B in pieces of 8: the features are always the same, while experts have ragged
// numbers of tokens, and few where there are many experts. An expert's tokens are divided evenly among tiles of at
// most 176, in units of 16, which is all the padding there is.
//
// A tile is 256 weight rows by up to 176 tokens: two consumer warpgroups of 128 rows each, and a producer that keeps a
// ring of stages full. Blocks are persistent and take tiles from a counter, expert by expert and an expert's token
// tiles side by side, so that weights come from memory once, and from the L2 cache for their other tiles. down's rows
// come sorted, through TMA; gate_up gathers the tokens of its rows itself, 16 bytes a thread.
//
// Sources: the PTX ISA's chapters on wgmma, tensor copies and mbarrier.

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

constexpr int TILE_K = 128, MAX_TOKENS = 176, UNIT = 16;
constexpr int CONSUMERS = 2, STAGES = 4, SLOTS = STAGES + 1, PRODUCER_THREADS = 128;
constexpr int PART_ROWS = 128, TILE_ROWS = CONSUMERS * PART_ROWS;  // weight rows of a warpgroup, and of all
constexpr int PART_BYTES = PART_ROWS * TILE_K;
constexpr int FP8_ROW = 80, BF16_ROW = 48;  // bytes between staged rows, so that eight of them share no bank
constexpr int STAGED_BYTES = 4 * 16 * BF16_ROW > 32 * FP8_ROW ? 4 * 16 * BF16_ROW : 32 * FP8_ROW;
constexpr float LOG2_E = 1.4426950408889634f, LIMIT = 7.0f, ACTIVATION_SCALE = 8.0f;

struct alignas(64) TensorMap { uint8_t bytes[128]; };

// Weight rows from `first_weight_row` on, by tokens from `first_row` on. No tokens: there are no more tiles.
struct alignas(16) Tile { int expert, first_weight_row, first_row, num_tokens; };

struct alignas(1024) Shared {
  uint8_t weight[STAGES][CONSUMERS][PART_BYTES];
  uint8_t tokens[STAGES][MAX_TOKENS * TILE_K];
  uint8_t staged[CONSUMERS][STAGED_BYTES];
  float token_scales[CONSUMERS][2 * PART_ROWS];
  Tile tile[SLOTS];
  uint64_t full[STAGES], empty[STAGES], tile_full[SLOTS];
};

// What both products need; rows are sorted by expert, each expert's first row is a multiple of UNIT.
struct Product {
  const float* weight_scales;  // [num_experts, weight_rows]
  const uint16_t* bias;        // [num_experts, weight_rows] bfloat16
  const int4* token_tiles;     // of each tile of tokens: expert, the expert's first tile, its units, its first row
  const int* num_token_tiles;  // [1]
  int* next_tile;              // [1], zero at launch
  int weight_rows, k;
};

struct Gathered {  // the tokens of gate_up
  const uint8_t* values;    // [num_tokens, k] E4M3
  const float* scales;      // [num_tokens]
  const int* token_of_row;  // [rows]; anything in rows that are padding
  int num_tokens;
};

// --- PTX, one instruction each ---------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(uint64_t* b, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals));
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(num_bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Arrives once the copies that this thread has started are done.
__device__ __forceinline__ void barrier_arrive_after_copies(uint64_t* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, int phase) {
  asm volatile(
      "{\n.reg .pred done;\nRETRY:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra READY;\n"
      "bra RETRY;\nREADY:\n}" ::"r"(shared_address(b)), "r"(phase) : "memory");
}
__device__ __forceinline__ void copy_16(void* to, const void* from, int num_bytes) {  // the rest of 16 becomes zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(num_bytes) : "memory");
}
__device__ __forceinline__ void copy_2d(void* to, const TensorMap* map, uint64_t* b, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(b)), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void copy_3d(void* to, const TensorMap* map, uint64_t* b, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(b)), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ __forceinline__ void copy_5d(void* to, const TensorMap* map, uint64_t* b, int x, int y, int z, int u, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(b)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v) : "memory");
}
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void mma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_sync(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
}
// Stores four 8 x 8 matrices of 16 bits transposed: lane 8 i + j says where row j of matrix i goes.
__device__ __forceinline__ void store_transposed(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(shared_address(to)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ uint32_t pack_e4m3(float low, float high) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float from_bf16(uint16_t x) { return __uint_as_float((uint32_t)x << 16); }

// acc [64 x N] (+)= A [64 x 32] B [N x 32]^T, both E4M3 in shared memory; acc holds N / 2 numbers a thread.
template <int N> struct Mma;
#define R8(a, i) "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3]), "+f"(a[i + 4]), "+f"(a[i + 5]), "+f"(a[i + 6]), "+f"(a[i + 7])
#define MMA(N, LIST, A, B, P, ...)                                                                            \
  template <> struct Mma<N> {                                                                                 \
    static __device__ __forceinline__ void run(float (&acc)[88], uint64_t a, uint64_t b, int accumulate) {   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N       \
                   "k32.f32.e4m3.e4m3 {" LIST "}, %" #A ", %" #B ", p, 1, 1;\n}"                              \
                   : __VA_ARGS__ : "l"(a), "l"(b), "r"(accumulate));                                          \
    }                                                                                                         \
  };
#define L1 "%0,%1,%2,%3,%4,%5,%6,%7"
#define L2 L1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define L3 L2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define L4 L3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define L5 L4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define L6 L5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define L7 L6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define L8 L7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define L9 L8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define L10 L9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define L11 L10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define O1 R8(acc, 0)
#define O2 O1, R8(acc, 8)
#define O3 O2, R8(acc, 16)
#define O4 O3, R8(acc, 24)
#define O5 O4, R8(acc, 32)
#define O6 O5, R8(acc, 40)
#define O7 O6, R8(acc, 48)
#define O8 O7, R8(acc, 56)
#define O9 O8, R8(acc, 64)
#define O10 O9, R8(acc, 72)
#define O11 O10, R8(acc, 80)
MMA(16, L1, 8, 9, 10, O1)
MMA(32, L2, 16, 17, 18, O2)
MMA(48, L3, 24, 25, 26, O3)
MMA(64, L4, 32, 33, 34, O4)
MMA(80, L5, 40, 41, 42, O5)
MMA(96, L6, 48, 49, 50, O6)
MMA(112, L7, 56, 57, 58, O7)
MMA(128, L8, 64, 65, 66, O8)
MMA(144, L9, 72, 73, 74, O9)
MMA(160, L10, 80, 81, 82, O10)
MMA(176, L11, 88, 89, 90, O11)

// The same in every lane; told to the compiler, so that the descriptor lives in uniform registers.
__device__ __forceinline__ uint64_t uniform(uint64_t x) {
  return (uint64_t)__shfl_sync(~0u, (uint32_t)(x >> 32), 0) << 32 | __shfl_sync(~0u, (uint32_t)x, 0);
}
// Rows of 128 bytes in atoms of 8, swizzled, one after the other.
__device__ __forceinline__ uint64_t swizzled(const void* p) {
  return (shared_address(p) & 0x3FFFF) >> 4 | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// --- the producer ----------------------------------------------------------------------------------------------------

// An expert's tiles lie together: those of its first weight rows, then those of the next ones, and so on.
__device__ __forceinline__ Tile tile_at(const Product& p, int index, int num_token_tiles) {
  const int row_tiles = (p.weight_rows + TILE_ROWS - 1) / TILE_ROWS;
  if (index >= num_token_tiles * row_tiles) return Tile{0, 0, 0, 0};
  const int4 of_expert = __ldg(p.token_tiles + index / row_tiles);
  const int units = of_expert.z, tiles = (units * UNIT + MAX_TOKENS - 1) / MAX_TOKENS;
  const int local = index - of_expert.y * row_tiles, row_tile = local / tiles, token_tile = local % tiles;
  const int each = units / tiles, more = units % tiles;  // the first `more` tiles have a unit more
  return Tile{of_expert.x, row_tile * TILE_ROWS, of_expert.w + UNIT * (token_tile * each + min(token_tile, more)),
              UNIT * (each + (token_tile < more))};
}

// Which of the matrix's rows follow each other in shared memory. gate_up: 64 gates, then their 64 ups, both with the
// even ones of each 16 before the odd ones, as `store_transposed` wants them. down: as they are.
template <bool GATE_UP>
__device__ __forceinline__ void copy_weight(Shared& sm, const TensorMap* map, const Product& p, const Tile& t, int stage, int k) {
#pragma unroll
  for (int part = 0; part < CONSUMERS; part++) {
    const int row = t.first_weight_row + part * PART_ROWS;
    if (row >= p.weight_rows) continue;
    if constexpr (GATE_UP) copy_5d(sm.weight[stage][part], map, &sm.full[stage], k, 0, 0, (t.expert * p.weight_rows + row) / 32, 0);
    else copy_3d(sm.weight[stage][part], map, &sm.full[stage], k, row, t.expert);
  }
}

template <bool GATE_UP>
__device__ __forceinline__ void produce(Shared& sm, const TensorMap* weight_map, const TensorMap* token_map,
                                        const Product& p, const Gathered& x) {
  const int thread = threadIdx.x - CONSUMERS * 128, lane = threadIdx.x & 31;
  const bool schedules = thread < 32;
  const int num_token_tiles = *p.num_token_tiles;
  int stage = 0, phase = 0, next = blockIdx.x;
  for (int i = 0;; i++) {
    const int slot = i % SLOTS;  // free: what was here four tiles ago has gone through the stages since
    Tile t;
    int after = 0;
    if (schedules) {
      t = tile_at(p, next, num_token_tiles);
      if (lane == 0) {
        sm.tile[slot] = t;
        barrier_arrive(&sm.tile_full[slot]);
        after = atomicAdd(p.next_tile, 1) + gridDim.x;
      }
    } else {
      barrier_wait(&sm.tile_full[slot], (i / SLOTS) & 1);
      t = sm.tile[slot];
    }
    if (t.num_tokens == 0) return;
    const int weight_bytes = t.first_weight_row + PART_ROWS < p.weight_rows ? 2 * PART_BYTES : PART_BYTES;
    const int row = thread >> 3, chunk = thread & 7;
    uint32_t offset[MAX_TOKENS / UNIT];  // of this thread's 16 bytes in each unit of tokens
    if constexpr (GATE_UP) {
#pragma unroll
      for (int j = 0; j < MAX_TOKENS / UNIT; j++) {
        if (j * UNIT >= t.num_tokens) continue;
        const uint32_t token = __ldg(x.token_of_row + t.first_row + j * UNIT + row);
        offset[j] = min(token, (uint32_t)x.num_tokens - 1) * p.k + chunk * 16;
      }
    }
    for (int k = 0; k < p.k; k += TILE_K) {
      barrier_wait(&sm.empty[stage], phase ^ 1);
      if constexpr (GATE_UP) {
        if (thread == 0) {
          barrier_expect(&sm.full[stage], weight_bytes);
          copy_weight<GATE_UP>(sm, weight_map, p, t, stage, k);
        }
        uint8_t* to = sm.tokens[stage] + row * TILE_K + ((chunk ^ (row & 7)) << 4);
        const int num_bytes = k + chunk * 16 < p.k ? 16 : 0;
        const uint8_t* from = x.values + (num_bytes ? k : 0);
#pragma unroll
        for (int j = 0; j < MAX_TOKENS / UNIT; j++) {
          if (j * UNIT < t.num_tokens) copy_16(to + j * UNIT * TILE_K, from + offset[j], num_bytes);
        }
        barrier_arrive_after_copies(&sm.full[stage]);
      } else {
        if (lane == 0) {
          barrier_expect(&sm.full[stage], weight_bytes + t.num_tokens * TILE_K);
          copy_weight<GATE_UP>(sm, weight_map, p, t, stage, k);
        }
        if (lane * UNIT < t.num_tokens) {
          copy_2d(sm.tokens[stage] + lane * UNIT * TILE_K, token_map, &sm.full[stage], k, t.first_row + lane * UNIT);
        }
      }
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
    if (schedules) next = __shfl_sync(~0u, after, 0);
  }
}

// --- the consumers ---------------------------------------------------------------------------------------------------

struct Ring {
  int stage, phase;
  __device__ __forceinline__ void advance() { if (++stage == STAGES) { stage = 0; phase ^= 1; } }
};

__device__ __forceinline__ void release(Shared& sm, int stage) {
  if ((threadIdx.x & 31) == 0) barrier_arrive(&sm.empty[stage]);
}

template <int N, int STEPS, bool GATE_UP>
__device__ __forceinline__ void multiply_stage(float (&acc)[2][88], Shared& sm, Ring& ring, int warpgroup, bool accumulate) {
  barrier_wait(&sm.full[ring.stage], ring.phase);
  if constexpr (GATE_UP) async_proxy_fence();  // what was gathered was not written by the copy engine
  const uint64_t weight = uniform(swizzled(sm.weight[ring.stage][warpgroup]));
  const uint64_t tokens = uniform(swizzled(sm.tokens[ring.stage]));
  mma_fence();
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    Mma<N>::run(acc[0], weight + step * 2, tokens + step * 2, accumulate || step > 0);
    Mma<N>::run(acc[1], weight + step * 2 + (64 * TILE_K >> 4), tokens + step * 2, accumulate || step > 0);
  }
  mma_commit();
  mma_wait();  // the other warpgroup's products fill the gap
  release(sm, ring.stage);
  ring.advance();
}

template <int N, bool GATE_UP>
__device__ __forceinline__ void multiply(float (&acc)[2][88], Shared& sm, Ring& ring, int warpgroup, int k) {
  const int halves = (k + TILE_K / 2 - 1) / (TILE_K / 2), whole = halves / 2;  // past k there are zeros
#pragma unroll 1
  for (int i = 0; i < whole; i++) multiply_stage<N, 4, GATE_UP>(acc, sm, ring, warpgroup, i > 0);
  if (halves % 2) multiply_stage<N, 2, GATE_UP>(acc, sm, ring, warpgroup, whole > 0);
}

__device__ __forceinline__ float activate(float gate, float up, float alpha) {
  gate = fminf(gate, LIMIT);
  up = fminf(fmaxf(up, -LIMIT), LIMIT);
  return __fdividef(gate, 1.0f + exp2_approx(gate * (-alpha * LOG2_E))) * (ACTIVATION_SCALE * up + ACTIVATION_SCALE);
}

template <bool GATE_UP>
__device__ __forceinline__ void consume(Shared& sm, const Product& p, const Gathered& x, float alpha, void* out, int warpgroup) {
  const int thread = threadIdx.x & 127, warp = thread >> 5, lane = thread & 31;
  const int row = lane >> 2, column = (lane & 3) * 2;  // of the 16 x 8 pieces that a warp's accumulators are made of
  uint8_t* staged = sm.staged[warpgroup];
  Ring ring{0, 0};
  float acc[2][88];  // [64 weight rows][pieces of 8 tokens x (row, row + 8) x 2 tokens]
  for (int i = 0;; i++) {
    barrier_wait(&sm.tile_full[i % SLOTS], (i / SLOTS) & 1);
    const Tile t = sm.tile[i % SLOTS];
    if (t.num_tokens == 0) return;
    const int first_weight_row = t.first_weight_row + warpgroup * PART_ROWS;
    if (first_weight_row >= p.weight_rows) {
      for (int k = 0; k < p.k; k += TILE_K) {
        barrier_wait(&sm.full[ring.stage], ring.phase);
        __syncwarp();
        release(sm, ring.stage);
        ring.advance();
      }
      continue;
    }
    // What the end of the tile needs is fetched before the products.
    float weight_scale[2][2], bias[2][2], token_scale[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int weight_row = first_weight_row + (GATE_UP ? 2 * (warp * 16 + row * 2 + r) + half : half * 64 + warp * 16 + row + r * 8);
        const bool exists = weight_row < p.weight_rows;
        const int at = t.expert * p.weight_rows + weight_row;
        weight_scale[half][r] = exists ? __ldg(p.weight_scales + at) : 0.0f;
        bias[half][r] = exists ? from_bf16(__ldg(p.bias + at)) : 0.0f;
      }
    }
    if constexpr (GATE_UP) {
#pragma unroll
      for (int j = 0; j < 2; j++) {
        token_scale[j] = 0.0f;
        if (j * 128 + thread >= t.num_tokens) continue;
        const uint32_t token = __ldg(x.token_of_row + t.first_row + j * 128 + thread);
        token_scale[j] = __ldg(x.scales + min(token, (uint32_t)x.num_tokens - 1));
      }
    }
    switch (t.num_tokens / UNIT) {
      case 1: multiply<16, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
      case 2: multiply<32, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
      case 3: multiply<48, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
      case 4: multiply<64, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
      case 5: multiply<80, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
      case 6: multiply<96, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
      case 7: multiply<112, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
      case 8: multiply<128, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
      case 9: multiply<144, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
      case 10: multiply<160, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
      default: multiply<176, GATE_UP>(acc, sm, ring, warpgroup, p.k); break;
    }

    if constexpr (GATE_UP) {  // acc[0] are gates, acc[1] ups; this thread's rows are neighbouring features
      float* scales = sm.token_scales[warpgroup];
      scales[thread] = token_scale[0];
      scales[128 + thread] = token_scale[1];
      const int features = p.weight_rows / 2, feature = first_weight_row / 2 + (thread & 3) * 16;
      uint8_t* to = static_cast<uint8_t*>(out) + (long long)(t.first_row + (thread >> 2)) * features + feature;
#pragma unroll
      for (int q = 0; q < (MAX_TOKENS + 31) / 32; q++) {
        if (q * 32 >= t.num_tokens) continue;
        warpgroup_sync(warpgroup);  // the scales are there, and everyone has taken the last results
        uint32_t words[4];
#pragma unroll
        for (int m = 0; m < 4; m++) {
          const int piece = min(q * 4 + m, MAX_TOKENS / 8 - 1);  // past the last, anything
          const float2 scale = *reinterpret_cast<const float2*>(scales + piece * 8 + column);
          const float *gate = acc[0] + piece * 4, *up = acc[1] + piece * 4;
          uint32_t tokens[2];
#pragma unroll
          for (int c = 0; c < 2; c++) {
            const float s = c ? scale.y : scale.x;
            float value[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
              value[r] = activate(gate[r * 2 + c] * (weight_scale[0][r] * s) + bias[0][r],
                                  up[r * 2 + c] * (weight_scale[1][r] * s) + bias[1][r], alpha);
            }
            tokens[c] = pack_e4m3(value[0], value[1]);
          }
          words[m] = tokens[0] | tokens[1] << 16;
        }
        store_transposed(staged + lane * FP8_ROW + warp * 16, words[0], words[1], words[2], words[3]);
        warpgroup_sync(warpgroup);
        if (feature < features && q * 32 + (thread >> 2) < t.num_tokens) {
          *reinterpret_cast<uint4*>(to + q * 32 * features) = *reinterpret_cast<const uint4*>(staged + (thread >> 2) * FP8_ROW + (thread & 3) * 16);
        }
      }
      warpgroup_sync(warpgroup);  // nobody needs these scales any more
    } else {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float scale[2] = {weight_scale[half][0] / ACTIVATION_SCALE, weight_scale[half][1] / ACTIVATION_SCALE};
        const int feature = first_weight_row + half * 64 + warp * 16 + (lane & 1) * 8;
        uint16_t* to = static_cast<uint16_t*>(out) + (long long)(t.first_row + (lane >> 1)) * p.weight_rows + feature;
#pragma unroll
        for (int q = 0; q < MAX_TOKENS / 16; q++) {
          if (q * 16 >= t.num_tokens) continue;
          const float* c = acc[half] + q * 8;
          uint8_t* between = staged + warp * 16 * BF16_ROW;
          store_transposed(between + ((lane >> 4) * 8 + (lane & 7)) * BF16_ROW + ((lane >> 3) & 1) * 16,
                           pack_bf16(c[0] * scale[0] + bias[half][0], c[1] * scale[0] + bias[half][0]),
                           pack_bf16(c[2] * scale[1] + bias[half][1], c[3] * scale[1] + bias[half][1]),
                           pack_bf16(c[4] * scale[0] + bias[half][0], c[5] * scale[0] + bias[half][0]),
                           pack_bf16(c[6] * scale[1] + bias[half][1], c[7] * scale[1] + bias[half][1]));
          __syncwarp();
          if (feature < p.weight_rows) {
            *reinterpret_cast<uint4*>(to + q * 16 * p.weight_rows) = *reinterpret_cast<const uint4*>(between + (lane >> 1) * BF16_ROW + (lane & 1) * 16);
          }
          __syncwarp();
        }
      }
    }
  }
}

template <bool GATE_UP>
__device__ __forceinline__ void run(const TensorMap* weight_map, const TensorMap* token_map, const Product& p,
                                    const Gathered& x, float alpha, void* out) {
  extern __shared__ uint8_t memory[];
  Shared& sm = *reinterpret_cast<Shared*>((reinterpret_cast<uint64_t>(memory) + 1023) & ~uint64_t(1023));
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(&sm.full[i], GATE_UP ? 1 + PRODUCER_THREADS : 1);
      barrier_init(&sm.empty[i], CONSUMERS * 4);
    }
    for (int i = 0; i < SLOTS; i++) barrier_init(&sm.tile_full[i], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    async_proxy_fence();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (GATE_UP || threadIdx.x < CONSUMERS * 128 + 32) produce<GATE_UP>(sm, weight_map, token_map, p, x);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume<GATE_UP>(sm, p, x, alpha, out, warpgroup);
  }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS * 128 + PRODUCER_THREADS, 1)
experts_gate_up(const __grid_constant__ TensorMap weight_map, const float* weight_scales, const uint16_t* bias,
                const int4* token_tiles, const int* num_token_tiles, int* next_tile, int weight_rows, int k,
                const uint8_t* x, const float* x_scales, const int* token_of_row, int num_tokens, float alpha,
                uint8_t* out) {
  run<true>(&weight_map, nullptr, Product{weight_scales, bias, token_tiles, num_token_tiles, next_tile, weight_rows, k},
            Gathered{x, x_scales, token_of_row, num_tokens}, alpha, out);
}

extern "C" __global__ void __launch_bounds__(CONSUMERS * 128 + PRODUCER_THREADS, 1)
experts_down(const __grid_constant__ TensorMap weight_map, const float* weight_scales, const uint16_t* bias,
             const int4* token_tiles, const int* num_token_tiles, int* next_tile, int weight_rows, int k,
             const __grid_constant__ TensorMap row_map, uint16_t* out) {
  run<false>(&weight_map, &row_map, Product{weight_scales, bias, token_tiles, num_token_tiles, next_tile, weight_rows, k},
             Gathered{}, 0.0f, out);
}
