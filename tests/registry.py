"""Every public piece, as the contract tests try it. A new piece is one line here."""

from __future__ import annotations

from collections.abc import Callable

import torch

import purgen
from purgen import Decoder, LogitsTransform, Model, StopRule

ROWS = 4  # the batch size of the contract tests


def per_row(*values: float) -> torch.Tensor:
    return torch.tensor(values)


TRANSFORMS: dict[str, list[Callable[[], LogitsTransform]]] = {
    "alternating_codebooks": [
        lambda: purgen.alternating_codebooks(10, codebook_size=8),
        lambda: purgen.alternating_codebooks(
            torch.tensor([0, 4, 9, 16]),
            codebook_size=torch.tensor([1, 8, 15, 2]),
            input_start_len=torch.tensor([0, 1, 2, 30]),
        ),
    ],
    "bad_words": [
        lambda: purgen.bad_words([[3], [1, 2], [4, 4, 4], [5, 6, 7, 0, 1, 2, 3, 4, 5, 6]]),
    ],
    "bark_eos": [
        lambda: purgen.bark_eos([3, 4], min_eos_p=0.05),
        lambda: purgen.bark_eos(3, min_eos_p=per_row(0.001, 0.05, 0.5, 1.0)),
    ],
    "chain": [
        purgen.chain,
        lambda: purgen.chain(
            purgen.repetition_penalty(1.3),
            purgen.temperature(0.7),
            purgen.top_k(20),
            purgen.top_p(0.9),
            purgen.min_p(0.02),
        ),
    ],
    "dia_eos_channel_filter": [
        lambda: purgen.dia_eos_channel_filter(2, eos_token_id=20),
        lambda: purgen.dia_eos_channel_filter(4, eos_token_id=1),
    ],
    "dia_eos_delay": [],  # of several rows: see GROUPED
    "dia_guidance": [],  # likewise
    "dry": [
        lambda: purgen.dry(0.8),
        lambda: purgen.dry(
            per_row(0.0, 0.5, 1.0, 9.0),
            base=per_row(1.0, 1.5, 2.0, 1e20),
            allowed_length=torch.tensor([0, 1, 2, 3]),
            sequence_breakers=[5, 7],
            penalty_last_n=torch.tensor([1, 5, 9, 99]),
        ),
        lambda: purgen.dry(1.0, allowed_length=1, scope="prompt"),
        lambda: purgen.dry(1.0, allowed_length=1, scope="generated"),
    ],
    "dynamic_temperature": [
        lambda: purgen.dynamic_temperature(0.5, 1.5),
        lambda: purgen.dynamic_temperature(
            per_row(0.0, 0.5, 1.0, 2.0), 1.5, exponent=per_row(0.5, 1.0, 2.0, 3.0)
        ),
    ],
    "encoder_no_repeat_ngram": [
        lambda: purgen.encoder_no_repeat_ngram(2, encoder_input_ids=[[1, 2, 3, 1, 4], [5]]),
        lambda: purgen.encoder_no_repeat_ngram(
            torch.tensor([1, 2, 3, 9]),
            encoder_input_ids=torch.arange(36).reshape(4, 9) % 5,
            encoder_attention_mask=torch.arange(9) > torch.tensor([[-1], [0], [2], [8]]),
        ),
    ],
    "encoder_repetition_penalty": [
        lambda: purgen.encoder_repetition_penalty(1.5, encoder_input_ids=[1, 2, 3]),
        lambda: purgen.encoder_repetition_penalty(
            per_row(0.5, 1.0, 2.0, 9.0), encoder_input_ids=[[1, 2], [3], [4, 5, 6], [7]]
        ),
    ],
    "entropy_temperature": [
        lambda: purgen.entropy_temperature(1.5),
        lambda: purgen.entropy_temperature(
            per_row(0.0, 1.0, 2.0, 9.0), low=0.0, high=per_row(0.5, 1.0, 1.5, 2.0)
        ),
    ],
    "epsilon_cutoff": [
        lambda: purgen.epsilon_cutoff(0.01),
        lambda: purgen.epsilon_cutoff(per_row(0.0, 0.001, 0.1, 1.0), min_tokens_to_keep=3),
    ],
    "eta_cutoff": [
        lambda: purgen.eta_cutoff(0.01),
        lambda: purgen.eta_cutoff(per_row(0.0, 0.001, 0.1, 1.0), min_tokens_to_keep=3),
    ],
    "exponential_decay_length_penalty": [
        lambda: purgen.exponential_decay_length_penalty((3, 1.2), eos_token_id=[1, 2]),
        lambda: purgen.exponential_decay_length_penalty(
            (torch.tensor([0, 1, 5, 50]), per_row(0.5, 1.0, 1.5, 1e9)), eos_token_id=3
        ),
    ],
    "forced_bos": [
        lambda: purgen.forced_bos(5),
        lambda: purgen.forced_bos(torch.tensor([1, 2, 3, 31]), begin_index=None),
        lambda: purgen.forced_bos(5, begin_index=torch.tensor([0, 1, 9, 99])),
    ],
    "forced_eos": [
        lambda: purgen.forced_eos(3),
        lambda: purgen.forced_eos([3, 5], max_length=torch.tensor([1, 9, 15, 99])),
    ],
    "frequency_penalty": [
        lambda: purgen.frequency_penalty(0.7),
        lambda: purgen.frequency_penalty(per_row(-1.0, 0.0, 0.5, 2.0), scope="all", exempt=[0, 3]),
    ],
    "green_list_watermark": [
        purgen.green_list_watermark,
        lambda: purgen.green_list_watermark(
            per_row(0.1, 0.25, 0.5, 0.9),
            bias=per_row(-1.0, 0.0, 2.0, 9.0),
            hashing_key=torch.tensor([0, 1, 2**32 - 1, 2**40]),
            context_width=4,
        ),
        lambda: purgen.green_list_watermark(0.5, seeding_scheme="selfhash", context_width=2),
    ],
    "guidance": [],  # of several rows: see GROUPED
    "log_normalize": [purgen.log_normalize],
    "min_k": [
        purgen.min_k,
        lambda: purgen.min_k(per_row(0.0, 3.0, 30.0, 300.0), min_tokens_to_keep=2),
    ],
    "min_length": [
        lambda: purgen.min_length(9, eos_token_id=[1, 2]),
        lambda: purgen.min_length(torch.tensor([0, 4, 8, 99]), eos_token_id=3),
    ],
    "min_new_tokens": [
        lambda: purgen.min_new_tokens(9, eos_token_id=[1, 2]),
        lambda: purgen.min_new_tokens(torch.tensor([0, 1, 8, 99]), eos_token_id=3),
    ],
    "min_p": [
        lambda: purgen.min_p(0.1),
        lambda: purgen.min_p(per_row(0.0, 0.1, 0.5, 1.0), min_tokens_to_keep=3),
    ],
    "mirostat": [
        lambda: purgen.mirostat(2.0),
        lambda: purgen.mirostat(
            per_row(0.0, 1.0, 2.0, 9.0), learning_rate=per_row(0.0, 0.1, 1.0, 2.0), version=1, m=9
        ),
    ],
    "named_chain": [
        lambda: purgen.named_chain(heat=purgen.temperature(2.0), best=purgen.top_k(3)),
        lambda: purgen.named_chain(("best", purgen.top_k(3)), ("nucleus", purgen.top_p(0.5))),
    ],
    "no_repeat_ngram": [
        lambda: purgen.no_repeat_ngram(1),
        lambda: purgen.no_repeat_ngram(3),
        lambda: purgen.no_repeat_ngram(torch.tensor([1, 2, 4, 99])),
    ],
    "p_less": [
        purgen.p_less,
        lambda: purgen.p_less(normalize=True, min_tokens_to_keep=2),
    ],
    "prefix_allowed_tokens": [
        lambda: purgen.prefix_allowed_tokens([[1, 2], [1, 2, 3], [4]], eos_token_id=[0, 9]),
        lambda: purgen.prefix_allowed_tokens(
            [[[1, 2], [0, 1]], [[3]], [[5, 6], [6]], [[9]]], eos_token_id=9
        ),
        lambda: purgen.prefix_allowed_tokens(
            function=lambda row, ids: [1, 2] if len(ids) < 5 else [int(ids[-1]), 0], eos_token_id=0
        ),
    ],
    "presence_penalty": [
        lambda: purgen.presence_penalty(0.7),
        lambda: purgen.presence_penalty(per_row(-1.0, 0.0, 0.5, 2.0), scope="all", exempt=[0, 3]),
    ],
    "quadratic": [
        lambda: purgen.quadratic(0.2),
        lambda: purgen.quadratic(
            per_row(0.01, 0.1, 1.0, 9.0), smoothing_curve=per_row(1.0, 2.0, 3.0, 9.0)
        ),
    ],
    "remove_invalid": [purgen.remove_invalid],
    "repetition_penalty": [
        lambda: purgen.repetition_penalty(1.5),
        lambda: purgen.repetition_penalty(per_row(0.5, 1.0, 1.5, 9.0), scope="generated"),
        lambda: purgen.repetition_penalty(1.2, normalize=True, exempt=[0, 3], scope="prompt"),
        lambda: purgen.repetition_penalty(1.2, prompt_ignore_length=torch.tensor([0, 1, 2, 3])),
    ],
    "sequence_bias": [
        lambda: purgen.sequence_bias({(3,): 1.5, (1, 2): -torch.inf, (4, 4, 2): torch.inf}),
        lambda: purgen.sequence_bias(
            [
                [[3], per_row(0.0, 1.0, -1.0, torch.inf)],
                [[1, 3], per_row(1.0, 2.0, 3.0, -torch.inf)],
            ]
        ),
    ],
    "stateless": [lambda: purgen.stateless(lambda logits, view: logits * 0.5)],
    "suppress_tokens": [lambda: purgen.suppress_tokens([0, 3, 31])],
    "suppress_tokens_at_begin": [
        lambda: purgen.suppress_tokens_at_begin([0, 3, 31]),
        lambda: purgen.suppress_tokens_at_begin(5, begin_index=torch.tensor([0, 4, 9, 99])),
    ],
    "synthid_watermark": [
        lambda: purgen.synthid_watermark(
            3, keys=[654, 400, 836], context_history_size=5, sampling_table_size=99
        ),
        lambda: purgen.synthid_watermark(5, keys=[2**63 - 1, -7], skip_first_ngram_calls=True),
        lambda: purgen.synthid_watermark(2, keys=[1], context_history_size=0),
    ],
    "tail_free": [
        lambda: purgen.tail_free(0.9),
        lambda: purgen.tail_free(per_row(0.0, 0.3, 0.99, 1.0), min_tokens_to_keep=2),
    ],
    "temperature": [
        lambda: purgen.temperature(0.7),
        lambda: purgen.temperature(0.0),
        lambda: purgen.temperature(per_row(0.0, 1e-40, 1.0, 3.0)),
    ],
    "top_a": [
        lambda: purgen.top_a(0.2),
        lambda: purgen.top_a(per_row(0.0, 0.2, 0.5, 1.0), min_tokens_to_keep=3),
    ],
    "top_h": [
        lambda: purgen.top_h(0.4),
        lambda: purgen.top_h(per_row(0.0, 0.3, 0.9, 1.0), min_tokens_to_keep=2),
    ],
    "top_k": [
        lambda: purgen.top_k(5),
        lambda: purgen.top_k(torch.tensor([1, 2, 33, 64]), min_tokens_to_keep=2),
    ],
    "top_n_sigma": [
        lambda: purgen.top_n_sigma(1.0),
        lambda: purgen.top_n_sigma(per_row(0.0, 0.5, 2.0, 9.0), min_tokens_to_keep=2),
    ],
    "top_p": [
        lambda: purgen.top_p(0.8),
        lambda: purgen.top_p(per_row(0.0, 0.3, 0.99, 1.0), min_tokens_to_keep=2),
    ],
    "typical_p": [
        purgen.typical_p,
        lambda: purgen.typical_p(per_row(0.0, 0.3, 0.9, 1.0), min_tokens_to_keep=3),
    ],
    "when": [lambda: purgen.when(lambda view: view.num_new_tokens % 2 == 0, purgen.top_k(4))],
    "whisper_no_speech": [
        lambda: purgen.whisper_no_speech(3),
        lambda: purgen.whisper_no_speech(
            3, begin_index=torch.tensor([0, 4, 9, 99]), scores_is_logprobs=True
        ),
    ],
    "whisper_timestamps": [
        lambda: purgen.whisper_timestamps(3, eos_token_id=2, max_initial_timestamp_index=10),
        lambda: purgen.whisper_timestamps(
            5,
            eos_token_id=[1, 4],
            begin_index=torch.tensor([0, 3, 7, 99]),
            max_initial_timestamp_index=torch.tensor([0, 1, 9, 99]),
            detect_timestamp_from_logprob=False,
        ),
    ],
    "xtc": [
        lambda: purgen.xtc(0.5, special_token_ids=[3]),
        lambda: purgen.xtc(per_row(0.0, 0.3, 0.7, 1.0), threshold=per_row(0.01, 0.1, 0.0, 0.05)),
    ],
}

# Transforms that read several rows as one thing: they are checked without the law of rows
# (`check_transform(..., except_laws=["rows"])`, in tests/transforms/test_special.py), and TRANSFORMS
# has no case of them.
GROUPED: dict[str, list[Callable[[], LogitsTransform]]] = {
    "dia_eos_delay": [
        lambda: purgen.dia_eos_delay([0, 3], eos_token_id=5),
        lambda: purgen.dia_eos_delay(
            [0, 1, 2, 4], eos_token_id=5, max_generation_len=torch.tensor([9, 9, 9, 30])
        ),
    ],
    "dia_guidance": [
        lambda: purgen.dia_guidance(3.0),
        lambda: purgen.dia_guidance(
            per_row(0.0, 1.5, 9.0, 9.0), guidance_top_k=torch.tensor([1, 5, 9, 99])
        ),
    ],
    "guidance": [
        lambda: purgen.guidance(3.0),
        lambda: purgen.guidance(per_row(0.0, 1.0, 9.0, 9.0)),
    ],
}

STOP_RULES: dict[str, list[Callable[[], StopRule]]] = {
    "all_of": [lambda: purgen.all_of(purgen.eos([1, 2]), purgen.max_new_tokens(3))],
    "any_of": [
        purgen.any_of,
        lambda: purgen.any_of(purgen.eos([1, 2]), purgen.max_length(12), purgen.max_new_tokens(9)),
    ],
    "confidence": [
        lambda: purgen.confidence(0.4),
        lambda: purgen.confidence(per_row(0.0, 0.2, 0.5, 1.0)),
    ],
    "entropy_above": [
        lambda: purgen.entropy_above(1.5),
        lambda: purgen.entropy_above(per_row(0.0, 1.0, 2.0, 3.0)),
    ],
    "eos": [lambda: purgen.eos(3), lambda: purgen.eos([3, 1])],
    "max_length": [
        lambda: purgen.max_length(12),
        lambda: purgen.max_length(torch.tensor([8, 9, 11, 30])),
    ],
    "max_new_tokens": [
        lambda: purgen.max_new_tokens(5),
        lambda: purgen.max_new_tokens(torch.tensor([1, 2, 3, 50])),
    ],
    "max_time": [
        lambda: purgen.max_time(0.95),
        lambda: purgen.max_time(per_row(0.0, 0.55, 1.05, torch.inf)),
    ],
    "mean_logprob_below": [
        lambda: purgen.mean_logprob_below(-2.5),
        lambda: purgen.mean_logprob_below(per_row(0.0, -2.0, -3.0, -torch.inf)),
    ],
    "stop_sequences": [lambda: purgen.stop_sequences([[3, 1], [5, 5, 5], [0]])],
    "stop_strings": [
        lambda: purgen.stop_strings(
            ["aba", "caab"], vocabulary=[b"ab", b"a", b"c", b"ba", None, *[b""] * 27]
        ),
    ],
    "when": [lambda: purgen.when(lambda view: view.num_new_tokens > 2, purgen.eos([1, 2]))],
}

