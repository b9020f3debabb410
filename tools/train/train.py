# SPDX-License-Identifier: Apache-2.0
"""Trains the pair within a given wall-clock time: target, 4-bit finish, export, assistant, export.

Usage: python train.py --tokens tokens.npz.xz --out DIR --seconds 560          (one H200)
       python train.py --tokens tokens.npz.xz --out DIR --seconds 60 --size tiny --device cpu

The time is shared out by SHARES. The target's last part runs on 8K sequences with weights rounded to 4 bits (straight
through); the assistant then learns from the rounded target, unrolled over 4 drafts. Writes target/ and assistant/
(without tokenizer) and train.json. With --target FOLDER the first stage is skipped and that folder's target is taken.
"""
import argparse
import json
import lzma
import io
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

import export
import model as models
import optimiser

SEED = 20261130
LONG = 8448  # 8K of context and a little more, so that text continued from there is still familiar ground
DRAFTS = 4
DRAFT_WEIGHTS = (1.0, 0.8, 0.65, 0.5)
OFF_PATH = 0.3  # weight of drafts whose earlier tokens the target would not have chosen
TARGET_SHARE, ASSISTANT_SHARE = 0.58, 0.975  # of the time, when each stage must be over
FINISH = 0.65  # of the target's time, when 4-bit rounding and long sequences begin


def read_tokens(path, device):
    """{'train', 'held', 'held_starts'} as tensors."""
    with lzma.open(path) as file:
        stored = np.load(io.BytesIO(file.read()))
    result = {key: torch.from_numpy(stored[key].astype(np.int32)).to(device) for key in ("train", "held")}
    result["held_starts"] = stored["held_starts"].tolist()
    return result


def windows(tokens, length, batch, generator):
    """Endless batches [batch, length] of consecutive tokens; every epoch cuts at another offset."""
    while True:
        offset = int(torch.randint(length, (1,), generator=generator))
        starts = torch.arange(offset, len(tokens) - length, length)
        starts = starts[torch.randperm(len(starts), generator=generator)]
        for first in range(0, len(starts) - batch + 1, batch):
            rows = starts[first:first + batch].to(tokens.device)
            yield tokens[rows[:, None] + torch.arange(length, device=tokens.device)].long()


