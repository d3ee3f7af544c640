"""transformers' own unit tests of processors and criteria, as inputs and expected values, for ours.

After `tests/generation/test_logits_process.py` and `test_stopping_criteria.py` of transformers, where
classes are called as `generate` calls them; so are ours, through `bridge.to_logits_processor`.
"""

from __future__ import annotations

import time

import pytest
import torch
import transformers
from transformers.generation import logits_process as theirs

import bridge
import purgen
from tests.bridge.test_token_bytes import byte_fallback, byte_level, word_pieces, wrapped

INF = torch.inf


def of(transform, **options):
    return bridge.to_logits_processor(transform, **options)


def uniform(batch, size):
    return torch.full((batch, size), 1 / size)


def some_ids(*shape, vocab=20):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(sum(shape)))


def logs(rows):
    return torch.tensor(rows).log()


def check_kept(processor, scores, expected):
    """Applies to the logarithms of probabilities; what is not kept is 0. The input stays."""
    before = scores.clone()
    result = processor(None, scores)
    torch.testing.assert_close(result.exp(), torch.tensor(expected), rtol=1e-3, atol=1e-3)
    assert torch.equal(scores, before)
    assert not torch.equal(result, scores)


def ramp(rows=2, size=10, steep=100.0):
    scores = torch.arange(float(size)).repeat(rows, 1) - size // 2
    scores[1] *= steep
    return scores


def test_min_length():
    processor = of(purgen.min_length(10, eos_token_id=0))
    assert processor(some_ids(4, 5), uniform(4, 20))[:, 0].tolist() == 4 * [-INF]
    assert not processor(some_ids(4, 15), uniform(4, 20)).isinf().any()


@pytest.mark.parametrize("eos", [0, [0, 18]])
@pytest.mark.parametrize("converted", [True, False])
def test_min_new_tokens(eos, converted):
    if converted:  # without a word on the prompt, which the class knows
        processor = of(
            bridge.to_transform(
                theirs.MinNewTokensLengthLogitsProcessor(
                    prompt_length_to_skip=5, min_new_tokens=3, eos_token_id=eos
                )
            )
        )
    else:
        processor = of(purgen.min_new_tokens(3, eos_token_id=eos), prompt_length=5)
    for length, forbidden in ((5, True), (2, True), (6, True), (7, True), (8, False), (15, False)):
        result = processor(some_ids(4, length), uniform(4, 20))
        assert result[:, eos].isneginf().all() == forbidden
        assert result.isinf().any() == forbidden


