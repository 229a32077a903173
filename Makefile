# SPDX-License-Identifier: Apache-2.0
# Everything that is done with this tree from day to day.  "make help" lists it.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
NOVA   ?= .venv-nova
CLOUD  ?= .venv-openstack
PLACEMENT ?= .venv-placement
CLIENT ?= .venv-client
HEAT   ?= .venv-heat
SUPPLY ?= .venv-supply
ARGS   ?=
NAME   ?=
JOBS   ?= 3
PYTHONS ?= 3.12 3.13
QUICK  ?= tests/core tests/scheduler tests/contract tests/db tests/cli tests/rpc tests/compute tests/properties tests/test_plugins.py tests/house/test_tree.py tests/house/test_rules.py

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input
PYTEST := $(BIN)/python -m pytest
SAMPLE := etc/gantt/gantt.conf.sample
POLICY := etc/gantt/policy.yaml.sample

# pbr counts commits up to the version of setup.cfg, as "pip install ." does.  A tree
# without git (an unpacked archive, a copy, a checkout that belongs to somebody else)
# has nothing to count.
ifeq ($(PBR_VERSION)$(shell git rev-parse HEAD 2>/dev/null),)
export PBR_VERSION := $(shell sed -n 's/^version = //p' setup.cfg).dev0
endif

.PHONY: help demo demo-zones test quick python-test devstack-test openstack-test placement-test client-test heat-test lint format types imports security docs genconfig genpolicy bench nightly clean hashes sbom audit venv venv-test venv-nova venv-placement venv-heat try-nova

help: ## this list
	@echo 'make TARGET [ARGS="..."]     (PYTHON=$(PYTHON), environment in $(VENV)/)'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# -- environments: made once, made again when what they are made from changes ----

$(VENV)/made:
	@echo '[1/3] a Python environment in $(VENV)/'
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer is needed; found none. Name one: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or newer is needed; $(PYTHON) is older or cannot be run. Name one: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@'$(PYTHON)' -m venv $(VENV) || { echo 'This Python has no venv module; on Debian and Ubuntu it is in the package python3-venv.' >&2; exit 1; }
	@touch $@

$(VENV)/required: $(VENV)/made requirements.txt constraints.txt
	@echo '[2/3] the libraries Gantt needs (the exact set of constraints.txt): about 90 s, log in $(VENV)/install.log'
	@{ $(PIP) install --constraint constraints.txt setuptools pbr && \
	   $(PIP) install --constraint constraints.txt --requirement requirements.txt; } \
	   > $(VENV)/install.log 2>&1 || { cat $(VENV)/install.log >&2; exit 1; }
	@touch $@

$(VENV)/installed: $(VENV)/required setup.cfg setup.py pyproject.toml README.rst
	@echo '[3/3] Gantt itself, from this directory'
	@$(PIP) install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

# It proves plans of groups.  Without it groups are placed as well, and the demonstration says so.
$(VENV)/solver: constraints.txt setup.cfg | $(VENV)/installed
	@echo 'OR-tools, which is the extra "solver"'
	@$(PIP) install --quiet --constraint constraints.txt 'ortools>=9.12' && touch $@ || echo 'NO SOLVER: OR-tools could not be installed' >&2

$(VENV)/test-required: $(VENV)/required test-requirements.txt | $(VENV)/installed
	@echo 'the tools for tests, checks and documents'
	$(PIP) install --progress-bar on --constraint constraints.txt --requirement test-requirements.txt
	@touch $@

venv: $(VENV)/installed ## the environment to run Gantt in (.venv)
venv-test: $(VENV)/test-required ## the same with the tools for tests and checks

$(NOVA)/made: tests/oracle/requirements.txt
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer is needed; found none.' >&2; exit 1; }
	@echo 'Nova, in an environment of its own ($(NOVA)/) that only tests use: once, a minute or two'
	rm -rf $(NOVA)
	'$(PYTHON)' -m venv $(NOVA)
	$(NOVA)/bin/python -m pip --disable-pip-version-check --no-input --retries 2 --timeout 30 install --quiet --no-deps --requirement $<
	@touch $@

venv-nova: $(NOVA)/made ## Nova beside it, to compare filters with (.venv-nova)

$(PLACEMENT)/made: tests/placement/requirements.txt
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer is needed; found none.' >&2; exit 1; }
	@echo 'Placement, in an environment of its own ($(PLACEMENT)/) that only its own tests use: once, a minute'
	rm -rf $(PLACEMENT)
	'$(PYTHON)' -m venv $(PLACEMENT)
	$(PLACEMENT)/bin/python -m pip --disable-pip-version-check --no-input --retries 2 --timeout 30 install --quiet --no-deps --requirement $<
	@touch $@

