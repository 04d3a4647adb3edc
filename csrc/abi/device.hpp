// What the engine asks of a device: copies in order, replays, one wait. Addresses are the plan's.
#pragma once

#include <cstddef>
#include <memory>

#include "handover.h"

namespace flashrt {

class Device {
 public:
  virtual ~Device() = default;

  // Around every use, in the calling thread: a driver's context is the thread's.
  virtual flashrt_status enter() = 0;
  virtual void leave() = 0;

  // Memory of the host that copies may read and write while they are under way; zeroed.
  virtual flashrt_status allocate_host(size_t bytes, uint8_t **out) = 0;
  virtual void free_host(uint8_t *memory) = 0;

  // In the order of the calls; done when wait() returns.
  virtual flashrt_status write(uint64_t to, const uint8_t *from, size_t bytes) = 0;
  virtual flashrt_status read(uint8_t *to, uint64_t from, size_t bytes) = 0;
  // One slot to another; `pinned`: one of them is memory of the host.
  virtual flashrt_status copy(uint64_t to, uint64_t from, size_t bytes, bool pinned) = 0;
  virtual flashrt_status transfer(const flashrt_transfer &planned) = 0;
  virtual flashrt_status launch(uint32_t index, const flashrt_program &program) = 0;
  virtual flashrt_status wait() = 0;

  // Milliseconds of each stage in the last launch of `program`, by stage.
  virtual flashrt_status times(const flashrt_program &program, float *stage_ms) = 0;
};

flashrt_status open_cpu(const flashrt_handover &plan, std::unique_ptr<Device> &out);
flashrt_status open_cuda(const flashrt_handover &plan, std::unique_ptr<Device> &out);

}  // namespace flashrt
