# Everything a user types; `make help` lists it. Each variable below becomes an option of the command `testbed`.

VARIABLES := TARGET FABRIC SYSTEMS SEEDS STEPS PROFILE DEVICE COMPUTE JOBS SCALE OUT RUN TRACE FAULT BUDGET PART LABEL
OTHERS    := TORCH PYTHON PAPERS WORKLOADS
# They are given on make's own command line: an OUT or a DEVICE of the environment may be about something else.
$(foreach name,$(VARIABLES),$(if $(filter environment,$(origin $(name))),$(eval undefine $(name))))
TARGET    ?= cifarnet
TORCH     ?= torch==2.13.0
PYTHON    ?= python3

# A variable of the command line that is none of these would change nothing, without a word.
given   := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
unknown := $(firstword $(filter-out $(VARIABLES) $(OTHERS),$(given)))
nearest  = import sys, difflib; print(*difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1))
ifneq ($(unknown),)
meant   := $(shell $(PYTHON) -c '$(nearest)' '$(unknown)' $(VARIABLES) $(OTHERS))
$(error unknown variable $(unknown)$(if $(meant),; did you mean $(meant)?) known: $(VARIABLES) $(OTHERS))
endif

VENV    := .venv
BIN     := $(VENV)/bin
TESTBED := $(BIN)/testbed

options = $(if $(FABRIC),--fabric $(FABRIC)) $(if $(SYSTEMS),--systems "$(SYSTEMS)") $(if $(SEEDS),--seeds "$(SEEDS)") \
          $(if $(STEPS),--set training.steps=$(STEPS)) $(if $(PROFILE),--set topology.profile=$(PROFILE)) \
          $(if $(COMPUTE),--set compute.device=$(COMPUTE)) $(if $(SCALE),--scale $(SCALE)) \
          $(if $(DEVICE),--device $(DEVICE)) $(if $(JOBS),--jobs $(JOBS)) $(if $(OUT),--out "$(OUT)") \
          $(if $(FAULT),--fault "$(FAULT)") $(if $(TRACE),--trace "$(TRACE)")

.PHONY: gpu reference-gpu-counts reference-own reference-own-ablations reference-own-ablations-iid reference-own-ablations-dirichlet reference-own-ablations-h100 reference-own-emulated reference-own-gemm reference-late-answers reference-reports help setup setup-dev check test test-fast test-all test-rest experiment replay plots report fidelity bench reference reference-systems reference-tuning reference-tuned reference-faults reference-faults-emulated reference-long reference-gpt reference-gpt-diloco reference-sensitivity reference-validation reference-scale reference-endurance reference-startup reference-cluster reference-terngrad-scaling reference-terngrad-histograms reference-threshold-figures reference-isgq-figures reference-isgq-forms reference-papers reference-codecs reference-paper-scale docs wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-26s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "variables: $(VARIABLES) (and $(OTHERS))"
	@echo 'example:   make experiment TARGET=cifarnet SYSTEMS="baseline weightgrad" STEPS=50 OUT=/tmp/results'

setup: $(VENV)/.ready  ## make the virtual environment (quick when nothing changed)

setup-dev: $(VENV)/.ready-dev

# torch first, so that nothing else chooses its build; then the testbed with what emulation needs.
$(VENV)/.ready: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -P -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -P -m pip install --quiet --disable-pip-version-check -e '.[emulation]'
	$(BIN)/python -P -c "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); import testbed.systems, testbed.codecs; testbed.codecs.warm_up()"  # compiles the kernels, once
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -P -m pip install --quiet --disable-pip-version-check -e '.[emulation,tensorboard,docs,dev]'
	touch $@

check: setup-dev  ## ruff, mypy, and the one-way dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

ON_ALL_CORES := -n logical --maxprocesses 8 --dist worksteal
PYTEST       := $(BIN)/python -P -m pytest

# A network that is measured needs the machine's attention at the right millisecond; where the machine was elsewhere, a test
# gets a second try, and the summary says so (R).
ONCE_MORE    := --reruns 1 -raR

# Tests start many processes; without bytecode on disk each of them would compile the package anew.
test test-fast test-rest: export PYTHONDONTWRITEBYTECODE :=

# What builds networks measures them, and has the machine to itself; the rest shares all cores.
test: test-fast  ## the tests but the longest, with real emulated runs: some fifteen minutes on two idle cores
	$(PYTEST) -m "slow and not full and not emulation" $(ON_ALL_CORES)
	$(PYTEST) -m "emulation and not full" $(ONCE_MORE)

