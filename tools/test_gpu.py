"""Everything that a machine with a GPU can show, in one report: `make test-gpu`.

Without a GPU it says so and ends well.
"""

import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "build" / "gpu-report.txt"
NO_GPU = "import sys, torch; sys.exit(torch.cuda.is_available())"


def main() -> int:
    if subprocess.run([sys.executable, "-c", NO_GPU], check=False).returncode == 0:
        print("test-gpu: torch finds no GPU here; nothing was run")
        return 0
    commands = [
        [str(ROOT / "build/release/bin/tensorbus"), "doctor", "--gpu"],
        [sys.executable, "-m", "pytest", "-q", "tests/device/test_gpu.py"],
    ]
    failed = 0
    with REPORT.open("w") as report:
        report.write(f"{platform.platform()}\n")
        for command in commands:
            report.write(f"\n$ {' '.join(command)}\n")
            done = subprocess.run(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                check=False,
            )  # fmt: skip
            report.write(done.stdout)
            failed += done.returncode != 0
    print(REPORT.read_text())
    print(f"test-gpu: this is in {REPORT}; please send it in, whatever it says")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
