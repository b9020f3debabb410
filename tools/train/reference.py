# SPDX-License-Identifier: Apache-2.0
"""The pair as transformers computes it, in float32 with unpacked weights: what check_export.py compares with.

Nothing here uses model.py's arithmetic.
"""
import torch
import transformers

import export


def load(target_folder, assistant_folder):
    """-> (Gemma4ForCausalLM, Gemma4AssistantForCausalLM)."""
    config = export.read_config(target_folder)
    config.pop("quantization_config")
    config["dtype"] = "float32"
    target = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**config))
    _load(target, export.dense_tensors(target_folder))
    config = export.read_config(assistant_folder)
    config["dtype"] = "float32"
    assistant = transformers.Gemma4AssistantForCausalLM(transformers.Gemma4AssistantConfig(**config))
    _load(assistant, export.dense_tensors(assistant_folder))
    return target, assistant


def _load(module, tensors):
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    missing = [name for name in missing if name != "lm_head.weight"]
    assert not missing and not unexpected, (missing, unexpected)
    module.tie_weights()
    module.float().eval().requires_grad_(False)
    assert module.lm_head.weight.data_ptr() == module.model.embed_tokens.weight.data_ptr()


def forward(target, tokens):
    """One pass over tokens [n]: (logits [n, V], hidden [n, H], {layer type: (k, v)})."""
    out = target.model(input_ids=tokens[None], use_cache=False, return_shared_kv_states=True)
    hidden = out.last_hidden_state
    softcap = target.config.final_logit_softcapping
    logits = torch.tanh(target.lm_head(hidden) / softcap) * softcap
    return logits[0], hidden[0], dict(out.shared_kv_states)


def drafts(target, assistant, tokens, hidden, memory, count):
    """Drafts that follow tokens [s + 1]; hidden [s, H] and memory are the target's over the first s.

    The keys are those of positions 0 to s - 1; on sliding layers the last `window` of them (transformers' own loop
    lets one more through right after a prompt).
    """
    known = len(tokens) - 1
    window = assistant.config.text_config.sliding_window
    first = {"full_attention": 0, "sliding_attention": max(0, known - window)}
    memory = {kind: (k[:, :, first[kind]:known], v[:, :, first[kind]:known]) for kind, (k, v) in memory.items()}
    last, state = tokens[None, -1:], hidden[None, known - 1:known]
    position = torch.tensor([[known]])
    result, rows = [], []
    for _ in range(count):
        embedded = target.model.embed_tokens(last)
        out = assistant(inputs_embeds=torch.cat([embedded, state], -1), position_ids=position,
                        shared_kv_states=memory, use_cache=False)
        last, state = out.logits.argmax(-1), out.last_hidden_state
        result.append(int(last))
        rows.append(out.logits[0, 0])
    return result, torch.stack(rows)