def test_temperature():
    scores = uniform(2, 20)
    scores[1, 5], scores[1, 10] = 1 / 20 + 0.1, 1 / 20 - 0.4  # a peak and a valley
    before = scores.softmax(-1)
    sharp, smooth = (of(purgen.temperature(heat))(None, scores).softmax(-1) for heat in (0.5, 1.3))
    torch.testing.assert_close(before[0], sharp[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(before[0], smooth[0], rtol=1e-3, atol=1e-3)
    assert smooth[1].max() < before[1].max() < sharp[1].max()
    assert sharp[1].min() < before[1].min() < smooth[1].min()


def special_scores():
    scores = uniform(2, 10)
    scores[0, 0], scores[1, 5] = -1 / 10, 4 / 10
    return scores


IDS = torch.tensor([[0, 1], [5, 0]])


@pytest.mark.parametrize(
    ("options", "ids"),
    [({}, IDS), ({"prompt_ignore_length": 2}, IDS.repeat(1, 2))],
)
def test_repetition_penalty(options, ids):
    scores = special_scores()
    result = of(purgen.repetition_penalty(2.0, **options))(ids, scores)
    places = result[[0, 0, 1, 1], [0, 1, 0, 5]]
    torch.testing.assert_close(places, torch.tensor([-2 / 10, 1 / 20, 1 / 20, 2 / 10]))
    assert torch.equal(scores, special_scores())
    spared = of(purgen.repetition_penalty(2.0, prompt_ignore_length=2))(IDS, scores)
    assert torch.equal(spared, scores)


@pytest.mark.parametrize("penalty", [2.0, 0.5])
def test_repetition_penalty_normalized(penalty):
    scores = special_scores()
    result = of(purgen.repetition_penalty(penalty, normalize=True))(IDS, scores)
    expected = scores.log_softmax(-1)
    for row, ids in enumerate(IDS.tolist()):
        expected[row, ids] *= penalty
    torch.testing.assert_close(result, expected)


def test_encoder_repetition_penalty():
    scores = special_scores()
    result = of(purgen.encoder_repetition_penalty(2.0, encoder_input_ids=IDS))(IDS, scores)
    places = result[[0, 0, 1, 1, 0, 1], [0, 1, 0, 5, 2, 2]]
    expected = torch.tensor([-1 / 20, 2 / 10, 2 / 10, 8 / 10, 1 / 10, 1 / 10])
    torch.testing.assert_close(places, expected)


def test_top_k():
    scores = torch.arange(10.0).repeat(2, 1)
    scores[1, :5] += 10
    result = of(purgen.top_k(3))(None, scores)
    assert result[0].isinf().tolist() == 7 * [True] + 3 * [False]
    assert result[1].isinf().tolist() == 2 * [True] + 3 * [False] + 5 * [True]
    safe = of(purgen.top_k(1, filter_value=0.0, min_tokens_to_keep=3))
    assert not (safe(None, uniform(2, 5)) == 0).any()
    assert (safe(None, torch.arange(5.0).repeat(2, 1)) == 0).sum(-1).tolist() == [2, 2]


def test_top_p():
    scores = logs([[0.3, 0.1, 0.1, 0.5], [0.15, 0.3, 0.3, 0.25]])
    expected = [[0.3, 0.0, 0.0, 0.5], [0.0, 0.3, 0.3, 0.25]]
    check_kept(of(purgen.top_p(0.8)), scores, expected)
    two = of(purgen.top_p(0.9, min_tokens_to_keep=2, filter_value=0.0))
    assert (two(None, ramp()) != 0).sum(-1).tolist() == [3, 2]


@pytest.mark.parametrize(
    ("share", "probabilities", "expected"),
    [
        (0.3, [0.97, 0.01, 0.01, 0.01], [0.97, 0.0, 0.0, 0.0]),
        (0.7, [0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.0, 0.0]),
        (0.4, [0.75, 0.25, 0.0, 0.0], [0.75, 0.0, 0.0, 0.0]),
    ],
)
def test_top_h(share, probabilities, expected):
    check_kept(of(purgen.top_h(share)), logs([probabilities]), [expected])
    even = logs([[0.25] * 4])
    assert torch.equal(of(purgen.top_h(1.0))(None, even), even)
    assert not torch.equal(of(purgen.top_h(0.5))(None, even), even)


def test_min_p():
    scores = logs([[0.9, 0.0274, 0.047, 0.0274], [0.15, 0.3, 0.3, 0.25], [0.97, 0.01, 0.01, 0.01]])
    expected = [[0.9, 0.0, 0.047, 0.0], [0.15, 0.3, 0.3, 0.25], [0.97, 0.0, 0.0, 0.0]]
    check_kept(of(purgen.min_p(0.05)), scores, expected)
    two = of(purgen.min_p(0.9, min_tokens_to_keep=2, filter_value=0.0))
    assert (two(None, ramp()) != 0).sum(-1).tolist() == [2, 2]


def test_typical_p():
    scores = logs([[0.97, 0.01, 0.01, 0.01], [0.4, 0.2, 0.2, 0.2]])
    check_kept(of(purgen.typical_p(0.5)), scores, [[0.97, 0.0, 0.0, 0.0], [0.0, 0.2, 0.2, 0.2]])
    three = of(purgen.typical_p(0.5, filter_value=0.0, min_tokens_to_keep=3))
    assert not (three(None, uniform(2, 5)) == 0).any()
    two = of(purgen.typical_p(0.7, filter_value=0.0, min_tokens_to_keep=2))
    assert (two(None, ramp()) != 0).sum(-1).tolist() == [2, 2]


def test_epsilon_cutoff():
    scores = logs([[0.87, 0.099, 0.001, 0.03], [0.4, 0.299, 0.101, 0.2]])
    expected = [[0.87, 0.0, 0.0, 0.0], [0.4, 0.299, 0.101, 0.2]]
    check_kept(of(purgen.epsilon_cutoff(0.1)), scores, expected)
    two = of(purgen.epsilon_cutoff(5e-2, min_tokens_to_keep=2, filter_value=0.0))
    assert (two(None, ramp()) != 0).sum(-1).tolist() == [3, 2]


def test_eta_cutoff():
    scores = logs([[0.0, 0.1, 0.8, 0.1], [0.01, 0.04, 0.9, 0.05]])
    expected = [[0.0, 0.1, 0.8, 0.1], [0.0, 0.0, 0.9, 0.0]]
    check_kept(of(purgen.eta_cutoff(0.0625)), scores, expected)
    two = of(purgen.eta_cutoff(0.1, min_tokens_to_keep=2, filter_value=0.0))
    assert (two(None, ramp()) != 0).sum(-1).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("size", "ids", "vocab", "forbidden"),
    [
        (2, [[1, 1, 2, 1], [0, 1, 0, 1]], 3, [[1, 2], [0]]),
        (3, [[1, 1, 2, 1], [0, 1, 0, 1]], 3, [[], [0]]),
        (3, [[1, 2, 5, 7, 8, 5, 1, 2]], 10, [[5]]),  # the later (7, 8, 5) does not set 5 free
        (3, [[1, 2], [0, 1]], 3, [[], []]),
    ],
)
def test_no_repeat_ngram(size, ids, vocab, forbidden):
    result = of(purgen.no_repeat_ngram(size))(torch.tensor(ids), uniform(len(ids), vocab))
    assert [row.nonzero()[:, 0].tolist() for row in result.isinf()] == forbidden


@pytest.mark.parametrize(
    ("size", "forbidden"),
    [(2, [[1, 2], [1], [0, 2], [1]]), (3, [[1], [], [2], []])],
)
@pytest.mark.parametrize("converted", [True, False])
def test_encoder_no_repeat_ngram(size, forbidden, converted):
    encoder = torch.tensor([[1, 2, 1, 1], [0, 0, 2, 1]])
    ids = torch.tensor([[1, 2, 1], [1, 0, 2], [0, 0, 0], [0, 2, 2]])  # two beams each
    if converted:
        transform = bridge.to_transform(
            theirs.EncoderNoRepeatNGramLogitsProcessor(size, encoder_input_ids=encoder)
        )
    else:
        transform = purgen.encoder_no_repeat_ngram(size, encoder_input_ids=encoder)
    result = of(transform)(ids, uniform(4, 3))
    assert [row.nonzero()[:, 0].tolist() for row in result.isinf()] == forbidden
    alone = purgen.encoder_no_repeat_ngram(size, encoder_input_ids=encoder[0])
    result = of(alone)(torch.tensor([[1, 2, 1], [8, 0, 2]]), uniform(2, 3))
    assert [row.nonzero()[:, 0].tolist() for row in result.isinf()] == [
        forbidden[0],
        [[1], []][size - 2],
    ]


WORDS = torch.tensor([[0, 1, 3, 1], [0, 1, 0, 1]])


def test_bad_words():
    words = [[1], [4], [1, 0], [0, 1, 2], [1, 3, 1, 3]]
    kept_eos = bridge.to_transform(theirs.NoBadWordsLogitsProcessor(words, eos_token_id=4))
    result = of(kept_eos)(WORDS, uniform(2, 5)).isinf().tolist()
    assert result == [[True, True, False, True, False], [True, True, True, False, False]]
    none = bridge.to_transform(theirs.NoBadWordsLogitsProcessor([[4]], eos_token_id=4))
    assert torch.equal(of(none)(WORDS, uniform(2, 5)), uniform(2, 5))
    with pytest.raises(ValueError, match="eos"):  # ours does not drop it without a word
        purgen.bad_words(words, eos_token_id=4)


def test_sequence_bias():
    bias = {(1,): 100.0, (4,): 100.0, (1, 0): -100.0, (0, 1, 2): -100.0, (1, 3, 1, 3): -100.0}
    bias[1, 3, 1, 3, 1, 3] = -100.0
    result = of(purgen.sequence_bias(bias))(WORDS, torch.zeros(2, 5))
    assert result.tolist() == [
        [-100.0, 100.0, 0.0, -100.0, 100.0],
        [-100.0, 100.0, -100.0, 0.0, 100.0],
    ]


def test_list_of_processors():
    processors = transformers.LogitsProcessorList(
        [
            theirs.MinLengthLogitsProcessor(min_length=10, eos_token_id=0),
            theirs.TemperatureLogitsWarper(0.5),
            theirs.RepetitionPenaltyLogitsProcessor(2.0),
            theirs.TopKLogitsWarper(3),
            theirs.TopPLogitsWarper(0.8),
            theirs.NoRepeatNGramLogitsProcessor(2),
            theirs.NoBadWordsLogitsProcessor([[1]], eos_token_id=0),
        ]
    )
    ids, scores = some_ids(4, 10, vocab=15), torch.randn(4, 15)
    ours = of(bridge.to_transform(processors))(ids, scores)
    torch.testing.assert_close(ours, processors(ids, scores), rtol=1e-3, atol=1e-3)


def test_prefix_allowed_tokens():
    function = theirs.PrefixConstrainedLogitsProcessor(lambda row, ids: [[0, 1], [2, 3]][row], 1)
    result = of(bridge.to_transform(function))(WORDS, uniform(2, 5)).isinf().tolist()
    assert result == [[False, False, True, True, True], [True, True, False, False, True]]
    # Where nothing is allowed theirs raises; ours leaves a dead row, which stops by itself.
    nothing = theirs.PrefixConstrainedLogitsProcessor(lambda row, ids: [], 1)
    assert of(bridge.to_transform(nothing))(WORDS, uniform(2, 5)).isneginf().all()


def test_forced_bos():
    processor = of(purgen.forced_bos(0))
    result = processor(some_ids(4, 1), uniform(4, 20))
    assert result[:, 1:].isneginf().all()
    assert result[:, 0].tolist() == 4 * [0]
    assert not processor(some_ids(4, 4), uniform(4, 20)).isinf().any()


def test_forced_eos():
    processor = of(purgen.forced_eos(0, max_length=5))
    result = processor(some_ids(4, 4), uniform(4, 20))
    assert result[:, 1:].isneginf().all()
    assert result[:, 0].tolist() == 4 * [0]
    assert not processor(some_ids(4, 3), uniform(4, 20)).isinf().any()


def test_remove_invalid():
    scores = torch.tensor([[0.0, 0.7, 0.8, torch.nan], [0.1, INF, 0.3, -INF]])
    number = torch.finfo(torch.float32)
    expected = torch.tensor([[0.0, 0.7, 0.8, 0.0], [0.1, number.max, 0.3, number.min]])
    assert torch.equal(of(purgen.remove_invalid())(None, scores), expected)


@pytest.mark.parametrize("converted", [True, False])
def test_exponential_decay_length_penalty(converted):
    if converted:
        penalty = theirs.ExponentialDecayLengthPenalty((5, 1.1), 0, 2)
        processor = of(bridge.to_transform(penalty))
    else:
        penalty = purgen.exponential_decay_length_penalty((5, 1.1), eos_token_id=0)
        processor = of(penalty, prompt_length=2)
    scores = uniform(4, 20)
    assert torch.equal(processor(some_ids(4, 2), scores), scores)
    for sign in (1, -1):
        result = processor(some_ids(4, 20), sign * scores)
        assert (result[:, 0] > sign * scores[:, 0]).all()
        assert torch.equal(result[:, 1:], sign * scores[:, 1:])


def test_log_normalize():
    scores = torch.tensor([[-23.18, -29.96, -43.54, 47.77], [-33.58, -26.87, -32.96, 22.51]])
    result = of(purgen.log_normalize())(None, scores).exp()
    torch.testing.assert_close(result.sum(-1), torch.ones(2))
    torch.testing.assert_close(result, scores.softmax(-1))


CONDITIONAL, UNCONDITIONAL = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.5]])
PAIR = torch.cat([CONDITIONAL, UNCONDITIONAL])


