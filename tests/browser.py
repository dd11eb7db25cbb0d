"""A headless Chromium driven through its DevTools pipe: real clicks and keys, downloads, requests, and pictures."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.processes import HANG

KEYS = {
    "ArrowDown": 40,
    "ArrowUp": 38,
    "ArrowLeft": 37,
    "ArrowRight": 39,
    "End": 35,
    "Enter": 13,
    "Escape": 27,
    "Home": 36,
    "PageDown": 34,
    "Tab": 9,
}


def find_chromium() -> str | None:
    """The path of an installed Chromium or Chrome."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


class PageError(AssertionError):
    """The page threw an error, wrote to the console, or did not do in time what was waited for."""


class Browser:
    """One Chromium process, started by ``with``; :meth:`open` shows a file in a window of a given size."""

    def __init__(self) -> None:
        chromium = find_chromium()
        if chromium is None:
            raise FileNotFoundError("No Chromium on the path.")
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4; the ends are moved above both before.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 16) for end in (to_read, to_write)]
        command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        command += ["--remote-debugging-pipe", "--disable-dev-shm-usage", "--disable-background-networking"]
        command += [f"--user-data-dir={self._folder.name}", "about:blank"]
        log = str(Path(self._folder.name) / "log")
        self._process = os.posix_spawn(
            chromium,
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setpgroup=0,
        )
        for end in (to_read, to_write, *high):
            os.close(end)
        self._unread = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of a DevTools command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        end = time.monotonic() + HANG
        while True:
            answer = self._receive(end, method)
            if answer.get("id") != self._number:
                self._events.append(answer)
            elif "error" in answer:
                raise PageError(f"{method}: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, end: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, *_ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise PageError(f"Chromium did not answer {method}.")
            self._unread += data
        first, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def events(self, session: str) -> list[dict[str, Any]]:
        """What was reported of a page so far."""
        return [event for event in self._events if event.get("sessionId") == session]

    @contextmanager
    def open(
        self,
        page: Path | str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        downloads: Path | None = None,
    ) -> Iterator[Page]:
        """A file or an address in a window of its own; fails at the end if the page had errors."""
        address = page if isinstance(page, str) else page.resolve().as_uri()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        shown = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            shown.call(f"{domain}.enable")
        shown.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        shown.call("Emulation.setEmulatedMedia", features=[scheme, still])
        if downloads:
            folder = str(downloads)
            self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder, eventsEnabled=True)
        shown.call("Page.navigate", url=address)
        shown.wait("document.readyState === 'complete' && location.protocol !== 'about:'")
        yield shown
        wrong = shown.problems()
        self.call("Target.closeTarget", targetId=target)
        if wrong:
            raise PageError("\n".join(wrong))


class Page:
    """A page that is shown."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + HANG
        while not self.run(script):
            if time.monotonic() > end:
                raise PageError(f"Waited {HANG:g} s for {script}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        found: str = self.run(f"document.querySelector({json.dumps(selector)}).textContent")
        return " ".join(found.split())

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.run(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent.trim())"
        )
        return found

    def count(self, selector: str) -> int:
        return int(self.run(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def where(self, selector: str, number: int = 0) -> tuple[float, float]:
        """The middle of an element, after scrolling to it; fails if something else lies on top."""
        found = self.run(
            f"""(() => {{
              const element = document.querySelectorAll({json.dumps(selector)})[{number}];
              if (!element) return "is not there";
              element.scrollIntoView({{ block: "nearest", inline: "nearest" }});
              const box = element.getBoundingClientRect();
              const x = box.left + box.width / 2, y = box.top + box.height / 2;
              const top = document.elementFromPoint(x, y);
              if (!top || !(element.contains(top) || top.contains(element))) return "cannot be reached";
              return [x, y];
            }})()"""
        )
        if isinstance(found, str):
            raise PageError(f"{selector} {found}")
        return found[0], found[1]

    def click(self, selector: str, number: int = 0) -> None:
        """With the mouse, in the middle of an element."""
        self.click_at(*self.where(selector, number))

    def click_at(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def drag(self, selector: str, dx: float, dy: float = 0.0) -> None:
        """Press on an element, move, and let go."""
        x, y = self.where(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        for part in (0.25, 0.5, 0.75, 1.0):
            to = {"x": x + part * dx, "y": y + part * dy}
            self.call("Input.dispatchMouseEvent", type="mouseMoved", button="left", buttons=1, **to)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x + dx, y=y + dy, button="left", clickCount=1)
        self.settle()

    def move_to(self, selector: str, number: int = 0) -> None:
        x, y = self.where(selector, number)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def press(self, key: str, times: int = 1, shift: bool = False) -> None:
        """A key of ``KEYS`` or one character, where the focus is."""
        code = KEYS.get(key) or ord(key.upper())
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        text = {"Enter": "\r"}.get(key, "" if key in KEYS else key)
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
            self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.settle()

    def type(self, selector: str, text: str) -> None:
        """Replace what stands in a text field, key by key as far as the page can tell."""
        self.click(selector)
        self.run("document.activeElement.select()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.call("Input.dispatchKeyEvent", type="keyDown", key="Delete", windowsVirtualKeyCode=46)
        self.settle()

    def choose(self, selector: str, value: str) -> None:
        """An option of a select, whose list no headless browser draws."""
        place = json.dumps(selector)
        self.run(
            f"""(() => {{
              const one = document.querySelector({place});
              one.value = {json.dumps(value)};
              for (const kind of ["input", "change"]) one.dispatchEvent(new Event(kind, {{ bubbles: true }}));
            }})()"""
        )
        self.settle()

    def settle(self) -> None:
        """Until the page has drawn twice."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def requests(self) -> list[str]:
        """Every address that the page asked for."""
        events = self.browser.events(self.session)
        return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]

    def problems(self) -> list[str]:
        """Errors and everything written to the console."""
        found = []
        for event in self.browser.events(self.session):
            details = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                thrown = details["exceptionDetails"]
                found.append(thrown.get("exception", {}).get("description", thrown["text"]))
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(" ".join(str(one.get("value", one.get("description"))) for one in details["args"]))
            elif event["method"] == "Log.entryAdded":
                found.append(details["entry"]["text"])
        return found

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is shown, or the whole page, as PNG."""
        size: dict[str, Any] = {}
        if whole:
            content = self.call("Page.getLayoutMetrics")["cssContentSize"]
            size = {"clip": {**content, "scale": 1}, "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **size)["data"]
        path.write_bytes(base64.b64decode(data))
