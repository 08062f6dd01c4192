"""A pruned model inside what people train and serve with: one step, beside the model alone.

Gradient checkpointing is tested with the models: `test_pruning.py` and `tests/backbones`.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerotprune as ztp
from tests import hf_families, libraries
from tests.families import build, images_for
from tests.nursery import nursery, run_script

COST = 0.7


def step(model: Any, images: Tensor) -> tuple[float, dict[str, Tensor]]:
    """Return the loss, and the gradient of every weight that has one."""
    outputs = model(images)
    loss = getattr(outputs, "logits", outputs).square().mean()
    loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    return loss.item(), {
        name: gradient for name, gradient in gradients.items() if gradient is not None
    }


@pytest.fixture
def group(tmp_path: Any) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


RANKED = """
import sys
import torch, torch.distributed as dist, zerotprune as ztp
from tests.families import SMALL, build, images_for
from tests.test_wrappers import COST, step

SMALL["depth"] = 3
port, rank = int(sys.argv[1]), int(sys.argv[2])
model = ztp.prune_(build("deit").train(), cost=COST)
images = images_for(model, 4)
loss, expected = step(model, images)
model.zero_grad()
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
wrapped = torch.nn.parallel.DistributedDataParallel(model)
step(wrapped, images.chunk(2)[rank])
for name, weight in model.named_parameters():  # the mean over two halves is that of the whole
    torch.testing.assert_close(weight.grad, expected[name])
dist.destroy_process_group()
print(len(expected), "gradients")
"""


def test_two_processes_of_data_parallel_make_the_step_of_one() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    ranks = [nursery().start(RANKED, port, rank) for rank in "01"]
    for done in [nursery().wait(rank) for rank in ranks]:
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.endswith("gradients\n")


@pytest.mark.parametrize("family", ["deit", "siglip, no cls"])
@pytest.mark.usefixtures("group")
def test_fully_sharded(family: str, tmp_path: Path) -> None:
    """FSDP2 as documented: blocks, then the model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model: Any = ztp.prune_(build(family).train(), cost=COST)
    images, sharded = images_for(model), copy.deepcopy(model)
    mesh = init_device_mesh("cpu", (1,))
    for block in sharded.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    loss, expected = step(model, images)
    sharded_loss, gradients = step(sharded, images)
    assert sharded_loss == pytest.approx(loss, rel=1e-5)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        shards: Any = gradients[name]
        torch.testing.assert_close(shards.full_tensor(), gradient)
    with pytest.raises(TypeError, match=r"prune.*fully_shard"):
        ztp.prune_(sharded, cost=COST)
    with pytest.raises(TypeError, match=r"save.*fully_shard.*unwrapped"):
        ztp.save(sharded, tmp_path / "sharded")


COMPILED = """
import copy
import torch, zerotprune as ztp
from tests.families import SMALL, build, images_for
from tests.test_wrappers import COST, step

SMALL["depth"] = 3
model = ztp.prune_(build("deit").train(), cost=COST)
images, twin = images_for(model), copy.deepcopy(model)
loss, expected = step(model, images)
compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
compiled_loss, gradients = step(compiled, images)
assert abs(compiled_loss - loss) < 1e-5 * loss
for name, gradient in expected.items():
    torch.testing.assert_close(gradients["_orig_mod." + name], gradient)
with torch.no_grad():  # pruned again under the compiler, it is compiled again
    ztp.prune_(compiled, cost=0.62)
    torch.testing.assert_close(compiled(images), twin(images))
    assert not torch.allclose(compiled(images), model(images))
print(len(expected), "gradients")
"""


def test_a_compiled_step() -> None:
    assert run_script(COMPILED)[-1].endswith("gradients")


