# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts in place: headers, both libraries, the command and its manual page,
# plait.pc and the CMake package Plait (targets Plait::plait, shared, and Plait::plait_static).
include(CMakePackageConfigHelpers)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/plait DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(TARGETS plait_shared plait_static EXPORT PlaitTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET plait)
    install(TARGETS plait DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(FILES ${PROJECT_SOURCE_DIR}/docs/plait.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Plait)
install(EXPORT PlaitTargets NAMESPACE Plait:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/PlaitConfig.cmake.in
    ${PROJECT_BINARY_DIR}/PlaitConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/PlaitConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/PlaitConfig.cmake
    ${PROJECT_BINARY_DIR}/PlaitConfigVersion.cmake DESTINATION ${package_dir})

list(TRANSFORM private_libs REPLACE "^MPI::MPI_C$" mpi)
list(TRANSFORM private_libs PREPEND -l OUTPUT_VARIABLE PLAIT_PC_PRIVATE)
list(FILTER PLAIT_PC_PRIVATE EXCLUDE REGEX "::")
list(JOIN PLAIT_PC_PRIVATE " " PLAIT_PC_PRIVATE)
# Relative to the file itself, so that the prefix can be chosen when installing.
file(RELATIVE_PATH PLAIT_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" PLAIT_PC_UP "${PLAIT_PC_UP}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/plait.pc.in ${PROJECT_BINARY_DIR}/plait.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/plait.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
