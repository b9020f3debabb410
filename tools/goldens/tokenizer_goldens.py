# SPDX-License-Identifier: Apache-2.0
"""Records the token ids of llama.cpp for a text in many scripts and for awkward small cases.

Usage: python tokenizer_goldens.py [--models DIR] [--out DIR]      (needs llama-cpp-python)

Writes cases.json (the texts) and one file of ids per vocabulary. The tokenizer model test compares with them. There is
no small Llama 3 file, so its pre-tokenizer is recorded with the vocabulary of SmolLM2.
"""
import argparse
import hashlib
import importlib.metadata
import json
import os
import random
import struct
import tempfile

# Name of the record, file, pre-tokenizer to put in place of the file's own.
RECORDS = [
    ("gemma-3-270m-q4_k_m", "gemma-3-270m-q4_k_m.gguf", None),
    ("SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf", None),
    ("SmolLM2-135M-Instruct.Q4_1.llama-bpe", "SmolLM2-135M-Instruct.Q4_1.gguf", "llama-bpe"),
]

PARAGRAPHS = [
    # Latin, English
    "The lighthouse keeper's logbook didn't mention the storm; it'd been quiet for weeks, he'd written, and \"nothing "
    "worth noting\" followed on every line. We're told that they've since moved the archive (twice!), that I'm not "
    "allowed to copy it, and that you'll find the originals at No. 17-B, Harbour Rd. DON'T ask; I'LL explain, WE'VE "
    "tried. Rock'n'roll, o'clock, 'tis, 'sup, it's, IT'S, it’s, they’re.",
    # German
    "Die Straßenbahn fährt über die größte Brücke Österreichs, vorbei an Müllers Weißwurstküche und dem "
    "Donaudampfschifffahrtsgesellschaftskapitän, der – wie immer – schläft. „Schöne Grüße!“, rief er; ‚nie‘ kam zurück.",
    # French
    "L'été dernier, j'ai mangé à l'hôtel où naguère un garçon naïf vendait des crêpes à 3,50 € pièce ; « c'est très "
    "cher », disait-il, « mais qu'importe ? » Œuvre, cœur, aiguë, Noël, façade.",
    # Spanish, Portuguese, Polish, Czech, Turkish, Vietnamese
    "¿Cuántos años tiene el niño pequeño? ¡Muchísimos! A ação não é fácil, irmã. Zażółć gęślą jaźń, łódź pełna żab. "
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Iğdır'ın çığlığı, İstanbul, ılık. Tiếng Việt rất khó nhưng thật đẹp.",
    # Greek
    "Στην ακτή του νησιού ο ψαράς μαζεύει τα δίχτυα του πριν από την ανατολή· η θάλασσα είναι ήρεμη. Τι ώρα είναι; "
    "Ἐν ἀρχῇ ἦν ὁ λόγος. ΑΒΓΔΕ αβγδε ΐ ΰ ς.",
    # Cyrillic
    "Поезд отправляется в полночь, но съёмочная группа ещё не приехала. Ёжик в тумане нёс узелок с вареньем. "
    "Українська мова має літери ї, є, ґ. Ђорђе и Љиљана живе у Београду. Объявление № 42.",
    # Armenian, Georgian, Amharic
    "Բարեւ աշխարհ, ինչպես ես։ საქართველო მდებარეობს კავკასიაში. ሰላም ለዓለም፣ እንዴት ነህ።",
    # Chinese
    "山上的小屋里住着一位老人，他每天早上五点起床，先喝一杯热茶，然后去河边钓鱼。「今天天气真好！」他说。繁體字：龍、龜、鬱、"
    "讓、體、圖書館。二〇二四年三月十五日，价格是￥１２３４．５０元。𠮷野家，𪚥。",
    # Japanese
    "彼女は毎朝コーヒーを飲みながら新聞を読みます。『吾輩は猫である』は名作だ。ｶﾀｶﾅとカタカナ、ひらがな、ヴァイオリン、"
    "ー〜・々〆ヶ。東京都千代田区１－２－３。",
    # Korean
    "바닷가 마을의 작은 도서관에는 오래된 책들이 가득했다. 아이들은 방과 후에 모여 이야기를 들었다. ㅋㅋㅋ ㅠㅠ 값이 3만5천원이에요.",
    # Arabic, Persian, Urdu
    "في الصباح الباكر يفتح البائع دكانه الصغير ويرتب الفواكه. السَّلَامُ عَلَيْكُمْ، كَيْفَ حَالُكَ؟ ١٢٣٤٥ ۱۲۳۴۵ "
    "می‌خواهم کتاب‌ها را بخوانم. یہ اردو ہے۔",
    # Hebrew, Yiddish
    "בבוקר מוקדם הלך הילד אל הים. שָׁלוֹם עֲלֵיכֶם! מחיר: 25 ₪. ייִדיש איז אַ שפּראַך.",
    # Hindi, Bengali, Tamil, Telugu
    "सुबह-सुबह गाँव के बच्चे नदी के किनारे खेलते हैं। क्षत्रिय, ज्ञान, श्री, १२३४५। বাংলা ভাষা খুব সুন্দর। தமிழ் மொழி மிகவும் பழமையானது. "
    "తెలుగు లిపి గుండ్రంగా ఉంటుంది.",
    # Thai, Lao, Khmer, Burmese, Tibetan
    "ภาษาไทยไม่มีการเว้นวรรคระหว่างคำ ราคา ๑๒๓ บาท ที่นี่สวยมาก ສະບາຍດີ ភាសាខ្មែរ មြန်မာစာ བོད་སྐད།",
    # Emoji, with joiners, skin tones, flags, keycaps, variation selectors
    "👩‍👩‍👧‍👦 👨🏽‍🚀 🏳️‍🌈 🏴‍☠️ 🇩🇪🇫🇷🇯🇵 1️⃣ #️⃣ ❤️ ☺︎ 🤷🏿‍♀️ 😀😃😄😁😆 🧑‍💻🚀🔥✨ 👍👍🏻👍🏿 ©️ ™️ 🫠🫡",
    # Code
    "def f(x: int = 0) -> list[int]:\n    \"\"\"Doc.\"\"\"\n    return [i**2 for i in range(x) if i % 3 != 0]\n\n\n"
    "class A(B):\n\tdef __init__(self, *args, **kwargs):\n\t\tsuper().__init__()\n\t\tself._x = {'k': 1.5e-3, \"q\": None}\n",
    "#include <vector>\ntemplate <typename T>\nconstexpr auto operator<=>(const T&, const T&) = default;\n"
    "int main(int argc, char** argv) {\n  std::vector<int> v{1, 2, 3};\n  for (auto&& x : v) { x <<= 1; /* shift */ }\n"
    "  return v[0] ? 0x7fff'ffff : ~0ull;  // done\n}\n",
    "SELECT a.id, COUNT(*) AS n FROM t1 a LEFT JOIN t2 b ON a.id=b.a_id WHERE b.x IS NOT NULL GROUP BY 1 HAVING n>=10;\n"
    "<div class=\"row\"><p>Hello&nbsp;<b>world</b></p><br/><table><tr><td>1</td></tr></table></div>\n"
    "{\"key\": [1, -2.5, true, null], \"nested\": {\"a\\n\": \"\\u00e9\"}}\n$ curl -sSL https://example.org/a?b=c&d=%20e | "
    "grep -Ei '^x{2,}' > /dev/null 2>&1 && echo $?\n",
    "\\begin{align}\\frac{\\partial u}{\\partial t} &= \\alpha \\nabla^2 u \\\\ E &= mc^2 \\end{align} ∀x∈ℝ: x²≥0, ∑ᵢ₌₁ⁿ i = n(n+1)/2, √2≈1.41421, "
    "∫₀^∞ e^{−x²}dx = ½√π, A ⊆ B ⇔ ¬(∃x∈A: x∉B), ⟨ψ|φ⟩, 𝔸𝔹ℂ 𝒳 𝟘𝟙𝟚",
    # Digits and number-like characters of other kinds
    "0 1 12 123 1234 12345 123456 1234567 12345678901234567890 3.14159 1,000,000 -42 +7 1e10 0xDEADBEEF 007 1/2 50% $9.99 "
    "2024-02-29T23:59:59Z 192.168.0.1 +49 (0)30 123456 ½ ¼ ² ³ ⁴ ① ⑳ Ⅷ ⅻ ㊿ ٤٢ ४२ ๔๒ 零 九 𝟗 a1b2c3 x86_64 v1.2.3-rc4",
    # Punctuation
    "...!!!???,,,;;;:::---___***///\\\\\\|||&&&%%%$$$###@@@~~~```'''\"\"\"(((([[[[{{{{}}}}]]]])))) <<>> <= >= == != -> => :: ... "
    "… — – ‐ ‑ ‒ ― ‘’“”„‟‹›«» • · † ‡ § ¶ ° ′ ″ ※ ⁂ 、。・「」【】〈〉《》！？：；（）［］｛｝",
    # Combining marks, ligatures, width variants, private use, unassigned, noncharacters
    "e\u0301 a\u030a o\u0308 n\u0303 Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324 ﬁ ﬂ ﬃ Ａｂｃ１２３ \ue000\uf8ff "
    "\U000f0000 \U0010fffd \ufffd \ufffe \uffff ￼ ª º ⁿ ₐ Å K Ω ſ ß ẞ ı ŉ ǆ Ǆ ǅ",
    # Control and format characters
    "a\x01b\x02c\x03d\x07e\x08f\x0bg\x0ch\x0ei\x1bj\x1fk\x7fl\x80m\x85n\x9fo\xa0p\xadq\u200br\u200cs\u200dt\u200eu\u200fv"
    "\u2028w\u2029x\u202ey\u2060z\ufeffA\u180eB\u3000C\u2003D\u1680E",
]

