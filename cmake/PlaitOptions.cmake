# SPDX-License-Identifier: Apache-2.0
# The optional parts (engine, MPI, CUDA), the flags that an ISA word stands for, and the summary.
# Each option is AUTO, ON or OFF; the result is PLAIT_<NAME>_ON with the reason in PLAIT_<NAME>_WHY.

# Sets PLAIT_<name>_ON from the option and from what is missing (an empty text: nothing is).
function(plait_option name what missing)
    set(PLAIT_${name} AUTO CACHE STRING "${what}: AUTO, ON or OFF")
    set_property(CACHE PLAIT_${name} PROPERTY STRINGS AUTO ON OFF)
    set(on OFF)
    if(PLAIT_${name} STREQUAL "AUTO")
        if(missing)
            set(why "${missing}")
        else()
            set(on ON)
        endif()
    elseif(PLAIT_${name})
        if(missing)
            message(FATAL_ERROR "PLAIT_${name}=ON, but: ${missing}. "
                    "Install what is missing (tools/setup) or use PLAIT_${name}=OFF.")
        endif()
        set(on ON)
    else()
        set(why "switched off")
    endif()
    set(PLAIT_${name}_ON ${on} PARENT_SCOPE)
    set(PLAIT_${name}_WHY "${why}" PARENT_SCOPE)
endfunction()

# Engine: oneDNN for GEMMs, cJSON and PCRE2 for checkpoints and tokenizers.
set(missing)
foreach(need "dnnl dnnl.h" "cjson cjson/cJSON.h" "pcre2-8 pcre2.h")
    string(REPLACE " " ";" need ${need})
    list(GET need 0 lib)
    list(GET need 1 header)
    find_library(PLAIT_LIB_${lib} ${lib})
    find_path(PLAIT_INC_${lib} ${header})
    mark_as_advanced(PLAIT_LIB_${lib} PLAIT_INC_${lib})
    if(NOT PLAIT_LIB_${lib} OR NOT PLAIT_INC_${lib})
        string(APPEND missing " ${lib}")
    endif()
endforeach()
if(missing)
    set(missing "not found:${missing}")
endif()
plait_option(ENGINE "Checkpoints, tokenizer and generation" "${missing}")
if(PLAIT_ENGINE_ON)
    set(PLAIT_ENGINE_LIBS dnnl gomp cjson pcre2-8)
endif()

# MPI: a communicator in src/comm/mpi*.c.
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/mpi*.c)
set(missing)
if(NOT sources)
    set(missing "this release step has no MPI communicator")
elseif(NOT PLAIT_MPI STREQUAL "OFF")
    find_package(MPI QUIET COMPONENTS C)
    if(NOT MPI_C_FOUND)
        set(missing "no MPI was found")
    endif()
endif()
plait_option(MPI "Communicator over MPI" "${missing}")
if(PLAIT_MPI_ON)
    set(PLAIT_MPI_LIBS MPI::MPI_C)
endif()

# CUDA: kernels in src/kernel/*.cu.
find_program(PLAIT_NVCC nvcc PATHS /usr/local/cuda/bin)
mark_as_advanced(PLAIT_NVCC)
set(missing)
if(NOT PLAIT_NVCC)
    set(missing "no nvcc was found")
endif()
plait_option(CUDA "GPU kernels" "${missing}")

# Sets `out` to a generated C file with the table plait_cuda_images: the machine code of each of the
# .cu files that follow, embedded byte by byte. Spilled registers are errors: they cost a kernel
# more than whatever made it spill.
function(plait_cuda_images out)
    set(dir ${PROJECT_BINARY_DIR}/cuda)
    set(c ${dir}/images.c)
    set(text "/* Generated. */\n#include \"device/cuda.h\"\n")
    set(rows)
    set(cubins)
    foreach(file IN LISTS ARGN)
        get_filename_component(name ${file} NAME_WE)
        set(cubin ${dir}/${name}.cubin)
        add_custom_command(OUTPUT ${cubin}
            COMMAND ${PLAIT_NVCC} -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -cubin
                -lineinfo -Xptxas=-warn-spills,-Werror -MD -MF ${cubin}.d
                -I ${PROJECT_SOURCE_DIR}/include -I ${PROJECT_SOURCE_DIR}/src ${file} -o ${cubin}
            DEPENDS ${file} DEPFILE ${cubin}.d COMMENT "nvcc ${name}.cu" VERBATIM)
        list(APPEND cubins ${cubin})
        string(APPEND text "__asm__(\".pushsection .rodata\\n.balign 64\\n"
            "plait_image_${name}: .incbin \\\"${cubin}\\\"\\n.popsection\");\n"
            "extern const unsigned char plait_image_${name}[]\n"
            "    __attribute__((visibility(\"hidden\")));\n")
        string(APPEND rows "    {\"${name}\", plait_image_${name}},\n")
    endforeach()
    string(APPEND text "const plait_cuda_image plait_cuda_images[] = {\n${rows}    {0, 0}};\n")
    file(CONFIGURE OUTPUT ${c} CONTENT "${text}" @ONLY)
    set_source_files_properties(${c} PROPERTIES OBJECT_DEPENDS "${cubins}")
    set(${out} ${c} PARENT_SCOPE)
endfunction()

# The compiler flags that the ISA word in a file name stands for; a file without one gets none.
function(plait_isa_flags file out)
    get_filename_component(name ${file} NAME_WE)
    set(flags)
    if(name MATCHES "_amx")
        set(flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mavx512bf16
            -mamx-tile -mamx-bf16)
    elseif(name MATCHES "_avx2")
        set(flags -mavx2 -mfma -mf16c)
    elseif(name MATCHES "_avx512")
        set(flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c)
        if(name MATCHES "_avx512bf16")
            list(APPEND flags -mavx512bf16)
        endif()
    endif()
    set(${out} "${flags}" PARENT_SCOPE)
endfunction()

function(plait_summary)
    message(STATUS "plait ${PROJECT_VERSION}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
    foreach(name ENGINE MPI CUDA)
        if(PLAIT_${name}_ON)
            message(STATUS "  ${name}: on")
        else()
            message(STATUS "  ${name}: off (${PLAIT_${name}_WHY})")
        endif()
    endforeach()
    if(PLAIT_SANITIZE)
        message(STATUS "  sanitizers: ${PLAIT_SANITIZE}")
    endif()
endfunction()
