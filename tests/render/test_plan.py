"""The layout as a pure function of the size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop.panels import PANELS, Request, panel_ids
from gputop.widgets import plan

SIZES = st.tuples(st.integers(20, 300), st.integers(6, 120))


def request(width, height, **more):
    return Request(width=width, height=height, **more)


@given(
    SIZES,
    st.integers(1, 128),
    st.integers(0, 16),
    st.sampled_from([spec.id for spec in PANELS if spec.tab]),
    st.frozensets(st.sampled_from(panel_ids()), max_size=len(panel_ids()) - 1),
    st.booleans(),
)
def test_panels_lie_inside_and_never_overlap(size, ranks, gpus, switched, hidden, begun):
    more = {"ranks": ranks, "gpus": gpus, "switched": switched, "hidden": hidden, "begun": begun}
    boxes = plan.plan(request(*size, findings=3, **more))
    taken = set()
    for name, box in boxes.items():
        assert name not in hidden
        assert box.x >= 0 and box.y >= 0
        cells = {
            (x, y) for x in (box.x, box.x + box.width - 1) for y in range(box.y, box.y + box.height)
        }
        assert box.y + box.height <= size[1] and box.x + box.width <= size[0]
        assert not cells & taken
        taken |= cells


@pytest.mark.parametrize(
    ("size", "name"), [((80, 20), "compact"), ((120, 36), "normal"), ((200, 46), "wide")]
)
def test_the_three_layouts(size, name):
    assert plan.layout_name(*size) == name


def test_compact_shows_three_panels_and_the_one_that_was_switched_to():
    assert set(plan.plan(request(80, 20, switched="ranks"))) == {"breakdown", "findings", "ranks"}


def test_normal_shows_all_but_the_loss_which_takes_the_place_of_the_history():
    assert set(plan.plan(request(120, 36))) == set(panel_ids()) - {"loss"}
    assert set(plan.plan(request(120, 36, switched="loss"))) == set(panel_ids()) - {"history"}


@pytest.mark.parametrize("ranks", [8, 16, 1024])
def test_eight_ranks_and_the_host_or_a_whole_heat_map_fit_a_screen_of_120x40(ranks):
    rows = {8: 8 + 1, 16: 16 + 1, 1024: 11}[ranks]
    box = plan.plan(request(120, 32, ranks=ranks, gpus=8 * (ranks == 8)))["ranks"]
    assert box.width == 120 and box.height >= rows + 1 + 2


def test_wide_shows_everything():
    assert set(plan.plan(request(200, 46))) == set(panel_ids())


def test_zoom_gives_one_panel_everything():
    assert plan.plan(request(120, 36, zoomed="ranks")) == {"ranks": plan.Box(0, 0, 120, 36)}


def test_what_a_hidden_panel_leaves_goes_to_the_others():
    before = plan.plan(request(120, 36))
    after = plan.plan(request(120, 36, hidden=frozenset({"findings", "history"})))
    assert after["breakdown"].width > before["breakdown"].width
    assert sum(b.height * b.width for b in after.values()) > 0.8 * 118 * 36


@given(
    st.lists(
        st.builds(plan.Want, st.integers(1, 6), st.integers(6, 20), st.integers(0, 2)),
        min_size=1,
        max_size=6,
    ),
    st.integers(6, 100),
)
def test_heights_use_every_row(items, rows):
    result = plan.heights(items, rows)
    assert sum(result) == rows
    assert all(height >= 1 for height in result)


@pytest.mark.parametrize("size", [(80, 28), (120, 36), (200, 46)])
def test_until_the_first_step_the_output_has_what_the_milestones_leave(size):
    before, after = plan.plan(request(*size, begun=False)), plan.plan(request(*size))
    assert before.keys() == after.keys()
    assert before["output"].height > after["output"].height
    assert 4 <= before["breakdown"].height <= 14  # the milestones of the start
