"""The search for the first NaN: it names the module, disturbs nothing and cleans up."""

import math

import pytest
import torch
from torch import nn

from attention_scaling import find_first_nonfinite


class Scores(nn.Module):
    """q kᵀ in the format of its inputs: overflows in float16."""

    def forward(self, q, *, k):
        return {"scores": q @ k.mT, "shape": q.shape}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(4, 64, bias=False)
        self.scores = Scores()
        self.mix = nn.Identity()

    def forward(self, x):
        q = self.project(x)
        scores = self.scores(q.half(), k=q.half())["scores"].float()
        return self.mix(torch.softmax(scores / 8, dim=-1)), "text"


def model(size):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Identity(), Head())
    nn.init.constant_(net[1].project.weight, size)
    return net


def hooks(net):
    return [
        hook
        for module in net.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ] + [hook for p in net.parameters() for hook in (p._backward_hooks or {}).values()]


def test_names_the_module_that_made_it():
    net = model(10.0)  # q = 40 and q·k = 102,400: inf in float16
    with find_first_nonfinite(net) as watch:
        output, _ = net(torch.ones(3, 4))
    assert output.isnan().all()
    report = watch.forward
    assert (report.module, report.kind, report.tensor) == ("1.scores", "output", "['scores']")
    assert (report.n_nan, report.n_inf, report.n) == (0, 9, 9)
    assert report.max_abs_input == 40
    assert str(report) == (
        "1.scores: output ['scores'] has 0 NaN and 9 inf among 9; "
        "largest finite magnitude 0, inputs 40"
    )
    assert watch.backward is None


def test_names_the_argument_that_came_in():
    net = model(1.0)
    with find_first_nonfinite(net) as watch:
        net(torch.tensor([[1.0, math.nan, 2.0, 3.0]]))
    assert (watch.forward.module, watch.forward.kind, watch.forward.tensor) == ("", "input", "[0]")
    assert watch.forward.max_abs == 3
    assert str(watch.forward).startswith("(model): input [0] has 1 NaN")
    assert "inputs" not in str(watch.forward)
    with find_first_nonfinite(net[1].scores) as watch:
        net[1].scores(torch.ones(1, 2), k=torch.tensor([[math.inf, 1.0]]))
    assert (watch.forward.kind, watch.forward.tensor) == ("input", "['k']")


def test_what_happens_between_modules_shows_as_input_of_the_next():
    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Identity(), nn.Identity()

        def forward(self, x):
            return self.second(self.first(x).log())

    with find_first_nonfinite(Between()) as watch:
        Between()(torch.zeros(2))  # another model: not watched
    assert watch.forward is None
    net = Between()
    with find_first_nonfinite(net) as watch:
        net(torch.zeros(2))
    assert (watch.forward.module, watch.forward.kind) == ("second", "input")


def test_finite_models_are_left_alone():
    net = model(1.0)
    x = torch.ones(3, 4, requires_grad=True)
    net(x)[0].square().sum().backward()
    expected = [x.grad, *(p.grad for p in net.parameters())]
    x.grad = None
    net.zero_grad()
    with find_first_nonfinite(net) as watch:
        net(x)[0].square().sum().backward()
    assert watch.forward is watch.backward is None
    for mine, other in zip([x.grad, *(p.grad for p in net.parameters())], expected, strict=True):
        assert torch.equal(mine, other)


def test_gradients_in_the_order_of_the_backward_pass():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU())
    with find_first_nonfinite(net) as watch:
        (net(torch.ones(1, 2)).square().sum().sqrt() * math.inf).backward()
    assert watch.forward is None
    assert (watch.backward.module, watch.backward.kind) in {
        ("2", "output gradient"),
        ("", "output gradient"),
    }

    class RootOfWeight(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return x * self.weight.sqrt()  # finite, but its slope at 0 is infinite

    net = nn.Sequential(nn.Linear(2, 2), RootOfWeight())
    with find_first_nonfinite(net) as watch:
        net(torch.ones(1, 2)).sum().backward()
    assert watch.forward is None
    assert (watch.backward.module, watch.backward.kind, watch.backward.tensor) == (
        "1",
        "parameter gradient",
        "weight",
    )
    assert math.isnan(watch.backward.max_abs_input)


def test_hooks_are_removed_also_after_an_error():
    net = model(1.0)
    before = len(hooks(net))
    with find_first_nonfinite(net):
        assert len(hooks(net)) > before
        kept, _ = net(torch.ones(3, 4))
    assert len(hooks(net)) == before == 0
    with pytest.raises(RuntimeError, match="mat"), find_first_nonfinite(net):
        net(torch.ones(3, 5))
    assert len(hooks(net)) == 0
    # a backward pass after the end is no longer looked at
    with find_first_nonfinite(net) as watch:
        late, _ = net(torch.ones(3, 4))
    (late.sum() * math.nan).backward()
    assert watch.backward is None
    assert kept.isfinite().all()


def test_masks_may_hold_minus_infinity():
    net = nn.Identity()
    mask = torch.tensor([0.0, -math.inf])
    with find_first_nonfinite(net, allow_negative_infinity=True) as watch:
        net(mask)
        assert watch.forward is None
        net(-mask)
    assert watch.forward.n_inf == 1
    with find_first_nonfinite(net) as watch:
        net(
            (torch.arange(3), torch.empty(0), [mask])
        )  # integers are no trouble, nesting is no obstacle
    assert watch.forward.tensor == "[0][2][0]"


def test_every_format_can_be_looked_at():
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2):
        x = torch.tensor([1.0, -2.0, math.inf]).to(dtype)
        net = nn.Identity()
        with find_first_nonfinite(net) as watch:
            net(x)
        assert (watch.forward.n_inf, watch.forward.max_abs) == (1, 2)
