"""What a job came to, for its batch script: prints one line and exits with the run's status.

    python -m holmes_hpc.submit.outcome RUN_FOLDER STATUS_OF_SRUN

0 completed, 1 failed, 3 preempted (the script then requeues). A run whose ranks wrote no result failed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holmes_hpc.runs import RunFolder, read_result, write_result

STATUS = {"completed": 0, "failed": 1, "preempted": 3}


def main(arguments: list[str]) -> int:
    """Return the status of the run in the folder `arguments[0]` whose step ended with the status `arguments[1]`."""
    folder, step_status = RunFolder(Path(arguments[0])), arguments[1]
    result = read_result(folder)
    if result is None:
        error = f"the ranks ended without writing a result (srun's status: {step_status}); see {folder.logs}"
        write_result(folder, "failed", error=error, emulated=False)
        sys.stdout.write(f"failed: {error}\n")
        return 1
    sys.stdout.write(f"{result['status']}" + (f": {result['error']}" if result.get("error") else "") + "\n")
    return STATUS.get(str(result["status"]), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
