// Prefill attention with sinks over a paged KV cache, for head_dim 64 and 8 query heads per KV head, on sm_90a.
//
// Contract: op.py beside this file, with bfloat16 tensors and scores that are already logarithms to base 2 (scale ==
// ln 2: the query was multiplied by head_dim**-0.5 * log2(e) before it was rounded).
//
// One block works on 24 tokens x 8 heads = 192 rows of one KV head: three consumer warpgroups of 64 rows (8 tokens x
// 8 heads) and a producer warp that keeps a ring of key and value tiles full through TMA. Blocks are persistent and
// take row tiles longest first, in alternating direction, so that all end together, and only of as many KV heads at a
// time as fit the L2 cache.
//
// At this shape the softmax costs as much as the products, and power binds before either: what the inner loop does not
// do is won. Row sums are eight more columns of V, all ones. And there are two kernels:
//
// attention_prefill_unshifted takes 2^score as it is, no maximum subtracted. Float32 sums and bfloat16 weights keep their
// relative precision wherever they are between 2^-126 and 2^127, so a row whose sum, sink included, ends within 2^-60
// and 2^100 has lost nothing: what vanished below 2^-126 is less than 2^-49 of a sum over 2^17 keys. The sink makes that
// sum large enough in every row whose sink is not absurdly small. Rows that end elsewhere are marked in `redo`.
//
// attention_prefill_shifted is the usual online softmax and computes only the row tiles that have marked rows. The
// matrix units do its subtraction: a 16-wide step of K whose A operand holds -m in its first column and whose B operand
// is all ones starts the accumulators at -m (m is kept as a bfloat16 number for that). m only moves when a score exceeds
// it by more than 8; until then the numbers are merely scaled, by up to 2^8, not wrong.
//
// Sources: FlashAttention-3 (Shah et al., arXiv 2407.08608) for the overlap of softmax and products and the register
// split; Milakov and Gimelshein, arXiv 1805.02867, for the running maximum; the PTX ISA's wgmma and tensor-copy chapters.

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

constexpr int HEAD_DIM = 64, GROUP = 8, CONSUMERS = 3, STAGES = 4, TILE_KEYS = 128;
constexpr int TILE_TOKENS = CONSUMERS * 64 / GROUP;
constexpr int QUERY_BYTES = CONSUMERS * 64 * HEAD_DIM * 2, TILE_BYTES = TILE_KEYS * HEAD_DIM * 2;
constexpr float SLACK = 8.0f;  // log2 by which a score may exceed m before everything is rescaled
constexpr float LEAST_SUM = 0x1p-60f, GREATEST_SUM = 0x1p100f;  // of a row whose scores needed no shift
constexpr float LOG2_E = 1.4426950408889634f;

struct alignas(64) TensorMap { uint8_t bytes[128]; };