test-fast: setup-dev  ## those that are neither slow nor emulate a network: under two minutes on two idle cores
	$(PYTEST) -m "not slow and not emulation" $(ON_ALL_CORES)

test-all: test test-rest  ## every test, `make test` and then the rest: some 50 minutes on two idle cores

test-rest: setup-dev
	$(PYTEST) -m "full and not emulation" $(ON_ALL_CORES)
	$(PYTEST) -m "full and emulation" $(ONCE_MORE)

experiment: setup  ## run TARGET and report on it: make experiment TARGET=cifarnet
	$(TESTBED) run $(TARGET) $(options)

replay: setup  ## run TARGET while its WAN follows TRACE: make replay TRACE=topologies/traces/outage.csv
	$(if $(TRACE),,$(error name the trace: make replay TARGET=cifarnet TRACE=topologies/traces/outage.csv))
	$(TESTBED) run $(TARGET) $(options)

plots: setup  ## draw a run's tables and plots again: make plots RUN=results/cifarnet/<run>
	$(if $(RUN),,$(error name the run: make plots RUN=results/cifarnet/<run>))
	$(TESTBED) plot "$(RUN)"

report: setup  ## write a run's report page, one HTML file: make report RUN=results/cifarnet/<run>
	$(if $(RUN),,$(error name the run: make report RUN=results/cifarnet/<run>))
	$(TESTBED) report "$(RUN)"

fidelity: setup  ## does the emulated network do what PROFILE says?
	$(TESTBED) fidelity $(or $(PROFILE),weightgrad-ec2) $(if $(OUT),--out "$(OUT)")

# With whatever Python has torch with CUDA: of a training image, say, in which nothing is installed: make gpu PYTHON=python3
GPU_PYTHON := $(if $(filter command,$(firstword $(origin PYTHON))),$(PYTHON),$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)))

gpu:  ## all there is to check and to time on a GPU, then the paper's 50,000 steps as far as BUDGET goes; again to go on
	@$(GPU_PYTHON) -P -c 'import sys; sys.path.insert(0, "$(CURDIR)"); from testbed.cli import main; sys.exit(main(sys.argv[1:]))' \
	    bench gpu --budget $(or $(BUDGET),8m) $(PART:%=--part %) $(if $(DEVICE),--device $(DEVICE)) $(if $(OUT),--out "$(OUT)")

bench: setup  ## codecs against a copy, messages a second of the virtual fabric; on an idle machine
	$(TESTBED) bench codecs $(if $(OUT),--json "$(OUT)")
	$(BIN)/python benchmarks/messages.py
	$(BIN)/python benchmarks/messages.py --regions 11 --workers 46

# $(call keep,FOLDER OF RUNS,NAME): what a reader wants of the run in it, in results/reference/NAME.
define keep
	$(TESTBED) plot $(1)/*/ >/dev/null
	$(TESTBED) report $(1)/*/
	mkdir -p results/reference/$(2)
	cd $(1)/*/ && cp run.json summary.csv summary.md *.png report.html $(CURDIR)/results/reference/$(2)/
	$(TESTBED) compare $(1)/*/ --markdown results/reference/$(2)/compare.md >/dev/null
endef

# A bound that the network misses is part of the record, and no reason to stop.
reference: setup-dev  ## the network's fidelity; cifarnet emulated, virtual and replaying a trace, into results/reference
	rm -rf build/reference
	-$(TESTBED) fidelity weightgrad-ec2 --out build/reference/emulated/fidelity/weightgrad-ec2
	mkdir -p results/reference/fidelity build/reference/replay
	cp build/reference/emulated/fidelity/weightgrad-ec2/* results/reference/fidelity/
	cp -r build/reference/emulated/fidelity build/reference/replay/
	$(TESTBED) run cifarnet --fabric mininet --seeds 0,1,2 --out build/reference/emulated --quiet
	$(TESTBED) run cifarnet --fabric mininet --trace topologies/traces/outage.csv --seeds 0,1,2 --out build/reference/replay
	$(TESTBED) run cifarnet --fabric virtual --set compute.device=m60 --seeds 0,1,2 --out build/reference/virtual
	$(MAKE) reference-reports

reference-reports: setup-dev  ## the reports of `make reference` and `reference-gpt` again, from the records left in build
	$(call keep,build/reference/emulated/cifarnet,cifarnet)
	$(call keep,build/reference/replay/cifarnet,cifarnet-outage)
	$(call keep,build/reference/virtual/cifarnet,cifarnet-virtual)
	$(if $(wildcard build/reference-gpt/gpt),$(call keep,build/reference-gpt/gpt,gpt))
	$(REWRITTEN)

# Pages quote what is kept, word by word.
REWRITTEN := $(BIN)/python -P -m pytest -q tests/test_reference.py --rewrite-golden

# $(call begin,EXPERIMENT,FOLDER[,OPTIONS]): run it into the folder, or go on with the run that is there.
begin = if test -d $(2)/$(basename $(notdir $(1))); then $(TESTBED) run --resume $(2)/$(basename $(notdir $(1)))/*/ --quiet; \
        else $(TESTBED) run $(1) $(3) --out $(2) --quiet; fi

