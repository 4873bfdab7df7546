import pytest
import torch
from gymnasium import spaces
from policy_cases import BOX, DISCRETE, IMAGE, VECTOR, N, T, vectors
from user_modules import PACKS, Recurrent, Returns, Sees

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.errors import PolicyError


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_output_is_read_when_modules_return_what_is_accepted(pack):
    module = Returns(pack)
    output = Policy(module, VECTOR, DISCRETE)(vectors())
    assert output.dist_params.shape == (T, N, 3)
    assert output.value.shape == (T, N)
    rows = vectors()["obs"]
    torch.testing.assert_close(output.dist_params, module.actor(rows), rtol=0, atol=1e-6)
    torch.testing.assert_close(output.value, module.critic(rows)[..., 0], rtol=0, atol=1e-6)
    assert output.state == {}
    assert output.extras == {}


def test_extras_come_along_when_a_dict_holds_more():
    module = Returns(
        lambda params, value: {
            "action_logits": params, "value": value, "double": 2 * params, "loss": value.mean(),
        }
    )  # fmt: skip
    output = Policy(module, VECTOR, DISCRETE)(vectors())
    assert torch.equal(output.extras["double"], 2 * output.dist_params)
    assert output.extras["loss"].shape == ()


@pytest.mark.parametrize("as_dict", [False, True], ids=["PolicyOutput", "dict"])
def test_state_is_carried_when_a_user_module_is_recurrent(as_dict):
    module = Recurrent()
    if as_dict:
        module.output = lambda params, value, state: {
            "action_logits": params, "value": value, "state": state,
        }  # fmt: skip
    policy = Policy(module, VECTOR, DISCRETE)
    assert policy.is_recurrent
    obs, starts = vectors(), torch.zeros(T, N, dtype=torch.bool)
    starts[0] = starts[2, 1] = True
    whole = policy(obs, policy.initial_state(N), starts)
    state, steps = policy.initial_state(N), []
    for step in range(T):
        output = policy({"obs": obs["obs"][step, None]}, state, starts[step, None])
        state = output.state
        steps.append(output.dist_params[0])
    torch.testing.assert_close(torch.stack(steps), whole.dist_params, rtol=0, atol=1e-6)
    torch.testing.assert_close(state, whole.state, rtol=0, atol=1e-6)
    # row 1 has forgotten steps 0 and 1 by step 2
    alone = policy({"obs": obs["obs"][2:, 1:2]}, policy.initial_state(1), starts[2:, 1:2])
    torch.testing.assert_close(alone.dist_params[:, 0], whole.dist_params[2:, 1], rtol=0, atol=1e-6)


def test_zero_state_and_no_starts_are_assumed_when_left_out():
    policy = Policy(Recurrent(), VECTOR, DISCRETE)
    given = policy(vectors(), policy.initial_state(N), torch.zeros(T, N, dtype=torch.bool))
    assert torch.equal(policy(vectors()).dist_params, given.dist_params)


def test_state_is_empty_when_feed_forward():
    assert make_policy(VECTOR, DISCRETE).initial_state(4) == {}


@pytest.mark.parametrize(
    ("pack", "named"),
    [
        (lambda p, _: p, "a Tensor"),
        (lambda p, v: [p, v], "a list of"),
        (lambda p, v: (p, v, 1.0), "a tuple of .*float"),
        (lambda p, _: (p, None), "NoneType"),
        (lambda p, v: {"logits": p, "value": v}, "a dict of .*logits"),
        (lambda p, _: {"action_logits": p, "value": 1.0}, "float"),
        (lambda *_: None, "a NoneType"),
    ],
)
def test_module_is_refused_with_its_output_named_when_unreadable(pack, named):
    with pytest.raises(PolicyError, match=f"{named}.*cannot read; return .*action_logits"):
        Policy(Returns(pack), VECTOR, DISCRETE)


@pytest.mark.parametrize(
    ("pack", "said"),
    [
        (lambda p, v: (p, v.mean()), r"values of shape \(\) for 6 rows"),
        (lambda p, _: (p, p), r"values of shape \(6, 3\)"),
        (lambda p, v: (p.sum(0), v), r"action parameters of shape \(3,\)"),
        (lambda p, v: (p[None], v), r"action parameters of shape \(1, 6, 3\)"),
    ],
)
def test_module_is_refused_when_its_shapes_are_wrong(pack, said):
    with pytest.raises(PolicyError, match=said):
        Policy(Returns(pack), VECTOR, DISCRETE)


def test_module_is_refused_when_it_does_not_return_its_state():
    module = Recurrent()
    module.output = lambda params, value, _: (params, value)
    with pytest.raises(PolicyError, match=r"starts from a state of .*total.* returns one of {}"):
        Policy(module, VECTOR, DISCRETE)


def test_module_is_refused_when_its_state_holds_no_tensors():
    module = Recurrent()
    module.initial_state = lambda _: {"total": 0.0}
    with pytest.raises(PolicyError, match="a dict as its state; allowed is a tensor, or a tuple"):
        Policy(module, VECTOR, DISCRETE)


@pytest.mark.parametrize(
    ("action_space", "width", "needs"),
    [
        (DISCRETE, 4, "needs 3 logits"),
        (spaces.MultiDiscrete([2, 4]), 2, "needs 6 logits"),
        (BOX, 3, "needs 2 means .or 4: means and log-deviations."),
        (BOX, 1, "needs 2 means"),
    ],
)
def test_module_is_refused_when_its_width_does_not_fit(action_space, width, needs):
    module = Returns(PACKS["dict"], width)
    with pytest.raises(PolicyError, match=f"returns {width} action parameters.*{needs}"):
        Policy(module, VECTOR, action_space)


@pytest.mark.parametrize(
    "error", [ValueError, AssertionError, RuntimeError, KeyError, StopIteration]
)
def test_module_is_refused_with_its_own_words_when_it_fails(error):
    def fail(*_):
        raise error("my head hurts")

    with pytest.raises(PolicyError, match=f"{error.__name__}.*my head hurts.*obs.*6, 5") as caught:
        Policy(Returns(fail), VECTOR, DISCRETE)
    assert isinstance(caught.value.__cause__, error)


def test_shapes_are_named_when_the_first_layer_does_not_fit():
    with pytest.raises(PolicyError, match=r"Box.*mat1 and mat2.*'obs': \(6, 5\)"):
        Policy(Returns(PACKS["dict"], inputs=9), VECTOR, DISCRETE)


def test_module_is_refused_when_it_edits_its_observation():
    class Edits(Returns):
        def forward(self, obs):
            obs *= 2.0
            return super().forward(obs)

    with pytest.raises(PolicyError, match="in place"):
        Policy(Edits(PACKS["dict"]), VECTOR, DISCRETE)


def test_module_may_edit_pixels_when_they_were_converted_for_it():
    class Scales(Sees):
        def forward(self, obs):
            return super().forward(obs.div_(255))

    policy = Policy(Scales(), IMAGE, DISCRETE)
    obs = {"obs": torch.full((T, N, 36, 40, 3), 255, dtype=torch.uint8)}
    policy(obs)
    assert (policy.module.seen == 1).all()
    assert (obs["obs"] == 255).all()
