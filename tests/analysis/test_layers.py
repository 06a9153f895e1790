"""The tree of layers: sums, folds and what stands out."""

from pathlib import Path

from analysis_support import Builder

from gputop.render.layers import table
from gputop.render.rows import row_text
from gputop_analysis.layers import FoldedLayers, fold, layers_of
from gputop_probes.record.reader import RunRecord


def built(tmp_path: Path) -> RunRecord:
    paths = ["", *(f"{i}" for i in range(4)), *(f"{i}.fc" for i in range(4)), "head"]
    kinds = ["Model", *["Block"] * 4, *["Linear"] * 4, "Linear"]
    rows = [
        {"path": path, "class": kind, "parameter_bytes": 8 if "." in path else 0}
        for path, kind in zip(paths, kinds, strict=True)
    ]
    build = Builder(tmp_path / "run")
    build.event("layer_table", rank=0, first=0, count=len(rows), rows=rows)
    for step in (12, 14, 16):
        forward = [100, *[0] * 4, 1000, 1000, 3000, 1000, 500]
        build.event(
            "layers",
            rank=0,
            step=step,
            first=0,
            forward_us=forward,
            backward_us=[2 * one for one in forward],
            calls=[1] * len(rows),
            forward_ms=6.8,
            backward_ms=13.4,
            outside_forward_ms=0.2,
            outside_backward_ms=0.2,
            recomputed=[1],
            clock="host",
        )
    return RunRecord.open(build.path)


def test_a_layer_holds_what_is_within_it(tmp_path):
    found = layers_of(built(tmp_path))
    assert found is not None and found.steps == (14, 16)
    by_path = {layer.path: layer for layer in found.root.walk()}
    assert round(by_path[""].forward_ms, 3) == 6.6 and round(by_path[""].own_forward_ms, 3) == 0.1
    assert by_path["2"].ms == by_path["2.fc"].ms == 9.0
    assert round(found.share(found.root), 3) == round(19.8 / 20.2, 3)
    assert by_path["0"].recomputed and not by_path["1"].recomputed


def test_alike_layers_are_one_row_that_names_the_one_that_stands_out(tmp_path):
    found = layers_of(built(tmp_path))
    assert found is not None
    rows = fold(found.root.children)
    folded = rows[0]
    assert isinstance(folded, FoldedLayers) and len(rows) == 2
    assert folded.told() == "4 x Block: 3 at 3 ms, Block 2 at 9 ms"
    text = "\n".join(row_text(row) for row in table(found, 160))
    assert "4 x Block: 3 at 3 ms, Block 2 at 9 ms" in text and "head  Linear" in text
    hits = table(found, 160, search="HEAD")
    assert len(hits) == 2 and "7" not in row_text(hits[1])[:20]
