# SPDX-License-Identifier: Apache-2.0
"""Trains small tokenizers and records what Hugging Face's `tokenizers` makes of awkward texts.

Usage: python tokenizer_json_goldens.py [--out DIR]      (needs tokenizers and jinja2)

For each of four kinds (Gemma's BPE over characters with byte fallback, the same with a space put in front as Llama 2
has it, the byte-level ones of SmolLM and of Llama 3) a folder with tokenizer.json, its companions and ids.json: the
cases, their ids with special tokens parsed and not, and the decoded text. The texts are those of tokenizer_goldens.py,
shortened. chat.json has Gemma 4's prompt as jinja2 renders a template of ours that makes the same choices.
"""
import argparse
import importlib.metadata
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_goldens import PARAGRAPHS, WHITESPACE

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
GEMMA_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|channel>", "<channel|>",
                 "<|tool_response>"]
NEWLINES = ["\n" * n for n in range(2, 8)]

# The choices of Gemma 4's templates for messages of text: turns, trimmed contents, thoughts taken out of earlier
# answers, and (in the larger models) an empty thought in front of the answer.
CHAT = """{%- macro answer(text) -%}
{%- set out = namespace(text='') -%}
{%- for part in text.split('<channel|>') -%}
{%- set out.text = out.text + part.split('<|channel>')[0] -%}
{%- endfor -%}
{{- out.text | trim -}}
{%- endmacro -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- set role = 'model' if message['role'] == 'assistant' else 'system' if message['role'] == 'developer' else message['role'] -%}
{{- '<|turn>' + role + '\\n' -}}
{%- if role == 'model' -%}{{- answer(message['content']) -}}{%- else -%}{{- message['content'] | trim -}}{%- endif -%}
{{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|turn>model\\n' -}}
EMPTY_THOUGHT
{%- endif -%}
"""
EMPTY_THOUGHT = "{%- if not enable_thinking | default(false) -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}"

CHATS = [
    [{"role": "user", "content": " Hello there,\n how are you? \n"}],
    [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"},
     {"role": "assistant", "content": "<|channel>thought\nA greeting.\n<channel|>Hello! <b>x</b>\n"},
     {"role": "user", "content": "And <channel|> again?"}],
    [{"role": "developer", "content": "d"}, {"role": "user", "content": ""}, {"role": "user", "content": "two"},
     {"role": "assistant", "content": "a<|channel>open"}, {"role": "assistant", "content": "b<channel|>c<|channel>d<channel|> e "}],
]


def corpus():
    rng = random.Random(5)
    for _ in range(3):
        for paragraph in PARAGRAPHS:
            words = paragraph.split(" ")
            yield paragraph
            yield rng.choice(WHITESPACE).join(words)


def character_bpe(space_prefix):
    """As the files of Gemma (and with `space_prefix` of Llama 2) have it, special tokens and bytes first."""
    first = GEMMA_SPECIAL + BYTES
    trainer = trainers.BpeTrainer(vocab_size=1100, special_tokens=first, initial_alphabet=["\n", "\u2581"],
                                  limit_alphabet=420, show_progress=False)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[^\u2581]+\u2581|\u2581+|\n+"), "isolated")
    tokenizer.train_from_iterator(corpus(), trainer)
    state = json.loads(tokenizer.to_str())
    # Bytes are tokens, not added ones; newline runs are added ones that are not special.
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] not in BYTES]
    state["pre_tokenizer"] = None if space_prefix else {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_tokens([AddedToken(run, normalized=False) for run in NEWLINES + ["<b>", "</b>", "</s>", "<bb"]])
    tail = []
    if space_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tail = [decoders.Strip(" ", 1, 0)]
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)])
    else:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()] + tail)
    return tokenizer


def byte_bpe(llama3):
    special = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"] if llama3 else [
        "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE(ignore_merges=llama3))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not llama3)
    before = pre_tokenizers.Split(Regex(LLAMA3), "isolated") if llama3 else pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([before, words])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    if llama3:
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def cases(tokenizer):
    rng = random.Random(9)
    special = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    yield from ["", " ", "  ", "a", " a", "a ", "hello world", " leading and trailing ", "\n", "\n\n", "\n" * 20, "a\n\n\nb",
                " \n \n\n ", "\t\ttabs", "a\0b", "x\u2581y \u2581 z", "123 4567 8,9", "I'm you'RE we'll", "0x1F600 \U0001F600",
                "\u00e9\u0301\ufffd\U0010ffff", "a" * 300, "\u597d" * 20, "<0x41><0x0A>", "<b>bold</b></s>", "<bb>b<bbb"]
    for paragraph in PARAGRAPHS:
        yield paragraph[:60]
        yield paragraph[-50:]
    for _ in range(40):
        parts = [rng.choice(special + WHITESPACE[:12] + ["x", "user", " the ", "\u00e4\u00f6"]) for _ in range(8)]
        yield "".join(parts)
    for token in special:
        yield f"a{token} {token[:-1]} b{token[1:]}{token}"


def record(folder, tokenizer, companions):
    os.makedirs(folder, exist_ok=True)
    state = json.loads(tokenizer.to_str())
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(state, file, ensure_ascii=False, separators=(",", ":"))
    for name, content in companions.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content, indent=1) + "\n")
    rows = []
    for text in cases(tokenizer):
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        row = {"text": text, "special": ids, "prompt": tokenizer.encode(text).ids[: len(ids) + 2],
               "decoded": tokenizer.decode(ids, skip_special_tokens=False)}
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        if plain != ids:
            row["plain"] = plain
        if row["prompt"] == ids:
            del row["prompt"]
        if row["decoded"] == text:
            del row["decoded"]
        rows.append(json.dumps(row, separators=(",", ":")))
    with open(os.path.join(folder, "ids.json"), "w", encoding="utf-8") as file:
        head = {"recorded_with": "tokenizers " + importlib.metadata.version("tokenizers"), "vocab_size": tokenizer.get_vocab_size()}
        file.write(json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(rows) + "\n]}\n")
    print(folder, tokenizer.get_vocab_size(), "tokens", len(rows), "cases")


def record_chats(path):
    import jinja2

    rows = []
    for empty_thought in (True, False):
        source = CHAT.replace("EMPTY_THOUGHT\n", EMPTY_THOUGHT + "\n" if empty_thought else "")
        template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source)
        for messages in CHATS:
            for prompt in (True, False):
                text = template.render(messages=messages, add_generation_prompt=prompt, bos_token="<bos>")
                rows.append(json.dumps({"template": source, "messages": messages, "add_generation_prompt": prompt, "text": text}))
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(rows) + "\n]\n")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=os.path.join(here, "../../tests/golden/tokenizer_json"))
    args = parser.parse_args()
    gemma_template = CHAT.replace("EMPTY_THOUGHT", EMPTY_THOUGHT)
    record(os.path.join(args.out, "gemma"), character_bpe(False), {
        "tokenizer_config.json": {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"},
        "generation_config.json": {"eos_token_id": [1, 6, 9]}, "chat_template.jinja": gemma_template})
    record(os.path.join(args.out, "llama2"), character_bpe(True), {
        "tokenizer_config.json": {"bos_token": {"content": "<bos>"}, "eos_token": {"content": "<eos>"}},
        "config.json": {"eos_token_id": 1}})
    record(os.path.join(args.out, "smollm"), byte_bpe(False), {
        "tokenizer_config.json": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}})
    record(os.path.join(args.out, "llama3"), byte_bpe(True), {
        "tokenizer_config.json": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}})
    record_chats(os.path.join(args.out, "chat.json"))


if __name__ == "__main__":
    main()
