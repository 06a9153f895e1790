"""What the documents name exists: pages, files, commands; and what should be short is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gputop.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PROSE = [
    page
    for page in PAGES
    if page.name not in ("findings.md", "faults.md", "vram_accuracy.md", "planner_accuracy.md")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [
        target for target in targets if "://" not in target and not (page.parent / target).exists()
    ]
    assert not missing


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_files_and_commands_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = set(re.findall(r"\b(?:bench|tests|screenshots|examples)/[\w/]+\.(?:py|svg)\b", text))
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []
    words = set(re.findall(r"(?m)(?:^|`|&& )gputop ([a-z]+)", text)) - {"help", "toy"}
    assert words <= {command.name for command in COMMANDS}


def test_the_first_pages_stay_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1000
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_parts_that_architecture_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    folders = ("analysis", "bench", "docs", "probes", "tests", "tui_app")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    places = {f"/{path.relative_to(ROOT)}" for path in files}
    named = re.findall(r"`([a-z_]+(?:/[a-z_]*)*(?:\.py)?)`", prose)
    parts = [name for name in named if "/" in name or name.endswith(".py")]
    assert len(parts) > 50
    endings = [(f"/{name.rstrip('/')}", f"/{name}.py") for name in parts]
    assert [pair for pair in endings if not any(place.endswith(pair) for place in places)] == []


def test_what_the_readme_shows_is_in_the_packaged_run(tmp_path) -> None:
    """Its first answer is the report of the bundled recording, line by line."""
    from gputop.cli.house.demo import unpack
    from gputop_analysis.report import Report
    from gputop_analysis.report.text import as_text
    from gputop_probes.record.reader import RunRecord

    shown = (
        (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .split("## Why is it slow?")[1]
        .split("```")[1]
    )
    report = as_text(Report(RunRecord.open(unpack(tmp_path))), 100).splitlines()
    lines = [line for line in shown.strip().splitlines() if line != "..."]
    assert [line for line in lines if line not in report] == []
