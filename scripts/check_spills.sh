#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the CUDA kernels and fails when ptxas reports a spill or a serialised product
# in any of them. Needs nvcc, no GPU. Usage: scripts/check_spills.sh [nvcc]
set -euo pipefail
cd "$(dirname "$0")/.."
nvcc=${1:-nvcc}
# Part of a kernel's name = bytes that it may spill; docs/kernels/cuda-sm80.md says why.
allowed=("Li128ELi1EE=268")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
kernels=0
for source in src/attention/cuda/decode_*.cu src/attention/cuda/sm80/decode_*.cu src/attention/cuda/reduce.cu src/ops/cuda/*.cu; do
  target=90a
  [[ $source == */decode_* && $source != */sm80/* ]] || target=80
  "$nvcc" -std=c++20 -gencode=arch=compute_$target,code=sm_$target --expt-relaxed-constexpr -DSEGUE_CUDA \
    -Isrc -Iinclude -Xptxas -v -cubin -o "$work/out.cubin" "$source" >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
  kernels=$((kernels + $(grep -c 'Compiling entry function' "$work/log")))
  if grep -qE 'C75[0-9]+' "$work/log"; then
    echo "$source: ptxas serialises products:"
    grep -E 'C75[0-9]+' "$work/log"
    failed=1
  fi
  if ! python3 - "$work/log" "$source" "${allowed[@]}" <<'PYTHON'; then
import re
import sys

log, source, *allowed = sys.argv[1:]
limits = {name: int(limit) for name, limit in (entry.split("=") for entry in allowed)}
properties = re.findall(r"Function properties for (\S+)\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads",
                        open(log).read())
found = [(name, int(stores), int(loads)) for name, stores, loads in properties
         if max(int(stores), int(loads)) > max((limit for part, limit in limits.items() if part in name), default=0)]
for name, stores, loads in found:
    print(f"{source}: {name} spills: {stores} bytes stored, {loads} loaded")
sys.exit(1 if found else 0)
PYTHON
    failed=1
  fi
done
[ "$kernels" -gt 0 ] || { echo "no kernel was compiled"; exit 1; }
[ "$failed" -eq 0 ] && echo "$kernels kernels, no spills but those that are listed"
exit "$failed"
