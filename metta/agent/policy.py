"""`Policy`: the one adapter over any network, and the only definition of its numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from metta.agent.actions.action_spec import ActionSpec, action_spec_of
from metta.agent.actions.gaussian import BoxSpec
from metta.agent.evaluation_mode import evaluating
from metta.agent.module_output import read_output, require_shapes
from metta.agent.normalizers import ObsNormalizer, Reduce, ReturnNormalizer
from metta.agent.output import Obs, PolicyOutput, State
from metta.agent.recurrent_module import RecurrentModule, is_recurrent_module
from metta.errors import PolicyError
from metta.ops.trees import tree_reduce
from metta.spaces import ObsSpec, obs_spec_of
from metta.stateful import digest_of
from metta.train.train_config import AgentConfig

__all__ = ["Policy"]

_PROBED_STEPS, _PROBED_ROWS = 2, 3


class Policy(nn.Module):
    """A network with its spaces and its normalisers.

        policy = Policy(my_module, env.observation_space, env.action_space)
        output = policy(obs, policy.initial_state(N), starts)     # [T, N, ...] in, [T, N, ...] out

    The module sees observations in the nesting of their space, with float (or for discrete values
    int64) leaves ``[B, ...]``; a recurrent one sees ``[T, N, ...]`` (`RecurrentModule` describes it).
    Pixels arrive as 0..255.
    """

    state_name = "policy"
    state_version = 1

    def __init__(
        self,
        module: nn.Module,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: AgentConfig | None = None,
    ) -> None:
        super().__init__()
        self.config = config = config or AgentConfig()
        self.module = module
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_spec: ObsSpec = obs_spec_of(observation_space)
        self.action_spec: ActionSpec = action_spec_of(action_space, squash=config.squash)
        self.is_recurrent = is_recurrent_module(module)
        self._recurrent: RecurrentModule | None = None
        self.precision = torch.float32
        # one float parameter, for device and type; in a list, so that it is not registered twice
        floats = (p for p in module.parameters() if p.dtype.is_floating_point)
        self._anchor: list[Tensor] = [next(floats, torch.empty(0))]
        self.obs_normalizer: ObsNormalizer | None = None
        if config.normalize_observations:
            normalizer = ObsNormalizer(self.obs_spec, config.observation_clip)
            self.obs_normalizer = normalizer.to(self.device, self.dtype)
        self.return_normalizer: ReturnNormalizer | None = None
        if config.normalize_returns:
            self.return_normalizer = ReturnNormalizer().to(self.device, self.dtype)
        self.log_std: nn.Parameter | None = None
        self._fit_to_actions(config)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self._anchor[0].device

    @property
    def dtype(self) -> torch.dtype:
        """Float type of the parameters."""
        return self._anchor[0].dtype

    @property
    def value_scale(self) -> Tensor | float:
        """Deviation of the returns by which value errors are divided inside the loss."""
        return 1.0 if self.return_normalizer is None else self.return_normalizer.scale

    def initial_state(self, num_rows: int) -> State:
        """State of rows that have seen nothing, ``[N, ...]``; ``{}`` for feed-forward policies."""
        if self._recurrent is None:
            return {}
        return self._recurrent.initial_state(num_rows, self.device)

    def forward(
        self, obs: Obs, state: State | None = None, starts: Tensor | None = None
    ) -> PolicyOutput:
        """Distribution parameters and raw-unit values of observations ``[T, N, ...]``.

        `starts` ``[T, N]`` marks first observations of episodes: recurrent rows forget there.
        Nothing is changed: not the state passed in, not the normalisers.
        """
        lead = next(iter(obs.values())).shape[:2]
        inputs = self.prepare(obs)
        if not self.is_recurrent:
            inputs = {key: leaf.flatten(0, 1) for key, leaf in inputs.items()}
        elif state is None:
            state = self.initial_state(lead[1])
        if self.is_recurrent and starts is None:
            starts = torch.zeros(lead, dtype=torch.bool, device=self.device)
        return self._finish(self._call(inputs, state or {}, starts), lead)

    def prepare(self, obs: Obs) -> Obs:
        """Observation leaves as the module sees them: float or int64, normalised."""
        return {key: self._prepare(key, leaf) for key, leaf in obs.items()}

    def _call(self, inputs: Obs, state: State, starts: Tensor | None) -> PolicyOutput:
        if self.precision == torch.float32:
            return self._output(inputs, state, starts)
        with torch.autocast(self.device.type, dtype=self.precision):
            return self._output(inputs, state, starts)

    def _output(self, inputs: Obs, state: State, starts: Tensor | None) -> PolicyOutput:
        nest = self.obs_spec.nest
        if self._recurrent is None:
            return read_output(self.module(nest(inputs)))
        assert starts is not None, "forward gives them"
        return self._recurrent(inputs, nest, state, starts)

    def _prepare(self, key: str, leaf: Tensor) -> Tensor:
        spec = self._leaf_specs[key]
        if spec.kind == "discrete":
            leaf = leaf.long()
            return leaf - self._start_of(key) if any(spec.starts) else leaf
        leaf = leaf.to(self.dtype)
        return leaf if self.obs_normalizer is None else self.obs_normalizer(key, leaf)

    def _finish(self, output: PolicyOutput, lead: tuple[int, ...]) -> PolicyOutput:
        params, value, state, extras = output
        params, value = _full_precision(params), _full_precision(value)
        if not self.is_recurrent:
            params = params.unflatten(0, lead)
            extras = {key: _with_lead(extra, lead) for key, extra in extras.items()}
        if self.log_std is not None:
            params = torch.cat([params, self.log_std.expand_as(params)], -1)
        value = value.reshape(lead)
        if self.return_normalizer is not None:
            value = self.return_normalizer.denormalize(value)
        return PolicyOutput(params, value, state, extras)

    @torch.no_grad()
    def update_normalizers(
        self, *rollouts: Mapping[str, Tensor], reduce: Reduce = tree_reduce
    ) -> dict[str, int]:
        """Add a rollout's observations to their normalisers; call it after learning, never before.

        A rollout holds columns ``[T, N, ...]`` as `PPOTrainer.collect_rollouts` returns them. Several are
        the shards of one, which `reduce` puts together. Returns how many values of each column lay too far
        from all others and were bounded.
        """
        bounded: dict[str, int] = {}
        if self.obs_normalizer is not None:
            for leaf in self.obs_spec.leaves:
                column = "observations" if self.obs_spec.is_plain else f"observations/{leaf.key}"
                shards = [
                    (rollout[column].flatten(0, 1), rollout["valid"].flatten())
                    for rollout in rollouts
                ]
                bounded[column] = self.obs_normalizer.update_from(leaf.key, shards, reduce)
        return bounded

    def update_value_scale(
        self, *rollouts: Mapping[str, Tensor], reduce: Reduce = tree_reduce
    ) -> dict[str, int]:
        """Add a rollout's returns to their normaliser; call it before learning, never after.

        What is learned then is in the new units. After learning, a new scale would move every value that
        was learned, and bootstrapped returns with them, which move the scale again.
        """
        if self.return_normalizer is None:
            return {}
        shards = [
            (rollout["returns"].flatten(), rollout["valid"].flatten()) for rollout in rollouts
        ]
        return {"returns": self.return_normalizer.update_from(shards, reduce)}

    def architecture_hash(self) -> str:
        """Digest of the layers, of the state's shapes and dtypes, and of the spaces: not of values."""
        tensors = [[k, list(v.shape), str(v.dtype)] for k, v in sorted(self.state_dict().items())]
        # only torch's names of layers: renaming a user's class keeps saved policies readable
        layers = [
            [name, type(part).__name__]
            for name, part in self.named_modules()
            if type(part).__module__.startswith("torch.nn.")
        ]
        starts = [list(leaf.starts) for leaf in self.obs_spec.leaves]
        clip = None if self.obs_normalizer is None else self.obs_normalizer.clip
        return digest_of(
            [tensors, layers, self.obs_spec.describe(), starts, _described(self.action_spec), clip]
        )

    def parameter_hash(self) -> str:
        """Digest of every parameter and buffer, bit for bit."""
        return digest_of(self.state_dict())

    def _fit_to_actions(self, config: AgentConfig) -> None:
        """Try the module once on zeros and check that what it returns fits the action space."""
        self._leaf_specs = {leaf.key: leaf for leaf in self.obs_spec.leaves}
        self._start_names: dict[str, str] = {}
        for number, leaf in enumerate(self.obs_spec.leaves):
            if leaf.kind == "discrete":
                name = self._start_names[leaf.key] = f"_start_{number}"
                first = torch.tensor(leaf.starts, device=self.device).reshape(leaf.shape)
                # a buffer moves with the module; it is not saved
                self.register_buffer(name, first, persistent=False)
        width = int(self._probe().dist_params.shape[-1])
        expected = self.action_spec.num_params
        if isinstance(self.action_spec, BoxSpec) and width == expected // 2:
            start = torch.full((width,), config.log_std_init, dtype=self.dtype, device=self.device)
            self.log_std = nn.Parameter(start)
        elif width != expected:
            raise PolicyError(
                f"the policy module returns {width} action parameters, but the action space "
                f"{self.action_space} needs {self._needed()}; change the module's last layer"
            )

    def _start_of(self, key: str) -> Tensor:
        """The smallest numbers of a discrete leaf."""
        start: Tensor = getattr(self, self._start_names[key])
        return start

    def _needed(self) -> str:
        expected = self.action_spec.num_params
        if isinstance(self.action_spec, BoxSpec):
            return f"{expected // 2} means (or {expected}: means and log-deviations)"
        return f"{expected} logits"

    def _probe(self) -> PolicyOutput:
        lead: tuple[int, ...] = (_PROBED_STEPS, _PROBED_ROWS)
        obs = self._probed_obs(*lead)
        inputs = self.prepare(obs)
        if not self.is_recurrent:
            lead = (_PROBED_STEPS * _PROBED_ROWS,)
            inputs = {key: leaf.flatten(0, 1) for key, leaf in inputs.items()}
        starts = torch.ones(lead, dtype=torch.bool, device=self.device)
        try:
            with torch.no_grad(), evaluating(self):
                if self.is_recurrent:
                    self._recurrent = RecurrentModule(self.module, self._probed_inputs)
                state = self.initial_state(_PROBED_ROWS)
                given = [*obs.values(), *state.values()]
                versions = [tensor._version for tensor in given]
                output = self._call(inputs, state, starts)
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(
                f"the policy module failed on zero observations of the space "
                f"{self.observation_space}: {type(error).__name__}: {error}; it is called with shapes "
                f"{ {key: tuple(leaf.shape) for key, leaf in inputs.items()} }"
            ) from error
        if [tensor._version for tensor in given] != versions:
            raise PolicyError(
                "the policy module changes its observation or state in place, which would rewrite the "
                "rollout it learns from; use operations that return new tensors"
            )
        require_shapes(output, lead, state)
        return output

    def _probed_obs(self, num_steps: int, num_rows: int) -> Obs:
        """The smallest observations ``[T, N, ...]``."""
        zeros = self.obs_spec.zeros(num_steps, num_rows)
        obs = {key: torch.from_numpy(leaf).to(self.device) for key, leaf in zeros.items()}
        return obs | {key: obs[key] + self._start_of(key) for key in self._start_names}

    def _probed_inputs(self, num_rows: int) -> Any:
        """One step of them, as a recurrent module sees it."""
        return self.obs_spec.nest(self.prepare(self._probed_obs(1, num_rows)))


def _full_precision(tensor: Tensor) -> Tensor:
    """Float64 as it is, anything narrower as float32."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _with_lead(extra: Any, lead: tuple[int, ...]) -> Any:
    """Extras with an entry per row as ``[T, N, ...]``, all others as they are."""
    per_row = isinstance(extra, Tensor) and extra.shape[:1] == (lead[0] * lead[1],)
    return extra.unflatten(0, lead) if per_row else extra


def _described(spec: ActionSpec) -> list[Any]:
    """An action specification as plain data and arrays."""
    fields = {k: v if isinstance(v, np.ndarray) else str(v) for k, v in vars(spec).items()}
    return [type(spec).__name__, fields]
