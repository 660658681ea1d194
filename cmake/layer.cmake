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

# What the wheel holds of the SDK lies in the package; `cmake --install` puts it where it belongs.
set(TENSORBUS_SDK_FOLDER "")
if(SKBUILD)
  set(TENSORBUS_SDK_FOLDER tensorbus/sdk/)
endif()

# The library for users of C++, with the public headers only: every layer in one shared object or, with
# what others wrote, in one archive, whose code uses the C++ runtime of the program that links it.
function(tensorbus_library)
  set(libraries "")
  foreach(layer IN LISTS TENSORBUS_LAYERS)
    list(APPEND libraries ${TENSORBUS_LIBRARIES_${layer}})
  endforeach()
  list(REMOVE_DUPLICATES libraries)
  if(TENSORBUS_STATIC)
    tensorbus_archive()
  else()
    tensorbus_shared_object(${libraries})
  endif()
  tensorbus_install_sdk()
endfunction()

function(tensorbus_shared_object)
  list(TRANSFORM TENSORBUS_LAYERS REPLACE "(.+)" "$<TARGET_OBJECTS:tensorbus_\\1>"
    OUTPUT_VARIABLE objects)
  add_library(tensorbus SHARED ${objects})
  target_link_libraries(tensorbus PRIVATE ${ARGN})
  # Not what the compiler made of templates of others, either.
  set(exports ${CMAKE_SOURCE_DIR}/cmake/exports.map)
  target_link_options(tensorbus PRIVATE -Wl,--version-script=${exports})
  set_target_properties(tensorbus PROPERTIES LINK_DEPENDS ${exports}
    LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  if(TENSORBUS_SANITIZE)
    target_link_options(tensorbus PRIVATE -fsanitize=${TENSORBUS_SANITIZE})
  endif()
  install(TARGETS tensorbus
    LIBRARY DESTINATION ${TENSORBUS_SDK_FOLDER}${CMAKE_INSTALL_LIBDIR} COMPONENT sdk)
  set(TENSORBUS_LIBRARY_KIND SHARED PARENT_SCOPE)
  set(TENSORBUS_LIBRARY_FILE libtensorbus.so PARENT_SCOPE)
endfunction()

# One object, in which all but our public symbols are local: a program may have another fmt or OpenSSL.
# Without groups, of which the linker would keep the program's and drop ours.
function(tensorbus_archive)
  set(layers ${TENSORBUS_LAYERS})
  list(TRANSFORM layers PREPEND tensorbus_)
  list(TRANSFORM layers REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE own)
  list(TRANSFORM TENSORBUS_OTHERS REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE others)
  set(object ${CMAKE_BINARY_DIR}/tensorbus.o)
  set(archive ${CMAKE_BINARY_DIR}/libtensorbus.a)
  set(symbols ${CMAKE_SOURCE_DIR}/cmake/public.symbols)
  add_custom_command(OUTPUT ${archive} VERBATIM
    DEPENDS ${layers} ${TENSORBUS_OTHERS} ${symbols}
    COMMENT "Making libtensorbus.a"
    COMMAND ${CMAKE_CXX_COMPILER} -r -nostdlib -Wl,--force-group-allocation,-d -o ${object}
      -Wl,--whole-archive ${own} -Wl,--no-whole-archive
      ${others} $<TARGET_FILE:OpenSSL::Crypto>
    COMMAND ${CMAKE_OBJCOPY} --strip-debug --localize-hidden
      --wildcard --keep-global-symbols=${symbols} ${object}
    COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
    COMMAND ${CMAKE_AR} qcsD ${archive} ${object})
  add_custom_target(tensorbus ALL DEPENDS ${archive})
  install(FILES ${archive}
    DESTINATION ${TENSORBUS_SDK_FOLDER}${CMAKE_INSTALL_LIBDIR} COMPONENT sdk)
  set(TENSORBUS_LIBRARY_KIND STATIC PARENT_SCOPE)
  set(TENSORBUS_LIBRARY_FILE libtensorbus.a PARENT_SCOPE)
endfunction()

function(tensorbus_install_sdk)
  set(package ${TENSORBUS_SDK_FOLDER}${CMAKE_INSTALL_LIBDIR}/cmake/tensorbus)
  include(CMakePackageConfigHelpers)
  configure_package_config_file(cmake/tensorbus-config.cmake.in tensorbus-config.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tensorbus
    PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/tensorbus-config-version.cmake
    COMPATIBILITY SameMinorVersion)
  install(DIRECTORY include/tensorbus
    DESTINATION ${TENSORBUS_SDK_FOLDER}${CMAKE_INSTALL_INCLUDEDIR} COMPONENT sdk)
  install(FILES ${CMAKE_BINARY_DIR}/tensorbus-config.cmake
    ${CMAKE_BINARY_DIR}/tensorbus-config-version.cmake DESTINATION ${package} COMPONENT sdk)
endfunction()
