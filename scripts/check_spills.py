#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the CUDA kernels and fails when ptxas reports a spill or a serialised product in any of them.

Needs nvcc, no GPU. Usage: scripts/check_spills.py [nvcc]
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Longest first, so that no core waits for the last one.
SOURCES = ["src/attention/cuda/decode_*.cu", "src/attention/cuda/sm80/decode_*.cu",
           "src/attention/cuda/reduce.cu", "src/ops/cuda/*.cu"]
# Part of a kernel's name and the bytes that it may spill; docs/kernels/cuda-sm80.md says why.
ALLOWED = {"Li128ELi1EE": 268}
SPILLS = re.compile(r"Function properties for (\S+)\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads")


def compiled(nvcc, source):
    """Whether it compiles, and what ptxas says of its kernels."""
    # wgmma is the sm_90 family's; everything else runs on sm_80 too, which has less room.
    target = "90a" if "decode_" in source.name and "sm80" not in source.parts else "80"
    with tempfile.TemporaryDirectory() as work:
        command = [nvcc, "-std=c++20", f"-gencode=arch=compute_{target},code=sm_{target}",
                   "--expt-relaxed-constexpr", "-DSEGUE_CUDA", "-Isrc", "-Iinclude", "-Xptxas", "-v", "-cubin",
                   "-o", os.path.join(work, "out.cubin"), str(source.relative_to(ROOT))]
        done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False)
    return done.returncode == 0, done.stdout


def faults(log):
    found = [line for line in log.splitlines() if re.search(r"C75\d+", line)]
    for name, stores, loads in SPILLS.findall(log):
        allowed = max((limit for part, limit in ALLOWED.items() if part in name), default=0)
        if max(int(stores), int(loads)) > allowed:
            found.append(f"{name} spills: {stores} bytes stored, {loads} loaded")
    return found


def main():
    nvcc = sys.argv[1] if len(sys.argv) > 1 else "nvcc"
    sources = [path for pattern in SOURCES for path in sorted(ROOT.glob(pattern))]
    kernels, failed = 0, False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, (ok, log) in zip(sources, pool.map(lambda source: compiled(nvcc, source), sources)):
            name = source.relative_to(ROOT)
            if not ok:
                sys.exit(f"{log}\n{name} does not compile")
            kernels += log.count("Compiling entry function")
            for fault in faults(log):
                print(f"{name}: {fault}")
                failed = True
    if kernels == 0:
        sys.exit("no kernel was compiled")
    if not failed:
        print(f"{kernels} kernels, no spills but those that are listed")
    sys.exit(failed)


if __name__ == "__main__":
    main()
