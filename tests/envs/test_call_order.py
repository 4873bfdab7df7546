import numpy as np
import pytest
from gymnasium import spaces

from metta.envs.call_order import CallOrder, check_actions
from metta.errors import EnvError


def test_groups_still_stepping_are_named_when_reset_comes() -> None:
    order = CallOrder(3)
    assert order.reset() == []
    order.send(0)
    order.send(2)
    order.recv(2)
    order.received(2)
    assert order.reset() == [0]
    order.send(0)


def test_recv_may_be_repeated_when_it_was_interrupted() -> None:
    order = CallOrder(1)
    order.reset()
    order.send(0)
    order.recv(0)
    order.recv(0)


def test_every_call_is_refused_when_closed() -> None:
    order = CallOrder(2)
    order.close()
    calls = (order.reset, order.forget, lambda: order.is_between_steps("state_dict()"))
    for call in (*calls, lambda: order.send(1), lambda: order.recv(1)):
        with pytest.raises(EnvError, match="closed; make a new one"):
            call()


def test_steps_may_follow_when_rows_stand_without_a_reset() -> None:
    order = CallOrder(2)
    assert not order.is_between_steps("state_dict()")
    order.mark_placed()
    assert order.is_between_steps("state_dict()")
    assert order.num_resets == 0
    order.send(1)
    with pytest.raises(
        EnvError, match=r"state_dict\(\) was called out of turn: a step is under way"
    ):
        order.is_between_steps("state_dict()")
    order.forget()
    assert not order.is_between_steps("state_dict()")
    with pytest.raises(EnvError, match="reset"):
        order.send(1)


@pytest.mark.parametrize("group", [-1, 2])
def test_a_group_is_refused_when_there_is_no_such_group(group: int) -> None:
    with pytest.raises(EnvError, match="has 2 groups"):
        CallOrder(2).send(group)


def test_actions_pass_as_they_are_when_they_fit() -> None:
    actions = np.zeros((3, 2), np.float32)
    assert check_actions(actions, 3, spaces.Box(-1, 1, (2,))) is actions
    assert check_actions([0, 1, 1], 3, spaces.Discrete(2)).tolist() == [0, 1, 1]
