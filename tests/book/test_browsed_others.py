"""The pages that `test_browsed.py` does not open."""

from tests.book.rendered import PAGES
from tests.book.test_browsed import (  # noqa: F401 (fixtures among them)
    browser,
    pytestmark,
    seen,
    tab,
    test_no_page_has,
)

PART = PAGES[1::2]
