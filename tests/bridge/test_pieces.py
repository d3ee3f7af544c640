"""Logits processors and stopping criteria of transformers as purgen's pieces, and back."""

from __future__ import annotations

import inspect
import time
import types

import pytest
import torch
import transformers
from transformers.generation import logits_process, stopping_criteria

import bridge
import purgen
from bridge.processors import PROCESSORS
from purgen.testing import check_stop_rule, check_transform
from tests.bridge.test_token_bytes import MAKERS, byte_level, steps_of, steps_of_theirs, wrapped
from tests.transforms.parity import VOCAB, view_of_ids

INF = torch.inf
LP = logits_process
WHISPER = types.SimpleNamespace(
    no_timestamps_token_id=20, eos_token_id=15, bos_token_id=1, max_initial_timestamp_index=5
)

# By class: how to make one, given the prompt int64 [B, P].
THEIRS = {
    "AlternatingCodebooksLogitsProcessor": lambda p: LP.AlternatingCodebooksLogitsProcessor(
        p.shape[1], 10, 15
    ),
    "BarkEosPrioritizerLogitsProcessor": lambda p: LP.BarkEosPrioritizerLogitsProcessor(
        [3, 4], 0.05
    ),
    "ClassifierFreeGuidanceLogitsProcessor": lambda p: LP.ClassifierFreeGuidanceLogitsProcessor(
        2.5
    ),
    "DiaClassifierFreeGuidanceLogitsProcessor": lambda p: (
        LP.DiaClassifierFreeGuidanceLogitsProcessor(2.5, 5)
    ),
    "DiaEOSChannelFilterLogitsProcessor": lambda p: LP.DiaEOSChannelFilterLogitsProcessor(4, 30),
    "DiaEOSDelayPatternLogitsProcessor": lambda p: LP.DiaEOSDelayPatternLogitsProcessor(
        [0, 1, 1, 2], 30, p.shape[1] + 5
    ),
    "EncoderNoRepeatNGramLogitsProcessor": lambda p: LP.EncoderNoRepeatNGramLogitsProcessor(2, p),
    "EncoderRepetitionPenaltyLogitsProcessor": lambda p: LP.EncoderRepetitionPenaltyLogitsProcessor(
        1.7, p
    ),
    "EpsilonLogitsWarper": lambda p: LP.EpsilonLogitsWarper(0.02, min_tokens_to_keep=2),
    "EtaLogitsWarper": lambda p: LP.EtaLogitsWarper(0.03, filter_value=-50.0),
    "ExponentialDecayLengthPenalty": lambda p: LP.ExponentialDecayLengthPenalty(
        (2, 1.3), [3, 5], p.shape[1]
    ),
    "ForcedBOSTokenLogitsProcessor": lambda p: LP.ForcedBOSTokenLogitsProcessor(7),
    "ForcedEOSTokenLogitsProcessor": lambda p: LP.ForcedEOSTokenLogitsProcessor(
        p.shape[1] + 3, [3, 5]
    ),
    "InfNanRemoveLogitsProcessor": lambda p: LP.InfNanRemoveLogitsProcessor(),
    "LogitNormalization": lambda p: LP.LogitNormalization(),
    "MinLengthLogitsProcessor": lambda p: LP.MinLengthLogitsProcessor(p.shape[1] + 2, [3, 5]),
    "MinNewTokensLengthLogitsProcessor": lambda p: LP.MinNewTokensLengthLogitsProcessor(
        p.shape[1], 3, 4
    ),
    "MinPLogitsWarper": lambda p: LP.MinPLogitsWarper(0.1, min_tokens_to_keep=2),
    "NoBadWordsLogitsProcessor": lambda p: LP.NoBadWordsLogitsProcessor(
        [[1], [2, 3], [1, 1, 2], [9]], eos_token_id=9
    ),
    "NoRepeatNGramLogitsProcessor": lambda p: LP.NoRepeatNGramLogitsProcessor(2),
    "PrefixConstrainedLogitsProcessor": lambda p: LP.PrefixConstrainedLogitsProcessor(
        lambda row, ids: [int(ids[-1]), row + 1, 30], 1
    ),
    "RepetitionPenaltyLogitsProcessor": lambda p: LP.RepetitionPenaltyLogitsProcessor(
        1.4, prompt_ignore_length=1
    ),
    "SequenceBiasLogitsProcessor": lambda p: LP.SequenceBiasLogitsProcessor(
        [[[1], 2.5], [[2, 3], -4.0], [[1, 1, 2], 1.5]]
    ),
    "SuppressTokensAtBeginLogitsProcessor": lambda p: LP.SuppressTokensAtBeginLogitsProcessor(
        [1, 2, 20], p.shape[1]
    ),
    "SuppressTokensLogitsProcessor": lambda p: LP.SuppressTokensLogitsProcessor([0, 11]),
    "SynthIDTextWatermarkLogitsProcessor": lambda p: LP.SynthIDTextWatermarkLogitsProcessor(
        3, [654, 400, 836], 2**10, 5, 4, torch.device("cpu")
    ),
    "TemperatureLogitsWarper": lambda p: LP.TemperatureLogitsWarper(0.7),
    "TopHLogitsWarper": lambda p: LP.TopHLogitsWarper(0.6),
    "TopKLogitsWarper": lambda p: LP.TopKLogitsWarper(4, min_tokens_to_keep=6, filter_value=-9.0),
    "TopPLogitsWarper": lambda p: LP.TopPLogitsWarper(0.8),
    "TypicalLogitsWarper": lambda p: LP.TypicalLogitsWarper(0.6),
    "WhisperNoSpeechDetection": lambda p: LP.WhisperNoSpeechDetection(3, 1),
    "WhisperTimeStampLogitsProcessor": lambda p: LP.WhisperTimeStampLogitsProcessor(
        WHISPER, p.shape[1]
    ),
}
# These cannot be equal, or are no transforms.
OTHERS = {"WatermarkLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor"}
PAIRED = {"ClassifierFreeGuidanceLogitsProcessor", "DiaClassifierFreeGuidanceLogitsProcessor"}


