# SPDX-License-Identifier: Apache-2.0
# Looks for nvcc and enables the CUDA language: sets TREE_ATTN_CUDA, or TREE_ATTN_NO_CUDA to the reason why not.
set(TREE_ATTN_CUDA OFF)
set(TREE_ATTN_NO_CUDA "")
# Ampere, and Hopper with its architecture-specific instructions.
set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real" CACHE STRING "CUDA architectures, in CMake's notation")

if(NOT TREE_ATTN_WITH_CUDA)
  set(TREE_ATTN_NO_CUDA "TREE_ATTN_WITH_CUDA=OFF")
elseif(TREE_ATTN_SANITIZE)
  # Sanitizers and the CUDA driver reserve the same addresses. Use compute-sanitizer instead, see TREE_ATTN_SANITIZER_TOOL.
  set(TREE_ATTN_NO_CUDA "TREE_ATTN_SANITIZE=${TREE_ATTN_SANITIZE}")
else()
  # Look in the PATH, then where the installer puts it.
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(TREE_ATTN_NVCC nvcc HINTS ${CUDAToolkit_ROOT} ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(TREE_ATTN_NVCC)
    if(TREE_ATTN_NVCC)
      set(ENV{CUDACXX} ${TREE_ATTN_NVCC})
    endif()
  endif()
  if(CMAKE_CUDA_HOST_COMPILER)
    set(ENV{CUDAHOSTCXX} ${CMAKE_CUDA_HOST_COMPILER})
  elseif(NOT DEFINED ENV{CUDAHOSTCXX})
    set(ENV{CUDAHOSTCXX} ${CMAKE_CXX_COMPILER})
  endif()

  # Try nvcc with the host compiler. A failure is not cached, so that configuring again tries again.
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)
  endif()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(TREE_ATTN_NO_CUDA "no nvcc found")
  else()
    include(CheckLanguage)
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
      set(TREE_ATTN_NO_CUDA "$ENV{CUDACXX} does not work with $ENV{CUDAHOSTCXX}, see CMakeFiles/CMakeError.log or CMakeConfigureLog.yaml")
    else()
      # An old nvcc may not support the architectures, which would be an error in enable_language().
      execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
      if(nvcc_version MATCHES "release ([0-9]+\\.[0-9]+)" AND CMAKE_MATCH_1 VERSION_LESS 12.5)
        set(TREE_ATTN_NO_CUDA "${CMAKE_CUDA_COMPILER} is of CUDA ${CMAKE_MATCH_1}, which is older than 12.5")
      else()
        enable_language(CUDA)
        set(TREE_ATTN_CUDA ON)
      endif()
    endif()
  endif()
endif()

# If CUDA was requested, its absence is an error.
if(NOT TREE_ATTN_CUDA AND TREE_ATTN_WITH_CUDA AND NOT TREE_ATTN_WITH_CUDA STREQUAL "AUTO")
  message(FATAL_ERROR "TREE_ATTN_WITH_CUDA=${TREE_ATTN_WITH_CUDA}: ${TREE_ATTN_NO_CUDA}. Install nvcc 12.5 or later from "
                      "developer.nvidia.com/cuda-downloads, in the PATH or named by -DCMAKE_CUDA_COMPILER=..., and name a g++ that "
                      "it supports by -DCMAKE_CUDA_HOST_COMPILER=...")
endif()
