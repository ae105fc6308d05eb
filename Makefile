# Two commands do everything: `make book` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help book test lint slow claims mutants false-alarms experiments serve clean lock newest

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

book: $(VENV)/.book ## execute every cell and build the static site
	@$(BIN)/python -m scaling_book.site.build

test: $(VENV)/.test ## prove the library, the evidence, the pages and the site
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(VENV)/.test ## check code, cells, labels, imports and spelling only
	@$(BIN)/python -m pytest tests/lint

slow: $(VENV)/.test ## measure all evidence again with other random numbers (minutes)
	@$(BIN)/python -m pytest -m slow

claims: $(VENV)/.book ## measure the evidence of every claim
	@$(BIN)/python -m scaling_book.evidence

mutants: $(VENV)/.test ## put faults into the code, one by one, and record what notices them (half an hour)
	@$(BIN)/python -m scaling_book.audit.run_mutants

false-alarms: $(VENV)/.book ## record how often evidence fails by chance (20 minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python -m scaling_book.audit.false_alarms

experiments: $(VENV)/.test ## repeat the recorded trainings on two cores (an hour and more); goes on where it stopped
	@OMP_NUM_THREADS=1 $(BIN)/python -m scaling_book.lab.experiments

serve: $(VENV)/.book ## live preview in a browser
	@$(BIN)/python -m scaling_book.site.serve

clean: ## remove what was built; keeps the environment
	rm -rf _build conf.py .pytest_cache .ruff_cache .mypy_cache .hypothesis

lock: ## resolve the newest allowed versions and write both lock files
	@sh .ci/lock $(PYTHON)

newest: ## fill the environment with the newest allowed versions instead of the locked ones
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --upgrade --upgrade-strategy eager -e '.[test]'
	$(BIN)/pip install --no-deps -r requirements-data.txt
	touch $(VENV)/.book $(VENV)/.test

$(VENV)/.book: requirements.txt pyproject.toml
	@echo "Installing the locked packages into $(VENV) (once; minutes) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -r requirements.txt
	@touch $@

$(VENV)/.test: requirements-test.txt requirements-data.txt $(VENV)/.book
	@$(BIN)/pip install -r requirements-test.txt
	@$(BIN)/pip install --no-deps -r requirements-data.txt
	@touch $@
