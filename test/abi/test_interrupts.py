"""An interrupt while sessions are given back: nobody drives until all of them are, and who closes
again gets them.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from flashrt_core.drawing import noise_for
from flashrt_core.errors import SessionError
from flashrt_core.session import Session
from test.abi import host as api
from test.abi.host import Host
from test.core import toy
from test.core.cut import Cut

# The end of a generator is a step too, of which Python only tells.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def check(session: Session, value: int, index: int) -> None:
    chunk = session.act()
    assert chunk.index == index
    expected = toy.expected(value, "ab", noise_for(7, index, (2, 3)))
    assert np.array_equal(chunk.raw, expected.astype(np.float32))


@pytest.mark.parametrize(
    ("first", "way"), [(1, "close again"), (2, "export again"), (3, "close the engine")]
)
def test_closing_an_export(library_path: Path, first: int, way: str) -> None:
    lent = 0
    for number in count(first, 6):
        engine = toy.engine()
        main = engine.create_session("main", seed=7, prompt="ab")
        main.decide(toy.see(3))
        export = main.export()
        host = Host(export)
        assert host.write("image", np.full((2, 2, 3), 5, np.uint8)) == api.OK
        assert host.write("noise", noise_for(7, 1, (2, 3))) == host.decide() == api.OK
        host.do("snapshot", b"of c")
        with Cut(number) as cut:
            export.close()
        if engine.lent is not None:
            lent += 1
            with pytest.raises(SessionError, match="exported to the C interface"):
                main.act()
        if way == "close again":
            export.close()
        elif way == "export again":
            try:
                with main.export() as another:
                    assert Host(another).write("noise", noise_for(7, 2, (2, 3))) == api.OK
            except SessionError as error:  # the end had not begun
                assert "got one that is exported" in str(error)
                export.close()
        else:
            engine.close()
        if way != "close the engine":
            check(main, 5, 2)
            check(engine.fork("branch", capsule="of c"), 5, 2)
            assert len(engine.capsules.slots()) == 2 and len(engine.free_parking) == 1
            engine.close()
        if cut.done:
            break
    assert number > 30 and 0 < lent < number
