"""Evidence for what the answer says of low precision (§2.3, and where §3 and §5 repeat it).

Half-precision products are PyTorch's own, on the CPU. Where a NaN or an infinity counts, `measured`
counts it. Inputs are chosen so that every number but the one under discussion is exact in its
format; then the tolerance is 0. [x]±100 is x, clamped; fl(·) rounds to the format; (m, ℓ)(z) are
the weights from a running maximum and denominator.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from attention_scaling import (
    FORMATS,
    clamp_scores,
    clamped_weight_ceiling,
    online_softmax,
    scaled_scores,
    softmax,
)
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.sampling import mean_of

SEED = 20260217  # with a number of its own for each claim
HEAD_DIM = 64  # d_k; its factor 1/8 is a power of two, so that scaling rounds nothing
WIDE = 512  # the answer's d_k
N_KEYS = 1024
CLAMP = 100.0
UNIT_ROUNDOFF = 2.0**-53
FLOAT16 = FORMATS["float16"]

Scores = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]

# The places of the factor s, in the format of q and k except for the last.
AFTER_PRODUCT, ON_QUERY, ON_BOTH = "fl(fl(q·k)·s)", "fl(fl(s·q)·k)", "fl(fl(√s·q)·fl(√s·k))"
IN_ACCUMULATOR, FLOAT32_SCORES = "fl(s·(q·k))", "s·(q·k)"
PLACES: dict[str, Scores] = {
    AFTER_PRODUCT: lambda q, k, s: (q @ k.mT) * s,
    ON_QUERY: lambda q, k, s: (q * s) @ k.mT,
    ON_BOTH: lambda q, k, s: (q * s**0.5) @ (k * s**0.5).mT,
    IN_ACCUMULATOR: lambda q, k, s: torch.addmm(q.new_zeros(()), q, k.mT, beta=0, alpha=s),
    FLOAT32_SCORES: lambda q, k, s: (q.float() @ k.float().mT) * s,
}


def exact(
    quantity: str, measured: float, expected: float, reason: str = "0", rival: float | None = None
) -> Measurement:
    """A measurement that must be met exactly."""
    return Measurement(quantity, measured, expected, tolerance=0, reason=reason, rival=rival)


def number_of(marked: torch.Tensor) -> int:
    """How many are True."""
    return int(marked.sum())


@evidence("extreme-tokens-overflow-after-scaling")
def extreme_tokens_overflow_after_scaling() -> list[Measurement]:
    """The limit is that of the product when the factor comes after it, and higher when before."""
    boundary = FLOAT16.overflow_boundary  # half a step beyond 65504: ties go to infinity
    after = first_in_float16(math.sqrt(boundary / HEAD_DIM))
    before = first_in_float16(math.sqrt(boundary / math.sqrt(HEAD_DIM)))
    label = "q = k = (r, …, r), d_k = 64, fp16"
    found = [
        # The rival: the division by 8 is made in time, so that the scaled score is what must fit.
        exact(
            f"min r: {AFTER_PRODUCT} = ∞, {label}",
            first_overflow(AFTER_PRODUCT),
            expected=after,
            reason="⌈√(65520/64)⌉, r ∈ fp16",
            rival=before,
        ),
        exact(
            f"min r: {ON_QUERY} = ∞, {label}",
            first_overflow(ON_QUERY),
            expected=before,
            reason="⌈√(65520/8)⌉, r ∈ fp16",
            rival=after,
        ),
    ]
    sizes = torch.linspace(32, FLOAT16.max, 1024).half()[:, None].expand(-1, HEAD_DIM)
    wide = torch.linalg.vecdot(sizes.float(), sizes.float()) / 8
    found.append(
        exact(
            f"#∞ {FLOAT32_SCORES}, r = 32 … 65504, d_k = 64",
            number_of(wide.isinf()),
            expected=0,
            reason="64·65504² < 3.4·10³⁸",
            rival=len(sizes),
        )
    )
    # One key of 1,024 with entries ±1088, which every query meets with q·k = 64·1088, up to the
    # rounding of q, which changes Σ|q_i| by less than 2⁻¹¹ of it.
    generator = seeds.generator(SEED + 23)
    sign = torch.randn(HEAD_DIM, generator=generator).sign()
    q = torch.randn(256, HEAD_DIM, generator=generator)
    q += sign - (q @ sign / HEAD_DIM)[:, None] * sign  # its component along sign is sign itself
    k = torch.randn(N_KEYS, HEAD_DIM, generator=generator)
    for name, key, expected, rival in (
        ("k_1 = ±1088", torch.cat([1088 * sign[None], k[1:]]), len(q), 0),
        ("k_j ~ N(0, 1)", k, 0, None),
    ):
        weights = softmax((q.half() @ key.half().mT / 8).float())
        found.append(
            exact(
                f"#NaN, 256 × 1024, {name}, d_k = 64, fp16",
                number_of(weights.isnan().any(dim=-1)),
                expected=expected,
                reason="64·1088 (1 − 2⁻⁶) > 65520" if expected else "0",
                rival=rival,
            )
        )
    return found


def first_in_float16(x: float) -> float:
    """The smallest number of float16 that is not below x, for x from 16 up."""
    step = FLOAT16.eps * 2.0 ** math.floor(math.log2(x))
    return math.ceil(x / step) * step


def first_overflow(place: str) -> float:
    """The smallest positive r of float16 for which q = k = (r, …, r) has an infinite score."""
    low, high = 1, 0x7C00  # positive floats are ordered like their bits; 0x7C00 is infinity
    while high - low > 1:
        middle = (low + high) // 2
        r = torch.tensor(middle, dtype=torch.int16).view(torch.float16).expand(1, HEAD_DIM)
        infinite = bool(PLACES[place](r, r, HEAD_DIM**-0.5).isinf())
        low, high = (low, middle) if infinite else (middle, high)
    return float(torch.tensor(high, dtype=torch.int16).view(torch.float16))


@evidence("bf16-overflows-too")
def bf16_overflows_too() -> list[Measurement]:
    """The entries at which bfloat16 overflows, and what it does long before."""
    powers = torch.arange(0, 64)
    r = torch.ldexp(torch.ones(64), powers).bfloat16()[:, None, None].expand(-1, 1, HEAD_DIM)
    products = (r @ r.mT * HEAD_DIM**-0.5).flatten()
    # q·k = 256 and 257, every factor and every partial sum a whole number below 512
    q = torch.ones(1, HEAD_DIM)
    k = torch.full((2, HEAD_DIM), 4.0)
    k[1, 0] = 5.0
    stored = (q.bfloat16() @ k.bfloat16().mT).float()
    in_float16 = (q.half() @ k.half().mT).float()
    e = math.exp(-1)
    return [
        against_the_answer(
            exact(
                "min log₂ r: fl(q·k)/√d_k = ∞, q = k = (r, …, r), d_k = 64, bf16",
                int(powers[products.isinf()].min()),
                expected=(128 - int(math.log2(HEAD_DIM))) // 2,
                reason="64·r² ≥ 2¹²⁸",
                rival=int(math.log2(32)),  # that of float16: by the answer the two are alike
            )
        ),
        exact(
            "fl(257), bf16",
            stored[0, 1].item(),
            expected=256,
            reason="2⁸ ≤ x < 2⁹: fl(x) ∈ 2ℤ",
            rival=257,
        ),
        exact(
            "p_2, q·k = (256, 257), bf16",
            softmax(stored)[0, 1].item(),
            expected=0.5,
            rival=1 / (1 + e),
        ),
        Measurement(
            "p_2, q·k = (256, 257), fp16",
            softmax(in_float16.double())[0, 1].item(),
            expected=1 / (1 + e),
            tolerance=4 * UNIT_ROUNDOFF,
            reason="4u",
            rival=0.5,
        ),
    ]


@evidence("overflow-makes-softmax-nan")
def overflow_makes_softmax_nan() -> list[Measurement]:
    """+∞ poisons its row, −∞ does not, and −∞ everywhere does."""
    n = 8
    rest = torch.arange(1.0, n)
    rows = (
        ("(∞, 1, …, 7)", torch.cat([torch.tensor([math.inf]), rest]), n, 1),
        ("(−∞, 1, …, 7)", torch.cat([torch.tensor([-math.inf]), rest]), 0, n),
        ("(−∞, …, −∞)", torch.full((n,), -math.inf), n, 0),
    )
    found = [
        exact(f"#NaN, p(z), z = {label}", number_of(softmax(z).isnan()), expected, rival=rival)
        for label, z, expected, rival in rows
    ]
    # Sixteen rows, half of which overflow upwards and half downwards
    q = torch.full((16, HEAD_DIM), 32.0)
    q[8:] *= -1
    k = torch.zeros(n, HEAD_DIM)
    k[0] = 32.0
    stored = q.half() @ k.half().mT
    weights = softmax((stored / 8).float())
    found.append(
        exact("#(|q·k| = ∞), q·k = ±65536, fp16", number_of(stored.isinf()), len(q), rival=0)
    )
    found.append(
        exact(
            "#NaN, q·k = ±65536, fp16",
            number_of(weights.isnan().any(dim=-1)),
            expected=8,
            rival=len(q),
        )
    )
    return found


@evidence("nan-then-exploding-gradients")
def nan_then_exploding_gradients() -> list[Measurement]:
    """One infinite score: NaN for gradients; clipping spreads it, a loss scaler skips the step."""
    length = 8
    generator = seeds.generator(SEED + 27)
    q, k, v = torch.randn(3, length, HEAD_DIM, generator=generator).half()
    q[0] = k[0] = 32.0
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    output = softmax((leaves[0] @ leaves[1].mT / 8).float()) @ leaves[2].float()
    backward: Callable[[], None] = output.square().sum().backward
    backward()
    gradients = [t.grad for t in leaves if t.grad is not None]
    nan = sum(number_of(g.isnan()) for g in gradients)
    finite = sum(number_of(g.isfinite()) for g in gradients)
    torch.nn.utils.clip_grad_norm_(leaves, 1.0)
    left = sum(number_of(g.isfinite()) for g in gradients)

    # Four steps of size ¼, the second with a NaN gradient
    w = torch.nn.Parameter(torch.ones(()))
    optimiser = torch.optim.SGD([w], lr=0.25)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for slope in (1.0, math.nan, 1.0, 1.0):
        optimiser.zero_grad()
        scaled: torch.Tensor = scaler.scale(slope * w)
        step_back: Callable[[], None] = scaled.backward
        step_back()
        scaler.step(optimiser)
        scaler.update()
    return [
        # A gradient that explodes, as the answer has it, is a number.
        against_the_answer(
            exact(
                "#NaN ∂L/∂(q, k, v), 3 · 8 × 64, z_11 = ∞",
                nan,
                expected=HEAD_DIM + 2 * length * HEAD_DIM,
                reason="64 + 2·8·64",
                rival=0,
            )
        ),
        exact("#(|∂L/∂(q, k, v)| < ∞)", finite, expected=(length - 1) * HEAD_DIM, reason="7·64"),
        exact(
            "#(|∂L/∂(q, k, v)| < ∞), g/max(1, ‖g‖)",
            left,
            expected=0,
            reason="NaN·g = NaN",
            rival=finite,
        ),
        exact(
            "(w_0 − w_4)/η, ∂L/∂w = 1, NaN, 1, 1, S_0 = 1024",
            (1 - w.item()) / 0.25,
            expected=3,
            rival=4,
        ),
        exact("S_4/S_0, ∂L/∂w = 1, NaN, 1, 1", scaler.get_scale() / 1024, expected=0.5, rival=1),
    ]


@evidence("divide-right-after-product")
def divide_right_after_product() -> list[Measurement]:
    """Aligned pairs with q·k = 204,800: five places of the factor, one overflows."""
    d, n = 128, 256
    generator = seeds.generator(SEED + 28)
    q = (40 * torch.randn(n, d, generator=generator).sign()).half()
    found = []
    for name, scores in PLACES.items():
        late = name == AFTER_PRODUCT
        own = scores(q, q, d**-0.5).diagonal()
        infinite = exact(
            f"#∞ {name}, q = k = ±40, d_k = 128, n = 256, fp16",
            number_of(own.isinf()),
            expected=n if late else 0,
            reason="128·40² > 65520 > √128·40²",
            rival=0 if late else n,
        )
        # The late place is the answer's remedy.
        found.append(against_the_answer(infinite) if late else infinite)
    # The reading under which the sentence is right: the rule in the library, for the accumulator
    modelled = scaled_scores(q[:1].float(), q[:1].float(), "in_accumulator", "float16")
    found.append(
        exact(
            f"{IN_ACCUMULATOR}, q = k = ±40, d_k = 128, fp16",
            PLACES[IN_ACCUMULATOR](q[:1], q[:1], d**-0.5).item(),
            expected=modelled.item(),
            rival=FLOAT16.max,
        )
    )
    # The same place in layer 16 with the factor s/16, and 16 times that in float32: 739328 would be
    # beyond the format, and 46208 is one of its numbers.
    q = torch.full((1, HEAD_DIM), 304.0)
    deep = scaled_scores(q, q, "in_accumulator", "float16", layer_number=16)
    found.append(
        exact(
            "16·fl(s/16·(q·k)), q = k = (304, …, 304), d_k = 64, fp16",
            deep.item(),
            expected=math.sqrt(HEAD_DIM) * 304**2,
            rival=math.sqrt(HEAD_DIM) * 304**2 / 16,
        )
    )
    return found


def three_keys() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One query and three keys with q·k = 40960, 81920, 163840, and the true weights (0, 0, 1)."""
    q = torch.full((1, HEAD_DIM), 32.0)
    k = torch.tensor([20.0, 40.0, 80.0])[:, None].expand(3, HEAD_DIM)
    return q, k, softmax(q.double() @ k.double().mT / 8)


