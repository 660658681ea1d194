"""``python -m tensorbus.fserver script.py [args]``: runs a script that says ``import fserver_lib``
(or ``import fserver``, where ``fserver.f`` is the library) against this library, unchanged.

With ``TENSORBUS_CUDA_SHIM=1`` also scripts that put their tensors on ``cuda``.
"""

from __future__ import annotations

import os
import runpy
import sys
import types
from pathlib import Path

import tensorbus.fserver
from tensorbus.extras import need


def install() -> None:
    """Makes the other library's names lead here."""
    sys.modules["fserver_lib"] = tensorbus.fserver
    package = types.ModuleType("fserver", tensorbus.fserver.__doc__)
    package.__dict__.update(f=tensorbus.fserver, __path__=[])
    sys.modules["fserver"] = package
    if os.environ.get("TENSORBUS_CUDA_SHIM") == "1":
        need("torch", "TENSORBUS_CUDA_SHIM")
        from tensorbus.fserver import cuda_shim

        cuda_shim.install()


def main() -> None:
    if len(sys.argv) < 2:
        print("usage: python -m tensorbus.fserver script.py [args]", file=sys.stderr)
        sys.exit(2)
    script = sys.argv[1]
    if script in ("-h", "--help"):
        print(__doc__)
        return
    if not Path(script).is_file():
        sys.exit(f"tensorbus.fserver: there is no script {script}")
    install()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
