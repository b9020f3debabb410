# SPDX-License-Identifier: Apache-2.0
"""Measures the exported pair on held-out text: loss, and how many drafts are accepted, by position and depth.

Usage: python acceptance.py --pair DIR --held-out held_out.jsonl --out acceptance.json

Acceptance: prompts of exactly 1K, 4K and 8K tokens, each from one held-out document; the target continues greedily for
`--tokens` tokens while the assistant drafts 4 in every round, and a draft is accepted where it equals the target's
choice. `positions[j]` is the share of rounds in which drafts 1 to j were all accepted. Float32 arithmetic on the
weights as stored. The text is the target's own, which at this size repeats itself; so `text_positions` gives the same
shares where every round starts from the held-out document itself instead: the newest token is the document's, and the
target's greedy choices after it are the reference.
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
    def __init__(self, folder):
        self.target = export.read_target(os.path.join(folder, "target"))
        self.assistant = export.read_assistant(os.path.join(folder, "assistant"))
        types = self.target.shape.types
        self.read_layers = {kind: types.rindex(kind) for kind in "sf"}

    def prefill(self, tokens, chunk=1024):
        """-> (cache, final hidden states [1, n, H])."""
        cache = models.Cache(len(self.target.shape.types))
        return cache, torch.cat([self.target(piece[None], cache=cache)[0] for piece in tokens.split(chunk)], 1)

    def choose(self, hidden):
        return self.target.logits(hidden).argmax(-1)

    def draft(self, cache, newest, state, count):
        """newest: a token id at position cache.length; state [1, 1, H] before it."""
        known = cache.length
        memory = {kind: tuple(x[:, :, :known] for x in cache.stored[layer]) for kind, layer in
                  self.read_layers.items()}
        result = []
        for _ in range(count):
            embedded = self.target.embed(torch.tensor([[newest]]), torch.float32)
            y, state = self.assistant(embedded, state, memory, known, cache=models.ReadOnly())
            newest = int(self.assistant.logits(y).argmax())
            result.append(newest)
        return result

    def verify(self, cache, newest, drafts):
        """-> (accepted, the target's choices [1 + k], hidden [1, 1 + k, H]); the cache keeps what was accepted."""
        known = cache.length
        hidden, _ = self.target(torch.tensor([[newest, *drafts]]), cache=cache)
        chosen = self.choose(hidden)[0].tolist()
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == chosen[accepted]:
            accepted += 1
        cache.crop(known + 1 + accepted)
        return accepted, chosen, hidden


def generate(pair, prompt, count, drafts=DRAFTS):
    """Greedy continuation: (tokens, accepted drafts per round)."""
    cache, hidden = pair.prefill(prompt)
    newest, state = int(pair.choose(hidden[:, -1:])), hidden[:, -1:]
    text, rounds = [newest], []
    while len(text) < count:
        proposed = pair.draft(cache, newest, state, drafts)
        accepted, chosen, hidden = pair.verify(cache, newest, proposed)
        rounds.append(accepted)
        newest, state = chosen[accepted], hidden[:, accepted:accepted + 1]
        text += chosen[:accepted + 1]
    return text[:count], rounds


def on_text(pair, tokens, depth, anchors, drafts=DRAFTS):
    """Accepted drafts for rounds whose newest token is the document's own, at `anchors` places from `depth` on."""
    cache, hidden = pair.prefill(tokens[:depth + 1])
    state, rounds = hidden[:, depth - 1:depth], []
    cache.crop(depth)
    for place in range(depth, depth + anchors):
        newest = int(tokens[place])
        proposed = pair.draft(cache, newest, state, drafts)
        accepted, _, hidden = pair.verify(cache, newest, proposed)
        rounds.append(accepted)
        cache.crop(place + 1)
        state = hidden[:, :1]
    return rounds


def shares(rounds):
    return [round(sum(accepted >= j for accepted in rounds) / len(rounds), 4) for j in range(1, DRAFTS + 1)]


def held_out_loss(pair, documents, depth, limit):
    """Mean loss in nats per token within the first `depth` tokens of documents that have them."""
    losses = []
    for tokens in documents[:limit]:
        _, hidden = pair.prefill(tokens[:depth])
        losses.append(torch.nn.functional.cross_entropy(pair.target.logits(hidden)[0, :-1], tokens[1:depth]).item())
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", required=True)
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--prompts", type=int, default=16, help="documents per depth")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to continue per document")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    pair = Pair(args.pair)
    tokenizer = Tokenizer.from_file(os.path.join(args.pair, "target", "tokenizer.json"))
    with open(args.held_out) as file:
        documents = [json.loads(line) for line in file]
    documents = [(d["id"], torch.tensor(tokenizer.encode(d["text"]).ids)) for d in documents]
    result = {"drafts": DRAFTS, "tokens": args.tokens, "arithmetic": "float32", "depths": []}
    for depth in DEPTHS:
        chosen = [(name, tokens) for name, tokens in documents if len(tokens) >= depth + args.tokens + 1]
        chosen = chosen[::max(1, len(chosen) // args.prompts)][:args.prompts]
        began, own, text = time.monotonic(), [], []
        for _, tokens in chosen:
            own += generate(pair, tokens[:depth], args.tokens)[1]
            text += on_text(pair, tokens, depth, args.tokens)
        entry = {"depth": depth, "documents": len(chosen), "rounds": len(own), "positions": shares(own),
                 "tokens_per_round": round(1 + sum(own) / len(own), 3), "text_rounds": len(text),
                 "text_positions": shares(text), "text_tokens_per_round": round(1 + sum(text) / len(text), 3),
                 "held_out_loss": round(held_out_loss(pair, [tokens for _, tokens in chosen], depth, 16), 4),
                 "seconds": round(time.monotonic() - began, 1)}
        result["depths"].append(entry)
        print(json.dumps(entry), flush=True)
    export.write_json(args.out, result)


if __name__ == "__main__":
    main()
