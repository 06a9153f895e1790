"""Readers of logs of GPUs: the values of each sample, by GPU and field.

``nvidia-smi`` as a table, ``-q``, ``--query-gpu ... --format=csv``, ``dmon`` and ``pmon``; ``dcgmi
dmon`` and what DCGM's exporter serves; ``rocm-smi``, also with ``--csv``, and ``amd-smi ...
--csv``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from gputop_analysis.evidence.clock_limits import with_limits
from gputop_analysis.evidence.gpu_samples import NUMBER, SAMPLES_AT_MOST, Samples, add
from gputop_analysis.evidence.pages import is_page, read_pages
from gputop_analysis.evidence.processes import is_of_processes, read_processes
from gputop_analysis.evidence.rocm_tables import is_title, read_rocm_tables
from gputop_analysis.units import MIB

_HEAD_LINES = 40
HEAD = 8000
"""Characters by whose lines a log is told."""
_TITLES = {
    "utilization": ("utilization.gpu", "GPUTL", "sm", "GRACT", "DCGM_FI_DEV_GPU_UTIL"),
    "clock": (
        "clocks.sm",
        "clocks.current.sm",
        "clocks.gr",
        "clocks.current.graphics",
        "SMCLK",
        "pclk",
        "DCGM_FI_DEV_SM_CLOCK",
    ),
    "power": (
        "power.draw",
        "power.draw.instant",
        "power.draw.average",
        "POWER",
        "pwr",
        "DCGM_FI_DEV_POWER_USAGE",
    ),
    "temperature": ("temperature.gpu", "TMPTR", "gtemp", "temp", "DCGM_FI_DEV_GPU_TEMP"),
    "memory": ("memory.used", "FBUSD", "fb", "DCGM_FI_DEV_FB_USED"),
}
"""Titles of columns, those that are preferred first."""
_AMD_TITLES = {
    "utilization": ("GPU use (%)", "gfx_activity"),
    "clock": ("sclk clock speed:", "gfx_0_clk", "gfx_clk"),
    "power": (
        "Average Graphics Package Power (W)",
        "Current Socket Graphics Package Power (W)",
        "socket_power",
    ),
    "temperature": (
        "Temperature (Sensor edge) (C)",
        "Temperature (Sensor junction) (C)",
        "edge",
        "hotspot",
    ),
    "memory": ("VRAM Total Used Memory (B)", "used_vram"),
}
_PARTS = ("GRACT",)
"""Titles of shares that are told as parts of one."""
_BYTES = "(B)"
_NAMES = ("index", "gpu", "device", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
"""Columns that tell which GPU; the first that is there names it."""
_MODELS = ("name", "gpu_name")
_ENTITY = re.compile(r"(?:^|\s)(GPU|GPU-I|GPU-CI|vGPU) (\d{1,6})(?=\s)")
_EXPORTED = re.compile(r"(DCGM_FI_\w{1,60})\{([^}]{1,2000})\} +(\S{1,40})")
_EXPORTED_GPU = re.compile(r"""(?:^|,)gpu="(\d{1,6})\"""")
_AMD_LINE = re.compile(r"GPU\[(\d{1,4})\]\s{1,20}: ([^:]{1,80}): {1,10}(\S{1,40})")
_TABLE_GPU = re.compile(r"\|\s{1,6}(\d{1,3})\s{1,4}\S[^|]{0,60}\|\s{1,6}[0-9A-Fa-f]{4,8}:")
_TABLE_VALUES = re.compile(
    r"\|\s{0,4}(?:\d{1,3}%|N/A|ERR!)\s{1,8}(?P<temperature>\d{1,3}|\D{3,4})C?\s{1,8}P?\S{1,3}\s{1,14}"
    r"(?P<power>\d{1,5}|\D{3,4})W?\s{0,3}/\s{0,6}\S{1,6}\s{0,3}\|\s{0,12}"
    r"(?P<memory>\d{1,8})MiB\s{0,3}/[^|]{0,20}\|\s{0,12}(?P<utilization>\d{1,3}|N/A)"
)
_NVIDIA, _DCGM, _AMD = "nvidia-smi log", "DCGM log", "rocm-smi log"

Titles = Mapping[str, tuple[str, ...]]


def is_log(head: str) -> bool:
    """Whether the beginning of a file is of such a log."""
    return _form(head) is not None


