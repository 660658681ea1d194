# A layer is a folder of src/, alone or with rooms: a static library of its sources, one of what its
# tests share (the rooms that TESTING names), and a test program of its *_test.cc.

set(TENSORBUS_LAYERS "")
# Every test program, and nothing that only users need.
add_custom_target(unit_tests)

add_library(tensorbus_options INTERFACE)
# GCC 12 at -O3 sees overlaps in sums of strings that are not there, and takes the unused alternatives
# of a variant for uninitialised.
target_compile_options(tensorbus_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-maybe-uninitialized>
  $<$<BOOL:${TENSORBUS_WERROR}>:-Werror>)
if(TENSORBUS_SANITIZE)
  target_compile_options(tensorbus_options INTERFACE
    -fsanitize=${TENSORBUS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tensorbus_options INTERFACE -fsanitize=${TENSORBUS_SANITIZE})
  if(TENSORBUS_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # ThreadSanitizer does not model the fences of rings and gates, and gcc says so at each.
    target_compile_options(tensorbus_options INTERFACE -Wno-tsan)
  endif()
endif()

# A room at a time: most of a file's time goes into headers that its neighbours read, too. By room and not
# by number, so that a new file never meets strangers.
function(tensorbus_unite target)
  if(TENSORBUS_UNITE)
    # Relocatable: without paths of this machine, so that the cache serves other clones.
    set_target_properties(${target} PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_MODE GROUP UNITY_BUILD_RELOCATABLE ON)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
      cmake_path(GET source PARENT_PATH room)
      cmake_path(GET room FILENAME room)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${room})
    endforeach()
    # A class of a source file looks like one of a header then.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

function(tensorbus_layer name)
  cmake_parse_arguments(LAYER "" "EXCLUDE" "USES;LIBRARIES;TESTING" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/${name}/*.cc)
  if(LAYER_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${LAYER_EXCLUDE}")
  endif()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(shared "")
  foreach(room IN LISTS LAYER_TESTING)
    set(room_sources ${sources})
    list(FILTER room_sources INCLUDE REGEX "/src/${name}/${room}/")
    list(FILTER sources EXCLUDE REGEX "/src/${name}/${room}/")
    list(APPEND shared ${room_sources})
  endforeach()
  set(shared_uses ${LAYER_USES})
  list(TRANSFORM shared_uses PREPEND tensorbus_)
  list(TRANSFORM shared_uses APPEND _testing)
  list(TRANSFORM LAYER_USES PREPEND tensorbus_)

  add_library(tensorbus_${name} STATIC ${sources})
  tensorbus_unite(tensorbus_${name})
  target_include_directories(tensorbus_${name}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
           $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/src>)
  target_link_libraries(tensorbus_${name}
    PUBLIC ${LAYER_USES} ${LAYER_LIBRARIES} PRIVATE tensorbus_options)
  if(TENSORBUS_SANITIZE)
    target_link_options(tensorbus_${name} PUBLIC -fsanitize=${TENSORBUS_SANITIZE})
  endif()

  if(shared)
    add_library(tensorbus_${name}_testing STATIC EXCLUDE_FROM_ALL ${shared})
    tensorbus_unite(tensorbus_${name}_testing)
    target_link_libraries(tensorbus_${name}_testing
      PUBLIC tensorbus_${name} ${shared_uses} PRIVATE tensorbus_options)
  else()
    add_library(tensorbus_${name}_testing INTERFACE)
    target_link_libraries(tensorbus_${name}_testing INTERFACE tensorbus_${name} ${shared_uses})
  endif()

  if(TENSORBUS_TESTS AND tests)
    add_executable(${name}_test ${tests})
    tensorbus_unite(${name}_test)
    target_link_libraries(${name}_test PRIVATE
      tensorbus_${name}_testing tensorbus_options GTest::gmock GTest::gtest_main)
    if(TENSORBUS_SANITIZE)
      target_compile_options(${name}_test PRIVATE -O0)  # tests compile longer than they run
    endif()
    add_dependencies(unit_tests ${name}_test)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}: " DISCOVERY_MODE PRE_TEST
      DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS ${name})
  endif()
  set(TENSORBUS_LAYERS ${TENSORBUS_LAYERS} ${name} PARENT_SCOPE)
  set(TENSORBUS_LIBRARIES_${name} ${LAYER_LIBRARIES} PARENT_SCOPE)
endfunction()

# The installed library: every layer in one shared object, with the public headers only.
function(tensorbus_library)
  set(objects "")
  set(libraries "")
  foreach(layer IN LISTS TENSORBUS_LAYERS)
    list(APPEND objects $<TARGET_OBJECTS:tensorbus_${layer}>)
    list(APPEND libraries ${TENSORBUS_LIBRARIES_${layer}})
  endforeach()
  list(REMOVE_DUPLICATES libraries)
  add_library(tensorbus SHARED ${objects})
  target_link_libraries(tensorbus PRIVATE ${libraries})
  # Not what the compiler made of templates of others, either.
  set(exports ${CMAKE_SOURCE_DIR}/cmake/exports.map)
  target_link_options(tensorbus PRIVATE -Wl,--version-script=${exports})
  set_target_properties(tensorbus PROPERTIES LINK_DEPENDS ${exports})
  target_include_directories(tensorbus PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(tensorbus PUBLIC cxx_std_20)
  set_target_properties(tensorbus PROPERTIES
    LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  if(TENSORBUS_SANITIZE)
    target_link_options(tensorbus PRIVATE -fsanitize=${TENSORBUS_SANITIZE})
  endif()

  install(TARGETS tensorbus EXPORT tensorbus-targets COMPONENT sdk)
  install(DIRECTORY include/tensorbus DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT sdk)
  install(EXPORT tensorbus-targets NAMESPACE tensorbus:: FILE tensorbus-config.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tensorbus COMPONENT sdk)
  include(CMakePackageConfigHelpers)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/tensorbus-config-version.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/tensorbus-config-version.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tensorbus COMPONENT sdk)
endfunction()
