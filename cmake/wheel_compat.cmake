# For builds against the ROS 2 wheels of PyPI; pass it as -DCMAKE_PROJECT_INCLUDE=<this file>.
# On a regular ROS 2 installation it changes nothing. Once the whole project is read:
#
# - Targets that the wheels export list include directories of the machine that built them
#   (/opt/python/...), and CMake refuses a target whose include directory does not exist: those are
#   taken off.
# - The generated Python library exports numpy's include directory. Where the environment lies inside
#   the source tree (.venv), CMake refuses to export it: it is then kept for this build alone.
function(flashrt_mend_includes)
  get_property(_imported DIRECTORY "${CMAKE_SOURCE_DIR}" PROPERTY IMPORTED_TARGETS)
  get_property(_own DIRECTORY "${CMAKE_SOURCE_DIR}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(_target IN LISTS _imported _own)
    get_target_property(_directories ${_target} INTERFACE_INCLUDE_DIRECTORIES)
    if(NOT _directories)
      continue()
    endif()
    set(_mended "")
    foreach(_directory IN LISTS _directories)
      if(_directory MATCHES "^\\$<")
        # Generator expressions can be judged only at generation.
        list(APPEND _mended "${_directory}")
      elseif(_target IN_LIST _own)
        list(APPEND _mended "$<BUILD_INTERFACE:${_directory}>")
      elseif(EXISTS "${_directory}")
        list(APPEND _mended "${_directory}")
      endif()
    endforeach()
    set_target_properties(${_target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_mended}")
  endforeach()
endfunction()
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL flashrt_mend_includes)
