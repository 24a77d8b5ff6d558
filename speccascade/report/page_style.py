"""Style and script of the page; the script only shows tips."""

from speccascade.report import styles


def _theme(attribute: str, **colours: str) -> str:
  """What the page adds to the colours of `token_style`, as CSS variables."""
  for number, family in enumerate(styles.FAMILIES):
    colours[f"family-{number}"] = getattr(family, attribute)
  return ";".join(f"--{name}:{colour}" for name, colour in colours.items())


_LIGHT = _theme("colour", warn="#fff4d6", edge="#b57b00", head="#f3f5f8")
_DARK = _theme("dark", warn="#3a2f10", edge="#e0b04a", head="#22252b")
STYLE = (
  f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
"""
  + """
*{box-sizing:border-box}
body{margin:0;background:var(--sc-ground);color:var(--sc-ink);
 font:1rem/1.5 system-ui,sans-serif}
main{max-width:76rem;margin:0 auto;padding:0 1rem}
h1{font-size:1.6rem;line-height:1.25;margin:1.5rem 0 .3rem}
h2{font-size:1.25rem;margin:2.2rem 0 .4rem;overflow-wrap:anywhere}
h3{font-size:1.05rem;margin:1.4rem 0 .3rem}
h4{margin:1rem 0 .2rem}
h5{margin:.6rem 0 .2rem;font-size:.95rem;color:var(--sc-dim);font-weight:600}
.findings{display:grid;gap:0 2.5rem;
 grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr))}
.findings ul{margin:.2rem 0 .6rem}
.notice li,.notice p{max-width:none}
p,li{max-width:46rem}
ul{padding-left:1.2rem}
.dim,figcaption{color:var(--sc-dim);font-size:.9rem}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;padding:0}
a{color:inherit}
.notice{background:var(--warn);border-left:.3rem solid var(--edge);
 padding:.6rem 1rem;margin:1rem 0}
.notice p,.notice ul{margin:.3rem 0}
figure{margin:1.2rem 0}
figcaption{max-width:46rem}
.panels{display:grid;gap:1rem;
 grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr))}
.panels svg{width:100%;height:auto;max-width:36rem;display:block;
 overflow:visible;fill:var(--sc-ink)}
.point{cursor:pointer}
.point use{stroke:transparent!important;stroke-width:9px!important;
 pointer-events:all}
.families{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;
 padding:0;font-size:.9rem}
.families i{display:inline-block;width:.75em;height:.75em;border-radius:50%;
 margin-right:.4em}
.scroll{overflow-x:auto;border:1px solid var(--sc-bar);margin:.6rem 0 1.2rem;
 max-height:34rem;overflow-y:auto}
table{border-collapse:collapse;font-size:.85rem;min-width:100%}
th,td{padding:.3rem .6rem;text-align:left;white-space:nowrap;
 border-bottom:1px solid var(--sc-bar)}
thead th{background:var(--head);position:sticky;top:0;z-index:1;
 white-space:normal;min-width:4.5rem;vertical-align:bottom}
tbody th{font-weight:600}
.number{text-align:right;font-variant-numeric:tabular-nums}
details{margin:.8rem 0}
summary{cursor:pointer;font-weight:600}
#tip{position:fixed;z-index:9;max-width:min(20rem,90vw);padding:.3rem .6rem;
 background:var(--sc-ink);color:var(--sc-ground);font-size:.85rem;
 border-radius:.3rem;pointer-events:none}
#tip[hidden]{display:none}
"""
)

# Pointing at a point, or tapping it, shows its title beside it.
SCRIPT = """
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll(".point > title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
const show = (event) => {
  const point = event.target.closest && event.target.closest(".point");
  tip.hidden = !point;
  if (!point) return;
  tip.textContent = point.dataset.tip;
  const box = point.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - size.width - 8);
  const top = box.top - size.height - 6;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = (top < 0 ? box.bottom + 6 : top) + "px";
};
addEventListener("pointerover", show);
addEventListener("pointerdown", show);
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
"""