WHITESPACE = [
    " ", "  ", "   ", "     ", " " * 17, "\n", "\n\n", "\n\n\n", "\n\n\n\n\n\n", "\t", "\t\t", "\t\t\t\t", "\r\n", "\r\n\r\n", "\r", "\r\r",
    " \n", "\n ", "  \n  ", "\t \t", " \t\n\r\n \t ", "\n\t\n", "\u00a0", "\u00a0\u00a0 ", "\u3000", "\u2003 ", "\x0b", "\x0c", "\x85", "\u2028",
    " " * 64, "\n" * 40, "\t" * 33,
]


def big_text(characters=20000):
    """Every paragraph once as it is, then words of all paragraphs shuffled with every kind of white space."""
    rng = random.Random(20240229)
    out = []
    for i, paragraph in enumerate(PARAGRAPHS):
        out.append(paragraph)
        out.append(WHITESPACE[i % len(WHITESPACE)])
    words = [w for p in PARAGRAPHS for w in p.split(" ") if w]
    length = sum(map(len, out))
    while length < characters:
        word = rng.choice(words)
        kind = rng.random()
        if kind < 0.08:
            word = str(rng.randrange(10 ** rng.randrange(1, 12)))
        elif kind < 0.14:
            word = word + rng.choice(words)
        elif kind < 0.18:
            word = word[: rng.randrange(1, len(word) + 1)]
        elif kind < 0.21:
            word = word.upper()
        elif kind < 0.24:
            word = word * rng.randrange(2, 5)
        elif kind < 0.26:
            word = "".join(chr(rng.choice([rng.randrange(0x20, 0x3000), rng.randrange(0x4e00, 0xd7a4),
                                           rng.randrange(0x1f300, 0x1faff)])) for _ in range(4))
        gap = " " if rng.random() < 0.75 else rng.choice(WHITESPACE)
        out += [word, gap]
        length += len(word) + len(gap)
    return "".join(out)[:characters]