def test_guidance():
    result = of(purgen.guidance(1.5))(torch.tensor([[0]]), PAIR)
    torch.testing.assert_close(result, UNCONDITIONAL + 1.5 * (CONDITIONAL - UNCONDITIONAL))


def test_dia_guidance():
    guided = CONDITIONAL + 1.5 * (CONDITIONAL - UNCONDITIONAL)
    torch.testing.assert_close(of(purgen.dia_guidance(1.5))(torch.tensor([[0]]), PAIR), guided)
    best = of(purgen.dia_guidance(1.5, guidance_top_k=1))(torch.tensor([[0]]), PAIR)
    expected = torch.where(guided == guided.max(), CONDITIONAL, -INF)
    torch.testing.assert_close(best, expected)


@pytest.mark.parametrize("eos", [2, [2, 3]])
def test_bark_eos(eos):
    scores = uniform(2, 4)
    scores[0, eos] = -6.0  # less than the logarithm of what is asked for
    result = of(purgen.bark_eos(eos, min_eos_p=0.1))(None, scores)
    assert torch.equal(result[0], scores[0])
    kept = [eos] if isinstance(eos, int) else eos
    assert result[1].isfinite().nonzero()[:, 0].tolist() == kept


def test_green_list_watermark():
    for settings in ({"seeding_scheme": "hash"}, {"greenlist_ratio": 1.2}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            purgen.green_list_watermark(**settings)
    scores, ids = uniform(3, 20), some_ids(3, 5)
    ids[:, -1] = 10  # what is green depends on the newest token
    result = of(purgen.green_list_watermark())(ids, scores) - scores
    assert torch.equal(result, result[:1].expand(3, -1))
    torch.testing.assert_close(result[result > 0.1].unique(), torch.tensor([2.0]))


@pytest.mark.parametrize("vocab", [2, 10])
def test_synthid_converges_to_the_distribution_without_it(vocab):
    """Over many keys and contexts, watermarked distributions are on average what they were."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(1, vocab, generator=generator).expand(500, -1)
    total = torch.zeros(vocab)
    for key in range(100):
        processor = of(purgen.synthid_watermark(5, keys=[key * 7919 + 1]), prompt_length=1)
        ngrams = torch.randint(vocab, (500, 5), generator=generator)
        ids = torch.cat([torch.zeros(500, 1, dtype=torch.int64), ngrams], dim=1)
        total += processor(ids, scores).softmax(-1).mean(0)
    torch.testing.assert_close(total / 100, scores[0].softmax(-1), rtol=0, atol=2e-2)


def test_dia_eos_channel_filter():
    eos, channels = 2, 2
    logits = torch.zeros(4, 4)
    logits[:2, eos] = 1
    processor = of(purgen.dia_eos_channel_filter(channels, eos_token_id=eos))
    result = processor(torch.tensor([[0]]), logits).view(2, channels, 4)
    assert result[:, :, 3].isneginf().all()
    assert result[0, 0].tolist() == [-INF, -INF, 1.0, -INF]  # forced
    assert result[0, 1].tolist() == [0.0, 0.0, -INF, -INF]
    assert result[1].tolist() == [[0.0, 0.0, -INF, -INF]] * 2


def test_dia_eos_delay():
    eos, delays, vocab = 2, [0, 2, 3], 4
    transform = purgen.dia_eos_delay(delays, eos_token_id=eos, max_generation_len=10)
    logits = torch.zeros(2, 3, vocab)
    logits[:, :, eos] = -1

    def run(length, steps):
        """Calls it once a token, as `generate` does; the first sequence ends at step 1."""
        processor, results = of(transform), []
        for step in range(steps):
            scores = logits.clone()
            if length == 1 and step >= 1:
                scores[0, 0, eos] = 1
            ids = torch.zeros(2, length + step, dtype=torch.int64)
            results.append((processor(ids, scores.view(6, vocab)).view(2, 3, vocab), scores))
        return results

    forced = torch.full((vocab,), -INF)
    forced[eos] = 0
    for step, (result, scores) in enumerate(run(1, 5)):
        for channel, delay in enumerate(delays):
            if step == 1 + delay:
                scores[0, channel] = forced
        assert torch.equal(result, scores), step
    # All sequences begin to end where there is no more room: at 10 - 3 - 1 tokens.
    for step, (result, scores) in enumerate(run(5, 5)):
        for channel, delay in enumerate(delays):
            if step == 1 + delay:
                scores[:, channel] = forced
        assert torch.equal(result, scores), step


# Stopping criteria


def criterion(rule):
    return transformers.StoppingCriteriaList([bridge.to_stopping_criteria(rule)])


def test_max_length_and_lists():
    for rule in (
        purgen.max_length(10),
        purgen.any_of(purgen.max_length(10), purgen.max_time(100.0)),
    ):
        criteria = criterion(rule)
        for length in (5, 9):
            assert not criteria(some_ids(3, length), None).any()
        assert criteria(some_ids(3, 10), None).all()


def test_max_time():
    criteria = criterion(purgen.max_time(0.1))
    ids = some_ids(3, 5)
    assert not criteria(ids, None).any()
    time.sleep(0.11)
    assert criteria(torch.cat([ids, ids[:, :1]], dim=1), None).all()
    late = transformers.MaxTimeCriteria(max_time=0.1, initial_timestamp=time.time() - 0.2)
    assert criterion(bridge.to_stop_rule(late))(ids, None).all()


def test_eos():
    criteria = criterion(purgen.eos(0))
    for newest in ([0, 0, 0], [0, 0, 1], [1, 1, 1]):
        ids = some_ids(3, 5)
        ids[:, -1] = torch.tensor(newest)
        assert criteria(ids, None).tolist() == [token == 0 for token in newest]


def test_confidence():
    criteria = criterion(purgen.confidence(0.5))
    ids = some_ids(1, 5, vocab=250)
    for score, stops in ((10.0, False), (-10.0, True)):
        scores = torch.randn(1, 250, generator=torch.Generator().manual_seed(0))
        scores[0, ids[0, -1]] = score
        assert criteria(ids, (scores,)).tolist() == [stops]


def fires(tokenizer, strings, text):
    """Whether a stop string is completed by the last token of a text, all of which is new."""
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
    rule = purgen.stop_strings(strings, tokenizer=tokenizer)
    one = torch.full((1, 1), tokenizer.bos_token_id)
    criteria, ids = criterion(rule), torch.cat([one, ids], dim=1)
    return [criteria(ids[:, :length], None).item() for length in range(2, ids.shape[1] + 1)][-1]


def test_stop_strings():
    tokenizer = wrapped(byte_level)
    strings = ["<|im_end|>", "stop", "e nd"]
    for text in (
        "<|im_start|><|im_end|>",
        "<|im_start|><|im_end|<|im_end|>",
        ">><|im_start|>>stop",
        "stop",
        "e nd",
    ):
        assert fires(tokenizer, strings, text), text
    for text in (
        "<|im_start|><|im_end|",
        "<|im_start|><|im_end|<|im_end|",
        "<|im_end|><|im_start|>",
        "<|im_end|<>stop<|im_end|",
        "end",
        "en d",
        "eNd",
        "<|im_end|",
        "|im_end|>",
        "s",
    ):
        assert not fires(tokenizer, strings, text), text


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_stop_strings_of_split_characters(make):
    tokenizer = wrapped(make)
    for text, string, expected in (
        ("대화 끝", "끝", True),
        ("abc 끝!", "끝!", True),
        ("작업 완료", "완료", True),
        ("대화 끝 다음", "끝", False),
        ("완료 후속", "완료", False),
    ):
        assert fires(tokenizer, [string], text) == expected, text


def test_stop_strings_of_other_tokenizers():
    tokenizer = wrapped(word_pieces)
    tokenizer.backend_tokenizer.pre_tokenizer = None
    stop, s, a = (tokenizer.get_vocab()[token] for token in ("stop", "##s", "a"))
    for ids, expected in (([a, stop], True), ([stop, a], False), ([a, stop, s], False)):
        criteria = criterion(purgen.stop_strings("stop", tokenizer=tokenizer))
        row = torch.tensor([[1, *ids]])
        found = [criteria(row[:, :size], None).item() for size in range(2, row.shape[1] + 1)]
        assert found[-1] == expected


def test_stop_string_and_ids_beyond_the_tokenizer():
    tokenizer = wrapped(byte_level)
    criteria = criterion(purgen.stop_strings("test", tokenizer=tokenizer))
    assert criteria(torch.tensor([[1, len(tokenizer) + 1024]]), None).tolist() == [False]


def test_single_letter_stop_string():
    tokenizer = wrapped(byte_level)
    for text, expected in (("a", True), ("baa", True), ("abbb", False), ("b", False)):
        assert fires(tokenizer, "a", text) == expected, text


def test_criteria_stop_rows_one_by_one():
    """A row that has its stop string, one that has not yet, one that never has."""
    tokenizer = wrapped(byte_level)
    letters = {letter: tokenizer.get_vocab()[letter] for letter in "stopx"}
    rows = torch.tensor(
        [[1, *(letters[letter] for letter in word)] for word in ("stopx", "xstop", "xxxxx")]
    )
    criteria = criterion(purgen.stop_strings(["top"], tokenizer=tokenizer))
    found = [criteria(rows[:, :size], None).tolist() for size in range(2, 7)]
    assert found == [[False] * 3] * 3 + [[True, False, False], [False, True, False]]
