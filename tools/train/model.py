# SPDX-License-Identifier: Apache-2.0
"""Gemma 4's text model and its MTP assistant, small, in plain PyTorch, for training.

Module names equal the tensor names of Hugging Face's Gemma4ForCausalLM and Gemma4AssistantForCausalLM, so that a state
dict exports as it is. Both follow those classes to rounding (check_export.py compares). Not an inference engine: whole
sequences only, except for `Cache`, which acceptance.py needs.

Shapes: B sequences, T tokens, H hidden size, D head dimension, G key-value heads.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-6
GROUP = 32  # weights that share one scale


@dataclasses.dataclass(frozen=True)
class Shape:
    """One stack of layers; `types` is 's' (sliding) or 'f' (full attention) per layer."""
    hidden: int
    types: str
    heads: int
    kv_heads: int
    global_kv_heads: int
    head_dim: int
    global_head_dim: int
    intermediate: int
    window: int
    vocabulary: int
    positions: int = 32768
    theta: float = 1e4
    global_theta: float = 1e6
    rotated_share: float = 0.25
    softcap: float = 30.0

    def dim(self, kind):
        return self.global_head_dim if kind == "f" else self.head_dim

    def groups(self, kind):
        return self.global_kv_heads if kind == "f" else self.kv_heads


TARGET = Shape(hidden=384, types="sssssf" * 2, heads=6, kv_heads=2, global_kv_heads=1, head_dim=64,
               global_head_dim=128, intermediate=768, window=256, vocabulary=8192)
ASSISTANT = dataclasses.replace(TARGET, hidden=128, types="sssf", heads=4, intermediate=384)
TINY_TARGET = dataclasses.replace(TARGET, hidden=64, intermediate=96, heads=2, kv_heads=1, head_dim=32,
                                  global_head_dim=64, window=32)
TINY_ASSISTANT = dataclasses.replace(TINY_TARGET, hidden=32, types="sssf", intermediate=64)


def levels_of(weight):
    """Symmetric 4-bit levels and bf16 scales of weight [out, in]: ([out, in/32, 32], [out, in/32, 1]).

    Scale = max |w| / 7.5, levels -8 to 7: the rule of compressed-tensors' minmax observer.
    """
    groups = weight.float().view(weight.shape[0], -1, GROUP)
    scales = (groups.abs().amax(-1, keepdim=True) / 7.5).clamp_min(1e-8).bfloat16().float()
    return (groups / scales).round().clamp(-8, 7), scales


def quantised(weight):
    levels, scales = levels_of(weight)
    return (levels * scales).view_as(weight)


class Linear(nn.Module):
    """x W^T; with `fake` the weights are rounded to 4 bits and gradients pass straight through."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))
        self.fake = False

    def forward(self, x):
        weight = self.weight
        if self.fake:
            weight = weight + (quantised(weight.detach()) - weight).detach()
        return F.linear(x, weight.to(x.dtype))


def rms(x):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)


class Norm(nn.Module):
    def __init__(self, size, value=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), value))

    def forward(self, x):
        return (rms(x) * self.weight).to(x.dtype)


class Rotary(nn.Module):
    """cos and sin tables [positions, D]; on full layers only the first quarter of the pairs turns."""

    def __init__(self, shape, kind):
        super().__init__()
        size = shape.dim(kind)
        theta = shape.global_theta if kind == "f" else shape.theta
        turning = int(shape.rotated_share * size // 2) if kind == "f" else size // 2
        frequency = torch.zeros(size // 2)
        frequency[:turning] = 1.0 / theta ** (torch.arange(0, 2 * turning, 2).float() / size)
        angle = torch.arange(shape.positions).float()[:, None] * frequency
        self.register_buffer("cos", torch.cat([angle.cos()] * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat([angle.sin()] * 2, -1), persistent=False)

    def at(self, first, count):
        return self.cos[first:first + count], self.sin[first:first + count]


def rotate(x, turn):
    """x [B, heads, T, D] by turn = (cos, sin), [T, D] each."""
    cos, sin = turn
    low, high = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-high, low], -1) * sin).to(x.dtype)


