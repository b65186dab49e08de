"""The site that `make docs` built: its search finds pages by other words, axe finds nothing, nothing asks a network.

Modules: none of the package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.browser.bare_page import AXE, RULES, axe

pytestmark = pytest.mark.browser

SITE = Path(__file__).parents[2] / "build" / "site"
QUESTIONS = {
    "out of memory": "will_it_fit",
    "training stuck NCCL timeout": "which_rank_hangs",
    "find the straggler": "which_rank_is_slow",
    "overlap compute and communication": "why_is_communication_exposed",
    "best parallelism configuration": "which_mesh",
    "where does this unexpected collective come from": "why_is_there_an_all_gather",
    "cost of resharding a tensor": "does_this_layout_send_that",
    "busbw numbers wrong": "is_the_bandwidth_in_my_log_right",
    "tune NVMe read speed": "which_disk_settings",
    "run train.py without GPUs": "trace_my_own_script",
    "sbatch on several nodes": "trace_a_job_on_slurm",
    "open a kineto chrome trace": "read_a_profile_of_another_job",
    "loss differs from single GPU": "same_numbers",
    "pytest count of collectives": "assert_communication_in_tests",
    "exercises for students": "teach_with_it",
}
"""{search text: title of the how-to page that answers it}."""
PAGES = ("index.html", "howto/will_it_fit.html", "errors.html", "lessons.html", "lessons/5_pipelines.html")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yield where the site is served on this machine: browsers load no search index from a file."""
    if not (SITE / "searchindex.js").exists():
        pytest.skip("no site is built: make docs")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def first_three(page: Any, address: str, question: str) -> list[str]:
    """Return the pages that the search lists first."""
    page.goto(f"{address}/index.html")
    page.fill(".sidebar-search", question)
    page.press(".sidebar-search", "Enter")
    page.wait_for_function(
        "() => /found|did not match/.test(document.querySelector('#search-results p.search-summary')?.innerText || '')"
    )
    links = page.eval_on_selector_all("#search-results ul.search > li > a", "all => all.map((a) => a.pathname)")
    return list(dict.fromkeys(link.rpartition("/")[2].removesuffix(".html") for link in links))[:3]


def test_the_search_finds_pages_by_other_words(page: Any, address: str) -> None:
    found = {question: first_three(page, address, question) for question in QUESTIONS}
    missed = {question: found[question] for question, wanted in QUESTIONS.items() if wanted not in found[question]}
    assert len(missed) <= 1, json.dumps(missed, indent=1)
    assert page.requests.foreign == []


def test_axe_finds_no_violation_of_the_site(browser: Any, address: str) -> None:
    source, found, foreign = axe(), {}, []
    for scheme in ("light", "dark"):
        for width in (400, 1440):
            context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
            opened = context.new_page()
            opened.on("request", lambda request: foreign.append(request.url))
            for name in PAGES:
                opened.goto(f"{address}/{name}")
                opened.evaluate(source)
                violations = opened.evaluate(AXE, RULES)
                if violations:
                    found[f"{name}, {scheme}, {width}"] = violations
            context.close()
    assert found == {}, json.dumps(found, indent=1)
    assert [url for url in foreign if not url.startswith((address, "data:", "blob:"))] == []
