from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from metta import PPOTrainer, combine_rollouts
from metta.agent.factory import make_policy
from metta.envs.toy import CorridorEnv, MaskedCorridorEnv, NestedEnv
from metta.errors import NonFiniteError, RolloutError
from metta.rl.collect.rollout_data import STATE_PREFIX, check_rollout
from metta.rl.compiled.synthetic_rollout import synthetic_rollout
from metta.rl.learn.driver import cut_minibatch, num_items
from metta.rl.learn.update import split_rows
from metta.stateful import digest_of
from metta.store.rollout_file import Rollout
from metta.train.train_config import AgentConfig

SMALL: dict[str, Any] = {"num_envs": 2, "n_steps": 4, "hidden_size": 8}
PLAIN = partial(PPOTrainer, None, CorridorEnv, **SMALL)
RECURRENT = partial(PPOTrainer, None, CorridorEnv, **SMALL, core="lstm", bptt_horizon=2)


@pytest.fixture(scope="module")
def collected() -> tuple[Any, Rollout]:
    with PLAIN() as trainer:
        return trainer.policy, trainer.collect_rollouts()


@pytest.fixture(scope="module")
def recurrent() -> tuple[Any, Rollout]:
    with RECURRENT() as trainer:
        return trainer.policy, trainer.collect_rollouts()


# ---------------------------------------------------------------- combine_rollouts


def test_rows_stand_side_by_side_when_rollouts_are_combined() -> None:
    first = {"rewards": torch.tensor([[1.0], [2.0]]), "x": torch.zeros(2, 1, 3)}
    second = {"rewards": torch.tensor([[3.0, 5.0], [4.0, 6.0]]), "x": torch.ones(2, 2, 3)}
    combined = combine_rollouts([first, second])
    assert combined["rewards"].tolist() == [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]
    assert combined["x"].shape == (2, 3, 3)


def test_the_data_is_a_copy_when_one_rollout_is_combined() -> None:
    data = {"rewards": torch.zeros(2, 2)}
    combine_rollouts([data])["rewards"].add_(1.0)
    assert float(data["rewards"].sum()) == 0.0


def test_only_what_all_share_is_in_the_manifest_when_rollouts_are_combined() -> None:
    column = {"rewards": torch.zeros(1, 1)}
    rollouts = [Rollout(column, {"seed": seed, "env_id": "X", "rollout": 0}) for seed in (1, 2)]
    assert combine_rollouts(rollouts).manifest == {"env_id": "X", "rollout": 0}
    assert combine_rollouts([*rollouts, column]).manifest == {}


@pytest.mark.parametrize(
    ("rollouts", "message"),
    [
        ([], "at least one rollout"),
        ([{"a": torch.zeros(2, 1)}, {"b": torch.zeros(2, 1)}], r"rollout 1 has other columns.*'a', 'b'"),
        ([{"a": torch.zeros(2, 1)}, {"a": torch.zeros(3, 1)}], "column 'a' of rollout 1 has shape"),
        ([{"a": torch.zeros(2, 1, 4)}, {"a": torch.zeros(2, 1, 5)}], "same kind of environment"),
    ],
)  # fmt: skip
def test_a_rollout_error_says_what_differs_when_rollouts_do_not_fit(
    rollouts: list[dict[str, Tensor]], message: str
) -> None:
    with pytest.raises(RolloutError, match=message):
        combine_rollouts(rollouts)


# ---------------------------------------------------------------- check_rollout


def test_sound_data_passes_unchanged_when_it_is_checked(collected: tuple[Any, Rollout]) -> None:
    policy, data = collected
    before = digest_of(data)
    columns = check_rollout(data, policy)
    assert digest_of(columns) == digest_of(data) == before
    assert columns is not data


def test_every_sample_is_valid_when_nobody_says_otherwise(collected: tuple[Any, Rollout]) -> None:
    policy, data = collected
    columns = check_rollout({k: v for k, v in data.items() if k != "valid"}, policy)
    assert bool(columns["valid"].all())


