# SPDX-License-Identifier: Apache-2.0
"""How far llama.cpp agrees with itself: the recorded goldens against its own other settings.

Usage: python self_agreement.py --json OUT [--models DIR]      (needs llama-cpp-python)

The yardstick for our own agreement with llama.cpp: nobody who rounds activations in another order can be nearer to it
than it is to itself. Top-1 agreement, and the divergence over the 32 likeliest tokens, over the 512 positions.
"""
import argparse
import importlib.metadata
import json
import os
import time

import numpy as np

from logits_goldens import MODELS, POSITIONS, SETTINGS, TEXTS

VARIANTS = {"the same": {}, "flash attention": {"flash_attn": True}, "KV f32": {"type_k": 0, "type_v": 0},
            "one row at a time": {"n_batch": 1, "n_ubatch": 1}}


def main():
    import llama_cpp

    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=os.path.expanduser("~/.cache/segue/models"))
    parser.add_argument("--json", required=True)
    args = parser.parse_args()
    rows = []
    for name in MODELS:
        for text, _, _ in TEXTS:
            with open(os.path.join(here, "../../tests/golden/logits", f"{name.removesuffix('.gguf')}.{text}.json"),
                      encoding="utf-8") as file:
                golden = json.load(file)
            ids, logprobs = np.array(golden["top_ids"]), np.array(golden["top_logprobs"])
            for label, settings in VARIANTS.items():
                model = llama_cpp.Llama(os.path.join(args.models, name), verbose=False, **(SETTINGS | settings))
                model.reset()
                model.eval(golden["tokens"][:POSITIONS])
                logits = np.asarray(model.scores[:POSITIONS], dtype=np.float64)
                peak = logits.max(axis=1, keepdims=True)
                own = np.take_along_axis(logits, ids, 1) - peak - np.log(np.exp(logits - peak).sum(1, keepdims=True))
                rows.append({"model": name, "text": text, "settings": label,
                             "top1_agreement": float((logits.argmax(1) == ids[:, 0]).mean()),
                             "kl_top32": float((np.exp(logprobs) * (logprobs - own)).sum(1).mean())})
                print(f"{name} {text}, {label}: top-1 {100 * rows[-1]['top1_agreement']:.2f} %, KL {rows[-1]['kl_top32']:.5f}")
                del model
    with open(args.json, "w", encoding="utf-8") as file:
        json.dump({"recorded_with": "llama-cpp-python " + importlib.metadata.version("llama-cpp-python"),
                   "date": time.strftime("%Y-%m-%d"), "rows": rows}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
