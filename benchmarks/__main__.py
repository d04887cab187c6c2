"""`make bench`: run every benchmark, one after another; each prints its own table.

    python -m benchmarks [NAME ...]
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main() -> int:
    """Run the named benchmarks, all without a name, and return 1 when one of them failed."""
    known = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    wanted = sys.argv[1:] or known
    unknown = [name for name in wanted if importlib.util.find_spec(f"benchmarks.{name}") is None]
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}\n")
        return 2
    failed = []
    for name in wanted:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=FOLDER.parent, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
