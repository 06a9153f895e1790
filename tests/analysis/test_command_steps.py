"""The number of steps that a command's options give."""

import pytest

from gputop_analysis.command_steps import total_steps


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node 8 train.py --steps 600 --eval-every 200",
        "python train.py --max_steps=600 --lr 1e-3",
        "python train.py trainer.max_steps=600 data.steps_per_epoch=50",
        "python pretrain.py --train-iters 600 --log-interval 10 --save",
    ],
)
def test_an_option_that_counts_steps_gives_the_total(command):
    assert total_steps(command.split(), 100) == 600
    assert total_steps(command.split(), 600) == 600


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --max-restarts 3 --warmup-steps 600 --steps-per-epoch 600",
        "python train.py --steps 600 --max-steps 500",
        "python train.py --max-steps -1",
        "python train.py --steps --verbose",
        "python train.py --steps 1e6",
        "python steps 600",
        "",
    ],
)
def test_no_total_is_guessed(command):
    assert total_steps(command.split(), 100) is None


def test_a_total_that_was_passed_was_none():
    assert total_steps(["train.py", "--steps", "600"], 601) is None
