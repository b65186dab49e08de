# Two commands, each with all its own set-up: `make lab` and `make test`. They need Python 3.11 or newer.

VENV ?= .venv
BUILD ?= build
ARGS ?=
PYTHON ?= $(firstword $(foreach name,python3 python3.11 python3.12 python3.13,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $(name))))

BIN := $(VENV)/bin
# Processes that share the tests, each of which takes whole files, as fixtures of a file are dear. Many tests wait for other
# processes: three keep two cores at work.
PROCESSES ?= 4
# Without compiled files each of the processes that tests start would compile the package anew, and pytest all tests.
unexport PYTHONDONTWRITEBYTECODE
PIP := -m pip --disable-pip-version-check install -qq --constraint constraints.txt

.PHONY: help lab test pytest check style types package release notebooks docs frameworks frameworks-without-extension versions canary mutants measure clean

help:
	@echo "make lab        set up $(VENV) and open JupyterLab on the tour; make lab ARGS=--no-browser on a server"
	@echo "make test       set up $(VENV), then check the style and types, build the package and run the tests"
	@echo "make check      the style and type checks of make test alone"
	@echo "make notebooks  run the notebooks and store their outputs anew"
	@echo "make docs       build the site into build/site; it needs no network to be read"
	@echo "make release    build the files of a release, check them, install them where nothing else is, and say what is left to do"
	@echo "make frameworks run the scripts of other people's frameworks, in an environment of their own, and write docs/frameworks.md"
	@echo "make versions   run the tests on other versions of torch, TORCH=\"2.9.1 2.15.0\", each in an environment of its own"
	@echo "make canary     list which names of torch the installed version lacks or has changed"
	@echo "make mutants    change the package in one place at a time, and list what no test notices; ARGS=--help"
	@echo "make measure    print how much the two commands download, and how long their set-up takes"
	@echo "make clean      remove what these made, $(VENV) included"

lab: $(VENV)/.lab
	$(BIN)/dsexplore lab $(ARGS)

# Tests wait for disks and other processes now and then: the rest is done meanwhile.
test: style
	$(MAKE) --jobs 3 pytest types package

pytest: $(VENV)/.test
	TORCH_CPP_LOG_LEVEL=ERROR $(BIN)/python -m pytest --nbval --nbval-current-env \
		--numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder tests notebooks $(ARGS)

check: style types

style: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

