"""Where projects in C++ find the library, its headers and its CMake package."""

from pathlib import Path

_SDK = Path(__file__).parent / "sdk"


def include_dir() -> str:
    """The folder of ``tensorbus/*.h``."""
    return _in_sdk("include")


def cmake_dir() -> str:
    """For ``find_package(tensorbus)``: what ``tensorbus_DIR`` is to be set to."""
    return _in_sdk("lib/cmake/tensorbus")


def _in_sdk(folder: str) -> str:
    path = _SDK / folder
    if not path.is_dir():
        raise RuntimeError(
            f"there is no {path}: a working copy holds no library for C++. Install the wheel "
            "(make wheel), or run: cmake --install build/release --prefix PREFIX"
        )
    return str(path)
