"""Compute efficiency: changing input shapes, and convolutions that could be tuned."""

from __future__ import annotations

from gputop_agent.contracts import Shapes
from gputop_analysis.findings.advice import MAP_STYLE, SHAPES_COST, TOKENS, Option
from gputop_analysis.findings.note import CPU, H200
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody, on_device
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView

CHURN = 20
"""Distinct shapes in 100 batches; grouping by length leaves a handful."""


@finding(
    id="CE10",
    name="shape churn",
    family="compute",
    cause="compute",
    trigger=f"more than {CHURN} distinct input shapes in 100 batches; info on a CPU without "
    "torch.compile, where it costs little",
    fix="pad to multiples of 64, or group samples by length",
    no_use=(
        "on a CPU without torch.compile; padding: where inputs are no tokens; grouping: with an "
        "IterableDataset"
    ),
    reads="hello.shapes: the first tensor of a hundred batches in each thousand",
    silent="fewer than 100 batches; only an info on a CPU without torch.compile",
    traps="lengths that are grouped on purpose",
    seen_on=CPU,
)
def shape_churn(view: RunView, spec: Spec) -> Finding | None:
    """Each new shape makes the allocator, cuDNN's search and torch.compile begin anew."""
    churning = {rank: shapes for rank in view.ranks if (shapes := view.hello(rank).get("shapes"))}
    rank = max(churning, key=lambda rank: _per_100(churning[rank]), default=None)
    if rank is None or _per_100(churning[rank]) <= CHURN:
        return None
    shapes, hello = churning[rank], view.hello(rank)
    compiled = bool((hello.get("compile") or {}).get("used"))
    examples = ", ".join("x".join(map(str, shape)) for shape in shapes.get("examples") or ())
    return spec.make(
        severity="medium" if compiled or on_device(view, rank) else "info",
        title=f"{shapes['distinct']} different input shapes in {shapes['batches']} batches",
        evidence=f"among them {examples}; "
        + ("torch.compile may compile for each of them" if compiled else _why(view, rank)),
        fix=(
            Option(
                "pad each batch to a multiple of 64 (tokenizer(..., pad_to_multiple_of=64))",
                needs=(SHAPES_COST, TOKENS),
            ),
            Option("group samples by length", needs=(SHAPES_COST, TOKENS, MAP_STYLE)),
            Option(
                "bring the inputs to a few sizes, by padding or cutting",
                needs=(SHAPES_COST,),
                last=True,
            ),
        ),
        rank=everybody(view),
        proof=Proof(
            statistic="distinct input shapes in 100 batches",
            value=_per_100(shapes),
            threshold=CHURN,
            unit="",
            formula="no time is claimed: what a new shape costs depends on the "
            "allocator, cuDNN and torch.compile",
            inputs=(
                Input(
                    "distinct shapes",
                    int(shapes["distinct"]),
                    "",
                    f"hello.shapes, rank {rank}: the first tensor of each",
                ),
                Input(
                    "batches looked at",
                    int(shapes["batches"]),
                    "",
                    "the first hundred of each thousand",
                ),
            ),
        ),
    )


def _per_100(shapes: Shapes) -> float:
    return 100.0 * float(shapes.get("distinct") or 0) / max(1.0, float(shapes.get("batches") or 1))


def _why(view: RunView, rank: int) -> str:
    if not on_device(view, rank):
        return "on a CPU without torch.compile this costs little"
    return (
        "the caching allocator splits its blocks for each of them, and cuDNN searches anew where "
        "benchmark is on"
    )


@finding(
    id="CE09",
    name="convolutions not tuned",
    family="compute",
    cause="compute",
    trigger="two-dimensional convolutions on a GPU, inputs of at most 3 shapes, "
    "cudnn.benchmark off",
    fix="torch.backends.cudnn.benchmark = True, and model.to(memory_format=torch.channels_last)",
    no_use="without a GPU of the run; where shapes change, or runs must be repeatable",
    reads="hello.model, hello.batch, hello.flags (cudnn.benchmark), memory format",
    silent="no GPU; shapes that change",
    traps="inputs of varying shape, for which the search costs more than it wins",
    seen_on=H200,
)
def convolutions_not_tuned(view: RunView, spec: Spec) -> Finding | None:
    """cuDNN can try its algorithms once for a shape and keep the fastest."""
    rank = next(iter(view.ranks), None)
    if (
        rank is None
        or not on_device(view, rank)
        or str(view.hello(rank).get("device")).split(":")[0] != "cuda"
    ):
        return None
    hello = view.hello(rank)
    modules = (hello.get("model") or {}).get("modules") or {}
    convolutions = sum(
        int(modules.get(name) or 0) for name in ("Conv2d", "ConvTranspose2d", "Conv3d")
    )
    flags, shapes = hello.get("flags") or {}, hello.get("shapes")
    if not convolutions or shapes is None or int(shapes["distinct"]) > 3:
        return None
    if flags.get("cudnn_benchmark") is not False or flags.get("cudnn_deterministic"):
        return None
    return spec.make(
        severity="info",
        title=f"{convolutions} convolutions run without cudnn.benchmark although the input's "
        "shape does not change",
        evidence=f"{shapes['distinct']} input shapes in {shapes['batches']} batches, "
        "cudnn.benchmark off, not deterministic by wish",
        fix="set torch.backends.cudnn.benchmark = True before training, and try "
        "model.to(memory_format=torch.channels_last) with inputs in the same format",
        rank=everybody(view),
        confidence=0.7,
        proof=Proof(
            statistic="convolutions with one shape of input",
            value=convolutions,
            threshold=0,
            unit="",
            formula="no time is claimed: which algorithm is fastest shows when it is tried",
            inputs=(
                Input("convolution modules", convolutions, "", "hello.model.modules"),
                Input("input shapes", int(shapes["distinct"]), "", "hello.shapes"),
                Input("cudnn.benchmark", "off", "", "hello.flags.cudnn_benchmark"),
            ),
        ),
    )
