// The CPU device: memory of this process, and stages that Python computes behind a callback.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "device.hpp"
#include "status.hpp"

namespace flashrt {
namespace {

uint8_t *memory(uint64_t address) { return reinterpret_cast<uint8_t *>(static_cast<uintptr_t>(address)); }

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(flashrt_replay_fn replay) : replay_(replay) {}

  flashrt_status enter() override { return FLASHRT_OK; }
  void leave() override {}

  flashrt_status allocate_host(size_t bytes, uint8_t **out) override {
    *out = static_cast<uint8_t *>(std::calloc(bytes, 1));
    return *out != nullptr ? FLASHRT_OK : fail(FLASHRT_E_DEVICE, "host memory: expected %zu bytes, got none", bytes);
  }

  void free_host(uint8_t *block) override { std::free(block); }

  flashrt_status write(uint64_t to, const uint8_t *from, size_t bytes) override {
    std::memcpy(memory(to), from, bytes);
    return FLASHRT_OK;
  }

  flashrt_status read(uint8_t *to, uint64_t from, size_t bytes) override {
    std::memcpy(to, memory(from), bytes);
    return FLASHRT_OK;
  }

  flashrt_status copy(uint64_t to, uint64_t from, size_t bytes, bool) override {
    std::memcpy(memory(to), memory(from), bytes);
    return FLASHRT_OK;
  }

  flashrt_status transfer(const flashrt_transfer &planned) override {
    for (uint32_t index = 0; index < planned.pieces; ++index) {
      const flashrt_piece &piece = planned.piece[index];
      for (uint64_t row = 0; row < piece.rows; ++row) {
        std::memcpy(memory(piece.to + row * piece.to_pitch), memory(piece.from + row * piece.from_pitch), piece.width);
      }
    }
    return FLASHRT_OK;
  }

  flashrt_status launch(uint32_t index, const flashrt_program &) override {
    char text[512] = "";
    std::fill(std::begin(stage_ms_), std::end(stage_ms_), 0.0f);
    const int32_t code = replay_(index, stage_ms_, text, sizeof text);
    text[sizeof text - 1] = 0;
    return code == 0 ? FLASHRT_OK : fail(FLASHRT_E_DEVICE, "replay on device 'cpu': got %s", text);
  }

  flashrt_status wait() override { return FLASHRT_OK; }

  flashrt_status times(const flashrt_program &, float *stage_ms) override {
    for (int stage = 0; stage < FLASHRT_MAX_STAGES; ++stage) stage_ms[stage] += stage_ms_[stage];
    return FLASHRT_OK;
  }

 private:
  flashrt_replay_fn replay_;
  float stage_ms_[FLASHRT_MAX_STAGES] = {};
};

}  // namespace

flashrt_status open_cpu(const flashrt_handover &plan, std::unique_ptr<Device> &out) {
  if (plan.replay == nullptr) return fail(FLASHRT_E_ARGUMENT, "device 'cpu': expected a replay function, got null");
  out = std::make_unique<CpuDevice>(plan.replay);
  return FLASHRT_OK;
}

}  // namespace flashrt
