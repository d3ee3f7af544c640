"""Branches on data: each trap of `torch.cond`, eager, compiled and under vmap."""

from __future__ import annotations

import pytest
import torch

import purgen
from purgen.control import branch, choose


@purgen.pytree_dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor
    name: str = purgen.static_field(default="pair")


PAIR = Pair(left=torch.arange(3.0), right=torch.ones(3), name="mine")


def swapped(predicate, pair):
    """Dataclass in, dataclass out; a branch returns operands, one of them twice, and a view."""
    return branch(
        predicate,
        lambda pair: {
            "pair": Pair(left=pair.right, right=pair.right, name=pair.name),
            "row": (pair.left[:2],),
        },
        lambda pair: {"pair": pair, "row": (pair.right[1:] * 2,)},
        (pair,),
        like={"pair": pair, "row": (pair.left,)},
    )


def expected(predicate):
    if predicate:
        return [PAIR.right, PAIR.right, PAIR.left[:2]]
    return [PAIR.left, PAIR.right, PAIR.right[1:] * 2]


def require(result, predicate):
    assert result["pair"].name == "mine"
    got = [result["pair"].left, result["pair"].right, result["row"][0]]
    assert all(torch.equal(a, b) for a, b in zip(got, expected(predicate), strict=True))


RUNS = {
    "eager": lambda function: function,
    "traced": lambda function: torch.compile(function, fullgraph=True, backend="aot_eager"),
    "inductor": lambda function: torch.compile(function, fullgraph=True),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("predicate", [True, False])
def test_pytrees_and_aliases(run, predicate):
    require(RUNS[run](swapped)(torch.tensor(predicate), PAIR), predicate)


@pytest.mark.parametrize("run", ["eager", "traced"])
def test_every_output_survives_vmap(run):
    lanes = torch.tensor([True, False])
    results = RUNS[run](torch.func.vmap(swapped, in_dims=(0, None)))(lanes, PAIR)
    for lane in (0, 1):
        require(purgen.testing.laws.unstack_tree(results, lane), bool(lanes[lane]))


@pytest.mark.parametrize("run", ["eager", "traced"])
def test_operands_batched_and_predicate_not(run):
    many = torch.utils._pytree.tree_map(lambda leaf: torch.stack([leaf, leaf + 1]), PAIR)
    function = torch.func.vmap(lambda pair: swapped(torch.tensor(True), pair)["pair"].left)
    assert torch.equal(RUNS[run](function)(many), many.right)


def test_the_other_branch_does_not_run_eagerly():
    ran = []
    branch(torch.tensor(True), lambda: ran.append("true"), lambda: ran.append("false"))
    assert ran == ["true"]


@pytest.mark.parametrize("backend", ["eager"])
@pytest.mark.parametrize("swap", [False, True])
def test_the_other_branch_does_not_run_compiled(backend, swap):
    """One of the branches would raise."""

    def run(predicate, x):
        branches = (lambda x: x + 1, torch.linalg.cholesky)
        return branch(predicate, *(branches[::-1] if swap else branches), (x,))

    singular = torch.zeros(2, 2)
    compiled = torch.compile(run, fullgraph=True, backend=backend)
    assert torch.equal(compiled(torch.tensor(not swap), singular), singular + 1)
    with pytest.raises(RuntimeError, match="cholesky"):
        compiled(torch.tensor(swap), singular)


def test_inside_a_loop():
    from torch._higher_order_ops.while_loop import while_loop

    def run(x):
        def body(count, x):
            pair = Pair(left=x, right=x * 2)
            after = branch(
                count % 2 == 0,
                lambda p: p,
                lambda p: Pair(left=p.right, right=p.left),
                (pair,),
                like=pair,
            )
            return count + 1, after.left.clone()

        return while_loop(lambda count, x: count < 5, body, (torch.tensor(0), x))[1]

    x = torch.ones(2)
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(x), x * 4)


def test_choose_refuses_different_structures():
    with pytest.raises(TypeError, match="different structures"):
        choose(torch.tensor(True), (torch.ones(1),), [torch.ones(1)])
