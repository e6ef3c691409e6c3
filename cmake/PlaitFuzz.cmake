# SPDX-License-Identifier: Apache-2.0
# Fuzz targets: every tests/fuzz/fuzz_*.c becomes an executable of libFuzzer, with the library in
# objects that report coverage to it. Needs clang and its fuzzer runtime; `make fuzz` runs them.
if(NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "PLAIT_FUZZ needs clang, this is ${CMAKE_C_COMPILER_ID}")
endif()
add_compile_options(-fsanitize=fuzzer-no-link)

function(plait_add_fuzzers)
    # Only the library is needed beside them.
    foreach(target plait plait_shared)
        if(TARGET ${target})
            set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
        endif()
    endforeach()
    file(GLOB targets CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
    file(GLOB support CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/*.c)
    list(REMOVE_ITEM support ${targets})
    add_custom_target(fuzz ALL)
    foreach(file IN LISTS targets)
        get_filename_component(name ${file} NAME_WE)
        add_executable(${name} EXCLUDE_FROM_ALL ${file} ${support})
        target_compile_definitions(${name} PRIVATE PLAIT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
        target_link_libraries(${name} PRIVATE plait_flags plait_static)
        target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
        add_dependencies(fuzz ${name})
    endforeach()
endfunction()
