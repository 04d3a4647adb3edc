# The CUDA kernels: csrc/ops/*.cu -> flashrt_core/lib/flashrt_kernels.fatbin, where nvcc is found (PATH,
# CUDA_HOME, or the nvidia-cuda-nvcc wheel). Without it the package is CPU-only, and says so.
set(FLASHRT_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO (where nvcc is found), ON or OFF")

set(_builder ${CMAKE_CURRENT_SOURCE_DIR}/tools/build_kernels.py)
set(_fatbin ${CMAKE_CURRENT_BINARY_DIR}/flashrt_kernels.fatbin)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

set(_nvcc "")
if(NOT FLASHRT_CUDA STREQUAL "OFF")
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${_builder} --find
    OUTPUT_VARIABLE _nvcc OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()

if(_nvcc)
  file(GLOB_RECURSE _kernel_sources CONFIGURE_DEPENDS csrc/*.cu csrc/*.cuh)
  add_custom_command(
    OUTPUT ${_fatbin}
    COMMAND ${Python3_EXECUTABLE} ${_builder} --output ${_fatbin}
    DEPENDS ${_kernel_sources} ${_builder}
    COMMENT "CUDA kernels with ${_nvcc}"
    VERBATIM)
  add_custom_target(flashrt_kernels ALL DEPENDS ${_fatbin})
  install(FILES ${_fatbin} DESTINATION ${PYTHON_INSTALL_DIR}/flashrt_core/lib)
elseif(FLASHRT_CUDA STREQUAL "ON")
  message(FATAL_ERROR "FLASHRT_CUDA=ON, but no nvcc in PATH, CUDA_HOME or the nvidia-cuda-nvcc wheel")
else()
  message(STATUS "flashrt: no CUDA compiler (nvcc) found, so this is a CPU-only build")
endif()
