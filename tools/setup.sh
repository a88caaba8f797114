#!/bin/sh
# What a build needs, from the system's packages.
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh
need gcc "the compiler"
need libc6-dev "headers of the C library"
need cmake "configures the build"
need ninja-build "runs the build"
need libyaml-dev "reads recipes and model descriptions"
need libxxhash-dev "hashes checkpoints"
need zlib1g-dev "reads .gz text and dictionaries"
need libzstd-dev "reads .zst text"
install_needed
