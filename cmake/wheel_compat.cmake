# For builds against the ROS 2 wheels of PyPI; pass it as -DCMAKE_PROJECT_INCLUDE=<this file>.
# The targets that those wheels export list include directories of the machine that built them
# (/opt/python/...), and CMake refuses a target whose include directory does not exist. Once the
# whole project is read, take such directories off every imported target. On a regular ROS 2
# installation every directory exists and nothing changes.
function(flashrt_drop_absent_includes)
  get_property(_imported DIRECTORY "${CMAKE_SOURCE_DIR}" PROPERTY IMPORTED_TARGETS)
  foreach(_target IN LISTS _imported)
    get_target_property(_directories ${_target} INTERFACE_INCLUDE_DIRECTORIES)
    if(NOT _directories)
      continue()
    endif()
    set(_present "")
    foreach(_directory IN LISTS _directories)
      # Generator expressions are kept: they can be judged only at generation.
      if(_directory MATCHES "^\\$<" OR EXISTS "${_directory}")
        list(APPEND _present "${_directory}")
      endif()
    endforeach()
    set_target_properties(${_target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_present}")
  endforeach()
endfunction()
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL flashrt_drop_absent_includes)