@pytest.mark.parametrize("name", ["observations", "actions", "log_probs", "values"])
def test_the_column_is_named_when_it_is_missing(collected: tuple[Any, Rollout], name: str) -> None:
    policy, data = collected
    with pytest.raises(RolloutError, match=rf"lacks \['{name}'\]; it has"):
        check_rollout({k: v for k, v in data.items() if k != name}, policy)


@pytest.mark.parametrize("name", ["rewards", "terminated", "truncated", "next_values"])
def test_ingredients_are_needed_when_advantages_are_absent(
    collected: tuple[Any, Rollout], name: str
) -> None:
    policy, data = collected
    without = {k: v for k, v in data.items() if k != name}
    check_rollout(without, policy)
    del without["advantages"]
    with pytest.raises(RolloutError, match=name):
        check_rollout(without, policy)


def test_states_are_needed_when_the_policy_is_recurrent(recurrent: tuple[Any, Rollout]) -> None:
    policy, data = recurrent
    bare = {k: v for k, v in data.items() if not k.startswith("recurrent_state/")}
    with pytest.raises(RolloutError, match="recurrent_state/"):
        check_rollout(bare, policy)


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("values", torch.zeros(8), r"shape \(8,\); it must be \[T, N\]"),
        (
            "actions",
            torch.zeros(4, 2, 1, dtype=torch.int64),
            "was the rollout collected in another",
        ),
        ("actions", torch.zeros(4, 2), "holds torch.float32"),
        ("observations", torch.zeros(4, 2, 7), r"needs \(4, 2, 8\)"),
        ("rewards", torch.zeros(4, 3), r"must begin with \(4, 2\)"),
        ("mine", torch.zeros(3, 2), r"column 'mine' has shape \(3, 2\)"),
        ("action_masks", torch.ones(4, 2, 5, dtype=torch.bool), r"needs \(4, 2, 2\)"),
    ],
)
def test_a_rollout_error_names_the_shape_when_it_is_wrong(
    collected: tuple[Any, Rollout], name: str, column: Tensor, message: str
) -> None:
    policy, data = collected
    with pytest.raises(RolloutError, match=message):
        check_rollout({**data, name: column}, policy)


def test_the_place_is_named_when_a_number_is_not_finite(collected: tuple[Any, Rollout]) -> None:
    policy, data = collected
    for name in ("observations", "values", "log_probs", "advantages", "returns"):
        broken = {k: v.clone() for k, v in data.items()}
        broken[name][2, 1] = float("nan")
        with pytest.raises(NonFiniteError, match=f"column '{name}' is not finite at step 2, row 1"):
            check_rollout(broken, policy)


def test_nan_is_allowed_when_its_row_is_invalid(collected: tuple[Any, Rollout]) -> None:
    policy, data = collected
    broken = {k: v.clone() for k, v in data.items()}
    broken["values"][2, 1] = float("nan")
    broken["valid"][2, 1] = False
    check_rollout(broken, policy)


def test_a_rollout_error_is_raised_when_the_architecture_differs(
    collected: tuple[Any, Rollout],
) -> None:
    policy, data = collected
    other = make_policy(
        policy.observation_space, policy.action_space, AgentConfig(hidden_size=9)
    )  # fmt: skip
    with pytest.raises(RolloutError, match="another architecture"):
        check_rollout(data, other)
    check_rollout(dict(data), other)


# ---------------------------------------------------------------- minibatches


def test_samples_are_the_chosen_ones_when_a_minibatch_is_cut(
    collected: tuple[Any, Rollout],
) -> None:
    policy, data = collected
    assert num_items(data, policy) == 8
    index = torch.tensor([0, 3, 7])
    batch = cut_minibatch(data, list(data), index, policy)
    # sample k is step k // 2 of row k % 2
    assert torch.equal(batch.columns["rewards"][0], data["rewards"][[0, 1, 3], [0, 1, 1]])
    assert torch.equal(batch.obs["obs"][0], data["observations"][[0, 1, 3], [0, 1, 1]])
    assert batch.state == {}