@evidence("clamp-before-scaling")
def clamp_before_scaling() -> list[Measurement]:
    """What a clamp at ±100 does to weights, gradients, infinities and masks."""
    z = torch.zeros(N_KEYS, dtype=torch.float64)
    z[0] = 1e4
    ceiling = softmax(clamp_scores(z, CLAMP) / math.sqrt(WIDE))[0].item()

    pair = torch.tensor([150.0, 151.0], dtype=torch.float64, requires_grad=True)
    p = softmax(clamp_scores(pair, CLAMP) / 8)
    (slope,) = torch.autograd.grad(p[1], pair)
    free = 1 / (1 + math.exp(-1 / 8))

    q, k, true = three_keys()
    stored = (q.half() @ k.half().mT).float()
    tied = softmax(clamp_scores(stored, CLAMP) / 8)
    lost = softmax(clamp_scores(torch.tensor([math.nan, 1.0, 2.0]), CLAMP) / 8)

    masked = torch.full((N_KEYS,), -math.inf, dtype=torch.float64)
    masked[0] = 0.0
    leaked = softmax(clamp_scores(masked, CLAMP) / math.sqrt(WIDE))[1:].sum().item()
    others = (N_KEYS - 1) * math.exp(-CLAMP / math.sqrt(WIDE))

    # Given q, q·k is N(0, ‖q‖²): a probability that needs no hits to be estimated.
    rng = seeds.rng(SEED, 31)
    norms = np.sqrt((rng.standard_normal((30_000, WIDE)) ** 2).sum(1))
    beyond = np.array([math.erfc(CLAMP / (math.sqrt(2) * norm)) for norm in norms])
    mean, square = tail_of_dot_product(CLAMP, WIDE), tail_squared(CLAMP, WIDE)
    return [
        Measurement(
            "max p, z = [q·k]±100/√512, q·k = (10⁴, 0, …, 0), n = 1024",
            ceiling,
            expected=clamped_weight_ceiling(CLAMP, WIDE, N_KEYS),
            tolerance=(N_KEYS + 16) * UNIT_ROUNDOFF,
            reason="(n + 16) u",
            rival=1.0,
        ),
        exact(
            "p_2, z = [q·k]±100/8, q·k = (150, 5000)",
            softmax(clamp_scores(torch.tensor([150.0, 5000.0]), CLAMP) / 8)[1].item(),
            expected=0.5,
            rival=1.0,
        ),
        exact(
            "∂p_2/∂(q·k)_2, z = [q·k]±100/8, q·k = (150, 151)",
            slope[1].item(),
            expected=0,
            rival=free * (1 - free) / 8,
        ),
        # It does stop this NaN, and what it puts there is a tie.
        exact("#NaN, z = [q·k]±100/8, q·k = (40960, ∞, ∞)", number_of(tied.isnan()), 0, rival=3),
        against_the_answer(
            exact(
                "p_3, z = [q·k]±100/8, q·k = (40960, ∞, ∞)",
                tied[0, 2].item(),
                expected=float(np.float32(1 / 3)),
                rival=true[0, 2].item(),  # a defence that defends would leave it
            )
        ),
        exact("#NaN, z = [q·k]±100/8, q·k = (NaN, 1, 2)", number_of(lost.isnan()), 3, rival=0),
        Measurement(
            "Σ p_j, z_1 = 0, z_j = [−∞]±100/√512, j = 2 … 1024",
            leaked,
            expected=others / (1 + others),
            tolerance=(N_KEYS + 16) * UNIT_ROUNDOFF,
            reason="(n + 16) u",
            rival=0.0,
        ),
        mean_of(
            "P(|q·k| > 100), d_k = 512",
            beyond,
            expected=mean,
            variance=square - mean**2,
            rival=math.erfc(CLAMP / math.sqrt(2 * WIDE)),  # of a normal law with variance d_k
        ),
    ]


