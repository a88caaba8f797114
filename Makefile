# Thin front of CMake and Ninja. `make demo` and `make check` do all of their set-up.
BUILD ?= build
.PHONY: all setup demo check check-peers base emulate rehearse bench plugin tidy fuzz sanitize clean

all: setup
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release >$(BUILD).log 2>&1 || (cat $(BUILD).log; exit 1)
	@rm -f $(BUILD).log
	@ninja -C $(BUILD)

setup:
	@tools/setup.sh

demo: all
	@tools/demo.sh $(BUILD)

# LoRA on somebody else's checkpoint and on conversations: toy, onboard, train, export, verify, merge, chat
adapt: all
	@tools/adapt.sh $(BUILD)

check: all
	@tools/check.sh $(BUILD)

# Against independent programs (Python packages of tools/peers/requirements.txt, in build-peers/venv)
check-peers: all
	@tools/check_peers.sh $(BUILD)

# The portable kernels alone, and under memcheck
base: all
	@tools/base.sh $(BUILD)

# The AVX-512 and AMX kernels with their instructions emulated
emulate: setup
	@tools/emulate.sh

# 128 ranks on this machine, expert groups of 64, all 93 layers at toy width: the losses of one rank, bit for bit
rehearse: all
	@test/rehearse.sh $(BUILD)

bench: all
	@$(BUILD)/cadre bench

# The CUDA plug-in alone, build-cuda/libcadre_cuda.so: needs nvcc of CUDA 13, no GPU
plugin: setup
	@cmake -S . -B build-cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DCADRE_CUDA=ON >build-cuda.log 2>&1 || (cat build-cuda.log; exit 1)
	@rm -f build-cuda.log
	@ninja -C build-cuda cadre_cuda

tidy: all
	@tools/tidy.sh $(BUILD)

fuzz: setup
	@tools/fuzz.sh

sanitize: setup
	@tools/sanitize.sh

clean:
	rm -rf $(BUILD) build-*
