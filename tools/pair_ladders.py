#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step times of two builds that took turns, from their `segue ladder --json` documents, beside the floor.

    tools/pair_ladders.py GBPS --group NAME CONFIG.json BEFORE.json AFTER.json [BEFORE.json AFTER.json ..]
                          [--group ..] > bench/results/NAME.json

The floor of a step is what it must read once, bf16 weights and the keys and values that a row sees, over
GBPS, the read bandwidth of the device. CONFIG.json: the model's, dense Gemma 4 in form.
"""
import argparse
import json
import statistics


def step_bytes(config: dict, depth: int) -> float:
    """Weights and K and V that a step at this depth reads."""
    text = config.get("text_config", config)
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    total = text["vocab_size"] * hidden * 2
    for kind in text["layer_types"]:
        full = kind == "full_attention"
        shared = full and text["attention_k_eq_v"]
        dim = text["global_head_dim"] if full else text["head_dim"]
        kv_heads = text["num_global_key_value_heads"] if shared else text["num_key_value_heads"]
        rows = heads * dim + (1 if shared else 2) * kv_heads * dim
        weights = hidden * (rows + heads * dim + 3 * text["intermediate_size"])
        keys = depth if full else min(depth, text["sliding_window"])
        total += 2 * weights + 2 * 2 * keys * kv_heads * dim
    return total


def medians(documents: list[dict], depth: int, spec: str) -> list[float]:
    return [row["step_ms"]["median"] for document in documents for row in document["rows"]
            if (row["depth"], row["spec"]) == (depth, spec)]


def group(name: str, config_path: str, paths: list[str], gbps: float) -> dict:
    documents = []
    for path in paths:
        with open(path) as file:
            documents.append(json.load(file))
    with open(config_path) as file:
        config = json.load(file)
    before, after = documents[0::2], documents[1::2]
    if not before or len(before) != len(after):
        raise SystemExit(f"pair_ladders: group {name} needs pairs of documents")
    rows = []
    for row in before[0]["rows"]:
        depth, spec = row["depth"], row["spec"]
        old, new = medians(before, depth, spec), medians(after, depth, spec)
        rows.append({"depth": depth, "spec": spec,
                     "floor_ms": round(step_bytes(config, depth) / gbps / 1e6, 4),
                     "before_ms": old, "after_ms": new,
                     "ratio": statistics.median(b / a for b, a in zip(old, new))})
    return {"name": name, "settings": before[0]["settings"], "machine": before[0]["machine"],
            "builds": [before[0]["build"], after[0]["build"]], "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gbps", type=float)
    parser.add_argument("--group", nargs="+", action="append", required=True)
    options = parser.parse_args()
    groups = [group(g[0], g[1], g[2:], options.gbps) for g in options.group]
    print(json.dumps({"read_gbps": options.gbps, "pairs": groups}, indent=1))


if __name__ == "__main__":
    main()
