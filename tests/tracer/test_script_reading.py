"""What is told of a script that is only read, that asks for an input, or that makes no step for a
while.
"""

from __future__ import annotations

import io
import threading
from dataclasses import replace

import pytest

from gputop.cli.fit import estimate_text
from gputop.cli.fit.estimate_script import _levers
from gputop.render.rows import row_text
from gputop_analysis import catalog
from gputop_analysis.vram import profiles
from gputop_analysis.vram.options import setup_of
from gputop_analysis.vram.question import estimate
from gputop_tracer.script import waiting
from gputop_tracer.script.fallback_source import read
from gputop_tracer.script.waiting import Waiting, WatchedInput


@pytest.mark.parametrize(
    ("source", "names", "options"),
    [
        (
            "SFTTrainer('Qwen/Qwen2.5-0.5B', args=SFTConfig(max_length=512), "
            "peft_config=LoraConfig())",
            ["Qwen/Qwen2.5-0.5B"],
            {"seq": 512, "lora_rank": 8},
        ),
        (
            "A.from_pretrained('a')\nLoraConfig(r=4, target_modules=['q_proj', 'o_proj'])",
            ["a"],
            {"lora_rank": 4, "lora_targets": ["q_proj", "o_proj"]},
        ),
        ("DPOTrainer(model='gpt2', ref_model=None)", ["gpt2"], {}),
        ("m = build()\nTrainer(m, args)", [], {}),
        ("name: str = ''\nA.from_pretrained(name)\nB.from_pretrained('')", [], {}),
        (
            "F.from_pretrained(model_name='unsloth/a', "
            "load_in_4bit=True)\nF.get_peft_model(m, r=16)",
            ["unsloth/a"],
            {"quantized": "nf4", "lora_rank": 16},
        ),
        ("A.from_pretrained('a', torch_dtype=torch.bfloat16)", ["a"], {"dtype": "bf16"}),
        (
            "A.from_pretrained('a', dtype='float32')\nTrainingArguments('o', bf16=True)",
            ["a"],
            {"dtype": "bf16", "weights": "fp32"},
        ),
        (
            "A.from_pretrained('a', torch_dtype=torch.float16)\nTrainingArguments('o', "
            "fp16=True)\nLoraConfig(r=4)",
            ["a"],
            {"dtype": "fp16", "lora_rank": 4},
        ),
    ],
)
def test_model_and_types_are_read(tmp_path, source, names, options):
    script = tmp_path / "train.py"
    script.write_text(source, encoding="utf-8")
    found = read(str(script))
    assert found["pretrained"] == names and found["options"] == options


def test_the_lever_of_a_script_is_what_the_same_events_reserve_with_another_allocator():
    setup = setup_of(catalog.model("llama-3-8b"), {"seq": 4096, "micro_batch": 2})
    log = profiles.events(setup)
    assert log is not None
    (lever,) = _levers(estimate(setup, log=log, advice=False), log)
    again = estimate(lever.setup, log=log, advice=False)
    assert lever.reserved == again.peak.reserved and lever.saves > 0
    assert _levers(again, log) == ()


def test_what_is_guessed_is_in_the_first_line_and_in_the_data():
    setup = setup_of(catalog.model("llama-3-8b"), {"seq": 512})
    plain = estimate(setup, advice=False)
    guessing = replace(plain, guessed=("sequence length 512", "since it failed"))
    first = row_text(estimate_text.lines(guessing, 100)[0]) + row_text(
        estimate_text.lines(guessing, 100)[1]
    )
    assert "guessed: sequence length 512; since it failed; bf16" in " ".join(first.split())
    assert "guessed" not in row_text(estimate_text.lines(plain, 100)[0])
    assert guessing.to_json()["guessed"] == ["sequence length 512", "since it failed"]
    assert plain.to_json()["guessed"] == []


def test_the_head_is_what_makes_logits_over_the_vocabulary():
    nn = pytest.importorskip("torch").nn
    from gputop_tracer.model.heads import of_model

    class Tells(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.after = nn.Linear(8, 50), nn.Linear(50, 2)

        def get_output_embeddings(self):
            return self.head

    told = Tells()
    by_width = nn.Sequential(
        nn.Embedding(50, 8), nn.Embedding(8, 8), nn.Linear(8, 8), nn.Linear(8, 50)
    )
    assert of_model(nn.Sequential(told)) is told.head
    assert of_model(by_width) is by_width[3]
    assert of_model(by_width[:3]) is None and of_model(nn.Linear(8, 8)) is None


def test_an_input_knows_that_it_was_asked_for():
    stream = WatchedInput(io.StringIO("1\n2\n"))
    assert not stream.isatty() and not stream.asked
    assert list(stream) == ["1\n", "2\n"] and stream.asked


def test_who_waits_is_told_where_the_script_is_and_when_it_ends(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "EVERY_S", 0.01)
    over = threading.Event()
    given_up = []

    def give_up(error):
        given_up.append(error)
        over.set()

    Waiting(__file__, 0.9, over.is_set, give_up).begin()  # the first word comes long before
    assert over.wait(10)
    assert "now at line" in capsys.readouterr().err
    assert (
        "no whole step in 0 s: it was at line" in given_up[0]
        and "test_script_reading.py" in given_up[0]
    )
