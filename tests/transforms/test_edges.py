"""Where transformers is wrong, undefined, or says nothing: what is right here."""

from __future__ import annotations

import pytest
import torch

import purgen
from purgen.testing import example_view

INF = torch.inf


def apply(transform, logits, rows=None, num_new_tokens=0):
    logits = torch.tensor(logits) if not isinstance(logits, torch.Tensor) else logits
    vocab = logits.shape[-1]
    view = example_view(
        rows, batch_size=len(logits), vocab_size=vocab, num_new_tokens=num_new_tokens
    )
    return transform.apply(transform.init(view), logits, view)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heat", [0.0, 1e-45, 1e-40, 1e-4])
def test_cold_temperature_is_the_argmax(heat, dtype):
    logits = torch.tensor([[1.0, 3.0, 2.0], [-5.0, -4.0, -4.0], [0.0, 0.0, -INF]], dtype=dtype)
    result = purgen.log_softmax(apply(purgen.temperature(heat), logits * 100))
    expected = [[0.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.5, 0.5, 0.0]]
    torch.testing.assert_close(result.exp(), torch.tensor(expected))


def test_temperature_keeps_infinities():
    result = apply(purgen.temperature(1e-40), [[INF, 5.0, -INF, 3.0]])
    assert result[0, 0] == INF
    assert result[0, 1] < INF
    assert result[0, 2] == -INF
    assert apply(purgen.temperature(0.5), [[INF, 5.0]]).tolist() == [[INF, 10.0]]


def test_top_p_stops_exactly_at_p():
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    for p, kept in ((0.0, 1), (0.5, 1), (0.75, 2), (0.875, 3), (0.876, 4), (1.0, 4)):
        assert int((apply(purgen.top_p(p), logits) > -INF).sum()) == kept


def test_top_p_takes_the_lower_ids_of_tied_tokens():
    for size, p, kept in ((10, 0.5, 5), (1000, 0.5, 500), (1000, 0.1, 100), (1000, 0.7, 700)):
        result = apply(purgen.top_p(p), torch.zeros(2, size))
        assert (result > -INF).sum(dim=1).tolist() == [kept, kept]
        assert (result[:, :kept] > -INF).all()
    # Two levels: all 100 of the upper one hold 10 / 11 of the mass, 900 tied tokens the rest.
    logits = torch.where(torch.arange(1000) < 900, 0.0, torch.tensor(90.0).log())[None]
    result = apply(purgen.top_p(10 / 11 + 0.01), logits)
    assert (result[0, 900:] > -INF).all()
    assert (result[0] > -INF).nonzero()[:100, 0].tolist() == [*range(99), 900]


def test_top_p_of_a_row_does_not_depend_on_how_much_its_neighbour_needs():
    logits = torch.randn(40, 3000, generator=torch.Generator().manual_seed(3))
    logits[::2] *= 6  # whose nucleus is small
    whole = apply(purgen.top_p(0.9), logits)
    for row in range(40):
        assert torch.equal(apply(purgen.top_p(0.9), logits[row : row + 1])[0], whole[row])
    sizes = (whole > -INF).sum(dim=1)
    assert sizes[::2].max() < 256 < sizes[1::2].min()


@pytest.mark.parametrize("compiled", [False, True])
def test_top_p_looks_at_as_many_tokens_as_it_must(compiled):
    """Nuclei within the best 256, within the best 4096, and beyond, by the same program."""
    transform = purgen.top_p(0.8)
    view = example_view(None, batch_size=2, vocab_size=9000)
    logits = torch.randn(2, 9000, generator=torch.Generator().manual_seed(4))
    run = transform.apply
    if compiled:
        run = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=False)
    tstate, sizes = transform.init(view), []
    for spread in (4.0, 1.0, 0.1):
        kept = run(tstate, logits * spread, view)[0] > -INF
        ordered, order = (logits * spread).double().softmax(dim=-1).sort(descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        assert (before - 0.8).abs().min() > 4e-6, "the edge must be clear"
        assert torch.equal(kept.gather(1, order), before < 0.8)
        sizes.append(kept.sum(dim=1))
        if compiled:
            torch._dynamo.config.error_on_recompile = True
    torch._dynamo.config.error_on_recompile = False
    assert sizes[0].max() < 256 < sizes[1].min() <= sizes[1].max() < 4096 < sizes[2].min()


def test_top_p_of_one_keeps_the_tail():
    logits = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0)) * 10
    assert torch.equal(apply(purgen.top_p(1.0), logits), logits)


