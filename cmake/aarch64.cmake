# Builds for aarch64 on another machine: Debian's g++-aarch64-linux-gnu, what tools/aarch64_root has
# unpacked, and qemu-user for what runs. Headers that are the same everywhere are the machine's own.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-root ABSOLUTE)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${root})
set(CMAKE_FIND_ROOT_PATH ${root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)

set(libraries ${root}/usr/lib/aarch64-linux-gnu)
set(OPENSSL_INCLUDE_DIR ${root}/usr/include)
set(OPENSSL_CRYPTO_LIBRARY ${libraries}/libcrypto.a)
set(GTest_DIR ${libraries}/cmake/GTest)
set(ucx_DIR ${libraries}/cmake/ucx)
# The interpreter is the machine's own, and only tells where nanobind is.
set(Python_INCLUDE_DIR ${root}/usr/include/python3.11)
set(SKBUILD_SOABI cpython-311-aarch64-linux-gnu)  # what nanobind asks for first
include_directories(SYSTEM ${root}/usr/include/aarch64-linux-gnu)
