// Failures: a code, and one line of text kept by the thread that met it. Nothing is allocated.
#pragma once

#include "../include/flashrt.h"

namespace flashrt {

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
flashrt_status
fail(flashrt_status code, const char *format, ...);

// Leaves through the first call that fails.
#define FLASHRT_TRY(call)                                 \
  do {                                                    \
    const flashrt_status status_ = (call);                \
    if (status_ != FLASHRT_OK) return status_;            \
  } while (0)

}  // namespace flashrt