def test_top_k_keeps_all_ties_with_the_last():
    assert apply(purgen.top_k(2), [[3.0, 1.0, 2.0, 2.0]]).tolist() == [[3.0, -INF, 2.0, 2.0]]


def test_filter_value_and_min_tokens_are_honoured():
    logits = [[0.0, 1.0, 2.0, 3.0]]
    for make in (purgen.top_k, purgen.top_p, purgen.min_p):
        strictest = make(
            1 if make is purgen.top_k else {purgen.top_p: 0.0}.get(make, 1.0),
            filter_value=-9.0,
            min_tokens_to_keep=3,
        )
        assert apply(strictest, logits).tolist() == [[-9.0, 1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    "transform", [purgen.top_k(1), purgen.top_p(0.0), purgen.min_p(1.0), purgen.temperature(0.0)]
)
def test_at_least_one_token_stays(transform):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(50, 9, generator=generator)
    assert (apply(transform, logits) > -INF).sum(dim=1).eq(1).all()


@pytest.mark.parametrize(
    "transform",
    [
        purgen.top_k(2),
        purgen.top_p(0.7),
        purgen.min_p(0.3),
        purgen.temperature(0.7),
        purgen.repetition_penalty(2.0),
        purgen.repetition_penalty(2.0, normalize=True),
    ],
)
def test_rows_without_numbers_have_a_result(transform):
    rows = [[-INF] * 3, [INF, INF, 0.0], [torch.nan] * 3, [torch.nan, 1.0, 0.0]]
    result = apply(transform, rows, [[2]] * 4)
    assert not result.isnan().any()
    assert (result[0] == -INF).all()
    assert purgen.log_softmax(result)[1, :2].exp().tolist() == [0.5, 0.5]
    assert (result[2] == -INF).all()
    assert result[3, 0] == -INF
    assert result[3, 1] > -INF


def test_repetition_penalty_scopes():
    rows, logits = [[0, 1, 2, 3]], [[2.0] * 6]
    whole = {0, 1, 2, 3}
    for options, expected in (
        ({}, whole),
        ({"scope": "prompt"}, {0, 1}),
        ({"scope": "generated"}, {2, 3}),
        ({"exempt": [1, 2]}, {0, 3}),
        ({"exempt": 5}, whole),
        ({"prompt_ignore_length": 1}, {1, 2, 3}),
        ({"prompt_ignore_length": 9}, set()),
        ({"prompt_ignore_length": 1, "scope": "prompt"}, {1}),
    ):
        result = apply(purgen.repetition_penalty(2.0, **options), logits, rows, num_new_tokens=2)
        assert {token for token in range(6) if result[0, token] == 1.0} == expected, options


def test_normalised_penalty_does_not_depend_on_the_zero_point():
    logits = torch.randn(2, 8, generator=torch.Generator().manual_seed(2))
    penalty = purgen.repetition_penalty(1.7, normalize=True)
    shifted = [apply(penalty, logits + shift, [[1, 2], [3, 4]]) for shift in (0.0, 100.0)]
    torch.testing.assert_close(*shifted, rtol=1e-4, atol=1e-4)
    plain = [
        apply(purgen.repetition_penalty(1.7), logits + s, [[1, 2], [3, 4]]) for s in (0.0, 100.0)
    ]
    assert not torch.allclose(plain[0] + 100, plain[1])


def test_tokens_beyond_the_logits_are_passed_over():
    view = example_view([[1, 9]], vocab_size=10)
    penalty = purgen.repetition_penalty(2.0)
    assert penalty.apply(penalty.init(view), torch.full((1, 4), 2.0), view)[0].tolist() == [
        [2.0, 1.0, 2.0, 2.0]
    ]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: purgen.temperature(-1.0),
            ValueError,
            "temperature must be at least 0.0, not -1.0",
        ),
        (lambda: purgen.temperature(torch.nan), ValueError, "not nan"),
        (lambda: purgen.temperature(INF), ValueError, "not inf"),
        (lambda: purgen.temperature("hot"), TypeError, "temperature must be a float.*'hot'"),
        (lambda: purgen.temperature(True), TypeError, "not bool True"),
        (lambda: purgen.temperature(torch.ones(2, 2)), ValueError, r"not \[2, 2\]"),
        (lambda: purgen.top_k(0), ValueError, "top_k must be at least 1, not 0"),
        (lambda: purgen.top_k(1.5), TypeError, "top_k must be an int"),
        (lambda: purgen.top_k(torch.tensor([1, -2])), ValueError, "not -2"),
        (lambda: purgen.top_k(1, min_tokens_to_keep=0), ValueError, "min_tokens_to_keep .* not 0"),
        (lambda: purgen.top_p(1.1), ValueError, "top_p must be at most 1.0, not 1.1"),
        (lambda: purgen.top_p(-0.1), ValueError, "top_p must be at least 0.0"),
        (lambda: purgen.top_p(torch.tensor([0.5, 2.0])), ValueError, "not 2.0"),
        (lambda: purgen.min_p(2), ValueError, "min_p must be at most 1.0"),
        (lambda: purgen.repetition_penalty(0.0), ValueError, "penalty must be above 0.0, not 0.0"),
        (lambda: purgen.repetition_penalty(1.0, scope="both"), ValueError, "scope must be one of"),
        (lambda: purgen.repetition_penalty(1.0, exempt=[-1]), ValueError, "exempt holds -1"),
        (lambda: purgen.repetition_penalty(1.0, prompt_ignore_length=-1), ValueError, "not -1"),
        (
            lambda: purgen.chain(purgen.top_k(2), 3),
            TypeError,
            "transform 1 must be a LogitsTransform",
        ),
        (
            lambda: purgen.named_chain(("a", purgen.top_k(2)), a=purgen.top_k(3)),
            ValueError,
            "twice",
        ),
        (
            lambda: purgen.named_chain({"a": purgen.top_k(2)}),
            TypeError,
            "must be .name, transform.",
        ),
        (lambda: purgen.stateless(3), TypeError, "fn must be a function"),
        (lambda: purgen.when(True, purgen.top_k(2)), TypeError, "condition must be a function"),
        (lambda: purgen.when(lambda view: view, 3), TypeError, "piece must be"),
        (lambda: purgen.eos([]), ValueError, "eos_token_id is empty"),
        (lambda: purgen.eos(-1), ValueError, "eos_token_id holds -1"),
        (lambda: purgen.eos("</s>"), TypeError, "must hold ints"),
        (lambda: purgen.max_length(0), ValueError, "max_length must be at least 1, not 0"),
        (lambda: purgen.max_new_tokens(0), ValueError, "max_new_tokens must be at least 1"),
        (lambda: purgen.any_of(purgen.top_k(1)), TypeError, "rule 0 must be a StopRule"),
        (lambda: purgen.all_of(), ValueError, "at least one rule"),
        (lambda: purgen.StopRule(len, len, code=0), ValueError, "code must be above 0, not 0"),
    ],
)
def test_bad_settings_are_refused_where_they_are_given(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (purgen.temperature(torch.ones(3)), "temperature has 3 numbers, one a row, .* 2 rows"),
        (purgen.max_new_tokens(torch.tensor([1, 2, 3])), "max_new_tokens has 3 numbers"),
        (purgen.eos(32), r"eos_token_id holds 32, outside the vocabulary \[0, 32\)"),
        (purgen.repetition_penalty(2.0, exempt=99), "exempt holds 99, outside"),
        (purgen.max_length(3), "max_length: 3 leaves no room for a new token in row 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_init(piece, message):
    with pytest.raises(ValueError, match=message):
        piece.init(example_view(batch_size=2, vocab_size=32))
