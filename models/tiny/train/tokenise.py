# SPDX-License-Identifier: Apache-2.0
"""Stage `tokenizer`: trains the byte-level BPE, encodes the documents, draws the prompts.

Writes ../tokenizer.json, ../tokenizer_config.json, data/tokens.npz (all that training needs) and
tests/vectors/heldout_prompts.jsonl.
"""
import json
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers import trainers

HERE = Path(__file__).resolve().parent
MODEL, DATA = HERE.parent, HERE / "data"
PROMPTS = HERE.parents[2] / "tests/vectors/heldout_prompts.jsonl"
BOS, EOS, PAD = "<|begin_of_sentence|>", "<|end_of_sentence|>", "<|pad|>"
VOCABULARY = 2048
PROMPT_COUNT, PROMPT_TOKENS = 32, 64
# The splits of DeepSeek-V3: digits in threes, CJK runs, then words, punctuation and spaces.
SPLITS = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def read_documents():
    with open(DATA / "documents.jsonl") as lines:
        return [json.loads(line) for line in lines]


def train_tokenizer(documents):
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(s), "isolated", invert=False) for s in SPLITS]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True) for t in (BOS, EOS, PAD)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    texts = (d["text"] for d in documents if d["split"] == "train")
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)])
    return tokenizer


def tokenizer_config():
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    special = {str(i): {"content": t, **plain, "special": True}
               for i, t in enumerate((BOS, EOS, PAD))}
    return {"add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": special,
            "bos_token": BOS, "eos_token": EOS, "pad_token": PAD,
            "clean_up_tokenization_spaces": False, "model_max_length": 2048,
            "tokenizer_class": "PreTrainedTokenizerFast"}


def encode_split(tokenizer, documents):
    """(tokens, paragraph starts, document starts, bytes); documents lie between BOS and EOS."""
    tokens, paragraphs, starts, size = [], [], [], 0
    for document in documents:
        text = document["text"]
        encoding = tokenizer.encode(text, add_special_tokens=False)
        first = np.array([start for start, _ in encoding.offsets])
        at = [i + 2 for i in range(len(text) - 2) if text[i: i + 2] == "\n\n" and text[i + 2] > " "]
        place = np.searchsorted(first, at)
        exact = place[first[np.minimum(place, len(first) - 1)] == at] if at else []
        starts.append(len(tokens))
        paragraphs += [len(tokens) + 1] + [len(tokens) + 1 + int(p) for p in exact]
        tokens += [0] + encoding.ids + [1]
        size += len(text.encode())
    return (np.array(tokens, np.uint16), np.array(paragraphs, np.int32),
            np.array(starts, np.int32), size)


def first_prompt(tokenizer, text):
    """The start of the first paragraph of one line that has enough tokens, cut before a space."""
    for paragraph in text.split("\n\n"):
        encoding = tokenizer.encode(paragraph, add_special_tokens=False)
        if "\n" not in paragraph and len(encoding.ids) > PROMPT_TOKENS:
            cut = paragraph[: encoding.offsets[PROMPT_TOKENS - 1][1]]
            return cut[: cut.rindex(" ")]
    return None


def write_prompts(tokenizer, documents):
    """One prompt from each of 32 evenly spaced documents among those that have one."""
    prompts = [p for p in (first_prompt(tokenizer, d["text"]) for d in documents) if p]
    chosen = [prompts[i * len(prompts) // PROMPT_COUNT] for i in range(PROMPT_COUNT)]
    PROMPTS.parent.mkdir(parents=True, exist_ok=True)
    with open(PROMPTS, "w") as out:
        for prompt in chosen:
            out.write(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n")
    return [tokenizer.encode(p).ids for p in chosen]


def main():
    documents = read_documents()
    tokenizer = train_tokenizer(documents)
    tokenizer.save(str(MODEL / "tokenizer.json"))
    text = json.dumps(tokenizer_config(), indent=1, ensure_ascii=False)
    (MODEL / "tokenizer_config.json").write_text(text + "\n")
    arrays = {}
    for split in ("train", "validation", "heldout"):
        chosen = [d for d in documents if d["split"] == split]
        arrays[split], arrays[split + "_paragraphs"], arrays[split + "_starts"], size = (
            encode_split(tokenizer, chosen))
        arrays[split + "_bytes"] = np.int64(size)
        print(split, len(arrays[split]), "tokens", size, "bytes",
              len(arrays[split + "_paragraphs"]), "paragraphs")
    held = [d for d in documents if d["split"] == "heldout"]
    ids = write_prompts(tokenizer, held)
    arrays["prompts"] = np.full((len(ids), max(map(len, ids))), -1, np.int32)
    for row, prompt in zip(arrays["prompts"], ids):
        row[: len(prompt)] = prompt
    np.savez_compressed(DATA / "tokens.npz", **arrays)


if __name__ == "__main__":
    main()
