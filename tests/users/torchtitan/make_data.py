"""What TorchTitan's debug model reads: a text that can be learnt, and a tokenizer trained on it.

    python tests/users/torchtitan/make_data.py FOLDER

FOLDER gets `tests/assets/c4_test/data.json` and `tests/assets/tokenizer`, the places that
TorchTitan's configurations name. The text is the same in every run, so the losses are too.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SYLLABLES = "ba ko ri ten mo lu sha ver in dor al pe qui zan eth o".split()
DOCUMENTS = 400
# The debug models have 2048 embeddings.
VOCABULARY = 2000
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"


def documents(seed: int) -> list[str]:
    """Words of syllables; each word has four that usually follow it."""
    random_ = random.Random(seed)
    words = [
        "".join(random_.choice(SYLLABLES) for _ in range(random_.randint(1, 3))) for _ in range(400)
    ]
    following = {word: random_.choices(words, k=4) for word in words}
    texts = []
    for _ in range(DOCUMENTS):
        text = [random_.choice(words)]
        for _ in range(random_.randint(60, 300)):
            usual = random_.random() < 0.9
            text.append(random_.choice(following[text[-1]] if usual else words))
        texts.append(" ".join(text) + ".")
    return texts


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make(folder: Path) -> None:
    texts = documents(seed=1)
    corpus = folder / "tests" / "assets" / "c4_test"
    corpus.mkdir(parents=True, exist_ok=True)
    (corpus / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    place = folder / "tests" / "assets" / "tokenizer"
    place.mkdir(parents=True, exist_ok=True)
    train_tokenizer(texts).save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": BEGIN, "eos_token": END, "add_bos_token": True})
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]))
