// What `layers.cu` asks of a GPU with clusters of blocks (compute capability 9).
// `emulated.h` has the same functions for a CPU.
//
// NVRTC compiles it for one shape, without any header of CUDA's.
#pragma once

#define DEVICE __device__ __forceinline__
#define ENTRY(name, parameters, body)                                        \
  extern "C" __global__ void __cluster_dims__(kCluster, 1, 1)                \
      __launch_bounds__(kThreads, 1) name parameters {                       \
    body;                                                                    \
  }
// All blocks of a launch have to be on the GPU at a time: two to a multiprocessor,
// if their shared memory lets them.
#define ENTRY_AT_ONCE(name, parameters, body)                                \
  extern "C" __global__ void __cluster_dims__(kCluster, 1, 1)                \
      __launch_bounds__(kThreads, 2) name parameters {                       \
    body;                                                                    \
  }
// A size is a macro that the compiler is given.
#define DEFINE_SIZE(name) \
  DEVICE constexpr int size_##name() { return SIZE_OF_##name; }

constexpr int kThreads = 256, kCluster = 8;

struct bf16 {
  unsigned short bits;
};

DEVICE float to_float(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }

DEVICE bf16 rounded(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

DEVICE int thread() { return threadIdx.x; }
DEVICE int block() { return blockIdx.x; }
DEVICE int num_blocks() { return GRID; }  // the compiler is given it

DEVICE char* shared_memory() {
  extern __shared__ __align__(16) char bytes[];
  return bytes;
}
// Says where the layout of shared memory ends; checked on a CPU.
DEVICE void ends_at(const char*, int) {}

// A place in shared memory; numbers added to it are bytes.
using Place = unsigned;
DEVICE Place address(const void* shared) {
  return unsigned(__cvta_generic_to_shared(shared));
}

// Where other blocks of the cluster have what this block has in its memory.
struct Peers {
  unsigned first[kCluster], mine;

  DEVICE Peers() {
    mine = address(shared_memory());
#pragma unroll
    for (int rank = 0; rank < kCluster; ++rank) {
      asm("mapa.shared::cluster.u32 %0, %1, %2;"
          : "=r"(first[rank])
          : "r"(mine), "r"(rank));
    }
  }

  DEVICE float read(const float* p, int rank) const {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];"
                 : "=f"(x)
                 : "r"(first[rank] + (address(p) - mine))
                 : "memory");
    return x;
  }
  DEVICE void write(bf16* p, int rank, bf16 x) const {
    asm volatile("st.shared::cluster.b16 [%0], %1;" ::"r"(
                     first[rank] + (address(p) - mine)),
                 "h"(x.bits)
                 : "memory");
  }
};

DEVICE void block_sync() { __syncthreads(); }
DEVICE void warp_sync() { __syncwarp(); }
DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Starts a copy of 16 bytes to shared memory.
DEVICE void copy16(Place to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
// Puts 0 into 16 bytes of shared memory.
DEVICE void clear16(void* p) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address(p)),
               "r"(0)
               : "memory");
}
// The copies started since the last call are one group.
DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's groups but the newest ones, at most 6.
DEVICE void wait_groups(int newest) {
#define WAIT_GROUPS(n) \
  if (newest == n) asm volatile("cp.async.wait_group " #n ";" ::: "memory")
  WAIT_GROUPS(0);
  WAIT_GROUPS(1);
  WAIT_GROUPS(2);
  WAIT_GROUPS(3);
  WAIT_GROUPS(4);
  WAIT_GROUPS(5);
  WAIT_GROUPS(6);
#undef WAIT_GROUPS
}

// Asks for memory to be in the second-level cache; a multiple of 16 bytes.
DEVICE void prefetch(const void* from, int num_bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from),
               "r"(num_bytes)
               : "memory");
}
// Waits for the launches before this one, where XLA let it start earlier.
DEVICE void wait_for_inputs() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// A number, and the launch that wrote it.
struct Packet {
  float number;
  unsigned launch;
};

// Packets are in the memory of the kernel's module, 0 when it is loaded. One is
// written and read as 8 bytes at once, past the first-level cache.
DEVICE unsigned long long* packet_at(int place) {
  static __device__ unsigned long long packets[SIZE_OF_PACKETS + 1];
  return packets + place;
}
DEVICE void write_packet(int place, float number, unsigned launch) {
  const unsigned long long both =
      static_cast<unsigned long long>(launch) << 32 | __float_as_uint(number);
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(packet_at(place)),
               "l"(both)
               : "memory");
}
DEVICE Packet read_packet(int place) {
  unsigned number, launch;
  asm volatile(
      "{\n\t.reg .b64 both;\n\tld.relaxed.gpu.global.b64 both, [%2];\n\t"
      "mov.b64 {%0, %1}, both;\n\t}"
      : "=r"(number), "=r"(launch)
      : "l"(packet_at(place))
      : "memory");
  return {__uint_as_float(number), launch};
}
// Ends a launch that waits for seconds: some of its blocks are not on the GPU.
DEVICE void wait_for_packets(int turn) {
  if (turn >> 24) __trap();
}
// Each block counts launches for itself; launches of a module never overlap.
DEVICE unsigned* launches_of_block() {
  static __device__ unsigned launches[GRID];
  return launches + block();
}
DEVICE unsigned launch_number() {
  unsigned before;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(launches_of_block()))
               : "memory");
  return before + 1;
}
DEVICE void end_launch(unsigned number) { *launches_of_block() = number; }

// To some 22 bits.
DEVICE float exponential(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}
DEVICE float quotient(float x, float y) {
  float z;
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

DEVICE float from_lane(float x, int mask) {
  return __shfl_xor_sync(~0u, x, mask);
}

// Loads a tile of 16 by 16 whose rows are inputs, as rows of outputs. Each lane
// gives the start of 8 numbers: lane i those of row i % 8 of the matrix i / 8.
DEVICE void load_turned(unsigned (&a)[4], Place row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
      : "r"(row)
      : "memory");
}

// Adds to 16 outputs of 8 tokens the products with 16 inputs.
DEVICE void multiply_add(float (&c)[4], const unsigned (&a)[4],
                         const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
