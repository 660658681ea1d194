# What others wrote: the system's shared libraries or, with TENSORBUS_STATIC, code that is linked in, so
# that what is built runs on machines that have none of them. Debian has no archives of some and none of
# LMDB that a shared object can hold: those are compiled from the sources that tools/setup has fetched,
# beside the installed headers of the same version. Their targets have the names of the shared ones.

find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
set(OPENSSL_USE_STATIC_LIBS ${TENSORBUS_STATIC})
find_package(OpenSSL REQUIRED COMPONENTS Crypto)

if(NOT TENSORBUS_STATIC)
  find_package(fmt REQUIRED)
  find_package(hwy REQUIRED)
  find_package(PkgConfig REQUIRED)
  # Through pkg-config, not by name: its structs change with macros that the library was built with.
  pkg_check_modules(CPP_HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
  return()
endif()

set(sources ${CMAKE_SOURCE_DIR}/.sources)
if(NOT EXISTS ${sources}/versions)
  message(FATAL_ERROR "TENSORBUS_STATIC needs the sources that tools/setup fetches")
endif()
set(TENSORBUS_OTHERS fmt hwy lmdb xxhash)
# For whom is linked with the C++ runtime's archive.
add_library(old_glibc OBJECT EXCLUDE_FROM_ALL cmake/old_glibc.c)
set(TENSORBUS_RUNTIME old_glibc)

add_library(fmt STATIC EXCLUDE_FROM_ALL ${sources}/fmtlib/src/format.cc)
add_library(fmt::fmt ALIAS fmt)
add_library(hwy STATIC EXCLUDE_FROM_ALL
  ${sources}/highway/hwy/targets.cc ${sources}/highway/hwy/per_target.cc)
target_include_directories(hwy PRIVATE ${sources}/highway)  # it includes itself, per processor
add_library(hwy::hwy ALIAS hwy)
add_library(lmdb STATIC EXCLUDE_FROM_ALL
  ${sources}/lmdb/libraries/liblmdb/mdb.c ${sources}/lmdb/libraries/liblmdb/midl.c)
target_link_libraries(lmdb PUBLIC Threads::Threads)
# Its header holds its source.
file(CONFIGURE OUTPUT others/xxhash.c CONTENT "#include <xxhash.h>\n")
add_library(xxhash STATIC EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/others/xxhash.c)
target_compile_definitions(xxhash PRIVATE XXH_STATIC_LINKING_ONLY XXH_IMPLEMENTATION)
foreach(other IN LISTS TENSORBUS_OTHERS)
  set_target_properties(${other} PROPERTIES C_VISIBILITY_PRESET hidden)
  target_compile_options(${other} PRIVATE -w)
endforeach()

add_library(cpp_httplib INTERFACE)
add_library(PkgConfig::CPP_HTTPLIB ALIAS cpp_httplib)
target_include_directories(cpp_httplib SYSTEM INTERFACE ${sources}/cpp-httplib)
# As Debian builds it: select() cannot wait for descriptors beyond 1,023.
target_compile_definitions(cpp_httplib INTERFACE CPPHTTPLIB_USE_POLL)