def classes_of(module, base):
    return {
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, base) and value is not base
    }


def test_every_class_of_transformers_is_known():
    processors = classes_of(logits_process, LP.LogitsProcessor)
    assert processors == set(PROCESSORS) == set(THEIRS) | OTHERS
    criteria = classes_of(stopping_criteria, stopping_criteria.StoppingCriteria)
    assert criteria == set(bridge.to_stop_rule.__globals__["TABLE"])
    for name, (factory, _) in PROCESSORS.items():
        assert hasattr(purgen, factory), name


def generation(seed, rows=4, prompt=5, steps=5):
    """Tokens int64 [B, P + N], few of them so that they repeat, and logits [B, V] of each step."""
    generator = torch.Generator().manual_seed(seed)
    few = [4, VOCAB][seed % 2]
    ids = torch.randint(few, (rows, prompt + steps), generator=generator)
    logits = torch.randn(steps + 1, rows, VOCAB, generator=generator) * 3
    return ids, logits


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("seed", range(4))
def test_transform_equals_the_class_over_a_generation(name, seed):
    prompt = 1 if name in ("ForcedBOSTokenLogitsProcessor", "WhisperNoSpeechDetection") else 5
    ids, logits = generation(seed, prompt=prompt)
    theirs = THEIRS[name](ids[:, :prompt])
    transform = bridge.to_transform(THEIRS[name](ids[:, :prompt]))
    expected = []
    for step, scores in enumerate(logits):
        seen = ids[: 2 if name in PAIRED else 4, : prompt + step]
        if name == "DiaEOSDelayPatternLogitsProcessor":
            scores = scores.clone()
            scores[0, 30] += 30 * (step == 1)  # ends by itself
        expected.append((theirs(seen, scores.clone()), scores))
    for pads in (0, 3):  # of the id of a token
        view = view_of_ids(ids[:, :prompt], prompt, pads, pad=int(ids[0, 0]))
        state = transform.init(purgen.replace(view, max_new_tokens=50))
        for step, (result, scores) in enumerate(expected):
            view = view_of_ids(ids[:, : prompt + step], prompt, pads, pad=int(ids[0, 0]))
            ours, state = transform.apply(state, scores, view)
            torch.testing.assert_close(ours[: len(result)], result, rtol=1e-5, atol=1e-5)
    if name == "WhisperNoSpeechDetection":
        torch.testing.assert_close(state.no_speech_prob, theirs.no_speech_prob)


# One of each kind of conversion that is more than a call.
LAWFUL = [
    "AlternatingCodebooksLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "TopHLogitsWarper",
]


