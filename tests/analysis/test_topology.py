"""Topologies: real matrices read, presets that are consistent, and NVML's answers turned into a
matrix.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_analysis.data import table
from gputop_analysis.topology import presets, smi
from gputop_analysis.topology.model import CODES, advice, code
from gputop_analysis.topology.probed import from_probe
from gputop_analysis.topology.text import as_text
from gputop_probes import topology as probe
from gputop_probes.samplers.nvml import Nvml

TEXTS = Path(__file__).parents[1] / "topologies"
KNOWN = {
    "a100x2_della_sys": (2, ("mlx5_0", "mlx5_1"), (0, 1), ((0,), (1,))),
    "gb200_x4": (4, (), (0, 0, 1, 1), ((0, 1, 2, 3),)),
    "gpu2_node_nic_legend": (2, ("mlx5_0", "mlx5_1"), (1, 1), ((0,), (1,))),
    "old_driver_soc": (4, (), (None,) * 4, ((0,), (1,), (2,), (3,))),
    "power9_v100x4_nv3_ib": (
        4,
        ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"),
        (0, 0, 8, 8),
        ((0, 1), (2, 3)),
    ),
    "rtx3090x4_phb": (4, (), (0, 0, 1, 1), ((0,), (1,), (2,), (3,))),
    "v100x4_p3_nv1nv2": (4, (), (None,) * 4, ((0, 1, 2, 3),)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_published_matrix_is_read(name):
    one = smi.parse((TEXTS / f"{name}.txt").read_text())
    assert (len(one.gpus), one.nics, one.numa, one.islands()) == KNOWN[name]
    count = len(one.gpus) + len(one.nics)
    assert all(one.links[i][j] == one.links[j][i] for i in range(count) for j in range(count))
    assert all(one.links[i][i] == "X" for i in range(count))
    assert advice(one) and len(as_text(one, 80).splitlines()) > len(one.gpus)
    assert max(map(len, as_text(one, 80).splitlines())) <= 80
    assert json.loads(json.dumps(one.to_json()))["nvlink_islands"] == [
        list(i) for i in one.islands()
    ]


def test_a_switch_a_mesh_and_pcie_differ():
    switch, mesh, pcie = (
        smi.parse((TEXTS / f"{name}.txt").read_text())
        for name in ("gb200_x4", "v100x4_p3_nv1nv2", "old_driver_soc")
    )
    assert switch.switched and not mesh.switched and not pcie.switched
    assert (
        "up to 4" in advice(switch)[0]
        and "not alike" in advice(mesh)[0]
        and "no NVLink" in advice(pcie)[0]
    )
    assert pcie.between(0, 2) == "SYS"
    assert smi.parse((TEXTS / "power9_v100x4_nv3_ib.txt").read_text()).nearest_nic(3) == "mlx5_2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no matrix"),
        ("GPU0 GPU1\nGPU0 X NV1\n", "no row for GPU1"),
        ("GPU0 GPU1\nGPU0 X\nGPU1 NV1 X\n", "row of GPU0 has 1 links"),
        ("GPU0 GPU1\nGPU0 X FOO\nGPU1 FOO X\n", "row GPU0: 'FOO' is no link"),
    ],
)
def test_a_torn_matrix_is_refused_in_words(text, said):
    with pytest.raises(ValueError, match=said):
        smi.parse(text)


@given(
    st.lists(
        st.lists(st.sampled_from([*CODES, "NV1", "NV12"]), min_size=6, max_size=6),
        min_size=6,
        max_size=6,
    )
)
def test_what_is_printed_is_read_back(rows):
    links = [["X" if i == j else rows[min(i, j)][max(i, j)] for j in range(6)] for i in range(6)]
    text = "\t".join(["", *(f"GPU{i}" for i in range(6)), "CPU Affinity"]) + "\n"
    text += "".join(f"GPU{i}\t" + "\t".join(links[i]) + "\t0-3\n" for i in range(6))
    one = smi.parse(text)
    assert [list(row) for row in one.links] == links and sorted(sum(one.islands(), ())) == list(
        range(6)
    )


@pytest.mark.parametrize("preset", presets.PRESETS, ids=lambda preset: preset.name)
def test_a_preset_is_a_whole_matrix_of_a_known_gpu(preset):
    one = presets.topology(preset)
    count = preset.gpus + preset.nics
    assert len(one.links) == count and all(len(row) == count for row in one.links)
    assert all(
        one.links[i][j] == one.links[j][i] == code(one.links[i][j])
        for i in range(count)
        for j in range(count)
    )
    assert preset.source and (
        not preset.gpu or preset.gpu in {row["name"] for row in table("gpus.csv")}
    )
    assert presets.find(preset.name.upper()) is preset


def test_a_v100_of_the_mesh_has_its_six_links():
    one = presets.topology(presets.find("dgx-v100"))
    assert {
        sum(int(one.links[i][j][2:]) for j in range(8) if one.links[i][j].startswith("NV"))
        for i in range(8)
    } == {6}
    with pytest.raises(LookupError, match="dgx-h100"):
        presets.find("dgx-h10")


class FakeDriver:
    """Two GPUs behind a switch, and a third that hangs on PCIe alone."""

    NVML_P2P_CAPS_INDEX_READ = 0
    buses = ("00000000:17:00.0", "00000000:31:00.0", "00000000:B1:00.0")

    def nvmlDeviceGetCount(self):
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, device):
        return b"NVIDIA H100"

    def nvmlDeviceGetPciInfo(self, device):
        return SimpleNamespace(busId=self.buses[device].encode())

    def nvmlDeviceGetNvLinkState(self, device, link):
        return int(device < 2 and link < 18)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, device, link):
        return 2

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device, link):
        return SimpleNamespace(busId=b"00000000:C1:00.0")

    def nvmlDeviceGetTopologyCommonAncestor(self, first, second):
        return 50

    def nvmlDeviceGetP2PStatus(self, first, second, kind):
        return 0 if second < 2 else 5


def machine(root):
    """Sysfs of that machine: a card behind the same switch as the first GPU, and one
    that is down.
    """
    for bus, path, numa in (
        ("0000:17:00.0", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0", 0),
        ("0000:31:00.0", "pci0000:30/0000:30:01.0/0000:31:00.0", 0),
        ("0000:b1:00.0", "pci0000:b0/0000:b0:01.0/0000:b1:00.0", -1),
        ("0000:18:00.0", "pci0000:15/0000:15:01.0/0000:16:01.0/0000:18:00.0", 0),
    ):
        device = root / "devices" / path
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{numa}\n")
        (device / "local_cpulist").write_text("0-31\n")
        (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (root / "bus/pci/devices" / bus).symlink_to(device)
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = root / "class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        for file, text in (
            ("state", state),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("link_layer", "InfiniBand"),
        ):
            (port / file).write_text(text + "\n")
        (root / "class/infiniband" / name / "device").symlink_to(
            root / "bus/pci/devices/0000:18:00.0"
        )
    return root


def test_a_machine_is_read_link_by_link(tmp_path):
    nvml = Nvml.__new__(Nvml)
    nvml.module, nvml._refused = FakeDriver(), set()
    found = probe.read(nvml, machine(tmp_path))
    one = from_probe(found, "box")
    assert (
        one.islands() == ((0, 1), (2,))
        and one.between(0, 1) == "NV18"
        and one.between(0, 2) == "SYS"
    )
    assert one.nics == ("mlx5_0",) and one.nic_gbit == 400 and one.network == "InfiniBand"
    assert [one.between(gpu, 3) for gpu in range(3)] == ["PIX", "NODE", "SYS"]
    assert one.numa == (0, 0, None) and one.cpus[0] == "0-31" and one.gpu_model == "NVIDIA H100"
    assert any("0-2, 1-2" in note for note in one.notes)


def test_a_machine_without_cards_has_its_interfaces(tmp_path):
    device = tmp_path / "devices/0000:02:00.0"
    device.mkdir(parents=True)
    for name, state in (("eth0", "up"), ("eth1", "down")):
        folder = tmp_path / "class/net" / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(device)
        (folder / "operstate").write_text(state)
        (folder / "speed").write_text("25000\n")
    (tmp_path / "class/net/lo").mkdir()
    (card,) = probe.network_cards(tmp_path)
    assert (card["name"], card["kind"], card["gbit"]) == ("eth0", "Ethernet", 25.0)
