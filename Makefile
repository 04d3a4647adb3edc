# `make demo` and `make test` need Debian 12 (or alike) with python3, python3-venv, python3-dev, g++
# and make. Everything else comes from pip, pinned in requirements/, into .venv.

PYTHON ?= python3
VENV := $(CURDIR)/.venv

# One ROS 2 in a process: that of .venv. What a sourced workspace sets does not reach the recipes.
unexport COLCON_PREFIX_PATH CMAKE_PREFIX_PATH LD_LIBRARY_PATH PYTHONHOME PYTHONPATH
unexport RMW_IMPLEMENTATION ROS_DISTRO _ROS_WHEELS_BOOTSTRAP_COMPLETE
run = @echo "+ $(1)"; PATH="$(VENV)/bin:$$PATH" VIRTUAL_ENV="$(VENV)" AMENT_PREFIX_PATH="$(VENV)" $(1)

# Stay on this machine, and out of the domain of a robot that may run on it.
export ROS_AUTOMATIC_DISCOVERY_RANGE ?= LOCALHOST
ifndef ROS_DOMAIN_ID
export ROS_DOMAIN_ID := $(shell shuf -i 20-100 -n 1)
endif

.DEFAULT_GOAL := help
.PHONY: help demo test library kernels gpu-check lint setup setup-dev setup-gpu clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: setup ## Run the small policy over real ROS 2 topics; write out/demo.json and out/demo.png.
	$(call run,flashrt demo)

test: lint ## Run ruff, mypy and pytest.
	$(call run,python -m pytest $(PYTEST_ARGS))

library: ## Build the library of the C interface of this checkout.
	$(PYTHON) tools/build_abi.py

kernels: ## Build the CUDA kernels of this checkout with nvcc.
	$(PYTHON) tools/build_kernels.py

gpu-check: setup-gpu kernels ## On a GPU: op tests, compute-sanitizer, 100,000 decisions. Takes minutes.
	$(call run,python -m pytest -q -m gpu test $(PYTEST_ARGS))
	$(call run,python tools/check_gpu.py)
	$(call run,python tools/soak.py)

lint: setup-dev ## Run ruff and mypy.
	$(call run,ruff check .)
	$(call run,ruff format --check .)
	$(call run,mypy)

setup: ## Set up .venv, or bring it up to date.
	@$(PYTHON) tools/environment.py

setup-dev: ## The same, with the tools that `make test` needs.
	@$(PYTHON) tools/environment.py --dev

setup-gpu: ## The same, with what a GPU needs: torch for CUDA 13 and the extra `cuda`.
	@$(PYTHON) tools/environment.py --gpu

clean: ## Remove .venv, build output and caches.
	rm -rf .venv build install log out .mypy_cache .ruff_cache .pytest_cache *.egg-info