@pytest.mark.parametrize("name", LAWFUL)
def test_converted_transform_keeps_the_laws(name):
    check_transform(bridge.to_transform(THEIRS[name](torch.tensor([[1, 2, 3]] * 4))), steps=4)


def test_rows_of_a_padded_batch_count_from_their_own_prompts():
    """A batch of prompts of 5 and 2 tokens, padded: both rows do what transformers does there."""
    ids, logits = generation(0, rows=2)
    for name in (
        "MinNewTokensLengthLogitsProcessor",
        "ExponentialDecayLengthPenalty",
        "SuppressTokensAtBeginLogitsProcessor",
        "AlternatingCodebooksLogitsProcessor",
    ):
        theirs = THEIRS[name](ids[:, :5])
        transform = bridge.to_transform(theirs)
        start = torch.tensor([0, 3])
        state = transform.init(purgen.replace(view_of_ids(ids[:, :5], 5), start=start))
        for step in range(5):
            view = purgen.replace(view_of_ids(ids[:, : 5 + step], 5), start=start)
            ours, state = transform.apply(state, logits[step], view)
            expected = theirs(ids[:, : 5 + step], logits[step])
            torch.testing.assert_close(ours, expected)


def test_green_list_watermark_has_the_same_strength():
    theirs = LP.WatermarkLogitsProcessor(VOCAB, "cpu", greenlist_ratio=0.25, bias=1.5)
    transform = bridge.to_transform(theirs)
    ids, _ = generation(1, rows=200)
    scores = torch.zeros(200, VOCAB)
    view = view_of_ids(ids, ids.shape[1])
    ours, _ = transform.apply(transform.init(view), scores, view)
    for result in (ours, theirs(ids, scores)):
        assert set(result.unique().tolist()) == {0.0, 1.5}
        assert 0.2 < (result > 0).float().mean() < 0.3


def test_no_speech_probability_of_a_longer_prompt_is_read_off_the_model():
    logits = torch.randn(2, 4, VOCAB, generator=torch.Generator().manual_seed(0))

    def model(**inputs):
        assert inputs == {"input_features": "sound"}
        return types.SimpleNamespace(logits=logits)

    theirs = LP.WhisperNoSpeechDetection(3, 3)
    with pytest.raises(bridge.Unsupported, match="set_model"):
        bridge.to_transform(theirs)
    theirs.model, theirs.inputs = model, {"input_features": "sound"}
    transform = bridge.to_transform(theirs)
    ids, scores = generation(0, rows=4, prompt=3)
    view = view_of_ids(ids[:, :3], 3)
    result, state = transform.apply(transform.init(view), scores[0], view)
    theirs(ids[::2, :3], scores[0])
    assert torch.equal(result, scores[0])
    assert torch.equal(state.no_speech_prob[::2], theirs.no_speech_prob)  # two rows for each sound


def test_function_is_tabulated_where_eos_is_known():
    allowed = {(): [1, 2], (1,): [3, 0], (2,): [0], (1, 3): [0]}
    theirs = LP.PrefixConstrainedLogitsProcessor(
        lambda row, ids: allowed[tuple(ids[2:].tolist())], 1
    )
    transform = bridge.to_transform(theirs, eos_token_id=0)
    view = purgen.replace(view_of_ids(torch.tensor([[7, 7]]), 2), max_new_tokens=4)
    state = transform.init(view)
    calls = []
    for new in ([], [1], [1, 3]):
        ids = torch.tensor([[7, 7, *new]])
        scores, state = transform.apply(state, torch.zeros(1, VOCAB), view_of_ids(ids, 2))
        assert torch.equal(scores, theirs(ids, torch.zeros(1, VOCAB)))
        calls.append(scores)
    assert len(calls) == 3


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.3,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.pad_token_id = 0
    return model


PROMPT = torch.tensor([[5, 6, 7, 8], [9, 3, 4, 5]])
PADDED = torch.tensor([[0, 0, 7, 8], [9, 3, 4, 5]])


