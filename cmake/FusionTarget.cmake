# Functions that every folder's CMakeLists.txt uses, so that warnings, sanitizers and include rules are said once.

add_library(fusion_flags INTERFACE)
target_compile_options(fusion_flags INTERFACE -Wall -Wextra -Werror -ffp-contract=off)
target_include_directories(fusion_flags INTERFACE ${CMAKE_SOURCE_DIR})
if(FUSION_SANITIZE)
  target_compile_options(fusion_flags INTERFACE -fsanitize=${FUSION_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(fusion_flags INTERFACE -fsanitize=${FUSION_SANITIZE})
endif()
if(FUSION_FUZZ)
  # Coverage of the libraries too: without it a fuzzer sees only its own few lines.
  target_compile_options(fusion_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(FUSION_SANITIZE MATCHES thread)
  # With this macro protobuf's map fields get members that Debian's library was compiled without.
  target_compile_options(fusion_flags INTERFACE -U__SANITIZE_THREAD__)
endif()
# Linked into every program: see the file.
add_library(fusion_sanitizer INTERFACE)
if(FUSION_SANITIZE MATCHES thread)
  add_library(fusion_tsan OBJECT ${CMAKE_CURRENT_LIST_DIR}/tsan.cc)
  target_link_libraries(fusion_tsan PRIVATE fusion_flags)
  target_sources(fusion_sanitizer INTERFACE $<TARGET_OBJECTS:fusion_tsan>)
  target_link_libraries(fusion_sanitizer INTERFACE absl::synchronization ${CMAKE_DL_LIBS})
endif()
find_program(MOLD mold)
if(MOLD)
  target_link_options(fusion_flags INTERFACE -fuse-ld=mold)
endif()

# fusion_add_to(GROUP TARGET): the target GROUP, made here if need be, builds TARGET.
function(fusion_add_to group target)
  if(NOT TARGET ${group})
    add_custom_target(${group})
  endif()
  add_dependencies(${group} ${target})
endfunction()

# fusion_library(NAME SOURCES … [DEPS …]): static library fusion_NAME. Includes are written from the repository root.
function(fusion_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(fusion_${name} STATIC ${ARG_SOURCES})
  set_target_properties(fusion_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(fusion_${name} PUBLIC fusion_flags ${ARG_DEPS})
endfunction()

# fusion_binary(NAME SOURCES … [DEPS …]): program build/bin/NAME.
function(fusion_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE fusion_flags fusion_sanitizer ${ARG_DEPS})
endfunction()

# fusion_test(NAME SOURCES … [DEPS …] [LABEL …] [TIMEOUT seconds] [THREADS]): a GoogleTest program whose cases ctest sees one by
# one. With the label `serial` they run alone: they measure time. Targets unit_tests and, of those with THREADS, thread_tests build
# what the sanitizers run; a label may not be a list (gtest_discover_tests), so theirs is unit-threads.
function(fusion_test name)
  cmake_parse_arguments(ARG "THREADS" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
    fusion_add_to(unit_tests ${name})
    if(ARG_THREADS)
      set(ARG_LABEL unit-threads)
      fusion_add_to(thread_tests ${name})
    endif()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE fusion_flags fusion_sanitizer ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE FUSION_SOURCE_DIR="${CMAKE_SOURCE_DIR}" FUSION_BINARY_DIR="${CMAKE_BINARY_DIR}")
  if(FUSION_SANITIZE)
    target_compile_definitions(${name} PRIVATE FUSION_SANITIZED)  # see tests/support/random_cases.h
  endif()
  set(alone FALSE)
  if(ARG_LABEL STREQUAL serial)
    set(alone TRUE)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABEL} RUN_SERIAL ${alone})
endfunction()

# fusion_fuzzer(NAME SOURCES … [DEPS …]): a libFuzzer program build/bin/FOLDER_NAME, so that folders need not know each other's
# names (worker/checkpoint's manifest_fuzzer is worker_checkpoint_manifest_fuzzer); only with -DFUSION_FUZZ=ON and clang.
function(fusion_fuzzer name)
  if(NOT FUSION_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(MAKE_C_IDENTIFIER "${folder}_${name}" program)
  add_executable(${program} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  fusion_add_to(fuzzers ${program})
  target_link_options(${program} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${program} PRIVATE fusion_flags ${ARG_DEPS})
endfunction()
