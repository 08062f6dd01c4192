"""What each head votes for, against the NumPy twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests import oracle
from tests.show import SCHEDULE
from zerotprune import Schedule, Stage, ZeroTPrune
from zerotprune.methods import ToMe
from zerotprune.show.story import Story, tell


@pytest.mark.parametrize("vhf", [(0.01, 0.7), (0.0, 9.0), None])
def test_heads_against_the_numpy_twin(
    model: nn.Module, images: Tensor, vhf: tuple[float, float] | None
) -> None:
    """Use one stage, so that the graph is that of the unpruned block."""
    seen: list[Tensor] = []
    block = model.get_submodule("blocks.3")
    hook = block.get_submodule("attn").register_forward_pre_hook(
        lambda _, args: seen.append(args[0])
    )
    with torch.inference_mode():
        model(images)
    hook.remove()
    schedule = Schedule((Stage(4, 0.5, rounds=6),), ZeroTPrune(vhf=vhf))
    stories = tell(model, images, schedule, heads=True)
    with torch.inference_mode():
        qkv = block.get_submodule("attn.qkv")(seen[0]).double().reshape(6, 197, 3, 3, 32)
    for at, story in enumerate(stories):
        q, k = (qkv[at, :, which].transpose(0, 1).numpy() for which in (0, 1))
        logits = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(32))
        graph = logits / logits.sum(-1, keepdims=True)
        start = np.ones(197)
        start[0] = np.sqrt(197)
        scores = np.stack([oracle.vote(head, start / start.sum(), 6)[1:] for head in graph])
        relative = scores / scores.mean(-1, keepdims=True)
        assert story.heads is not None
        (view,) = story.heads
        assert (view.block, view.vhf) == (4, vhf)
        np.testing.assert_allclose(view.importance.flatten(1).numpy(), relative, rtol=2e-3)
        assert view.variance == pytest.approx(relative.var(-1).tolist(), rel=5e-3)
        assert [head for head, used in enumerate(view.used) if used] == (
            oracle.passing_heads(scores, vhf)
        )


def test_heads_do_not_change_the_story(
    model: nn.Module, images: Tensor, stories: list[Story]
) -> None:
    plain = tell(model, images, SCHEDULE)
    for one, other in zip(plain, stories, strict=True):
        assert one.heads is None
        assert one.after == other.after
        for view, same in zip(one.stages, other.stages, strict=True):
            assert torch.equal(view.fate, same.fate)
    assert stories[5].heads is not None
    # The first stage drops similar patches only: no head is left out of its vote.
    assert [view.vhf for view in stories[5].heads] == [None, (0.01, 0.7), (0.01, 0.7)]
    for heads, stage in zip(stories[5].heads[1:], stories[5].stages[1:], strict=True):
        # A head sees what the stage's importance is about, on the survivors of S.
        assert torch.equal(heads.importance[0].isnan(), stage.importance.isnan())


def test_heads_of_a_method_that_has_none(model: nn.Module, images: Tensor) -> None:
    with pytest.raises(ValueError, match="ToMe"):
        tell(model, images, Schedule((Stage(2, 1.0, 9),), ToMe()), heads=True)