def test_list_that_transformers_builds(llama):
    config = transformers.GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_k=20,
        top_p=0.9,
        min_p=0.01,
        typical_p=0.95,
        epsilon_cutoff=1e-3,
        eta_cutoff=1e-3,
        repetition_penalty=1.3,
        no_repeat_ngram_size=3,
        bad_words_ids=[[8], [3, 4]],
        sequence_bias=[[[9], 0.5], [[1, 2], -1.0]],
        min_new_tokens=2,
        min_length=3,
        forced_eos_token_id=2,
        max_length=12,
        suppress_tokens=[11],
        begin_suppress_tokens=[12, 13],
        exponential_decay_length_penalty=(3, 1.2),
        renormalize_logits=True,
        remove_invalid_values=True,
        eos_token_id=[2, 3],
    )
    config._eos_token_tensor = torch.tensor([2, 3])
    theirs = llama._get_logits_processor(generation_config=config, input_ids_seq_length=5)
    assert len(theirs) > 15
    transform = bridge.to_transform(theirs)
    ids, logits = generation(3)
    state = transform.init(purgen.replace(view_of_ids(ids[:, :5], 5), max_new_tokens=7))
    for step, scores in enumerate(logits):
        seen = ids[:, : 5 + step]
        ours, state = transform.apply(state, scores, view_of_ids(seen, 5))
        torch.testing.assert_close(ours, theirs(seen, scores), rtol=1e-5, atol=1e-5)


def test_lists_may_hold_lists_and_ours():
    nested = [[transformers.TemperatureLogitsWarper(0.5)], purgen.top_k(2), ()]
    transform = bridge.to_transform(nested)
    view = view_of_ids(torch.tensor([[1]]), 1)
    scores = torch.tensor([[1.0, 3.0, 2.0]])
    assert transform.apply(transform.init(view), scores, view)[0].tolist() == [[-INF, 6.0, 4.0]]
    rule = bridge.to_stop_rule([[transformers.EosTokenCriteria(3)], purgen.max_new_tokens(2)])
    assert steps_of(rule, [[1, 3], [3, 1]]) == [[False, True], [True, True]]


def test_what_went_out_comes_back():
    transform, rule = purgen.top_k(3), purgen.eos(2)
    assert bridge.to_transform(bridge.to_logits_processor(transform)) is transform
    assert bridge.to_stop_rule(bridge.to_stopping_criteria(rule)) is rule


class MyTopKWarper(LP.TopKLogitsWarper):
    pass


class EosTokenCriterion(stopping_criteria.EosTokenCriteria):
    pass