def pieces(library: str) -> tuple[nn.Module, list[str]]:
    """Return a model and the names of its layers for LoRA."""
    if library == "timm":
        return build("deit"), ["qkv", "fc1"]
    return hf_families.build("dinov2"), ["q_proj", "v_proj", "fc1"]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_lora_on_a_pruned_model(library: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, layers = pieces(library)
    images = torch.randn(2, 3, 96, 96)
    ztp.prune_(model.train(), cost=COST)
    with torch.no_grad():
        before = model(images)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=layers, r=2))
    with torch.no_grad():  # B begins at zero: nothing has changed yet
        torch.testing.assert_close(_logits(adapted(images)), _logits(before))
    loss, gradients = step(adapted, images)
    assert loss > 0
    assert all("lora_" in name for name in gradients)
    count = sum("lora_B" in name for name, _ in adapted.named_parameters())
    reached = [
        name for name, gradient in gradients.items() if "lora_B" in name and gradient.abs().sum()
    ]
    assert len(reached) == count == 5 * len(layers)
    torch.optim.SGD(adapted.parameters(), lr=1.0).step()
    with torch.no_grad():
        after = _logits(adapted(images))
        assert not torch.equal(after, _logits(before))
        with pytest.raises(TypeError, match=r"prune.*get_peft_model"):
            ztp.prune_(adapted, cost=COST)
        with pytest.raises(TypeError, match=r"get_peft_model.*merge_and_unload\(\)"):
            ztp.save(adapted, tmp_path / "adapted")
        merged = adapted.merge_and_unload()
        assert "pruned by" in repr(merged)
        torch.testing.assert_close(_logits(merged(images)), after, rtol=1e-4, atol=1e-4)


def _logits(outputs: Any) -> Tensor:
    logits: Tensor = getattr(outputs, "logits", outputs)
    return logits


#: in a process of its own: accelerate has one state for all of a process
PREPARED = """
import torch, zerotprune as ztp
from accelerate import Accelerator
from tests.families import build, images_for
accelerator = Accelerator(cpu=True, mixed_precision="bf16")
try:
    ztp.prune_(accelerator.prepare(build("deit")), cost=0.7)
except TypeError as error:
    print(error)
model = ztp.prune_(build("deit"), cost=0.7)
images = images_for(model)
with torch.no_grad():
    alone = model(images)
    torch.testing.assert_close(accelerator.prepare(model)(images), alone, rtol=0.1, atol=0.1)
print("same")
"""


def test_after_prepare_the_message_says_what_to_do_first() -> None:
    refused, same = run_script(PREPARED)
    assert "prune before accelerator.prepare" in refused
    assert same == "same"


def test_dispatched_blocks_are_refused() -> None:
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model: Any = build("deit")
    add_hook_to_module(model.blocks[2], AlignDevicesHook("cpu"))
    with pytest.raises(TypeError, match="load it without device_map"):
        ztp.prune_(model, cost=COST)


@pytest.mark.parametrize("name", ["deit", "vit", "torchvision"])
def test_dispatched_afterwards(name: str) -> None:
    """accelerate wraps every module with weights, to move its inputs; attention is not called."""
    from accelerate.hooks import attach_execution_device_hook, remove_hook_from_submodules

    make: Any = {"deit": build, "vit": hf_families.build, "torchvision": libraries.build}[name]
    model: Any = ztp.prune_(make(name), cost=COST)
    image = torch.rand(1, 3, 96, 96) if name == "vit" else (
        images_for(model, 1) if name == "deit" else libraries.images_for(model)[:1])  # fmt: skip
    with torch.inference_mode():
        expected = model(image)
        attach_execution_device_hook(model, "cpu")
        actual = model(image)
    remove_hook_from_submodules(model)
    torch.testing.assert_close(logits_of(actual), logits_of(expected))


def logits_of(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.logits


def test_data_parallel_over_several_gpus_is_refused() -> None:
    def replicate(model: nn.Module) -> list[Any]:
        """Copy every module, as `torch.nn.parallel.replicate` does once it has copied weights."""
        return [module._replicate_for_data_parallel() for module in model.modules()]

    model = ztp.prune_(build("deit"), cost=0.7)
    with pytest.raises(ValueError, match="DistributedDataParallel"):
        replicate(nn.Sequential(model))
    replicate(ztp.restore_(model))


def test_inside_a_pipeline() -> None:
    """The pipeline's answers are those of the pruned model itself."""
    import transformers
    from PIL import Image

    model: Any = hf_families.build("vit")
    processor = transformers.ViTImageProcessor(size={"height": 96, "width": 96})
    quick = ztp.pruned(model, cost=COST)
    serve = transformers.pipeline("image-classification", model=quick, image_processor=processor)
    pixels = (torch.rand(120, 100, 3) * 255).byte().numpy()
    image = Image.fromarray(pixels)
    with torch.inference_mode():
        inputs = processor(image, return_tensors="pt")
        expected = quick(**inputs).logits.softmax(-1)[0]
        unpruned = model(**inputs).logits.softmax(-1)[0]
    scores = {answer["label"]: answer["score"] for answer in serve(image, top_k=7)}
    assert [scores[f"LABEL_{index}"] for index in range(7)] == pytest.approx(expected.tolist())
    assert not torch.allclose(expected, unpruned)
