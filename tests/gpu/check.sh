#!/usr/bin/env bash
# What only a machine with a GPU can show, in about five minutes on one GPU: see `python -m tests.gpu.check --help`.
# PYTHON names the interpreter (default: .venv/bin/python, else python3); all arguments are passed on.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || python=python3
export OMP_NUM_THREADS=1
exec "$python" -m tests.gpu.check "$@"
