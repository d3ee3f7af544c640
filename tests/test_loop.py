"""The loop: streams, records, resumes, stops, and refuses."""

from __future__ import annotations

import pytest
import torch

import purgen
from purgen import Recorder, StopReason, generate, greedy, resume, stream

MODEL = purgen.testing.toy_model(vocab_size=24, eos_token_id=(3,))
PROMPT = purgen.Prompt.from_lists([[1, 2, 3, 4, 5], [6], [7, 8]], pad_token_id=0)
KEY = purgen.random.key(3)


def counting_model(vocab_size=8, eos_token_id=(6,)):
    """Token t is followed by t + 1, with probability near 1."""

    def apply(params, tokens, cache, *, cache_position=None, **_):
        position = cache.cache_position if cache_position is None else cache_position
        cache = purgen.Cache(layers=(), cache_position=position + tokens.shape[1])
        return purgen.ModelOutput(logits=params[tokens], cache=cache)

    return purgen.Model(
        params=20 * torch.eye(vocab_size).roll(1, dims=1),
        prefill=lambda params, tokens, cache, *, mask, inputs=None: apply(params, tokens, cache),
        apply=apply,
        init_cache=lambda rows, slots: purgen.Cache(
            layers=(), cache_position=torch.zeros(rows, dtype=torch.int64)
        ),
        vocab_size=vocab_size,
        eos_token_id=eos_token_id,
    )


def test_rows_stop_apart_and_for_their_own_reason():
    model = counting_model()
    prompt = purgen.Prompt.from_lists([[1], [5], [0], [4]], pad_token_id=7)
    stop = purgen.any_of(
        purgen.eos(6), purgen.max_new_tokens(torch.tensor([9, 9, 2, 9])), purgen.max_length(4)
    )
    out = generate(greedy(model, stop=stop), model.params, prompt, max_new_tokens=3)
    assert out.new_tokens.tolist() == [[2, 3, 4], [6, 0, 0], [1, 2, 0], [5, 6, 0]]
    assert out.num_new_tokens.tolist() == [3, 1, 2, 2]
    assert out.stop_reasons == ["MAX_LENGTH", "EOS", "MAX_NEW_TOKENS", "EOS"]
    assert out.scores is None


def test_budget_is_exact_and_eos_goes_before_it():
    model = counting_model()
    prompt = purgen.Prompt.from_lists([[4], [3]], pad_token_id=7)
    out = generate(greedy(model), model.params, prompt, max_new_tokens=2)
    assert out.new_tokens.tolist() == [[5, 6], [4, 5]]
    assert out.stop_reasons == ["EOS", "MAX_NEW_TOKENS"]


def test_without_eos_ids_only_the_budget_stops():
    model = counting_model(eos_token_id=())
    prompt = purgen.Prompt.from_lists([[1]], pad_token_id=7)
    out = generate(greedy(model), model.params, prompt, max_new_tokens=10)
    assert out.new_tokens.tolist() == [[2, 3, 4, 5, 6, 7, 0, 1, 2, 3]]


def test_row_without_a_token_is_flagged_and_its_neighbour_lives():
    model = counting_model()
    forbid = purgen.stateless(
        lambda logits, view: torch.where(
            (purgen.last_token(view) == 2)[:, None], -torch.inf, logits
        )
    )
    prompt = purgen.Prompt.from_lists([[1], [4]], pad_token_id=7)
    out = generate(greedy(model, transform=forbid), model.params, prompt, max_new_tokens=5)
    assert out.new_tokens.tolist() == [[2, 0], [5, 6]]
    assert out.stop_reason.tolist() == [StopReason.NO_TOKEN, StopReason.EOS]


@pytest.mark.parametrize("fill", [-torch.inf, torch.nan])
def test_dead_model_says_so(fill):
    model = counting_model()
    prompt = purgen.Prompt.from_lists([[1]], pad_token_id=7)
    dead = torch.full_like(model.params, fill)
    for decoder in (greedy(model), purgen.sample(model)):
        out = generate(decoder, dead, prompt, rng_key=KEY, max_new_tokens=5, record=["logprob"])
        assert out.new_tokens.shape == (1, 0)
        assert out.stop_reasons == ["NO_TOKEN"]
        assert out.sequences.tolist() == [[1]]


def test_stream_gives_every_state():
    steps = list(stream(greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=6))
    out = generate(greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=6)
    assert len(steps) == out.new_tokens.shape[1]
    tokens = torch.stack([info.token for _, info in steps], dim=1)
    assert torch.equal(tokens, out.new_tokens)
    for place, (state, info) in enumerate(steps):
        assert torch.equal(info.num_tokens, (out.num_new_tokens > place).long())
        assert torch.equal(state.num_new_tokens, out.num_new_tokens.clamp(max=place + 1))


