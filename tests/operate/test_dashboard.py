"""The live page in a real browser: ranks, versions, who waits, a death, 512 ranks, no error."""

from __future__ import annotations

import contextlib
import json
import re
import select
import signal
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorbus
from browser import ENTER, TAB, Browser, needs_browser
from jobs import Job, get, until
from processes import PROGRAM, Process, Start, StartServer
from tensorbus import kvstore

DOCS = Path(__file__).parents[2] / "docs" / "pictures"

# Elements that somebody must be able to name, to reach or to read, and whether that is so. These
# are the rules that axe-core calls serious or critical, as far as they can apply to a page without
# frames, media, forms of others and markup of its users: button-name, link-name, label,
# select-name, image-alt, svg-img-alt, aria-roles, aria-valid-attr, aria-valid-attr-value,
# aria-required-children (no role that has any), aria-hidden-focus, nested-interactive,
# scrollable-region-focusable, tabindex, list, listitem, td-headers (each column has one),
# document-title, html-has-lang, meta-viewport, bypass, color-contrast (that of the web's
# guidelines: 4.5 for text); and of what it calls moderate: heading-order, page-has-heading-one,
# landmark-one-main, region.
ACCESSIBILITY = r"""
const found = [];
const visible = (e) => e.checkVisibility() && e.getBoundingClientRect().width > 0;
const all = (selector) => [...document.querySelectorAll(selector)].filter(visible);
const complain = (what, e) => found.push(what + ": " + e.outerHTML.slice(0, 120));
const nameOf = (e) => e.getAttribute("aria-label")
  || (e.getAttribute("aria-labelledby") ?? "").split(" ").filter(Boolean)
    .map((id) => document.getElementById(id)?.textContent.trim()).join(" ")
  || [...(e.labels ?? [])].map((label) => label.textContent.trim()).join(" ")
  || (["INPUT", "SELECT"].includes(e.tagName) ? "" : e.textContent.trim());
const stops = "button, input, select, textarea, a[href], [tabindex='0']";
for (const e of all(stops)) {
  if (!nameOf(e)) complain("no name", e);
  if (e.closest("[aria-hidden='true']")) complain("a stop that is hidden from readers", e);
  if (e.matches("button, a[href]") && e.querySelector(stops)) complain("a stop within another", e);
}
for (const e of all("section, [role='region']")) {
  if (!nameOf(e)) complain("a landmark without a name", e);
}
const roles = ["status", "region", "img", "alert", "log", "presentation"];
const known = ["label", "labelledby", "hidden", "live", "describedby", "pressed", "expanded"];
for (const e of document.querySelectorAll("*")) {
  const role = e.getAttribute("role");
  if (role !== null && !roles.includes(role)) complain("a role that is none", e);
  if (e.tabIndex > 0) complain("an order of its own", e);
  for (const { name, value } of e.attributes) {
    if (!name.startsWith("aria-")) continue;
    if (!known.includes(name.slice(5)) || value === "") complain(name, e);
    if (!name.endsWith("by")) continue;
    if (!value.split(" ").every((id) => document.getElementById(id))) complain("names nobody", e);
  }
}
for (const e of document.querySelectorAll("ul, ol")) {
  if ([...e.children].some((child) => child.tagName !== "LI")) complain("no list", e);
}
for (const e of document.querySelectorAll("li")) {
  if (!e.parentElement.matches("ul, ol")) complain("an item of no list", e);
}
for (const e of document.querySelectorAll("table")) {
  const columns = e.querySelectorAll("thead th[scope=col]").length;
  for (const line of e.querySelectorAll("tbody tr")) {
    if (line.children.length !== columns) complain("a cell without a head", line);
  }
}
for (const e of all("body *")) {
  const { overflowX, overflowY } = getComputedStyle(e);
  const scrolls = ["auto", "scroll"];
  const moves = (scrolls.includes(overflowX) && e.scrollWidth > e.clientWidth + 1)
    || (scrolls.includes(overflowY) && e.scrollHeight > e.clientHeight + 1);
  if (moves && e.tabIndex < 0 && !e.querySelector(stops)) complain("scrolls without a stop", e);
}
if (!document.title) found.push("no title");
if (document.querySelectorAll("main").length !== 1) found.push("not one main part");
if (all("h1").length !== 1) found.push("not one title");
for (const e of document.body.children) {
  if (visible(e) && !e.matches("header, main, script, .skip")) complain("outside of landmarks", e);
}
const viewport = document.querySelector("meta[name=viewport]").content;
if (/user-scalable|maximum-scale/.test(viewport)) found.push("it cannot be made larger");
if (!document.querySelector(document.querySelector("a.skip").getAttribute("href"))) {
  found.push("the link past the head leads nowhere");
}
for (const e of document.querySelectorAll("img, svg")) {
  if (visible(e) && !e.closest("[aria-hidden]") && !e.getAttribute("aria-label") && !e.alt) {
    found.push("no text for a picture: " + e.outerHTML.slice(0, 80));
  }
}
let level = 0;
for (const e of document.querySelectorAll("h1, h2, h3")) {
  const next = Number(e.tagName[1]);
  if (next > level + 1) found.push("a level is left out before " + e.textContent);
  level = next;
}
if (!document.documentElement.lang) found.push("no language");
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
if (new Set(ids).size !== ids.length) found.push("an id is used twice");
const numbers = (text) => text.match(/[\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const color = numbers(getComputedStyle(e).backgroundColor);
    if (color.length < 4 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !visible(e) || e.closest("svg, script, style, .skip")) continue;
  if (getComputedStyle(e).fontSize === "0px") continue;
  const pair = [light(numbers(getComputedStyle(e).color)), light(ground(e))];
  const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  if (contrast < 4.5) {
    const text = e.textContent.slice(0, 40);
    found.push(`contrast ${contrast.toFixed(2)}: ${e.className || e.tagName} "${text}"`);
  }
}
return [...new Set(found)];
"""


