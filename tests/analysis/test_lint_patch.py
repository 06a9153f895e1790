"""Edits by exact offsets: only the intended call changes, in every form of file, and git takes the
patch.
"""

import ast
import os
import subprocess

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gputop_analysis.lint import SourceError, diff, fixed, lint, write
from gputop_analysis.lint.edits import add_keywords, prepend, remove_keyword, set_keyword
from gputop_analysis.lint.source import SourceFile, apply

VALUES = [
    "1",
    "(2)",
    "((3))",
    '"a)b#,"',
    "x[1:2]",
    "lambda a, b=(1,): (a, b)",
    "{'ä': (4,)}",
    "[\n  5, # five\n]",
    "f(6, g=(7))",
]
GAPS = ["", " ", "\n    ", "  # (note), \n\t", " \\\n "]
FUNCTIONS = ["call", "(call)", "a.b.call", "make(1)('('). call", "ä.call"]


@st.composite
def calls(draw):
    """A call written in any way, with ``old=`` among its arguments or not."""

    def gap():
        return draw(st.sampled_from(GAPS))

    values = [draw(st.sampled_from(VALUES)) for _ in range(draw(st.integers(0, 3)))]
    arguments = [
        value if draw(st.booleans()) and not i else f"k{i} ={gap()}{value}"
        for i, value in enumerate(values)
    ]
    if draw(st.booleans()):
        arguments.insert(
            draw(st.integers(bool(arguments) and "=" not in arguments[0][:4], len(arguments))),
            "old=(0)",
        )
    inside = ",".join(f"{gap()}{one}{gap()}" for one in arguments)
    comma = f",{gap()}" if arguments and draw(st.booleans()) else ""
    return f"{draw(st.sampled_from(FUNCTIONS))}({inside}{comma}{gap() if not arguments else ''})"


def parsed(text):
    try:
        source = SourceFile.parse("x.py", text.encode())
    except SourceError:
        return None, None
    return source, source.tree.body[-1].value


def without(call, *names):
    call.keywords = [one for one in call.keywords if one.arg not in names]
    return ast.dump(call)


@given(calls(), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "ü = 'é'; "]))
@settings(max_examples=400)
def test_only_the_arguments_change(text, newline, before):
    text = (before + text + "\n").replace("\n", newline)
    source, call = parsed(text)
    assume(source is not None)
    plain = without(parsed(text)[1], "old", "new")
    for edits, expected in (
        (add_keywords(source, call, new="9"), {"new": 9}),
        (set_keyword(source, call, "old", "8"), {"old": 8}),
        (remove_keyword(source, call, "old"), {}),
    ):
        changed = apply(text, list(edits))
        _, after = parsed(changed)
        assert after is not None, changed
        names = {one.arg: one.value for one in after.keywords}
        assert all(ast.literal_eval(names[name]) == value for name, value in expected.items()), (
            changed
        )
        assert without(after, "old", "new") == plain, changed
    first = parsed(apply(text, list(prepend(source, call, '"first"'))))[1]
    assert ast.literal_eval(first.args.pop(0)) == "first" and without(first, "old", "new") == plain


def test_a_generator_as_the_only_argument_is_left_alone():
    source, call = parsed("f(x for x in y)")
    assert add_keywords(source, call, a="1") == ()


SCRIPT = """# -*- coding: {coding} -*-
import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
\tname = "größe"; size = 4
def run(model, rows):
\tloader = DataLoader(
\t\tRows(),  # grüße
\t\tbatch_size=8,
\t)
\tother = DataLoader(Rows(), 8, num_workers=0) ; model.eval()
\twith torch.cuda.amp.autocast(): pass
\tscaler = torch.cuda.amp.GradScaler()
\toptimizer = torch.optim.SGD(model.parameters(), 1e-3, foreach=False)
\tfor x in loader:
\t\tloss = model(x)
\t\tloss.backward()
\t\toptimizer.step()
\t\ttorch.cuda.empty_cache()
\t\tkept.append(loss)
\treturn kept"""


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("name", ["train.py", "my training/trän file.py"])
def test_git_takes_the_patch(tmp_path, coding, newline, end, name):
    data = (SCRIPT.format(coding=coding) + end).replace("\n", newline).encode(coding)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    after = fixed(name, data)
    assert fixed(name, after) == after and lint(name, after)
    text = after.decode(coding)
    assert (
        text.count("num_workers=4") == 2
        and "foreach" not in text
        and 'torch.amp.GradScaler("cuda")' in text
    )
    assert (
        "kept.append(loss.detach())" in text
        and "empty_cache" not in text
        and "optimizer.zero_grad()" in text
    )
    assert text.count("\r\n") == (text.count("\n") if newline == "\r\n" else 0) and text.endswith(
        end or "kept"
    )
    patch = diff(name, data, after)
    done = subprocess.run(
        ["git", "apply", "-"], input=patch, cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert path.read_bytes() == after


def test_git_takes_the_patch_in_a_directory_of_a_repository(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    folder = tmp_path / "src"
    folder.mkdir()
    data = SCRIPT.format(coding="utf-8").encode()
    (folder / "train.py").write_bytes(data)
    subprocess.run(
        ["git", "apply"], input=diff("train.py", data, fixed("", data)), cwd=folder, check=True
    )
    assert (folder / "train.py").read_bytes() == fixed("", data)


def test_a_byte_order_mark_stays(tmp_path):
    data = b"\xef\xbb\xbf" + SCRIPT.format(coding="utf-8").encode()
    assert fixed("x.py", data).startswith(b"\xef\xbb\xbf# -*-") and fixed("x.py", data) != data
    assert fixed("x.py", b"import torch\n") == b"import torch\n" and diff("x.py", b"a", b"a") == b""


def test_writing_keeps_mode_and_link(tmp_path):
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_text("old")
    real.chmod(0o750)
    link.symlink_to(real)
    write(link, b"new")
    assert (
        link.is_symlink() and real.read_bytes() == b"new" and real.stat().st_mode & 0o777 == 0o750
    )
    assert sorted(os.listdir(tmp_path)) == ["link.py", "real.py"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x = 1\ndef f(:\n", "x.py:2"),
        (b"\xff\xfe", "x.py"),
        (b"# coding: klingon\n", "klingon"),
        (b"a\x00b", "x.py"),
    ],
)
def test_what_is_no_python_is_one_line(data, said):
    with pytest.raises(SourceError) as caught:
        lint("x.py", data)
    assert said in str(caught.value) and "\n" not in str(caught.value)
