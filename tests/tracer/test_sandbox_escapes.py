"""A script tries to get out of the sandbox of an estimate, by each way that is known, as root and
as nobody.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_escapes import ESCAPES

from gputop.script_tracing import without_secrets
from gputop_tracer.sandbox import namespaces, scratch, seccomp, syscalls

HERE = Path(__file__).parent
NOBODY = 65534
USERS = [("as-is", os.getuid()), *([("nobody", NOBODY)] if os.getuid() == 0 else [])]
LAYERS = [("namespaces", "landlock"), ("landlock",), ("namespaces",), ()]
pytestmark = pytest.mark.skipif(not syscalls.machine(), reason="no filter for this machine")


def has_landlock():
    return ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint(1)) > 0


def has_namespaces(folder):
    return namespaces._works(str(folder), *namespaces._CHOICES[0])


@pytest.fixture(scope="module")
def tried():
    """What came of all ways, by user and layers; each set of them is tried once."""
    answers = {}

    def get(user, layers):
        if (user, layers) not in answers:
            command = [sys.executable, str(HERE / "sandbox_escape_run.py"), str(user), *layers]
            paths = os.pathsep.join([str(HERE.parents[1] / "probes"), str(HERE.parent)])
            environment = {**os.environ, "PYTHONPATH": paths}
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, env=environment, start_new_session=True
            ) as process:
                out, _ = process.communicate(timeout=120)
            answers[user, layers] = json.loads(out)
        return answers[user, layers]

    return get


@pytest.mark.parametrize(("who", "user"), USERS, ids=[name for name, _ in USERS])
@pytest.mark.parametrize(
    "layers", LAYERS, ids=["all layers", "no namespaces", "no landlock", "filter alone"]
)
def test_no_way_out_changes_anything_outside(tried, tmp_path, who, user, layers):
    if "landlock" in layers and not has_landlock():
        pytest.skip("this kernel has no Landlock")
    if "namespaces" in layers and not has_namespaces(tmp_path):
        pytest.skip("this kernel permits no namespaces here")
    answer = tried(user, layers)
    ways = answer["ways"]
    untried = {name: one["said"] for name, one in ways.items() if one["harmed"] is None}
    assert not untried, f"no aim to try them on: {untried}"
    assert len(ways) >= (100 if layers else 70)
    assert [name for name, one in ways.items() if one["harmed"]] == []
    assert bool(answer["lacking"]) == (not layers), "what cannot be kept is said, and nothing else"


@pytest.mark.parametrize("choice", range(len(namespaces._CHOICES)))
def test_whatever_a_kernel_permits_of_namespaces_landlock_and_the_filter_hold_the_rest(
    tried, tmp_path, choice
):
    if not has_landlock():
        pytest.skip("this kernel has no Landlock")
    if not namespaces._works(str(tmp_path), *namespaces._CHOICES[choice]):
        pytest.skip("this kernel does not permit them here")
    answer = tried(os.getuid(), ("landlock", f"namespaces:{choice}"))
    assert len(answer["ways"]) >= 100 and answer["lacking"] == []
    assert [name for name, one in answer["ways"].items() if one["harmed"]] == []


def test_each_way_has_a_name_of_its_own():
    assert len({way.name for way in ESCAPES}) == len(ESCAPES) >= 100


def test_what_a_script_leaves_is_read_and_removed_without_following_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    aim = outside / "aim.json"
    aim.write_text('{"error": "of another"}')
    aim.chmod(0o400)
    outside.chmod(0o500)
    with scratch.scratch() as folder:
        left = Path(folder, "left")
        left.mkdir()
        (left / "link").symlink_to(aim)
        (left / "links").symlink_to(outside)
        (left / "inner").mkdir()
        (left / "inner" / "file").write_text("x")
        os.mkfifo(left / "outcome.json")
        for one in (left / "outcome.json", left / "link", left / "none"):
            assert scratch.read_json(str(one)) is None
        deepest = folder
        for _ in range(60):
            deepest = os.path.join(deepest, "x" * 20)
            os.mkdir(deepest)
        (left / "inner").chmod(0)
        left.chmod(0)
    assert not os.path.exists(folder)
    assert aim.stat().st_mode & 0o777 == 0o400 and outside.stat().st_mode & 0o777 == 0o500
    outside.chmod(0o700)


def test_credentials_in_the_environment_are_not_the_scripts():
    given = {
        "HF_TOKEN": "hf_x",
        "WANDB_API_KEY": "x",
        "TOKENIZERS_PARALLELISM": "false",
        "HOME": "/home/me",
    }
    seen = without_secrets({**given, "MIRROR": "https://me:word@example.org/"})
    assert {name for name in seen if seen[name] == given.get(name)} == {
        "TOKENIZERS_PARALLELISM",
        "HOME",
    }
    assert set(seen) == {*given, "MIRROR"}, "a script that asks for them goes on"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("holds", [True, False])
def test_a_filter_ends_in_an_answer_whichever_way_it_goes(machine, holds):
    held = seccomp.HeldElsewhere(*[holds] * 6)
    code = seccomp.program(machine, seccomp.rules(held, asks=True))
    steps = [(code[at], code[at + 1], code[at + 2], code[at + 3]) for at in range(0, len(code), 8)]
    kinds = [int.from_bytes(code[at : at + 2], "little") for at in range(0, len(code), 8)]
    assert len(steps) < 4096, "the kernel takes no more"
    assert kinds[-1] == 0x06
    for at, (kind, (_, _, then, otherwise)) in enumerate(zip(kinds, steps, strict=True)):
        if kind in (0x15, 0x35, 0x45):
            assert at + 1 + max(then, otherwise) < len(steps)