def tail_of_dot_product(bound: float, head_dim: int) -> float:
    """P(|q·k| > bound) for independent standard normal entries, from the characteristic function.

    φ(t) = (1 + t²)^(−d/2), and P(|x| ≤ b) = (2/π) ∫₀^∞ φ(t) sin(bt)/t dt.
    """
    t = np.linspace(0, 1.5, 400_001)
    values = bound * np.sinc(bound * t / np.pi) * (1 + t**2) ** (-head_dim / 2)
    within = 2 / np.pi * simpson(values, t[1])
    return float(1 - within)


def tail_squared(bound: float, head_dim: int) -> float:
    """E[P(|q·k| > bound | q)²], over ‖q‖, which follows the χ law with d_k degrees of freedom."""
    radius = np.linspace(math.sqrt(head_dim) - 8, math.sqrt(head_dim) + 8, 4001)
    log_density = (head_dim - 1) * np.log(radius) - radius**2 / 2
    weight = np.exp(log_density - log_density.max())
    tail = np.array([math.erfc(bound / (math.sqrt(2) * r)) for r in radius])
    return float((weight * tail**2).sum() / weight.sum())


def simpson(values: np.ndarray[tuple[int], np.dtype[np.float64]], step: float) -> float:
    """Simpson's rule on an odd number of equally spaced values."""
    odd, even = values[1:-1:2].sum(), values[2:-1:2].sum()
    return float(step / 3 * (values[0] + 4 * odd + 2 * even + values[-1]))


