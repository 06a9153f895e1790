"""Mends what a run found, where the script's own text makes the edit certain; else says why not.

A finding names the edit in one of its options (``Option.mend``): a rule whose edit it is, or the
arguments of a call. Nothing is edited that the run did not show to be the cause: the finding's line
decides, or that the script has only one such place.
"""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gputop_analysis.lint.check import remarks_of
from gputop_analysis.lint.edits import Edits, add_keywords, keyword, remove_keyword
from gputop_analysis.lint.module import Module, constant, dotted
from gputop_analysis.lint.patch import diff
from gputop_analysis.lint.rules_loader import dataset_class
from gputop_analysis.lint.source import LARGEST_BYTES, Edit, SourceError, SourceFile, apply
from gputop_analysis.mend import DATA_LOADER, DDP, ByArguments, ByRule, Mend
from gputop_analysis.model import Finding
from gputop_analysis.text import file_and_line
from gputop_probes.record.manifest import Manifest


class NoMend(Exception):
    """Why no edit is offered, in one line."""


class _NoCall(NoMend):
    """The file has no call of that name."""


class Patch(NamedTuple):
    """A patch for ``git apply`` in the directory that the run started in, or why there is none."""

    text: str
    reason: str = ""


class _Call(NamedTuple):
    """What is known of a function of torch."""

    positions: int = 99
    """Most arguments by position that leave those that are changed to keywords."""
    defaults: Mapping[str | int, object] = MappingProxyType({})


_CALLS = {
    DATA_LOADER: _Call(5, {"num_workers": 0, "persistent_workers": False, "pin_memory": False}),
    DDP: _Call(5, {"find_unused_parameters": False}),
}


def patch_of(finding: Finding, manifest: Manifest) -> Patch:
    """The patch that mends a finding of a run."""
    mend = next((option.mend for option in finding.options if option.mend is not None), None)
    if mend is None:
        return Patch("", "what mends this is a choice, or no edit of one line")
    reasons = []
    for path, line in _places(finding, manifest):
        name = os.path.relpath(path, manifest.cwd or ".")
        try:
            data = _as_it_ran(path, name, manifest.created_ns)
            return Patch(_as_text(diff(name, data, mended(mend, name, data, line))))
        except OSError as error:
            reasons.append(f"{name}: {error.strerror or error}")
        except _NoCall as error:  # a finding may be about another place than its call
            reasons.append(str(error))
            continue
        except (NoMend, SourceError) as error:
            reasons.append(str(error))
        break
    return Patch("", reasons[0] if reasons else "the run's script cannot be read here")


def mended(mend: Mend, name: str, data: bytes, line: int = 0) -> bytes:
    """The file with the edit made.

    Args:
        mend: what is to be edited.
        name: the file's name, for messages.
        data: the file.
        line: where the run saw the cause; 0 where that is not known.

    Raises:
        NoMend: the text leaves a doubt.
        SourceError: it is no Python.
    """
    source = SourceFile.parse(name, data)
    if isinstance(mend, ByRule):
        edits = _by_rule(mend, source, line)
    else:
        edits = _by_arguments(mend, Module(source, line))
    changed = source.encode(apply(source.text, list(edits)))
    try:
        SourceFile.parse(name, changed)
    except SourceError:
        raise NoMend(f"{name} is written in a way that cannot be edited safely") from None
    if changed == data:
        raise NoMend(f"{name} is written in a way that cannot be edited safely")
    return changed


def script_of(manifest: Manifest) -> Path | None:
    """The Python file of a run's command, where it can be read."""
    for word in manifest.command:
        path = Path(manifest.cwd, word)
        if word.endswith(".py") and os.path.isfile(path) and path.stat().st_size < LARGEST_BYTES:
            return path
    return None


def _places(finding: Finding, manifest: Manifest) -> list[tuple[Path, int]]:
    """The file and line that a finding names, then the script."""
    named, script = file_and_line(finding.site), script_of(manifest)
    places = [(Path(manifest.cwd, named[0]), named[1])] if named else []
    if script is not None and script not in [path for path, _ in places]:
        places.append((script, 0))
    return places


def _as_it_ran(path: Path, name: str, began_ns: int) -> bytes:
    """The file, if it is still what the run ran.

    Raises:
        NoMend: it is not, or lies outside of where the run was started.
        OSError: it cannot be read.
    """
    if name.startswith(".."):
        raise NoMend(f"{path} lies outside of where the run was started")
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise NoMend(f"{name} is no file")
    if state.st_mtime_ns > began_ns:
        raise NoMend(f"{name} was changed after the run began")
    if state.st_size > LARGEST_BYTES:
        raise NoMend(f"{name} is too large")
    return path.read_bytes()


