"""A picture of a piece of an exported timeline: ranks and profiles as lanes, slices as boxes.

python bench/timeline_picture.py run.perfetto.json docs/neighbours/perfetto.svg [--from MS --to MS]
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path

_WIDTH, _LANE, _LABEL, _MARGIN = 1100, 20, 190, 8
_COLOURS = ("#5e81ac", "#a3be8c", "#ebcb8b", "#b48ead", "#d08770", "#88c0d0", "#bf616a", "#81a1c1")
_MOST_LANES = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("timeline", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--from", dest="start", type=float, default=0.0, help="milliseconds")
    parser.add_argument("--to", dest="end", type=float, default=200.0, help="milliseconds")
    options = parser.parse_args()
    events = json.loads(options.timeline.read_text())["traceEvents"]
    options.picture.write_text(drawn(events, options.start * 1000, options.end * 1000))


def drawn(events: list[dict], start: float, end: float) -> str:
    """The slices between two times in microseconds."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    owners = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    lanes: dict[tuple, list[dict]] = {}
    slices = [e for e in events if e.get("ph") == "X" and start <= e["ts"] < end]
    for event in sorted(slices, key=lambda e: (e["pid"], str(e["tid"]), e["ts"], -e["dur"])):
        track = (event["pid"], event["tid"])
        depth = 0
        while any(
            event["ts"] + 1 < o["ts"] + o["dur"] for o in lanes.get((*track, depth), ())[-1:]
        ):
            depth += 1
        lanes.setdefault((*track, depth), []).append(event)
    shown = sorted(lanes, key=str)[:_MOST_LANES]
    parts = [
        part for row, lane in enumerate(shown) for part in _boxes(row, lanes[lane], start, end)
    ]
    for row, (pid, tid, depth) in enumerate(shown):
        words = f"{owners.get(pid, pid)} {names.get((pid, tid), '')}" if depth == 0 else ""
        parts.append(f'<text x="4" y="{row * _LANE + 14 + _MARGIN}">{escape(words[:27])}</text>')
    height = len(shown) * _LANE + 2 * _MARGIN
    style = (
        "text { font: 11px ui-monospace, Consolas, monospace; fill: #d8dee9 } .in { fill: #111 }"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}">',
            f'<style>{style}</style><rect width="100%" height="100%" fill="#242933"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _boxes(row: int, lane: list[dict], start: float, end: float) -> list[str]:
    scale = (_WIDTH - _LABEL - _MARGIN) / (end - start)
    parts = []
    for event in lane:
        x = _LABEL + (event["ts"] - start) * scale
        width = min(event["dur"], end - event["ts"]) * scale
        if width < 0.4:
            continue
        colour = _COLOURS[sum(map(ord, event["name"])) % len(_COLOURS)]
        y = row * _LANE + _MARGIN
        box = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_LANE - 3}" fill="{colour}"'
        parts.append(f"<rect {box}/>")
        fits = event["name"][: int(width / 7)]
        if len(fits) > 3:
            words = escape(fits)
            parts.append(f'<text class="in" x="{x + 2:.1f}" y="{y + 13}">{words}</text>')
    return parts


if __name__ == "__main__":
    main()
