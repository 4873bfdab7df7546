"""The exactness tests notice a component that is not restored: those of one configuration."""

from pathlib import Path

from faults import ablation
from faults.trial import OK


def test_it_is_noticed_when_any_component_is_dropped_or_forgotten(tmp_path: Path) -> None:
    trials = list(ablation.trials(1, 1, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    points = {trial.point.split(": ")[1] for trial in trials}
    components = {"policy", "ppo", "collector", "environments", "optimizer", "trainer_state"}
    wanted = {f"{name} {how}" for name in components for how in ("dropped", "forgotten")}
    assert wanted <= points
    assert {"conditions dropped", "policy_tracker dropped", "stats_tracker forgotten"} <= points