def test_stream_refuses_at_once():
    with pytest.raises(ValueError, match="at least 1"):
        stream(greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=0)


@pytest.mark.parametrize("decoder", [greedy(MODEL), purgen.sample(MODEL)], ids=["greedy", "sample"])
def test_any_state_can_be_resumed(decoder):
    whole = generate(decoder, MODEL.params, PROMPT, rng_key=KEY, max_new_tokens=8)
    states = [s for s, _ in stream(decoder, MODEL.params, PROMPT, rng_key=KEY, max_new_tokens=8)]
    for state in states:
        again = resume(decoder, MODEL.params, state)
        assert torch.equal(again.sequences, whole.sequences)
        assert torch.equal(again.stop_reason, whole.stop_reason)


def test_forked_state_samples_anew_with_new_keys():
    decoder = purgen.sample(MODEL, transform=purgen.temperature(3.0), stop=purgen.any_of())
    one = purgen.Prompt.from_lists([[1, 2]], pad_token_id=0)
    state = decoder.init(MODEL.params, one, rng_key=KEY, max_new_tokens=12)
    forked = purgen.repeat_rows(state, 4)
    forked = purgen.replace(forked, rng_key=purgen.random.split(KEY, 4))
    rows = resume(decoder, MODEL.params, forked).new_tokens.tolist()
    assert len({tuple(row) for row in rows}) == 4
    four = purgen.Prompt.from_lists([[1, 2]] * 4, pad_token_id=0)
    assert (
        rows
        == generate(decoder, MODEL.params, four, rng_key=KEY, max_new_tokens=12).new_tokens.tolist()
    )


def test_record_equals_the_definition():
    decoder = purgen.sample(MODEL, transform=purgen.top_k(4))
    margin = Recorder(
        "margin", lambda logits, model_logits, token: logits.topk(2).values.diff()[:, 0]
    )
    names = [
        "token",
        "logprob",
        "entropy",
        "model_logprob",
        "model_entropy",
        "rank",
        "top_logprobs",
    ]
    out = generate(
        decoder,
        MODEL.params,
        PROMPT,
        rng_key=KEY,
        max_new_tokens=6,
        record=[*names, purgen.top_tokens(3), margin],
    )
    batch, count = out.new_tokens.shape
    assert out.record["margin"].shape == out.record["logprob"].shape == (batch, count)
    assert out.record["top_logprobs"].shape == (batch, count, 5)
    assert out.record["top_tokens"].shape == (batch, count, 3)
    assert torch.equal(out.record["token"], out.new_tokens)
    for row in range(batch):
        real = out.state.tokens[row, out.state.start[row] : out.state.length[row]]
        cache = MODEL.init_cache(1, len(real))
        logits = MODEL.apply(MODEL.params, real[None], cache).logits[0]
        for place in range(int(out.num_new_tokens[row])):
            model_logprobs = logits[
                len(real) - int(out.num_new_tokens[row]) + place - 1
            ].log_softmax(0)
            best = model_logprobs.topk(4)
            warped = torch.full_like(model_logprobs, -torch.inf).scatter(
                0, best.indices, best.values
            )
            warped = warped.log_softmax(0)
            token = out.new_tokens[row, place]
            got = {name: value[row, place] for name, value in out.record.items()}
            torch.testing.assert_close(got["logprob"], warped[token], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                got["model_logprob"], model_logprobs[token], rtol=1e-4, atol=1e-5
            )
            entropy = -(best.indices >= 0).float() @ (
                warped[best.indices].exp() * warped[best.indices]
            )
            torch.testing.assert_close(got["entropy"], entropy, rtol=1e-4, atol=1e-5)
            assert got["rank"] == (model_logprobs > model_logprobs[token]).sum()
            assert got["top_tokens"].tolist() == best.indices[:3].tolist()
        assert not out.record["logprob"][row, int(out.num_new_tokens[row]) :].any()


@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        (["logprobs"], ValueError, "unknown name 'logprobs'; known are"),
        (["entropy", "entropy"], ValueError, "given twice"),
        ([3], TypeError, "names and Recorders, not 3"),
    ],
)
def test_bad_records_are_refused(record, error, message):
    with pytest.raises(error, match=message):
        generate(greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=2, record=record)


def test_record_may_be_one_name():
    out = generate(greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=2, record="entropy")
    assert list(out.record) == ["entropy"]


