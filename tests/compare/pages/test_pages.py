"""What makes a committed page writes it, or says whether it is fresh."""

from compare.pages import settle


def test_a_page_is_stale_until_it_is_written(tmp_path, capsys):
    page = tmp_path / "page.md"
    assert settle(page, "new µ\n", "it", write=False) == 1  # not there
    page.write_text("old\n")
    assert settle(page, "new µ\n", "it", write=False) == 1
    assert (
        page.read_text() == "old\n"
        and capsys.readouterr().out == f"{page} is stale: python -m compare pages it --write\n" * 2
    )
    assert settle(page, "new µ\n", "it", write=True) == 0
    assert settle(page, "new µ\n", "it", write=False) == 0
    assert page.read_bytes() == "new µ\n".encode() and "is fresh" in capsys.readouterr().out
