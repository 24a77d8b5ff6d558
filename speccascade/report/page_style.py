"""Style and script of the page; the script shows tips and copies tables."""

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
header{display:flex;flex-wrap:wrap;gap:.1rem 2rem;align-items:baseline;
 padding-top:.6rem;font-size:.9rem}
h1{font-size:1rem;color:var(--sc-dim);margin:0}
h2{font-size:1.4rem;line-height:1.25;margin:.6rem 0 .3rem;
 overflow-wrap:anywhere}
section+section>h2{margin-top:3rem}
.lead{font-size:1.1rem;line-height:1.4;max-width:66rem;margin:.3rem 0 .6rem}
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
.about{max-width:none;margin:0;font-size:.8rem;line-height:1.4}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:0 1rem;padding:0;
 margin:0}
.files{font-size:.8rem;white-space:nowrap}
.files>*{margin-left:.4rem}
.copy{font:inherit;color:inherit;background:none;cursor:pointer;
 border:1px solid var(--sc-edge);border-radius:.25rem}
a{color:inherit}
.notice{background:var(--warn);border-left:.3rem solid var(--edge);
 padding:.6rem 1rem;margin:1rem 0}
.notice p,.notice ul{margin:.3rem 0;padding:0}
.notice li{margin-left:1.2rem}
.notice li:only-child{list-style:none;margin:0}
@media (max-width:40rem){.notice{font-size:.85rem;padding:.2rem .7rem}}
figure{margin:1.2rem 0}
.lead+figure{margin:0}
figcaption{max-width:60rem}
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
.scroll{overflow:auto;max-height:80vh;border:1px solid var(--sc-bar)}
.whole,.scroll{margin:.6rem 0 1.2rem}
table{border-collapse:collapse;font-size:.85rem;min-width:100%}
th,td{padding:.2rem .5rem;text-align:left;vertical-align:top;
 border-bottom:1px solid var(--sc-bar)}
thead th{background:var(--head);position:sticky;top:0;z-index:1;
 vertical-align:bottom}
tbody th{font-weight:600;white-space:nowrap}
.number{text-align:right;font-variant-numeric:tabular-nums}
.number small{display:block;color:var(--sc-dim);white-space:nowrap}
/* Where a table would not fit, each of its lines is a card. */
@media (max-width:64rem){
.whole :is(table,tbody,tr,td,tbody th){display:block}
.whole thead{display:none}
.whole tr{display:grid;gap:0 1rem;padding:.4rem 0;
 grid-template-columns:repeat(auto-fill,minmax(13rem,1fr));
 border-bottom:1px solid var(--sc-bar)}
.whole tbody th{grid-column:1/-1}
.whole :is(th,td){border:0;padding:.05rem 0;text-align:left}
.whole td::before{content:attr(data-title) ": ";color:var(--sc-dim)}
.whole .number small{display:inline}
}
details{margin:.8rem 0}
summary{cursor:pointer;font-weight:600}
#tip{position:fixed;z-index:9;max-width:min(20rem,90vw);padding:.3rem .6rem;
 background:var(--sc-ink);color:var(--sc-ground);font-size:.85rem;
 border-radius:.3rem;pointer-events:none}
#tip[hidden]{display:none}
"""
)

# Pointing at a point, or tapping it, shows its title beside it. A table is
# copied as a spreadsheet takes it.
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
for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const { rows } = button.closest(".with-table").querySelector("table");
    const text = [...rows].map((row) => [...row.cells].map(
      (cell) => cell.textContent.trim()).join("\\t")).join("\\n");
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed here";
    }
  });
}
"""
