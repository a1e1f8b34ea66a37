# SPDX-License-Identifier: Apache-2.0
# Looks for nvcc and makes CUDA a language of the build: sets TREE_ATTN_CUDA, or in TREE_ATTN_NO_CUDA the reason why not.
set(TREE_ATTN_CUDA OFF)
set(TREE_ATTN_NO_CUDA "")
# Ampere, and Hopper with the instructions that are its alone.
set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real" CACHE STRING "CUDA architectures, as CMake names them")

if(NOT TREE_ATTN_WITH_CUDA)
  set(TREE_ATTN_NO_CUDA "TREE_ATTN_WITH_CUDA=OFF")
elseif(TREE_ATTN_SANITIZE)
  # They want the addresses that the driver wants; compute-sanitizer is the tool there, see TREE_ATTN_SANITIZER_TOOL.
  set(TREE_ATTN_NO_CUDA "TREE_ATTN_SANITIZE=${TREE_ATTN_SANITIZE}")
else()
  # Find it in the PATH, else where its installer puts it.
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

  # Try it with the compiler of the host. A failure is not remembered: who has mended it only configures again.
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
      # An old one may not know the architectures, and CMake would stop there.
      execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
      if(nvcc_version MATCHES "release ([0-9]+)\\." AND CMAKE_MATCH_1 LESS 12)
        set(TREE_ATTN_NO_CUDA "${CMAKE_CUDA_COMPILER} is of CUDA ${CMAKE_MATCH_1}, older than 12")
      else()
        enable_language(CUDA)
        set(TREE_ATTN_CUDA ON)
      endif()
    endif()
  endif()
endif()

# What was asked for and is not there is an error.
if(NOT TREE_ATTN_CUDA AND TREE_ATTN_WITH_CUDA AND NOT TREE_ATTN_WITH_CUDA STREQUAL "AUTO")
  message(FATAL_ERROR "TREE_ATTN_WITH_CUDA=${TREE_ATTN_WITH_CUDA}: ${TREE_ATTN_NO_CUDA}. It takes nvcc 12 or later from "
                      "developer.nvidia.com/cuda-downloads, in the PATH or named by -DCMAKE_CUDA_COMPILER=..., and with "
                      "-DCMAKE_CUDA_HOST_COMPILER=... a g++ that it accepts")
endif()
