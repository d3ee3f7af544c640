# %% [markdown]
# # A strategy of your own
#
# A strategy that picks one token a step is a pure function from logits to tokens. It compiles,
# vmaps, streams and resumes, since nothing in it can do otherwise; `purgen.testing` proves it.

# %%
import torch

import bridge
import purgen

# %% [markdown]
# Cold where the model is sure, warm where it is not:


# %%
def adaptive(model, *, low=0.3, high=1.2, threshold=2.0, stop=None):
    """Samples at a temperature that depends on the entropy of the model's distribution."""

    def choose(logits, state):  # [B, V] -> [B]
        warm = purgen.entropy(logits) > threshold  # [B]
        temperature = torch.where(warm, high, low)  # [B]
        return purgen.random.categorical(purgen.step_key(state), logits / temperature[:, None])

    return purgen.token_strategy(model, choose, stop=stop)


# %% [markdown]
# One that does more in a step writes `step` itself, out of the verbs of every built-in. Here the
# state remembers the last token that won, and forbids it for a step:


# %%
def never_twice(model):
    """Greedy decoding that never emits a token twice in a row."""
    stop = purgen.eos(model.eos_token_id)

    def init(params, prompt, *, rng_key=None, max_new_tokens):
        state = purgen.begin(
            model, params, prompt, max_new_tokens=max_new_tokens, rng_key=rng_key, stop=stop
        )
        return purgen.replace(state, extra=purgen.last_token(state))  # int64 [B]

    def step(params, state):
        state, output = purgen.feed(model, params, state)
        logits = output.logits[:, -1].scatter(1, state.extra[:, None], -torch.inf)
        token = logits.argmax(dim=-1)
        extra = torch.where(state.stopped, state.extra, token)
        return purgen.append(purgen.replace(state, extra=extra), token, logits, stop=stop)

    return purgen.Decoder(init, step, purgen.finish)


# %%
if __name__ == "__main__":
    toy = purgen.testing.toy_model(eos_token_id=3)
    prompt = purgen.Prompt.from_lists([[1, 2], [4, 5, 6]], pad_token_id=0)
    key = purgen.random.key(0)
    for decoder in (adaptive(toy), never_twice(toy)):
        purgen.testing.check_decoder(decoder, toy.params, prompt, rng_key=key)
    print("both strategies keep the laws")

    model = bridge.load(bridge.embedded_checkpoint())
    prompt = model.encode(["The capital of France is", "My favourite animal is the"])
    for decoder in (adaptive(model), never_twice(model)):
        out = purgen.generate(decoder, model.params, prompt, rng_key=key, max_new_tokens=24)
        print(model.decode(out.sequences))
