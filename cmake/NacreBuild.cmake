# How every part of Nacre is built: flags, compiler cache, precompiled header, and one function per kind of target.

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/ccache.sh)
endif()

find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(-Wall -Wextra -Werror -Wno-missing-field-initializers -fno-omit-frame-pointer -fPIC -pthread)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns falsely inside coroutine frames and inlined libstdc++ and Asio code.
  add_compile_options(-Wno-maybe-uninitialized -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow
                      -Wno-stringop-overread -Wno-dangling-pointer
                      $<$<COMPILE_LANGUAGE:CXX>:-Wno-mismatched-new-delete>
                      -fpch-preprocess)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
endif()
if(NACRE_SANITIZE)
  # Built cold more often than run: files are compiled together (names in the anonymous namespaces of one part are
  # different for this), and no further optimised than it pays.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG")
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
endif()
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  add_compile_options(-msse4.2)
endif()
if(NACRE_SANITIZE)
  add_compile_options(-fsanitize=${NACRE_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${NACRE_SANITIZE})
  if(NACRE_SANITIZE MATCHES thread)
    # Asio's fences guard nothing that its mutexes do not, and TSan does not understand them.
    add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND NACRE_SANITIZE MATCHES undefined)
    # Clang 14 cannot place this check's data beside split coroutines ("difference across sections").
    add_compile_options(-fno-sanitize=function)
  endif()
endif()

if(NACRE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # libFuzzer is led by the coverage of what it tests
endif()

find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(absl REQUIRED)
find_package(PkgConfig REQUIRED)

# Precompiled headers, one of three for every target: `base` made by nacre_common, `wire` with the messages made by
# nacre_rpc, `test` with GoogleTest made by nacre_test_support. What most files of a part include belongs here.
set(NACRE_PCH_base <boost/asio/any_io_executor.hpp> <boost/asio/dispatch.hpp>
    <boost/asio/io_context.hpp> <boost/asio/post.hpp>
    <absl/container/flat_hash_map.h> <absl/container/flat_hash_set.h> <absl/functional/any_invocable.h>
    <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>
    <algorithm> <atomic> <chrono> <deque> <functional> <list> <map> <memory> <mutex> <optional> <set> <span> <string>
    <string_view> <unordered_map> <vector>)
set(NACRE_PCH_wire ${NACRE_PCH_base} <proto/cluster.pb.h> <proto/metadata.pb.h> <proto/object.pb.h> <proto/types.pb.h>)
set(NACRE_PCH_test ${NACRE_PCH_wire} <gmock/gmock.h> <gtest/gtest.h>)
set(NACRE_PCH_MAKER_base nacre_common)
set(NACRE_PCH_MAKER_wire nacre_rpc)
set(NACRE_PCH_MAKER_test nacre_test_support)

# nacre_pch(NAME KIND): the target's precompiled header.
function(nacre_pch name kind)
  if(name STREQUAL NACRE_PCH_MAKER_${kind})
    target_precompile_headers(${name} PRIVATE ${NACRE_PCH_${kind}})
  else()
    target_precompile_headers(${name} REUSE_FROM ${NACRE_PCH_MAKER_${kind}})
  endif()
endfunction()

# nacre_library(NAME [DEPS lib...] [EXCLUDE file...] [PCH kind]): a static library of all .cc files of the current
# directory (and SUBDIRS), except programs.
function(nacre_library name)
  cmake_parse_arguments(ARG "" "PCH" "DEPS;SUBDIRS;EXCLUDE" ${ARGN})
  if(NOT ARG_PCH)
    set(ARG_PCH wire)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  foreach(program ${ARG_EXCLUDE})
    list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${program})
  endforeach()
  foreach(sub ${ARG_SUBDIRS})
    file(GLOB more CONFIGURE_DEPENDS ${sub}/*.cc)
    list(APPEND sources ${more})
  endforeach()
  if(NOT sources)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR})
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  nacre_pch(${name} ${ARG_PCH})
endfunction()

# nacre_unite(NAME COUNT): compiles the sources of a target together, COUNT in one file, but for those that have the
# property SKIP_UNITY_BUILD_INCLUSION. CMake's UNITY_BUILD names them by absolute paths, so that ccache would have a result
# of its own for each clone of the repository.
function(nacre_unite name count)
  get_target_property(all ${name} SOURCES)
  set(sources "")
  set(alone "")
  foreach(source ${all})
    get_source_file_property(is_alone ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(is_alone)
      list(APPEND alone ${source})
    else()
      list(APPEND sources ${source})
    endif()
  endforeach()
  list(LENGTH sources left)
  set(united "")
  while(left GREATER 0)
    list(SUBLIST sources 0 ${count} together)
    list(REMOVE_ITEM sources ${together})
    list(LENGTH sources left)
    set(content "")
    foreach(source ${together})
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
      string(APPEND content "#include \"${source}\"\n")
    endforeach()
    list(LENGTH united number)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_${number}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${content}" @ONLY)
    list(APPEND united ${file})
  endwhile()
  set_property(TARGET ${name} PROPERTY SOURCES ${united} ${alone})
endfunction()

# nacre_test_code(NAME): how the code of tests is compiled, which is half of all code and mostly instances of the same
# templates. Four files together take as long as one did, and -O2 would double that; the calls in tail position keep
# coroutines that resume each other from growing the stack. (GCC 12 warns falsely of lambdas in coroutines when the file
# that has them is included.)
function(nacre_test_code name)
  if(NACRE_SANITIZE)
    return()
  endif()
  target_compile_options(${name} PRIVATE -O1 -foptimize-sibling-calls -Wno-subobject-linkage)
  nacre_unite(${name} 4)
endfunction()

# nacre_test(DIR [DEPS lib...]): one test program of all *_test.cc of the current directory (and SUBDIRS).
function(nacre_test name)
  cmake_parse_arguments(ARG "" "" "DEPS;SUBDIRS;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  foreach(sub ${ARG_SUBDIRS})
    file(GLOB more CONFIGURE_DEPENDS ${sub}/*.cc)
    list(APPEND sources ${more})
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} nacre_test_support)
  nacre_pch(${name} test)
  nacre_test_code(${name})
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES LABELS "unit;${ARG_LABELS}" TIMEOUT 600)
endfunction()