reference-systems: setup-dev  ## 23 systems and two variants, 200 steps, 3 seeds, into results/reference/systems: hours; goes on where it was stopped
	$(call begin,systems,build/reference-systems)
	rm -rf build/reference-entropy
	$(TESTBED) run systems --systems baseline,terngrad --seeds 0 --set training.steps=100 \
	    --set systems.terngrad.entropy=on --out build/reference-entropy
	$(TESTBED) plot build/reference-systems/systems/* --kind ranking --format png --out build/reference-systems/systems/*
	$(call keep,build/reference-systems/systems,systems)
	$(TESTBED) bytes build/reference-systems/systems/* > results/reference/systems/bytes.md
	$(TESTBED) bytes build/reference-entropy/systems/* > results/reference/systems/bytes-entropy.md
	$(REWRITTEN)

reference-faults: setup-dev  ## six systems under eight faults, into results/reference/faults: hours; goes on where it was stopped
	$(call begin,faults,build/reference-faults)
	mkdir -p results/reference/faults
	cd build/reference-faults/faults/*/ && cp series.json summary.csv summary.md series.png $(CURDIR)/results/reference/faults/

# Two systems that wait, each with its tolerant twin, and half the steps: all faults are over by then.
ON_BOTH := --seeds 0 --quiet --systems terngrad,terngrad-tolerant,diloco,diloco-tolerant \
           --set training.steps=60 --set run.checkpoint_steps=60 --set run.probe_steps=0

# $(call on,FOLDER,FABRIC,EXPERIMENT): play that into its folder, or go on with what is there.
BOTH := build/reference-faults-on-both
on = if test -d $(BOTH)/$(1)/faults; then \
         $(TESTBED) run --resume $(BOTH)/$(1)/faults/* --quiet; \
     else $(TESTBED) run $(3) $(ON_BOTH) --fabric $(2) --out $(BOTH)/$(1); fi
# The same with all faults at another moment, without the math: what these two systems send does not depend on it.
SHIFTS := 1.90 1.95 2.05 2.10
shifted = mkdir -p $(BOTH)/$(1)-s && sed 's/ at 2s/ at $(1)s/' experiments/faults.toml > $(BOTH)/$(1)-s/faults.toml && \
          $(call on,$(1)-s,virtual,$(BOTH)/$(1)-s/faults.toml --timing-only)

reference-faults-emulated: setup-dev  ## a part of that on both fabrics, into results/reference/faults-emulated; half an hour of an idle machine
	$(call on,mininet,mininet,faults)
	$(call on,virtual,virtual,faults)
	$(foreach shift,$(SHIFTS),$(call shifted,$(shift)) &&) true
	$(BIN)/python -P benchmarks/faults_on_both.py $(BOTH)/virtual/faults/* $(BOTH)/mininet/faults/* --shifted $(SHIFTS:%=$(BOTH)/%-s/faults/*)

# Some 25 runs a workload and seed, and a timing-only one of each other system in each of the 15 cells. Its records are
# kept, too, but for models, checkpoints and single events: another machine goes on with them.
reference-own: setup-dev  ## our own system beside the best other, 5 networks x 3 devices x 2 workloads, into results/reference/own: a night, or WORKLOADS=own-gpt; goes on where it was stopped
	$(BIN)/python -P benchmarks/own_grid $(if $(WORKLOADS),--workloads $(WORKLOADS)) --records results/reference/own/records --out results/reference/own

SKEWED := baseline,weightgrad,local-sgd,concord,concord-waits-for-wan,concord-feedback,concord-coarsest,concord-counts-once,concord-no-momentum

# $(call ablated,SUFFIX[,OPTIONS]): the parts of our own system against the whole of it.
define ablated
	$(call begin,own-ablations,build/reference-own-ablations$(1),$(2))
	$(call keep,build/reference-own-ablations$(1)/own-ablations,own-ablations$(1))
	$(TESTBED) compare build/reference-own-ablations$(1)/own-ablations/*/ --over concord --markdown results/reference/own-ablations$(1)/over.md >/dev/null
