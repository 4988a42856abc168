"""The waves figure: every batch in every graph that can serve it, on both DSLs."""

import xml.etree.ElementTree as ElementTree

from compare.studies.graphs import report


def rows():
    """Invented times: a wave of 5 us for every 32 sequences in excess, none in the static grid."""
    found = []
    for dsl in ("triton", "helion"):
        for seqs in (1, 3, 17, 100):
            base = 10.0 + seqs / 2 + (2 if dsl == "helion" else 0)
            about = {"experiment": "powers of two", "sequences": seqs, "keys": 2048}
            auto, static = about | {"kernel": f"{dsl}/auto"}, about | {"kernel": f"{dsl}/static_grid"}
            found.append(auto | {"graph": "its own", "us": base})
            sizes = [2**k for k in range(9) if 2**k >= seqs]
            found += [auto | {"graph": str(size), "us": base + 5 * (size - seqs) / 32} for size in sizes]
            found.append(static | {"graph": "one for all", "us": base * 1.1})
    return found


def test_the_waves_figure_names_every_graph_and_batch(tmp_path):
    path = report.waves(rows(), tmp_path / "waves.svg")
    texts = ["".join(node.itertext()) for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert {"triton/auto, captured for more", "helion/auto, its own", "helion/static_grid, one for all"} <= set(texts)
    assert texts.count("100") == 4 and texts.count("all") == 2
