"""A hook of MkDocs: what pages need in the site and not in the repository.

CONTRIBUTING.md and CHANGELOG.md become pages. Each line of reference.md that
links a public name to its module becomes the name's signature and docstring.
"""

import json
import pathlib
import re

from mkdocs.structure.files import File

import speccascade

ROOT = pathlib.Path(__file__).parents[2]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")
# Members that a user calls, of classes with more than those.
MEMBERS = {
  "Chat": ["send"],
  "Comparison": [],
  "EarlyExit": [],
  "Generation": ["stats", "token_ids"],
  "LlamaConfig": [],
  "LlamaLM": ["create", "init"],
  "Mesh": [],
  "Pair": ["generate", "compare", "sweep", "stream", "chat"],
  "PromptLookup": [],
  "Sampling": ["of", "create"],
  "StateReader": [],
  "StateReaderConfig": [],
  "Sweep": ["figure"],
  "T5Config": [],
  "T5GemmaConfig": [],
  "T5GemmaLM": ["create", "init"],
  "T5LM": ["create", "init"],
}

_NAME = re.compile(r"^- \[`sc\.(\w+)`\]\(\.\./speccascade/.*\n", re.M)


def on_files(files, config):
  """Adds the pages that stand outside docs/."""
  for name in OUTSIDE:
    files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
  return files


def on_page_markdown(markdown, page, config, files):
  """Returns a page's text with links and names as the site has them."""
  del config, files
  path = page.file.src_uri
  if path in OUTSIDE:
    return markdown.replace("](docs/", "](")
  if path == "reference.md":
    markdown = _NAME.sub(_directive, markdown)
  for name in OUTSIDE:
    markdown = markdown.replace(f"](../{name}", f"]({name}")
  return markdown


def _directive(match: re.Match) -> str:
  """Returns what mkdocstrings replaces by a name's documentation."""
  name = match[1]
  options = {"heading": f"sc.{name}", "toc_label": name}
  if name in MEMBERS:
    members = MEMBERS[name] or False
    options |= {"members": members, "inherited_members": bool(members)}
  # JSON is YAML.
  return (
    f"\n::: {speccascade._PUBLIC[name]}.{name}\n"
    f"    options: {json.dumps(options)}\n\n"
  )
