// The CUDA device: graphs that Python captured, through the driver alone. The driver library is opened
// by name, so that this builds and loads on machines without one.
#include <dlfcn.h>

#include <cstring>

#include "device.hpp"
#include "status.hpp"

namespace flashrt {
namespace {

struct Api {
  int (*cuCtxGetCurrent)(void **);
  int (*cuCtxPushCurrent_v2)(void *);
  int (*cuCtxPopCurrent_v2)(void **);
  int (*cuMemHostAlloc)(void **, size_t, unsigned);
  int (*cuMemFreeHost)(void *);
  int (*cuMemcpyHtoDAsync_v2)(uint64_t, const void *, size_t, void *);
  int (*cuMemcpyDtoHAsync_v2)(void *, uint64_t, size_t, void *);
  int (*cuMemcpyAsync)(uint64_t, uint64_t, size_t, void *);
  int (*cuGraphLaunch)(void *, void *);
  int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);
  int (*cuStreamSynchronize)(void *);
  int (*cuEventElapsedTime)(float *, void *, void *);
  int (*cuGetErrorName)(int, const char **);
  int (*cuGetErrorString)(int, const char **);
};

template <typename Function>
flashrt_status find(void *library, const char *name, Function &out) {
  void *found = dlsym(library, name);
  if (found == nullptr) return fail(FLASHRT_E_DEVICE, "CUDA driver: expected function %s, got none; update the driver", name);
  std::memcpy(&out, &found, sizeof found);  // a data pointer cannot be cast to a function's
  return FLASHRT_OK;
}

#define FLASHRT_FIND(name) FLASHRT_TRY(find(library, #name, api.name))

flashrt_status load(const char *file, Api &api) {
  // Never closed: the driver is in use as long as the process has a context.
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fail(FLASHRT_E_DEVICE, "CUDA driver: expected library %s, got %s", file, dlerror());
  FLASHRT_FIND(cuCtxGetCurrent);
  FLASHRT_FIND(cuCtxPushCurrent_v2);
  FLASHRT_FIND(cuCtxPopCurrent_v2);
  FLASHRT_FIND(cuMemHostAlloc);
  FLASHRT_FIND(cuMemFreeHost);
  FLASHRT_FIND(cuMemcpyHtoDAsync_v2);
  FLASHRT_FIND(cuMemcpyDtoHAsync_v2);
  FLASHRT_FIND(cuMemcpyAsync);
  FLASHRT_FIND(cuGraphLaunch);
  FLASHRT_FIND(cuLaunchKernel);
  FLASHRT_FIND(cuStreamSynchronize);
  FLASHRT_FIND(cuEventElapsedTime);
  FLASHRT_FIND(cuGetErrorName);
  FLASHRT_FIND(cuGetErrorString);
  return FLASHRT_OK;
}

void *event(uint64_t handle) { return reinterpret_cast<void *>(static_cast<uintptr_t>(handle)); }

// The parameter of the kernel that copies, csrc/ops/copy_pieces.cu.
struct CopyPlan {
  flashrt_piece piece[FLASHRT_COPY_PIECES];
  uint64_t count;
};

constexpr uint64_t kMostCopied = 0xFFFFFFFFu;  // bytes of a piece

class CudaDevice final : public Device {
 public:
  CudaDevice(const Api &api, const flashrt_handover &plan)
      : api_(api), context_(plan.context), stream_(plan.stream), copier_(plan.copier), copy_blocks_(plan.copy_blocks) {}

  flashrt_status enter() override {
    void *current = nullptr;
    FLASHRT_TRY(called("cuCtxGetCurrent", api_.cuCtxGetCurrent(&current)));
    // The thread is the host's: its own context comes back behind the call.
    pushed_ = current != context_;
    return pushed_ ? called("cuCtxPushCurrent", api_.cuCtxPushCurrent_v2(context_)) : FLASHRT_OK;
  }

  void leave() override {
    void *popped = nullptr;
    if (pushed_) api_.cuCtxPopCurrent_v2(&popped);
    pushed_ = false;
  }

  flashrt_status allocate_host(size_t bytes, uint8_t **out) override {
    void *memory = nullptr;
    FLASHRT_TRY(called("cuMemHostAlloc", api_.cuMemHostAlloc(&memory, bytes, 0)));
    *out = static_cast<uint8_t *>(std::memset(memory, 0, bytes));
    return FLASHRT_OK;
  }

