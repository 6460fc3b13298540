# SPDX-License-Identifier: Apache-2.0
# make demo: real OCR models compiled, checked against ONNX Runtime and timed; make test: every check.

PYTHON ?= python3
VENV ?= .venv
# One process a core; PYTEST_ARGS="-m 'not slow'" leaves the whole models out.
PYTEST_ARGS ?= -n auto
BIN := $(VENV)/bin

.PHONY: demo test lint clean

demo: $(VENV)/installed
	$(BIN)/python -m autotir_dlight.benchmark.demo

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[onnx,tune,dev]'
	touch $@

clean:
	rm -rf $(VENV) demo-output build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
