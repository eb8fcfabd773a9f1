# Two commands do everything on a bare machine with Python 3.11+, git and a C compiler:
#   make demo    a local swarm trains on real text, with the dashboard
#   make test    everything that a release needs; docs/contributor/testing.md has the tiers
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Of an install without what only tests and development need.
DEMO_STAMP := $(VENV)/.installed-for-demo

.PHONY: help venv demo check check-types check-layout test-fast test test-nightly simulate docs format clean

help:
	@echo "make demo          a local swarm trains on real text (about two minutes)"
	@echo "make check         ruff, mypy --strict, import contracts and documents (1 minute)"
	@echo "make test-fast     tests without daemons and processes (4 minutes on two cores)"
	@echo "make test          everything that a release needs (12 minutes on two cores)"
	@echo "make test-nightly  every test, every seed, and the fuzzer for ten minutes"
	@echo "make simulate      a whole swarm in virtual time (SCENARIO=storm SEED=7)"
	@echo "make docs          write the pages of docs/ that follow from the code"
	@echo "make venv          only create .venv and install into it"

# pip makes the kernels and the dashboard's bundle while it installs; afterwards this only notices edited sources.
define BUILD
@$(BIN)/python averaging/codec/build_kernels.py || echo "Everything works without them, only slower."
@$(BIN)/python dashboard/web/build.py || echo "The page works without it, only not live."
endef

venv: $(STAMP)
	$(BUILD)

# What a volunteer installs, which is less; everything is kept up to date where it was installed once.
demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))
	$(BUILD)
	$(BIN)/peer demo

# The observer's pure-Python libp2p builds a C extension; where the GMP headers are missing, observers use the daemon.
HAS_GMP = $(shell echo '\#include <gmp.h>' | $(or $(CC),cc) -E - >/dev/null 2>&1 && echo ,observer)

# pip is silent while it unpacks: minutes in which nothing seems to happen. A line whenever the folder has grown by 10 MB.
UNPACKING_SECONDS := 15
WHILE_UNPACKING = size() { du -sm $(VENV) | cut -f1; }; old=$$(size); \
	while sleep $(UNPACKING_SECONDS) >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do \
		new=$$(size); [ $$new -lt $$((old + 10)) ] || { echo "Unpacked so far: $$new MB"; old=$$new; }; \
	done & teller=$$!; trap "kill $$teller" EXIT

# One pip call for everything: resolved apart, hivemind's and libp2p's protobuf needs contradict each other.
$(STAMP): EXTRAS = dev$(HAS_GMP)
$(STAMP): AGAIN = make venv
$(DEMO_STAMP): EXTRAS = hf,page
$(DEMO_STAMP): AGAIN = make demo
$(STAMP) $(DEMO_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python %s found; 3.11 or newer is needed: make PYTHON=python3.11 ..." % sys.version.split()[0])'
	@echo "Installing into $(VENV). The first time about 3 GB are downloaded: 4 minutes at 100 Mbit/s, 40 at 10."
	@echo "Then pip unpacks them, which takes one to five minutes more. An interrupted install goes on with: $(AGAIN)"
	$(PYTHON) -m venv $(VENV)
	@$(WHILE_UNPACKING); $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@
	@echo "Installed into $(VENV)."

PYTEST := $(BIN)/python -m pytest
# Tests start hundreds of processes: what Python compiled is kept, whatever this environment says.
export PYTHONDONTWRITEBYTECODE :=
# Tests without daemons are taken by whichever worker is free; one file of real processes stays on one worker, which
# starts its swarm once. Those wait half of their time, which two more workers use.
# `make check` has those of the repository.
FAST   := $(PYTEST) -n 2 --dist worksteal --ignore=tests/repo
REAL   := $(PYTEST) -n 4 --dist loadfile --no-loadscope-reorder

# The types and the rest at once: both keep one core busy.
check: venv
	@$(MAKE) --no-print-directory --jobs=2 check-types check-layout

check-types: venv
	$(BIN)/mypy

check-layout: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(PYTEST) tests/repo

test-fast: venv
	$(FAST) -m "not network and not nightly"

test: test-fast
	$(REAL) -m "network and not nightly"

# Everything: what `make test` runs, and what it leaves out.
test-nightly: check
	$(FAST) -m "not network"
	$(REAL) -m network
	$(BIN)/python -m tests.fuzz --seconds 600

SCENARIO ?= storm
SEED     ?= 0
simulate: venv
	$(BIN)/python -m tests.simulator $(SCENARIO) --seed $(SEED)

# Pages that follow from the code: commands, manifest, events, library.
docs: venv
	$(BIN)/python -m docs.generate

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
