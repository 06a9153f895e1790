"""Where schedulers were made, also once they are gone."""

import torch

from gputop_agent.watchers.looks import built_places


def test_a_scheduler_that_is_gone_is_still_known_by_its_optimizer():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    assert built_places.of_scheduler(optimizer) is None
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    built_places._schedulers.put(schedule, ["train.py:9 main"])
    assert built_places.of_scheduler(optimizer) == "train.py:9"
    del schedule
    assert built_places.of_scheduler(optimizer) == "train.py:9"
