"""A headless Chromium, told what to do over its DevTools protocol: for tests of pages, and for their screenshots."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0",
         "--hide-scrollbars",
         "--disable-background-networking", "--disable-component-update")  # fmt: skip


class Page:
    """An open page.

    Attributes:
        problems: what it wrote to the console as an error, and what it threw.
        requests: addresses it asked for.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._sent = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol and its answer; events that come before it are noted."""
        self._sent += 1
        await self.socket.send_json({"id": self._sent, "method": method, "params": parameters})
        while True:
            said = await self.socket.receive_json(timeout=120)
            if said.get("id") == self._sent:
                assert "error" not in said, said
                return dict(said["result"])
            self._note(said)

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(told["exceptionDetails"].get("exception", told["exceptionDetails"])))
            case "Runtime.consoleAPICalled" if told["type"] == "error":
                self.problems.append(str([one.get("value", one.get("description")) for one in told["args"]]))
            case "Log.entryAdded" if told["entry"]["level"] == "error":
                self.problems.append(told["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        said = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def size(self, width: int, height: int = 900) -> None:
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                        mobile=False)  # fmt: skip

    async def colours(self, scheme: str) -> None:
        """`light` or `dark`, as the system has it."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def picture(self, path: Path, element: str = "html", height: int | None = None) -> None:
        """A PNG of an element, from its top to `height` pixels below it at most."""
        await self.run(f"document.querySelector({element!r}).scrollIntoView()")
        if element != "html":  # what sticks to the window's top would lie across the picture
            await self.run("document.querySelectorAll('nav').forEach((nav) => { nav.style.position = 'static'; })")
        await asyncio.sleep(1.0)
        box = await self.run(f"""(() => {{ const box = document.querySelector({element!r}).getBoundingClientRect();
            return [box.x + scrollX, box.y + scrollY, box.width, box.height]; }})()""")
        clip = {"x": box[0], "y": box[1], "width": box[2], "height": min(box[3], height or box[3]), "scale": 1}
        done = await self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(done["data"]))

    async def printed(self) -> bytes:
        """The page as a PDF."""
        done = await self.call("Page.printToPDF", printBackground=True)
        return base64.b64decode(done["data"])


@asynccontextmanager
async def opened(path: Path, width: int = 1280, scheme: str = "light") -> AsyncIterator[Page]:
    """A file in a browser of its own, with an empty profile; closed at the end.

    Raises:
        RuntimeError: no Chromium is installed, or it does not start.
    """
    if not CHROMIUM:
        raise RuntimeError("no Chromium is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen([CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            async with aiohttp.ClientSession() as session:
                port = (await _written(Path(profile) / "DevToolsActivePort")).split()[0]
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    tab = next(one for one in await answer.json() if one["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await page.call(f"{domain}.enable")
                    await page.size(width)
                    await page.colours(scheme)
                    await page.call("Page.navigate", url=path.absolute().as_uri())
                    await page.run(READY)
                    yield page
        finally:
            browser.terminate()
            browser.wait()


READY = """new Promise((done) => { const look = () => document.readyState === "complete" && (typeof data !== "object"
    || !data.maps.length || document.documentElement.dataset.maps) ? done(true) : setTimeout(look, 50); look(); })"""


async def _written(path: Path) -> str:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if path.exists() and (text := path.read_text()).count("\n"):
            return text
        await asyncio.sleep(0.05)
    raise RuntimeError("Chromium does not start")
