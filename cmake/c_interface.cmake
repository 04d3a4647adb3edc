# The C interface: csrc/abi/*.cpp -> libflashrt.so beside the Python package, which loads it from there,
# and its header for programs that embed a session (docs/c_interface.md). Needs no GPU.
file(GLOB _abi_sources CONFIGURE_DEPENDS csrc/abi/*.cpp)
find_package(Threads REQUIRED)
add_library(flashrt SHARED ${_abi_sources})
target_compile_features(flashrt PRIVATE cxx_std_17)
target_compile_options(flashrt PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O2>)  # a colcon build has no type
target_include_directories(flashrt INTERFACE csrc/include)
target_link_libraries(flashrt PRIVATE ${CMAKE_DL_LIBS} Threads::Threads)
set_target_properties(flashrt PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
install(TARGETS flashrt LIBRARY DESTINATION ${PYTHON_INSTALL_DIR}/flashrt_core/lib)
# Beside the library too: a wheel has no other place for it.
install(FILES csrc/include/flashrt.h DESTINATION ${PYTHON_INSTALL_DIR}/flashrt_core/lib)
install(FILES csrc/include/flashrt.h DESTINATION include/${PROJECT_NAME})
