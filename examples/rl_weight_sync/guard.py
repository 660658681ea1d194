"""Runs a command until our standard input is closed, by whatever: for programs that do not look.

python guard.py COMMAND ...
"""

import os
import subprocess
import sys


def main() -> None:
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    os.read(0, 1)
    command.terminate()
    sys.exit(command.wait())


if __name__ == "__main__":
    main()
