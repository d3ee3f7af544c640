"""Typical, epsilon, eta, top-H and the transforms that transformers lacks, against their papers.

Every oracle here is plain Python in float64, written from the definition.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import purgen
from purgen import LogitsTransform
from purgen.testing import example_view, toy_model

INF = torch.inf
EDGE = 1e-4  # tokens nearer to their edge than this are float32's to decide


def apply(transform, logits, num_new_tokens=0):
    logits = torch.tensor(logits) if not isinstance(logits, torch.Tensor) else logits
    view = example_view(
        batch_size=len(logits), vocab_size=max(logits.shape[-1], 2), num_new_tokens=num_new_tokens
    )
    view = purgen.replace(view, vocab_size=logits.shape[-1])
    return transform.apply(transform.init(view), logits, view)[0]


def kept(transform, probabilities, **options):
    """The tokens that stay of a distribution."""
    result = apply(transform, torch.tensor([probabilities]).log(), **options)[0]
    return (result > -INF).nonzero()[:, 0].tolist()


@st.composite
def rows(draw):
    """Logits float32 [1, V]: sharp and flat, some with ties, some with forbidden tokens."""
    size = draw(st.sampled_from([1, 2, 3, 8, 130]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = torch.randn(1, size, generator=generator)
    logits = logits * draw(st.sampled_from([0.1, 1.0, 4.0, 20.0]))
    if draw(st.booleans()):
        logits = logits.round()
    if draw(st.booleans()):
        forbidden = torch.rand(1, size, generator=generator) < 0.4
        forbidden[:, draw(st.integers(0, size - 1))] = False
        logits = logits.masked_fill(forbidden, -INF)
    return logits


def numbers(low, high):
    return st.floats(low, high, width=32, allow_subnormal=False)


# Filters. An oracle gives each token a margin: it stays where that is above 0.


def softmax(row):
    top = max(row)
    weights = [math.exp(x - top) for x in row]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def plogp(p):
    return -p * math.log(p) if p > 0 else 0.0


def excess(p, bound):
    """How far p is above a bound, as a share of the larger."""
    return (p - bound) / max(p, bound, 1e-300)


def best_first(row):
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def by_rank(row, margins):
    out = [0.0] * len(row)
    for token, margin in zip(best_first(row), margins, strict=True):
        out[token] = margin
    return out


def epsilon_margin(row, epsilon):
    probabilities = softmax(row)
    top = max(probabilities)
    return [1.0 if p == top else excess(p, epsilon) for p in probabilities]


def eta_margin(row, epsilon):
    entropy = math.fsum(map(plogp, softmax(row)))
    return epsilon_margin(row, min(epsilon, math.sqrt(epsilon) * math.exp(-entropy)))


def typical_margin(row, mass):
    probabilities = softmax(row)
    entropy = math.fsum(map(plogp, probabilities))
    distance = [abs(-math.log(p) - entropy) if p > 0 else INF for p in probabilities]
    order = sorted(range(len(row)), key=lambda token: (distance[token], token))
    margins, held, previous = [0.0] * len(row), 0.0, -1.0
    for token in order:
        # Where two are as typical as each other but for rounding, it decides.
        tied = distance[token] - previous < EDGE
        margins[token] = 0.0 if tied else mass - held
        held, previous = held + probabilities[token], distance[token]
    return margins if mass < 1 else [1.0] * len(row)


def top_h_margin(row, top_h):
    terms = [plogp(p) for p in sorted(softmax(row), reverse=True)]
    whole, held, margins = math.fsum(terms), 0.0, []
    for term in terms:
        held += term
        margins.append(top_h * whole - held if margins and top_h < 1 else 1.0)
    return by_rank(row, margins)


def top_n_sigma_margin(row, n):
    finite = [x for x in row if x > -INF]
    mean = math.fsum(finite) / len(finite)
    sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in finite) / len(finite))
    return [x - (max(row) - n * sigma) for x in row]


def top_a_margin(row, top_a):
    probabilities = softmax(row)
    return [excess(p, top_a * max(probabilities) ** 2) for p in probabilities]


def tail_free_margin(row, z):
    p = sorted(softmax(row), reverse=True)
    curvature = [abs(a - 2 * b + c) for a, b, c in zip(p, p[1:], p[2:], strict=False)]
    total = math.fsum(curvature)
    if z >= 1 or total == 0:
        return [1.0] * len(row)
    assume(total > 1e-3)  # else it is made of rounding
    margins, before = [1.0], 0.0
    for value in curvature:
        before += value / total
        margins.append(z - before)
    return by_rank(row, [*margins, z - 1.0])


def p_less_margin(row, normalize):
    probabilities = softmax(row)
    bound = math.fsum(p * p for p in probabilities)
    if normalize:
        size = len(row)
        bound = (size * bound - 1) / (size - 1) if size > 1 else 0.0
    return [excess(p, bound) if p > 0 else 0.0 for p in probabilities]


def min_k_margin(row, tau):
    order = [token for token in best_first(row) if row[token] > -INF]
    finite = [row[token] for token in order]
    size = finite[0] - finite[-1]
    falls = [(a - b) / i for i, (a, b) in enumerate(itertools.pairwise(finite), 1)]
    steepest = max(falls, default=0.0)
    assume(sum(fall > steepest - EDGE for fall in falls) <= 1 or steepest == 0)
    cliff = falls.index(steepest) + 1 if falls else 1
    if size == 0:
        count = len(finite) if tau > 0 else 1
    else:
        assume(abs(tau / size - round(tau / size)) > EDGE)
        count = min(max(cliff, math.floor(tau / size)), len(finite))
    return [x - finite[count - 1] + 2 * EDGE for x in row]  # tied ones stay


def mirostat_margin(row, tau):
    probabilities = softmax(row)
    top = max(probabilities)
    return [1.0 if p == top else 2 * tau + math.log2(p) if p > 0 else -1.0 for p in probabilities]


def mirostat_1_margin(row, tau, m):
    probabilities = sorted(softmax(row), reverse=True)
    top, bottom = 0.0, 0.0
    for i, (a, b) in enumerate(itertools.pairwise(probabilities[:m]), 1):
        if row[best_first(row)[i]] == -INF:
            break
        step = math.log((i + 1) / i)
        top += step * (math.log(a) - math.log(b))
        bottom += step * step
    if bottom == 0:  # one token
        return [1.0] * len(row)
    assume(top > 1e-3)
    exponent, size = top / bottom, len(row)
    assume(abs(exponent - 1) > 1e-3)
    count = (exponent - 1) * 2 ** (2 * tau) / (1 - size ** (1 - exponent))
    power = math.log(count) / exponent
    count = size if power > math.log(size) else math.exp(power)
    assume(abs(count % 1 - 0.5) > 1e-2)
    last = sorted(row, reverse=True)[min(round(count) + 1, size) - 1]
    return [x - last + 2 * EDGE if x > -INF else -1.0 for x in row]


def xtc_margin(row, threshold):
    probabilities = softmax(row)
    assume(all(abs(p - threshold) > 1e-5 for p in probabilities))
    viable = [i for i, p in enumerate(probabilities) if p > threshold]
    least = min(viable, key=lambda token: (row[token], -token), default=None)
    return [-1.0 if i in viable and i != least else 1.0 for i in range(len(row))]


@dataclasses.dataclass(frozen=True)
class Filter:
    """A transform that forbids tokens, and what its paper says of each."""

    settings: dict[str, st.SearchStrategy[Any]]
    make: Callable[..., LogitsTransform]
    margin: Callable[..., list[float]]


UNIT = numbers(0, 1)
FILTERS = {
    "typical_p": Filter({"mass": UNIT}, purgen.typical_p, typical_margin),
    "epsilon_cutoff": Filter({"epsilon": UNIT}, purgen.epsilon_cutoff, epsilon_margin),
    "eta_cutoff": Filter({"epsilon": UNIT}, purgen.eta_cutoff, eta_margin),
    "top_h": Filter({"top_h": UNIT}, purgen.top_h, top_h_margin),
    "top_n_sigma": Filter({"n": numbers(0, 4)}, purgen.top_n_sigma, top_n_sigma_margin),
    "top_a": Filter({"top_a": UNIT}, purgen.top_a, top_a_margin),
    "tail_free": Filter({"z": UNIT}, purgen.tail_free, tail_free_margin),
    "p_less": Filter({"normalize": st.booleans()}, purgen.p_less, p_less_margin),
    "min_k": Filter({"tau": numbers(0, 50)}, purgen.min_k, min_k_margin),
    "mirostat 2": Filter({"tau": numbers(0, 6)}, purgen.mirostat, mirostat_margin),
    "mirostat 1": Filter(
        {"tau": numbers(0, 6), "m": st.sampled_from([2, 5, 100])},
        lambda **options: purgen.mirostat(version=1, **options),
        mirostat_1_margin,
    ),
    "xtc": Filter(
        {"threshold": UNIT}, lambda threshold: purgen.xtc(1.0, threshold=threshold), xtc_margin
    ),
}


@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_filter_keeps_what_its_definition_says(name, data):
    case = FILTERS[name]
    logits, options = data.draw(rows()), data.draw(st.fixed_dictionaries(case.settings))
    result = apply(case.make(**options), logits)
    margin = torch.tensor([case.margin(logits[0].tolist(), **options)])
    stays = result > -INF
    decided = (logits > -INF) & (margin.abs() > EDGE)
    assert torch.equal(stays[decided], margin[decided] > 0)
    assert torch.equal(result[stays], logits[stays])
    assert stays.any()


# Shapers. An oracle gives the logits.


def entropy(row):
    return math.fsum(map(plogp, softmax(row)))


def dynamic_oracle(row, low, high, exponent):
    allowed = sum(x > -INF for x in row)
    share = entropy(row) / math.log(allowed) if allowed > 1 else 0.0
    heat = low + (high - low) * share**exponent
    return [x / heat for x in row]


def entropy_oracle(row, threshold, low, high):
    assume(abs(entropy(row) - threshold) > EDGE)
    return [x / (high if entropy(row) > threshold else low) for x in row]


def quadratic_oracle(row, smoothing_factor, smoothing_curve):
    top = max(row)
    k, s = (3 - smoothing_curve) / 2, (smoothing_curve - 1) / 2
    return [
        x
        if x == -INF
        else -k * smoothing_factor * (x - top) ** 2 + s * smoothing_factor * (x - top) ** 3 + top
        for x in row
    ]


HEAT = numbers(0.125, 4)
SHAPERS = {
    "dynamic_temperature": (
        {"low": HEAT, "high": HEAT, "exponent": numbers(1, 4)},  # below 1 it magnifies rounding
        purgen.dynamic_temperature,
        dynamic_oracle,
    ),
    "entropy_temperature": (
        {"threshold": numbers(0, 5), "low": HEAT, "high": HEAT},
        purgen.entropy_temperature,
        entropy_oracle,
    ),
    "quadratic": (
        {"smoothing_factor": HEAT, "smoothing_curve": numbers(1, 5)},
        purgen.quadratic,
        quadratic_oracle,
    ),
}


@pytest.mark.parametrize("name", SHAPERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_shaper_gives_what_its_definition_says(name, data):
    options, make, oracle = SHAPERS[name]
    logits, options = data.draw(rows()), data.draw(st.fixed_dictionaries(options))
    expected = torch.tensor([oracle(logits[0].tolist(), **options)])
    torch.testing.assert_close(apply(make(**options), logits), expected, rtol=1e-3, atol=1e-4)


# By hand.

HALVES = [0.5, 0.25, 0.125, 0.125]  # entropy 1.75 bits; surprise 1, 2, 3, 3


@pytest.mark.parametrize(
    ("transform", "probabilities", "expected"),
    [
        # Distances from the entropy, in bits: 0.75, 0.25, 1.25, 1.25; tied ones stay together.
        (purgen.typical_p(0.2), HALVES, [1]),
        (purgen.typical_p(0.3), HALVES, [0, 1]),
        (purgen.typical_p(0.8), HALVES, [0, 1, 2, 3]),
        (purgen.typical_p(0.2, min_tokens_to_keep=3), HALVES, [0, 1, 2]),
        (purgen.epsilon_cutoff(0.2), HALVES, [0, 1]),
        (purgen.epsilon_cutoff(0.9), [0.3, 0.4, 0.3], [1]),
        (purgen.epsilon_cutoff(0.9), [0.4, 0.2, 0.4], [0, 2]),
        # sqrt(0.36) exp(-1.21) is 0.18
        (purgen.eta_cutoff(0.36), HALVES, [0, 1]),
        (purgen.eta_cutoff(0.01), HALVES, [0, 1, 2, 3]),
        # Shares of the entropy: 0.5, 0.5, 0.375, 0.375 of 1.75
        (purgen.top_h(0.5), HALVES, [0]),
        (purgen.top_h(0.6), HALVES, [0, 1]),
        (purgen.top_h(0.8), HALVES, [0, 1, 2]),
        (purgen.top_h(1.0), HALVES, [0, 1, 2, 3]),
        (purgen.top_a(0.9), HALVES, [0, 1]),  # from 0.225
        (purgen.top_a(0.4), HALVES, [0, 1, 2, 3]),  # from 0.1
        (purgen.top_a(1.0), [0.9, 0.1], [0]),
        # Curvature: 0.125, 0.125
        (purgen.tail_free(0.4), HALVES, [0]),
        (purgen.tail_free(0.6), HALVES, [0, 1]),
        (purgen.tail_free(0.99), [0.5, 0.3, 0.15, 0.05, 0.0], [0, 1, 2]),
        (purgen.tail_free(0.0), [0.25] * 4, [0, 1, 2, 3]),
        (purgen.tail_free(0.0), [0.7, 0.3], [0, 1]),
        (purgen.p_less(), [0.4, 0.35, 0.15, 0.1], [0, 1]),  # from 0.315
        (purgen.p_less(normalize=True), [0.4, 0.35, 0.2, 0.05], [0, 1, 2]),  # from 0.1
        (purgen.p_less(), [0.25] * 4, [0, 1, 2, 3]),
        (purgen.p_less(normalize=True), [0.25] * 4, [0, 1, 2, 3]),
        (purgen.p_less(), [0.5, 0.5, 0.0], [0, 1]),
        (purgen.xtc(1.0), [0.4, 0.3, 0.25, 0.05], [2, 3]),
        (purgen.xtc(1.0, threshold=0.2), HALVES, [1, 2, 3]),
        (purgen.xtc(1.0, threshold=0.3), HALVES, [0, 1, 2, 3]),
        (purgen.xtc(1.0, threshold=0.2), [0.3, 0.3, 0.3, 0.1], [2, 3]),  # tied: the highest id
        (purgen.xtc(1.0, threshold=0.0), [0.3, 0.7, 0.0], [0]),
        (purgen.xtc(0.0, threshold=0.0), HALVES, [0, 1, 2, 3]),
        (purgen.xtc(1.0, threshold=0.2, special_token_ids=0), HALVES, [0, 1, 2, 3]),
        (purgen.xtc(1.0, threshold=0.2, special_token_ids=[1, 3]), HALVES, [1, 2, 3]),
        (purgen.mirostat(1.25), HALVES, [0, 1]),
        (purgen.mirostat(0.25), HALVES, [0]),
        # s = (1 + log2 1.5) / (1 + (log2 1.5)²) = 1.18, k = (0.18 · 2^0.5 / 0.222)^(1 / 1.18) + 1
        (purgen.mirostat(0.25, version=1, m=3), [16 / 28, 8 / 28, 4 / 28, 0.0], [0, 1]),
    ],
)
def test_by_hand(transform, probabilities, expected):
    assert kept(transform, probabilities) == expected


@pytest.mark.parametrize(
    ("transform", "logits", "expected"),
    [
        (purgen.top_n_sigma(1.5), [6.0, 5.0, 1.0, 0.0], [6.0, 5.0, -INF, -INF]),  # σ is 2.55
        (purgen.top_n_sigma(2.0), [6.0, 5.0, 1.0, 0.0], [6.0, 5.0, 1.0, -INF]),
        (purgen.top_n_sigma(0.0), [6.0, 5.0, 6.0, 0.0], [6.0, -INF, 6.0, -INF]),
        (purgen.top_n_sigma(1.0), [6.0, 5.0, -INF, 4.0], [6.0, -INF, -INF, -INF]),  # σ is 0.82
        (purgen.top_n_sigma(1.0), [3e38, 1e38, -3e38], [3e38, 1e38, -INF]),
        (purgen.min_k(0.0), [9.0, 8.0, 2.0, 0.0], [9.0, 8.0, -INF, -INF]),
        (purgen.min_k(30.0), [9.0, 8.0, 2.0, 0.0], [9.0, 8.0, 2.0, -INF]),
        (purgen.min_k(0.0), [9.0, 5.0, 1.0, -INF], [9.0, -INF, -INF, -INF]),
        (purgen.min_k(0.0), [5.0, 5.0, 5.0, 1.0], [5.0, 5.0, 5.0, -INF]),
        (purgen.min_k(), [2.0, 2.0, 2.0], [2.0, 2.0, 2.0]),
        (purgen.min_k(), [2.0, -INF], [2.0, -INF]),
        (purgen.quadratic(2.0), [3.0, 2.5, 1.0], [3.0, 2.5, -5.0]),
        (purgen.quadratic(1.0, smoothing_curve=3.0), [3.0, 1.0, -INF], [3.0, -5.0, -INF]),
        (purgen.dynamic_temperature(0.5, 2.0), [4.0, 4.0, -INF], [2.0, 2.0, -INF]),
        (purgen.dynamic_temperature(0.5, 2.0), [4.0, -INF, -INF], [8.0, -INF, -INF]),
        (purgen.dynamic_temperature(0.0, 2.0), [4.0, -1e4], [0.0, -INF]),
        # Half of the greatest entropy, so that the temperature is 4 / 4 and 4 / 2.
        (
            purgen.dynamic_temperature(0.0, 4.0, exponent=2.0),
            [4.0, 4.0, -60.0, -60.0],
            [4.0, 4.0, -60.0, -60.0],
        ),
        (purgen.dynamic_temperature(0.0, 4.0), [4.0, 4.0, -60.0, -60.0], [2.0, 2.0, -30.0, -30.0]),
        (purgen.entropy_temperature(0.6, low=0.5, high=2.0), [4.0, 4.0], [2.0, 2.0]),
        (purgen.entropy_temperature(0.7, low=0.5, high=2.0), [4.0, 4.0], [8.0, 8.0]),
        (purgen.entropy_temperature(9.0, low=0.0), [4.0, 4.0, 3.0], [0.0, 0.0, -INF]),
    ],
)
def test_logits_by_hand(transform, logits, expected):
    torch.testing.assert_close(apply(transform, [logits])[0], torch.tensor(expected))


@pytest.mark.parametrize("make", [purgen.top_n_sigma, purgen.min_k])
def test_temperature_does_not_change_what_stays(make):
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(0)) * 3
    results = [apply(make(0.0 if make is purgen.min_k else 1.0), logits / t) for t in (1, 0.25, 8)]
    for result in results[1:]:
        assert torch.equal(result > -INF, results[0] > -INF)


# Where transformers is wrong, undefined, or says nothing.


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (purgen.eta_cutoff(0.1), transformers.EtaLogitsWarper(0.1)),
        (purgen.top_h(0.5), transformers.TopHLogitsWarper(0.5)),
    ],
)
def test_dead_row_does_not_raise(ours, theirs):
    logits = torch.tensor([[-INF] * 4, [3.0, 2.0, 0.0, -9.0]])
    result = apply(ours, logits)
    assert torch.equal(result[0], logits[0])
    assert torch.equal(result[1:], theirs(torch.zeros(1, 1, dtype=torch.int64), logits[1:]))


def test_top_h_has_no_cap():
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0)) * 0.1
    theirs = transformers.TopHLogitsWarper(0.9)(torch.zeros(1, 1, dtype=torch.int64), logits)
    assert (theirs > -INF).sum() < 100
    assert 850 < (apply(purgen.top_h(0.9), logits) > -INF).sum() < 950


@pytest.mark.parametrize(
    "transform",
    [
        purgen.typical_p(1.0),
        purgen.epsilon_cutoff(0.0),
        purgen.eta_cutoff(0.0),
        purgen.top_h(1.0),
        purgen.top_a(0.0),
        purgen.tail_free(1.0),
        purgen.xtc(0.0),
    ],
)
def test_the_loosest_setting_keeps_the_tail(transform):
    logits = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0)) * 10
    assert torch.equal(apply(transform, logits), logits)


STRICTEST = [
    purgen.typical_p(0.0),
    purgen.epsilon_cutoff(1.0),
    purgen.eta_cutoff(1.0),
    purgen.top_h(0.0),
    purgen.top_n_sigma(0.0),
    purgen.top_a(1.0),
    purgen.tail_free(0.0),
    purgen.min_k(0.0),
    purgen.p_less(),
    purgen.p_less(normalize=True),
    purgen.mirostat(0.0),
    purgen.mirostat(0.0, version=1),
    purgen.xtc(1.0, threshold=0.0),
]


@pytest.mark.parametrize("transform", STRICTEST)
@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_at_least_one_token_stays(transform, size):
    logits = torch.randn(50, size, generator=torch.Generator().manual_seed(1))
    for scale in (1e-3, 1.0, 1e3, 1e37):
        assert (apply(transform, logits * scale) > -INF).any(dim=1).all()


@pytest.mark.parametrize(
    ("make", "loose"),
    [
        (purgen.typical_p, 0.0),
        (purgen.epsilon_cutoff, 1.0),
        (purgen.eta_cutoff, 1.0),
        (purgen.top_h, 0.0),
        (purgen.top_n_sigma, 0.0),
        (purgen.top_a, 1.0),
        (purgen.tail_free, 0.0),
        (purgen.min_k, 0.0),
        (lambda _, **options: purgen.p_less(**options), None),
    ],
)
def test_filter_value_and_min_tokens_are_honoured(make, loose):
    logits = [[-8.0, 1.0, 2.0, 9.0]]
    strict = make(loose, filter_value=-9.0, min_tokens_to_keep=3)
    assert apply(strict, logits).tolist() == [[-9.0, 1.0, 2.0, 9.0]]
    assert apply(make(loose, min_tokens_to_keep=9), logits).tolist() == logits
    assert apply(purgen.xtc(1.0, threshold=0.0, filter_value=-9.0), logits).tolist() == [
        [-8.0, -9.0, -9.0, -9.0]
    ]


LENIENT = [
    purgen.typical_p(0.7),
    purgen.epsilon_cutoff(0.3),
    purgen.eta_cutoff(0.3),
    purgen.top_h(0.9),
    purgen.top_n_sigma(1.0),
    purgen.top_a(0.3),
    purgen.tail_free(0.7),
    purgen.min_k(1.0),
    purgen.p_less(),
    purgen.p_less(normalize=True),
    purgen.mirostat(2.0),
    purgen.mirostat(2.0, version=1),
    purgen.xtc(1.0, threshold=0.6),
    purgen.dynamic_temperature(0.5, 1.5),
    purgen.dynamic_temperature(0.0, 0.0),
    purgen.entropy_temperature(0.5),
    purgen.quadratic(0.3),
    purgen.quadratic(0.3, smoothing_curve=9.0),
]


@pytest.mark.parametrize("transform", LENIENT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_without_numbers_have_a_result(transform, dtype):
    bad = [[-INF] * 3, [INF, INF, 0.0], [torch.nan] * 3, [torch.nan, 1.0, 0.0]]
    result = apply(transform, torch.tensor(bad, dtype=dtype))
    assert result.dtype == dtype
    assert not result.isnan().any()
    assert (result[0] == -INF).all()
    assert purgen.log_softmax(result)[1].exp().tolist() in ([0.5, 0.5, 0.0], [1.0, 0.0, 0.0])
    assert (result[2] == -INF).all()
    assert result[3, 0] == -INF
    assert result[3, 1] > -INF


@pytest.mark.parametrize("transform", STRICTEST + LENIENT)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(transform, dtype):
    logits = (torch.randn(9, 40, generator=torch.Generator().manual_seed(2)) * 3).to(dtype)
    expected = apply(transform, logits.float()).to(dtype)
    assert torch.equal(apply(transform, logits), expected)


# XTC


def test_xtc_acts_with_its_probability():
    rows = 4000
    logits = torch.tensor(HALVES).log().expand(rows, -1)
    transform = purgen.xtc(torch.linspace(0, 1, rows), threshold=0.2)
    acted = apply(transform, logits)[:, 0] == -INF
    assert acted[: rows // 10].float().mean().item() == pytest.approx(0.05, abs=0.04)
    assert acted.float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert acted[-rows // 10 :].float().mean().item() == pytest.approx(0.95, abs=0.04)
    # Another token, another draw; and one that no draw of the strategy is.
    again = apply(transform, logits, num_new_tokens=1)[:, 0] == -INF
    assert (acted == again).float().mean() < 0.75
    view = example_view(batch_size=rows, vocab_size=4)
    token = purgen.random.uniform(purgen.step_key(view)) < torch.linspace(0, 1, rows)
    assert (acted == token).float().mean() < 0.75


def test_xtc_needs_a_key():
    model = toy_model()
    prompt = purgen.Prompt.from_lists([[1, 2]], pad_token_id=0)
    decoder = purgen.greedy(model, transform=purgen.xtc(0.5))
    with pytest.raises(ValueError, match="rng_key is None"):
        purgen.generate(decoder, model.params, prompt, max_new_tokens=2)
    key = purgen.random.key(0)
    out = purgen.generate(decoder, model.params, prompt, rng_key=key, max_new_tokens=2)
    assert out.num_new_tokens.tolist() == [2]


# Mirostat


def spoken(rows, num_new_tokens):
    """The view after the last tokens of `rows` were generated."""
    return example_view(rows, vocab_size=4, num_new_tokens=num_new_tokens)


def test_mirostat_reads_the_surprise_of_the_newest_token():
    logits = torch.tensor([HALVES, HALVES]).log()
    transform = purgen.mirostat(torch.tensor([1.5, 2.5]), learning_rate=0.5)
    state = transform.init(spoken([[1], [1]], 0))
    _, state = transform.apply(state, logits, spoken([[1], [1]], 0))
    assert state.mu.tolist() == [3.0, 5.0]  # nothing was chosen yet
    _, state = transform.apply(state, logits, spoken([[1, 0], [1, 2]], 1))
    torch.testing.assert_close(state.mu, torch.tensor([3.25, 4.75]))  # 1 bit and 3
    # Truncation does not change what is read: after it, token 0 would have a surprise of 0.
    tight = purgen.mirostat(0.25)
    state = tight.init(spoken([[1]], 0))
    result, state = tight.apply(state, logits[:1], spoken([[1]], 0))
    assert result.isfinite().sum() == 1
    _, state = tight.apply(state, logits[:1], spoken([[1, 0]], 1))
    torch.testing.assert_close(state.mu, torch.tensor([0.5 - 0.1 * (1 - 0.25)]))


def test_mirostat_learns_only_from_one_token_with_a_probability():
    logits = torch.tensor([[0.0, 0.0, 0.0, -INF]])
    transform = purgen.mirostat(3.0)
    _, state = transform.apply(transform.init(spoken([[1]], 0)), logits, spoken([[1]], 0))
    for rows, count in (([[1, 3]], 1), ([[1, 0, 0]], 2), ([[0]], 0)):
        _, after = transform.apply(state, logits, spoken(rows, count))
        assert after.mu.tolist() == [6.0]
    _, after = transform.apply(state, logits, spoken([[1, 0]], 1))
    assert after.mu.item() > 6.0


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_the_mean_surprise(version):
    targets = torch.tensor([2.75, 3.25, 4.0, 5.0])
    # Zipf's law: of entropy 5.9 bits, the best token having 2.4.
    logits = -1.1 * torch.arange(1, 401).log().expand(4, -1)
    surprise = -purgen.log_softmax(logits) / math.log(2)
    transform = purgen.mirostat(targets, version=version)
    view = example_view(batch_size=4, vocab_size=400)
    state, total, steps = transform.init(view), torch.zeros(4), 600
    for step in range(steps):
        result, state = transform.apply(state, logits, view)
        token = purgen.random.categorical(purgen.step_key(view), result)
        total += surprise.gather(1, token[:, None])[:, 0]
        view = purgen.replace(
            view,
            tokens=view.tokens.scatter(1, (view.length - 1)[:, None], token[:, None]),
            num_new_tokens=torch.full((4,), step + 1),
        )
    assert (total / steps - targets).abs().max() < 0.15


def test_mirostat_follows_the_rows_of_a_generation():
    model = toy_model(vocab_size=24, eos_token_id=(3, 4, 5))
    decoder = purgen.sample(model, transform=purgen.mirostat(2.0, learning_rate=0.5))
    prompt = purgen.Prompt.from_lists([[1, 2, 3], [4], [5, 6]], pad_token_id=0)
    key = purgen.random.key(3)
    out = purgen.generate(decoder, model.params, prompt, rng_key=key, max_new_tokens=20)
    assert len(set(out.num_new_tokens.tolist())) > 1
    # A row that has stopped keeps its state, and is what it is alone.
    state = out.state.transform
    assert torch.equal(state.num_new_tokens, out.num_new_tokens - 1)
    keys = purgen.random.split(key, 3)
    for row, tokens in enumerate([[1, 2, 3], [4], [5, 6]]):
        alone = purgen.generate(
            decoder,
            model.params,
            purgen.Prompt.from_lists([tokens], pad_token_id=0),
            rng_key=keys[row : row + 1],
            max_new_tokens=20,
        )
        count = int(out.num_new_tokens[row])
        assert alone.new_tokens[0, :count].tolist() == out.new_tokens[row, :count].tolist()
        torch.testing.assert_close(alone.state.transform.mu[0], state.mu[row])


# Settings


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: purgen.typical_p(1.1), ValueError, "typical_p: mass must be at most 1.0, not 1.1"),
        (lambda: purgen.typical_p(-0.1), ValueError, "mass must be at least 0.0, not -0.1"),
        (lambda: purgen.typical_p(torch.nan), ValueError, "not nan"),
        (lambda: purgen.typical_p(min_tokens_to_keep=0), ValueError, "min_tokens_to_keep .* not 0"),
        (lambda: purgen.epsilon_cutoff(2.0), ValueError, "epsilon must be at most 1.0, not 2.0"),
        (lambda: purgen.epsilon_cutoff("low"), TypeError, "epsilon must be a float"),
        (lambda: purgen.epsilon_cutoff(0.1, min_tokens_to_keep=1.5), ValueError, "not 1.5"),
        (lambda: purgen.eta_cutoff(-1), ValueError, "eta_cutoff: epsilon must be at least 0.0"),
        (lambda: purgen.top_h(1.5), ValueError, "top_h must be at most 1.0, not 1.5"),
        (lambda: purgen.top_n_sigma(-1.0), ValueError, "n must be at least 0.0, not -1.0"),
        (lambda: purgen.top_n_sigma(INF), ValueError, "not inf"),
        (lambda: purgen.top_a(torch.tensor([0.5, 3.0])), ValueError, "not 3.0"),
        (lambda: purgen.tail_free(-0.5), ValueError, "z must be at least 0.0"),
        (lambda: purgen.p_less(normalize=1), TypeError, "normalize must be True or False, not 1"),
        (lambda: purgen.p_less(min_tokens_to_keep=-1), ValueError, "not -1"),
        (lambda: purgen.min_k(-3.0), ValueError, "tau must be at least 0.0, not -3.0"),
        (lambda: purgen.xtc(1.2), ValueError, "probability must be at most 1.0"),
        (lambda: purgen.xtc(0.5, threshold=-0.1), ValueError, "threshold must be at least 0.0"),
        (lambda: purgen.xtc(0.5, special_token_ids=[-2]), ValueError, "holds -2"),
        (lambda: purgen.mirostat(-1.0), ValueError, "tau must be at least 0.0"),
        (lambda: purgen.mirostat(1.0, learning_rate=-1.0), ValueError, "learning_rate must be"),
        (lambda: purgen.mirostat(1.0, version=3), ValueError, "version must be 1 or 2, not 3"),
        (lambda: purgen.mirostat(1.0, version=True), ValueError, "not True"),
        (lambda: purgen.mirostat(1.0, m=1), ValueError, "m must be an int of at least 2, not 1"),
        (lambda: purgen.dynamic_temperature(-1.0, 1.0), ValueError, "low must be at least 0.0"),
        (lambda: purgen.dynamic_temperature(1.0, INF), ValueError, "high must be .* not inf"),
        (
            lambda: purgen.dynamic_temperature(0.5, 1.0, exponent=0.0),
            ValueError,
            "exponent must be above 0.0, not 0.0",
        ),
        (lambda: purgen.entropy_temperature(-1.0), ValueError, "threshold must be at least 0.0"),
        (lambda: purgen.entropy_temperature(1.0, low=-1.0), ValueError, "low must be"),
        (lambda: purgen.entropy_temperature(1.0, high=torch.nan), ValueError, "high must be"),
        (lambda: purgen.quadratic(0.0), ValueError, "smoothing_factor must be above 0.0, not 0.0"),
        (
            lambda: purgen.quadratic(1.0, smoothing_curve=0.5),
            ValueError,
            "smoothing_curve must be at least 1.0, not 0.5",
        ),
    ],
)
def test_bad_settings_are_refused_where_they_are_given(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (purgen.typical_p(torch.full((3,), 0.5)), "mass has 3 numbers, one a row, .* 2 rows"),
        (purgen.mirostat(torch.ones(3)), "mirostat: tau has 3 numbers"),
        (purgen.mirostat(1.0, learning_rate=torch.ones(1)), "learning_rate has 1 numbers"),
        (purgen.xtc(0.5, threshold=torch.full((4,), 0.1)), "threshold has 4 numbers"),
        (purgen.xtc(0.5, special_token_ids=[1, 32]), "special_token_ids holds 32, outside"),
        (purgen.dynamic_temperature(1.0, torch.ones(3)), "high has 3 numbers"),
        (purgen.quadratic(1.0, smoothing_curve=torch.ones(5)), "smoothing_curve has 5 numbers"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_init(transform, message):
    with pytest.raises(ValueError, match=message):
        transform.init(example_view(batch_size=2, vocab_size=32))
