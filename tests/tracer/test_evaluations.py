"""Evaluations before the first step: two of a kind run, the others are answered with tensors like
theirs.
"""

import torch
from torch import nn

from gputop_tracer.script.evaluations import Evaluations


class Net(nn.Module):
    """Counts its passes and returns what models return: a tensor, a number and None, in a
    dictionary.
    """

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.passes = 0

    def forward(self, rows, scale=1.0):
        self.passes += 1
        return {"logits": (rows * self.weight * scale).T, "count": len(rows), "loss": None}


def passes(net, calls, train=False, gradients=False):
    evaluations, results = Evaluations(), []
    net.train(train)
    with torch.set_grad_enabled(gradients):
        for arguments, options in calls:
            results.append(evaluations.call(nn.Module.__call__, net, arguments, options))
    return results


def test_the_third_of_a_kind_is_not_run_and_looks_like_the_second():
    net = Net()
    results = passes(net, [((torch.rand(4, 3),), {})] * 5)
    assert net.passes == 2
    for result in results[2:]:
        logits = result["logits"]
        assert (logits.shape, logits.stride(), logits.dtype) == ((3, 4), (1, 3), torch.float32)
        assert (result["count"], result["loss"]) == (4, None)
    assert len({result["logits"].data_ptr() for result in results}) == 5


def test_other_shapes_and_other_options_run():
    net = Net()
    passes(
        net,
        [((torch.rand(rows, 3),), {"scale": scale}) for rows in (1, 2, 3) for scale in (1.0, 2.0)]
        * 2,
    )
    assert net.passes == 12


def test_training_and_gradients_are_never_answered():
    for how in ({"train": True}, {"gradients": True}):
        net = Net()
        passes(net, [((torch.rand(4, 3),), {})] * 4, **how)
        assert net.passes == 4


def test_what_cannot_be_compared_or_made_again_runs():
    evaluations, net, ran = Evaluations(), Net().eval(), []
    with torch.no_grad():
        for inputs in ((torch.rand(4, 3), object()), (torch.rand(4, 3),)):
            for _ in range(4):
                evaluations.call(lambda *_: ran.append(object()) or ran[-1], net, inputs, {})
    assert len(ran) == 8 and evaluations.answered == 0