def _as_text(patch: bytes) -> str:
    try:
        return patch.decode()
    except UnicodeDecodeError:
        raise NoMend("the script is not in UTF-8: a patch would not survive as text") from None


def _by_rule(mend: ByRule, source: SourceFile, line: int) -> Edits:
    remarks = [remark for remark in remarks_of(source, line) if remark.rule == mend.rule]
    there = [remark for remark in remarks if remark.line <= line <= remark.end_line]
    edits = [edit for remark in there or remarks for edit in remark.edits]
    if not remarks:
        raise NoMend(f"{source.path} does not show the cause ({mend.rule})")
    if not all(remark.edits for remark in there or remarks):
        raise NoMend(f"{source.path}:{remarks[0].line} cannot be mended by an edit of its own")
    return tuple(edits)


def _by_arguments(mend: ByArguments, module: Module) -> Edits:
    call = _meant(mend, module)
    _CHECKS.get(mend.call, _no_check)(mend, module, call)
    source = module.source
    edits = [edit for name in mend.drops for edit in remove_keyword(source, call, name)]
    added: dict[str, str] = {}
    for key, value in mend.gives.items():
        argument = _argument(call, key)
        if argument is not None:
            edits.append(Edit(source.start(argument), source.end(argument), repr(value)))
        else:
            added[str(key)] = repr(value)
    return (*edits, *add_keywords(source, call, **added))


def _meant(mend: ByArguments, module: Module) -> ast.Call:
    """The one call that the finding is about.

    Raises:
        NoMend: there is none, or several.
    """
    short_name, script = mend.call.rpartition(".")[2], module.source.path
    calls = list(module.calls_of(mend.call))
    at_line = [call for call in calls if module.is_seen(call)]
    alike = [call for call in at_line or calls if _has(mend, call)]
    if len(alike) == 1:
        return alike[0]
    if not calls:
        raise _NoCall(f"no call of {short_name} stands in {script}")
    if not alike:
        raise NoMend(f"the arguments of {short_name} in {script} are computed elsewhere")
    raise NoMend(f"{len(alike)} calls of {short_name} in {script} may be meant")


def _has(mend: ByArguments, call: ast.Call) -> bool:
    """Whether all that is to be changed is written out, as the run had it."""
    signature = _CALLS.get(mend.call, _Call())
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    if starred or len(call.args) > signature.positions or any(k.arg is None for k in call.keywords):
        return False
    for key in (*mend.gives, *mend.drops):
        argument = _argument(call, key)
        if argument is not None and constant(argument) is object:
            return False
        if isinstance(key, int) and argument is None:
            return False
    for key, value in mend.had.items():
        argument = _argument(call, key)
        if argument is None:
            written = signature.defaults.get(key)
        else:
            written = constant(argument)
        if written != value:
            return False
    return True


def _argument(call: ast.Call, key: str | int) -> ast.expr | None:
    if isinstance(key, int):
        return call.args[key] if key < len(call.args) else None
    named = keyword(call, key)
    return named.value if named else None


def _no_check(mend: ByArguments, module: Module, call: ast.Call) -> None:
    """Nothing else in the script forbids the change."""


def _may_have_workers(mend: ByArguments, module: Module, call: ast.Call) -> None:
    """Each worker has a copy of the dataset: what it keeps in itself is then lost.

    Raises:
        NoMend: it keeps something.
    """
    if "num_workers" not in mend.gives or mend.had.get("num_workers"):
        return
    dataset = dataset_class(module, call)
    if dataset:
        methods = [node for node in dataset.body if _makes_samples(node)]
    else:
        methods = []
    if any(_keeps(node) for method in methods for node in ast.walk(method)):
        raise NoMend(
            f"{dataset.name} keeps something between samples, of which each worker would have its "  # type: ignore[union-attr]
            "own"
        )


def _makes_samples(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name in ("__getitem__", "__getitems__")


def _keeps(node: ast.AST) -> bool:
    """Whether a statement writes to what outlives its function."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        return True
    if not isinstance(node, ast.Attribute | ast.Subscript) or not isinstance(node.ctx, ast.Store):
        return False
    return (dotted(node) or dotted(node.value) or "").startswith("self")


def _may_be_fused(mend: ByArguments, module: Module, call: ast.Call) -> None:
    """A fused update takes no sparse gradients and cannot be differentiated.

    Raises:
        NoMend: the script asks for one of them.
    """
    if keyword(call, "differentiable") or module.mentions("sparse", "SparseAdam"):
        raise NoMend("a fused update takes no sparse gradients and cannot be differentiated")


_CHECKS: dict[str, Callable[[ByArguments, Module, ast.Call], None]] = {
    DATA_LOADER: _may_have_workers,
    **{f"torch.optim.{name}": _may_be_fused for name in ("Adam", "AdamW", "SGD")},
}
