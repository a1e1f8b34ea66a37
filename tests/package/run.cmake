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
run_or_fail(${CMAKE_COMMAND} -S ${FOLDER}/consumer -B ${FOLDER}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
            -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_PREFIX_PATH=${FOLDER}/prefix -DCOMPONENTS=${COMPONENTS})
run_or_fail(${CMAKE_COMMAND} --build ${FOLDER}/build)
string(REPLACE "," ";" components ${COMPONENTS})
foreach(component IN LISTS components)
  run_or_fail(${FOLDER}/build/bin/consumer_${component})
  message(STATUS "component ${component}: found, linked and run")
endforeach()
