// The path of a tree that a cache keeps, called by XLA; `cache.keep_path` in
// speccascade.models says what it is.
//
// Axes: B rows, K nodes of a path, H heads, D head width, L slots.
#include <algorithm>

#include "shared.h"

// Moves the slots of a path to the front of its tree, in all caches, in place.
// Nodes are in order of depth, so that node k of a path is k or more, and no
// slot is overwritten before it has moved.
static ffi::Error keep_path(ffi::BufferR1<ffi::S32> start,
                            ffi::BufferR2<ffi::S32> path,
                            ffi::BufferR1<ffi::S32> count, ffi::RemainingArgs,
                            ffi::RemainingRets caches) {
  const long B = path.dimensions()[0], K = path.dimensions()[1];
  for (size_t i = 0; i + 1 < caches.size(); i += 2) {
    ffi::AnyBuffer keys = **caches.get<ffi::AnyBuffer>(i);
    ffi::AnyBuffer values = **caches.get<ffi::AnyBuffer>(i + 1);
    const auto sizes = keys.dimensions();
    const long H = sizes[1], D = sizes[2], L = sizes[3];
    float* key = (float*)keys.untyped_data();
    float* value = (float*)values.untyped_data();
    for (long b = 0; b < B; b++) {
      const long first = start.typed_data()[b];
      const long num = std::min<long>(count.typed_data()[b], K);
      for (long k = 0; k < num; k++) {
        const long to = first + k, from = first + path.typed_data()[b * K + k];
        if (to < 0 || from <= to || from >= L) continue;
        for (long head = b * H; head < (b + 1) * H; head++) {
          for (long d = head * D; d < (head + 1) * D; d++)
            key[d * L + to] = key[d * L + from];
          float* slots = value + head * L * D;
          std::copy_n(slots + from * D, D, slots + to * D);
        }
      }
    }
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(KeepPath, keep_path,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .RemainingArgs()
                                  .RemainingRets());