# The package as users get it: built, installed where nothing else is, and asked to do the main job.
package: $(VENV)/.test
	rm -rf $(BUILD)/dist $(BUILD)/empty
	$(BIN)/python -m build --no-isolation --outdir $(BUILD)/dist . >/dev/null
	$(PYTHON) -m venv $(BUILD)/empty
	$(BUILD)/empty/bin/python $(PIP) $(BUILD)/dist/*.whl
	$(BUILD)/empty/bin/dsexplore demo --html $(BUILD)/demo.html
	rm -rf $(BUILD)/empty

# Up to the upload, which a person does: docs/versions_of_dsexplore.md.
release: package $(VENV)/.release
	$(BIN)/twine check --strict $(BUILD)/dist/*
	$(BIN)/python tests/check_release.py $(BUILD)/dist

$(VENV)/.release: $(VENV)/.test
	$(BIN)/python $(PIP) --editable '.[release]'
	@touch $@

notebooks: $(VENV)/.test
	$(BIN)/python tests/run_notebooks.py

# Strict: a warning, as of a link that leads nowhere, is an error.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W -n --keep-going -q docs $(BUILD)/site

$(VENV)/.docs: $(VENV)/.test
	$(BIN)/python $(PIP) --editable '.[docs]'
	@touch $@

# Their versions and ours may conflict one day, and they are many megabytes: an environment of their own. DeepSpeed's extension
# takes minutes to build, in which the tests run that do not load it.
IN_FRAMEWORKS = DSEXPLORE_FRAMEWORKS=1 TORCH_CPP_LOG_LEVEL=ERROR $(VENV)-frameworks/bin/python -m pytest

frameworks: $(VENV)-frameworks/.made
	$(MAKE) --jobs 2 frameworks-without-extension $(BUILD)/extensions/.made
	$(IN_FRAMEWORKS) -m extension tests/frameworks/test_deepspeed_log.py

frameworks-without-extension: $(VENV)-frameworks/.made
	$(IN_FRAMEWORKS) --numprocesses 2 -m "not extension" tests/frameworks $(ARGS)

# DeepSpeed would build what it reads disks with when a test first asks for it: that takes minutes, and a test has a limit.
$(BUILD)/extensions/.made: $(VENV)-frameworks/.made
	PATH="$(abspath $(VENV)-frameworks/bin):$$PATH" TORCH_EXTENSIONS_DIR=$(abspath $(BUILD)/extensions) DS_ACCELERATOR=cpu MAX_JOBS=1 \
		$(VENV)-frameworks/bin/python tests/frameworks/build_extensions.py
	@touch $@

# The newest torch that is tested, unless the command line names others; its tests need no browser and no notebooks.
TORCH ?= $(shell sed -n 's/^torch==//p' tests/requirements-newest-torch.txt)

versions:
	$(PYTHON) tests/run_versions.py --torch $(TORCH) $(ARGS)

canary: $(VENV)/.test
	$(BIN)/python -m dsexplore._internal.torch_internals $(ARGS)

# The tool stays out of the environment that the tests run in: it needs none of ours, and they none of its.
mutants: $(VENV)/.test $(BUILD)/mutants/tool/.made
	$(BUILD)/mutants/tool/bin/python -m tests.mutants --python $(BIN)/python $(ARGS)

$(BUILD)/mutants/tool/.made: | $(VENV)/bin/python
	$(PYTHON) -m venv $(BUILD)/mutants/tool
	$(BUILD)/mutants/tool/bin/python $(PIP) 'cosmic-ray>=8.4,<9'
	@touch $@

# Into folders of their own, past pip's cache: what the readme says of the two commands comes from here.
measure:
	@for extra in lab dev,ranks; do \
		rm -rf $(BUILD)/measure && mkdir -p $(BUILD)/measure && \
		$(PYTHON) -m venv $(BUILD)/measure/venv && python=$(BUILD)/measure/venv/bin/python && \
		$$python -m pip --disable-pip-version-check --no-cache-dir download -qq --constraint constraints.txt \
			--dest $(BUILD)/measure/wheels ".[$$extra]" && \
		megabytes=$$(du --apparent-size -sm $(BUILD)/measure/wheels | cut -f1) && \
		start=$$(date +%s) && \
		$$python $(PIP) --no-cache-dir --editable ".[$$extra]" && \
		echo "dsexplore[$$extra]: $$megabytes MB to download, $$(($$(date +%s) - start)) s to set up," \
			"$$(du -sm $(BUILD)/measure/venv | cut -f1) MB on disk"; \
	done; rm -rf $(BUILD)/measure

clean:
	rm -rf $(VENV) $(VENV)-frameworks $(BUILD)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "dsexplore needs Python 3.11 or newer: install it, or make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.lab: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python $(PIP) --editable '.[lab]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python $(PIP) --editable '.[dev,ranks]'
	@touch $@

$(VENV)-frameworks/.made: pyproject.toml constraints.txt tests/frameworks/requirements.txt tests/frameworks/torchtitan.txt tests/frameworks/torchao.txt | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)-frameworks
	$(VENV)-frameworks/bin/python $(PIP) --requirement tests/frameworks/requirements.txt --editable '.[test]'
	rm -rf $(VENV)-frameworks/for-torchtitan $(VENV)-frameworks/for-torchao
	$(VENV)-frameworks/bin/python $(PIP) --no-deps --target $(VENV)-frameworks/for-torchtitan --requirement tests/frameworks/torchtitan.txt
	$(VENV)-frameworks/bin/python $(PIP) --no-deps --target $(VENV)-frameworks/for-torchao --requirement tests/frameworks/torchao.txt
	@touch $@