def special_text():
    """Spelled special tokens of both models, whole, broken, glued and nested, between ordinary words."""
    rng = random.Random(7)
    names = [
        "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "[multimodal]", "<unused0>", "<unused42>", "<unused6241>", "<start_of_turn>",
        "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>", "<table>", "<tr>", "</td>", "<h1>", "<b>", "</sup>", "<0x41>",
        "<0x00>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>",
        "<issue_start>", "<jupyter_code>", "<empty_output>", "<s>", "</s>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>",
    ]
    glue = ["", "", " ", "\n", "  ", "\n\n", "x", "user\n", " model ", "é", "<", ">", "|", "\t\t", "12", "日本"]
    out = []
    for name in names:
        out += [name, " ", name[:-1], " ", name[1:], name, name.upper(), " a", name, "b\n"]
    for _ in range(400):
        name = rng.choice(names)
        if rng.random() < 0.15:
            cut = rng.randrange(1, len(name))
            name = name[:cut] + rng.choice(names) + name[cut:]
        out += [name, rng.choice(glue)]
    return "".join(out)


def small_cases():
    cases = [
        ("empty", ""), ("one space", " "), ("two spaces", "  "), ("one letter", "a"), ("space and letter", " a"),
        ("trailing space", "hello "), ("leading spaces", "   hello"), ("newline", "\n"), ("NUL", "a\0b"), ("only controls", "\x01\x02\x03\x04\x05\x06"),
        ("gemma turn", "<bos><start_of_turn>user\nHello there!<end_of_turn>\n<start_of_turn>model\n"),
        ("chatml turn", "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        ("newline runs", "".join("\n" * n + "x" for n in range(1, 70))),
        ("space runs", "".join(" " * n + "x" for n in range(1, 70))),
        ("tab runs", "".join("\t" * n + "x" for n in range(1, 70))),
        ("mixed runs", "".join(" " * (n % 5) + "\n" * (n % 3) + "\t" * (n % 4) for n in range(60))),
        ("long word", "".join(random.Random(3).choice("abcdefghij") for _ in range(3000))),
        ("one letter repeated", "a" * 3000), ("one CJK character repeated", "好" * 500), ("one emoji repeated", "😀" * 300),
        ("digits", "".join(random.Random(4).choice("0123456789") for _ in range(500))),
        ("contractions", "I'm you're he's she'd we'll they've it'S I'M YOU'RE 'twas ' s 're're'll''s"),
        ("digits and spaces", " 1 12  123   1234 a1 1a 1.2 ½ ²3 ٣٤"),
    ]
    for i, paragraph in enumerate(PARAGRAPHS):
        cases.append((f"paragraph {i}", paragraph))
    rng = random.Random(11)
    ranges = [(0x20, 0x7f), (0xa0, 0x250), (0x250, 0x700), (0x900, 0xe80), (0x1000, 0x1900), (0x2000, 0x2c00), (0x2e80, 0x3100),
              (0x3100, 0x9fff), (0xac00, 0xd7a4), (0xf900, 0xfffd), (0x10000, 0x10400), (0x1d400, 0x1d800), (0x1f000, 0x1fb00)]
    for i in range(20):
        low, high = ranges[i % len(ranges)]
        text = "".join(chr(rng.randrange(low, high)) if rng.random() < 0.8 else rng.choice(WHITESPACE[:12]) for _ in range(120))
        cases.append((f"random code points {i}", text))
    return cases


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def with_pre_tokenizer(path, pre, out):
    """A copy of the file at `path` whose tokenizer.ggml.pre is `pre`; good for its vocabulary only."""
    def gguf_string(text):
        return struct.pack("<Q", len(text)) + text.encode()

    with open(path, "rb") as file:
        data = file.read()
    key = gguf_string("tokenizer.ggml.pre") + struct.pack("<I", 8)
    begin = data.index(key) + len(key)
    (length,) = struct.unpack_from("<Q", data, begin)
    with open(out, "wb") as file:
        file.write(data[:begin] + gguf_string(pre) + data[begin + 8 + length:] + bytes(64))


def main():
    import llama_cpp

    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=os.path.expanduser("~/.cache/segue/models"))
    parser.add_argument("--out", default=os.path.join(here, "../../tests/golden/tokenizer"))
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    cases = [("text", big_text()), ("special", special_text())] + small_cases()
    with open(os.path.join(args.out, "cases.json"), "w", encoding="utf-8") as file:
        rows = [json.dumps({"name": name, "text": text}) for name, text in cases]
        file.write("[\n" + ",\n".join(rows) + "\n]\n")
    for name, file_name, pre in RECORDS:
        path = os.path.join(args.models, file_name)
        with tempfile.TemporaryDirectory() as folder:
            source = path
            if pre is not None:
                source = os.path.join(folder, file_name)
                with_pre_tokenizer(path, pre, source)
            model = llama_cpp.Llama(source, vocab_only=True, verbose=False)
        rows = []
        for case, text in cases:
            raw = text.encode("utf-8")
            plain = model.tokenize(raw, add_bos=False, special=False)
            special = model.tokenize(raw, add_bos=False, special=True)
            row = {"name": case, "plain": plain}
            if special != plain:
                row["special"] = special
            rows.append(json.dumps(row, separators=(",", ":")))
        head = {"recorded_with": "llama-cpp-python " + importlib.metadata.version("llama-cpp-python"), "model": file_name, "pre": pre,
                "sha256": sha256(path), "vocab_size": model.n_vocab(), "with_bos": model.tokenize(b"Hello", add_bos=True, special=False)}
        with open(os.path.join(args.out, name + ".json"), "w", encoding="utf-8") as file:
            file.write(json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(rows) + "\n]}\n")
        print(name, len(cases), "cases")


if __name__ == "__main__":
    main()
