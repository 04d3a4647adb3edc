// A launch: workers that take one cluster after another, and the processor's own word on what they do.
#include <csignal>
#include <cstdio>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include <sys/mman.h>

#include "engine.hpp"

namespace emulator {

namespace {

struct sigaction segv_before, bus_before;

void caught(int number, siginfo_t* info, void* context) {
  if (machine && current) machine->fail(machine->describe_fault(info->si_addr));
  const struct sigaction& before = number == SIGSEGV ? segv_before : bus_before;
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(number);
  signal(number, SIG_DFL);
}

void catch_faults() {
  struct sigaction action = {};
  action.sa_sigaction = caught;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &segv_before);
  sigaction(SIGBUS, &action, &bus_before);
}

void restore_faults() {
  sigaction(SIGSEGV, &segv_before, nullptr);
  sigaction(SIGBUS, &bus_before, nullptr);
}

// A full stack is told on another one.
class FaultStack {
 public:
  FaultStack() : memory_(reserve(kBytes, PROT_READ | PROT_WRITE)) {
    stack_t own = {};
    own.ss_sp = memory_;
    own.ss_size = kBytes;
    sigaltstack(&own, &before_);
  }
  ~FaultStack() {
    sigaltstack(&before_, nullptr);
    munmap(memory_, kBytes);
  }

 private:
  static constexpr size_t kBytes = 64 * 1024;
  unsigned char* memory_;
  stack_t before_;
};

std::vector<std::unique_ptr<Machine>> machines;

}  // namespace

}  // namespace emulator

// 0 when every block has come to its end; else `message` says what happened first.
extern "C" int emulator_launch(void (*kernel)(void**), void** args, const unsigned* sizes,
                               unsigned shared_bytes, unsigned workers, unsigned order, char* message,
                               size_t length) {
  using namespace emulator;
  Launch launch = {kernel, args, {sizes[0], sizes[1], sizes[2]}, {sizes[3], sizes[4], sizes[5]},
                   {sizes[6], sizes[7], sizes[8]}, shared_bytes, order};
  const unsigned clusters = count(launch.grid) / count(launch.cluster);
  workers = std::min(workers, clusters);
  while (machines.size() < workers) machines.push_back(std::make_unique<Machine>());
  std::atomic<unsigned> taken = 0;
  std::atomic<bool> failed = false;
  std::string told;
  std::atomic_flag telling = ATOMIC_FLAG_INIT;
  const auto work = [&](Machine& own) {
    const FaultStack stack;
    for (unsigned i = taken++; i < clusters && !failed; i = taken++) {
      own.run(launch, i);
      if (!own.message.empty()) {
        failed = true;
        if (!telling.test_and_set()) told = own.message;
      }
    }
  };
  catch_faults();
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < workers; ++i) threads.emplace_back(work, std::ref(*machines[i]));
  work(*machines[0]);
  for (std::thread& thread : threads) thread.join();
  restore_faults();
  if (!failed) return 0;
  std::snprintf(message, length, "%s", told.c_str());
  return 1;
}
