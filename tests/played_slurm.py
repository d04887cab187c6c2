"""A Slurm of four scripts with a limit on submitted components, for sweeps; every job waits until `end` is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.launch import submitting
from holmes_hpc.runs import RunFolder, write_result
from holmes_hpc.submit import job, live, watch

SBATCH = """\
#!/bin/sh
cd {slurm}
for last; do :; done
size=$(grep -c '#SBATCH hetjob' "$last"); size=$((size + 1))
array=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$last")
[ -n "$array" ] && size=$((array + 1))
used=$(cat active/* 2>/dev/null | awk '{{ total += $1 }} END {{ print total + 0 }}')
limit=$(cat limit)
if [ $((used + size)) -gt $limit ]; then
  echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1
fi
number=$(($(cat number) + 1)); echo $number > number
sed -n 's/^#SBATCH --dependency=//p' "$last" > waits/$number
echo $size > active/$number
for task in $(seq 0 ${{array:-0}}); do
  [ -n "$array" ] && id=${{number}}_$task || id=$number
  echo "$id|$number|PENDING|ib||Priority|x" > jobs/$id
done
echo "$number|$last" >> commands
cp "$last" scripts/$number
[ -e lose ] && {{ rm lose; kill -INT $PPID; sleep 5; }}
echo $number
"""
SQUEUE = """\
#!/bin/sh
cd {slurm}
case "$*" in
  *"%o"*) cat commands 2>/dev/null;;
  *"%E"*) for job in $(ls active); do
      for path in jobs/$job jobs/${{job}}_*; do
        [ ! -e $path ] || echo "$(cut -d'|' -f1,3 $path)|$(cat waits/$job)"
      done
    done;;
  *"--format=%i") ls active;;
  *) echo "JOBID|JOBID|STATE|PARTITION|NODELIST|REASON|NAME"; cat jobs/* 2>/dev/null;;
esac
"""
SCONTROL = """\
#!/bin/sh
cd {slurm}
[ "$1" = requeue ] && {{ echo "$*" >> requeued; exit $(cat refused 2>/dev/null || echo 0); }}
[ "$1" = update ] || {{ echo 'MaxArraySize = 1001'; exit; }}
echo "$*" >> updates
for word; do
  case $word in JobId=*) job=${{word#JobId=}};; Dependency=*) echo "${{word#Dependency=}}" > waits/$job;; esac
done
"""
SCANCEL = """\
#!/bin/sh
cd {slurm}
echo "$*" >> cancelled
for id; do sed -i 's/PENDING\\|RUNNING/CANCELLED/' jobs/$id; rm -f active/${{id%_*}}; done
"""


def play_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put its programs before others, and return its folder; `limit` there holds how many components it takes."""
    folder = tmp_path / "slurm"
    for name in ("active", "jobs", "scripts", "bin", "waits"):
        (folder / name).mkdir(parents=True)
    (folder / "limit").write_text("1000")
    (folder / "number").write_text("0")
    (folder / "commands").touch()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL), ("sacct", "#!/bin/sh\nexit 1\n"),
                       ("scontrol", SCONTROL),
                       ("sinfo", "#!/bin/sh\nprintf 'ib\\nroce\\nethernet\\n'\n")):
        (folder / "bin" / name).write_text(text.format(slurm=folder))
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "check_submission", lambda config: None)
    monkeypatch.setattr(submitting, "plan_for_job", lambda config, cluster: Any)
    monkeypatch.setattr(submitting, "make_folder", _folder)
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watch, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(submitting, "ROOM_SECONDS", 0.0)
    return folder


def _folder(config: Any, chosen: Any) -> RunFolder:
    from omegaconf import OmegaConf

    return RunFolder.create(Path(config.run.folder), config.cluster.name, {"config.yaml": OmegaConf.to_yaml(config)})


def end(slurm: Path, number: int, status: str = "completed") -> None:
    """Let a job end, its runs with this status."""
    for path in (slurm / "jobs").glob(f"{number}*"):
        if path.name.partition("_")[0] == str(number):
            state = "COMPLETED" if status == "completed" else "FAILED"
            path.write_text(path.read_text().replace("PENDING", state))
            for kept in slurm.parent.glob("runs/*/2*/job.json"):
                if json.loads(kept.read_text())["job_id"] == path.name:
                    write_result(RunFolder(kept.parent), status, error=None, emulated=False)
    (slurm / "active" / str(number)).unlink(missing_ok=True)


def configs(count: int, cluster: str = "mixed", *overrides: str) -> tuple[list[Any], list[str]]:
    words = [f"+cluster={cluster} train.seed={seed}" for seed in range(count)]
    return [compose([*word.split(), *overrides]) for word in words], words


def submitted_jobs(slurm: Path) -> list[str]:
    return [line.partition("|")[0] for line in (slurm / "commands").read_text().splitlines()]


def ending_as_they_come(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the oldest job end at every look of who follows."""
    def sleep(seconds: float) -> None:
        active = sorted(int(path.name) for path in (slurm / "active").iterdir())
        if active:
            end(slurm, active[0])

    monkeypatch.setattr(live, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))


def shown(place: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-m", "holmes_hpc.jobs", str(place)], text=True, capture_output=True,
                          check=True)
    return done.stdout.splitlines()[1:]
