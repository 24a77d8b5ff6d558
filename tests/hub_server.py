"""A small server of the hub's interface on the loopback address.

It serves repositories that a test makes, as huggingface.co does: commits,
branches, redirects of large files and of moved repositories, ranges, gated and
private repositories.
"""

import contextlib
import dataclasses
import hashlib
from http import server
import json
import pathlib
import re
import threading
import urllib.parse

import pytest

TOKEN = "hf_of_a_member"
_LARGE = 1000  # bytes of a file that is on another address


@dataclasses.dataclass
class Repo:
  """A repository: commits by their hashes, and the names of commits."""

  commits: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)
  names: dict[str, str] = dataclasses.field(default_factory=dict)
  gated: bool = False
  private: bool = False
  moved_to: str = ""

  def commit(self, files: dict[str, bytes]) -> str:
    """Adds a commit that "main" then names; returns its hash."""
    content = repr((sorted(files.items()), len(self.commits)))
    commit = hashlib.sha1(content.encode()).hexdigest()
    self.commits[commit] = files
    self.names["main"] = commit
    return commit


def files_of(folder) -> dict[str, bytes]:
  """Returns the files of a folder, by their names."""
  folder = pathlib.Path(folder)
  return {
    path.relative_to(folder).as_posix(): path.read_bytes()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }


class Hub:
  """The server; its address is `url`.

  Attributes:
    repos: {"models/org/name" or "datasets/org/name": `Repo`}.
    requests: (method, path, range) of each request, in their order.
    cut: {file: bytes after which its next answer ends}.
    held: {file: bytes after which its answers wait for `release`}.
  """

  def __init__(self):
    self.repos, self.requests = {}, []
    self.cut, self.held, self.release = {}, {}, threading.Event()
    self.waiting = threading.Event()
    handler = type("Handler", (_Handler,), {"hub": self})
    self._server = server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    self._server.daemon_threads = True
    self.url = f"http://127.0.0.1:{self._server.server_port}"

  def add(self, name, folder_or_files, kind="models", **settings) -> str:
    """Adds a repository with one commit, or a commit; returns its hash."""
    files = folder_or_files
    if not isinstance(files, dict):
      files = files_of(files)
    key = f"{kind}/{name}"
    repo = self.repos.setdefault(key, Repo(**settings))
    return repo.commit(files)

  def got(self, file: str) -> int:
    """Returns how often a file's content was asked for."""
    return sum(
      method == "GET" and path.endswith(f"/{file}")
      for method, path, _ in self.requests
    )

  @contextlib.contextmanager
  def running(self):
    """Serves during a block."""
    thread = threading.Thread(target=self._server.serve_forever, daemon=True)
    thread.start()
    try:
      yield self
    finally:
      self.release.set()
      self._server.shutdown()
      self._server.server_close()


