# Data-Parallel Training, Step by Step.  `make help` lists what there is.
#
# To install the CPU build of torch (much smaller), put the address of PyTorch's CPU index into
# PIP_EXTRA_INDEX_URL: pip reads it. To use another Python:  make book PYTHON=/path/to/python3

VENV := .venv/bin
READY := .venv/ready

# Jupyter must take its kernel from .venv, whatever the user has installed; the other settings
# keep a kernel from printing remarks about itself into a cell.
export JUPYTER_PREFER_ENV_PATH := 1
export PYDEVD_DISABLE_FILE_VALIDATION := 1
export PYTHON

# Everything runs on CPUs, and so comes out alike on every machine. With its GPUs:
# make lab CUDA_VISIBLE_DEVICES=0,1
CUDA_VISIBLE_DEVICES ?=
export CUDA_VISIBLE_DEVICES

.DEFAULT_GOAL := help
.PHONY: help book test check pdf lab grade handout picture bench format clean

help: ## list these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "make %-8s %s\n", $$1, $$2}'

$(READY): requirements.txt constraints.txt pyproject.toml tools/venv.sh
	@sh tools/venv.sh
	@touch $@

book: $(READY) ## build the book and say where to open it
	@$(VENV)/python -m tools.book

test: book ## run every test: library, labs, the rendered book, lint and types
	@$(VENV)/python -m pytest tests --claims -n 4 --dist loadfile --no-loadscope-reorder || { \
		echo "Next: mend it, and run what failed again: $(VENV)/python -m pytest --last-failed"; \
		exit 1; }
	@echo "All checks passed. Next: work in the labs (make lab), or commit what you changed."

check: $(READY) ## lint, types, floors, and the tests of what changed since the last commit
	@$(VENV)/python -m pytest -n 2 tests/test_architecture.py $$($(VENV)/python -m tools.changed)

pdf: book ## print the whole book into one file, _build/pdf/book.pdf, by Chromium
	@$(VENV)/python -m tools.pdf

lab: $(READY) ## copy labs and chapters to work/, which nothing overwrites, and open JupyterLab
	@$(VENV)/python -m tools.work
	@PYTHONPATH=$(CURDIR)/work $(VENV)/jupyter lab --notebook-dir=work \
		--LabApp.default_url=/lab/tree/START.ipynb --custom-css \
		--ServerApp.tornado_settings='{"static_custom_path": ["tools/lab"]}' $(if $(filter 0,$(shell id -u)),--allow-root)

grade: $(READY) ## grade what you have written in work/mine; of one file: make grade ONLY=ddp
	@echo "Grading work/mine: about ten seconds per milestone; what hangs is stopped after thirty."
	@PYTHONPATH=$(CURDIR)/work $(VENV)/python -m course.project mine $(if $(ONLY),"$(ONLY)")

handout: $(READY) ## write handout/, the course without solutions
	@$(VENV)/python -m tools.handout

picture: book ## make the README's pictures again, and the card of links to the book
	@$(VENV)/python -m tools.picture
	@$(VENV)/python -m tools.screens

bench: $(READY) ## measure minidist against torch's own collectives, DDP, ZeRO and FSDP2
	@$(VENV)/python -m benchmarks

format: $(READY) ## format the code, mend what lint can mend, strip the labs' outputs
	@$(VENV)/ruff check --fix --quiet . || true
	@$(VENV)/ruff format .
	@$(VENV)/nbstripout --keep-id notebooks/*.ipynb

clean: ## remove the built book and caches (rm -rf .venv removes the rest)
	rm -rf _build .pytest_cache .ruff_cache .mypy_cache
