# SPDX-License-Identifier: Apache-2.0
"""Compares an exported pair, as transformers computes it, with recorded logits and drafts; --record makes the record.

Usage: python check_export.py --pair DIR --golden FILE                          (needs transformers with gemma4)
       python check_export.py --pair DIR --golden FILE --record --held-out held_out.jsonl

Float32 throughout, weights unpacked. The record: a prompt of 600 tokens, the greedy continuation of 64, after each of
them the 8 likeliest tokens with their logits (softcap applied), and for every round start within the continuation 4
drafts with the distance of each from the runner-up. A round that starts at position s knows the keys of positions 0 to
s - 1, on sliding layers the last `window` of them, and the drafter's position is s.
Also checks that model.py, which training used, gives the same numbers.
"""
import argparse
import hashlib
import json
import os
import sys

import torch
import transformers
from tokenizers import Tokenizer

import export
import reference

PROMPT_TOKENS, CONTINUATION, TOP, DRAFTS = 600, 64, 8, 4
PROMPT_DOCUMENT = "sqlite3-doc"  # in the public domain
LOGIT_TOLERANCE = 2e-4  # of the largest logit: the same float32 graph on another machine


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def prompt_of(held_out, tokenizer):
    with open(held_out) as file:
        for line in file:
            document = json.loads(line)
            ids = tokenizer.encode(document["text"]).ids
            if document["id"].startswith(PROMPT_DOCUMENT) and len(ids) > 2 * PROMPT_TOKENS:
                return document["id"], ids[:PROMPT_TOKENS]
    raise SystemExit(f"no held-out document of {PROMPT_DOCUMENT} is long enough")


def greedy(target, prompt, count):
    """Continuation by one pass over the prompt and single steps over transformers' own cache."""
    out = target(input_ids=torch.tensor([prompt]), use_cache=True)
    cache = getattr(out, "cache", None)
    name = "cache" if cache is not None else "past_key_values"
    tokens = []
    for _ in range(count):
        tokens.append(int(out.logits[0, -1].argmax()))
        out = target(input_ids=torch.tensor([tokens[-1:]]), use_cache=True, **{name: getattr(out, name)})
    return tokens


def record_of(target, assistant, prompt, continuation):
    tokens = torch.tensor(prompt + continuation)
    logits, hidden, memory = reference.forward(target, tokens)
    steps, rounds = [], []
    for place in range(len(prompt) - 1, len(tokens) - 1):
        values, ids = logits[place].topk(TOP)
        steps.append({"ids": ids.tolist(), "logits": [round(v, 5) for v in values.tolist()]})
    for start in range(len(prompt), len(tokens)):
        drafted, rows = reference.drafts(target, assistant, tokens[:start + 1], hidden, memory, DRAFTS)
        best = rows.topk(2).values
        rounds.append({"start": start, "drafts": drafted, "margins": [round(v, 5) for v in
                                                                      (best[:, 0] - best[:, 1]).tolist()]})
    return {"largest_logit": round(logits[len(prompt) - 1:].abs().max().item(), 5), "steps": steps, "rounds": rounds}


def compare(name, found, wanted, tolerance=None):
    good = found == wanted if tolerance is None else abs(found - wanted) <= tolerance
    if not good:
        print(f"{name}: found {found}, recorded {wanted}")
    return good


def check(record, fresh):
    good = True
    bound = LOGIT_TOLERANCE * record["largest_logit"]
    for index, (new, old) in enumerate(zip(fresh["steps"], record["steps"], strict=True)):
        found = dict(zip(new["ids"], new["logits"]))
        for token, value in zip(old["ids"][:4], old["logits"][:4]):
            good &= compare(f"step {index} token {token}", found.get(token, float("nan")), value, bound)
    for new, old in zip(fresh["rounds"], record["rounds"], strict=True):
        clear = next((j for j, margin in enumerate(old["margins"]) if margin < 1e-3), DRAFTS)
        good &= compare(f"drafts at {old['start']}", new["drafts"][:clear], old["drafts"][:clear])
    return good


def check_training_model(folder, target, tokens):
    """Largest difference of logits between model.py and transformers, over the largest logit."""
    wanted, _, _ = reference.forward(target, tokens)
    ours = export.read_target(os.path.join(folder, "target"))
    found = ours.logits(ours(tokens[None])[0])[0]
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", required=True)
    parser.add_argument("--golden", required=True)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--held-out", help="held_out.jsonl of corpus.py, for --record")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    folders = [os.path.join(args.pair, part) for part in ("target", "assistant")]
    target, assistant = reference.load(*folders)
    hashes = {part: sha256(os.path.join(folder, "model.safetensors"))
              for part, folder in zip(("target", "assistant"), folders)}
    if args.record:
        tokenizer = Tokenizer.from_file(os.path.join(folders[0], "tokenizer.json"))
        name, prompt = prompt_of(args.held_out, tokenizer)
        continuation = greedy(target, prompt, CONTINUATION)
        fresh = record_of(target, assistant, prompt, continuation)
        record = {"recorded_with": {"transformers": transformers.__version__, "torch": torch.__version__},
                  "sha256": hashes, "document": name, "text": tokenizer.decode(prompt, skip_special_tokens=True),
                  "prompt": prompt, "continuation": continuation,
                  "continuation_text": tokenizer.decode(continuation, skip_special_tokens=True), **fresh}
        with open(args.golden, "w") as file:  # one line per list entry keeps differences readable
            parts = []
            for key, value in record.items():
                if key in ("steps", "rounds"):
                    value = "[\n  " + ",\n  ".join(json.dumps(item) for item in value) + "]"
                else:
                    value = json.dumps(value)
                parts.append(f"{json.dumps(key)}: {value}")
            file.write("{" + ",\n ".join(parts) + "}\n")
    with open(args.golden) as file:
        record = json.load(file)
    good = compare("sha256", hashes, record["sha256"])
    good &= compare("greedy continuation", greedy(target, record["prompt"], CONTINUATION), record["continuation"])
    good &= check(record, record_of(target, assistant, record["prompt"], record["continuation"]))
    padded = (record["prompt"] + record["continuation"])[:512]
    error = check_training_model(args.pair, target, torch.tensor(padded))
    good &= compare("model.py against transformers", error, 0.0, LOGIT_TOLERANCE)
    print(f"model.py against transformers: {error:.1e} of the largest logit;", "equal" if good else "DIFFERENT")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