def test_bad_decoder_and_loop_are_refused():
    with pytest.raises(
        TypeError, match="decoder must be a purgen.Decoder, such as .* not function"
    ):
        generate(greedy, MODEL.params, PROMPT, max_new_tokens=2)
    with pytest.raises(ValueError, match="loop must be one of .* not 'fast'"):
        generate(greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=2, loop="fast")


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["compiled", "while"])
def test_inductor_gives_the_eager_tokens(loop):
    decoder = purgen.sample(MODEL, transform=purgen.top_p(0.9))
    options = {"rng_key": KEY, "max_new_tokens": 9, "record": "logprob"}
    runs = [
        generate(decoder, MODEL.params, PROMPT, loop=name, **options) for name in ("eager", loop)
    ]
    assert torch.equal(runs[0].sequences, runs[1].sequences)
    torch.testing.assert_close(runs[0].record["logprob"], runs[1].record["logprob"])


def test_many_programs_fit_in_one_process():
    """More than the eight that torch keeps for a function by default."""
    torch.compiler.reset()
    programs = [
        purgen.greedy(MODEL, transform=purgen.chain(*[purgen.temperature(2.0)] * n))
        for n in range(10)
    ]
    for decoder in programs:
        step = torch.compile(decoder.step, fullgraph=True, dynamic=False, backend="eager")
        state = decoder.init(MODEL.params, PROMPT, max_new_tokens=2)
        assert torch.equal(
            step(MODEL.params, state)[0].tokens, decoder.step(MODEL.params, state)[0].tokens
        )


def test_full_state_that_runs_on_is_refused():
    state = generate(greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=2).state
    awake = purgen.replace(state, stopped=torch.zeros_like(state.stopped))
    with pytest.raises(ValueError, match="row 0 runs on, and its 7 slots are full"):
        resume(greedy(MODEL), MODEL.params, awake)


def test_sequences_begin_with_the_prompt_as_it_was_given():
    prompt = purgen.Prompt(
        tokens=torch.tensor([[9, 5, 6], [7, -100, -100]]), mask=torch.tensor([[0, 1, 1], [1, 0, 0]])
    )
    out = generate(greedy(MODEL), MODEL.params, prompt, max_new_tokens=3)
    assert torch.equal(out.sequences[:, :3], prompt.tokens)
    assert torch.equal(out.sequences[:, 3:], out.new_tokens)


def test_recurrent_cache_of_a_stopped_row_is_kept():
    def apply(
        params, tokens, cache, *, cache_position=None, attention_mask=None, position_ids=None
    ):
        hidden, logits = cache.layers["h"], []
        for place in range(tokens.shape[1]):
            hidden = torch.tanh(1.3 * hidden.roll(1, dims=1) + params[tokens[:, place]])
            logits.append(hidden * 5)
        cache = purgen.Cache(layers={"h": hidden}, cache_position=cache_position)
        return purgen.ModelOutput(logits=torch.stack(logits, dim=1), cache=cache)

    params = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    model = purgen.Model(
        params=params,
        prefill=lambda params, tokens, cache, *, mask, inputs=None: apply(params, tokens, cache),
        apply=apply,
        init_cache=lambda rows, slots: purgen.Cache(
            layers={"h": torch.zeros(rows, 16)}, cache_position=torch.zeros(rows, dtype=torch.int64)
        ),
        vocab_size=16,
    )
    prompt = purgen.Prompt(tokens=torch.tensor([[1, 2], [3, 4]]))
    whole = generate(greedy(model), params, prompt, max_new_tokens=8)
    early = greedy(model, stop=purgen.max_new_tokens(torch.tensor([2, 8])))
    state = generate(early, params, prompt, max_new_tokens=8).state
    awake = purgen.replace(
        state,
        stopped=torch.tensor([False, True]),
        stop_reason=torch.tensor([0, 3]),
        stop=greedy(model).init(params, prompt, max_new_tokens=8).stop,
    )
    assert torch.equal(resume(greedy(model), params, awake).sequences, whole.sequences)


def test_progress_counts_tokens(capsys):
    out = generate(greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=5, progress=True)
    assert f"{int(out.num_new_tokens.sum())}/15" in capsys.readouterr().err
    generate(greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=5)
    assert capsys.readouterr().err == ""


def test_callers_tensors_are_not_kept_or_changed():
    tokens, mask = PROMPT.tokens.clone(), PROMPT.mask.clone()
    key = purgen.random.split(KEY, 3)
    held = key.clone()
    out = generate(purgen.sample(MODEL), MODEL.params, PROMPT, rng_key=key, max_new_tokens=5)
    assert torch.equal(PROMPT.tokens, tokens)
    assert torch.equal(PROMPT.mask, mask)
    assert torch.equal(key, held)
    assert out.state.rng_key.data_ptr() != key.data_ptr()
