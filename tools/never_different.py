#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the matrix behind "never different" on a real model through `segue batch`.

Prompts x sampling {greedy, T 0.8 with top-p 0.95, the same with a repetition penalty} x speculation {off, ngram 1, 2, 4,
8, with --assistant mtp 1, 2, 4, 8, with --draft-model draft 4, auto} are the requests of one batch; every engine setting
(threads, prefill chunk, requests in flight) runs the whole batch. Tokens and logits hashes must be equal in all cells of
one prompt and sampling. The file is written after every setting; settings that it holds already are not run again, so a
long record can be made in pieces of one build.

  python3 tools/never_different.py --segue build/release/bin/segue -m model.gguf --json out.json
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

SAMPLINGS = {
    "greedy": {},
    "top-p": {"temperature": 0.8, "top_p": 0.95, "seed": 17},
    "penalty": {"temperature": 0.8, "top_p": 0.95, "seed": 17, "repeat_penalty": 1.2},
}
SPECS = [("off", 0), ("ngram", 1), ("ngram", 2), ("ngram", 4), ("ngram", 8)]
MTP_SPECS = [("mtp", 1), ("mtp", 2), ("mtp", 4), ("mtp", 8)]
DRAFT_SPECS = [("draft", 4)]
AUTO = [("auto", 0)]
SHORT = [
    "The capital of France is", "Once upon a time", "x = 1\ny = 2\nz =", "1, 2, 3, 4, 5,", "Liebe Freunde, heute",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n", "The quick brown fox jumps over the lazy dog. The quick brown",
    "SELECT name FROM users WHERE", "Roses are red,", "Dear Sir or Madam,\n\nI am writing to",
    "Monday: rain. Tuesday: rain. Wednesday:", "for i in range(10):\n    print(i)\nfor j in range(10):\n",
    "A B C D A B C D A B", "In 1969, the first", "<html><head><title>", "To be, or not to be,",
    "Ingredients:\n- flour\n- butter\n- sugar\n- ", "Q: What is two plus two?\nA:",
]


def token_count(args, text):
    out = subprocess.run([args.segue, "tokenize", "-m", args.model, "--prompt-file", "-", "--json", "-", "--quiet"],
                         input=text, check=True, capture_output=True, text=True).stdout
    return len(json.loads(out)["tokens"])


def longest_prompt(args, text):
    """The text, repeated, cut where it has at least --longest-tokens."""
    characters = 1000
    while True:
        prompt = (text * (characters // len(text) + 1))[:characters]
        found = token_count(args, prompt)
        if found >= args.longest_tokens:
            return prompt
        characters = max(characters + 1000, characters * args.longest_tokens // found // 1000 * 1000)


def prompts(args):
    with open(args.text, encoding="utf-8") as file:
        text = file.read()
    slices = args.slices
    longest = longest_prompt(args, text)
    repeated = text * (4000 // len(text) + 1)
    cuts = [text[i * len(text) // slices:][:1500] for i in range(slices)]
    return SHORT + cuts + [repeated[:4000], longest]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--segue", required=True)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--assistant", help="the model's assistant: adds mtp")
    parser.add_argument("--draft-model", help="a small model with the same vocabulary: adds draft")
    parser.add_argument("--ctx", default="16384")
    parser.add_argument("--text", required=True, help="a text for the long prompts")
    parser.add_argument("--longest-tokens", type=int, default=8000, help="tokens of the longest prompt, at least")
    parser.add_argument("--slices", type=int, default=0, help="as many more prompts, cut from the text")
    parser.add_argument("--settings", default=",".join(f"{t}:{c}:{b}" for t in (2, 1) for c in (512, 64) for b in (7, 2, 1)),
                        help="threads:chunk:in-flight, comma-separated")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--json", required=True)
    args = parser.parse_args()

    build = subprocess.run([args.segue, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    all_prompts = prompts(args)
    specs = SPECS + (MTP_SPECS if args.assistant else []) + (DRAFT_SPECS if args.draft_model else []) + AUTO
    models = ["-m", args.model]
    models += ["--assistant", args.assistant] if args.assistant else []
    models += ["--draft-model", args.draft_model] if args.draft_model else []
    document = {"model": os.path.basename(args.model), "build": build, "date": time.strftime("%Y-%m-%d"),
                "prompts": len(all_prompts), "longest_prompt_tokens": 0, "tokens": args.tokens, "samplings": SAMPLINGS,
                "specs": [list(spec) for spec in specs], "runs": [], "different": [], "results": []}
    if os.path.exists(args.json):
        with open(args.json, encoding="utf-8") as file:
            before = json.load(file)
        for key in ("model", "build", "prompts", "tokens", "samplings", "specs"):
            if before[key] != document[key]:
                sys.exit(f"{args.json} was recorded with {key} {before[key]}, this is {document[key]}")
        document = before
    expected = {(r["prompt"], r["sampling"]): (r["tokens"], r["logits_hash"]) for r in document["results"]}
    done = {f"{r['threads']}:{r['chunk']}:{r['in_flight']}" for r in document["runs"]}
    cells = [(p, s, spec) for p in range(len(all_prompts)) for s in SAMPLINGS for spec in specs]
    for setting in args.settings.split(","):
        if setting in done:
            continue
        threads, chunk, parallel = setting.split(":")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "requests.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                for p, sampling, (spec, k) in cells:
                    file.write(json.dumps({"prompt": all_prompts[p], "n": args.tokens, "spec": spec, "draft_tokens": k,
                                           "ignore_eos": True, "logits_hash": True, **SAMPLINGS[sampling]}) + "\n")
            start = time.time()
            out = subprocess.run([args.segue, "batch", *models, "--requests", path, "--threads", threads,
                                  "--prefill-chunk", chunk, "--parallel", parallel, "--ctx", args.ctx, "--quiet"],
                                 check=True, capture_output=True, text=True).stdout
        lines = [json.loads(line) for line in out.splitlines()]
        for (p, sampling, (spec, k)), line in zip(cells, lines, strict=True):
            result = (line["tokens"], line["logits_hash"])
            if expected.setdefault((p, sampling), result) != result:
                document["different"].append(
                    {"setting": setting, "prompt": p, "sampling": sampling, "spec": spec, "k": k})
        document["runs"].append({"threads": int(threads), "chunk": int(chunk), "in_flight": int(parallel),
                                 "cells": len(lines), "drafted": sum(line["stats"]["drafted"] for line in lines),
                                 "accepted": sum(line["stats"]["accepted"] for line in lines),
                                 "seconds": round(time.time() - start, 1)})
        document["longest_prompt_tokens"] = max(line["prompt_tokens"] for line in lines)
        document["results"] = [{"prompt": p, "sampling": s, "tokens": tokens, "logits_hash": value}
                               for (p, s), (tokens, value) in expected.items()]
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
        print(f"{setting}: {len(lines)} cells, {document['runs'][-1]['accepted']} of {document['runs'][-1]['drafted']} "
              f"drafts accepted, {len(document['different'])} different so far", flush=True)
    return 1 if document["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
