# SPDX-License-Identifier: Apache-2.0
"""Records what transformers computes for random tiny Gemma 4 models and assistants, in float32.

Usage: python gemma4_goldens.py [--out DIR]      (needs torch, transformers >= 5.24, safetensors)

One folder per variant: config.json in the published form, weights as safetensors (values are exact in bfloat16), and
golden.safetensors with
  tokens [n] i32, positions [m] i32, hidden [m, hidden] f32 (after the last norm), logits [m, vocab] f32,
and for variants with an assistant (folder `assistant` beside the target's files)
  draft_at [d] i32: tokens before the newest one (its position; the target's cache holds exactly these keys),
  drafts [d, 4] i32, draft_logits [d, 4, vocab] f32, draft_hidden [d, 4, hidden] f32 (the feedback vectors).
The assistant sees committed keys only: all of them in the full layer, the last `sliding_window` in the sliding ones.
"""
import argparse
import json
import os

import torch
from safetensors.torch import save_file
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

HIDDEN, VOCAB, WINDOW, HEAD_DIM, GLOBAL_HEAD_DIM = 32, 160, 24, 64, 128
TOKENS = 90
POSITIONS = [0, 1, 7, 22, 23, 24, 25, 26, 47, 48, 63, 64, 65, 80, 86, 87, 88, 89]
DRAFT_AT = [1, 2, 23, 24, 25, 26, 64, 89]
DRAFTS = 4
S, F = "sliding_attention", "full_attention"

COMMON = {
    "hidden_size": HIDDEN, "vocab_size": VOCAB, "sliding_window": WINDOW, "head_dim": HEAD_DIM,
    "global_head_dim": GLOBAL_HEAD_DIM, "num_attention_heads": 4, "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False,
    "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "dtype": "float32",
    "final_logit_softcapping": 30.0, "initializer_range": 0.02,
    "rope_parameters": {S: {"rope_type": "default", "rope_theta": 10000.0},
                        F: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}},
}
NO_PLE = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
PLE = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB}
# The real proportions: which layers are global, K = V, kv heads by kind, shared layers, double width, experts.
VARIANTS = {
    "dense": {"layer_types": [S, S, F, S, F], "num_hidden_layers": 5, "intermediate_size": 64,
              "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": True, **NO_PLE},
    "e2b": {"layer_types": [S, S, F, S, F], "num_hidden_layers": 5, "intermediate_size": 64,
            "num_attention_heads": 2, "num_key_value_heads": 1, "num_global_key_value_heads": None, "attention_k_eq_v": False,
            "num_kv_shared_layers": 2, "use_double_wide_mlp": True, **PLE},
    "e4b": {"layer_types": [S, F, S, F], "num_hidden_layers": 4, "intermediate_size": 64,
            "num_key_value_heads": 2, "num_global_key_value_heads": None, "attention_k_eq_v": False,
            "num_kv_shared_layers": 2, "use_double_wide_mlp": False, **PLE},
    "moe": {"layer_types": [S, S, F], "num_hidden_layers": 3, "intermediate_size": 64,
            "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
            "enable_moe_block": True, "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 32, **NO_PLE},
}
ASSISTANTS = {"dense": {"use_ordered_embeddings": False},
              "e2b": {"use_ordered_embeddings": True, "num_centroids": 16, "centroid_intermediate_top_k": 3}}


def randomise(model, generator):
    """Weights of a size that makes every part of the layer matter, exact in bfloat16."""
    named = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if n.endswith("layer_scalar")]
    for name, tensor in named:
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("layer_scalar"):
            value = 0.6 + 0.3 * torch.rand(tensor.shape, generator=generator)
        elif "k_norm" in name:
            value = (2.0 + 0.3 * noise) / tensor.shape[0] ** 0.5
        elif "norm" in name or name.endswith(("router.scale", "per_expert_scale")):
            value = 1.0 + 0.2 * noise
        elif "embed_tokens" in name:
            value = noise
        else:
            value = noise * 1.3 / tensor.shape[-1] ** 0.5
        if name.endswith("router.proj.weight"):
            value = value * 3.0
        tensor.data.copy_(value.to(torch.bfloat16).to(torch.float32))


def tensors_of(model, prefix):
    """Published names: tied heads once, `model.` replaced by `prefix`, bfloat16."""
    out = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        if name.startswith("model."):
            name = prefix + name[len("model."):]
        keep = tensor.dtype in (torch.int64, torch.int32)
        out[name] = (tensor if keep else tensor.to(torch.bfloat16)).contiguous().clone()
    return out


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def write_shards(folder, tensors, shards):
    if shards == 1:
        save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        return
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[shard::shards]
        weight_map.update({name: file for name in mine})
        save_file({name: tensors[name] for name in mine}, os.path.join(folder, file), {"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    write_json(folder, "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})


def record_target(model, tokens):
    with torch.no_grad():
        out = model(input_ids=tokens[None], use_cache=False, output_hidden_states=True)
    hidden = out.hidden_states[-1][0]
    logits = out.logits[0]
    at = torch.tensor(POSITIONS)
    return {"tokens": tokens.to(torch.int32), "positions": at.to(torch.int32),
            "hidden": hidden[at].contiguous(), "logits": logits[at].contiguous()}


