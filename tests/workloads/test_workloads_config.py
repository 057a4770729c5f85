"""The [data] and [training] parts of an experiment file: what is taken and what is refused, with its key."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from testbed.errors import InputError
from testbed.workloads import Arrays, Data
from testbed.workloads.config import Training
from testbed.workloads.optimizer import SGD, Adam
from testbed.workloads.schedule import Polynomial, Staircase

EVERYTHING = """
steps = 1000
batch_size = 256
weight_decay = 0.004
clip_norm = 5.0
ema_decay = 0.9999
augment = false
schedule = { kind = "staircase", rate = 0.05, every_steps = 400 }
optimizer = { kind = "adam", beta1 = 0.8 }
"""


def training(text: str) -> Training:
    return msgspec.toml.decode(text, type=Training)


def test_everything_can_be_set() -> None:
    assert training(EVERYTHING) == Training(
        steps=1000,
        batch_size=256,
        schedule=Staircase(0.05, every_steps=400),
        optimizer=Adam(beta1=0.8),
        weight_decay=0.004,
        clip_norm=5.0,
        ema_decay=0.9999,
        augment=False,
    )


def test_nothing_need_be_set() -> None:
    assert training("").schedule == Polynomial(0.1)
    assert training("").optimizer == SGD()
    assert msgspec.toml.decode("", type=Data) == Data("cifar10", "iid", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = 0", r"`int` >= 1 - at `\$\.steps`"),
        ("batch_size = -1", r"at `\$\.batch_size`"),
        ("stps = 5", "unknown field `stps`"),
        ("steps = 1.5", r"Expected `int`.* - at `\$\.steps`"),
        ("weight_decay = nan", r"at `\$\.weight_decay`"),
        ("clip_norm = 0", r"at `\$\.clip_norm`"),
        ("ema_decay = 1.0", r"`float` < 1.0 - at `\$\.ema_decay`"),
        ('schedule = { kind = "constant", rate = 0 }', r"`float` > 0.0 - at `\$\.schedule\.rate`"),
        ('schedule = { kind = "constant", rate = inf }', r"at `\$\.schedule\.rate`"),
        ('schedule = { kind = "constant", rate = 1, power = 2 }', r"unknown field `power` - at `\$\.schedule`"),
        ('schedule = { kind = "linear", rate = 1 }', r"'linear' - at `\$\.schedule\.kind`"),
        ('schedule = { kind = "staircase", rate = 1, factor = 2 }', r"at `\$\.schedule\.factor`"),
        ('optimizer = { kind = "sgd", momentum = 1.0 }', r"at `\$\.optimizer\.momentum`"),
        ('optimizer = { kind = "adam", epsilon = 0 }', r"at `\$\.optimizer\.epsilon`"),
        ('optimizer = { kind = "adam", weight_decay = 0.1 }', r"unknown field `weight_decay` - at `\$\.optimizer`"),
        ('weight_decay = 0.1\noptimizer = { kind = "adamw" }', "weight_decay: it goes into the gradient; AdamW has"),
    ],
)
def test_training_refuses(text: str, message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        training(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('split = "random"', r"at `\$\.split`"),
        ('split = "dirichlet"', "alpha: needed"),
        ("alpha = 1.0", "alpha: only goes with"),
        ('split = "dirichlet"\nalpha = 0', r"at `\$\.alpha`"),
    ],
)
def test_data_refuses(text: str, message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.toml.decode(text, type=Data)


def test_the_split_is_the_one_asked_for() -> None:
    labels = np.repeat(np.arange(10), 100)
    dataset = Arrays(np.zeros((1000, 3)), labels, np.zeros((1, 3)), labels[:1])
    even = Data().shards(dataset, [2, 2], seed=0)
    skewed = Data(split="dirichlet", alpha=0.05).shards(dataset, [2, 2], seed=0)

    def spread(shards: list) -> float:
        return float(np.bincount(labels[np.concatenate(shards[0])], minlength=10).std())

    assert spread(skewed) > 2 * spread(even)


def test_the_batch_is_shared_equally() -> None:
    assert Training(batch_size=128).worker_batch(8) == 16
    with pytest.raises(InputError, match=r"training\.batch_size is 128; .* 6 workers, for example 126"):
        Training(batch_size=128).worker_batch(6)
    with pytest.raises(InputError, match="for example 8"):
        Training(batch_size=1).worker_batch(8)


def test_the_rate_follows_the_run_and_the_epoch() -> None:
    run = Training(steps=400, batch_size=128)
    assert run.epoch_steps(50_000) == 391
    assert run.rate_at(300, 50_000) == pytest.approx(0.05)
