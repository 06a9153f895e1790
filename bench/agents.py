"""Every tool of `gputop mcp` on many records, by the official client.

    python bench/agents.py RUN...

Each record is asked as it is, and as a copy with a torn table, a torn list of events and a manifest
that is no JSON. Prints how many answers there were, the longest in bytes, and how many were errors;
fails where an answer is longer than 2,000 bytes, is no JSON, or a schema is invalid.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import jsonschema
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

LIMIT_BYTES = 2000


def main() -> None:
    runs = [Path(word) for word in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        records = [copy for run in runs for copy in (run, *damaged(run, Path(folder)))]
        asyncio.run(ask(records))


def damaged(run: Path, folder: Path) -> list[Path]:
    """Copies of a record with one thing broken each."""
    copies = []
    for kind, pattern in (("rows", "*.bin"), ("events", "*.jsonl"), ("manifest", "run.json")):
        copy = folder / f"{run.parent.name}-{kind}"
        shutil.copytree(run, copy)
        for file in list(copy.rglob(pattern))[:1]:
            data = file.read_bytes()
            file.write_bytes(data[: len(data) // 2] + b"\xff{torn\x00")
        copies.append(copy)
    return copies


async def ask(records: list[Path]) -> None:
    """Call every tool on every record."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "gputop", "mcp"], env=dict(os.environ)
    )
    counts: Counter[str] = Counter()
    longest = 0
    async with stdio_client(server) as (reads, writes), ClientSession(reads, writes) as session:
        await session.initialize()
        listed = (await session.list_tools()).tools
        for tool in listed:
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        for record in records:
            for name, words in calls(str(record), {tool.name for tool in listed}):
                (content,) = (await session.call_tool(name, words)).content
                size = len(content.text.encode())
                longest = max(longest, size)
                assert size <= LIMIT_BYTES, (record, name, size)
                answer = json.loads(content.text)
                counts["error" if "error" in answer else "answer"] += 1
                if "error" in answer:
                    print(f"{record.name}: {name}: {answer['error'][:150]}", file=sys.stderr)
    figures = {"records": len(records), "tools": len(listed), "longest_bytes": longest}
    print(json.dumps({"bench": "agents", **figures, **counts}))


def calls(run: str, names: set[str]) -> list[tuple[str, dict]]:
    """The tools that read a run, with their arguments."""
    finding = {"run": run, "finding": "IN02"}
    wanted = {
        "runs": {},
        "verdict": {"run": run},
        "findings": {"run": run},
        "explain": finding,
        "evidence": finding,
        "diff": {"a": run, "b": run},
        "profile": {"run": run},
    }
    assert wanted.keys() < names
    return list(wanted.items())


if __name__ == "__main__":
    main()
