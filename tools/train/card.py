# SPDX-License-Identifier: Apache-2.0
"""Writes the pair's model card, README.md, from the recorded JSON beside it.

Usage: python card.py --pair DIR [--check]          (--check: fail if the card differs from the records)
"""
import argparse
import json
import os
import sys

PARTS = ("target", "assistant")
DEPTHS = (1024, 4096, 8192)  # those that acceptance.py measures unless told otherwise


def load(folder, name):
    with open(os.path.join(folder, name)) as file:
        return json.load(file)


def millions(count):
    return f"{count / 1e6:.1f} M"


def percent(values):
    return " | ".join(f"{value:.2f}" for value in values)


def shape_rows(train):
    rows = [("layers (s sliding, f full)", "types"), ("hidden size", "hidden"), ("query heads", "heads"),
            ("kv heads, sliding", "kv_heads"), ("kv heads, full", "global_kv_heads"),
            ("head dim, sliding", "head_dim"), ("head dim, full", "global_head_dim"),
            ("intermediate size", "intermediate"), ("window", "window"), ("vocabulary", "vocabulary")]
    lines = ["| | target | assistant |", "|---|---|---|",
             f"| parameters | {millions(train['target_parameters'])} | {millions(train['assistant_parameters'])} |"]
    return lines + [f"| {title} | {train['target'][key]} | {train['assistant'][key]} |" for title, key in rows]


def bytes_rows(folder):
    lines = ["| file | bytes |", "|---|---|"]
    for part in PARTS:
        for name in sorted(os.listdir(os.path.join(folder, part))):
            lines.append(f"| {part}/{name} | {os.path.getsize(os.path.join(folder, part, name)):,} |")
    return lines


def acceptance_rows(acceptance):
    lines = ["| depth | prompts | rounds | 1 | 2 | 3 | 4 | tokens per round | first draft on the document itself |",
             "|---|---|---|---|---|---|---|---|---|"]
    return lines + [f"| {d['depth']} | {d['documents']} | {d['rounds']} | {percent(d['positions'])} | "
                    f"{d['tokens_per_round']:.2f} | {d['text_first']:.2f} |" for d in acceptance["depths"]]


def depths_missing(acceptance):
    missing = sorted(set(DEPTHS) - {d["depth"] for d in acceptance["depths"]})
    return [f"Not measured: {', '.join(map(str, missing))}.", ""] if missing else []


def throughput_rows(train):
    lines = ["| stage | steps | tokens per second | epochs |", "|---|---|---|---|"]
    return lines + [f"| {r['stage']} | {r['steps']} | {r['tokens_per_second']:,} | {r['epochs_total']} |"
                    for r in train["records"] if "tokens_per_second" in r]


def corpus_rows(corpus):
    lines = ["| package | version | licence | documents | characters |", "|---|---|---|---|---|"]
    return lines + [f"| {name} | {p['version']} | {p['licence']} | {p['documents']} | {millions(p['characters'])} |"
                    for name, p in corpus["packages"].items()]


def card(folder):
    train, corpus, acceptance = (load(folder, f"{name}.json") for name in ("train", "corpus", "acceptance"))
    agreement = ", ".join(f"{value:.3f}" for value in train["held_out_agreement"])
    rates = train["rates"]
    parts = [
        "<!-- Written by tools/train/card.py from the JSON files beside it: do not edit. -->",
        "# segue-pair", "",
        "A small language model with Gemma 4's architecture and its MTP assistant, so that Segue's demonstrations and "
        "tests run with no download. It continues software documentation; it is no chat model, knows nothing "
        "reliably, and must not be used for anything but exercising an engine.", "",
        *shape_rows(train), "",
        "Target: 5 sliding layers to 1 full one, K = V projection on full layers, V norm, proportional RoPE on a "
        "quarter of the pairs of full layers, layer scalars, final softcap 30, tied embedding. Linear weights are "
        "compressed-tensors `pack-quantized` (4 bits, groups of 32, symmetric), the rest is bf16. Assistant "
        "(`gemma4_assistant`): only queries of its own, reads the target's last sliding and last full layer; bf16.", "",
        *bytes_rows(folder), "",
        "## Quality", "",
        f"Held-out loss, nats per token of {corpus['characters_per_token']} characters on average, pieces of "
        f"{train['batches'][1][0]} tokens: **{train['held_out_4_bits']:.3f}** as exported (w4a16), {train['held_out_unrounded']:.3f} with the "
        "same weights before rounding to 4 bits; bf16 arithmetic both. Rounding is part of the last stretch of "
        "training, so the two are no independent models. Held-out documents come from the same packages as the "
        "training documents.", "",
        "Share of rounds in which drafts 1 to j are all accepted, greedy, k = 4, prompts of the given length from "
        "held-out documents, "
        f"{acceptance['tokens']} tokens each, float32 arithmetic, target as exported:", "",
        *acceptance_rows(acceptance), "", *depths_missing(acceptance),
        "A model of this size repeats itself when it continues greedily, and repetition is easy to draft: the last "
        "column is the share of places inside the document, after the same prompt, where the first draft behind the "
        "document's token is what the target would choose there.", "",
        f"During training, on pieces of {train['batches'][2][0]} held-out tokens, where the text itself is what the target would have "
        f"chosen: draft j agrees in {agreement}.", "",
        "## Training", "",
        f"One run of {train['seconds']:.0f} seconds on one {train['device']}, PyTorch {train['torch']}, bf16, seed "
        f"{train['seed']}; clock-driven, so a repetition is close but not equal. Muon for matrices (peak rate "
        f"{rates['target'][0]} and {rates['assistant'][0]}), AdamW for tables, norms and scalars ({rates['target'][1]} "
        f"and {rates['assistant'][1]}), falling linearly to 0. Batches (length, sequences): target "
        f"{train['batches'][0]}, its last part with 4-bit rounding {train['batches'][1]}, assistant "
        f"{train['batches'][2]}. The assistant is unrolled over 4 drafts at a constant position, fed with its own "
        "feedback, and learns the rounded target's distribution and first choice.", "",
        *throughput_rows(train), "",
        "To repeat it: `tools/train/README.md`.", "",
        "## Data", "",
        f"Documentation from Debian 12 packages: {corpus['training']['documents']} documents, "
        f"{millions(corpus['training']['tokens'])} tokens for training; {corpus['held_out']['documents']} documents, "
        f"{millions(corpus['held_out']['tokens'])} tokens held out (by a hash of the document's name). Paragraphs that "
        "occur twice were kept once. The licences are those of the documentation:", "",
        *corpus_rows(corpus), "",
        "## Licence", "",
        "The weights, tokenizer and this card are under Apache-2.0, as the rest of the repository. The texts they were "
        "trained on keep their own licences, above; none of them is in this folder.", ""]
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", required=True)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    path, text = os.path.join(args.pair, "README.md"), card(args.pair)
    if args.check:
        with open(path) as file:
            sys.exit(0 if file.read() == text else f"{path} differs from its records: run tools/train/card.py")
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
