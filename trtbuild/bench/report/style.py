"""The style sheet of report.html: two colour schemes, one column on a phone, nothing loaded from anywhere."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#57606a;--line:#d8dee4;--card:#f6f8fa;--accent:#0a5bc4;
--good:#116932;--bad:#b3261e;--open:#8a5a00;--s0:#0067b1;--s1:#c2500a;--s2:#007f5c;--s3:#a83f82;--s4:#6b5b00;--s5:#5b4bc4;
--s6:#8c2f39;--s7:#3d6470;--m0:#0067b1;--m1:#e08a1e;--m2:#9aa5b1}
@media(prefers-color-scheme:dark){:root{--bg:#0f1419;--fg:#e6e9ec;--soft:#9aa5b1;--line:#2d353d;--card:#171d24;
--accent:#6cb0ff;--good:#57c98a;--bad:#ff8a80;--open:#f0b94e;--s0:#5cb3f5;--s1:#ff9a5c;--s2:#4fcfa3;--s3:#f08dc9;--s4:#d9c24a;
--s5:#a79bff;--s6:#f28b94;--s7:#8fc1d0;--m0:#5cb3f5;--m1:#f0a847;--m2:#5d6872}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem 1rem 4rem;max-width:72rem;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Noto Sans CJK SC",sans-serif}
h1{font-size:1.45rem;margin:0 0 .2rem;line-height:1.25}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
h3{font-size:1rem;margin:0}p{margin:.4rem 0}.soft{color:var(--soft)}
.verdict{border-left:.35rem solid var(--good);background:var(--card);padding:.9rem 1.1rem;
border-radius:.4rem;margin:1rem 0}
.verdict.none{border-color:var(--bad)}.verdict p{font-size:1.08rem;margin:0}
.verdict ul,.notes{margin:.7rem 0 0;padding-left:1.2rem}.verdict li,.notes li{margin:.25rem 0}
.alarm{color:var(--bad);font-weight:600}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:.4rem;margin:.6rem 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.93rem}
th,td{padding:.42rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{background:var(--card);font-weight:600;color:var(--soft)}tr:last-child td{border-bottom:0}
th.left,td.left{text-align:left}td:first-child,th:first-child{position:sticky;left:0;background:var(--bg)}
th:first-child{background:var(--card)}tr.ship td{font-weight:600}
.tag{display:inline-block;padding:0 .5rem;border-radius:1rem;
border:1px solid currentColor;font-size:.82rem;font-weight:600}
.pass{color:var(--good)}.fail{color:var(--bad)}.inconclusive{color:var(--open)}
.plots{display:grid;gap:1.4rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr))}
figure{margin:0;border:1px solid var(--line);border-radius:.4rem;padding:.8rem .9rem}
figcaption{color:var(--soft);font-size:.88rem;margin-top:.3rem}
figure>svg{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font-size:13px;font-family:inherit}svg text.axis,svg .note,svg .strong{fill:var(--fg)}
svg .strong{font-weight:600}svg .note{paint-order:stroke;stroke:var(--bg);stroke-width:3px}
.grid{stroke:var(--line);stroke-width:1}.line{fill:none;stroke-width:2.2}.ring{fill:none;stroke-width:2.5}
.whisker{stroke-width:1.6}.limit{stroke:var(--bad);stroke-width:1.4;stroke-dasharray:6 4}
.m0{fill:var(--m0)}.m1{fill:var(--m1)}.m2{fill:var(--m2)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.3rem 0 0;padding:0;font-size:.88rem}
.swatch{width:28px;height:10px;margin-right:.4rem;vertical-align:middle}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.2rem;margin:.5rem 0}dt{color:var(--soft)}dd{margin:0;
overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.7rem .9rem;overflow-x:auto;
font-size:.86rem;line-height:1.45}
details{margin:.6rem 0}summary{cursor:pointer;color:var(--accent)}
@media(max-width:36rem){body{padding:.9rem .8rem 3rem}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}
svg text{font-size:15px}}
@media print{body{max-width:none}.scroll{overflow:visible}}
"""
