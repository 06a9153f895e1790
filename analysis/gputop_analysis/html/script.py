"""The page's only script: a crosshair with values, a legend that switches series, sortable tables.

The page reads without it. It asks nobody for anything; the page's policy allows this text alone, by
its hash, so that nothing that a record holds can run.
"""

from __future__ import annotations

import base64
import hashlib

SCRIPT = """
"use strict";
(() => {
  const tip = document.createElement("div");
  tip.className = "tip"; tip.hidden = true; document.body.append(tip);
  const digits = v => Math.abs(v) >= 1e4 ? Math.round(v).toLocaleString("en")
    : String(Number(v.toPrecision(4)));
  for (const svg of document.querySelectorAll("svg[data-chart]")) {
    const c = JSON.parse(svg.dataset.chart), off = new Set();
    const inner = c.width - c.left - c.right, tall = c.height - c.top - c.bottom;
    const x = v => c.left + (v - c.x_from) / ((c.x_to - c.x_from) || 1) * inner;
    const y = v => c.height - c.bottom - tall *
      Math.min(1, Math.max(0, (v - c.y_from) / ((c.y_to - c.y_from) || 1)));
    const cross = document.createElementNS(svg.namespaceURI, "line");
    cross.setAttribute("class", "cross"); cross.setAttribute("y1", c.top);
    cross.setAttribute("y2", c.height - c.bottom); cross.style.display = "none";
    svg.append(cross);
    const leave = () => { cross.style.display = "none"; tip.hidden = true; };
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width * c.width;
      const value = c.x_from + (at - c.left) / inner * (c.x_to - c.x_from);
      let near = 0;
      c.xs.forEach((v, i) => {
        if (Math.abs(v - value) < Math.abs(c.xs[near] - value)) near = i; });
      const rows = [], shown = c.series.filter(s => !off.has(s.name));
      let total = 0;
      for (const s of shown) {
        const v = s.values[near];
        if (v === null || (c.stacked && !v)) continue;
        total += v; rows.unshift(`${s.name}  ${digits(v)} ${c.unit}`);
      }
      if (c.stacked) rows.unshift(`all shown  ${digits(total)} ${c.unit}`);
      const px = x(c.xs[near]);
      cross.setAttribute("x1", px); cross.setAttribute("x2", px); cross.style.display = "";
      const step = Math.round(c.xs[near]).toLocaleString("en");
      tip.textContent = [`step ${step}`, ...rows].join("\\n");
      tip.hidden = false;
      const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
      tip.style.left = Math.max(4, Math.min(event.clientX + 14, room)) + "px";
      tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 12) + "px";
    });
    const draw = () => {
      const below = c.xs.map(() => 0);
      for (const s of c.series) {
        const shape = svg.querySelector(`[data-series="${s.name}"]`);
        const shown = !off.has(s.name);
        shape.style.display = shown ? "" : "none";
        if (!shown) continue;
        const back = c.xs.map((v, i) => `${x(v)},${y(below[i])}`).reverse();
        const edge = c.xs.map((v, i) => `${x(v)},${y(below[i] += s.values[i] || 0)}`);
        shape.setAttribute("points", edge.concat(back).join(" "));
      }
    };
    if (!c.stacked) continue;
    for (const key of svg.closest(".two>div,section").querySelectorAll("[data-switch]")) {
      key.addEventListener("click", () => {
        const name = key.dataset.switch, hide = !off.has(name);
        if (hide) off.add(name); else off.delete(name);
        key.setAttribute("aria-pressed", String(!hide));
        draw();
      });
    }
  }
  const number = text => {
    const v = Number(text.replace(/,/g, ""));
    return text.trim() === "" || Number.isNaN(v) ? null : v;
  };
  const compare = (a, b) => {
    const p = number(a), q = number(b);
    if (p !== null && q !== null) return p - q;
    if (p !== null) return -1;
    if (q !== null) return 1;
    return a.localeCompare(b);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.tabIndex = 0;
      const sort = () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(h => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) *
          compare(a.cells[column].textContent, b.cells[column].textContent));
        table.tBodies[0].append(...rows);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", e => { if (e.key === "Enter") sort(); });
    });
  }
})();
"""

_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    f"style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'\">"
)
