"""Every reader of a GPU sees the same figures: catalog, report, estimator, planner."""

import pytest

from gputop_analysis import catalog
from gputop_analysis.catalog.listing import listed
from gputop_analysis.planner.hardware import cluster, device
from gputop_analysis.vram.fits import Need, fits
from gputop_analysis.vram.setup import Setup

ROWS = {row.spec.name: row.to_json() for row in listed()}


@pytest.mark.parametrize("spec", catalog.gpus(), ids=lambda spec: spec.name)
def test_each_consumer_sees_equal_figures(spec: catalog.GpuSpec):
    shown, planned = ROWS[spec.name], device(spec.name)
    assert planned.spec is spec is catalog.gpu(spec.name) is catalog.find_gpu(spec.name)
    assert planned.usable_bytes == spec.usable_bytes == int(shown["usable_gib"] * 2**30)
    assert planned.bytes_per_s == pytest.approx(1e9 * shown["bandwidth_gb_per_s"])
    for kind, tflops in shown["dense_tflops"].items():
        if kind != "tf32":
            assert planned.flops(kind) == pytest.approx(1e12 * tflops)
    if shown["multiprocessors"]:
        assert planned.multiprocessors == shown["multiprocessors"]


def test_the_estimator_offers_the_memory_of_the_catalog():
    offered = {fit.gpu: fit.memory for fit in fits(Setup(catalog.model("gpt2")), Need(1, 1))}
    assert offered == {spec.name: spec.usable_bytes for spec in catalog.gpus() if spec.runs_torch}


@pytest.mark.parametrize("name", ["MI250X", "MI250", "K80"])
def test_a_card_of_two_devices_is_half_a_card_everywhere(name: str):
    row = next(row for row in catalog.gpus() if row.name == name)
    assert row.devices == 2
    assert device(name).bytes_per_s == pytest.approx(row.bandwidth_gb_s * 1e9)
    assert {"MI250X": 1638.5, "MI250": 1638.5, "K80": 240}[name] == row.bandwidth_gb_s


def test_a_row_of_a_benchmark_means_the_card_that_it_names():
    assert device("A100 80GB").spec is catalog.gpu("A100-SXM4-80GB")
    assert cluster("MI250X", 8).device.flops("bf16") == pytest.approx(191.5e12)


@pytest.mark.parametrize(
    ("name", "switched", "nodes_gbps"),
    [
        ("H100", True, 3200),
        ("A100-PCIe-80GB", False, 1600),
        ("V100", False, 400),
        ("MI300X", False, 3200),
        ("L4", True, 200),
    ],
)
def test_links_and_network_are_the_table_s(name: str, switched: bool, nodes_gbps: float):
    place = cluster(name, 16)
    assert place.switched is switched
    assert place.node_bytes_per_s == pytest.approx(nodes_gbps / 8 * 1e9 * 0.85)