def text_of(data: bytes) -> str:
    """The text of a log; PowerShell writes what it redirects in two bytes a letter, and what a
    writer cut off after a crash begins again after zeros.
    """
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16" if wide else "utf-8-sig", "replace").replace("\0", "")


def without_header(head: str) -> bool:
    """Whether these look like rows of ``nvidia-smi --query-gpu`` whose header was left out."""
    line = head.partition("\n")[0]
    return "," in line and (" MiB" in line or " %" in line) and bool(NUMBER.search(line))


def read_log(text: str) -> tuple[str, Samples]:
    """(Kind in words, samples) of a log; without samples where none can be read."""
    form = _form(text)
    if form is None:
        return _NVIDIA, {}
    kind, reader = _READERS[form]
    return kind, reader(text)


def _form(text: str) -> str | None:
    """Which log it is, by its first lines; a header tells more than a table."""
    if is_page(text):
        return "page"
    by_values = None
    for line in text[:HEAD].splitlines()[:_HEAD_LINES]:
        by_header = _form_of_header(line)
        if by_header is not None:
            return by_header
        by_values = _form_of_values(line) or by_values
    return by_values


def _form_of_header(line: str) -> str | None:
    """The log that such a line is the header of."""
    words = _words(line)
    if "#" in words and "Entity" in words:
        return "dcgmi"
    if is_of_processes(line):
        return "processes"
    if is_title(line):
        return "amd table"
    if words[:1] == ["#"] and "gpu" in words and _columns(words):
        return "dmon"
    if _EXPORTED.match(line):
        return "exporter"
    titles = _header(line.split(","))
    if not {"utilization", "power"}.isdisjoint(_columns(titles, _AMD_TITLES)):
        return "amd"
    if any("." in title for title in titles) and _columns(titles):
        return "query"
    return None


def _form_of_values(line: str) -> str | None:
    """The log that such a line of values is of."""
    if _TABLE_VALUES.search(line):
        return "table"
    match = _AMD_LINE.match(line)
    if match and _columns([match[2]], _AMD_TITLES):
        return "amd lines"
    return None


def _words(line: str) -> list[str]:
    return line.replace("#", " # ").replace(",", " ").split()


def _queried(text: str) -> Samples:
    return _rows(text, _TITLES)


def _amd(text: str) -> Samples:
    return _rows(text, _AMD_TITLES)


def _rows(text: str, titles: Titles) -> Samples:
    """Rows of cells below a header; one that was cut off, or has more of them than the header (a
    decimal comma), is passed over.
    """
    samples: Samples = {}
    columns: dict[str, int] = {}
    header: list[str] = []
    names: dict[tuple[str, ...], str] = {}
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    try:
        for row in islice(rows, SAMPLES_AT_MOST):
            cells = _header(row)
            if columns_here := _columns(cells, titles):  # also where a log goes on after a restart
                columns, header = columns_here, cells
            elif columns and len(header) == len(row) - _unended(row, header):
                places, cells_and_limits = with_limits(header, _in_mib(header, row), columns)
                add(samples, _named(header, row, names), places, cells_and_limits)
    except csv.Error:  # a cell without end: what came before it counts
        pass
    return samples


def _unended(row: Sequence[str], header: Sequence[str]) -> int:
    """1 for a row that ends in a comma below a header that does not."""
    return int(len(row) == len(header) + 1 and not row[-1].strip())


def _header(row: Iterable[str]) -> list[str]:
    return [cell.split(" [")[0].strip() for cell in row]


def _named(header: list[str], row: list[str], names: dict[tuple[str, ...], str]) -> str:
    """The GPU of a row, by all columns that tell it; those of one index in several machines or
    containers are told apart.
    """
    positions = [header.index(name) for name in _NAMES if name in header]
    if not positions:
        positions = [header.index(name) for name in _MODELS if name in header]
    key = tuple(row[position].strip()[:60] for position in positions)
    if key not in names:
        short = f"GPU {key[0].removeprefix('card')}" if key else "GPU"
        taken = short in names.values()
        names[key] = f"GPU {' '.join(key)}" if taken else short
    return names[key]


def _in_mib(header: list[str], row: list[str]) -> list[str]:
    """A row with its bytes in MiB."""
    cells = list(row)
    for position, title in enumerate(header):
        if title.endswith(_BYTES) and cells[position].strip().isdigit():
            cells[position] = str(int(cells[position].strip()[:18]) / MIB)
    return cells


