# `make demo` and `make test` need Debian 12 (or alike) with python3, python3-venv, python3-dev, g++
# and make. Everything else comes from pip, pinned in requirements/, into .venv and .venv-jazzy.

PYTHON ?= python3
VENV := $(CURDIR)/.venv
JAZZY := $(CURDIR)/.venv-jazzy

# One ROS 2 in a process: that of its environment. What a sourced workspace sets does not reach the recipes.
unexport COLCON_PREFIX_PATH CMAKE_PREFIX_PATH LD_LIBRARY_PATH PYTHONHOME PYTHONPATH
unexport RMW_IMPLEMENTATION ROS_DISTRO _ROS_WHEELS_BOOTSTRAP_COMPLETE
run_in = @echo "+ $(2)"; PATH="$(1)/bin:$$PATH" VIRTUAL_ENV="$(1)" AMENT_PREFIX_PATH="$(1)" $(2)
run = $(call run_in,$(VENV),$(1))

# Stay on this machine, and out of the domain of a robot that may run on it.
export ROS_AUTOMATIC_DISCOVERY_RANGE ?= LOCALHOST
ifndef ROS_DOMAIN_ID
export ROS_DOMAIN_ID := $(shell shuf -i 20-100 -n 1)
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-jazzy test-emulated library kernels gpu-check lint setup setup-dev setup-gpu setup-jazzy clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: setup ## Run the small policy over real ROS 2 topics; write out/demo.json and out/demo.png.
	$(call run,flashrt demo)

# Processes side by side (pytest-xdist) take minutes less; each has a DDS domain of its own. What talks over DDS
# mostly waits, so more of it runs at once, and behind what computes; what is held to times comes last, in two
# processes again. What was late over DDS on a busy machine gets a second try, alone, and is listed at the end of its
# part: a defect that comes rarely passes then, too. With PYTEST_ARGS all is one call.
ROS_TESTS := test/replay test/launch test/ros

test: lint ## Run ruff, mypy and pytest on ROS 2 Kilted.
ifdef PYTEST_ARGS
	$(call run,python -m pytest $(PYTEST_ARGS))
else
	$(call run,python -m pytest -q -n 2 --dist loadfile $(addprefix --ignore=,$(ROS_TESTS)))
	$(call run,python tools/second_try.py -n 4 --dist loadscope -m 'not timed' $(ROS_TESTS))
	$(call run,python tools/second_try.py -n 2 --dist loadscope -m timed $(ROS_TESTS))
endif

test-jazzy: setup-jazzy ## Run the tests marked `jazzy` on ROS 2 Jazzy.
	$(call run_in,$(JAZZY),python -m pytest -q -m jazzy test/ros test/launch $(JAZZY_PYTEST_ARGS))

test-emulated: setup-dev ## Run every test of CUDA kernels on the CPU, thread by thread. Takes long.
	$(call run,python -m test.emulator.build)
	$(call run,env FLASHRT_EMULATED=1 python -m pytest -q -n 2 --timeout 600 -m kernels test/kernels $(PYTEST_ARGS))
	$(call run,env FLASHRT_EMULATED=1 python -m pytest -q -n 2 --timeout 600 test/emulator)

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

setup-jazzy: ## Set up .venv-jazzy for test-jazzy, or bring it up to date.
	@$(PYTHON) tools/environment.py --ros jazzy --dev

clean: ## Remove environments, build output and caches.
	rm -rf .venv .venv-jazzy build install log out .mypy_cache .ruff_cache .pytest_cache *.egg-info