def attend(q, k, v, window=None, mask=None):
    """Causal attention, scores unscaled. q [B, heads, T, D]; k, v [B, G, T, D]; -> [B, heads, T, D].

    mask: flex attention's block mask for the window. Without one a window is cut into blocks of its own length that
    look at themselves and at the block before.
    """
    length = q.shape[2]
    if window is None or length <= window:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=True)
    if mask is not None:
        from torch.nn.attention.flex_attention import flex_attention
        return flex_attention(q, k, v, block_mask=mask, scale=1.0, enable_gqa=True)
    batch, heads, _, size = q.shape
    blocks = length // window
    assert blocks * window == length, (length, window)

    def cut(x):
        return x.reshape(batch, x.shape[1], blocks, window, size)

    def behind(x):  # keys of the block before and of the block itself, from the second block on
        x = cut(x)
        x = torch.cat([x[:, :, :-1], x[:, :, 1:]], 3).transpose(1, 2)
        return x.reshape(batch * (blocks - 1), -1, 2 * window, size)

    first = F.scaled_dot_product_attention(q[:, :, :window], k[:, :, :window], v[:, :, :window], is_causal=True,
                                           scale=1.0, enable_gqa=True)
    row = torch.arange(window, device=q.device)[:, None] + window
    column = torch.arange(2 * window, device=q.device)[None]
    seen = (column <= row) & (column > row - window)
    later = cut(q)[:, :, 1:].transpose(1, 2).reshape(batch * (blocks - 1), heads, window, size)
    later = F.scaled_dot_product_attention(later, behind(k), behind(v), attn_mask=seen, scale=1.0, enable_gqa=True)
    later = later.view(batch, blocks - 1, heads, window, size).transpose(1, 2).reshape(batch, heads, -1, size)
    return torch.cat([first, later], 2)


class Attention(nn.Module):
    """With `reads` (the assistant) there are no keys of its own: they come from the target."""

    def __init__(self, shape, kind, reads):
        super().__init__()
        self.size, self.heads, self.groups = shape.dim(kind), shape.heads, shape.groups(kind)
        self.window = shape.window if kind == "s" else None
        self.q_proj = Linear(shape.hidden, self.heads * self.size)
        self.q_norm = Norm(self.size)
        if not reads:
            self.k_proj = Linear(shape.hidden, self.groups * self.size)
            self.v_proj = Linear(shape.hidden, self.groups * self.size) if kind == "s" else None
            self.k_norm = Norm(self.size, self.size ** -0.5)
        self.o_proj = Linear(self.heads * self.size, shape.hidden)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], -1, self.size).transpose(1, 2)

    def keys(self, x, turn):
        raw = self.split(self.k_proj(x))
        value = raw if self.v_proj is None else self.split(self.v_proj(x))
        return rotate(self.k_norm(raw), turn), rms(value).to(x.dtype)

    def forward(self, x, turn, mask, memory, cache):
        q = rotate(self.q_norm(self.split(self.q_proj(x))), turn)
        k, v = self.keys(x, turn) if memory is None else memory
        if cache is None:
            out = attend(q, k, v, self.window, mask)
        else:
            out, k, v = cache.attend(q, k, v, self.window, memory is None)
        return self.o_proj(out.transpose(1, 2).flatten(2)), (k, v)


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = Linear(shape.hidden, shape.intermediate)
        self.up_proj = Linear(shape.hidden, shape.intermediate)
        self.down_proj = Linear(shape.intermediate, shape.hidden)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape, kind, reads):
        super().__init__()
        self.self_attn = Attention(shape, kind, reads)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden)
        self.post_attention_layernorm = Norm(shape.hidden)
        self.pre_feedforward_layernorm = Norm(shape.hidden)
        self.post_feedforward_layernorm = Norm(shape.hidden)
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, x, turn, mask=None, memory=None, cache=None):
        out, memory = self.self_attn(self.input_layernorm(x), turn, mask, memory, cache)
        x = x + self.post_attention_layernorm(out)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar.to(x.dtype), memory


class Stack(nn.Module):
    """Embedding table, layers, final norm; and the turning tables that the layers share."""

    def __init__(self, shape, reads):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=shape.hidden ** -0.5)
        self.layers = nn.ModuleList(Layer(shape, kind, reads) for kind in shape.types)
        self.norm = Norm(shape.hidden)
        self.rotary = nn.ModuleDict({kind: Rotary(shape, kind) for kind in "sf"})