def _amd_lines(text: str) -> Samples:
    """Lines such as ``GPU[0] : GPU use (%): 98``; each a sample of its own."""
    samples: Samples = {}
    for line in islice(io.StringIO(text), SAMPLES_AT_MOST):
        if match := _AMD_LINE.match(line):
            columns = _columns([match[2]], _AMD_TITLES)
            if columns:
                add(samples, f"GPU {match[1]}", columns, _in_mib([match[2]], [match[3]]))
    return samples


def _drawn(text: str) -> Samples:
    """The table that ``nvidia-smi`` prints, again and again: two lines a GPU."""
    samples: Samples = {}
    gpu = ""
    for line in islice(io.StringIO(text), SAMPLES_AT_MOST):
        if match := _TABLE_GPU.search(line):
            gpu = f"GPU {match[1]}"
        elif gpu and (values := _TABLE_VALUES.search(line)):
            texts = values.groupdict()
            columns = {name: position for position, name in enumerate(texts)}
            add(samples, gpu, columns, list(texts.values()))
            gpu = ""
    return samples


def _tables(text: str) -> Samples:
    """Rows below headers that begin with ``#`` and come again every some rows.

    In dcgmi's a row begins with ``GPU 0``, or an instance such as ``GPU-I 3``, in others a column
    says which GPU. What was not measured is ``N/A`` or ``-``.
    """
    samples: Samples = {}
    columns: dict[str, int] = {}
    titles_seen: list[str] = []
    starts: list[int] = []
    gpu_column: int | None = None
    for line in islice(io.StringIO(text), SAMPLES_AT_MOST):
        if "#" in line:
            begin = line.index("#")
            titles = [*re.finditer(r"[^\s#,]+", line[begin:])]
            words = [title[0] for title in titles]
            if columns_here := _columns(words):
                columns, starts = columns_here, [title.start() for title in titles]
                titles_seen = words
                gpu_column = words.index("gpu") if "gpu" in words else None
            continue
        if gpu_column is not None:
            cells = line.replace(",", " ").split()
            if gpu_column < len(cells) and cells[gpu_column].isdigit():
                add(samples, f"GPU {cells[gpu_column][:6]}", columns, cells)
        elif starts and (entity := _ENTITY.search(line)):
            row = line[entity.start(1) :]
            cells = _in_percent(titles_seen, _cells(row, starts))
            add(samples, f"{entity[1]} {entity[2]}", columns, cells)
    return samples


def _cells(row: str, starts: list[int]) -> list[str]:
    """One for the entity and one for each other column; by their places where a text has blanks."""
    first, second, *values = row.split()
    if len(values) + 1 == len(starts):
        return [f"{first} {second}", *values]
    ends = [*starts[1:], len(row)]
    return [row[start:end] for start, end in zip(starts, ends, strict=True)]


def _in_percent(titles: Sequence[str], cells: Sequence[str]) -> list[str]:
    """Cells with shares that were told as parts of one in percent."""
    shown = list(cells)
    for position, title in enumerate(titles[: len(shown)]):
        if title in _PARTS and (match := NUMBER.fullmatch(shown[position].strip())):
            shown[position] = str(100 * float(match[0]))
    return shown


def _exported(text: str) -> Samples:
    """Lines such as ``DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="..."} 98``; each a sample of its own."""
    samples: Samples = {}
    for line in islice(io.StringIO(text), SAMPLES_AT_MOST):
        match = _EXPORTED.match(line)
        gpu = _EXPORTED_GPU.search(match[2]) if match else None
        if match and gpu:
            add(samples, f"GPU {gpu[1]}", _columns([match[1]]), [match[3]])
    return samples


def _columns(header: Sequence[str], titles: Titles = _TITLES) -> dict[str, int]:
    columns = {}
    for name, preferred in titles.items():
        title = next((title for title in preferred if title in header), None)
        if title is not None:
            columns[name] = header.index(title)
    return columns


_READERS: dict[str, tuple[str, Callable[[str], Samples]]] = {
    "dcgmi": (_DCGM, _tables),
    "dmon": (_NVIDIA, _tables),
    "exporter": (_DCGM, _exported),
    "query": (_NVIDIA, _queried),
    "amd": (_AMD, _amd),
    "amd lines": (_AMD, _amd_lines),
    "amd table": (_AMD, read_rocm_tables),
    "table": (_NVIDIA, _drawn),
    "page": (_NVIDIA, read_pages),
    "processes": (_NVIDIA, read_processes),
}
