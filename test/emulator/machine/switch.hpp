// From one fiber's stack to another's: what a function must keep is saved on the one and taken from the
// other. ucontext does the same with two calls of the kernel.
#pragma once

#include <cstdint>

extern "C" void emulator_switch(void** from, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");

// A stack from which a switch goes to `start`, which must not return.
inline void* fresh_stack(unsigned char* top, void (*start)()) {
  auto* p = reinterpret_cast<uint64_t*>(top) - 1;  // as if `start` had been called
  *--p = reinterpret_cast<uint64_t>(start);
  for (int i = 0; i < 6; ++i) *--p = 0;
  return p;
}

#elif defined(__aarch64__)
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, %function
emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emulator_switch, .-emulator_switch
)");

inline void* fresh_stack(unsigned char* top, void (*start)()) {
  auto* p = reinterpret_cast<uint64_t*>(top) - 20;
  for (int i = 0; i < 20; ++i) p[i] = 0;
  p[11] = reinterpret_cast<uint64_t>(start);  // x30
  return p;
}

#else
#error "no switch between stacks for this processor"
#endif