class Zebra:
    pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: bridge.to_transform(MyTopKWarper(3)),
            r"MyTopKWarper is no logits processor .* nearest is purgen.top_k \(for TopKLogitsWarper",
        ),
        (lambda: bridge.to_transform([Zebra()]), "Zebra is no .* purgen has .*top_p"),
        (
            lambda: bridge.to_stop_rule(Zebra()),
            "Zebra is no stopping criterion .* purgen has .*eos",
        ),
        (
            lambda: bridge.to_stop_rule(EosTokenCriterion(3)),
            "EosTokenCriterion is no stopping criterion .* nearest is purgen.eos",
        ),
        (
            lambda: bridge.to_transform(
                LP.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, lambda: None)
            ),
            r"UnbatchedClassifierFreeGuidance.* purgen.guided\(model, scale=1.5",
        ),
        (
            lambda: bridge.to_transform(
                LP.SynthIDTextWatermarkLogitsProcessor(3, [1], 64, 12345, 4, torch.device("cpu"))
            ),
            "sampling_table_seed of this SynthID",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(make, message):
    with pytest.raises(bridge.Unsupported, match=message):
        make()


def test_a_processor_in_the_middle_of_a_generation_is_refused():
    theirs = LP.DiaEOSDelayPatternLogitsProcessor([0, 1], 3, 10)
    theirs(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(2, VOCAB))
    with pytest.raises(bridge.Unsupported, match="make a new one"):
        bridge.to_transform(theirs)


# Stopping criteria


@pytest.mark.parametrize("make", MAKERS)
def test_stop_strings_are_read_off_the_criterion(make):
    tokenizer = wrapped(make)
    texts = bridge.token_bytes(tokenizer)
    generator = torch.Generator().manual_seed(0)
    for strings in (["stop"], ["s", "top a"], [" st", "op", "opa"], ["aa", "é"], [" stop"]):
        if not set("".join(strings).encode()) <= set(b"".join(text or b"" for text in texts)):
            continue
        theirs = transformers.StopStringCriteria(tokenizer, strings)
        ours = bridge.to_stop_rule(theirs)
        wanted = set("".join(strings).encode())
        likely = [index for index, text in enumerate(texts) if set(text or b"") & wanted]
        likely = torch.tensor([*likely, texts.index(None)])  # special tokens have a text there
        ids = likely[torch.randint(len(likely), (60, 10), generator=generator)].tolist()
        found = steps_of(ours, ids)
        assert found == steps_of_theirs(theirs, ids), strings
        assert any(any(step) for step in found)
    check_stop_rule(ours, vocab_size=len(texts), steps=6, backend=None)


def test_max_time_has_begun():
    now = time.time()
    rule = bridge.to_stop_rule(transformers.MaxTimeCriteria(5.0, initial_timestamp=now - 3))
    context = purgen.testing.example_view(batch_size=1)
    assert 1.5 < float(rule.init(context)) <= 2.0
    over = bridge.to_stop_rule(transformers.MaxTimeCriteria(0.1, initial_timestamp=now - 0.2))
    assert over.check(over.init(context), context)[0].tolist() == [True]


def test_list_of_criteria_says_which_fired():
    rule = bridge.to_stop_rule(
        transformers.StoppingCriteriaList(
            [
                transformers.MaxLengthCriteria(6),
                transformers.EosTokenCriteria([2, 3]),
                stopping_criteria.ConfidenceCriteria(0.0),
                transformers.MaxTimeCriteria(99.0),
            ]
        )
    )
    model = purgen.testing.toy_model(vocab_size=VOCAB)
    decoder = purgen.greedy(model, stop=rule)
    prompt = purgen.Prompt.from_lists([[1, 4, 5], [1]], pad_token_id=0)
    out = purgen.generate(decoder, model.params, prompt, max_new_tokens=9)
    assert set(out.stop_reasons) <= {"MAX_LENGTH", "EOS"}
    assert ((out.state.length - out.state.start) <= 6).all()


# Ours in their `generate`


def both(llama, processors, prompt=PROMPT, **options):
    """`generate` with their processors, and with ours made of these."""
    options = {"max_new_tokens": 12, "do_sample": False, **options}
    mask = (prompt != 0).long()
    results = []
    for list_of in (
        processors,
        [bridge.to_logits_processor(bridge.to_transform(processors()))],
    ):
        given = list_of() if callable(list_of) else list_of
        torch.manual_seed(0)
        results.append(
            llama.generate(
                prompt,
                attention_mask=mask,
                logits_processor=transformers.LogitsProcessorList(given),
                **options,
            )
        )
    return results


MIXED = [
    lambda: LP.RepetitionPenaltyLogitsProcessor(1.5),
    lambda: LP.NoRepeatNGramLogitsProcessor(2),
    lambda: LP.MinNewTokensLengthLogitsProcessor(4, 5, 2),
    lambda: LP.SequenceBiasLogitsProcessor([[[5], 2.0], [[7, 8], -3.0]]),
    lambda: LP.SuppressTokensAtBeginLogitsProcessor([5, 6], 4),
    lambda: LP.TopKLogitsWarper(12),
]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_sample": True},
        {"do_sample": True, "num_return_sequences": 3},
        {"num_beams": 4, "num_return_sequences": 2},
        {"num_beams": 3, "do_sample": True},
        {"num_beams": 3, "length_penalty": -1.0, "early_stopping": True},
    ],
    ids=str,
)
def test_generate_with_ours_equals_generate_with_theirs(llama, options):
    theirs, ours = both(llama, lambda: [make() for make in MIXED], **options)
    assert torch.equal(theirs, ours)


def test_generate_with_a_stateful_class(llama):
    """SynthID keeps contexts in the order of calls, so their own state goes wrong with beams."""
    theirs, ours = both(
        llama,
        lambda: [LP.SynthIDTextWatermarkLogitsProcessor(3, [9, 8], 64, 1, 8, torch.device("cpu"))],
        do_sample=True,
    )
    assert torch.equal(theirs, ours)


def test_pads_count_for_none_where_they_are_told(llama):
    """Ours gives a padded row what theirs gives it alone."""
    make = [LP.RepetitionPenaltyLogitsProcessor(3.0), LP.NoRepeatNGramLogitsProcessor(1)]
    transform = bridge.to_transform(make)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": 39}
    mask = (PADDED != 0).long()
    alone = llama.generate(PADDED[:1, 2:], logits_processor=make, **options)[0, 2:]
    for told in ({"pad_token_id": 0}, {"prompt_mask": mask}):
        processor = bridge.to_logits_processor(transform, **told)
        ours = llama.generate(PADDED, attention_mask=mask, logits_processor=[processor], **options)
        assert torch.equal(ours[0, 4 : 4 + len(alone)], alone)
        beams = llama.generate(
            PADDED, attention_mask=mask, logits_processor=[processor], num_beams=2, **options
        )
        assert len(beams) == 2
    with pytest.raises(ValueError, match=r"prompt_mask is \[2, 4\] and the prompt \[2, 3\]"):
        bridge.to_logits_processor(transform, prompt_mask=mask)(
            PROMPT[:, :3], torch.zeros(2, VOCAB)
        )


