"""The line that ends a trial."""

from pathlib import Path

from metta.sim.statistics import Estimate
from metta.sweeps.progress import ended_line, shown_cost, shown_score
from metta.sweeps.trials import Event, Trials
from tests.sweeps.toy_sweeps import toy_definition


def test_a_line_has_score_interval_cost_and_values_when_a_trial_is_done(tmp_path: Path) -> None:
    definition = toy_definition(tmp_path, ["lr=1e-4..1e-2:log", "target_kl=null,0.01"], cost="wall")
    values = {"trainer.optimizer.learning_rate": 0.00123456, "trainer.ppo.target_kl": None}
    run = {"run": "toy/t001-s1", "seed": 1, "score": 193.25, "low": 180.1, "high": 200.0,
           "agent_step": 1, "train_seconds": 12.5, "cpu_seconds": 1.0}  # fmt: skip
    score = Estimate(193.25, 180.1, 200.0, 1)
    told = {
        "state": "complete",
        "reason": "",
        "score": score.to_dict(),
        "cost": 12.5,
        "runs": [run],
    }
    failed = {"state": "failed", "reason": "ValueError: no\nmore", "runs": []}
    events = [
        Event("ask", 1, {"values": values, "all_seeds": True}),
        Event("tell", 1, told),
        Event("ask", 2, {"values": values, "all_seeds": True}),
        Event("tell", 2, failed),
    ]
    trials = Trials(events)
    assert ended_line(definition, trials, trials[1]) == (
        "trial 1 of 14  score 193.2 (180.1 .. 200)  12.5 s  lr=0.001235 target_kl=null  the best so far"
    )
    assert ended_line(definition, trials, trials[2]) == (
        "trial 2 of 14  failed ValueError: no  lr=0.001235 target_kl=null"
    )
    assert (shown_score(None), shown_cost(definition, None)) == ("-", "-")