@pytest.fixture
def pictures(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where pictures go: those in the docs are renewed on demand only."""
    return DOCS if request.config.getoption("--pictures") else tmp_path / "pictures"


@pytest.fixture
def browser(start_program: Start, tmp_path: Path) -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as temporary:
        opened = Browser(start_program, tmp_path / "browser", temporary)
        yield opened
        opened.close()


def start_dashboard(start_program: Start, store: str, *options: str) -> Process:
    return start_program(
        str(PROGRAM), "dashboard", "--store", store, "--bind", "127.0.0.1:0", *options
    )


def dashboard(start_program: Start, store: str, *options: str) -> str:
    return start_dashboard(start_program, store, *options).line().split()[1]


def boxes(browser: Browser) -> dict[int, dict[str, str]]:
    found = browser.run(
        """return [...document.querySelectorAll("#sides button")].map((b) =>
             [Number(b.dataset.rank), {state: b.className, label: b.getAttribute("aria-label"),
              text: b.textContent}])"""
    )
    return dict(found)


def text_of(browser: Browser, selector: str) -> str:
    found: str = browser.run("return document.querySelector(arguments[0]).innerText", selector)
    return found


def check_sound(browser: Browser, url: str) -> None:
    assert browser.console() == []
    outside = {
        address
        for address in browser.requests()
        if not address.startswith((url, "data:", "about:", "chrome"))
    }
    assert outside == set()


@needs_browser
@pytest.mark.proves("O4.2", "O4.3")
def test_a_running_job_in_a_browser(
    start_job: Callable[..., Job], start_program: Start, browser: Browser, pictures: Path
):
    job = start_job(elements=200_000, period=0.5)
    job.wait_for_version(2)
    url = dashboard(start_program, job.server.url)
    browser.open(url)
    until(lambda: set(boxes(browser)) == {0, 1, 2, 3, 4}, "five ranks")
    assert text_of(browser, "#live-text") == "live"
    first = int(text_of(browser, "#count-version"))
    until(lambda: int(text_of(browser, "#count-version")) > first + 2, "versions to grow")
    assert browser.run('return document.querySelectorAll("#arrows path").length') >= 6
    assert browser.run('return document.querySelectorAll("#versions rect").length') >= 3
    assert "rank 4 is there" in text_of(browser, "#log")
    time.sleep(3)
    for scheme in ("light", "dark"):
        browser.emulate(scheme)
        until(lambda: browser.run("return document.readyState") == "complete", "the page")
        assert browser.run(ACCESSIBILITY) == []
    browser.emulate("light")
    browser.picture(pictures / "dashboard-light.png")

    # A rank that does not pull: the others wait for it, and it turns red.
    job.pause(4)
    until(lambda: "blocked" in boxes(browser)[4]["state"], "rank 4 to turn red")
    assert "rank 4 is waited for" in text_of(browser, "#problems")
    assert "rank 4 is waited for" in text_of(browser, "#log")
    assert "waits" in boxes(browser)[2]["text"]
    assert browser.run(ACCESSIBILITY) == []
    browser.picture(pictures / "dashboard-waits.png")
    job.resume(4)
    until(lambda: "blocked" not in boxes(browser)[4]["state"], "rank 4 to be well again")

    # What the engines read from the trainers, as a picture.
    browser.run(
        """const choice = document.querySelector("#plan-of");
           choice.value = [...choice.options].find((each) => each.value.includes("engine")).value;
           choice.dispatchEvent(new Event("change"))"""
    )
    until(
        lambda: browser.run('return document.querySelector("#plan-picture").naturalWidth > 100'),
        "the plan",
    )

    # A rank that is killed turns red, whoever waits for it is named, and it comes back.
    job.ranks[4].signal(signal.SIGKILL)
    until(lambda: "gone" in boxes(browser)[4]["state"], "rank 4 to be gone")
    assert "rank 4 is gone" in text_of(browser, "#log")
    assert "gone for" in boxes(browser)[4]["label"]
    until(
        lambda: re.search(r"\branks? 2\b", text_of(browser, "#problems")),
        "rank 2 to be named as one who waits",
    )
    job.start(4)
    until(lambda: "gone" not in boxes(browser)[4]["state"], "rank 4 to be back")

    # A rank is chosen, and its line is what is left of the table.
    browser.run('document.querySelector("#sides button[data-rank=\\"3\\"]").click()')
    assert browser.run('return document.querySelectorAll("#rows tr").length') == 1
    check_sound(browser, url)


# What has the focus, whether it is in sight, and what is drawn around it.
FOCUS = """
const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
return {tag: e.tagName, id: e.id, rank: e.dataset.rank, text: e.textContent.trim(),
        seen: box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight,
        outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth)};
