# SPDX-License-Identifier: Apache-2.0
"""The pair's tokenizer: BPE with byte fallback in the form that Gemma's tokenizer.json has.

Spaces become U+2581, special tokens have the lowest ids, then 256 byte tokens, then pieces. Merges are learnt inside
words, runs of spaces and runs of newlines, so that applying them needs no splitting at all.
"""
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SIZE = 8192
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"]
SPACE = "▁"
# A word with one space before it, one digit, punctuation, a run of spaces up to its last one, newlines.
WORDS = r"▁?\p{L}+|\p{N}|▁?[^\p{L}\p{N}▁\n]{1,12}|▁+(?=▁)|▁|\n{1,2}"


def train(documents):
    learner = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    learner.normalizer = normalizers.Replace(" ", SPACE)
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=SPECIAL + bytes_, limit_alphabet=400,
                                  min_frequency=20, max_token_length=16, show_progress=False)
    learner.train_from_iterator(documents, trainer)
    return finished(learner)


def finished(learner):
    """The same vocabulary without the splitting that only training needs."""
    import json

    learnt = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in learnt["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=learnt["vocab"], merges=merges, byte_fallback=True, fuse_unk=True,
                                     unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", SPECIAL.index("<bos>"))])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer
