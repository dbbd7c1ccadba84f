"""What is solved: the fewest devices, the longest sequence."""

from forescale.advise.solve import _dividing


def test_numbers_of_nodes_that_divide_a_batch():
    assert _dividing(576, 256, 512, node=8) == [288, 384]
    assert _dividing(512, 256, 512, node=8) == []
    assert all(count % 16 == 0 for count in _dividing(720, 128, 1024, node=16))
