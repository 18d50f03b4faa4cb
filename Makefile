.DEFAULT_GOAL := help
.PHONY: help install lint types test slow docs bench experiments clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## install sketchfed, editable, with all that the checks need
	pip install -c constraints.txt -e '.[test]'

lint: ## check style and formatting with ruff
	ruff check
	ruff format --check

types: ## check types with mypy, strictly
	mypy

test: ## run the tests and the docs' examples
	pytest -n 2

slow: ## run the tests that take minutes
	pytest -n 2 -m slow

docs: ## build the site into docs/_build/html; a warning is an error
	sphinx-build -q -W --keep-going docs docs/_build/html

bench: ## time the kernels against their peers and record it in benchmarks/results/
	sketchfed bench kernels --out benchmarks/results

experiments: ## measure the papers' tables anew and record them in experiments/
	sketchfed reproduce table-1 --out experiments/table-1

clean: ## delete what the other targets made, except runs/
	rm -rf docs/_build build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
