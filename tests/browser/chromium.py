"""Headless Chromium, driven over a pipe by its own protocol: needs nothing beyond the standard library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root, where Chromium has no sandbox; the page under test is our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--remote-debugging-pipe",
)
# A machine under load may take a while for one answer; one that takes longer has hung.
SECONDS = 60.0


def executable() -> str | None:
    """Where Chromium is, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one tab at a time."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Chromium reads commands from descriptor 3 and answers on 4.
            preexec_fn=lambda: _pass_on(to_browser, from_browser),
            close_fds=False,
        )
        os.close(to_browser)
        os.close(from_browser)
        os.set_blocking(self._read, False)
        self._buffer = b""
        self._next = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        (target,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come before it are kept."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._messages(f"no answer to {method}"):
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)
        raise AssertionError("unreachable")

    def open(self, url: str) -> None:
        """Load a page from its start, and wait until it is done."""
        # From an empty page, since an address that differs in its hash alone would load nothing.
        for address in ("about:blank", url):
            self.events.clear()
            loader = self.call("Page.navigate", url=address)["loaderId"]
            self._wait_for_load(loader)

    def _wait_for_load(self, loader: str) -> None:
        def done(event: dict[str, Any]) -> bool:
            facts = event.get("params", {})
            named = event.get("method") == "Page.lifecycleEvent" and facts["name"] == "load"
            return named and facts["loaderId"] == loader

        if any(done(event) for event in self.events):
            return
        for message in self._messages("the page did not load"):
            self.events.append(message)
            if done(message):
                return

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression (a promise is waited for)."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """Press and release one key, as a person would."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "/": 191}
        facts = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper())), "text": text}
        self.call("Input.dispatchKeyEvent", type="keyDown", **facts)
        self.call("Input.dispatchKeyEvent", type="keyUp", **{**facts, "text": ""})

    def click(self, x: float, y: float) -> None:
        """Click at a point of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def requests(self) -> list[str]:
        """Addresses that the page asked for since it was opened."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the page logged as errors: exceptions, and what its policy refused."""
        found = [e["params"]["exceptionDetails"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        logged = [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded"]
        return [str(f) for f in found] + [entry["text"] for entry in logged if entry["level"] == "error"]

    def close(self) -> None:
        """End the browser."""
        try:
            self._session = ""
            self.call("Browser.close")
            self._process.wait(SECONDS)
        finally:
            if self._process.poll() is None:
                self._process.kill()
            for end in (self._read, self._write):
                os.close(end)

    def _messages(self, what: str) -> Iterator[dict[str, Any]]:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            *whole, self._buffer = self._buffer.split(b"\0")
            if whole:
                self._buffer = b"\0".join([*whole[1:], self._buffer])
                yield json.loads(whole[0])
                continue
            try:
                data = os.read(self._read, 2**16)
            except BlockingIOError:
                time.sleep(0.005)
                continue
            if not data:
                raise RuntimeError(f"Chromium ended: {what}")
            self._buffer += data
        raise TimeoutError(f"{what} within {SECONDS:.0f} s")


def _pass_on(to_browser: int, from_browser: int) -> None:
    # By way of copies far above both numbers, so that neither overwrites the other.
    read, write = os.dup2(to_browser, 900), os.dup2(from_browser, 901)
    os.dup2(read, 3)
    os.dup2(write, 4)


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """A browser with a profile of its own, ended afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        one = Browser(program, Path(profile))
        try:
            yield one
        finally:
            one.close()