class Target(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.model = Stack(shape, reads=False)

    def embed(self, tokens, dtype):
        return (self.model.embed_tokens(tokens) * math.sqrt(self.shape.hidden)).to(dtype)

    def forward(self, tokens, dtype=torch.float32, mask=None, cache=None):
        """tokens [B, T] -> final hidden states [B, T, H] and {kind: (k, v)} of the last layer of each kind."""
        x, memory = self.embed(tokens, dtype), {}
        first = cache.length if cache else 0
        turns = {kind: self.model.rotary[kind].at(first, tokens.shape[1]) for kind in "sf"}
        for index, (kind, layer) in enumerate(zip(self.shape.types, self.model.layers)):
            view = cache.layer(index) if cache else None
            x, memory[kind] = layer(x, turns[kind], mask if kind == "s" else None, None, view)
        if cache:
            cache.length += tokens.shape[1]
        return self.model.norm(x), memory

    def logits(self, hidden):
        raw = F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype)).float()
        return self.shape.softcap * torch.tanh(raw / self.shape.softcap)

    def linears(self):
        return {name: module for name, module in self.named_modules() if isinstance(module, Linear)}

    def set_fake(self, fake):
        for module in self.linears().values():
            module.fake = fake


class Assistant(nn.Module):
    def __init__(self, shape, backbone):
        super().__init__()
        self.shape = shape
        self.model = Stack(shape, reads=True)
        self.pre_projection = Linear(2 * backbone, shape.hidden)
        self.post_projection = Linear(shape.hidden, backbone)

    def forward(self, embedded, hidden, memory, first, mask=None, cache=None):
        """One draft step for rows whose newest token is at positions first, first + 1, ...

        embedded, hidden [B, T, backbone]: the newest token's scaled target embedding, and the target's final hidden
        state before it or the feedback of the step before. memory: the target's {kind: (k, v)}; row i sees the keys
        before its newest token. -> (y [B, T, H] for the head, feedback [B, T, backbone]).
        """
        x = self.pre_projection(torch.cat([embedded, hidden], -1))
        turns = {kind: self.model.rotary[kind].at(first, x.shape[1]) for kind in "sf"}
        for kind, layer in zip(self.shape.types, self.model.layers):
            x, _ = layer(x, turns[kind], mask if kind == "s" else None, memory[kind], cache)
        y = self.model.norm(x)
        return y, self.post_projection(y)

    def logits(self, y):
        return F.linear(y, self.model.embed_tokens.weight.to(y.dtype)).float()


class Cache:
    """Keys and values of every layer, so that rows can be added at the end; all sequences have one length."""

    def __init__(self, layers):
        self.length = 0
        self.stored = [None] * layers
        self.current = 0

    def layer(self, index):
        self.current = index
        return self

    def attend(self, q, k, v, window, own):
        """q's rows are the newest; own = False (assistant): k and v are all keys there are, the last one the last
        row's."""
        if own:
            if self.stored[self.current] is not None:
                old_k, old_v = self.stored[self.current]
                k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
            self.stored[self.current] = (k, v)
        rows, visible = q.shape[2], k.shape[2]
        if window is not None:
            visible = min(visible, window + rows - 1)
        last = torch.arange(visible - rows, visible, device=q.device)[:, None]
        column = torch.arange(visible, device=q.device)[None]
        seen = column <= last
        if window is not None:
            seen = seen & (column > last - window)
        out = F.scaled_dot_product_attention(q, k[:, :, -visible:], v[:, :, -visible:], attn_mask=seen, scale=1.0,
                                             enable_gqa=True)
        return out, k, v


def parameters_of(module):
    return sum(p.numel() for p in module.parameters())


if __name__ == "__main__":
    target, assistant = Target(TARGET), Assistant(ASSISTANT, TARGET.hidden)
    linear = sum(m.weight.numel() for m in target.linears().values())
    print("target", parameters_of(target), "linear", linear, "bytes",
          linear * 9 // 16 + 2 * (parameters_of(target) - linear))
    print("assistant", parameters_of(assistant), "bytes", 2 * parameters_of(assistant))