@evidence("need-flash-or-clamp")
def need_flash_or_clamp() -> list[Measurement]:
    """Three cures that are neither, and what the two do with scores stored in float16."""
    q, k, true = three_keys()
    found = []
    for label, placement, fmt in (
        (f"{FLOAT32_SCORES}, fp16", "float32_scores", "float16"),
        (f"{ON_QUERY}, fp16", "on_query", "float16"),
        (f"{AFTER_PRODUCT}, bf16", "after_product", "bfloat16"),
    ):
        p = softmax(scaled_scores(q, k, placement, fmt))
        # By the answer they overflow, since they are neither of its two cures.
        found.append(
            against_the_answer(
                exact(
                    f"#NaN, q·k = (40960, 81920, 163840), {label}",
                    number_of(p.isnan()),
                    expected=0,
                    rival=3,
                )
            )
        )
        found.append(
            exact(f"p_3, {label}", p[0, 2].item(), expected=true[0, 2].item(), rival=1 / 3)
        )
    stored = (q.half() @ k.half().mT).float()
    for symbol, function in (("p(z)", softmax), ("(m, ℓ)(z)", online_softmax)):
        found.append(
            exact(
                f"#NaN, z = {AFTER_PRODUCT}, fp16, {symbol}",
                number_of(function(stored / 8).isnan()),
                expected=3,
                rival=0 if function is online_softmax else None,
            )
        )
    clamped = softmax(clamp_scores(stored, CLAMP) / 8)
    found.append(
        exact(
            "p_3, z = [fl(q·k)]±100·s, fp16",
            clamped[0, 2].item(),
            expected=float(np.float32(1 / 3)),
            rival=true[0, 2].item(),
        )
    )
    return found


