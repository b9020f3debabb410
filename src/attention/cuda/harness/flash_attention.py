# SPDX-License-Identifier: Apache-2.0
"""Times FlashAttention-2 as torch carries it, for the comparison of prefill: causal, 8K x 8K, one sequence."""

import argparse
import json

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def time_us(call, replays):
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    samples = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3)
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--replays", type=int, default=11)
    options = parser.parse_args()
    cells = []
    for q_heads, kv_heads, head_dim in ((64, 8, 128), (16, 8, 256)):
        shape = lambda heads: (1, heads, options.rows, head_dim)
        q = torch.randn(shape(q_heads), dtype=torch.bfloat16, device="cuda")
        k, v = (torch.randn(shape(kv_heads), dtype=torch.bfloat16, device="cuda") for _ in range(2))

        def call():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=True)

        samples = time_us(call, options.replays)
        us = sorted(samples)[len(samples) // 2]
        operations = options.rows * (options.rows + 1) / 2 * q_heads * head_dim * 4
        cells.append({"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "rows": options.rows,
                      "us": us, "tflop_per_s": operations / us / 1e6, "samples": samples})
        print(f"FlashAttention-2 ({q_heads}, {kv_heads}, {head_dim}) {options.rows} rows: {us:.1f} us,"
              f" {operations / us / 1e6:.0f} TFLOP/s")
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cells": cells}, file, indent=1)


if __name__ == "__main__":
    main()
