"""All that findings, notes and lint tell a user to write exists in the installed libraries, under
that very name.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import gputop_analysis
from gputop_analysis.findings import advice

ANALYSIS = Path(gputop_analysis.__file__).parent
PLACES = [
    one for folder in ("findings", "lint") for one in sorted((ANALYSIS / folder).rglob("*.py"))
]
PATHS = re.compile(r"(?<![\w.\\])torch(?:\.[A-Za-z_]\w*)+")
SETTINGS = re.compile(r"(?<![-\w])([a-z]\w+)=(?!=)")
OWNERS = {
    "torch": (
        "utils.data.DataLoader",
        "utils.data.DistributedSampler",
        "nn.parallel.DistributedDataParallel",
        "distributed.fsdp.FullyShardedDataParallel",
        "distributed.fsdp.fully_shard",
        "distributed.init_process_group",
        "distributed.broadcast",
        "compile",
        "autocast",
        "optim.AdamW",
        "optim.Optimizer.zero_grad",
        "nn.utils.clip_grad_norm_",
        "utils.checkpoint.checkpoint",
        "profiler.schedule",
        "nn.Embedding",
        "nn.Embedding.from_pretrained",
        "Tensor.backward",
    ),
    "transformers": (
        "TrainingArguments",
        "PreTrainedTokenizerBase.__call__",
        "get_cosine_schedule_with_warmup",
    ),
    "lightning": ("Trainer", "pytorch.callbacks.ModelCheckpoint", "pytorch.strategies.DDPStrategy"),
}
BUILT_IN = {"non_blocking", "memory_format", "out", "is_causal", "requires_grad", "create_graph"}
"""Of functions in C, which have no signature that Python could read."""
ELSEWHERE = {"foreach": "a setting of lint's own"}
GONE = {"group_by_length": ("transformers", (5,))}
"""Settings that the installed library has no more, and since when; advice.PRESUPPOSED keeps them to
older ones.
"""
ARGUMENTS = re.compile(r"((?:\w+=[^,()\s]+(?:, )?)+) in TrainingArguments")
CALLS = {
    "Trainer": "lightning.Trainer",
    "ModelCheckpoint": "lightning.pytorch.callbacks.ModelCheckpoint",
}
CALLS["DDPStrategy"] = "lightning.pytorch.strategies.DDPStrategy"


@functools.cache
def texts():
    """Each text of the modules that is no comment, with its place; what is filled in later is a
    ``0``.
    """
    found = []
    for path in PLACES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        skipped = inside | {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = (one.value if isinstance(one, ast.Constant) else "0" for one in node.values)
                found.append((path.name, "".join(map(str, parts))))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((path.name, re.sub(r"\{\w*\}", "0", node.value)))
    return found


def resolved(name) -> Any:
    """What a dotted name means.

    Raises:
        AttributeError, ImportError: nothing.
    """
    words = name.split(".")
    thing: Any = importlib.import_module(words[0])
    for index, word in enumerate(words[1:], 2):
        try:
            thing = getattr(thing, word)
        except AttributeError:
            thing = importlib.import_module(".".join(words[:index]))
    return thing


@functools.cache
def settings_of(name):
    """The arguments that something takes by name."""
    thing = resolved(name)
    if dataclasses.is_dataclass(thing):
        return {field.name for field in dataclasses.fields(thing)}
    return set(inspect.signature(thing).parameters)


def paths():
    return sorted({(found, place) for place, text in texts() for found in PATHS.findall(text)})


def missing(names, resolve=resolved):
    absent = []
    for name, place in names:
        try:
            resolve(name)
        except (AttributeError, ImportError):
            absent.append(f"{name} in {place}")
    return absent


def test_every_name_of_torch_exists():
    pytest.importorskip("torch")
    assert len(paths()) > 40, "the texts are read at all"
    assert missing(paths()) == []


def test_a_name_that_does_not_exist_would_be_seen():
    pytest.importorskip("torch")
    assert missing([("torch.nn.utils.clip_gradients", "x")]) and not missing(
        [("torch.nn.utils.clip_grad_norm_", "x")]
    )


def test_every_setting_is_taken_by_something():
    for library in OWNERS:
        if not find_spec(library):
            pytest.skip(f"no {library} here")
    known = set().union(
        *(settings_of(f"{library}.{one}") for library, owners in OWNERS.items() for one in owners)
    )
    named = {(one, place) for place, text in texts() for one in SETTINGS.findall(text)}
    assert len(named) > 40
    unknown = {
        (one, place)
        for one, place in named
        if one not in known | BUILT_IN | set(ELSEWHERE) | set(GONE)
    }
    assert unknown == set()


def test_what_goes_into_training_arguments_is_one_of_them():
    if not find_spec("transformers"):
        pytest.skip("no transformers here")
    known = settings_of("transformers.TrainingArguments")
    named = {
        one
        for _, text in texts()
        for part in ARGUMENTS.findall(text)
        for one in SETTINGS.findall(part)
    }
    assert len(named) >= 8
    assert {one for one in named if one not in known} <= set(GONE)


def test_what_goes_into_a_trainer_of_lightning_is_one_of_its_arguments():
    if not find_spec("lightning"):
        pytest.skip("no lightning here")
    seen = 0
    for _, text in texts():
        for call, words in re.findall(r"\b(Trainer|ModelCheckpoint|DDPStrategy)\(([^()]*)", text):
            named = SETTINGS.findall(words)
            assert set(named) <= settings_of(CALLS[call]), text
            seen += len(named)
    assert seen >= 6


@pytest.mark.parametrize("setting", GONE)
def test_what_is_gone_is_offered_to_older_versions_only(setting):
    library, since = GONE[setting]
    needs = [need for words, need in advice.PRESUPPOSED if words.search(f"{setting}=True")]
    assert needs, "a condition stands in advice.PRESUPPOSED"

    class Run:
        trainer = library
        on_gpu = True

        def __init__(self, *version):
            self.version = lambda name: version

    old: Any
    new: Any
    old, new = Run(since[0] - 1, 50), Run(*since, 0)
    assert all(one.holds(old) for need in needs for one in need)
    assert not all(one.holds(new) for need in needs for one in need)


def test_values_of_settings_exist_too():
    pytest.importorskip("transformers")
    from transformers.training_args import OptimizerNames

    assert "adamw_torch_fused" in {one.value for one in OptimizerNames}
    field = next(
        one
        for one in dataclasses.fields(resolved("transformers.TrainingArguments"))
        if "sampling" in one.name
    )
    assert "group_by_length" in str(field.metadata)
