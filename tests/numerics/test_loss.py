"""What a format lost, piece by piece, against all at once."""

import pytest
import torch

from rose.numerics.loss import measure_loss


@pytest.mark.parametrize("block_shape", [(1, 1), (1, 32), (1, 0), (128, 128), (0, 0)])
@pytest.mark.parametrize("shape", [(2, 150, 300), (2, 3, 20_000), (7, 96)])
def test_a_loss_is_that_of_the_whole(shape, block_shape):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator)
    values[..., 0, :2] = 0
    restored = values.clone()
    changed = torch.rand(shape, generator=generator) < 0.001
    restored[changed] *= 1.125
    restored[..., -1, -1] = 0
    loss = measure_loss(values, restored, block_shape)

    error = (restored - values).abs().view(-1, *shape[-2:]).numpy()
    m, n = shape[-2:]
    rows, columns = block_shape[0] or m, block_shape[1] or n
    worst = [
        error[matrix, top : top + rows, left : left + columns].max()
        for matrix in range(len(error))
        for top in range(0, m, rows)
        for left in range(0, n, columns)
    ]
    inexact, total = sum(block > 0 for block in worst), len(worst)
    assert (loss.exact_blocks, loss.inexact_blocks) == (total - inexact, inexact)
    assert loss.max_abs_error == error.max()
    assert loss.max_relative_error == 1.0  # the one that became zero
    assert loss.squared_error == pytest.approx((error.astype(float) ** 2).sum(), rel=1e-12)
    assert loss.squared_values == pytest.approx(float(values.double().square().sum()), rel=1e-12)


def test_nothing_lost():
    values = torch.randn(2, 300, 320)
    loss = measure_loss(values, values.clone(), (128, 128))
    assert (loss.exact_blocks, loss.inexact_blocks, loss.rms_relative_error) == (2 * 3 * 3, 0, 0.0)