@evidence("overflow-is-superficial")
def overflow_is_superficial() -> list[Measurement]:
    """At unit variance nothing overflows and the factor acts; its place is another matter."""
    rng = seeds.rng(SEED, 69)
    n, d = 100_000, HEAD_DIM
    q = rng.standard_normal((n, d))
    k = rng.standard_normal((n, 2, d))
    raw = np.einsum("nd,nkd->nk", q, k)
    in_float16 = torch.tensor(raw).half()
    found = [
        exact(
            "#∞ fl(q·k), q_i, k_i ~ N(0, 1), d_k = 64, n = 200000, fp16",
            number_of(in_float16.isinf()),
            expected=0,
            rival=1,
        )
    ]
    scaled_mean, _ = moments_of_slope(d**-0.5, d)
    for label, scale, rival in (("1", 1.0, scaled_mean), ("1/√d_k", d**-0.5, None)):
        p = np.asarray(softmax(raw * scale))
        mean, square = moments_of_slope(scale, d)
        found.append(
            mean_of(
                f"E[p(1 − p)], n = 2, s = {label}, d_k = 64, fp64",
                p[:, 0] * p[:, 1],
                expected=mean,
                variance=square - mean**2,
                rival=rival,  # nothing overflows here, so the factor would be idle
            )
        )
    aligned = torch.full((1, d), 32.0).half()
    for place, expected in ((AFTER_PRODUCT, 1), (ON_QUERY, 0)):
        found.append(
            exact(
                f"#∞ {place}, q = k = (32, …, 32), d_k = 64, fp16",
                number_of(PLACES[place](aligned, aligned, d**-0.5).isinf()),
                expected=expected,
                rival=1 - expected,
            )
        )
    return found


