"""The exactness tests notice a component that is not restored: some of one configuration."""

from pathlib import Path

import pytest

from faults import ablation
from faults.trial import OK


def test_it_is_noticed_when_a_component_is_dropped_or_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    components: list[str] = []

    def some_of(run: Path) -> list[str]:
        components.extend(components_of(run))
        return ["policy", "collector", "conditions"]

    components_of = ablation.components_of
    monkeypatch.setattr(ablation, "components_of", some_of)
    trials = list(ablation.trials(1, 1, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    assert [trial.point.split(": ")[1] for trial in trials] == [
        "policy dropped", "policy forgotten", "collector dropped", "collector forgotten",
        "conditions dropped",
    ]  # fmt: skip
    # the whole campaign takes each of them away
    assert set(components) >= {
        "policy", "ppo", "collector", "environments", "optimizer", "trainer_state", "conditions",
        "policy_tracker", "stats_tracker",
    }  # fmt: skip