STRATEGIES: dict[str, list[Callable[[Model], Decoder]]] = {
    "greedy": [
        purgen.greedy,
        lambda model: purgen.greedy(
            model,
            transform=purgen.repetition_penalty(per_row(1.0, 1.1, 1.5, 2.0)),
            stop=purgen.any_of(purgen.eos([3, 4]), purgen.max_new_tokens(9)),
        ),
    ],
    "guided": [
        lambda model: purgen.guided(model, scale=1.5),
        lambda model: purgen.guided(
            model,
            scale=per_row(0.0, 1.0, 2.0, -1.0),
            negative_prompt=purgen.Prompt.from_lists([[9, 8, 7]], pad_token_id=0),
            do_sample=True,
            transform=purgen.top_k(7),
        ),
    ],
    "sample": [
        purgen.sample,
        lambda model: purgen.sample(
            model,
            transform=purgen.chain(purgen.temperature(1.5), purgen.top_k(9), purgen.top_p(0.9)),
        ),
    ],
    "token_strategy": [
        lambda model: purgen.token_strategy(
            model, lambda logits, state: logits.topk(2, dim=-1).indices[:, 1]
        )
    ],
}


def cases(table: dict) -> list:
    """The entries of a table as pytest parameters `name-index`."""
    import pytest

    return [
        pytest.param(make, id=f"{name}-{index}")
        for name, makers in table.items()
        for index, make in enumerate(makers)
    ]
