"""The site as its readers have it: in a browser, on a wide and on a narrow screen."""

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest

ROOT = Path(__file__).parents[1]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
PAGES = ("index", "getting_started", "gallery/index", "gallery/gaps", "models/tlvmogp", "reference/models", "results")

pytestmark = pytest.mark.slow


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site that MANYGP_SITE names, or one that is built here without running the examples."""
    if "MANYGP_SITE" in os.environ:
        return (ROOT / os.environ["MANYGP_SITE"]).resolve()
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    pytest.importorskip("sphinx_gallery", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    # The gallery is written beside the pages, so these are copied.
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("gallery", "__pycache__"))
    for page in ROOT.glob("*.md"):
        shutil.copy(page, folder)
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-D", "plot_gallery=0"]
    done = subprocess.run([*command, folder / "docs", folder / "site"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def address(site):
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_links_between_pages_lead_somewhere(site):
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if "_modules" not in path.parts}
    anchors = {path: set(re.findall(r' id="([^"]+)"', text)) for path, text in pages.items()}
    dead = []
    for page, text in pages.items():
        for link in re.findall(r'<a [^>]*href="([^"]+)"', text):
            if link.startswith(("http", "mailto:")):
                continue
            path, anchor = urldefrag(urljoin(page.as_uri(), link))
            target = Path(path.removeprefix("file://"))
            if not target.exists() or (anchor and target in anchors and anchor not in anchors[target]):
                dead.append((page.name, link))
    assert dead == []
    assert len(pages) > 40


def test_every_public_name_has_its_entry(site):
    import manygp

    text = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    names = [name for name in manygp.__all__ if name != "__version__"]
    assert [
        name for name in names if f'id="manygp.{name}"' not in text and f'id="manygp.errors.{name}"' not in text
    ] == []


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here; scripts/install_browser.sh installs it")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_site_works_in_a_browser(address, width):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        view, said = browser.new_page(viewport={"width": width, "height": 844}), []
        view.on("console", lambda message: said.append(message.text))
        view.on("pageerror", lambda error: said.append(str(error)))
        view.on("request", lambda request: request.url.startswith((address, "data:")) or said.append(request.url))
        for page in PAGES:
            view.goto(f"{address}/{page}.html")
            # Nothing is wider than the screen, every picture is there, and the page has a title of its own.
            assert view.evaluate("document.documentElement.scrollWidth") <= width, page
            assert view.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)"), page
            assert view.locator("h1").count() == 1, page
        view.goto(f"{address}/search.html?q=adapt")
        view.wait_for_selector("#search-results li a")
        assert view.locator("#search-results li a").count() > 3
        assert said == []
        browser.close()