endef

reference-own-ablations: $(addprefix reference-own-ablations-,iid dirichlet h100)  ## our own system with one part changed at a time, into results/reference/own-ablations*: three hours; goes on where it was stopped

reference-own-ablations-iid: setup-dev
	$(call ablated)
	$(REWRITTEN)

reference-own-ablations-dirichlet: setup-dev
	$(call ablated,-dirichlet,--scale dirichlet --systems $(SKEWED))
	$(REWRITTEN)

reference-own-ablations-h100: setup-dev  ## of these, the ones on a device so fast that rounds are tens of steps long: an hour
	$(call ablated,-h100,--scale h100)
	$(REWRITTEN)

# $(call paired,FOLDER,OPTIONS): our own system and the best other, on one fabric.
OWN_PAIR := build/reference-own-emulated
# At a checkpoint all roles wait for each other, which under an outage is what takes longest: the first one is after the
# target. On the emulated fabric probes are handed in there, so that a run makes as many steps.
OF_TWO   := --systems concord,weightgrad --set run.checkpoint_steps=240
define paired
	$(call begin,results/reference/own/records/own-tuned.toml,$(OWN_PAIR)/$(1),$(OF_TWO) $(2))
	mkdir -p results/reference/own-emulated/$(1)
	cd $(OWN_PAIR)/$(1)/own-tuned/*/ && cp summary.csv summary.md comparison.png $(CURDIR)/results/reference/own-emulated/$(1)/
	$(TESTBED) compare $(OWN_PAIR)/$(1)/own-tuned/*/ --over concord --markdown results/reference/own-emulated/$(1)/over.md >/dev/null
endef
OWN_OUTAGE := --trace topologies/traces/early-outage.csv

reference-own-emulated: setup-dev  ## our own system and the best other on both fabrics, and under an outage, into results/reference/own-emulated: an hour of an idle machine; goes on where it was stopped
	$(call paired,simulated,--fabric virtual)
	$(call paired,simulated-outage,--fabric virtual $(OWN_OUTAGE))
	$(call paired,emulated,--fabric mininet --set compute.dilation=20)
	$(call paired,emulated-outage,--fabric mininet --set compute.dilation=20 $(OWN_OUTAGE))
	$(REWRITTEN)

# Who makes Muon's steps, searched where products of matrices are as fast as an M60 can make them, and beside it who does
# not, whom that changes nothing for.
OWN_GEMM := build/reference-own-gemm
GEMM     := --set 'compute.device="m60-gemm"'
OF_GEMM  := --systems concord,weightgrad $(GEMM)
reference-own-gemm: setup-dev  ## our own system and MuLoCo with Muon's products at half of an M60's peak, into results/reference/own-gemm: an hour; goes on where it was stopped
	mkdir -p results/reference/own-gemm
	test -f results/reference/own-gemm/own-gemm.toml || $(TESTBED) tune results/reference/own/records/own-tuned.toml $(GEMM) \
	    --set 'systems.concord-muon={of="concord",inner="muon"}' --systems muloco-flat,concord-muon \
	    --trials 8 --seeds 100 --out $(OWN_GEMM)/search --to results/reference/own-gemm/own-gemm.toml
	$(call begin,results/reference/own-gemm/own-gemm.toml,$(OWN_GEMM))
	$(call begin,results/reference/own/records/own-tuned.toml,$(OWN_GEMM),$(OF_GEMM))
	$(TESTBED) compare $(OWN_GEMM)/own-*/*/ --over concord-muon --over concord --markdown results/reference/own-gemm/over.md >/dev/null
	cp $(OWN_GEMM)/own-gemm/*/summary.csv $(OWN_GEMM)/search/search.png results/reference/own-gemm/
	$(REWRITTEN)

reference-late-answers: setup-dev  ## when copies whose averages arrive late come together, into results/reference/late-answers: seconds
	$(BIN)/python -P benchmarks/late_answers.py --out results/reference/late-answers

