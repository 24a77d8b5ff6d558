"""Headless Chromium, driven over its DevTools pipe; nothing else is needed.

The browser is that of CHROMIUM, Debian's, or a Playwright install's.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import time

FLAGS = (
  *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
  *("--no-first-run", "--disable-background-networking", "--disable-sync"),
  *("--disable-component-update", "--hide-scrollbars", "--mute-audio"),
  *("--disable-dev-shm-usage", "--remote-debugging-pipe"),
)
# Chromium reads commands from descriptor 3 and writes to 4.
_LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
  """Returns the browser's path, or None."""
  named = os.environ.get("CHROMIUM")
  candidates = [named] if named else ["/usr/bin/chromium"]
  if not named:
    cache = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    folder = pathlib.Path(cache or pathlib.Path.home() / ".cache/ms-playwright")
    for pattern in (
      *("chromium-*/chrome-linux*/chrome",),
      *("chromium_headless_shell-*/chrome-*/*headless*shell",),
    ):
      candidates += map(str, sorted(folder.glob(pattern)))
  return next((path for path in candidates if shutil.which(path)), None)


class Browser:
  """One page; `events` holds what the browser reported since `open`."""

  def __init__(self, path: str, profile: pathlib.Path):
    self.events: list[dict] = []
    self._buffer = b""
    self._number = 0
    self._session = None
    inner_read, self._write = _pipe()
    self._read, inner_write = _pipe()
    self._process = subprocess.Popen(
      [
        *(sys.executable, "-c", _LAUNCH, str(inner_read), str(inner_write)),
        *(path, *FLAGS, f"--user-data-dir={profile}", "about:blank"),
      ],
      pass_fds=(inner_read, inner_write),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    os.close(inner_read)
    os.close(inner_write)
    try:
      targets = self.call("Target.getTargets")["targetInfos"]
      page = next(each for each in targets if each["type"] == "page")
      attached = self.call(
        "Target.attachToTarget", targetId=page["targetId"], flatten=True
      )
      self._session = attached["sessionId"]
      for domain in ("Page", "Runtime", "Network", "Log"):
        self.call(f"{domain}.enable")
    except BaseException:
      self.close()
      raise

  def call(self, method: str, timeout: float = 300, **params) -> dict:
    """Returns the result of a DevTools command."""
    self._number += 1
    message = {"id": self._number, "method": method, "params": params}
    if self._session is not None:
      message["sessionId"] = self._session
    os.write(self._write, json.dumps(message).encode() + b"\0")
    deadline = time.monotonic() + timeout
    while True:
      answer = self._receive(deadline)
      if answer.get("id") == self._number:
        if "error" in answer:
          raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]
      self.events.append(answer)

  def _receive(self, deadline: float) -> dict:
    while b"\0" not in self._buffer:
      left = deadline - time.monotonic()
      if left <= 0 or not select.select([self._read], [], [], left)[0]:
        raise TimeoutError("the browser did not answer")
      data = os.read(self._read, 1 << 16)
      if not data:
        raise ConnectionError("the browser ended")
      self._buffer += data
    line, _, self._buffer = self._buffer.partition(b"\0")
    return json.loads(line)

  def open(self, url: str, *, width: int, scheme: str = "light"):
    """Loads a page at a width in CSS pixels, on a phone where it is narrow."""
    self.events.clear()
    self.call(
      "Emulation.setDeviceMetricsOverride",
      width=width,
      height=900,
      deviceScaleFactor=1,
      mobile=width < 600,
    )
    self.call(
      "Emulation.setEmulatedMedia",
      features=[{"name": "prefers-color-scheme", "value": scheme}],
    )
    self.call("Page.navigate", url=url)
    deadline = time.monotonic() + 300
    while not self.named("Page.loadEventFired"):
      self.events.append(self._receive(deadline))

  def named(self, method: str) -> list[dict]:
    """Returns the events of a name, their parameters."""
    return [e["params"] for e in self.events if e["method"] == method]

  def evaluate(self, expression: str):
    """Returns the value of a JavaScript expression."""
    answer = self.call(
      "Runtime.evaluate", expression=expression, returnByValue=True
    )
    if "exceptionDetails" in answer:
      raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
    return answer["result"].get("value")

  @property
  def requests(self) -> list[str]:
    """The addresses asked for, those within the page aside."""
    asked = self.named("Network.requestWillBeSent")
    urls = [event["request"]["url"] for event in asked]
    return [url for url in urls if not url.startswith("data:")]

  @property
  def errors(self) -> list:
    """What went wrong, as the console would show it."""
    logged = [event["entry"] for event in self.named("Log.entryAdded")]
    said = self.named("Runtime.consoleAPICalled")
    bad = ("error", "warning")
    return [
      *self.named("Runtime.exceptionThrown"),
      *(entry for entry in logged if entry["level"] in bad),
      *(call for call in said if call["type"] in bad),
    ]

  def close(self):
    """Ends the browser."""
    with contextlib.suppress(OSError):
      os.close(self._write)
    try:
      self._process.wait(5)  # it ends with its pipe
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
    os.close(self._read)


def _pipe() -> tuple[int, int]:
  """Returns a pipe whose descriptors stay clear of 3 and 4."""
  ends = []
  for end in os.pipe():
    ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
    os.close(end)
  return tuple(ends)
