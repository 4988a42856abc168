"""A figure is the same file on every processor."""

from compare.report.style import numbered


def test_ids_of_a_figure_count_up_wherever_they_are_used():
    svg = '<clipPath id="pabcdef0123"/><path id="m0123456789"/><use href="#m0123456789" clip-path="url(#pabcdef0123)"/>'
    assert numbered(svg) == '<clipPath id="p1"/><path id="m2"/><use href="#m2" clip-path="url(#p1)"/>'


def test_what_is_no_id_stays():
    assert numbered('<g id="p0123456789"/><text>e0123456789</text>') == '<g id="p1"/><text>e0123456789</text>'
