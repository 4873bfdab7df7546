"""Where the shards of a run are computed, in words."""

import json

import pytest

from metta.errors import MettaError
from metta.rl.ranks import Ranks
from metta.rl.resume import layout
from metta.rl.resume.layout import RunLayout, layout_of
from metta.train.run_config import CollectConfig
from metta.train.train_config import TrainerConfig


def joined(num_ranks: int, own: list[bytes]) -> Ranks:
    """The first of several ranks, whose texts are these."""

    class Told(Ranks):
        def share(self, text: bytes) -> list[bytes]:
            return [text, *own]

    return Told(4, 0, num_ranks, lambda tensor: [tensor] * num_ranks)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (RunLayout(4), "4 shards"),
        (RunLayout(4, 2), "4 shards on 2 ranks"),
        (RunLayout(1, 1, "process", 1), "1 shard, 1 collecting process"),
        (RunLayout(8, 1, "ray", 8), "8 shards, 8 Ray actors"),
        (RunLayout(1, is_ahead=True), "1 shard, one update ahead, in turn"),
        (
            RunLayout(4, 2, "process", 2, True),
            "4 shards on 2 ranks, 2 collecting processes each, one update ahead",
        ),
    ],
)
def test_a_layout_is_one_line(found: RunLayout, words: str) -> None:
    assert found.describe() == words
    assert found.lines() == [words]


def test_a_run_of_one_process_says_nothing() -> None:
    found = layout_of(TrainerConfig(), Ranks(), "cpu")
    assert found.is_plain
    assert found.lines() == []


def test_every_rank_has_as_many_collecting_processes_as_shards() -> None:
    config = TrainerConfig(collect=CollectConfig(kind="process"))
    assert layout_of(config, Ranks(4), "cpu").num_collecting == 4


def test_ranks_of_different_machines_promise_no_equal_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"processor": "a", "torch": "2.13", "machine": "x86_64"}
    monkeypatch.setattr(layout, "machine_of", lambda _: own)
    other = json.dumps({**own, "processor": "b"}).encode()
    (said,) = layout_of(TrainerConfig(), joined(2, [other]), "cpu").lines()[1:]
    assert said == "equal bits are not promised: ranks differ in processor"
    assert layout_of(TrainerConfig(), joined(2, [json.dumps(own).encode()]), "cpu").limits == ()


def test_gpus_and_clusters_promise_no_equal_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "machine_of", lambda _: {})
    config = TrainerConfig(collect=CollectConfig(kind="ray", address="head:6379"))
    limits = layout_of(config, joined(2, [b"{}"]), "cuda:0").limits
    assert [limit.split(",")[0] for limit in limits] == [
        "on GPUs",
        "nodes of a cluster with other processors than this one round differently",
    ]


def test_a_number_of_ranks_that_does_not_divide_the_shards_is_refused() -> None:
    with pytest.raises(MettaError, match="cannot be divided among 3 processes"):
        Ranks(4, 0, 3)
