"""Pages in Chromium, at several widths of the window: what is cut, covered or wider than the window, and pictures."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
WIDTHS = (400, 1280, 1920)  # a phone's, a laptop's and a desk's window
DARK = "--blink-settings=preferredColorScheme=0"
TIMEOUT_S = 120
PATIENCE_MS = 30_000  # of the browser's own clock, which does not run while a page loads
MEASURE = Path(__file__).with_suffix(".js")

# A page is shown in frames: Chromium gives a window no less than 500 px, a frame any width.
FRAME = '<iframe src="/{}" style="width:{}px;height:{}px;border:0;display:block"></iframe>'
OUTER = '<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">{}<script>{}</script>'


def faults(folder: Path, pages: Sequence[str], widths: Sequence[int] = WIDTHS, *options: str) -> dict[str, list[str]]:
    """What is wrong with the layout of pages below `folder`, by page and width; nothing where all is well."""
    shown = [(page, width) for page in pages for width in widths]
    frames = "".join(FRAME.format(page, width, 900) for page, width in shown)
    outer = OUTER.format(frames, MEASURE.read_text())
    dom = _browse(folder, outer, "--dump-dom", f"--virtual-time-budget={PATIENCE_MS}", *options)
    found = re.search(r'<pre id="said">(.*?)</pre>', dom, re.DOTALL)
    assert found, f"the browser did not measure the pages: {dom[-500:]}"
    said = json.loads(html.unescape(found.group(1)))
    assert len(said) == len(shown)
    return {f"{page} at {width} px": each for (page, width), each in zip(shown, said, strict=True) if each}


def picture(folder: Path, page: str, width: int, height: int, path: Path, *options: str) -> None:
    """A picture of a page's first `height` px, for people to look at."""
    size = f"--window-size={max(width, 500)},{height}"
    outer = OUTER.format(FRAME.format(page, width, height), "")
    _browse(folder, outer, f"--screenshot={path}", size, "--hide-scrollbars", *options)


def _browse(folder: Path, outer: str, *options: str) -> str:
    """What Chromium prints that is shown `outer`, served beside what is in `folder`."""
    assert CHROMIUM is not None

    class Served(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/outer.html":
                super().do_GET()
                return
            content = outer.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    with (
        TemporaryDirectory() as profile,
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=str(folder))) as server,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
            address = f"http://127.0.0.1:{server.server_port}/outer.html"
            done = subprocess.run(
                [*command, *options, address], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            )
        finally:
            server.shutdown()
    return done.stdout