"""


@needs_browser
@pytest.mark.proves("O4.2")
def test_by_keyboard_alone(start_server: StartServer, start_program: Start, browser: Browser):
    page = get(dashboard(start_program, start_server().url))
    rows = [row_of(rank, 7) for rank in (0, 1, 300, 301)]
    crowd = Crowd(
        page,
        lambda: crowd_state(7) | {"rows": rows, "problems": []},
        lambda: (200, '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="100"/>'),
    )
    browser.open(crowd.url)
    until(lambda: len(boxes(browser)) == 4, "four ranks")

    def table() -> list[str]:
        found: list[str] = browser.run(
            "return [...document.querySelectorAll('#rows tr')].map((e) => e.firstChild.textContent)"
        )
        return found

    def go_to(rank: str) -> dict[str, Any]:
        for _ in range(20):
            browser.press(TAB)
            focus: dict[str, Any] = browser.run(FOCUS)
            if focus.get("rank") == rank:
                return focus
        raise AssertionError(f"rank {rank} is not to be had by keyboard")

    # The first key press shows the way past what comes before the ranks.
    browser.press(TAB)
    skip = browser.run(FOCUS)
    assert (skip["tag"], skip["text"], skip["seen"]) == ("A", "Skip to the ranks", True)
    assert skip["outline"] >= 2
    browser.press(ENTER)
    assert browser.run(FOCUS)["id"] == "ranks"
    browser.press(TAB)
    first = browser.run(FOCUS)
    assert first["rank"] == "0", "the next stop is the first of them"
    assert first["seen"]
    assert first["outline"] >= 2

    # A rank is chosen: its line is what is left of the table.
    focus = go_to("300")
    assert focus["seen"]
    assert focus["outline"] >= 2
    other = "return getComputedStyle(document.querySelector('[data-rank=\"1\"]')).outlineStyle"
    assert browser.run(other) == "none"
    assert len(table()) == 4
    browser.press(ENTER)
    assert table() == ["300"]
    # It stays there while the page is drawn anew, and gives up its choice.
    browser.run("render(); render()")
    assert browser.run(FOCUS)["rank"] == "300"
    browser.press(ENTER)
    assert len(table()) == 4
    check_sound(browser, crowd.url)
    browser.open("about:blank")
    crowd.close()


class Crowd:
    """Serves the program's own page, with a state of as many ranks as are wanted."""

    def __init__(
        self,
        page: str,
        state: Callable[[], dict[str, Any]],
        plan: Callable[[], tuple[int, str]] = lambda: (404, "none"),
    ) -> None:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text, kind = 200, page, "text/html"
                if self.path == "/state.json":
                    text, kind = json.dumps(state()), "application/json"
                elif self.path.startswith("/plan.svg"):
                    status, text = plan()
                self.send_response(status)
                self.send_header("Content-Type", kind + "; charset=utf-8")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def row_of(rank: int, version: int) -> dict[str, Any]:
    trains = rank < 128
    stuck = 200 <= rank < 208
    lag = 0 if trains else rank % 3 // 2
    doing = "idle"
    if stuck:
        doing = "pull waits 31 s for rank 300"
    elif not trains and rank % 7 == 0:
        doing = f"reads version {version} from {rank % 128}: 40 %"
    return {
        "rank": rank, "host": f"node{rank // 8}", "pid": 1000 + rank, "embedded": True,
        "side": "trainer" if trains else "rollout", "batch": "policy", "what": "policy",
        "work": "publish" if trains else "pull", "version": version - lag,
        "reads": version if "%" in doing else None,
        "age": 1.5, "state": "blocked" if stuck else "moves" if "%" in doing else "idle",
        "doing": doing, "waited": 31.0 if stuck else 0.0, "awaited": [300] if stuck else [],
        "from": [] if trains else [rank % 128], "gbps": 0.0 if trains else 2.5, "metrics": "",
        "share": 0.4 if "%" in doing else 0.0,
    }  # fmt: skip


