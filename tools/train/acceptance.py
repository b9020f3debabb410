# SPDX-License-Identifier: Apache-2.0
"""Measures the exported pair on held-out text: loss, and how many drafts are accepted, by position and depth.

Usage: python acceptance.py --pair DIR --held-out held_out.jsonl --out acceptance.json

Prompts of exactly 1K, 4K and 8K tokens, each from one held-out document. The target continues greedily for `--tokens`
tokens; then for every place in the continuation the assistant drafts 4 tokens from what the target knew there, and
rounds are replayed: a round begins at the newest token, accepts the drafts that equal the continuation, and the next
one begins behind the token that the target adds. `positions[j]` is the share of rounds in which drafts 1 to j were all
accepted.

A small model's own text repeats itself. `text_first` is the share of places in the held-out document's next `--tokens`
tokens where the first draft after the document's token equals the target's choice there.

Float32 arithmetic on the weights as stored.
"""
import argparse
import json
import os
import time

import torch
from tokenizers import Tokenizer

import export
import model as models

DEPTHS = (1024, 4096, 8192)
DRAFTS = 4


class Pair:
    def __init__(self, folder, device):
        self.target = export.read_target(os.path.join(folder, "target")).to(device)
        self.assistant = export.read_assistant(os.path.join(folder, "assistant")).to(device)
        types = self.target.shape.types
        self.read_layers = {kind: types.rindex(kind) for kind in "sf"}

    def prefill(self, tokens, chunk=512):
        """tokens [n] -> (cache, final hidden states [1, n, H])."""
        cache = models.Cache(len(self.target.shape.types))
        return cache, torch.cat([self.target(piece[None], cache=cache)[0] for piece in tokens.split(chunk)], 1)

    def choose(self, hidden):
        """[1, n, H] -> [n]"""
        return self.target.logits(hidden)[0].argmax(-1)

    def drafts(self, cache, hidden, tokens, first, count):
        """What the assistant drafts behind each of tokens[first:], [places, count].

        cache and hidden [1, n, H] are the target's over tokens [n]. The place of token p sees the keys before p, all
        places at once; drafts of one place build on each other.
        """
        memory = {kind: tuple(x[:, :, :-1] for x in cache.stored[layer]) for kind, layer in self.read_layers.items()}
        newest, state = tokens[first:], hidden[:, first - 1:-1]
        result = []
        for _ in range(count):
            embedded = self.target.embed(newest[None], torch.float32)
            y, state = self.assistant(embedded, state, memory, first, cache=models.Cache(0))
            newest = self.assistant.logits(y)[0].argmax(-1)
            result.append(newest)
        return torch.stack(result, 1)


def replay(continuation, drafts):
    """Accepted drafts per round. continuation [n]; drafts [n, k], row i behind continuation[i]."""
    rounds, place = [], 0
    while place + drafts.shape[1] < len(continuation):
        wanted = continuation[place + 1:place + 1 + drafts.shape[1]]
        accepted = int((drafts[place] == wanted).int().cumprod(0).sum())
        rounds.append(accepted)
        place += accepted + 1
    return rounds


def measure(pair, tokens, depth, count):
    """-> (accepted drafts per round on the target's own text, agreement per place on the document, loss)."""
    cache, hidden = pair.prefill(tokens[:depth])
    loss = torch.nn.functional.cross_entropy(pair.target.logits(hidden)[0, :-1], tokens[1:depth]).item()
    text = tokens[:depth]
    kept = list(cache.stored)
    states = [hidden]
    for _ in range(count):  # the first of these follows from the prompt alone
        text = torch.cat([text, pair.choose(states[-1][:, -1:])])
        states.append(pair.target(text[None, -1:], cache=cache)[0])
    rounds = replay(text[depth:], pair.drafts(cache, torch.cat(states, 1), text, depth, DRAFTS))

    cache.stored, cache.length = kept, depth
    text = tokens[:depth + count]
    more, _ = pair.target(text[None, depth:], cache=cache)
    first = pair.drafts(cache, torch.cat([hidden, more], 1), text, depth, 1)[:, 0]
    return rounds, (first == pair.choose(more)).float().tolist(), loss


def shares(rounds):
    return [round(sum(accepted >= j for accepted in rounds) / len(rounds), 4) for j in range(1, DRAFTS + 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", required=True)
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--prompts", type=int, default=16, help="documents per depth")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to continue per prompt")
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    pair = Pair(args.pair, args.device)
    tokenizer = Tokenizer.from_file(os.path.join(args.pair, "target", "tokenizer.json"))
    with open(args.held_out) as file:
        documents = [json.loads(line) for line in file]
    documents = [(d["id"], torch.tensor(tokenizer.encode(d["text"]).ids, device=args.device)) for d in documents]
    result = {"drafts": DRAFTS, "tokens": args.tokens, "arithmetic": "float32", "depths": []}
    if os.path.exists(args.out):  # other depths of the same settings stay
        with open(args.out) as file:
            old = json.load(file)
        if {**old, "depths": []} == result:
            result = old
    for depth in args.depths:
        chosen = [(name, tokens) for name, tokens in documents if len(tokens) >= depth + args.tokens + 1]
        chosen = chosen[::max(1, len(chosen) // args.prompts)][:args.prompts]
        began, rounds, text, losses = time.monotonic(), [], [], []
        for _, tokens in chosen:
            own, agreed, loss = measure(pair, tokens, depth, args.tokens)
            rounds += own
            text += agreed
            losses.append(loss)
        entry = {"depth": depth, "documents": len(chosen), "rounds": len(rounds), "positions": shares(rounds),
                 "tokens_per_round": round(1 + sum(rounds) / len(rounds), 3),
                 "text_first": round(sum(text) / len(text), 4), "held_out_loss": round(sum(losses) / len(losses), 4),
                 "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
                 "seconds": round(time.monotonic() - began, 1)}
        kept = [other for other in result["depths"] if other["depth"] != depth]
        result["depths"] = sorted([*kept, entry], key=lambda e: e["depth"])
        print(json.dumps(entry), flush=True)
        export.write_json(args.out, result)


if __name__ == "__main__":
    main()