venv-placement: $(PLACEMENT)/made ## Placement and the tests it has for itself (.venv-placement)

$(CLIENT)/made: tests/placement/client-requirements.txt
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer is needed; found none.' >&2; exit 1; }
	@echo "OpenStack's command line with Placement's commands, in an environment of its own ($(CLIENT)/): once"
	rm -rf $(CLIENT)
	'$(PYTHON)' -m venv $(CLIENT)
	$(CLIENT)/bin/python -m pip --disable-pip-version-check --no-input --retries 2 --timeout 30 install --quiet --requirement $<
	@touch $@

$(HEAT)/made: tests/templates/heat-requirements.txt
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer is needed; found none.' >&2; exit 1; }
	@echo "Heat's library, in an environment of its own ($(HEAT)/): once, a minute or two"
	rm -rf $(HEAT)
	'$(PYTHON)' -m venv $(HEAT)
	$(HEAT)/bin/python -m pip --disable-pip-version-check --no-input --retries 2 --timeout 30 install --quiet --no-deps --requirement $<
	@touch $@

venv-heat: $(HEAT)/made ## Heat's library, which reads templates for "gantt group import heat-offline" (.venv-heat)

$(CLOUD)/made: tests/openstack/requirements.txt setup.cfg
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer is needed; found none.' >&2; exit 1; }
	@echo 'Keystone, Glance, Placement and Nova in $(CLOUD)/: once, some minutes'
	rm -rf $(CLOUD)
	'$(PYTHON)' -m venv $(CLOUD)
	$(CLOUD)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --requirement $<
	$(CLOUD)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-build-isolation --no-deps .
	@touch $@

$(SUPPLY)/made: supply-requirements.txt
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer is needed; found none.' >&2; exit 1; }
	@echo 'the tools that look at libraries, in an environment of their own ($(SUPPLY)/): once, a minute'
	rm -rf $(SUPPLY)
	'$(PYTHON)' -m venv $(SUPPLY)
	$(SUPPLY)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --requirement $<
	@touch $@

try-nova:
	@$(MAKE) --no-print-directory venv-nova || echo 'NO NOVA: it could not be installed; filters are not compared with its own' >&2

# -- what people come for ---------------------------------------------------------

demo: $(VENV)/installed $(VENV)/solver ## see Gantt work in one process; ARGS=--serve stays up
	@$(BIN)/python -m devel.demo $(ARGS)

demo-zones: $(VENV)/installed ## see four zones at work, a process each: under a minute, and it ends by itself
	@$(BIN)/python -m devel.demo.zones $(ARGS)

