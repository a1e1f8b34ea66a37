# SPDX-License-Identifier: Apache-2.0
# Copies the public headers of a room to DESTINATION/tree_attn/ROOM, where they include each other as "tree_attn/<room>/...", by which
# other projects know them: cmake -DROOM=reference -DDESTINATION=build/include -P headers.cmake
set(folders ${ROOM})
if(ROOM STREQUAL "distributed")
  set(folders distributed/exchange distributed/transport distributed/interface)
endif()
get_filename_component(DESTINATION ${DESTINATION} ABSOLUTE)
# Copies of headers that are gone would be found and installed.
file(GLOB_RECURSE gone RELATIVE ${DESTINATION}/tree_attn ${DESTINATION}/tree_attn/${ROOM}/*)
foreach(folder IN LISTS folders)
  file(GLOB_RECURSE headers RELATIVE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/${folder}/*.h ${CMAKE_CURRENT_LIST_DIR}/${folder}/*.hpp
       ${CMAKE_CURRENT_LIST_DIR}/${folder}/*.cuh)
  list(REMOVE_ITEM gone ${headers})
  foreach(header IN LISTS headers)
    file(READ ${CMAKE_CURRENT_LIST_DIR}/${header} text)
    string(REGEX REPLACE "(#[ ]*include \")(reference|gpu|distributed)/" "\\1tree_attn/\\2/" text "${text}")
    set(copy ${DESTINATION}/tree_attn/${header})
    set(before "")
    if(EXISTS ${copy})
      file(READ ${copy} before)
    endif()
    # A copy that is written anew is compiled anew.
    if(NOT text STREQUAL before)
      file(WRITE ${copy} "${text}")
    endif()
  endforeach()
endforeach()
foreach(copy IN LISTS gone)
  file(REMOVE ${DESTINATION}/tree_attn/${copy})
endforeach()
