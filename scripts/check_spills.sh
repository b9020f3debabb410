#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the CUDA attention kernels and fails when ptxas reports a spill or a serialised product
# in any of them. Needs nvcc, no GPU. Usage: scripts/check_spills.sh [nvcc]
set -euo pipefail
cd "$(dirname "$0")/.."
nvcc=${1:-nvcc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
kernels=0
for source in src/attention/cuda/decode_*.cu; do
  "$nvcc" -std=c++20 -gencode=arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -DSEGUE_CUDA \
    -Isrc -Iinclude -Xptxas -v -cubin -o "$work/out.cubin" "$source" >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
  kernels=$((kernels + $(grep -c 'Compiling entry function' "$work/log")))
  if grep -qE 'C75[0-9]+' "$work/log"; then
    echo "$source: ptxas serialises products:"
    grep -E 'C75[0-9]+' "$work/log"
    failed=1
  fi
  if grep -E 'bytes spill stores' "$work/log" | grep -qv ' 0 bytes spill stores, 0 bytes spill loads'; then
    echo "$source: kernels that spill:"
    grep -B2 -E 'spill stores' "$work/log" | grep -B1 -A1 -E '[1-9][0-9]* bytes spill' | grep -E 'Function|spill'
    failed=1
  fi
done
[ "$kernels" -gt 0 ] || { echo "no kernel was compiled"; exit 1; }
[ "$failed" -eq 0 ] && echo "$kernels kernels, no spills"
exit "$failed"
