"""compare.process.pool: jobs that nobody has taken stay for the lanes that are still to begin."""

import threading

from compare.process.pool import Jobs, Pool, in_order


class OneByOne(Pool):
    """A lane begins when the one before it has had its time, as on a machine with much else to do."""

    def _begin(self, lane):
        thread = threading.Thread(target=self._work, args=(lane,), daemon=True)
        thread.start()
        thread.join(0.3)


def test_a_lane_that_ends_before_the_next_begins_takes_nothing_along():
    pool = OneByOne([lambda taken: iter(()), iter], Jobs([1, 2, 3], of=in_order))
    assert list(pool.results()) == [1, 2, 3]