def test_segments_keep_their_order_and_state_when_a_minibatch_is_cut(
    recurrent: tuple[Any, Rollout],
) -> None:
    policy, data = recurrent
    assert num_items(data, policy) == 4
    names = ["observations", "values", "rewards"]
    batch = cut_minibatch(data, names, torch.tensor([2, 1]), policy)
    # segment 2 is steps 2, 3 of row 0; segment 1 is steps 0, 1 of row 1
    assert torch.equal(batch.columns["values"][:, 0], data["values"][2:, 0])
    assert torch.equal(batch.columns["values"][:, 1], data["values"][:2, 1])
    for key, state in batch.state.items():
        assert torch.equal(state[0], data[f"recurrent_state/{key}"][1, 0])
        assert torch.equal(state[1], data[f"recurrent_state/{key}"][0, 1])


def test_weights_say_what_counts_when_samples_are_invalid(collected: tuple[Any, Rollout]) -> None:
    policy, data = collected
    valid = data["valid"].clone()
    valid[0, 1] = False
    batch = cut_minibatch({**data, "valid": valid}, list(data), torch.tensor([0, 1]), policy)
    assert batch.weights is not None
    assert batch.weights.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("pieces", [1, 2, 3, 8, 20])
def test_shares_add_up_to_one_when_a_minibatch_is_split(
    collected: tuple[Any, Rollout], pieces: int
) -> None:
    policy, data = collected
    names = [name for name in data if name != "valid"]
    batch = cut_minibatch(data, names, torch.arange(8), policy)
    parts = list(split_rows(batch, pieces))
    shares = [1.0 if share is None else share for _, share in parts]
    assert sum(shares) == pytest.approx(1.0)
    joined = torch.cat([part.columns["rewards"] for part, _ in parts], 1)
    assert torch.equal(joined, batch.columns["rewards"])
    assert len(parts) == min(pieces, 8)


def test_shares_follow_valid_samples_when_a_minibatch_is_split(
    collected: tuple[Any, Rollout],
) -> None:
    policy, data = collected
    valid = torch.tensor([[1, 1], [1, 0], [0, 0], [0, 1]], dtype=torch.bool)
    batch = cut_minibatch({**data, "valid": valid}, list(data), torch.arange(8), policy)
    shares = [share for _, share in split_rows(batch, 2)]
    # three of the four valid samples are in the first half
    assert shares == pytest.approx([0.75, 0.25])


def test_masks_are_gathered_when_the_environment_has_them() -> None:
    with PPOTrainer(None, MaskedCorridorEnv, **SMALL) as trainer:
        data = trainer.collect_rollouts()
        batch = cut_minibatch(data, list(data), torch.tensor([5]), trainer.policy)
    assert torch.equal(batch.columns["action_masks"][0, 0], data["action_masks"][2, 1])


@pytest.mark.parametrize("env", [NestedEnv, MaskedCorridorEnv, "Pendulum-v1"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_drawn_rollout_is_laid_out_as_a_collected_one_and_its_numbers_differ(
    env: Any, core: str
) -> None:
    with PPOTrainer(None, env, **SMALL | {"n_steps": 16}, core=core) as trainer:
        collected = trainer.collect_rollouts()
        drawn = synthetic_rollout(trainer.policy, trainer.collector.experience)
    layouts = {name: (column.shape, column.dtype) for name, column in drawn.items()}
    known = {name: (collected[name].shape, collected[name].dtype) for name in drawn}
    assert layouts == known
    check_rollout(drawn, trainer.policy)
    same = {name for name, column in drawn.items() if len(column.unique()) == 1}
    constant = {"terminated", "truncated", "episode_starts", "valid", "action_masks"}
    assert {name for name in same - constant if not name.startswith(STATE_PREFIX)} == set()
