"""The style of `token_view`: Okabe and Ito's colours, light and dark.

Every kind of token has an underline of its own, so that nothing is told by
colour alone. Sizes are relative: a notebook's font is kept.
"""

# Kind -> (tint, line) in light, in dark, and the underline.
_KINDS = {
  "draft": (("#dbe9f6", "#0072b2"), ("#17354d", "#56b4e9"), "solid 2px"),
  "kept": (("#fff1a6", "#7a6000"), ("#4b4200", "#f0e442"), "solid 2px"),
  "copy": (("#e3e4e8", "#50545c"), ("#33363d", "#b4b9c2"), "dotted 4px"),
  "residual": (("#fcdccb", "#c24f00"), ("#55290d", "#ff8f52"), "double 4px"),
  "bonus": (("#cdeee2", "#007455"), ("#0d4434", "#2fc79a"), "dashed 2px"),
  "seq-q": (("#dbe9f6", "#0072b2"), ("#17354d", "#56b4e9"), "dotted 2px"),
  "seq-p": (("#f6dcea", "#9c3d70"), ("#4a2440", "#e39bc3"), "solid 4px"),
}
# The rest, in light and in dark.
_PLAIN = {
  "ground": ("#ffffff", "#17191d"),
  "ink": ("#1c1d20", "#e9eaec"),
  "dim": ("#5a5e66", "#a7acb5"),
  "edge": ("#8b9099", "#7d838d"),
  "bar": ("#d9dde3", "#3a4049"),
  "card": ("#ffffff", "#22252b"),
}


def _variables(theme: int) -> str:
  """The colours of a theme, 0 light and 1 dark, as CSS variables."""
  values = {name: colours[theme] for name, colours in _PLAIN.items()}
  for name, colours in _KINDS.items():
    values[name], values[f"{name}-line"] = colours[theme]
  return ";".join(f"--sc-{name}:{value}" for name, value in values.items())


def _kind(name: str, underline: str) -> str:
  line = f"{underline} var(--sc-{name}-line)"
  return f".sc-{name}{{background:var(--sc-{name});border-bottom:{line}}}"


_RULES = """
.sc-view{background:var(--sc-ground);color:var(--sc-ink);padding:.75em;
 padding-bottom:16em;line-height:1.5;box-sizing:border-box;max-width:72em;
 text-align:start;container-type:inline-size}
.sc-view *{box-sizing:border-box}
.sc-page{margin:0;background:var(--sc-ground);color:var(--sc-ink);
 font-family:system-ui,sans-serif}
.sc-page main{max-width:72em;margin:0 auto;padding:.25em}
.sc-page h1{font-size:1.35em;margin:.6em .55em 0;overflow-wrap:anywhere}
.sc-legend{list-style:none;display:flex;flex-wrap:wrap;gap:.4em 1.4em;margin:0;
 padding:0 0 .8em;font-size:.875em;color:var(--sc-dim);
 border-bottom:1px solid var(--sc-bar)}
.sc-legend .sc-token{color:var(--sc-ink);cursor:auto;padding:0 .25em}
.sc-record{position:relative;padding:.7em 0;
 border-bottom:1px solid var(--sc-bar)}
.sc-record p{margin:0;overflow-wrap:anywhere}
.sc-dim{color:var(--sc-dim);font-size:.8125em}
.sc-text{margin:.3em 0;max-width:44em;line-height:2.1;white-space:pre-wrap;
 overflow-wrap:anywhere}
.sc-block{border-inline-start:2px solid var(--sc-edge);margin-inline-start:3px}
.sc-block::before{content:attr(data-block);color:var(--sc-dim);
 font-size:.625em;vertical-align:.75em;padding:0 .15em}
.sc-token{color:inherit;padding-bottom:1px;cursor:pointer;
 margin-inline-end:1px;-webkit-box-decoration-break:clone;
 box-decoration-break:clone}
.sc-kept{outline:2px solid var(--sc-kept-line);outline-offset:-1px;
 font-weight:700}
.sc-special{font-family:ui-monospace,monospace;font-size:.8em;
 border:1px dotted var(--sc-edge);border-radius:3px;padding:0 .2em}
.sc-token:focus-visible,.sc-text .sc-token:hover{
 outline:2px solid var(--sc-ink);outline-offset:1px}
.sc-card{display:none;position:absolute;z-index:9;inset-inline-start:0;
 margin-top:.3em;width:24em;max-width:100%;padding:.6em .7em;
 background:var(--sc-card);color:var(--sc-ink);font-size:.8125rem;
 font-weight:400;line-height:1.45;white-space:normal;text-align:start;
 border:1px solid var(--sc-edge);border-radius:6px;
 box-shadow:0 4px 16px #0004;pointer-events:none;cursor:auto}
.sc-text .sc-token:hover>.sc-card,.sc-token:focus>.sc-card{display:block}
.sc-text:has(.sc-token:hover) .sc-token:focus:not(:hover)>.sc-card{display:none}
.sc-card i{color:var(--sc-dim);font-style:normal}
.sc-line{display:block}
.sc-tops{display:grid;grid-template-columns:1fr 1fr;gap:.7em;margin-top:.4em}
.sc-top{display:block;min-width:0}
.sc-row{display:flex;justify-content:space-between;gap:.5em;
 margin-bottom:1px;padding:0 .2em;font-variant-numeric:tabular-nums;
 background:linear-gradient(90deg,var(--sc-bar) var(--p,0%),transparent 0)}
.sc-row:first-child{color:var(--sc-dim)}
.sc-here{font-weight:700;box-shadow:inset 3px 0 var(--sc-ink);
 padding-inline-start:.5em}
.sc-piece{white-space:pre;overflow:hidden;text-overflow:ellipsis}
@container (min-width:70em){.sc-text .sc-token{position:relative}
 .sc-text .sc-token .sc-card{max-width:none}}
@media print{.sc-card{display:none!important}.sc-view{padding-bottom:0}}
"""

STYLE = (
  f":root{{{_variables(0)}}}"
  f"@media(prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}"
  + "".join(_kind(name, style) for name, (*_, style) in _KINDS.items())
  + _RULES
)