def crowd_state(version: int) -> dict[str, Any]:
    now = int(time.time() * 1000)
    courses = [
        {"batch": "policy", "side": side, "version": version - ago, "first": now - ago * 9000,
         "last": now - ago * 9000 + 3000, "ranks": ranks, "at": []}
        for side, ranks in (("trainer", 128), ("rollout", 384)) for ago in range(13)
    ]  # fmt: skip
    return {
        "namespace": "crowd", "store": "tensorbus://127.0.0.1:29500", "now": now, "error": "",
        "log": [{"at": now - 5000, "kind": "join", "text": "rank 511 is there (pid 1511)"}],
        "versions": courses,
        "rows": [row_of(rank, version) for rank in range(512)],
        "problems": [{"text": "rank 300 is waited for: ranks 200, 201 have waited 31 s for it",
                      "ranks": [300]}],
    }  # fmt: skip


@needs_browser
@pytest.mark.proves("O4.2")
def test_512_ranks(
    start_server: StartServer, start_program: Start, browser: Browser, pictures: Path
):
    page = get(dashboard(start_program, start_server().url))
    version = 40
    crowd = Crowd(page, lambda: crowd_state(version))
    browser.open(crowd.url)
    until(lambda: len(boxes(browser)) == 512, "512 ranks")
    found = boxes(browser)
    assert "blocked" in found[300]["state"]
    assert "blocked" in found[200]["state"]
    assert "moves" in found[210]["state"]
    # It is drawn anew in less than the second between two looks.
    took = browser.run(
        "const begin = performance.now(); render(); render(); return performance.now() - begin"
    )
    assert took < 2000
    version = 41
    until(lambda: text_of(browser, "#count-version") == "41", "the next version")
    for scheme in ("light", "dark"):
        browser.emulate(scheme)
        assert browser.run(ACCESSIBILITY) == []
    browser.picture(pictures / "dashboard-512-dark.png")
    check_sound(browser, crowd.url)
    browser.open("about:blank")
    crowd.close()


