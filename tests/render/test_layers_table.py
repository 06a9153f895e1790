"""The table of layers as a user reads it."""

from dataclasses import replace

from gputop.pages.layers import LayersPage
from gputop.render.layers import summary, table
from gputop.render.rows import row_text
from gputop_analysis.layers import Layer, Layers


def layers_of_four_blocks() -> Layers:
    blocks = []
    for index in range(4):
        blocks.append(Layer(f"blocks.{index}", "Block", forward_ms=9.0 if index == 2 else 1.0))
        blocks[-1].children = [Layer(f"blocks.{index}.up", "Linear", optimizer_bytes=1008 << 10)]
    root = Layer("", "Model", children=blocks)
    return Layers(
        rank=0,
        root=root,
        steps=(14, 16, 45),
        forward_ms=12.0,
        backward_ms=0.0,
        outside_forward_ms=0.0,
        outside_backward_ms=0.0,
        hook_ms=0.0,
        clock="host",
        counted_flops=False,
    )


def test_steps_units_folds_and_bytes_are_written_out():
    layers = layers_of_four_blocks()
    head = row_text(summary(layers, 120)[0])
    assert "median of 3: steps 14, 16, 45, ms by the host's clock" in head
    rows = [row_text(row) for row in table(layers, 120)]
    assert "4 x Block: 3 at 1 ms, blocks.2 at 9 ms" in rows[2]
    assert rows[3].strip().startswith("2  Block (stands out)")
    assert "1008 KiB" in rows[4]
    assert not any("e+" in row or "##" in row for row in rows)


def test_a_figure_that_does_not_fit_is_left_out_whole():
    layers = layers_of_four_blocks()
    for width in range(60, 130):
        row = row_text(table(layers, width)[2])
        told = row[: row_text(table(layers, width)[0]).index(" forward")].strip()
        whole = "4 x Block: 3 at 1 ms, blocks.2 at 9 ms"
        assert whole.startswith(told) and (told.endswith(" ms") or told == "4 x Block"), told


def test_layers_and_the_models_own_code_add_up_and_names_stand_near_their_figures():
    layers = layers_of_four_blocks()
    layers.root.own_forward_ms, layers.root.forward_ms = 0.6, 12.6
    rows = [row_text(row) for row in table(layers, 200)]
    assert rows[-1].split()[:5] == ["in", "Model", "itself", "0.600", "0.000"]
    assert rows[0].index("forward") < 60


def test_a_search_tells_whole_paths():
    rows = [row_text(row) for row in table(layers_of_four_blocks(), 80, search="up")]
    assert [row.split()[0] for row in rows[1:]] == [f"blocks.{index}.up" for index in range(4)]


def test_the_heading_stays_while_the_rows_scroll(monkeypatch):
    page = LayersPage()
    monkeypatch.setattr(page, "_below_title", lambda *_: [[(f"row {n}", "")] for n in range(30)])
    page.kept, page.first = 2, 99
    rows = [row_text(row).strip() for row in page.rows(60, 10)]
    assert "rows 22–28 of 28" in rows[0]
    assert rows[1:] == ["row 0", "row 1", *(f"row {number}" for number in range(23, 30))]


def test_a_few_bytes_are_told_in_bytes_and_one_step_is_no_median():
    """``1`` call and ``0.625 KiB`` stood without a blank between them: ``10.625 KiB``."""
    layers = layers_of_four_blocks()
    layers.root.children = [Layer("out", "Linear", forward_ms=1.0, activation_bytes=640)]
    row = row_text(table(layers, 120)[2])
    assert "0    640 B  " in row
    assert "rank 0, step 14, ms by" in row_text(summary(replace(layers, steps=(14,)), 120)[0])


def test_long_layers_are_told_without_an_exponent_and_uncalled_ones_without_a_time():
    """Of blocks of 250 ms each stood ``2.5e+02 ms each``, of a layer never called ``0.000``."""
    layers = layers_of_four_blocks()
    for block in layers.root.children:
        block.forward_ms = 254.0
    layers.root.children.append(Layer("positions", "Embedding", parameter_bytes=64))
    rows = [row_text(row) for row in table(layers, 120)]
    assert "4 x Block, 254 ms each" in rows[2]
    assert rows[-1].split()[:6] == ["positions", "Embedding", "–", "–", "–", "0"]
