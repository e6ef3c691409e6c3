# SPDX-License-Identifier: Apache-2.0
"""Makes tokenizer.txt: strings and their ids from the `tokenizers` library, for models/tiny.

README.md states the format. The strings are fixed: a list by hand and seeded mixtures of it.
"""
import random
from pathlib import Path

from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models/tiny"
BOS, EOS, PAD = "<|begin_of_sentence|>", "<|end_of_sentence|>", "<|pad|>"
STRINGS = [
    "", " ", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "   \n\n   x", "a", " a", "  a", "a ", "a  ",
    "Hello, world!", "The read() function", "it's we'll don't I'm they've", "SELECT * FROM t;",
    "CREATE TABLE users (\n    id serial PRIMARY KEY,\n    name text NOT NULL\n);\n",
    "def f(x):\n\treturn x ** 2  # squared\n", "for(;;){}\n\n\n}", "a.b.c::d->e", "x=1,y=-2;z=+3",
    "0", "12", "123", "1234", "12345678901234567890", "3.14159e-10", "0xDEADBEEF", "1,000,000",
    "v15.2-rc1", "２０２４年", "½ ¼ ²", "Ⅷ ①", "CamelCase snake_case SCREAMING_CASE kebab-case",
    "Café naïve Straße Ærø", "e\u0301 a\u0308 combining", "\u0301 starts with a mark", "ﬁ ligature",
    "Привет, мир", "Καλημέρα κόσμε", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "日本語のテキスト", "中文字符和English混排", "ひらがなカタカナ漢字", "한국어 텍스트", "一", "龥", "龦", "ー゠ヿ぀",
    "🙂", "👩‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "👍🏽", "x🙂y", "🙂🙂 🙂", "\U0001F600\u200d\uFE0F", "\U000E0041",
    "\x00", "a\x00b", "\x00\x00", "\x01\x02\x1f\x7f", "\u0080\u0085\u009f", "\u00a0nbsp\u00a0",
    "\u2028line\u2029",
    "\u200bzero\u200bwidth", "\ufeffbom", "\u3000ideographic space", "\u1680ogham", "\x0bvt\x0cff",
    "\ue000 private", "\U0010ffff", "\ufffd", "“quotes” ‘single’ – — …", "a–b—c", "→ ← ∞ ≤ √",
    "$€£¥",
    "!!!", "?!?!", "...", "----------", "==========\n", "((([[[{{{", "#include <stdio.h>",
    "@decorator",
    "/usr/share/doc", "C:\\Windows\\", "user@example.com", "https://www.postgresql.org/docs/15/",
    "%s %d %5.2f", "&amp; &lt;", "\\n \\t \\\\", "`code`", "~/.bashrc", "a|b||c", "^caret", "_",
    "__init__",
    "!word", " !word", "  !word", "'s", "'S", "x's", "(x)", " (x)", ".x", " .x", ".\n", ".\n\n",
    " .\n\n\nx",
    "word\nword", "word \nword", "word\n word", "word\n  word", "word\r\n\r\nword",
    "\n\n  \n  x\n", "\t\t\tx",
    "x" * 300, " " * 100, "ab" * 50, "\n" * 40, "=-" * 30, "é" * 20, "日" * 30, "9" * 31,
    BOS, EOS, PAD, BOS + EOS, f"a{EOS}b", f"a {EOS} b", f" {BOS}", f"{BOS} x", f"\n{EOS}\n",
    f"x{PAD}{PAD}y",
    "<|begin_of_sentence", "|>", "<|end_of_sentence|", "<|END_of_sentence|>", f"<{EOS}>",
    f"{EOS[:-1]}{EOS}",
    "<|", "<|x|>", "<||>", f"日{EOS}本", f"🙂{BOS}🙂", f"1{EOS}2", f"'{EOS}'",
]


def mixtures(count):
    """Concatenations of two to five of the strings above: the splits meet at their edges."""
    draw, short = random.Random(20), [s for s in STRINGS if 0 < len(s) < 40]
    return ["".join(draw.choices(short, k=draw.randint(2, 5))) for _ in range(count)]


def main():
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    strings = STRINGS + mixtures(80)
    with open(HERE / "tokenizer.txt", "w") as out:
        for text in strings:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            if decoded != text:
                raise SystemExit(f"{text!r} comes back as {decoded!r}")
            out.write(f"{text.encode().hex() or '-'}\t{' '.join(map(str, ids))}\n")
    print(len(strings), "strings")


if __name__ == "__main__":
    main()
