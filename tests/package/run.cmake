# SPDX-License-Identifier: Apache-2.0
# Installs the build folder BUILD into FOLDER, then configures, builds and runs the consumer of its COMPONENTS.
file(REMOVE_RECURSE ${FOLDER})
file(COPY ${CMAKE_CURRENT_LIST_DIR}/consumer DESTINATION ${FOLDER})

function(run_or_fail)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}: ${status}\n${output}")
  endif()
endfunction()

run_or_fail(${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${FOLDER}/prefix)
string(REPLACE "," ";" components ${COMPONENTS})
set(without_gpu ${components})
list(REMOVE_ITEM without_gpu gpu)
# All components, and then those of a program without kernels.
foreach(asked IN ITEMS components without_gpu)
  list(JOIN ${asked} "," names)
  run_or_fail(${CMAKE_COMMAND} -S ${FOLDER}/consumer -B ${FOLDER}/build_${asked} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
              -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_PREFIX_PATH=${FOLDER}/prefix -DCOMPONENTS=${names})
  run_or_fail(${CMAKE_COMMAND} --build ${FOLDER}/build_${asked})
  foreach(component IN LISTS ${asked})
    run_or_fail(${FOLDER}/build_${asked}/bin/consumer_${component})
    message(STATUS "component ${component} of ${names}: found, linked and run")
  endforeach()
endforeach()

# The same program by pkg-config.
find_program(PKG_CONFIG pkg-config)
file(GLOB_RECURSE pc ${FOLDER}/prefix/*/tree_attn.pc)
if(PKG_CONFIG AND pc AND "distributed" IN_LIST components)
  get_filename_component(folder ${pc} DIRECTORY)
  set(ENV{PKG_CONFIG_PATH} ${folder})
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs tree_attn OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags)
  run_or_fail(${CXX} ${FOLDER}/consumer/distributed.cpp -o ${FOLDER}/by_pkg_config ${flags})
  run_or_fail(${FOLDER}/by_pkg_config)
  message(STATUS "pkg-config: linked and run")
endif()