# Tests wait more than they work: three at a time keep two cores busy.
test: $(VENV)/test-required try-nova ## all tests; ARGS="tests/core -k name" for some; those without their server are skipped loudly
	$(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder -m 'not slow' $(ARGS)

quick: $(VENV)/test-required ## what one runs while working: no broker, no server, SQLite only
	$(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder -m 'not slow and not rabbit and not postgresql and not mysql' $(QUICK) $(ARGS)

# The simulator runs most of what there is, in virtual time: a busy machine decides nothing.
python-test: ## on other versions of Python, of PYTHONS those that are installed: some tests, and worlds of the simulator
	@for version in $(PYTHONS); do \
	    python$$version -c '' 2>/dev/null || { echo "NO PYTHON $$version: not installed, nothing is run on it" >&2; continue; }; \
	    $(MAKE) --no-print-directory VENV=.venv-$$version PYTHON=python$$version QUICK='tests/test_plugins.py tests/core/rules tests/core/filters' quick || exit 1; \
	    .venv-$$version/bin/python -m devel.sim faults --seeds 3 || exit 1; \
	done

# Long forms one after another: each of them wants the machine.  5: ARGS chose none of these.
nightly: export GANTT_THOROUGH = 1
nightly: $(VENV)/test-required try-nova ## all tests in their long form too
	$(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder -m 'not slow' $(ARGS) || [ $$? = 5 ]
	$(PYTEST) -m slow --timeout 10800 $(ARGS) || [ $$? = 5 ]

devstack-test: $(VENV)/made ## the devstack plugin with devstack's own functions: DEVSTACK=path-to-a-copy; as root
	@tests/devstack/run '$(DEVSTACK)' '$(abspath $(BIN))/python'

openstack-test: $(VENV)/installed $(CLOUD)/made ## beside a real Keystone, Placement and Nova; ARGS="step ..." for some
	$(CLOUD)/bin/python -m tests.openstack --gantt $(BIN) $(ARGS)

placement-test: $(VENV)/test-required $(PLACEMENT)/made ## Placement's own tests over HTTP: of it, then of Gantt on PostgreSQL and MariaDB; ARGS="FILE ..."
	$(BIN)/python -m tests.placement --python $(PLACEMENT)/bin/python $(ARGS)

client-test: $(VENV)/test-required $(PLACEMENT)/made $(CLIENT)/made ## a day of the openstack command with osc-placement: Placement and Gantt answer the same
	$(BIN)/python -m tests.placement.client_day --client $(CLIENT)/bin/openstack --python $(PLACEMENT)/bin/python $(ARGS)

heat-test: $(VENV)/installed $(HEAT)/made ## what becomes of a folder of Heat's templates: TEMPLATES=path, e.g. a copy of openstack/heat-templates
	@test -d '$(TEMPLATES)' || { echo 'Name a folder of templates: make heat-test TEMPLATES=path' >&2; exit 1; }
	$(BIN)/python -m tests.templates.heat_folder --python $(HEAT)/bin/python $(ARGS) '$(TEMPLATES)'

bench: $(VENV)/test-required ## one bench, e.g. NAME=decide ARGS="--hosts 10000"; without NAME the list of them
	@$(BIN)/python -m bench $(if $(NAME),$(NAME) --json $(ARGS),--help)

# -- checks -----------------------------------------------------------------------

lint: format types imports security docs ## all static checks: style, types, import contracts, security, documents

format: $(VENV)/test-required ## style only (fix with: .venv/bin/ruff check --fix . && .venv/bin/ruff format .)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test-required ## types only
	$(BIN)/mypy

imports: $(VENV)/test-required ## who may import whom only
	$(BIN)/lint-imports

security: $(VENV)/test-required ## what bandit finds in the code only
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive gantt

# Not part of lint, which needs no network.  --strict: a library that could not be looked up is none
# without vulnerabilities.
audit: $(SUPPLY)/made ## known vulnerabilities of what requirements.lock installs; needs the network
	@mkdir -p build
	@if $(SUPPLY)/bin/pip-audit --strict --disable-pip --requirement requirements.lock --progress-spinner off \
	    $(ARGS) > build/audit.log 2>&1; then cat build/audit.log; else cat build/audit.log >&2; \
	  grep -q '^Found [0-9]* known vulnerabilit' build/audit.log || \
	    echo 'NOT CHECKED: the database of vulnerabilities cannot be reached from here, or lacks a library' >&2; \
	  exit 1; fi

# -- what is generated --------------------------------------------------------------

docs: $(VENV)/test-required ## the documents as HTML in doc/build/html; a warning is an error
	$(BIN)/doc8 README.rst CONTRIBUTING.rst doc/source
	$(BIN)/sphinx-build -q -W --keep-going -b html -d doc/build/doctrees doc/source doc/build/html

genconfig: $(VENV)/installed ## etc/gantt/gantt.conf.sample, from the options in the code
	PYTHONWARNINGS=ignore $(BIN)/oslo-config-generator --config-file etc/gantt/config-generator.conf --output-file $(SAMPLE)

genpolicy: $(VENV)/installed ## etc/gantt/policy.yaml.sample, from the rules in the code
	PYTHONWARNINGS=ignore $(BIN)/oslopolicy-sample-generator --config-file etc/gantt/policy-generator.conf --output-file $(POLICY)

hashes: $(SUPPLY)/made ## requirements.lock: what production installs, with the hashes of all files of the index
	printf 'pbr\nsetuptools\n' > $(SUPPLY)/build.in
	$(SUPPLY)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make hashes' --constraint constraints.txt --output-file requirements.lock requirements.txt $(SUPPLY)/build.in

sbom: $(SUPPLY)/made ## build/sbom.json: what requirements.lock installs, as CycloneDX
	@mkdir -p build
	$(SUPPLY)/bin/cyclonedx-py requirements --output-reproducible --mc-type application --output-file build/sbom.json requirements.lock
	@echo 'build/sbom.json'

clean: ## remove what was made here: environment, caches, built documents
	rm -rf $(VENV) $(PYTHONS:%=.venv-%) $(NOVA) $(PLACEMENT) $(CLIENT) $(HEAT) $(SUPPLY) doc/build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .eggs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
