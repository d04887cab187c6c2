# `make help` says what there is. ARGS goes to the command, PIP_ARGS to pip, PYTHON names the interpreter of .venv.
SHELL := bash
PY := .venv/bin/python
export OMP_NUM_THREADS := 1

.PHONY: help train test bench lint
.DEFAULT_GOAL := help

help:
	@echo 'make train [ARGS="parallel=holmes train.steps=200"]  train on the cluster `mixed`: emulated where there is no Slurm'
	@echo 'make test  [ARGS="-k plan"]                          the tests that CI runs'
	@echo 'make bench [ARGS=...]                                the longer measurements'
	@echo 'make lint                                            ruff and mypy'
	@echo
	@echo 'Each first makes .venv (again after a change of pyproject.toml or constraints.txt).'
	@echo 'PIP_ARGS="--extra-index-url URL" adds an index with builds of torch for CPUs alone; PYTHON=python3.12 names a Python.'

.venv/prepared: pyproject.toml constraints.txt
	@PIP_ARGS='$(PIP_ARGS)' PYTHON='$(PYTHON)' tools/prepare.sh

train: .venv/prepared
	@$(PY) -m holmes_hpc.train +cluster=mixed $(ARGS)

test: .venv/prepared
	@$(PY) -m pytest -m 'not bench' -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

bench: .venv/prepared
	@$(PY) -m benchmarks $(ARGS)

lint: .venv/prepared
	@$(PY) -m ruff check .
	@$(PY) -m mypy
