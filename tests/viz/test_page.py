"""Parts of a page are escaped and balanced."""

from comparison_cases import PageReader
from widemargin.viz import page


def test_parts_of_a_page():
    assert page.paragraph("a < b") == "<p>a &lt; b</p>"
    assert page.table(("x",), [[("1 & 2", "best")]]).count("<td") == 1
    body = [page.details("more", page.code("<&>")), page.figure("<svg></svg>", "c"), page.heading("h")]
    PageReader(page.html_page("t", "s", body))