def record_drafts(target, assistant, tokens):
    drafts, logits, hidden = [], [], []
    for at in DRAFT_AT:
        with torch.no_grad():
            out = target(input_ids=tokens[None, :at], use_cache=False, output_hidden_states=True,
                         return_shared_kv_states=True)
        shared = {S: tuple(t[:, :, -WINDOW:] for t in out.shared_kv_states[S]),
                  F: tuple(out.shared_kv_states[F])}
        feedback = out.hidden_states[-1][:, -1:]
        token = tokens[None, at:at + 1]
        for _ in range(DRAFTS):
            embedding = target.get_input_embeddings()(token)
            with torch.no_grad():
                step = assistant(inputs_embeds=torch.cat([embedding, feedback], dim=-1),
                                 position_ids=torch.tensor([[at]]), shared_kv_states=shared, use_cache=False)
            token = step.logits.argmax(dim=-1)
            feedback = step.last_hidden_state
            drafts.append(token[0, 0])
            logits.append(step.logits[0, 0])
            hidden.append(feedback[0, 0])
    shape = (len(DRAFT_AT), DRAFTS)
    return {"draft_at": torch.tensor(DRAFT_AT, dtype=torch.int32),
            "drafts": torch.stack(drafts).view(shape).to(torch.int32),
            "draft_logits": torch.stack(logits).view(*shape, VOCAB).contiguous(),
            "draft_hidden": torch.stack(hidden).view(*shape, HIDDEN).contiguous()}


def make_assistant(name, target_text, generator, folder):
    text = {**COMMON, **NO_PLE, "layer_types": [S, S, S, F], "num_hidden_layers": 4, "intermediate_size": 64,
            "num_kv_shared_layers": 4, "final_logit_softcapping": None}
    for key in ("num_attention_heads", "num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v"):
        text[key] = target_text.get(key, COMMON.get(key))
    own = {"backbone_hidden_size": HIDDEN, **ASSISTANTS[name]}
    config = Gemma4AssistantConfig(text_config=Gemma4TextConfig(**text), **own)
    assistant = Gemma4AssistantForCausalLM(config).eval()
    randomise(assistant, generator)
    if own["use_ordered_embeddings"]:
        assistant.masked_embedding.token_ordering.copy_(torch.randperm(VOCAB, generator=generator))
    os.makedirs(folder, exist_ok=True)
    write_json(folder, "config.json", {"architectures": ["Gemma4AssistantForCausalLM"],
                                       "model_type": "gemma4_assistant", "tie_word_embeddings": True, **own,
                                       "text_config": {"model_type": "gemma4_text", **text}})
    save_file(tensors_of(assistant, "model."), os.path.join(folder, "model.safetensors"), {"format": "pt"})
    return assistant


def pack_w4(weight):
    """compressed-tensors pack-quantized, group 32, symmetric: packed, scale, shape and the values they stand for."""
    rows, columns = weight.shape
    groups = weight.view(rows, columns // 32, 32)
    scale = (groups.abs().amax(-1) / 7.5).to(torch.bfloat16)
    q = torch.clamp(torch.round(groups / scale.float()[..., None]), -8, 7)
    value = (q * scale.float()[..., None]).view(rows, columns)
    biased = (q.view(rows, columns // 8, 8) + 8).to(torch.int64)
    words = (biased << (4 * torch.arange(8))).sum(-1)
    words = torch.where(words >= 2 ** 31, words - 2 ** 32, words).to(torch.int32)
    return words, scale, torch.tensor([rows, columns], dtype=torch.int64), value


def record(name, out, shards, prefix, wrapper, w4=False):
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    variant = name.split("-")[0]
    text = {**COMMON, **VARIANTS[variant]}
    generator = torch.Generator().manual_seed(list(VARIANTS).index(variant) + 1)
    target = Gemma4ForCausalLM(Gemma4TextConfig(**text)).eval()
    randomise(target, generator)
    tensors = tensors_of(target, prefix)
    quantization = {}
    if w4:
        for key in [k for k in tensors if k.endswith("_proj.weight") and "router" not in k]:
            weight = target.get_parameter("model." + key[len(prefix):])
            words, scale, shape, value = pack_w4(weight.data)
            weight.data.copy_(value)
            del tensors[key]
            tensors.update({key + "_packed": words, key + "_scale": scale, key + "_shape": shape})
        quantization = {"quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "kv_cache_scheme": None, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": {
                "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32,
                "actorder": None, "dynamic": False}}}}}
    write_shards(folder, tensors, shards)
    if wrapper:
        config = {"architectures": [wrapper[1]], "model_type": wrapper[0], **quantization,
                  "text_config": {"model_type": wrapper[2], **text}}
    else:
        config = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", **quantization, **text}
    write_json(folder, "config.json", config)
    tokens = torch.randint(4, VOCAB, (TOKENS,), generator=generator)
    golden = record_target(target, tokens)
    if variant in ASSISTANTS and not w4:
        assistant = make_assistant(variant, text, generator, os.path.join(folder, "assistant"))
        golden.update(record_drafts(target, assistant, tokens))
    save_file(golden, os.path.join(folder, "golden.safetensors"))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(here, "..", "..", "tests", "golden", "gemma4"))
    args = parser.parse_args()
    torch.manual_seed(0)
    nested = "model.language_model."
    gemma4 = ("gemma4", "Gemma4ForConditionalGeneration", "gemma4_text")
    unified = ("gemma4_unified", "Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text")
    record("dense", args.out, 3, nested, unified)
    record("dense-w4a16", args.out, 1, nested, unified, w4=True)
    record("e2b", args.out, 1, nested, gemma4)
    record("e4b", args.out, 1, "model.", None)
    record("moe", args.out, 2, nested, gemma4)


if __name__ == "__main__":
    main()
