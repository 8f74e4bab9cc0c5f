import pytest

from tools.book import up_to_date


@pytest.fixture(scope="session")
def book_is_built() -> None:
    if not up_to_date():
        pytest.fail("the book is not built from the present sources: run `make book` first")