@needs_browser
@pytest.mark.proves("O4.2")
def test_512_ranks_through_the_program(
    start_server: StartServer,
    start_program: Start,
    browser: Browser,
    monkeypatch: pytest.MonkeyPatch,
    unique: str,
):
    """Their records are in the store: copies of a trainer's and of an engine's, each with a rank of
    its own."""
    monkeypatch.setenv("TENSORBUS_STATUS_PERIOD", "0.1")
    server = start_server()
    # Numbers that stand nowhere else in a record.
    trainer, engine = 0x5EED0001, 0x5EED0002
    state = {"w": np.ones(10, np.float32)}
    with kvstore.connect(server.url, namespace=unique) as store:

        def record(rank: int) -> bytes | None:
            found = store.get(f"agents/{rank}", component="status") or b""
            return found if b"shelf of trainer/policy" in found else None

        with (
            tensorbus.TensorBusClient.embedded(server.url, rank=trainer, namespace=unique) as one,
            tensorbus.TensorBusClient.embedded(server.url, rank=engine, namespace=unique) as other,
        ):
            publisher = one.link("trainer")
            publisher.publish("policy", state)
            puller = other.link("engine", "trainer")
            assert puller.pull("policy", state) == 1
            copied = {
                rank: until(lambda rank=rank: record(rank), "it") for rank in (trainer, engine)
            }
        records = {}
        for rank in range(512):
            like = trainer if rank < 128 else engine
            old, new = (number.to_bytes(8, "little") for number in (like, rank))
            assert old in copied[like]
            source = trainer.to_bytes(8, "little")
            records[f"agents/{rank}"] = (
                copied[like].replace(old, new).replace(source, (rank % 128).to_bytes(8, "little"))
            )
        store.multi_set(records, component="status")
    url = dashboard(start_program, server.url, "--namespace", unique)
    browser.open(url)
    until(lambda: set(boxes(browser)) >= set(range(512)), "512 ranks")
    assert text_of(browser, "#count-ranks") == "512"
    assert text_of(browser, "#count-version") == "1"
    assert browser.run('return document.querySelectorAll("#sides .side").length') == 2
    assert browser.run(ACCESSIBILITY) == []
    check_sound(browser, url)


@needs_browser
@pytest.mark.proves("O4.2")
def test_batches_with_one_shown_name_have_a_box_each(
    start_server: StartServer, start_program: Start, browser: Browser
):
    page = get(dashboard(start_program, start_server().url))
    batches = ["shelf of actor/policy", "shelf of critic/policy"]

    def state() -> dict[str, Any]:
        version = len(asked)
        asked.append(1)
        found = crowd_state(version)
        found["rows"] = [
            row_of(rank, version) | {"side": side, "batch": batch, "from": source, "awaited": []}
            for batch in batches
            for side, rank, source in (("trainer", 0, []), ("engine", 200, [0]))
        ]
        found["versions"] = []
        # And what is told twice.
        found["problems"] = 2 * [{"text": "rank 0: init_pair, 40 s: waits", "ranks": [0]}]
        return found

    asked: list[int] = []
    crowd = Crowd(page, state)
    browser.open(crowd.url)
    until(lambda: len(asked) > 4, "the page to have looked some times")
    browser.run("render(); render()")
    counts = browser.run(
        """return ["#sides .side", "#sides button", "#rows tr", "#problems p", "#arrows > .read"]
             .map((each) => document.querySelectorAll(each).length)"""
    )
    assert counts == [4, 4, 4, 1, 2]
    # Each arrow comes from the source of its own batch.
    assert browser.run(
        """const [a, b] = [...document.querySelectorAll("#arrows > path.read")]
             .map((each) => each.getAttribute("d").split(" ")[0]);
           return a !== b"""
    )
    check_sound(browser, crowd.url)
    browser.open("about:blank")
    crowd.close()


@needs_browser
@pytest.mark.proves("O4.2")
def test_a_plan_comes_when_another_one_is_drawn(
    start_server: StartServer, start_program: Start, browser: Browser
):
    page = get(dashboard(start_program, start_server().url))
    answers = [(503, "busy: a plan is being drawn"), (503, "busy: a plan is being drawn")]
    picture = '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="100"/>'
    rows = [row_of(0, 1), row_of(200, 1)]
    crowd = Crowd(
        page,
        lambda: crowd_state(1) | {"rows": rows},
        lambda: answers.pop() if answers else (200, picture),
    )
    browser.open(crowd.url)  # it asks for the only plan there is
    until(
        lambda: browser.run('return document.querySelector("#plan-picture").naturalWidth === 200'),
        "the plan",
    )
    assert "busy" not in text_of(browser, "#plan-text")
    browser.open("about:blank")
    crowd.close()


