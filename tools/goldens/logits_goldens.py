# SPDX-License-Identifier: Apache-2.0
"""Records what llama.cpp computes for real text: per position the 32 likeliest tokens.

Usage: python logits_goldens.py [--models DIR] [--out DIR]      (needs llama-cpp-python)

One file per model and text: the tokens, and after each of them log_sum_exp (of the raw logits, natural logarithm),
top_ids and top_logprobs (best first) and next_logprob (of the token that follows in the text). A divergence can be
computed over the 32 and one bucket for the rest.
"""
import argparse
import gzip
import hashlib
import importlib.metadata
import json
import os

import numpy as np

from tokenizer_goldens import sha256

MODELS = ["gemma-3-270m-q4_k_m.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"]
# Name, file of Debian 12 (package), bytes to skip.
TEXTS = [
    ("prose", "/usr/share/doc/libjpeg-dev/structure.txt.gz", 0),
    ("licence", "/usr/share/common-licenses/GPL-3", 0),
]
POSITIONS = 512
TOP = 32
SETTINGS = {"n_ctx": 1024, "n_batch": 512, "flash_attn": False, "logits_all": True, "n_threads": 2, "n_threads_batch": 2}


def read_text(path):
    with (gzip.open(path) if path.endswith(".gz") else open(path, "rb")) as file:
        return file.read()


def main():
    import llama_cpp

    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=os.path.expanduser("~/.cache/segue/models"))
    parser.add_argument("--out", default=os.path.join(here, "../../tests/golden/logits"))
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    for name in MODELS:
        path = os.path.join(args.models, name)
        model = llama_cpp.Llama(path, verbose=False, **SETTINGS)
        add_bos = llama_cpp.llama_vocab_get_add_bos(model._model.vocab)
        for text_name, text_path, skip in TEXTS:
            text = read_text(text_path)[skip:][:16384]
            tokens = model.tokenize(text, add_bos=add_bos, special=False)[:POSITIONS + 1]
            assert len(tokens) == POSITIONS + 1
            model.reset()
            model.eval(tokens[:POSITIONS])
            logits = np.asarray(model.scores[:POSITIONS], dtype=np.float64)
            peak = logits.max(axis=1)
            log_sum_exp = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
            order = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
            logprobs = np.take_along_axis(logits, order, axis=1) - log_sum_exp[:, None]
            following = logits[np.arange(POSITIONS), tokens[1:]] - log_sum_exp
            record = {
                "recorded_with": "llama-cpp-python " + importlib.metadata.version("llama-cpp-python"),
                "settings": SETTINGS | {"kv": "f16"}, "model": name, "sha256": sha256(path),
                "text": {"name": text_name, "file": text_path, "bytes_read": len(text), "sha256": hashlib.sha256(text).hexdigest()},
                "perplexity": round(float(np.exp(-following.mean())), 5),
            }
            lists = {
                "tokens": tokens,
                "log_sum_exp": [round(float(x), 4) for x in log_sum_exp],
                "next_logprob": [round(float(x), 5) for x in following],
                "top_ids": order.tolist(),
                "top_logprobs": [[round(float(x), 5) for x in row] for row in logprobs],
            }
            out = os.path.join(args.out, f"{name.removesuffix('.gguf')}.{text_name}.json")
            with open(out, "w", encoding="utf-8") as file:
                file.write(json.dumps(record)[:-1])
                for key, values in lists.items():
                    nested = isinstance(values[0], list)
                    rows = [json.dumps(row, separators=(",", ":")) for row in values] if nested else None
                    body = "[\n" + ",\n".join(rows) + "]" if nested else json.dumps(values, separators=(",", ":"))
                    file.write(f',\n"{key}": {body}')
                file.write("}\n")
            top_mass = np.exp(logprobs).sum(axis=1).mean()
            print(f"{name} {text_name}: perplexity {record['perplexity']}, the top {TOP} hold {top_mass:.3f}, {os.path.getsize(out)} bytes")


if __name__ == "__main__":
    main()