def tracking(seen):
    """A transform that adds up new tokens, and complains where that is not what is there."""

    def init(context):
        seen.append(int(context.prompt_length[0]))
        return torch.zeros_like(context.length)

    def apply(total, logits, view):
        newest = torch.where(view.num_new_tokens > 0, purgen.last_token(view), 0)
        total = total + newest
        new = torch.arange(view.tokens.shape[1]) >= view.prompt_length[:, None]
        assert torch.equal(total, (view.tokens * new).sum(1))
        return logits, total

    return purgen.LogitsTransform(init, apply)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 5},
        {"num_beams": 4, "do_sample": True, "temperature": 3.0},
        {"do_sample": True, "num_return_sequences": 4},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=str,
)
def test_state_follows_its_rows(llama, options):
    """Whatever transformers does with rows; a processor serves one generation after the other."""
    seen = []
    assisted = "prompt_lookup_num_tokens" in options
    processor = bridge.to_logits_processor(tracking(seen), assisted=assisted or None)
    options = {"max_new_tokens": 10, "do_sample": False, **options}
    prompt = PROMPT[:1].repeat(1, 3) if assisted else PROMPT
    for _ in range(2):
        seen.clear()
        llama.generate(prompt, logits_processor=[processor], **options)
        assert set(seen) == {prompt.shape[1]}
        assert len(seen) == 1 + assisted


def test_a_prompt_that_was_once_generated(llama):
    for assisted in (None, False):
        seen = []
        processor = bridge.to_logits_processor(tracking(seen), assisted=assisted)
        options = {"max_new_tokens": 8, "do_sample": False, "logits_processor": [processor]}
        text = llama.generate(PROMPT, **options)
        llama.generate(PROMPT, **options)
        if assisted is None:
            with pytest.raises(ValueError, match="after 11 tokens these are 7.*assisted=True"):
                llama.generate(text[:, :7], **options)
            processor.reset()
        llama.generate(text[:, :7], **options)
        assert seen == [4, 4, 7]


def test_reset_begins_anew():
    seen = []
    processor = bridge.to_logits_processor(tracking(seen))
    scores = torch.zeros(1, VOCAB)
    processor(torch.tensor([[5]]), scores)
    processor(torch.tensor([[5, 6]]), scores)
    assert seen == [1]
    processor.reset()
    processor(torch.tensor([[5, 6, 7]]), scores)
    assert seen == [1, 3]


def test_draws_depend_on_the_key_of_the_row(llama):
    noisy = purgen.LogitsTransform(
        lambda context: (),
        lambda state, logits, view: (
            logits + 5 * purgen.random.gumbel(purgen.step_key(view), logits.shape[-1:]),
            state,
        ),
    )

    def text(seed):
        processor = bridge.to_logits_processor(noisy, rng_key=purgen.random.key(seed))
        return llama.generate(
            PROMPT, logits_processor=[processor], max_new_tokens=8, do_sample=False
        )

    assert torch.equal(text(0), text(0))
    assert not torch.equal(text(0), text(1))
    with pytest.raises(ValueError, match="rng_key is None"):
        bridge.to_logits_processor(noisy)(PROMPT, torch.zeros(2, VOCAB))


def test_budget_and_prompt_length_may_be_told():
    processor = bridge.to_logits_processor(purgen.forced_eos(3), max_new_tokens=2)
    scores = torch.zeros(1, 5)
    assert processor(torch.tensor([[1]]), scores).isfinite().all()
    assert processor(torch.tensor([[1, 4]]), scores).tolist() == [[-INF, -INF, -INF, 0.0, -INF]]
    processor = bridge.to_logits_processor(
        purgen.min_new_tokens(2, eos_token_id=0), prompt_length=3
    )
    for length, forbidden in ((2, True), (3, True), (4, True), (5, False)):
        ids = torch.full((1, length), length)
        assert processor(ids, scores)[0, 0].isinf() == forbidden


