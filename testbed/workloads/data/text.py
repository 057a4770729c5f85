"""Text from plain files, to predict the next character of.

The first nine tenths of the text are trained on, the rest tests. An example is a window of the text as long as the
model's context, and its targets are the same window one token later. Windows do not overlap: example i starts at token
i * context, so that no two workers see the same text, and an epoch passes each token once.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import log
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from testbed.errors import InputError
from testbed.workloads.data.base import Data, DataFolder, Dataset, Indices, Metric, Shape, Source, dataset, right
from testbed.workloads.keyed import Purpose, generator

Tokens = NDArray[np.integer]

FOLDER = "text"
BYTES = 256
TRAINED_ON = 0.9
WINDOW = 128  # tokens, where a model takes any number
TESTED_TOKENS = 16_384  # at once: bounds the activations held


class TextData(Data, frozen=True, forbid_unknown_fields=True):
    """The options of `text`.

    Attributes
    ----------
    path
        A plain text file; left out: `text/*.txt` of the data folder, one after the other.
    tokens
        What is predicted: characters, the alphabet being those that occur, or the bytes of the file.
    """

    path: str | None = None
    tokens: Literal["character", "byte"] = "character"


class Text(Dataset):
    """Windows of a text.

    Parameters
    ----------
    train, test
        The tokens of the two parts, whole numbers below `outputs`.
    outputs
        The size of the alphabet.
    tokens_per_character
        How many tokens a character of the test's text is, in the mean.
    real, note
        As `Dataset`'s.
    """

    def __init__(
        self,
        train: Tokens,
        test: Tokens,
        outputs: int,
        *,
        tokens_per_character: float = 1.0,
        real: bool = True,
        note: str = "",
    ) -> None:
        self._train, self._test, self._per_character = train, test, tokens_per_character
        self.outputs, self.real, self.note = outputs, real, note
        self.metrics = {
            "bits_per_character": Metric("bits per character", self._bits, better="lower"),
            "accuracy": Metric("accuracy of the next token", right, unit="fraction"),
        }
        self._tokens_there: Tensor | None = None  # the text that is trained on, where it is on a device, too
        self._set_window(WINDOW)

    def _set_window(self, window: int) -> None:
        self.input = (window,)
        self.train_examples, self.test_examples = (
            max(0, len(part) - 1) // window for part in (self._train, self._test)
        )
        self.tested_at_once = max(1, TESTED_TOKENS // window)

    def fit(self, input: Shape | None, device: torch.device) -> Self:
        """Cut the text into windows as long as a model's context.

        Raises
        ------
        InputError
            The model does not take tokens, or the text is shorter than a window.
        """
        fitted = copy(self)
        if device.type != "cpu":
            fitted._tokens_there = torch.from_numpy(self._train.astype(np.int64)).to(device)
        if input is not None:
            if len(input) != 1:
                super().fit(input, device)
            fitted._set_window(input[0])
        if not fitted.train_examples or not fitted.test_examples:
            few = min(len(self._train), len(self._test))
            raise InputError(
                f"data set '{self.name}': a part of its text has {few} tokens, fewer than the {fitted.input[0] + 1} "
                "that the model looks at; take a longer text or a shorter context"
            )
        return fitted

    def train_batch(self, indices: Indices, random: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Windows and the same one token later, both int64 [n, window]; a text is not distorted."""
        return self._windows(self._train, indices)

    def drawn(self, indices: Indices, random: np.random.Generator | None = None) -> tuple[Tensor, ...]:
        """Where the windows begin, int64 [n]."""
        if self._tokens_there is None:
            return super().drawn(indices, random)
        return (torch.from_numpy(indices * self.input[0]),)

    def made(self, drawn: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """As `train_batch` makes them on the CPU."""
        if self._tokens_there is None:
            return super().made(drawn)
        (window,) = self.input
        places = drawn[0][:, None] + torch.arange(window + 1, device=drawn[0].device)
        taken = self._tokens_there.index_select(0, places.view(-1)).view(places.shape)
        return taken[:, :-1], taken[:, 1:]

    def test_batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Windows and the same one token later, both int64 [n, window]."""
        return self._windows(self._test, indices)

    def _windows(self, tokens: Tokens, indices: Indices) -> tuple[Tensor, Tensor]:
        (window,) = self.input
        places = indices[:, None] * window + np.arange(window + 1)
        taken = torch.from_numpy(tokens[places].astype(np.int64))
        return taken[:, :-1], taken[:, 1:]

    def _bits(self, outputs: Tensor, targets: Tensor) -> float:
        nats = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="sum").item()
        return nats / log(2) / targets.shape[1] * self._per_character


@dataset("text", options=TextData, source=Source("a text to train on", f"{FOLDER}/*.txt", (FOLDER,)))
def text(folder: DataFolder, path: str | None, tokens: str) -> Text:
    """Read a text, or generate one where there is none."""
    files = [Path(path).expanduser()] if path is not None else sorted((folder.path / FOLDER).glob("*.txt"))
    if not files:
        folder.notice(
            f"no text in {folder.path / FOLDER}: training on generated words, which mean nothing; to use a real "
            "text, put a .txt file there or name one with data.path"
        )
        return cut(generated().encode(), tokens, "the generated text", real=False, note="generated words, not a text")
    content = b"".join(map(_read, files))
    return cut(content, tokens, str(files[0]), note=", ".join(file.name for file in files))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; data.path names a plain text file") from None


def cut(content: bytes, tokens: str, source: str, *, real: bool = True, note: str = "") -> Text:
    """Turn the bytes of a text into tokens, and cut it into the part that is trained on and the part that tests.

    Raises
    ------
    InputError
        The file, named by `source`, is not UTF-8, and characters were asked for.
    """
    if tokens == "byte":
        numbers: Tokens = np.frombuffer(content, np.uint8)
        outputs, unit = BYTES, "bytes"
    else:
        try:
            points = np.frombuffer(content.decode("utf-8").encode("utf-32-le"), np.uint32)
        except UnicodeDecodeError as error:
            raise InputError(f"{source}: not UTF-8 text ({error.reason}); use data.tokens = 'byte'") from None
        alphabet, places = np.unique(points, return_inverse=True)
        numbers, outputs, unit = places.astype(np.uint16 if len(alphabet) <= 1 << 16 else np.uint32), len(alphabet), ""
    at = int(TRAINED_ON * len(numbers))
    test = numbers[at:]
    characters = len(test.tobytes().decode("utf-8", "replace")) if unit else len(test)
    described = f"{len(numbers):,} {unit or f'characters of {outputs}'}"
    return Text(
        numbers[:at],
        test,
        outputs,
        tokens_per_character=len(test) / max(characters, 1),
        real=real,
        note=f"{note} ({described})",
    )


def generated(words: int = 150_000, vocabulary: int = 1_500) -> str:
    """A text of invented words, always the same one: common words are frequent, and each has its likely successors."""
    random = generator(0, Purpose.TEXT)
    syllables = np.array([a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "el", "or")])
    lengths = random.integers(1, 4, vocabulary)
    lexicon = ["".join(random.choice(syllables, length)) for length in lengths]
    frequency = 1 / np.arange(1, vocabulary + 1)
    drawn = random.choice(vocabulary, words, p=frequency / frequency.sum())
    successors, follows = random.integers(0, vocabulary, (vocabulary, 3)), random.random(words) < 0.7
    branch, ends = random.integers(0, 3, words), random.random(words)
    parts, word = [], 0
    for place in range(words):
        word = int(successors[word, branch[place]]) if follows[place] else int(drawn[place])
        end = ".\n" if ends[place] < 0.05 else ", " if ends[place] < 0.15 else " "
        parts.append(lexicon[word] + end)
    return "".join(parts)
