#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails when an object of an instruction level defines a weak symbol. The linker keeps one copy of a
# weak symbol for the whole program: if it kept one that was compiled for AVX-512, the program would
# stop on a CPU without it. Looks at a debug build, because an optimised one may inline such functions
# away and hide the fault.
#   scripts/check_weak_symbols.sh BUILD_DIR
set -euo pipefail

build=${1:?usage: scripts/check_weak_symbols.sh BUILD_DIR}
objects=0
faults=0
while IFS= read -r object; do
  objects=$((objects + 1))
  weak=$(nm -C --defined-only "$object" | awk '$2 ~ /^[WVu]$/')
  if [[ -n $weak ]]; then
    faults=$((faults + 1))
    printf '%s defines weak symbols:\n%s\n' "$object" "$weak"
  fi
done < <(find "$build/src" -name '*.isa.cc.o')

if ((objects == 0)); then
  echo "check_weak_symbols: no *.isa.cc.o under $build" >&2
  exit 1
fi
echo "check_weak_symbols: $objects objects, $faults with weak symbols"
((faults == 0))