def test_rows_of_scores_that_have_no_tokens_of_their_own():
    ids = torch.tensor([[1, 2], [3, 4]])
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    guided = bridge.to_logits_processor(purgen.guidance(2.0))(ids, logits)
    torch.testing.assert_close(guided, logits[2:] + 2 * (logits[:2] - logits[2:]))
    filtered = bridge.to_logits_processor(
        purgen.dia_eos_channel_filter(2, eos_token_id=3), paired=False
    )(ids, logits)
    assert filtered.shape == logits.shape
    three = torch.cat([logits, logits[:2]])
    kept = bridge.to_logits_processor(purgen.repetition_penalty(2.0))(ids, three)
    expected = bridge.to_logits_processor(purgen.repetition_penalty(2.0))(
        ids.repeat_interleave(3, dim=0), three
    )
    assert torch.equal(kept, expected)
    with pytest.raises(ValueError, match="scores have 3 rows and input_ids 2"):
        bridge.to_logits_processor(purgen.top_k(1))(ids, logits[:3])
    with pytest.raises(ValueError, match=r"scores must be \[B, V\]"):
        bridge.to_logits_processor(purgen.top_k(1))(ids, logits[None])


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
def test_criteria_in_generate(llama, options):
    """Stop sequences of theirs and ours, in the middle of generations that go different ways."""
    free = llama.generate(PROMPT, max_new_tokens=10, do_sample=False, eos_token_id=39)
    ends = free[:, 7].tolist()
    options = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": 39, **options}
    results = []
    for criteria in (
        [transformers.EosTokenCriteria([*ends, 39])],  # it takes the place of that of eos_token_id
        [bridge.to_stopping_criteria(purgen.eos(ends))],
        [bridge.to_stopping_criteria(purgen.stop_sequences([[token] for token in ends]))],
    ):
        torch.manual_seed(0)
        results.append(llama.generate(PROMPT, stopping_criteria=criteria, **options))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_stateful_criterion_in_generate(llama):
    """Two generations with one criterion; its automaton is in step with the text of each row."""
    plain = llama.generate(PROMPT, max_new_tokens=10, do_sample=False, eos_token_id=39)
    vocabulary = [bytes([97 + token % 26]) * (1 + token // 26) for token in range(VOCAB)]
    text = b"".join(vocabulary[token] for token in plain[0, 4:].tolist()).decode()
    rule = purgen.stop_strings(text[3:6], vocabulary=vocabulary)
    criterion = bridge.to_stopping_criteria(rule)
    for _ in range(2):
        out = llama.generate(
            PROMPT[:1], stopping_criteria=[criterion], max_new_tokens=10, do_sample=False
        )
        new = b"".join(vocabulary[token] for token in out[0, 4:].tolist()).decode()
        assert text[3:6] in new
        assert text[3:6] not in new[: -len(vocabulary[int(out[0, -1])])]


def test_rules_on_probabilities_need_scores(llama):
    criterion = bridge.to_stopping_criteria(purgen.confidence(0.99))
    options = {"max_new_tokens": 6, "do_sample": False, "stopping_criteria": [criterion]}
    out = llama.generate(PROMPT, return_dict_in_generate=True, output_scores=True, **options)
    theirs = llama.generate(
        PROMPT[:1],
        return_dict_in_generate=True,
        output_scores=True,
        **{**options, "stopping_criteria": [stopping_criteria.ConfidenceCriteria(0.99)]},
    )
    width = theirs.sequences.shape[1]
    assert torch.equal(out.sequences[:1, :width], theirs.sequences)
    with pytest.raises(ValueError, match="output_scores=True"):
        llama.generate(PROMPT, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: bridge.to_logits_processor(purgen.eos(1)),
            "must be a LogitsTransform, not StopRule",
        ),
        (lambda: bridge.to_stopping_criteria(lambda: 3), "rule must be a StopRule, not function"),
    ],
)
def test_wrong_pieces(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_byte_level_stop_string_of_a_padded_vocabulary():
    tokenizer = wrapped(byte_level)
    rule = bridge.to_stop_rule(transformers.StopStringCriteria(tokenizer, "st"))
    s, t = (tokenizer.get_vocab()[letter] for letter in "st")
    assert steps_of(rule, [[s, 4000, t, s, t]]) == [[False]] * 4 + [[True]]
