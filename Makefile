.DEFAULT_GOAL := help
.PHONY: help install lint types test slow slowest tables docs bench experiments clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## install sketchfed and its lab, editable, with all that the checks need
	pip install -c constraints.txt -e '.[test]' -e lab

lint: ## check style, formatting and layers
	ruff check
	ruff format --check
	lint-imports

types: ## check types with mypy, strictly
	mypy

test: ## run the tests and the docs' examples
	pytest -n 3

slow: ## run the tests that take minutes
	pytest -n 3 -m slow

slowest: ## run the tests and list the slowest of them in CONTRIBUTING.md
	pytest -n 3 --junit-xml build/tests.xml
	python docs/slowest.py build/tests.xml

tables: ## write the tables and drawings of the pages anew, from the code and from recorded results
	python docs/tables.py
	python docs/drawings.py

docs: ## build the site into docs/_build/html; a warning is an error
	sphinx-build -q -W --keep-going docs docs/_build/html

bench: ## time kernels, rounds, means, noise, secure sums, layers, subspaces, cohorts, federations, models and ranks and record it in lab/benchmarks/results/
	for topic in kernels rounds mean privacy secure layers dome scale federation models ranks; do sketchfed bench $$topic --out lab/benchmarks/results || exit 1; done

EXPERIMENTS = table-1 theory global-rate layers-at-equal-bytes sketch-families bytes-to-accuracy bytes-to-accuracy-cifar \
  local-drift quantity-skew decentralised gossip-rate diameter \
  rand-proj-figure-2 rand-proj-figure-3 rand-proj-figure-6 rand-proj-figure-7 rand-proj-closed-form \
  power-iteration k-means linear-regression codecs-at-equal-bytes private-accuracy private-accuracy-clients \
  private-accuracy-clients-secure privacy-audit dbcl-table-1 dbcl-table-1-cnn dbcl-figure-1 dbcl-figure-2 dbcl-figure-3 \
  dome-accuracy dome-energy dome-lemmas batch-norm shakespeare \
  audit-reconstruction audit-dbcl audit-neighbours audit-property audit-membership robust-rules flower-soak

experiments: ## record what is missing of the experiments in lab/experiments/; hours for all of them from nothing
	for name in $(EXPERIMENTS); do sketchfed reproduce $$name --out lab/experiments/$$name || exit 1; done

clean: ## delete what the other targets made, except runs/
	rm -rf docs/_build build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests lab docs -name __pycache__ -type d -prune -exec rm -rf {} +
