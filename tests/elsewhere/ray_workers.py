"""Workers on a Ray cluster that this process joined; prints what the tests compare.

python -m tests.elsewhere.ray_workers
"""

import json
import os
import secrets
import sys
from typing import Any

ROOM = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # fmt: skip
os.environ.update(ROOM)

import ray  # noqa: E402  # it reads these variables when it is imported

from metta import PPOTrainer, combine_rollouts  # noqa: E402
from metta.errors import RolloutError  # noqa: E402
from metta.stateful import digest_of  # noqa: E402
from tests.elsewhere.test_remote_workers import SMALL, digests_of_rollouts  # noqa: E402

STEPS = 16


def own_actors() -> dict[str, Any]:
    """Trainers that are actors of the user's own, and the same trainers here."""
    settings = {**SMALL, "numerics.threads": 1}
    makers = ray.remote(num_cpus=1)(PPOTrainer), PPOTrainer
    actors = [makers[0].remote(None, "CartPole-v1", seed=k, **settings) for k in range(2)]
    rollouts = ray.get([actor.collect_rollouts.remote(STEPS) for actor in actors])
    here = [PPOTrainer(None, "CartPole-v1", seed=k, **settings) for k in range(2)]
    expected = [trainer.collect_rollouts(STEPS) for trainer in here]
    combined = combine_rollouts(rollouts)
    here[0].learn(combined)
    refused = False
    try:
        ray.get(actors[0].learn.remote(3))
    except RolloutError:
        refused = True
    for actor in actors:
        ray.kill(actor)
    return {
        "there": [digest_of(dict(rollout)) for rollout in rollouts],
        "here": [digest_of(dict(rollout)) for rollout in expected],
        "shape": list(combined["rewards"].shape),
        "updates": here[0].ppo.num_updates,
        "refused": refused,
    }


def main() -> None:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
             _node_ip_address="127.0.0.1", _temp_dir=sys.argv[1])  # fmt: skip
    try:
        found = own_actors()
        found["workers"] = digests_of_rollouts("ray")
        found["replaced"] = digests_of_rollouts("ray", restart=1)
        found["still connected"] = ray.is_initialized()
    finally:
        ray.shutdown()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