struct alignas(1024) Shared {
  uint8_t query[2][QUERY_BYTES];
  uint8_t key[STAGES][TILE_BYTES];
  uint8_t value[STAGES][TILE_BYTES];
  uint8_t ones[2048];
  uint8_t minus_m[CONSUMERS][2048];  // 64 x 16, as 8 x 8 core matrices: the A operand of the step that subtracts m
  uint64_t query_full[2], query_empty[2];
  uint64_t key_full[STAGES], key_empty[STAGES], value_full[STAGES], value_empty[STAGES];
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
__device__ __forceinline__ void barrier_wait(uint64_t* b, int phase) {
  asm volatile(
      "{\n.reg .pred done;\nRETRY:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra READY;\n"
      "bra RETRY;\nREADY:\n}" ::"r"(shared_address(b)), "r"(phase) : "memory");
}
__device__ __forceinline__ void copy_3d(void* to, const TensorMap* map, uint64_t* b, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(b)), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ __forceinline__ void copy_4d(void* to, const TensorMap* map, uint64_t* b, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(b)), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
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

// Says that an in-flight product owns these registers: the compiler may not touch them between two of these.
template <typename T, int N> __device__ __forceinline__ void pin(T (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    if constexpr (sizeof(T) == 4 && T(0.5f) != T(0)) asm volatile("" : "+f"(x[i])::"memory");
    else asm volatile("" : "+r"(x[i])::"memory");
  }
}

#define R8(a, i) "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3]), "+f"(a[i + 4]), "+f"(a[i + 5]), "+f"(a[i + 6]), "+f"(a[i + 7])

// scores [64 x 128] (+)= A [64 x 16] B [128 x 16]^T, both in shared memory
__device__ __forceinline__ void mma_scores(float (&s)[64], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,"
      "%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, 0;\n}"
      : R8(s, 0), R8(s, 8), R8(s, 16), R8(s, 24), R8(s, 32), R8(s, 40), R8(s, 48), R8(s, 56)
      : "l"(a), "l"(b), "r"(accumulate));
}
// out [64 x 72] += P [64 x 16] (registers) V [16 x 72]: 64 columns of values and 8 of ones
__device__ __forceinline__ void mma_out(float (&o)[36], const uint32_t* p, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35}, {%36,%37,%38,%39}, %40, 1, 1, "
      "1, 1;\n"
      : R8(o, 0), R8(o, 8), R8(o, 16), R8(o, 24), "+f"(o[32]), "+f"(o[33]), "+f"(o[34]), "+f"(o[35])
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(b));
}

// --- descriptors -----------------------------------------------------------------------------------------------------