# What each trial came to is kept as it ends, so that another machine can go on.
reference-tuning: setup-dev  ## the search of each system's settings, into experiments/systems-tuned.toml: an hour or two, goes on as well
	$(TESTBED) tune systems --trials 8 --seeds 100 --out results/reference/systems-tuned/search --to experiments/systems-tuned.toml

reference-tuned: reference-tuning  ## all systems with what was found, into results/reference/systems-tuned: hours, goes on as well
	$(call begin,systems-tuned,build/reference-tuned)
	$(TESTBED) plot build/reference-tuned/systems-tuned/* --kind ranking --format png --out build/reference-tuned/systems-tuned/*
	$(call keep,build/reference-tuned/systems-tuned,systems-tuned)
	$(REWRITTEN)

# Its records are kept, too, but for models, checkpoints and single events: plays that are done are not played again on
# another machine.
reference-long: setup-dev  ## cifarnet-long, into results/reference/cifarnet-long: many hours, goes on as well
	$(call begin,cifarnet-long,results/reference)
	$(call keep,results/reference/cifarnet-long,cifarnet-long)

reference-gpt: setup-dev  ## the language model, into results/reference/gpt: half an hour
	rm -rf build/reference-gpt
	$(TESTBED) run gpt --out build/reference-gpt --quiet
	$(call keep,build/reference-gpt/gpt,gpt)

reference-gpt-diloco: setup-dev  ## what trains language models, on two networks, into results/reference/gpt-diloco: an hour and a half; goes on where it was stopped
	$(call begin,gpt-diloco,build/reference-gpt-diloco)
	mkdir -p results/reference/gpt-diloco
	cd build/reference-gpt-diloco/gpt-diloco/*/ && cp series.json summary.csv summary.md series.png $(CURDIR)/results/reference/gpt-diloco/
	set -e; for profile in wanify-8 residential; do \
	    point=$$(echo build/reference-gpt-diloco/gpt-diloco/*/profile=$$profile-*); kept=results/reference/gpt-diloco/$$profile; \
	    mkdir -p $$kept; cp $$point/run.json $$point/summary.csv $$point/summary.md $$kept/; \
	    $(TESTBED) plot $$point --kind metric --format png --out $$kept; \
	done
	$(REWRITTEN)

reference-sensitivity: setup-dev  ## the map of speedups over network, device and batch, into results/reference/sensitivity: minutes
	$(TESTBED) sensitivity systems --systems baseline,fp16,terngrad,dgc,gaia,weightgrad,diloco \
	    --steps 160 --out build/sensitivity
	$(TESTBED) sensitivity systems --systems baseline,terngrad,gaia,weightgrad --axes lan,device --steps 100 \
	    --set training.batch_size=512 --out build/sensitivity-512
	mkdir -p results/reference/sensitivity results/reference/sensitivity-512
	cp build/sensitivity/sensitivity.* results/reference/sensitivity/
	cp build/sensitivity-512/sensitivity.* results/reference/sensitivity-512/

reference-validation: setup-dev  ## predictions beside what others measured, into results/reference/validation: seconds
	$(BIN)/python benchmarks/validation.py --out results/reference/validation
	$(REWRITTEN)

reference-endurance: setup-dev  ## 20,000 steps: memory, open files, records, report, into results/reference/endurance
	$(BIN)/python -P benchmarks/endurance.py --out results/reference/endurance

reference-startup: setup-dev  ## what an emulated run takes beside its training, into results/reference/startup; seven minutes of an idle machine
	$(BIN)/python -P benchmarks/startup.py --label "$(or $(LABEL),now)"
	$(REWRITTEN)

reference-cluster: setup-dev  ## what a Ray cluster takes beside 24 plays, into results/reference/cluster; ten minutes of an idle machine
	$(BIN)/python -P benchmarks/cluster.py --out results/reference/cluster

reference-scale: setup-dev  ## what a message costs to simulate, from 2 workers to 10,000, into results/reference/scale; on an idle machine
	$(BIN)/python benchmarks/scale.py --out results/reference/scale

reference-terngrad-scaling: setup-dev  ## TernGrad's figure 5, 4 to 512 GPUs, into results/reference/terngrad-scaling: a minute
	$(BIN)/python benchmarks/terngrad_scaling.py --out results/reference/terngrad-scaling
	$(REWRITTEN)

reference-terngrad-histograms: setup-dev  ## TernGrad's figure 2, gradients before and after coding, into results/reference/terngrad-histograms: three minutes
	$(BIN)/python -P benchmarks/terngrad_histograms.py --out results/reference/terngrad-histograms
	$(REWRITTEN)

reference-isgq-figures: setup-dev  ## ISGQ's figures 1 to 4, into results/reference/isgq-figures: some ten minutes of an idle machine; goes on where it was stopped
	$(BIN)/python -P benchmarks/isgq_figures.py --out results/reference/isgq-figures
	$(REWRITTEN)

reference-isgq-forms: setup-dev  ## every form of ISGQ at one bit and two, on CifarNet and FC, into results/reference/isgq-forms-*: half an hour; goes on where it was stopped
	$(call begin,isgq-forms,build/reference-isgq-forms)
	$(call keep,build/reference-isgq-forms/isgq-forms,isgq-forms-cifarnet)
	$(call begin,isgq-forms,build/reference-isgq-forms/fc,--scale fc)
	$(call keep,build/reference-isgq-forms/fc/isgq-forms,isgq-forms-fc)
	$(REWRITTEN)

# Its figures 3, 5 and 7 are drawn from what `make reference-papers PAPERS=threshold-nin` kept.
reference-threshold-figures: setup-dev  ## thresholded gradients' figures 3 to 8, into results/reference/threshold-figures: five minutes; goes on where it was stopped
	$(BIN)/python -P benchmarks/threshold_figures.py --out results/reference/threshold-figures
	$(REWRITTEN)

PAPERS      := threshold-nin lenet-terngrad lenet-terngrad-vanilla cifarnet-terngrad mqgrad-12 mqgrad-18 isgq vggnet alexnet alexnet-imagenet
PAPER_SEEDS := 0,1,2

reference-papers: setup-dev  ## the papers' other experiments at their default scale, three seeds, into results/reference/papers: four hours, or PAPERS=isgq; goes on where it was stopped
	set -e; for target in $(PAPERS); do \
	    case $$target in \
	        *-vanilla|*-hours) file=$${target%-*}; scale="--scale $${target##*-}"; out=build/reference-papers/$${target##*-};; \
	        *) file=$$target; scale=; out=build/reference-papers;; \
	    esac; \
	    if test -d $$out/$$file; then $(TESTBED) run --resume $$out/$$file/*/ --quiet; \
	    else $(TESTBED) run $$file $$scale --seeds $(PAPER_SEEDS) --out $$out --quiet; fi; \
	    mkdir -p results/reference/papers/$$target; \
	    (cd $$out/$$file/*/ && cp summary.* *.png $(CURDIR)/results/reference/papers/$$target/); \
	done
	$(REWRITTEN)

reference-gpu-counts: setup-dev  ## what a step asks of a GPU, by system, into results/reference/gpu: ten minutes, no GPU; goes on where it was stopped
	$(BIN)/python -P benchmarks/gpu_counts.py --out build/reference/gpu
	mkdir -p results/reference/gpu && mv build/reference/gpu/counts.* results/reference/gpu
	$(REWRITTEN)

reference-paper-scale: setup-dev  ## keep what `make gpu` has played of the paper's 50,000 steps, from results/gpu into results/reference/paper-scale
	$(call keep,results/gpu,paper-scale)
	for percent in 75 79; do \
	    $(TESTBED) compare results/gpu/*/ --accuracy 0.$$percent --over gaia --over terngrad \
	        --markdown results/reference/paper-scale/accuracy-$$percent.md >/dev/null || exit 1; \
	done
	$(REWRITTEN)

reference-codecs: setup-dev  ## every codec's speed against a copy, into results/reference/codecs; on an idle machine
	mkdir -p results/reference/codecs
	cd results/reference/codecs && $(CURDIR)/$(TESTBED) bench codecs --sizes 1M,10M,60M --json codecs.json --plot codecs.png > codecs.md
	$(REWRITTEN)

# Without what an earlier build left: setuptools would put that in, too.
wheel: setup-dev  ## build the wheel in build/dist, to install anywhere: experiments, profiles and traces are in it
	rm -rf build/lib build/bdist.*
	$(BIN)/python -P -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/dist .

docs: setup-dev  ## build the documentation's site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -P -m mkdocs build --strict

clean:  ## delete what killed runs left, caches and the virtual environment; results stay
	test ! -x $(TESTBED) || $(TESTBED) clean
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