  void free_host(uint8_t *memory) override { api_.cuMemFreeHost(memory); }

  flashrt_status write(uint64_t to, const uint8_t *from, size_t bytes) override {
    return called("cuMemcpyHtoDAsync", api_.cuMemcpyHtoDAsync_v2(to, from, bytes, stream_));
  }

  flashrt_status read(uint8_t *to, uint64_t from, size_t bytes) override {
    return called("cuMemcpyDtoHAsync", api_.cuMemcpyDtoHAsync_v2(to, from, bytes, stream_));
  }

  // Addresses of pinned host memory are the GPU's too.
  flashrt_status copy(uint64_t to, uint64_t from, size_t bytes, bool pinned) override {
    if (pinned || bytes > kMostCopied) {
      return called("cuMemcpyAsync", api_.cuMemcpyAsync(to, from, bytes, stream_));
    }
    const flashrt_piece piece{to, from, bytes, 1, bytes, bytes};
    return copy_pieces(&piece, 1);
  }

  flashrt_status transfer(const flashrt_transfer &planned) override {
    return planned.executable != nullptr ? launch(planned.executable) : copy_pieces(planned.piece, planned.pieces);
  }

  flashrt_status launch(uint32_t, const flashrt_program &program) override { return launch(program.graph.executable); }

  flashrt_status wait() override { return called("cuStreamSynchronize", api_.cuStreamSynchronize(stream_)); }

  flashrt_status times(const flashrt_program &program, float *stage_ms) override {
    uint32_t segment = 0;
    for (uint32_t stage = 0; stage < FLASHRT_MAX_STAGES; ++stage) {
      if ((program.graph.stages >> stage & 1) == 0) continue;
      float found = 0.0f;
      void *from = event(program.events[segment]), *to = event(program.events[segment + 1]);
      FLASHRT_TRY(called("cuEventElapsedTime", api_.cuEventElapsedTime(&found, from, to)));
      stage_ms[stage] += found;
      ++segment;
    }
    return FLASHRT_OK;
  }

 private:
  flashrt_status copy_pieces(const flashrt_piece *piece, uint32_t count) {
    if (count > FLASHRT_COPY_PIECES) {
      return fail(FLASHRT_E_INTERNAL, "copy: expected at most %d pieces, got %u", FLASHRT_COPY_PIECES, count);
    }
    CopyPlan plan{};
    std::memcpy(plan.piece, piece, count * sizeof *piece);
    plan.count = count;
    void *parameters[] = {&plan};  // the driver has read it when it returns
    return called("cuLaunchKernel", api_.cuLaunchKernel(copier_, copy_blocks_, 1, 1, FLASHRT_COPY_THREADS, 1, 1, 0, stream_,
                                                        parameters, nullptr));
  }

  flashrt_status launch(void *executable) {
    return called("cuGraphLaunch", api_.cuGraphLaunch(executable, stream_));
  }

  flashrt_status called(const char *name, int code) {
    if (code == 0) return FLASHRT_OK;
    const char *kind = nullptr, *text = nullptr;
    if (api_.cuGetErrorName(code, &kind) != 0 || kind == nullptr) kind = "an unknown error";
    if (api_.cuGetErrorString(code, &text) != 0 || text == nullptr) text = "no explanation";
    return fail(FLASHRT_E_DEVICE, "CUDA call %s: got %s (%d): %s", name, kind, code, text);
  }

  Api api_;
  void *context_;
  void *stream_;
  void *copier_;
  uint32_t copy_blocks_;
  bool pushed_ = false;  // under the engine's lock
};

}  // namespace

flashrt_status open_cuda(const flashrt_handover &plan, std::unique_ptr<Device> &out) {
  Api api{};
  if (plan.driver == nullptr || plan.context == nullptr || plan.stream == nullptr || plan.copier == nullptr) {
    return fail(FLASHRT_E_ARGUMENT, "device 'cuda': expected a driver, a context, a stream and a kernel, got null");
  }
  FLASHRT_TRY(load(plan.driver, api));
  out = std::make_unique<CudaDevice>(api, plan);
  return FLASHRT_OK;
}

}  // namespace flashrt
