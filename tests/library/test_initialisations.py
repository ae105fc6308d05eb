"""Initialisations: the law of each against weights and logits drawn by the real initialiser."""

import math

import pytest
import torch
from torch import nn

from attention_scaling import (
    INITIALISATIONS,
    Initialisation,
    estimate_mean,
    estimate_std,
    estimate_variance,
    initial_logit_std,
    initial_query_variance,
    sample_initial_logits,
)

NAMES = list(INITIALISATIONS)
D_MODEL, HEAD_DIM = 768, 64
#: Var(q_i) for E[x²] = 1, d_model = 768, d_k = 64, by hand.
QUERY_VARIANCE = {
    "lecun": 1.0,
    "xavier_square": 1.0,
    "xavier_per_head": 2 * 768 / (768 + 64),
    "mha_packed": 1 / 2,
    "torch_linear": 1 / 3,
    "gpt2": 768 * 0.0004,
}


def generator(seed):
    return torch.Generator().manual_seed(seed)


def test_every_initialisation_has_its_value_by_hand():
    assert set(NAMES) == set(QUERY_VARIANCE)
    for name, variance in QUERY_VARIANCE.items():
        assert initial_query_variance(name, D_MODEL, HEAD_DIM) == pytest.approx(variance, rel=1e-14)
        assert INITIALISATIONS[name].name == name


@pytest.mark.parametrize("name", NAMES)
def test_weights_have_the_variance_of_the_law(name):
    init = INITIALISATIONS[name]
    law = init.weight_variance(D_MODEL, HEAD_DIM)
    w_q, w_k = init.sample_weights(D_MODEL, HEAD_DIM, generator=generator(1))
    for weight in (w_q, w_k):
        assert weight.shape == (D_MODEL // HEAD_DIM, HEAD_DIM, D_MODEL)
        estimate = estimate_variance(weight.flatten())
        assert estimate.standard_error <= 0.01 * law
        assert abs(estimate.z_score(law)) < 4
        for rival in NAMES:
            other = INITIALISATIONS[rival].weight_variance(D_MODEL, HEAD_DIM)
            assert other == law or abs(estimate.z_score(other)) >= 5
        if not init.formula.startswith("N"):  # U(±a) has variance a²/3 and ends at a
            assert float(weight.abs().max()) == pytest.approx(math.sqrt(3 * law), rel=1e-4)
        else:  # among 590,000 normal numbers some pass 4σ (63 in 10⁶ do)
            assert float(weight.abs().max()) > 4 * math.sqrt(law)
    assert not torch.equal(w_q, w_k)


@pytest.mark.parametrize("name", NAMES)
def test_logits_have_the_std_of_the_law(name):
    law = initial_logit_std(name, D_MODEL, HEAD_DIM)
    assert law == pytest.approx(8 * QUERY_VARIANCE[name], rel=1e-14)
    logits = sample_initial_logits(name, D_MODEL, HEAD_DIM, 30_000, generator=generator(2))
    assert logits.shape == (30_000,)
    assert logits.dtype == torch.float64
    estimate = estimate_std(logits)
    assert estimate.standard_error <= 0.01 * law
    assert abs(estimate.z_score(law)) < 4
    assert abs(estimate.z_score(64 * QUERY_VARIANCE[name])) >= 5  # d in place of √d
    if law != 8:
        assert abs(estimate.z_score(8.0)) >= 5  # the premise of unit variance
    assert abs(estimate_mean(logits).z_score(0)) < 4


def test_scale_and_input_enter_the_law_and_the_sample():
    options = {"input_second_moment": 2.0, "scale": 0.125}
    law = initial_logit_std("torch_linear", 256, 64, **options)
    assert law == pytest.approx(0.125 * 8 * 256 / (3 * 256) * 2)
    logits = sample_initial_logits(
        "torch_linear", 256, 64, 30_000, generator=generator(3), **options
    )
    assert abs(estimate_std(logits).z_score(law)) < 4
    assert abs(estimate_std(logits).z_score(law * 2)) >= 5  # second moment squared
    assert initial_logit_std("gpt2", 768, 64, scale=-1.0) > 0


def test_variance_given_the_weights_spreads_as_documented():
    """Given W the variance is ‖W_Qᵀ W_K‖²_F; over draws it spreads by about 2/√(d_k d_model).

    100 heads show a spread to 1/√200 = 7 %, so 25 % is 3.5 of these.
    """
    w_q, w_k = INITIALISATIONS["lecun"].sample_weights(6400, 64, generator=generator(4))
    w_q, w_k = w_q[:, :16].double(), w_k[:, :16].double()  # d_k = 16, of width 6400
    # ‖W_Qᵀ W_K‖²_F = tr(W_Q W_Qᵀ W_K W_Kᵀ)
    conditional = ((w_q @ w_q.mT) * (w_k @ w_k.mT)).sum(dim=(-2, -1))
    assert float(conditional.mean()) == pytest.approx(16, rel=0.01)
    assert float(conditional.std()) / 16 == pytest.approx(2 / math.sqrt(16 * 6400), rel=0.25)


def test_law_needs_no_random_tokens():
    """One-hot tokens of mean square 1, the same for query and key: the law holds over draws of W.

    q and k of token j are column j of W_Q and W_K times √d_model, independent from head to head
    and from token to token. The rival confuses this with q = k, whose variance is 2 d_k.
    """
    d_model, d_k = 1024, 16
    weights = INITIALISATIONS["xavier_square"].sample_weights(d_model, d_k, generator=generator(5))
    q, k = (math.sqrt(d_model) * w.double() for w in weights)  # (heads, d_k, tokens)
    estimate = estimate_variance((q * k).sum(dim=1).flatten())
    assert estimate.standard_error <= 0.01 * d_k
    assert abs(estimate.z_score(initial_logit_std("xavier_square", d_model, d_k) ** 2)) < 4
    assert abs(estimate.z_score(2 * d_k)) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_randomness_comes_from_the_generator_alone(name):
    before = torch.get_rng_state()
    one = sample_initial_logits(name, 64, 16, 300, generator=generator(6))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(123)
    two = sample_initial_logits(name, 64, 16, 300, generator=generator(6))
    assert torch.equal(one, two)
    assert not torch.equal(one, sample_initial_logits(name, 64, 16, 300, generator=generator(7)))


def test_the_real_modules_draw_the_weights():
    torch.manual_seed(0)
    expected = nn.MultiheadAttention(64, 4).in_proj_weight
    torch.manual_seed(0)
    w_q, w_k = INITIALISATIONS["mha_packed"].draw(64, 16)
    assert torch.equal(w_q, expected[:64])
    assert torch.equal(w_k, expected[64:128])
    torch.manual_seed(0)
    expected = nn.Linear(64, 64, bias=False).weight
    torch.manual_seed(0)
    assert torch.equal(INITIALISATIONS["torch_linear"].draw(64, 16)[0], expected)


def test_own_initialisation():
    def draw(d_model, head_dim):
        return torch.zeros(d_model, d_model), torch.ones(d_model, d_model)

    zero = Initialisation("zero_query", "0", lambda d_model, head_dim: 0.0, draw)
    assert initial_logit_std(zero, 64, 16) == 0
    assert (sample_initial_logits(zero, 64, 16, 10, generator=generator(8)) == 0).all()