// The same in every lane; told to the compiler, so that the descriptor lives in uniform registers.
__device__ __forceinline__ uint64_t uniform(uint64_t x) {
  return (uint64_t)__shfl_sync(~0u, (uint32_t)(x >> 32), 0) << 32 | __shfl_sync(~0u, (uint32_t)x, 0);
}
__device__ __forceinline__ uint64_t start_of(const void* p) { return (shared_address(p) & 0x3FFFF) >> 4; }
// Rows of 128 bytes in atoms of 8, swizzled; `lead` is the distance between atoms along the contiguous dimension.
__device__ __forceinline__ uint64_t swizzled(const void* p, uint64_t lead) {
  return start_of(p) | lead << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// --- work ------------------------------------------------------------------------------------------------------------

struct Work {
  const int* block_table;   // [num_requests, block_table_stride]
  const int* cu_seqlens_q;  // [num_requests + 1]
  const int* seq_lens;      // [num_requests]
  int num_requests, block_table_stride, num_row_tiles, num_kv_heads, block_size;
  int heads_together;  // KV heads that are worked on at a time, so that their keys and values stay in the L2 cache
  int window;     // keys that a row sees, itself included; INT_MAX for all
  uint8_t* redo;  // [num_row_tiles * num_kv_heads, 12]: by warp, whether its rows must be computed with a shift
};

struct Tile {
  int head, request, first_row, q_begin, q_len, seq_len;
  int begin, end;                    // key tiles that some row sees
  int whole_begin, whole_end;        // those of them that every row sees whole
  int first_key;                     // that some row sees
  bool exists;
};

// Row tile r of the batch: request i owns tiles cu_seqlens_q[i] / TILE_TOKENS + i ..., some of which do not exist.
__device__ __forceinline__ Tile tile_at(const Work& w, int index) {
  Tile t;
  const int per_pass = w.num_row_tiles * w.heads_together, in_pass = index % per_pass;
  t.head = index / per_pass * w.heads_together + in_pass % w.heads_together;
  const int row_tile = w.num_row_tiles - 1 - in_pass / w.heads_together;  // the last rows see the most keys: first
  int low = 0, high = w.num_requests - 1;
  while (low < high) {
    const int middle = (low + high + 1) >> 1;
    if (__ldg(w.cu_seqlens_q + middle) / TILE_TOKENS + middle <= row_tile) low = middle;
    else high = middle - 1;
  }
  t.request = low;
  t.q_begin = __ldg(w.cu_seqlens_q + low);
  t.q_len = __ldg(w.cu_seqlens_q + low + 1) - t.q_begin;
  t.seq_len = __ldg(w.seq_lens + low);
  t.first_row = (row_tile - (t.q_begin / TILE_TOKENS + low)) * TILE_TOKENS;
  t.exists = t.first_row < t.q_len;
  const int first_position = t.seq_len - t.q_len + t.first_row;
  const int last_position = min(first_position + TILE_TOKENS, t.seq_len) - 1;
  t.first_key = max(0, first_position + 1 - w.window);
  t.begin = t.first_key / TILE_KEYS;
  t.end = last_position / TILE_KEYS + 1;
  t.whole_begin = (max(0, last_position + 1 - w.window) + TILE_KEYS - 1) / TILE_KEYS;
  t.whole_end = (first_position + 1) / TILE_KEYS;
  return t;
}

// The tiles of this block in order; alternating direction evens out that each round's tiles are a little shorter.
__device__ __forceinline__ int tile_index(int round) {
  return round * gridDim.x + ((round & 1) ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

// Whether a row tile is to be computed; the shifted kernel computes what the other one marked.
template <bool SHIFTED> __device__ __forceinline__ bool is_due(const Work& w, int index) {
  if (index >= w.num_row_tiles * w.num_kv_heads) return false;
  if constexpr (!SHIFTED) return true;
  const uint32_t* marks = reinterpret_cast<const uint32_t*>(w.redo) + index * 3;
  return marks[0] | marks[1] | marks[2];
}

template <bool SHIFTED>
__device__ void produce(Shared& sm, const TensorMap* query_map, const TensorMap* key_map, const TensorMap* value_map,
                        const Work& w) {
  const int total = w.num_row_tiles * w.num_kv_heads, rows = min(w.block_size, TILE_KEYS);
  int stage = 0, phase = 0, num_tiles = 0;
  for (int round = 0; round * (int)gridDim.x < total; round++) {
    const int index = tile_index(round);
    if (!is_due<SHIFTED>(w, index)) continue;
    const Tile t = tile_at(w, index);
    if (!t.exists) continue;
    const int slot = num_tiles & 1;
    barrier_wait(&sm.query_empty[slot], ((num_tiles >> 1) & 1) ^ 1);
    barrier_expect(&sm.query_full[slot], QUERY_BYTES);
    copy_3d(sm.query[slot], query_map, &sm.query_full[slot], 0, t.head * GROUP, t.q_begin + t.first_row);
    num_tiles++;
    const int* table = w.block_table + (long long)t.request * w.block_table_stride;
    // Of a tile's first and last blocks no row may see a key: then another is read in their place.
    const auto block_at = [&](int position) {
      return __ldg(table + max(t.first_key, min(position, t.seq_len - 1)) / w.block_size);
    };
    for (int j = t.end - 1; j >= t.begin; j--) {
      barrier_wait(&sm.key_empty[stage], phase ^ 1);
      barrier_expect(&sm.key_full[stage], TILE_BYTES);
      for (int r = 0; r < TILE_KEYS; r += rows) {
        const int position = j * TILE_KEYS + r;
        copy_4d(sm.key[stage] + r * HEAD_DIM * 2, key_map, &sm.key_full[stage], 0, t.head, position % w.block_size,
                block_at(position));
      }
      barrier_wait(&sm.value_empty[stage], phase ^ 1);
      barrier_expect(&sm.value_full[stage], TILE_BYTES);
      for (int r = 0; r < TILE_KEYS; r += rows) {
        const int position = j * TILE_KEYS + r;
        copy_4d(sm.value[stage] + r * HEAD_DIM * 2, value_map, &sm.value_full[stage], 0, t.head, position % w.block_size,
                block_at(position));
      }
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
  }
}

// The next bfloat16 number at or above x.
__device__ __forceinline__ float round_up(float x) {
  const uint32_t bits = __float_as_uint(x);
  return __uint_as_float((x >= 0.0f ? bits + 0xFFFF : bits) & 0xFFFF0000);
}

template <bool SHIFTED>
__device__ void consume(Shared& sm, const Work& w, const float* sinks, uint16_t* out, int warpgroup) {
  const int warp = (threadIdx.x / 32) & 3, lane = threadIdx.x & 31;
  const bool leader = (threadIdx.x & 127) == 0;
  const int row = lane >> 2, column = (lane & 3) * 2;  // of the 16 x 8 pieces that a warp's accumulators are made of
  const int total = w.num_row_tiles * w.num_kv_heads;
  const uint64_t ones = uniform(start_of(sm.ones) | uint64_t(1) << 62);  // strides of zero: one atom, again and again
  const uint64_t minus_m = uniform(start_of(sm.minus_m[warpgroup]) | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32);
  int stage = 0, phase = 0, num_tiles = 0;

  for (int round = 0; round * (int)gridDim.x < total; round++) {
    const int index = tile_index(round);
    if (!is_due<SHIFTED>(w, index)) continue;
    uint8_t* mark = w.redo + index * 12 + warpgroup * 4 + warp;
    const Tile t = tile_at(w, index);
    if (!t.exists) {
      if (!SHIFTED && lane == 0) *mark = 0;
      continue;
    }
    // This thread's two rows are head `row` of the group, for `token` and the one after it.
    const int token = t.first_row + warpgroup * 8 + warp * 2, position = t.seq_len - t.q_len + token;
    const int head = t.head * GROUP + row;
    const float sink = sinks[head] * LOG2_E;
    const uint64_t query = uniform(swizzled(sm.query[num_tiles & 1] + warpgroup * 64 * HEAD_DIM * 2, 1));
    float o[36], s[64], m[2], growth[2];  // o: 64 columns of output, and the row sums
    uint32_t p[32];
#pragma unroll
    for (int i = 0; i < 36; i++) o[i] = 0.0f;
    m[0] = m[1] = SHIFTED ? round_up(sink) : 0.0f;

    auto store_m = [&] {  // read by the matrix units in the next iteration, after the warpgroup has met
      if ((lane & 3) == 0) {
        uint8_t* to = sm.minus_m[warpgroup] + warp * 512 + row * 16;
        *reinterpret_cast<uint16_t*>(to) = __float_as_uint(-m[0]) >> 16;
        *reinterpret_cast<uint16_t*>(to + 256) = __float_as_uint(-m[1]) >> 16;
      }
      async_proxy_fence();
    };
    auto multiply_keys = [&](int at, bool subtract_m) {
      const uint64_t key = uniform(swizzled(sm.key[at], 1));
      if (subtract_m) mma_scores(s, minus_m, ones, 0);
#pragma unroll
      for (int k = 0; k < 4; k++) mma_scores(s, query + k * 2, key + k * 2, subtract_m || k > 0);
    };
    auto multiply_values = [&](int at) {  // columns 64 ... 71 are the ones, wherever the descriptor has moved to
      const uint64_t value = uniform(swizzled(sm.value[at], (shared_address(sm.ones) - shared_address(sm.value[at])) >> 4));
#pragma unroll
      for (int k = 0; k < 8; k++) mma_out(o, p + 4 * k, value + k * 128 - (uint64_t(k * 128) << 16));
    };
    // Give the keys of this tile that a row does not see a score of minus infinity.
    auto hide = [&](int j) {
      if (j >= t.whole_begin && j < t.whole_end) return;
#pragma unroll
      for (int i = 0; i < 64; i++) {
        const int distance = position + ((i >> 1) & 1) - (j * TILE_KEYS + (i >> 2) * 8 + column + (i & 1));
        if ((uint32_t)distance >= (uint32_t)w.window) s[i] = -__int_as_float(0x7f800000);  // negative: later
      }
    };
    auto exponentiate = [&] {
#pragma unroll
      for (int i = 0; i < 64; i++) s[i] = exp2_approx(s[i]);
    };
    // From scores minus m to 2^(scores - m), raising m where a score is above it by more than `slack`.
    auto exponentiate_shifted = [&](int j, float slack) {
      hide(j);
      float most[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float a = s[2 * r], b = s[2 * r + 1];
#pragma unroll
        for (int i = 1; i < 16; i++) { a = fmaxf(a, s[4 * i + 2 * r]); b = fmaxf(b, s[4 * i + 2 * r + 1]); }
        most[r] = fmaxf(a, b);
      }
      growth[0] = growth[1] = 0.0f;
      const bool grows = __any_sync(~0u, fmaxf(most[0], most[1]) > slack);
      if (grows) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
          most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
          if (most[r] > slack) {
            const float before = m[r];
            m[r] = round_up(before + most[r]);
            growth[r] = m[r] - before;
          }
#pragma unroll
          for (int i = 0; i < 16; i++) { s[4 * i + 2 * r] -= growth[r]; s[4 * i + 2 * r + 1] -= growth[r]; }
        }
      }
      exponentiate();
      return grows;
    };
    auto pack_p = [&] {
#pragma unroll
      for (int i = 0; i < 32; i++) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    };

    barrier_wait(&sm.query_full[num_tiles & 1], (num_tiles >> 1) & 1);
    barrier_wait(&sm.key_full[stage], phase);
    pin(s); mma_fence(); multiply_keys(stage, false); mma_commit();
    mma_wait<0>(); pin(s);
    if (leader) barrier_arrive(&sm.key_empty[stage]);
    if constexpr (SHIFTED) {
#pragma unroll
      for (int i = 0; i < 64; i++) s[i] -= m[(i >> 1) & 1];
      exponentiate_shifted(t.end - 1, 0.0f);
      store_m();
    } else {
      hide(t.end - 1);
      exponentiate();
    }
    o[32] = o[33] = exp2_approx(sink - m[0]);  // the sink: a key with value zero, once
    o[34] = o[35] = exp2_approx(sink - m[1]);
    pack_p();
    int previous = stage, previous_phase = phase;
    if (++stage == STAGES) { stage = 0; phase ^= 1; }

    for (int j = t.end - 2; j >= t.begin; j--) {
      barrier_wait(&sm.value_full[previous], previous_phase);  // loaded before the next keys: waits for both early, so
      barrier_wait(&sm.key_full[stage], phase);                // that no branch comes between the two products
      if constexpr (SHIFTED) asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");  // every warp's m is stored
      pin(s); pin(o); pin(p); mma_fence();
      multiply_keys(stage, SHIFTED); mma_commit();
      multiply_values(previous); mma_commit();
      mma_wait<1>(); pin(s);
      // The exponentials must come before the wait below: they are what hides the product with the values. ptxas would
      // move the wait up, so what stays before it, the release of the keys, is made to depend on them: their sign is
      // always 0.
      bool grows = false;
      if constexpr (SHIFTED) {
        grows = exponentiate_shifted(j, SLACK);
      } else {
        hide(j);
        exponentiate();
      }
      uint32_t signs = __float_as_uint(s[0]);
#pragma unroll
      for (int i = 9; i < 64; i += 9) signs &= __float_as_uint(s[i]);
      if (leader) barrier_arrive(&sm.key_empty[stage] + (int)(signs >> 31));
      mma_wait<0>(); pin(o); pin(p);
      if (leader) barrier_arrive(&sm.value_empty[previous]);
      if (SHIFTED && grows) {
        store_m();
        const float a = exp2_approx(-growth[0]), b = exp2_approx(-growth[1]);
#pragma unroll
        for (int i = 0; i < 36; i++) o[i] *= ((i >> 1) & 1) ? b : a;
      }
      pack_p();
      previous = stage; previous_phase = phase;
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
    if (leader) barrier_arrive(&sm.query_empty[num_tiles & 1]);
    num_tiles++;
    barrier_wait(&sm.value_full[previous], previous_phase);
    pin(o); pin(p); mma_fence(); multiply_values(previous); mma_commit();
    mma_wait<0>(); pin(o);
    if (leader) barrier_arrive(&sm.value_empty[previous]);

    bool is_lost = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if (token + r >= t.q_len) continue;
      const float denominator = o[32 + 2 * r];
      is_lost |= !(denominator >= LEAST_SUM && denominator < GREATEST_SUM);
      const float inverse = 1.0f / denominator;
      uint16_t* to = out + ((long long)(t.q_begin + token + r) * w.num_kv_heads * GROUP + head) * HEAD_DIM + column;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        *reinterpret_cast<uint32_t*>(to + i * 8) = pack_bf16(o[4 * i + 2 * r] * inverse, o[4 * i + 2 * r + 1] * inverse);
      }
    }
    if constexpr (!SHIFTED) {
      is_lost = __any_sync(~0u, is_lost);
      if (lane == 0) *mark = is_lost;
    }
  }
}

template <bool SHIFTED>
__device__ __forceinline__ void attend(const TensorMap* query_map, const TensorMap* key_map, const TensorMap* value_map,
                                       const float* sinks, uint16_t* out, const Work& w) {
  extern __shared__ uint8_t memory[];
  Shared& sm = *reinterpret_cast<Shared*>((reinterpret_cast<uint64_t>(memory) + 1023) & ~uint64_t(1023));
  if constexpr (SHIFTED) {  // nearly always there is nothing to do: then find out at once
    const int total = w.num_row_tiles * w.num_kv_heads;
    bool is_any_due = false;
    for (int round = threadIdx.x; round * (int)gridDim.x < total; round += blockDim.x) {
      is_any_due |= is_due<true>(w, tile_index(round));
    }
    if (!__syncthreads_or(is_any_due)) return;
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++) { barrier_init(&sm.query_full[i], 1); barrier_init(&sm.query_empty[i], CONSUMERS); }
    for (int i = 0; i < STAGES; i++) {
      barrier_init(&sm.key_full[i], 1); barrier_init(&sm.key_empty[i], CONSUMERS);
      barrier_init(&sm.value_full[i], 1); barrier_init(&sm.value_empty[i], CONSUMERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  for (int i = threadIdx.x; i < (int)sizeof(sm.ones) / 4; i += blockDim.x) reinterpret_cast<uint32_t*>(sm.ones)[i] = 0x3f803f80;
  for (int i = threadIdx.x; i < (int)sizeof(sm.minus_m) / 4; i += blockDim.x) reinterpret_cast<uint32_t*>(sm.minus_m)[i] = 0;
  async_proxy_fence();
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    if (threadIdx.x == CONSUMERS * 128) produce<SHIFTED>(sm, query_map, key_map, value_map, w);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    consume<SHIFTED>(sm, w, sinks, out, warpgroup);
  }
}

#define KERNEL(name, shifted)                                                                                          \
  extern "C" __global__ void __launch_bounds__((CONSUMERS + 1) * 128, 1)                                               \
  name(const __grid_constant__ TensorMap query_map, const __grid_constant__ TensorMap key_map,                         \
       const __grid_constant__ TensorMap value_map, const int* block_table, const int* cu_seqlens_q,                   \
       const int* seq_lens, const float* sinks, uint16_t* out, uint8_t* redo, int num_requests,                        \
       int block_table_stride, int num_row_tiles, int num_kv_heads, int block_size, int heads_together, int window) {  \
    attend<shifted>(&query_map, &key_map, &value_map, sinks, out,                                                      \
                    Work{block_table, cu_seqlens_q, seq_lens, num_requests, block_table_stride, num_row_tiles,         \
                         num_kv_heads, block_size, heads_together, window, redo});                                     \
  }
KERNEL(attention_prefill_unshifted, false)
KERNEL(attention_prefill_shifted, true)
