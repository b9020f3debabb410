# SPDX-License-Identifier: Apache-2.0
# Three functions: segue_library (one folder = one library = one test program), segue_isa_library (one CPU source,
# one object library per instruction level) and segue_test (a test program outside src/). A fuzzing build is a build of
# its own, since every object is instrumented.

set(SEGUE_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion)
if(SEGUE_WERROR)
  list(APPEND SEGUE_WARNINGS -Werror)
endif()

if(SEGUE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SEGUE_FUZZ needs clang (found ${CMAKE_CXX_COMPILER_ID}): cmake --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
endif()

# A test's own code need not be fast, and optimising it is most of the time that a build takes.
set(SEGUE_TEST_OPTIONS -O1)
if(CMAKE_CXX_FLAGS MATCHES "sanitize")
  set(SEGUE_TEST_OPTIONS -O0)
endif()

# GoogleTest's headers take longer to read than most tests do to compile. ccache and precompiled headers exclude
# each other, so a build has the one or the other.
if(SEGUE_TESTS AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  file(WRITE ${CMAKE_BINARY_DIR}/test_headers.cc "")
  add_library(test_headers OBJECT ${CMAKE_BINARY_DIR}/test_headers.cc)
  target_link_libraries(test_headers PRIVATE GTest::gtest GTest::gmock)
  target_compile_options(test_headers PRIVATE ${SEGUE_TEST_OPTIONS})
  target_precompile_headers(test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
endif()

# segue_test(NAME sources... DEPS libs...): the file suffix is the CTest label: x_test.cc is `unit`,
# x_model_test.cc needs a real model (`model`), x_slow_test.cc takes minutes (`slow`), x_gpu_test.cc a GPU (`gpu`).
function(segue_test NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  foreach(label IN ITEMS unit model slow gpu)
    set(chosen ${ARG_SOURCES})
    if(label STREQUAL unit)
      list(FILTER chosen EXCLUDE REGEX "_(model|slow|gpu)_test\\.cc$")
      set(target ${NAME}_test)
    else()
      list(FILTER chosen INCLUDE REGEX "_${label}_test\\.cc$")
      set(target ${NAME}_${label}_test)
    endif()
    if(chosen)
      add_executable(${target} ${chosen})
      target_link_libraries(${target} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
      target_compile_options(${target} PRIVATE ${SEGUE_WARNINGS} ${SEGUE_TEST_OPTIONS})
      if(TARGET test_headers)
        target_precompile_headers(${target} REUSE_FROM test_headers)
      endif()
      gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST PROPERTIES LABELS ${label} TIMEOUT 1200)
    endif()
  endforeach()
endfunction()

# segue_shareable(targets...): their objects also go into the shared library, which exports the public API only.
function(segue_shareable)
  set_target_properties(${ARGN} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                        CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# segue_library(NAME [SHAREABLE] DEPS libs...): every .cc of the folder but tests; headers are included as "folder/x.h".
function(segue_library NAME)
  cmake_parse_arguments(ARG "SHAREABLE" "" "DEPS;TEST_DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|\\.isa|/main)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    add_library(${NAME} STATIC ${sources})
    target_compile_options(${NAME} PRIVATE ${SEGUE_WARNINGS})
    target_include_directories(${NAME} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(${NAME} PUBLIC ${ARG_DEPS})
    if(ARG_SHAREABLE)
      segue_shareable(${NAME})
    endif()
  else()
    add_library(${NAME} INTERFACE)
    target_include_directories(${NAME} INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(${NAME} INTERFACE ${ARG_DEPS})
  endif()
  if(SEGUE_TESTS AND tests)
    segue_test(${NAME} SOURCES ${tests} DEPS ${NAME} ${ARG_TEST_DEPS})
  endif()
endfunction()

# The objects of every instruction level, for the check that none of them defines a weak symbol.
add_custom_target(isa_objects)

# segue_isa_library(NAME): compiles every *.isa.cc of the folder once per instruction level of this architecture, with
# -DISA=<level> (the namespace that holds the code), and adds the objects to library NAME.
function(segue_isa_library NAME)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.isa.cc)
  if(NOT sources)
    return()
  endif()
  set(flags_portable "")
  set(flags_avx2 -mavx2 -mfma -mf16c)
  set(flags_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16
                   -mprefer-vector-width=512)
  set(flags_neon -march=armv8.2-a+dotprod)
  set(levels portable)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND levels avx2 avx512)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    list(APPEND levels neon)
  endif()
  # g++ 12 takes the undefined pass-through operand inside its own AVX-512 intrinsics for a mistake.
  set(quiet "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-uninitialized>")
  foreach(level IN LISTS levels)
    add_library(${NAME}_${level} OBJECT ${sources})
    target_compile_definitions(${NAME}_${level} PRIVATE ISA=${level} ISA_${level})
    target_compile_options(${NAME}_${level} PRIVATE ${SEGUE_WARNINGS} "${quiet}" ${flags_${level}} -ffp-contract=off)
    target_include_directories(${NAME}_${level} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
    get_target_property(shareable ${NAME} POSITION_INDEPENDENT_CODE)
    if(shareable)
      segue_shareable(${NAME}_${level})
    endif()
    target_sources(${NAME} PRIVATE $<TARGET_OBJECTS:${NAME}_${level}>)
    add_dependencies(isa_objects ${NAME}_${level})
  endforeach()
endfunction()
