# Two commands: `make demo` to see it work, `make test` to check it. Both make the virtual environment they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check extras format bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[readers]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[dev]"
	@touch $@

demo: $(VENV)/.installed  ## build a knowledge base from examples/corpus and ask five questions
	$(BIN)/python examples/demo.py

test: check extras  ## everything: lint, types, tests
	$(BIN)/python -m pytest

extras: $(VENV)/.extras  ## each integration installed without the other's framework

$(VENV)/.extras: pyproject.toml constraints.txt | $(BIN)/python
	for extra in langchain llama-index; do \
		$(PYTHON) -m venv $(VENV)/$$extra && \
		$(VENV)/$$extra/bin/python -m pip install $(PIP_FLAGS) ".[$$extra]" && \
		$(VENV)/$$extra/bin/python -c "from `echo $$extra | tr - _`_kvpacket import *" && \
		rm -rf $(VENV)/$$extra || exit 1; \
	done
	@touch $@

check: $(VENV)/.installed-dev  ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[readers,bench]"
	@touch $@

bench: $(VENV)/.installed-bench  ## times and sizes on this machine, in about five minutes
	$(BIN)/kvpacket bench ttft --lengths 512,1024,2048,4096 --repeats 3
	$(BIN)/kvpacket bench decode --lengths 256,2048 --repeats 3
	$(BIN)/kvpacket bench build --lengths 256 --repeats 2
	$(BIN)/kvpacket bench store --sizes 1000,100000 --repeats 3
	$(BIN)/kvpacket bench load --clients 1,4 --questions 8

clean:
	rm -rf $(VENV) demo-kb bench-out build dist