def moments_of_slope(scale: float, head_dim: int) -> tuple[float, float]:
    """E[p(1−p)] and E[(p(1−p))²] for two keys, by quadrature.

    Given q, the difference of the two logits is N(0, 2s²‖q‖²); ‖q‖ follows the χ law, and
    p(1 − p) = 1/(4 cosh²(g/2)) for a difference g.
    """
    radius = np.linspace(math.sqrt(head_dim) - 7, math.sqrt(head_dim) + 7, 401)
    log_density = (head_dim - 1) * np.log(radius) - radius**2 / 2
    density = np.exp(log_density - log_density.max())
    t = np.linspace(-9, 9, 8001)
    normal = np.exp(-(t**2) / 2)
    gap = math.sqrt(2) * scale * radius[:, None] * t
    slope = 1 / (4 * np.cosh(np.clip(gap / 2, -300, 300)) ** 2)
    weight = density[:, None] * normal
    total = weight.sum()
    return float((weight * slope).sum() / total), float((weight * slope**2).sum() / total)


@evidence("fp32-or-clamp-solves-overflow")
def fp32_or_clamp_solves_overflow() -> list[Measurement]:
    """Float32 gives the true weights back, the clamp gives numbers."""
    q, k, true = three_keys()
    half_q, half_k = q.half(), k.half()
    wide = softmax((half_q.float() @ half_k.float().mT) / 8)
    stored = (half_q @ half_k.mT).float()
    clamped = softmax(clamp_scores(stored, CLAMP) / 8)
    # In range, where float32 does nothing: q·k = 150 and 151
    pair = softmax(clamp_scores(torch.tensor([150.0, 151.0], dtype=torch.float64), CLAMP) / 8)
    bad = clamp_scores(torch.tensor([math.nan, math.inf]), CLAMP)
    return [
        exact("#∞ fl(q·k), q·k = (40960, 81920, 163840), fp16", number_of(stored.isinf()), 2),
        exact("p_3, s·(q·k), fp32", wide[0, 2].item(), true[0, 2].item(), rival=1 / 3),
        exact("#NaN, s·(q·k), fp32", number_of(wide.isnan()), 0, rival=3),
        against_the_answer(
            exact(
                "p_3, z = [fl(q·k)]±100/8, fp16",
                clamped[0, 2].item(),
                expected=float(np.float32(1 / 3)),
                rival=true[0, 2].item(),  # a solved overflow gives the true weight
            )
        ),
        exact(
            "p_2, z = [q·k]±100/8, q·k = (150, 151)",
            pair[1].item(),
            expected=0.5,
            rival=1 / (1 + math.exp(-1 / 8)),
        ),
        exact("#NaN, [(NaN, ∞)]±100", number_of(bad.isnan()), expected=1, rival=0),
    ]
