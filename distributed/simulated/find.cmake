# SPDX-License-Identifier: Apache-2.0
# SimGrid's SMPI as MPI::MPI_CXX: an MPI whose ranks are threads of one process and whose network is a model.
find_program(TREE_ATTN_SMPIRUN smpirun)
find_library(TREE_ATTN_SIMGRID simgrid)
find_path(TREE_ATTN_SIMGRID_INCLUDE_DIR smpi/smpi.h)
mark_as_advanced(TREE_ATTN_SMPIRUN TREE_ATTN_SIMGRID TREE_ATTN_SIMGRID_INCLUDE_DIR)
if(TREE_ATTN_SMPIRUN AND TREE_ATTN_SIMGRID AND TREE_ATTN_SIMGRID_INCLUDE_DIR)
  add_library(MPI::MPI_CXX INTERFACE IMPORTED)
  target_include_directories(MPI::MPI_CXX SYSTEM INTERFACE ${TREE_ATTN_SIMGRID_INCLUDE_DIR} ${TREE_ATTN_SIMGRID_INCLUDE_DIR}/smpi)
  target_link_libraries(MPI::MPI_CXX INTERFACE ${TREE_ATTN_SIMGRID})
endif()

# Included before every source: the clock and sleep of the simulator. It replaces exit() by a macro of one argument, but CLI11 has
# a function of that name.
set(TREE_ATTN_SMPI_HEADER ${CMAKE_BINARY_DIR}/smpi_first.h)
file(CONFIGURE OUTPUT ${TREE_ATTN_SMPI_HEADER} CONTENT "#include <smpi/smpi_helpers.h>\n#undef exit\n")