class Trainer:
    def __init__(self, args):
        self.args = args
        self.began = time.monotonic()
        self.cuda = args.device == "cuda"
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        tiny = args.size == "tiny"
        self.target = models.Target(models.TINY_TARGET if tiny else models.TARGET).to(args.device)
        self.assistant = models.Assistant(models.TINY_ASSISTANT if tiny else models.ASSISTANT,
                                          self.target.shape.hidden).to(args.device)
        # (length, sequences) of a step: target, target's finish, assistant.
        self.batches = [(128, 8), (256, 2), (256, 2)] if tiny else [(2048, 64), (LONG, 16), (LONG, 8)]
        self.tokens = read_tokens(args.tokens, args.device)
        self.generator = torch.Generator().manual_seed(SEED)
        self.masks = {}
        self.log = {"seed": SEED, "torch": torch.__version__, "seconds": args.seconds,
                    "device": torch.cuda.get_device_name() if self.cuda else "cpu", "size": args.size,
                    "target": vars(self.target.shape), "assistant": vars(self.assistant.shape),
                    "batches": self.batches, "training_tokens": len(self.tokens["train"]),
                    "target_parameters": models.parameters_of(self.target),
                    "assistant_parameters": models.parameters_of(self.assistant),
                    "rates": {"target": args.target_rates, "assistant": args.assistant_rates}, "records": []}
        self.compiled = args.compile
        self.head_loss = torch.compile(head_loss, dynamic=False) if self.compiled else head_loss
        self.draft_loss = torch.compile(draft_loss, dynamic=False) if self.compiled else draft_loss
        if self.compiled:
            for layer in [*self.target.model.layers, *self.assistant.model.layers]:
                layer.compile(dynamic=False)

    def elapsed(self):
        return time.monotonic() - self.began

    def record(self, **values):
        values = {"at": round(self.elapsed(), 1), **values}
        self.log["records"].append(values)
        print(json.dumps(values), flush=True)

    def write_log(self):
        export.write_json(os.path.join(self.args.out, "train.json"), self.log)

    def mask(self, length):
        """Flex attention's mask of the sliding layers, or None where it is not used."""
        if not (self.cuda and self.compiled and self.args.flex):
            return None
        if length not in self.masks:
            from torch.nn.attention.flex_attention import create_block_mask
            window = self.target.shape.window
            self.masks[length] = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < window), None, None, length,
                                                   length, device=self.args.device)
        return self.masks[length]

    def run(self, stage, until, length, batch, tune, loss_of, rates_from):
        """Steps until the clock reads `until`; the rate falls linearly to 0 over the last part of (rates_from)."""
        begin, hold, end = rates_from
        steps = 0
        said = start = self.elapsed()
        source = windows(self.tokens["train"], length, batch, self.generator)
        while (now := self.elapsed()) < until:
            share = (now - begin) / (end - begin)
            factor = min(1.0, (self.steps + 1) / 100) * min(1.0, max(0.0, (1 - share) / (1 - hold)))
            loss, more = loss_of(next(source))
            loss.backward()
            tune.step(factor)
            steps += 1
            self.steps += 1
            value = loss.item()  # waits for the device, so that the clock is right
            if steps in (1, 3) or now - said > self.args.say:
                said = now
                self.record(stage=stage, step=self.steps, loss=round(value, 4), rate=round(factor, 3),
                            **{key: [round(x, 3) for x in item.tolist()] for key, item in more.items()})
            if steps == 3:
                start = self.elapsed()
        if steps > 3:
            self.record(stage=stage, steps=steps, tokens_per_second=round(
                (steps - 3) * length * batch / (self.elapsed() - start)), epochs_total=round(
                    steps * length * batch / len(self.tokens["train"]), 2))

    def target_loss(self, tokens):
        hidden, _ = self.target(tokens, self.dtype, self.mask(tokens.shape[1]))
        hidden, labels = hidden[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        return self.head_loss(hidden, self.target.model.embed_tokens.weight, labels, self.target.shape.softcap), {}

    @torch.no_grad()
    def held_out_loss(self, length, limit):
        """Mean loss per token over the held-out tokens in pieces of `length`, at most `limit` pieces."""
        held = self.tokens["held"]
        pieces = min(limit if self.args.size == "full" else 4, len(held) // length)
        total = 0.0
        with torch.compiler.set_stance("force_eager"):
            for index in range(pieces):
                tokens = held[None, index * length:(index + 1) * length].long()
                hidden, _ = self.target(tokens, self.dtype)
                total += head_loss(hidden[0, :-1], self.target.model.embed_tokens.weight, tokens[0, 1:],
                                   self.target.shape.softcap).item()
        return round(total / pieces, 4)

    def train_target(self):
        end = self.args.seconds * TARGET_SHARE
        turn = end * FINISH
        tune = optimiser.Optimiser(self.target, *self.args.target_rates)
        rates = (0.0, self.args.hold, end)
        self.steps = 0
        (length, batch), (long, few), _ = self.batches
        self.run("target", turn, length, batch, tune, self.target_loss, rates)
        self.record(stage="target", held_out=self.held_out_loss(long, 8))
        self.target.set_fake(True)
        self.run("target, 4 bits", end - self.args.seconds * 0.01, long, few, tune, self.target_loss, rates)
        self.log["held_out_4_bits"] = self.held_out_loss(long, 64)
        self.target.set_fake(False)
        self.log["held_out_unrounded"] = self.held_out_loss(long, 64)
        export.write_target(os.path.join(self.args.out, "target"), self.target)
        self.record(stage="target", held_out_4_bits=self.log["held_out_4_bits"],
                    held_out_unrounded=self.log["held_out_unrounded"])
        self.write_log()

    def freeze_target(self):
        """The target that will run: values as they are in the exported folder."""
        self.target.load_state_dict(export.dense_tensors(os.path.join(self.args.out, "target")))
        self.target.requires_grad_(False)

    def draft_losses(self, tokens, count=DRAFTS):
        """Mean loss over all anchors and drafts, and per draft how often it agrees with the target, on its path.

        Anchor i: hidden state of token i, newest token i + 1, keys 0 to i. Draft j continues with the text's own
        token i + j as if it had been drafted; its label is the target's distribution after that token.
        """
        target, assistant = self.target, self.assistant
        mask = self.mask(tokens.shape[1])
        with torch.no_grad():
            hidden, memory = target(tokens, self.dtype, mask)
            memory = {kind: memory[kind] for kind in "sf"}
            best = target_argmax(target, hidden)
            on_path = best == tokens.roll(-1, 1)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        weight = torch.ones_like(hidden[..., 0], dtype=torch.float32)
        state, losses, agreements = hidden, [], []
        for j in range(1, count + 1):
            if j > 1:
                weight = torch.where(on_path.roll(-(j - 1), 1), weight, 0.0)
            inside = (place < tokens.shape[1] - j).float()
            y, state = assistant(target.embed(tokens.roll(-j, 1), self.dtype), state, memory, 1, mask)
            counted = (weight.clamp_min(OFF_PATH) * inside).flatten()
            loss, agreed = self.draft_loss(
                y.flatten(0, 1), assistant.model.embed_tokens.weight, hidden.roll(-j, 1).flatten(0, 1),
                target.model.embed_tokens.weight, target.shape.softcap, counted, (weight * inside).flatten())
            losses.append(loss * DRAFT_WEIGHTS[j - 1])
            agreements.append(agreed.detach())
        return torch.stack(losses).sum() / sum(DRAFT_WEIGHTS[:count]), {"agreement": torch.stack(agreements)}

    @torch.no_grad()
    def held_out_agreement(self, length, limit):
        held = self.tokens["held"]
        pieces = min(limit if self.args.size == "full" else 4, len(held) // length)
        total = 0.0
        with torch.compiler.set_stance("force_eager"):
            for index in range(pieces):
                masks, self.masks = self.masks, {length: None}
                _, more = self.draft_losses(held[None, index * length:(index + 1) * length].long())
                self.masks = masks
                total = total + more["agreement"]
        return [round(x, 4) for x in (total / pieces).tolist()]

    def train_assistant(self):
        self.freeze_target()
        with torch.no_grad():  # the head starts as the target's, seen through its largest directions
            table = self.target.model.embed_tokens.weight
            _, _, directions = torch.linalg.svd(table.float(), full_matrices=False)
            size = self.assistant.shape.hidden
            self.assistant.model.embed_tokens.weight.copy_(table @ directions[:size].T)
        begin, end = self.elapsed(), self.args.seconds * ASSISTANT_SHARE
        tune = optimiser.Optimiser(self.assistant, *self.args.assistant_rates)
        self.steps = 0
        length, batch = self.batches[2]
        self.run("assistant", end, length, batch, tune, self.draft_losses, (begin, self.args.hold, end))
        export.write_assistant(os.path.join(self.args.out, "assistant"), self.assistant, self.target.shape.hidden)
        if self.cuda:
            self.log["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        self.log["held_out_agreement"] = self.held_out_agreement(length, 32)
        self.record(stage="assistant", held_out_agreement=self.log["held_out_agreement"])
        self.write_log()


def head_loss(hidden, table, labels, softcap):
    """Mean cross entropy; hidden [N, H], table [V, H], labels [N]."""
    logits = F.linear(hidden, table.to(hidden.dtype)).float()
    return F.cross_entropy(softcap * torch.tanh(logits / softcap), labels)


@torch.no_grad()
def target_argmax(target, hidden):
    """[B, T, H] -> [B, T]; the softcap does not move the maximum."""
    table = target.model.embed_tokens.weight.to(hidden.dtype)
    return torch.cat([F.linear(row, table).argmax(-1) for row in hidden.flatten(0, 1).split(16384)]).view(
        hidden.shape[:2])


def draft_loss(y, table, hidden, target_table, softcap, counted, on_path):
    """(loss, agreement): half divergence from the target's distribution, half its first choice.

    y [N, Hd] and table [V, Hd] give the draft's logits, hidden [N, H] and target_table [V, H] the target's; counted
    and on_path [N] weigh the rows of the loss and of the agreement.
    """
    with torch.no_grad():
        goal = F.linear(hidden, target_table.to(hidden.dtype)).float()
        goal = softcap * torch.tanh(goal / softcap)
        best = goal.argmax(-1)
        goal = torch.softmax(goal, -1)
    logits = F.linear(y, table.to(y.dtype)).float()
    total = torch.logsumexp(logits, -1)
    row = total - 0.5 * (goal * logits).sum(-1) - 0.5 * logits.gather(1, best[:, None])[:, 0]
    agreed = (logits.argmax(-1) == best).float()
    return (row * counted).sum() / counted.sum(), (agreed * on_path).sum() / on_path.sum().clamp_min(1.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, required=True, help="wall-clock time for everything")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--target", help="folder of a trained target: only the assistant is trained")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--flex", action=argparse.BooleanOptionalAction, default=True, help="flex attention windows")
    parser.add_argument("--target-rates", type=float, nargs=2, default=[4e-3, 3e-3], metavar=("MATRIX", "TABLE"))
    parser.add_argument("--assistant-rates", type=float, nargs=2, default=[4e-3, 2e-3], metavar=("MATRIX", "TABLE"))
    parser.add_argument("--hold", type=float, default=0.4, help="share of a stage before the rate begins to fall")
    parser.add_argument("--say", type=float, default=10.0, help="seconds between records")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    if args.device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    os.makedirs(args.out, exist_ok=True)
    trainer = Trainer(args)
    trainer.record(stage="start")
    if args.target:
        folder = os.path.join(args.out, "target")
        export.write_folder(folder, export.read_config(args.target),
                            export.load_file(os.path.join(args.target, "model.safetensors")))
    else:
        trainer.train_target()
    trainer.train_assistant()


if __name__ == "__main__":
    main()
