# Thin front of CMake and Ninja. `make demo` and `make check` do all of their set-up.
BUILD ?= build
.PHONY: all setup demo check bench tidy fuzz sanitize clean

all: setup
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release >$(BUILD).log 2>&1 || (cat $(BUILD).log; exit 1)
	@rm -f $(BUILD).log
	@ninja -C $(BUILD)

setup:
	@tools/setup.sh

demo: all
	@tools/demo.sh $(BUILD)

check: all
	@tools/check.sh $(BUILD)

bench: all
	@$(BUILD)/cadre bench

tidy:
	@tools/tidy.sh

fuzz: setup
	@tools/fuzz.sh

sanitize: setup
	@tools/sanitize.sh

clean:
	rm -rf $(BUILD) build-*
