# Everything a user types; `make help` lists it. Each variable below becomes an option of the command `testbed`.

TARGET  ?= cifarnet
FABRIC  ?=
SYSTEMS ?=
SEEDS   ?=
STEPS   ?=
PROFILE ?=
DEVICE  ?=
COMPUTE ?=
JOBS    ?=
SCALE   ?=
OUT     ?=
RUN     ?=
TRACE   ?=
TORCH   ?= torch==2.13.0
PYTHON  ?= python3

VENV    := .venv
BIN     := $(VENV)/bin
TESTBED := $(BIN)/testbed

options = $(if $(FABRIC),--fabric $(FABRIC)) $(if $(SYSTEMS),--systems "$(SYSTEMS)") $(if $(SEEDS),--seeds "$(SEEDS)") \
          $(if $(STEPS),--set training.steps=$(STEPS)) $(if $(PROFILE),--set topology.profile=$(PROFILE)) \
          $(if $(COMPUTE),--set compute.device=$(COMPUTE)) $(if $(SCALE),--scale $(SCALE)) \
          $(if $(DEVICE),--device $(DEVICE)) $(if $(JOBS),--jobs $(JOBS)) $(if $(OUT),--out "$(OUT)")

.PHONY: help setup setup-dev check test test-fast experiment replay plots report fidelity bench reference reference-systems docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "variables: TARGET FABRIC SYSTEMS SEEDS STEPS PROFILE DEVICE COMPUTE JOBS SCALE OUT RUN TRACE (and TORCH, PYTHON for setup)"
	@echo 'example:   make experiment TARGET=cifarnet SYSTEMS="baseline weightgrad" STEPS=50 OUT=/tmp/results'

setup: $(VENV)/.ready  ## make the virtual environment (quick when nothing changed)

setup-dev: $(VENV)/.ready-dev

# torch first, so that nothing else chooses its build; then the testbed with what emulation needs.
$(VENV)/.ready: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[emulation]'
	$(BIN)/python -c "import testbed.systems, testbed.codecs; testbed.codecs.warm_up()"  # compiles the kernels, once
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[emulation,tensorboard,docs,dev]'
	touch $@

check: setup-dev  ## ruff, mypy, and the one-way dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup-dev  ## the whole test suite
	$(BIN)/python -m pytest

test-fast: setup-dev  ## the unit tests alone, under 90 s
	$(BIN)/python -m pytest -m "not slow and not emulation"

experiment: setup  ## run TARGET and report on it: make experiment TARGET=cifarnet
	$(TESTBED) run $(TARGET) $(options)

replay: setup  ## run TARGET while its WAN follows TRACE: make replay TRACE=topologies/traces/outage.csv
	$(if $(TRACE),,$(error name the trace: make replay TARGET=cifarnet TRACE=topologies/traces/outage.csv))
	$(TESTBED) run $(TARGET) $(options) --trace "$(TRACE)"

plots: setup  ## draw a run's tables and plots again: make plots RUN=results/cifarnet/<run>
	$(if $(RUN),,$(error name the run: make plots RUN=results/cifarnet/<run>))
	$(TESTBED) plot "$(RUN)"

report: setup  ## write a run's report page, one HTML file: make report RUN=results/cifarnet/<run>
	$(if $(RUN),,$(error name the run: make report RUN=results/cifarnet/<run>))
	$(TESTBED) report "$(RUN)"

fidelity: setup  ## does the emulated network do what PROFILE says?
	$(TESTBED) fidelity $(or $(PROFILE),weightgrad-ec2) $(if $(OUT),--out "$(OUT)")

bench: setup  ## codecs against a copy, messages a second of the virtual fabric; on an idle machine
	$(TESTBED) bench codecs $(if $(OUT),--json "$(OUT)")
	$(BIN)/python benchmarks/messages.py
	$(BIN)/python benchmarks/messages.py --regions 11 --workers 46

reference: setup-dev  ## run cifarnet as it is and keep its report in results/reference/, README included
	rm -rf build/reference
	$(TESTBED) run cifarnet --fabric mininet --out build/reference
	mkdir -p results/reference/cifarnet
	cd build/reference/cifarnet/*/ && cp run.json summary.csv summary.md comparison.png $(CURDIR)/results/reference/cifarnet/
	$(BIN)/python -m pytest -q tests/test_readme.py --rewrite-golden

reference-systems: setup  ## every system, 400 steps, 3 seeds: the table in results/reference/systems
	rm -rf build/reference-systems
	$(TESTBED) run systems --out build/reference-systems
	mkdir -p results/reference/systems
	cd build/reference-systems/systems/*/ && cp run.json summary.csv summary.md comparison.png $(CURDIR)/results/reference/systems/
	$(TESTBED) bytes build/reference-systems/systems/*/ > results/reference/systems/bytes.md

docs: setup-dev  ## build the documentation's site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:  ## delete what killed runs left, caches and the virtual environment; results stay
	test ! -x $(TESTBED) || $(TESTBED) clean
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
