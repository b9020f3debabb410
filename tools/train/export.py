# SPDX-License-Identifier: Apache-2.0
"""Writes and reads the pair as Hugging Face folders.

The target's linear weights are compressed-tensors `pack-quantized` (4 bits, groups of 32, symmetric), everything else
is bf16. Column 8k + j of a row is nibble j of word k, stored as level + 8.
"""
import json
import os

import torch
from safetensors.torch import load_file, save_file

import model as models

PAD, EOS, BOS, END_OF_TURN = 0, 1, 2, 6


def text_config(shape, reads):
    layer_types = ["sliding_attention" if kind == "s" else "full_attention" for kind in shape.types]
    return {
        "model_type": "gemma4_text", "vocab_size": shape.vocabulary, "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate, "num_hidden_layers": len(shape.types), "layer_types": layer_types,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "num_global_key_value_heads": shape.global_kv_heads, "head_dim": shape.head_dim,
        "global_head_dim": shape.global_head_dim, "attention_k_eq_v": True, "attention_bias": False,
        "attention_dropout": 0.0, "sliding_window": shape.window, "max_position_embeddings": shape.positions,
        "rms_norm_eps": models.EPSILON, "hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.02,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": shape.theta},
            "full_attention": {"rope_type": "proportional", "rope_theta": shape.global_theta,
                               "partial_rotary_factor": shape.rotated_share}},
        "final_logit_softcapping": None if reads else shape.softcap, "tie_word_embeddings": True,
        "num_kv_shared_layers": len(shape.types) if reads else 0, "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0, "use_double_wide_mlp": False, "enable_moe_block": False,
        "use_bidirectional_attention": None, "use_cache": True,
        "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS, "dtype": "bfloat16"}


def quantization_config():
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": models.GROUP,
               "actorder": None, "dynamic": False, "observer": "minmax", "observer_kwargs": {}, "block_structure": None}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None,
                                          "output_activations": None, "format": "pack-quantized"}},
            "ignore": ["lm_head"], "kv_cache_scheme": None, "global_compression_ratio": None}


def target_config(shape):
    return {"architectures": ["Gemma4ForCausalLM"], **text_config(shape, False),
            "quantization_config": quantization_config()}


def assistant_config(shape, backbone):
    return {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant",
            "backbone_hidden_size": backbone, "use_ordered_embeddings": False, "tie_word_embeddings": True,
            "dtype": "bfloat16", "text_config": text_config(shape, True)}


def packed(weight):
    """The three tensors that stand for weight [out, in]."""
    levels, scales = models.levels_of(weight)
    rows, columns = weight.shape
    nibbles = (levels.view(rows, columns // 8, 8).to(torch.int64) + 8) & 15
    words = (nibbles << (4 * torch.arange(8))).sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return {"weight_packed": words, "weight_scale": scales.squeeze(-1).bfloat16(),
            "weight_shape": torch.tensor([rows, columns], dtype=torch.int64)}


def unpacked(words, scales, shape):
    """float32 [out, in]; products of level and scale are exact."""
    rows, columns = shape.tolist()
    nibbles = (words.to(torch.int64)[..., None] >> (4 * torch.arange(8))) & 15
    levels = (nibbles - 8).view(rows, -1, models.GROUP).float()
    return (levels * scales.float()[..., None]).view(rows, columns)


def target_tensors(target):
    tensors = {}
    linears = target.linears()
    for name, tensor in target.state_dict().items():
        tensor, owner = tensor.detach().cpu(), name.removesuffix(".weight")
        if owner in linears:
            tensors.update({f"{owner}.{key}": value for key, value in packed(tensor).items()})
        else:
            tensors[name] = tensor.bfloat16()
    return tensors


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def write_folder(folder, config, tensors):
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), config)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def write_target(folder, target):
    write_folder(folder, target_config(target.shape), target_tensors(target))


def write_assistant(folder, assistant, backbone):
    tensors = {name: tensor.detach().cpu().bfloat16() for name, tensor in assistant.state_dict().items()}
    write_folder(folder, assistant_config(assistant.shape, backbone), tensors)


def write_tokenizer(folder, tokenizer):
    """tokenizer: a tokenizers.Tokenizer. The file is written without indentation to stay small."""
    tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    write_json(os.path.join(folder, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True, "add_eos_token": False,
        "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>",
        "mask_token": "<mask>", "clean_up_tokenization_spaces": False, "model_max_length": models.TARGET.positions})
    write_generation(folder)


def write_generation(folder, drafts=None):
    """generation_config.json; `drafts` is the number of tokens that transformers drafts with an assistant."""
    values = {"bos_token_id": BOS, "eos_token_id": [EOS, END_OF_TURN], "pad_token_id": PAD, "do_sample": True,
              "temperature": 1.0, "top_k": 64, "top_p": 0.95}
    if drafts:
        values.update(num_assistant_tokens=drafts, num_assistant_tokens_schedule="constant")
    write_json(os.path.join(folder, "generation_config.json"), values)


def read_config(folder):
    with open(os.path.join(folder, "config.json")) as file:
        return json.load(file)


def shape_of(config):
    """The Shape that a text configuration of ours describes."""
    rope = config["rope_parameters"]
    return models.Shape(
        hidden=config["hidden_size"], types="".join(kind[0] for kind in config["layer_types"]),
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"],
        global_kv_heads=config["num_global_key_value_heads"], head_dim=config["head_dim"],
        global_head_dim=config["global_head_dim"], intermediate=config["intermediate_size"],
        window=config["sliding_window"], vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"], theta=rope["sliding_attention"]["rope_theta"],
        global_theta=rope["full_attention"]["rope_theta"],
        rotated_share=rope["full_attention"]["partial_rotary_factor"],
        softcap=config["final_logit_softcapping"] or 0.0)


def dense_tensors(folder):
    """Tensors of a folder in float32, packed weights unpacked: {name as in a state dict: tensor}."""
    stored = load_file(os.path.join(folder, "model.safetensors"))
    dense = {}
    for name, tensor in stored.items():
        if name.endswith(".weight_packed"):
            base = name.removesuffix("_packed")
            dense[base] = unpacked(tensor, stored[base + "_scale"], stored[base + "_shape"])
        elif not name.endswith((".weight_scale", ".weight_shape")):
            dense[name] = tensor.float()
    return dense


def read_target(folder):
    target = models.Target(shape_of(read_config(folder)))
    target.load_state_dict(dense_tensors(folder))
    return target.eval().requires_grad_(False)


def read_assistant(folder):
    config = read_config(folder)
    assistant = models.Assistant(shape_of(config["text_config"]), config["backbone_hidden_size"])
    assistant.load_state_dict(dense_tensors(folder))
    return assistant.eval().requires_grad_(False)
