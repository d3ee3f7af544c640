"""`bridge.token_bytes`: the bytes of each token, which `purgen.stop_strings` searches.

It is purgen's own function, since it needs nothing of transformers.
"""

from purgen.stop_rules.vocabulary import token_bytes

__all__ = ["token_bytes"]
