"""Several processes collect, one learns; weights and rollouts pass between them as files.

python examples/distributed_collection.py [--steps N]
"""

import argparse
import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

from metta import PPOTrainer, combine_rollouts, load_rollout, save_rollout
from metta.store import load_weights, save_policy

Worker = tuple[multiprocessing.process.BaseProcess, Connection]
NUM_WORKERS, ENVS_PER_WORKER, HORIZON = 2, 4, 128


def work(index: int, folder: Path, messages: Connection) -> None:
    """Play the newest weights whenever asked; the seed makes every worker's episodes its own."""
    with PPOTrainer(None, "CartPole-v1", seed=100 + index, num_envs=ENVS_PER_WORKER) as trainer:
        while messages.recv() == "collect":
            load_weights(folder / "policy.safetensors", trainer.policy)
            data = trainer.collect_rollouts(HORIZON)
            path = save_rollout(folder / f"worker_{index}.safetensors", data)
            messages.send((path, trainer.mean_return))


def start_workers(folder: Path) -> list[Worker]:
    # torch's threads do not survive a fork; a server that has only imported it can be forked
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["metta.rl.ppo_trainer"])
    workers: list[Worker] = []
    for index in range(NUM_WORKERS):
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(index, folder, theirs), daemon=True)
        process.start()
        theirs.close()  # only the worker holds it now: if the worker dies, recv() says so
        workers.append((process, ours))
    return workers


def stop_workers(workers: list[Worker]) -> None:
    """Ask, wait, and end those that do not answer: no process outlives this one."""
    for process, messages in workers:
        if process.is_alive():
            messages.send("stop")
        process.join(timeout=10)
        if process.is_alive():
            process.terminate()
            process.join()


def main(steps: int) -> None:
    learner = PPOTrainer(None, "CartPole-v1", num_envs=1, learning_rate=1e-3, n_epochs=8, seed=1)
    batch = NUM_WORKERS * ENVS_PER_WORKER * HORIZON
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workers = start_workers(folder)
        try:
            for number in range(max(1, steps // batch)):
                save_policy(folder / "policy.safetensors", learner.policy)
                for _, messages in workers:
                    messages.send("collect")
                paths, returns = zip(*[messages.recv() for _, messages in workers], strict=True)
                data = combine_rollouts([load_rollout(path) for path in paths])
                losses = learner.learn(data)
                means = ", ".join(f"{mean:.1f}" for mean in returns)
                print(f"round {number}: {data['rewards'].numel()} steps of {NUM_WORKERS} workers, "
                      f"returns {means}, kl {losses['approx_kl']:.4f}")  # fmt: skip
        finally:
            stop_workers(workers)
    print(f"done; {sum(process.is_alive() for process, _ in workers)} workers are left")


if __name__ == "__main__":  # workers import this file
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_480, help="agent steps in all")
    main(parser.parse_args().steps)