@needs_browser
@pytest.mark.proves("O4.2")
def test_a_problem_is_announced_once(
    start_server: StartServer, start_program: Start, browser: Browser
):
    page = get(dashboard(start_program, start_server().url))
    asked: list[int] = []

    def state() -> dict[str, Any]:
        asked.append(1)
        waited = 30 + len(asked)
        texts = [
            f"rank 300 is waited for: ranks 200, 201 have waited {waited} s for it",
            f'rank 7: init_pair, {waited} s: waits for side "x" (batch "a")',
            f"rank 8 does not renew its lease, {90 - waited} % of it are left: stopped",
            f'rank 9 has version 3 of "policy", the newest is {waited}',
        ]
        return crowd_state(1) | {"problems": [{"text": text, "ranks": []} for text in texts]}

    crowd = Crowd(page, state)
    browser.open(crowd.url)
    until(lambda: text_of(browser, "#problems"), "the problems")
    browser.run(
        """window.changes = 0;
           new MutationObserver((seen) => { window.changes += seen.length; }).observe(
             document.querySelector("[aria-live]"),
             {childList: true, characterData: true, subtree: true});"""
    )
    before = text_of(browser, "#problems")
    until(lambda: text_of(browser, "#problems") != before, "the seconds to change")
    said = browser.run('return document.querySelector("[aria-live]").textContent')
    assert "ranks 200, 201 have waited for it" in said
    assert 'init_pair: waits for side "x"' in said
    assert browser.run("return window.changes") == 0
    assert browser.run('return document.querySelectorAll("[aria-live]").length') == 1
    assert browser.run(ACCESSIBILITY) == []
    browser.open("about:blank")
    crowd.close()


@needs_browser
@pytest.mark.proves("O4.2")
def test_a_page_whose_program_hangs_is_not_live(
    start_server: StartServer, start_program: Start, browser: Browser
):
    process = start_dashboard(start_program, start_server().url)
    browser.open(process.line().split()[1])
    until(lambda: text_of(browser, "#live-text") == "live", "the page to be live")
    process.signal(signal.SIGSTOP)
    try:
        until(
            lambda: text_of(browser, "#live-text") == "the program does not answer",
            "the page to say so",
            20,
        )
        assert browser.run("return document.querySelector('#live').classList.contains('off')")
    finally:
        process.signal(signal.SIGCONT)
    until(lambda: text_of(browser, "#live-text") == "live", "the page to be live again")