class _Handler(server.BaseHTTPRequestHandler):
  """Answers one connection."""

  protocol_version = "HTTP/1.1"
  hub: Hub

  def log_message(self, *_):
    """Says nothing."""

  def do_HEAD(self):
    self._answer()

  def do_GET(self):
    self._answer()

  def _answer(self):
    path = urllib.parse.unquote(self.path.partition("?")[0])
    asked = (self.command, path, self.headers.get("Range"))
    self.hub.requests.append(asked)
    if path.startswith("/stored/"):
      _, _, digest, file = path.split("/", 3)
      # Signed addresses are of another host, which must not see a token.
      if "Authorization" in self.headers:
        return self._fail(400, "SignedUrlWithToken")
      for repo in self.hub.repos.values():
        for files in repo.commits.values():
          content = files.get(file)
          if content and hashlib.sha256(content).hexdigest() == digest:
            return self._send(content, {}, file)
      return self._fail(404, "EntryNotFound")
    found = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(/.*)?", path)
    if found:
      return self._api(*found.groups())
    found = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/(.+)", path)
    if found:
      kind = "datasets" if found[1] else "models"
      return self._file(kind, found[2], found[3])
    return self._fail(404, "RepoNotFound")

  def _repo(self, kind, name):
    """Returns a repository that may be seen; else answers why not."""
    if "Authorization" in self.headers and not self._is_member():
      message = "Invalid credentials in Authorization header"
      self._fail(401, None, {"X-Error-Message": message})
      return None
    repo = self.hub.repos.get(f"{kind}/{name}")
    if repo is None or (repo.private and not self._is_member()):
      self._fail(401, None)  # the hub does not say which of the two
      return None
    if repo.moved_to:
      place = self.path.replace(name, repo.moved_to, 1)
      self._send(b"", {"Location": place}, status=307)
      return None
    return repo

  def _is_member(self) -> bool:
    return self.headers.get("Authorization") == f"Bearer {TOKEN}"

  def _api(self, kind, name, rest):
    repo = self._repo(kind, name)
    if repo is None:
      return
    rest = (rest or "/revision/main").lstrip("/")
    what, _, revision = rest.partition("/")
    commit = repo.names.get(revision, revision)
    if commit not in repo.commits:
      return self._fail(404, "RevisionNotFound")
    files = repo.commits[commit]
    if what == "tree":
      value = [self._entry(file, content) for file, content in files.items()]
    else:
      siblings = [{"rfilename": file} for file in files]
      value = {"id": name, "sha": commit, "siblings": siblings}
      value |= {"gated": "auto" if repo.gated else False, "private": False}
    self._send(json.dumps(value).encode(), {"Content-Type": "application/json"})

  def _entry(self, file, content):
    entry = {"type": "file", "path": file, "size": len(content)}
    entry["oid"] = hashlib.sha1(content).hexdigest()
    if len(content) >= _LARGE:
      digest = hashlib.sha256(content).hexdigest()
      entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
    return entry

  def _file(self, kind, name, rest):
    repo = self._repo(kind, name)
    if repo is None:
      return
    if repo.gated and not self._is_member():
      return self._fail(401, "GatedRepo")
    revisions = sorted([*repo.names, *repo.commits], key=len, reverse=True)
    for revision in revisions:
      if rest.startswith(f"{revision}/"):
        file = rest.removeprefix(f"{revision}/")
        break
    else:
      return self._fail(404, "RevisionNotFound")
    commit = repo.names.get(revision, revision)
    content = repo.commits[commit].get(file)
    headers = {"X-Repo-Commit": commit}
    if content is None:
      return self._fail(404, "EntryNotFound", headers)
    if len(content) < _LARGE:
      headers["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
      return self._send(content, headers, file)
    digest = hashlib.sha256(content).hexdigest()
    headers["X-Linked-ETag"] = f'"{digest}"'
    headers["X-Linked-Size"] = str(len(content))
    # Another host to the client, which leaves its token out.
    at = self.hub.url.replace("127.0.0.1", "localhost")
    headers["Location"] = f"{at}/stored/{digest}/{file}"
    self._send(b"", headers, status=302)

  def _fail(self, status, code, headers=None):
    headers = {**(headers or {})}
    if code:
      headers["X-Error-Code"] = code
    self._send(b'{"error": "no"}', headers, status=status)

  def _send(self, content, headers, file="", status=200):
    span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
    whole = len(content)
    if span and file:
      first, last = int(span[1]), int(span[2] or whole - 1)
      content, status = content[first : last + 1], 206
      last = first + len(content) - 1
      headers = {**headers, "Content-Range": f"bytes {first}-{last}/{whole}"}
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header("Content-Length", str(len(content)))
    self.send_header("Accept-Ranges", "bytes")
    self.end_headers()
    if self.command == "HEAD":
      return
    with contextlib.suppress(ConnectionError):
      if (most := self.hub.cut.pop(file, None)) is not None:
        self.wfile.write(content[:most])
        self.close_connection = True
        return
      if (most := self.hub.held.get(file)) is not None:
        self.wfile.write(content[:most])
        self.wfile.flush()
        self.hub.waiting.set()
        self.hub.release.wait()
        content = content[most:]
      self.wfile.write(content)


@pytest.fixture
def served():
  """A running server without repositories."""
  with Hub().running() as served:
    yield served


@pytest.fixture
def client(served, tmp_path, monkeypatch):
  """Makes this process ask the server, with an empty cache."""
  from huggingface_hub import constants

  from speccascade.checkpoints import hub

  point_at(monkeypatch, served.url, tmp_path / "cache")
  monkeypatch.delenv("HF_TOKEN", raising=False)
  monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
  monkeypatch.chdir(tmp_path)
  yield constants
  hub.forget()


def point_at(monkeypatch, url, cache):
  """Makes this process ask a server, and use a cache."""
  from huggingface_hub import constants

  from speccascade.checkpoints import hub

  hub.forget()
  template = url + "/{repo_id}/resolve/{revision}/{filename}"
  monkeypatch.setattr(constants, "ENDPOINT", url)
  monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
