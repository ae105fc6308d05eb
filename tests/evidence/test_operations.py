"""The list of operations that torch carries out, on cases that can be counted by hand."""

import torch

from scaling_book.evidence.operations import Operation, operations_of


def test_sums_and_elementwise_operations_are_counted():
    x = torch.ones(3, 5)
    total, product, root = operations_of(lambda: (x.sum(dim=-1) * 2.0).sqrt())
    assert total == Operation("sum", read=15, written=3)
    assert total.is_reduction
    assert total.flops == 3 * 4
    assert (product.name, product.flops, product.is_reduction) == ("mul", 3, False)
    assert root.flops == 3


def test_views_are_left_out_and_copies_cost_no_arithmetic():
    x = torch.ones(4, 6)
    assert operations_of(lambda: x.mT[:2].unsqueeze(0).split(3, dim=1)) == []
    (copy,) = operations_of(lambda: x.mT.reshape(-1))
    assert (copy.written, copy.flops) == (24, 0)


def test_the_largest_result_is_seen_inside_a_function():
    q = torch.ones(7, 3)
    sizes = [operation.written for operation in operations_of(lambda: (q @ q.mT).softmax(dim=-1))]
    assert max(sizes) == 49
