"""Text: what a token is, which windows there are, who sees which, bits per character, what cannot be read."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import log, log2
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from testbed.errors import InputError
from testbed.workloads import Data
from testbed.workloads.data import base as data
from testbed.workloads.data.text import Text, cut, generated

CPU = torch.device("cpu")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def windows(text: str = LETTERS * 20, length: int = 7, tokens: str = "character") -> Text:
    return cut(text.encode(), tokens, "a test").fit((length,), CPU)


def test_characters_are_numbered_in_their_order() -> None:
    text = windows("béa" * 100)
    assert text.outputs == 3
    inputs, targets = text.train_batch(np.array([0]))
    assert inputs.tolist() == [[1, 2, 0, 1, 2, 0, 1]]
    assert targets.tolist() == [[2, 0, 1, 2, 0, 1, 2]]


def test_bytes_are_themselves() -> None:
    text = windows("é" * 100, length=3, tokens="byte")
    assert text.outputs == 256
    assert text.train_batch(np.array([0]))[0].tolist() == [list("éé".encode())[:3]]


def test_windows_do_not_overlap_and_cover_the_first_nine_tenths() -> None:
    text = windows()
    inputs, targets = text.train_batch(np.arange(text.train_examples))
    assert torch.equal(inputs.flatten()[1:], targets.flatten()[:-1])
    assert "".join(LETTERS[token] for token in inputs.flatten()) == (LETTERS * 18)[: inputs.numel()]
    assert 0 <= 18 * 26 - 1 - inputs.numel() < 7


def test_the_last_tenth_is_tested() -> None:
    text = windows()
    inputs, _ = text.test_batch(np.arange(text.test_examples))
    assert "".join(LETTERS[token] for token in inputs.flatten()) == (LETTERS * 2)[: inputs.numel()]


def test_workers_see_different_text() -> None:
    text = windows()
    shards = Data().shards(text, [2, 1], seed=0)
    seen = [index for region in shards for shard in region for index in shard]
    assert sorted(seen) == list(range(text.train_examples))


def test_labels_cannot_be_skewed() -> None:
    with pytest.raises(InputError, match="has no labels; use 'iid'"):
        Data(split="dirichlet", alpha=1.0).shards(windows(), [1, 1], seed=0)


def bits(text: Text, scores: torch.Tensor) -> float:
    _, targets = text.test_batch(np.arange(text.test_examples))
    outputs = scores.expand(*targets.shape, -1)
    assert text.loss(outputs, targets).item() > 0
    return float(text.metrics["bits_per_character"].measure(outputs, targets)) / text.test_examples


def test_bits_per_character_of_knowing_nothing() -> None:
    assert bits(windows(), torch.zeros(26)) == pytest.approx(log2(26))


def test_bits_per_character_are_the_loss() -> None:
    text = windows()
    scores = torch.linspace(0, 3, 26)
    _, targets = text.test_batch(np.arange(text.test_examples))
    loss = text.loss(scores.expand(*targets.shape, -1), targets).item()
    assert bits(text, scores) == pytest.approx(loss / log(2), rel=1e-5)


def test_a_character_of_two_bytes_takes_the_bits_of_both() -> None:
    assert bits(windows("é" * 200, tokens="byte"), torch.zeros(256)) == pytest.approx(16.0)


@pytest.mark.usefixtures("data_root")
class TestOpening:
    def test_every_text_of_the_folder_one_after_the_other(self, data_root: Path) -> None:
        (data_root / "text").mkdir()
        (data_root / "text" / "b.txt").write_text("zz" * 200)
        (data_root / "text" / "a.txt").write_text("yy" * 200)
        opened = data.load("text", on_notice=pytest.fail)
        assert (opened.real, opened.outputs) == (True, 2)
        assert opened.note == "a.txt, b.txt (800 characters of 2)"
        assert opened.fit((10,), CPU).train_batch(np.array([0, 50]))[0].unique(dim=1).tolist() == [[0], [1]]

    def test_a_file_that_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_bytes(bytes(range(256)) * 4)
        opened = data.load(data.of("text", path=str(tmp_path / "mine"), tokens="byte"))
        assert opened.note == "mine (1,024 bytes)"

    def test_none_is_a_labelled_stand_in(self, data_root: Path) -> None:
        notices: list[str] = []
        opened = data.load("text", on_notice=notices.append)
        assert not opened.real
        assert opened.note.startswith("generated words, not a text")
        assert str(data_root / "text") in notices[0]

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"none.txt: No such file.*data.path"):
            data.load(data.of("text", path=str(tmp_path / "none.txt")))

    def test_a_file_that_is_no_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "odd").write_bytes(b"\xff\xfe\xfa" * 100)
        with pytest.raises(InputError, match=r"odd: not UTF-8 .*; use data.tokens = 'byte'"):
            data.load(data.of("text", path=str(tmp_path / "odd")))

    def test_a_text_shorter_than_a_window_is_refused(self) -> None:
        with pytest.raises(InputError, match="52 tokens, fewer than the 101 that the model looks at"):
            windows(length=100)

    def test_so_is_an_empty_one(self) -> None:
        with pytest.raises(InputError, match="0 tokens, fewer than the 65"):
            cut(b"", "byte", "nothing").fit((64,), CPU)

    def test_other_tokens_are_refused(self) -> None:
        with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'word'"):
            data.of("text", tokens="word")


@pytest.mark.slow
def test_the_generated_text_never_changes_and_can_be_learnt() -> None:
    text = generated()
    assert text.startswith("nidenel dan.\nbovusor ko rago zezelke teldadu")
    pairs = Counter(pairwise(text))
    letters = Counter(text[:-1])
    total = len(text) - 1
    by_letter = -sum(count / total * log2(count / total) for count in letters.values())
    by_pair = -sum(count / total * log2(count / letters[first]) for (first, _), count in pairs.items())
    assert by_pair < by_letter - 0.8 < 4  # bits a character, knowing nothing and knowing the one before