@needs_browser
@pytest.mark.proves("O4.2")
def test_a_page_with_a_token_asks_for_it(
    start_server: StartServer, start_program: Start, browser: Browser, tmp_path: Path
):
    (tmp_path / "page-token").write_text("sesame\n")
    (tmp_path / "page-token").chmod(0o600)
    url = dashboard(
        start_program, start_server().url, "--page-token-file", str(tmp_path / "page-token")
    )
    for path in ("state.json", "plan.svg?batch=b&side=s"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(url + path)
    browser.open(url)
    until(lambda: browser.run('return !document.querySelector("#entry").hidden'), "the question")
    browser.run(
        """document.querySelector("#token").value = "sesame";
           document.querySelector("#entry button").click()"""
    )
    until(lambda: text_of(browser, "#live-text") == "live", "the page to be live")
    assert browser.run('return document.querySelector("#entry").hidden')


@pytest.mark.proves("O4.2")
def test_a_token_may_be_an_argument(start_server: StartServer, start_program: Start):
    url = dashboard(start_program, start_server().url, "--token", "sesame")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get(url + "state.json")
    request = urllib.request.Request(url + "state.json", headers={"Authorization": "Bearer sesame"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


@pytest.mark.proves("O4.2")
def test_a_plan_keeps_one_visitor_at_most_and_no_end(
    start_server: StartServer, start_program: Start
):
    server = start_server()
    process = start_dashboard(start_program, server.url, "--timeout", "60")
    url = process.line().split()[1]
    plan = url + "plan.svg?batch=b&side=s"
    with pytest.raises(urllib.error.HTTPError, match="404"):  # it has a connection to the store
        get(plan)
    host, port = urllib.parse.urlparse(url).netloc.split(":")
    server.process.signal(signal.SIGSTOP)
    try:
        visits = [socket.create_connection((host, int(port))) for _ in range(3)]
        for visit in visits:
            visit.sendall(b"GET /plan.svg?batch=b&side=s HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers: list[bytes] = []
        while len(answers) < 2:
            ready, _, _ = select.select(visits, [], [], 20)
            assert ready
            answers += [visit.recv(12) for visit in ready]
            visits = [visit for visit in visits if visit not in ready]
        assert answers == 2 * [b"HTTP/1.1 503"]
        # And while the last one waits for the store, the dashboard can be stopped.
        process.signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        server.process.signal(signal.SIGCONT)


@pytest.fixture
def large_state(
    start_server: StartServer, start_program: Start, monkeypatch: pytest.MonkeyPatch, unique: str
) -> tuple[str, str]:
    """The address of a page whose state fits no socket, and that of its job's store."""
    monkeypatch.setenv("TENSORBUS_STATUS_PERIOD", "0.1")
    server = start_server()
    with (
        kvstore.connect(server.url, namespace=unique) as store,
        tensorbus.TensorBusClient.embedded(server.url, rank=0, namespace=unique) as client,
    ):
        link = client.link("trainer")
        for name in "abcd":
            link.publish(name, {"w": np.ones(10, np.float32)})

        def record() -> bytes | None:
            found = store.get("agents/0", component="status") or b""
            return found if all(f"trainer/{name}".encode() in found for name in "abcd") else None

        copied = until(record, "the record of all four batches")
        agents = {f"agents/{rank}": copied for rank in range(1, 6000)}
        store.multi_set(agents, component="status")
    url = dashboard(start_program, server.url, "--namespace", unique)
    until(lambda: len(get(url + "state.json")) > 5_000_000, "the large state")
    return url, server.url


@contextlib.contextmanager
def silent_visitors(url: str, count: int) -> Iterator[None]:
    """They ask for the state and take nothing of it, so they do hold up who serves them."""
    host, port = urllib.parse.urlparse(url).netloc.split(":")
    with contextlib.ExitStack() as silent:
        for _ in range(count):
            visit = silent.enter_context(socket.socket())
            visit.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            visit.connect((host, int(port)))
            visit.sendall(b"GET /state.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        ready, _, _ = select.select([visit], [], [], 30)  # its answer has begun
        assert ready
        yield


@pytest.mark.proves("O5.1")
def test_visitors_that_never_read_keep_nobody_from_the_page(large_state: tuple[str, str]):
    url, _ = large_state
    with silent_visitors(url, 8):
        begin = time.monotonic()
        assert len(json.loads(get(url + "state.json"))["rows"]) >= 23_996
        assert time.monotonic() - begin < 20


@pytest.mark.proves("O5.1")
def test_visitors_that_never_read_delay_no_step(large_state: tuple[str, str], unique: str):
    url, store = large_state
    state = {"w": np.ones(1000, np.float32)}
    with (
        tensorbus.TensorBusClient.embedded(store, rank=0, namespace=unique) as trainer,
        tensorbus.TensorBusClient.embedded(store, rank=1, namespace=unique) as engine,
    ):
        publisher, puller = trainer.link("trainer"), engine.link("engine", "trainer")
        last = publisher.publish("policy", state)
        puller.pull("policy", state)
        longest, steps = 0.0, 0
        with silent_visitors(url, 12):
            end = time.monotonic() + 3  # longer than a visit may last
            while time.monotonic() < end or steps < 50:
                begin = time.monotonic()
                publisher.publish("policy", state)
                last = puller.pull("policy", state, newer_than=last)
                longest = max(longest, time.monotonic() - begin)
                steps += 1
        # The page gives each of its clients two seconds; a loaded machine takes a part of that.
        assert longest < 0.9


@pytest.mark.proves("O4.2")
def test_the_page_is_one_file_that_loads_nothing(start_server: StartServer, start_program: Start):
    url = dashboard(start_program, start_server().url)
    with urllib.request.urlopen(url) as answer:
        page = answer.read().decode()
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "/* page.css */" not in page
    assert "sidesOf" in page
    state = until(lambda: json.loads(get(url + "state.json")), "the store to have been asked")
    assert state["rows"] == []


def test_a_dashboard_without_its_store_says_so(start_server: StartServer, start_program: Start):
    server = start_server()
    url = dashboard(start_program, server.url, "--timeout", "1")
    until(lambda: json.loads(get(url + "state.json")).get("rows") == [], "the state")
    server.kill()
    until(lambda: json.loads(get(url + "state.json"))["error"], "it to say so")
    server.start_again()
    until(lambda: not json.loads(get(url + "state.json"))["error"], "it to go on")
