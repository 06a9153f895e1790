"""The topology screen: which servers it lists, what it draws, and the ways to it."""

from dataclasses import replace

import pytest
from tui_pilot import press, screen_text, settle

from gputop.app.catalog import CatalogApp
from gputop.feed import topology
from gputop.render import topology as drawn_topology
from gputop.render.rows import row_width
from gputop.screens.strategy import StrategyScreen
from gputop.screens.topology import TopologyScreen
from gputop_analysis.topology import presets

pytestmark = pytest.mark.usefixtures("nothing_of_the_user")


def test_the_servers_begin_with_this_machine_and_are_found_by_any_name_of_their_gpu():
    here = replace(
        presets.topology(presets.find("dgx-h100")),
        gpu_model="NVIDIA H100 80GB HBM3",
        source="the driver",
    )
    listed = topology.servers(here)
    assert len(listed) == len(presets.PRESETS) + 1 and listed[0].topology is here
    assert topology.place_of("H100", listed) == 0
    found = topology.place_of("H200", listed)
    assert found is not None and listed[found].name == "dgx-h200"
    assert topology.place_of("RTX 4090", listed) is None and topology.place_of("X1", listed) is None
    assert len(topology.servers(None)) == len(presets.PRESETS)


@pytest.mark.parametrize("width", [60, 78, 130])
def test_the_rows_of_a_topology_fit_and_their_codes_have_colours(width):
    for one in topology.servers(None):
        assert row_width(drawn_topology.line(one, width, True)) == width
        rows = drawn_topology.matrix(one.topology, width)
        assert max(map(row_width, rows)) <= width
    styles = {text: style for row in rows for text, style in row}
    assert styles["SYS"] == "high" and styles["NODE"] == "medium"
    assert drawn_topology.coloured("a NV18 b")[1] == ("NV18", "good")


async def test_numa_nodes_and_networks_are_shown_at_every_designed_size(monkeypatch):
    monkeypatch.setattr(topology, "this_machine", lambda: None)
    app = CatalogApp()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "slash", *"h100-sxm5-80", "enter", "i", "down", "down", "down")
        for size in ((60, 20), (80, 24), (120, 40), (200, 50)):
            await pilot.resize_terminal(*size)
            await settle(app, pilot)
            assert "NUMA 0" in screen_text(app)
            assert ("3200 Gbit/s" in screen_text(app)) == (size != (120, 40))  # list: 48 columns


async def test_it_opens_from_the_catalog_and_the_strategy(monkeypatch):
    monkeypatch.setattr(topology, "this_machine", lambda: None)
    app = CatalogApp()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "slash", *"h100-sxm5-80", "enter", "i")
        assert isinstance(app.screen, TopologyScreen) and "NV18" in screen_text(app)
        await press(app, pilot, "y", "down")
        assert app.clipboard == "gputop topo --preset dgx-h100" and "dgx-h200" in screen_text(app)
        await press(app, pilot, "tab", "end")
        assert "joined alike by NVLink" in screen_text(app)
        await press(app, pilot, "escape", "escape", "slash", *"4090", "enter", "enter", "i")
        assert isinstance(
            app.screen, TopologyScreen
        ) and "no server with the GeForce RTX 409" in screen_text(app)
        await press(app, pilot, "escape")
        assert isinstance(app.screen, StrategyScreen)


@pytest.mark.parametrize(
    ("gpu", "has_machine", "name", "says"),
    [
        ("NVIDIA H200", False, "dgx-h200", ""),
        ("NVIDIA H200", True, "dgx-h200", ""),
        ("", True, topology.HERE, ""),
        ("", False, "dgx-h100", "no GPU in this machine or run: dgx-h100 as an example"),
        ("GeForce RTX 4090", False, "dgx-h100", "no server with the GeForce RTX 4090 is known"),
    ],
)
def test_it_begins_with_the_hardware_at_hand(gpu, has_machine, name, says):
    machine = presets.topology(presets.find("dgx-h100")) if has_machine else None
    start = topology.start_at(gpu, machine)
    assert start.listed[start.index].name == name
    assert start.note.startswith(says) and bool(start.note) == bool(says)
