"""The page's style sheet: one column of cards, charts in the reader's light or dark."""

from __future__ import annotations

from gputop_analysis.html.colours import DARK, LIGHT, variables

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--text);
 font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
  font-variant-numeric:tabular-nums}
main{max-width:1120px;margin:0 auto;padding:36px 24px 56px}
h1,h2,h3,p{margin:0}
h1{font-size:26px;line-height:1.3;color:var(--strong);font-weight:650;letter-spacing:-.01em;
  overflow-wrap:anywhere}
h2{font-size:17px;color:var(--strong);font-weight:650;margin-bottom:4px}
h3{font-size:14px;color:var(--strong);font-weight:600;margin:14px 0 6px}
code,.mono{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
  overflow-wrap:anywhere}
a{color:var(--accent)}
.brand{color:var(--muted);font-size:13px;letter-spacing:.04em;margin-bottom:10px}
.brand b{color:var(--accent);font-weight:650}
.command{color:var(--muted);margin-top:10px;display:block}
section{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:20px 22px;
  margin-top:18px}
.note{color:var(--muted);font-size:13px;margin-bottom:12px}
.chips{display:flex;flex-wrap:wrap;gap:8px;margin-top:14px}
.chip{border:1px solid var(--rule);border-radius:999px;padding:2px 12px;font-size:13px;
  background:var(--inset)}
.chip b{color:var(--strong);font-weight:600}
.verdict{border-left:5px solid var(--c)}
.first{margin-top:16px;padding:14px 16px;border-radius:8px;background:var(--inset)}
.first .label{color:var(--c);font-weight:650;font-size:13px;margin-bottom:4px}
.first .won{color:var(--muted);font-size:13px;margin-top:6px}
.tiles{display:grid;grid-template-columns:repeat(var(--columns),1fr);gap:12px;margin-top:18px}
.two .tiles{grid-template-columns:1fr 1fr}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:14px 16px}
.tile .k{color:var(--muted);font-size:12.5px}
.tile .v{color:var(--strong);font-size:22px;font-weight:650;line-height:1.35;
  letter-spacing:-.01em;white-space:nowrap}
.tile .v small{font-size:13px;color:var(--muted);font-weight:500;margin-left:4px}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:0 18px}
@media(max-width:820px){.pair{grid-template-columns:1fr}}
table{border-collapse:collapse;width:100%;font-size:13.5px}
.scroll{overflow-x:auto}
th{color:var(--muted);font-weight:500;text-align:right;padding:5px 10px;
  border-bottom:1px solid var(--rule);
 white-space:nowrap}
td{text-align:right;padding:5px 10px;border-bottom:1px solid var(--rule);vertical-align:top}
tr:last-child td{border-bottom:0}
td:not(.l):not(:first-child),td:has(.key){white-space:nowrap}
th:first-child,td:first-child,.l{text-align:left}
td.l{overflow-wrap:anywhere}
td:first-child,th:first-child{padding-left:0}
.key{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:9px;
  background:var(--c)}
.meter{display:block;height:8px;border-radius:4px;background:var(--inset);min-width:120px;
  margin-top:6px}
.meter i{display:block;height:8px;border-radius:4px;background:var(--c);min-width:1px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--muted);font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
 font-variant-numeric:tabular-nums}
svg text.on{fill:#fff;font-weight:600;paint-order:stroke;stroke:rgba(0,0,0,.45);
  stroke-width:2.5px}
svg text.halo{fill:var(--strong);paint-order:stroke;stroke:var(--card);stroke-width:3px}
svg .grid{stroke:var(--rule);stroke-width:1}
svg .cross{stroke:var(--strong);stroke-opacity:.55;pointer-events:none}
.chart{position:relative;overflow-x:auto}
.tip{position:fixed;z-index:9;pointer-events:none;background:var(--inset);color:var(--text);
  border:1px solid var(--rule);border-radius:6px;padding:6px 10px;font-size:12px;white-space:pre;
  box-shadow:0 2px 8px rgba(0,0,0,.25)}
.tip[hidden]{display:none}
.legend button{all:unset;cursor:pointer}
.legend button:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.legend button[aria-pressed=false]{opacity:.4;text-decoration:line-through}
.sortable th{cursor:pointer}
.sortable th[aria-sort=ascending]::after{content:" \\25b2"}
.sortable th[aria-sort=descending]::after{content:" \\25bc"}
.subtitle{color:var(--text);margin-top:8px;overflow-wrap:anywhere}
.saved{color:var(--good);font-weight:600;margin-top:8px}
.two{display:grid;grid-template-columns:1fr 1fr;gap:0 18px;align-items:start}
@media(max-width:820px){.two{grid-template-columns:1fr}}
@media(max-width:600px){main{padding:20px 10px 40px}td:has(.meter){display:none}
 td:has(.key){white-space:normal;overflow-wrap:break-word}th,td{padding-left:5px;padding-right:5px}
 section{padding:14px 12px}h1{font-size:22px}
 .tiles{grid-template-columns:1fr 1fr}
 .tiles .tile:last-child:nth-child(odd){grid-column:1/-1}
 td.l:first-child{overflow-wrap:normal}.wide svg{min-width:680px}svg text{font-size:15px}
 dl{grid-template-columns:1fr}dd{margin-bottom:6px}}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--muted);margin:0 0 8px}
.finding{border:1px solid var(--rule);border-left:4px solid var(--c);border-radius:8px;
  padding:14px 16px;
 margin-top:12px}
.finding .head{display:flex;gap:10px;align-items:baseline;flex-wrap:wrap}
.finding .id{color:var(--c);font-weight:650;font-size:13px;white-space:nowrap}
.finding .title{color:var(--strong);font-weight:600;flex:1 1 300px}
.finding .won{color:var(--good);font-weight:600;font-size:13px;white-space:nowrap}
.finding p{margin-top:8px}
.finding .evidence{color:var(--muted);font-size:13.5px}
.fix{background:var(--inset);border-radius:6px;padding:9px 12px;margin-top:10px;
  overflow-wrap:anywhere}
details{margin-top:10px;font-size:13.5px}
summary{cursor:pointer;color:var(--accent);font-size:13px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:10px 0 0;
  font-size:13.5px}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere}
.fix code,.first code,.evidence code{
  font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.none{color:var(--muted);margin-top:8px}
pre{overflow-x:auto;font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
  margin:10px 0 0}
footer{color:var(--muted);font-size:12.5px;margin-top:22px}
@media print{body{background:#fff}section,.tile{break-inside:avoid}details{display:none}}
"""

_JOINED_RULES = _RULES.replace("\n  ", "")
"""A line that begins with two spaces continues the one before."""

STYLE = (
    f":root{{color-scheme:light dark;{variables(LIGHT)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
    f"{_JOINED_RULES}"
)
